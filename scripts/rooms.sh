#!/usr/bin/env bash
# Lines of each folder of C++ and CUDA, and bytes of machine code of each built library, beside those
# of .ci/rooms: what a change has added or taken away.
#   scripts/rooms.sh            prints the table
#   scripts/rooms.sh --record   and writes it to .ci/rooms
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

rooms() {
  local room library
  for room in core kernels kernels/* layers layers/models topology comm comm/* apps apps/* apps/data/* apps/training/* tests scripts docs; do
    [ -d "$room" ] || continue
    printf '%s lines %d\n' "$room" "$(git ls-files -z -- "$room" | grep -zE '\.(cpp|h|cu|cuh|inc|py|sh|md)$|^scripts/' | xargs -0r cat | wc -l)"
  done
  for library in "$build"/lib/libstarling_*.so; do
    [ -e "$library" ] || continue
    printf '%s bytes %d\n' "$(basename "$library")" "$(size -A "$library" | awk '$1 == ".text" {print $2}')"
  done
}

now=$(rooms)
printf '%-28s%-6s %12s %12s %10s\n' room "" now before change
awk 'FILENAME != "-" {before[$1 $2] = $3; next} {
  change = ($1 $2 in before) ? $3 - before[$1 $2] : ""
  printf "%-28s%-6s %12d %12s %10s\n", $1, $2, $3, before[$1 $2], change }' .ci/rooms - <<<"$now"
if [ "${1:-}" = --record ]; then echo "$now" >.ci/rooms; fi
