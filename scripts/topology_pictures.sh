#!/usr/bin/env bash
# Draws the pictures of docs/topologies.md with starling-topo.
#   scripts/topology_pictures.sh              into docs/pictures/
#   scripts/topology_pictures.sh --check      compares what it would draw with what lies there
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
topo=${STARLING_BUILD:-$root/build}/bin/starling-topo
[ -x "$topo" ] || { echo "$topo is missing; build it first" >&2; exit 2; }
case ${1:-} in
  "") folder=$root/docs/pictures ;;
  --check) folder=$(mktemp -d "${TMPDIR:-/tmp}/starling-pictures.XXXXXX") && trap 'rm -rf "$folder"' EXIT ;;
  *) sed -n '2,4s/^# //p' "$0" >&2; exit 2 ;;
esac

while read -r type arguments; do
  # shellcheck disable=SC2086
  "$topo" show "$type" $arguments --svg "$folder/$type.svg" || exit 1
done <<'END'
complete -n 6
ring -n 8
one-peer-exp -n 8
base-2 -n 6
alternating-exp-ring -n 8 --ranks-per-node 2
random-matching -n 5 --set seed=1
hypercube -n 8
torus -n 9
static-exp -n 8
static-ring -n 8
star -n 6
directed-exp -n 8
shift-one -n 8
hierarchical -n 12 --ranks-per-node 3 --set inter=ring
END
[ "${1:-}" = --check ] || exit 0

# Numbers may differ in their last digit between compilers.
same() {
  awk '
    { gsub(/[<>"=, ]+/, " "); count[FNR == NR] += 0; n = split($0, words, " "); for (i = 1; i <= n; i++) list[FNR == NR, ++count[FNR == NR]] = words[i] }
    END {
      if (count[0] != count[1] || count[0] == 0) exit 1
      for (i = 1; i <= count[0]; i++) {
        a = list[0, i]; b = list[1, i]
        if (a == b) continue
        if (a !~ /^-?[0-9.]+$/ || b !~ /^-?[0-9.]+$/ || a - b > 0.11 || b - a > 0.11) { print FILENAME ": " a " is now " b; exit 1 }
      }
    }' "$1" "$2"
}
status=0
for picture in "$folder"/*.svg; do
  kept=$root/docs/pictures/$(basename "$picture")
  if ! { [ -f "$kept" ] && same "$picture" "$kept"; }; then
    echo "$(basename "$picture") differs from what starling-topo draws; to renew it: scripts/topology_pictures.sh" >&2
    status=1
  fi
done
for kept in "$root"/docs/pictures/*.svg; do
  if [ ! -f "$folder/$(basename "$kept")" ]; then
    echo "$(basename "$kept") is drawn by no line of scripts/topology_pictures.sh" >&2
    status=1
  fi
done
[ $status = 0 ] && echo "the pictures are up to date"
exit $status
