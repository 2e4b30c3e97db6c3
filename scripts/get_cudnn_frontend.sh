#!/usr/bin/env bash
# Downloads cudnn-frontend, the C++ headers through which the CUDA backend builds cuDNN's graphs
# (MIT licence, headers only).
#   scripts/get_cudnn_frontend.sh [DEST]     default: build/deps/cudnn-frontend, where the build
#                                            looks; the headers land in DEST/include
# Does nothing where they are. They come in a Python wheel, so python3 with pip is needed; no Python
# package is installed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=1.32.0
[ $# -le 1 ] || die "usage: scripts/get_cudnn_frontend.sh [DEST]"
dest=${1:-$build/deps/cudnn-frontend}
if [ -f "$dest/include/cudnn_frontend.h" ]; then exit 0; fi
command -v python3 >/dev/null || die "python3 is missing; install python3 and python3-pip, or unpack cudnn-frontend's include folder into $dest"

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
# The wheels of all Python versions hold the same headers.
timeout 120 python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$temporary" "nvidia-cudnn-frontend==$version" \
  >"$temporary/log" 2>&1 || {
  tail -3 "$temporary/log" >&2
  die "pip could not download nvidia-cudnn-frontend==$version (see above); without network, unpack its include folder into $dest"
}
wheel=$temporary/wheel
python3 -m zipfile -e "$temporary"/*.whl "$wheel" && [ -f "$wheel/include/cudnn_frontend.h" ] && mkdir -p "$dest" && cp -r "$wheel/include" "$dest" ||
  die "the wheel of nvidia-cudnn-frontend $version could not be unpacked into $dest"
find "$wheel" -path '*/licenses/*' -type f -exec cp {} "$dest" \;
say "cudnn-frontend $version is in $dest"
