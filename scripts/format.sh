#!/usr/bin/env bash
# Checks the formatting of all C++ files that git tracks.
#   scripts/format.sh            lists the files that clang-format would change; exit status 2 if
#                                there are any
#   scripts/format.sh --fix      formats them
# CLANG_FORMAT names the program (default: clang-format-14 or clang-format).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

case ${1:-} in
  "" | --check) mode=check ;;
  --fix) mode=fix ;;
  *) die "unknown argument '$1'; known: --check, --fix" ;;
esac
formatter=${CLANG_FORMAT:-$(command -v clang-format-14 || command -v clang-format || true)}
[ -n "$formatter" ] || die "clang-format is missing: apt-get install clang-format"

mapfile -d '' -t files < <(git ls-files -z -- '*.h' '*.cpp' '*.cu' '*.cuh' '*.inc')
[ ${#files[@]} -gt 0 ] || die "git lists no C++ files in $root"
mapfile -t changed < <(printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 50 "$formatter" --style=file --dry-run 2>&1 |
  sed -nE 's/^(.*):[0-9]+:[0-9]+: warning: code should be clang-formatted.*/\1/p' | sort -u)
if [ ${#changed[@]} = 0 ]; then
  say "${#files[@]} files, all formatted"
elif [ $mode = fix ]; then
  "$formatter" --style=file -i "${changed[@]}"
  say "formatted: ${changed[*]}"
else
  printf '%s\n' "${changed[@]}"
  die "${#changed[@]} of ${#files[@]} files are not formatted; scripts/format.sh --fix does it"
fi
