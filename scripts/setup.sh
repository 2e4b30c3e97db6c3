#!/usr/bin/env bash
# Installs what Starling needs from Debian's or Ubuntu's packages. Does nothing, and needs no
# network, where all is there.
#   scripts/setup.sh [PACKAGE...]     further packages to install with them
# STARLING_SKIP_SETUP=1 leaves the system alone (for other distributions, where the libraries come
# from elsewhere).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for package in "$@"; do [[ $package != -* ]] || die "unknown option '$package'; arguments are names of packages"; done

# The CUDA plug-in is built where nvcc is; without cudnn-frontend's headers CMake leaves it out.
cuda_headers() {
  command -v nvcc >/dev/null || compgen -G '/usr/local/cuda*/bin/nvcc' >/dev/null || return 0
  "$root/scripts/get_cudnn_frontend.sh" || warn "without cudnn-frontend's headers the CUDA plug-in is left out (docs/gpu.md)"
}

packages=(g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libdnnl-dev libcli11-dev nlohmann-json3-dev doctest-dev
  libfmt-dev libspdlog-dev zlib1g-dev libzstd-dev libjpeg-dev libpng-dev libxxhash-dev libcpp-httplib-dev libzmq3-dev dataset-fashion-mnist "$@")

if [ "${STARLING_SKIP_SETUP:-0}" = 1 ]; then
  say "set-up skipped (STARLING_SKIP_SETUP=1)"
  exit 0
fi
# Their names elsewhere, which nobody has tried yet. (Fashion-MNIST is no package there; put its
# four files where data.path says.)
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  others="install the counterparts of '${packages[*]}' yourself"
  if command -v dnf >/dev/null; then
    others="untried names of Fedora's packages: dnf install gcc-c++ cmake ninja-build pkgconf openmpi-devel onednn-devel cli11-devel json-devel doctest-devel fmt-devel spdlog-devel zlib-devel libzstd-devel libjpeg-turbo-devel libpng-devel xxhash-devel cpp-httplib-devel zeromq-devel; module load mpi"
  elif command -v pacman >/dev/null; then
    others="untried names of Arch's packages: pacman -S base-devel cmake ninja pkgconf openmpi onednn cli11 nlohmann-json doctest fmt spdlog zlib zstd libjpeg-turbo libpng xxhash cpp-httplib zeromq"
  fi
  die "this is not Debian or Ubuntu: $others; then set STARLING_SKIP_SETUP=1"
fi

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} = 0 ]; then
  cuda_headers
  exit 0
fi

say "installing ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die "missing packages: ${missing[*]}; become root, or install sudo, and run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"; }
apt update || warn "apt-get update failed; going on with the package lists that are there"
apt install -y --no-install-recommends "${missing[@]}" ||
  die "apt-get could not install ${missing[*]}; its message stands above. Without network: copy the packages to this machine, or set STARLING_SKIP_SETUP=1 where the libraries come from elsewhere"

for package in "${missing[@]}"; do
  installed "$package" || die "apt-get ended without an error, but $package is not installed"
done
say "installed ${missing[*]}"
cuda_headers
