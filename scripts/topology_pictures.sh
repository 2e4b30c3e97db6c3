#!/usr/bin/env bash
# Draws the pictures of docs/topologies.md with starling-topo.
#   scripts/topology_pictures.sh              into docs/pictures/
#   scripts/topology_pictures.sh --check      compares what it would draw with what lies there
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
topo=$build/bin/starling-topo
[ -x "$topo" ] || { echo "$topo is missing; build it first" >&2; exit 2; }
case ${1:-} in
  "") folder=$root/docs/pictures ;;
  --check) folder=$(mktemp -d "${TMPDIR:-/tmp}/starling-pictures.XXXXXX") && trap 'rm -rf "$folder"' EXIT ;;
  *) head_of_script >&2; exit 2 ;;
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
python3 - "$folder" "$root/docs/pictures" <<'END'
import pathlib, re, sys
drawn, kept = ({path.name: re.split(r'[<>"=, \n]+', path.read_text()) for path in pathlib.Path(folder).glob("*.svg")} for folder in sys.argv[1:])
number = lambda text: re.fullmatch(r"-?\d+(\.\d+)?", text)
close = lambda a, b: a == b or number(a) and number(b) and abs(float(a) - float(b)) <= 0.11
wrong = [name for name in drawn if name not in kept or len(drawn[name]) != len(kept[name]) or not all(map(close, drawn[name], kept[name]))]
for name in wrong:
    print(f"{name} differs from what starling-topo draws; to renew it: scripts/topology_pictures.sh", file=sys.stderr)
for name in kept.keys() - drawn.keys():
    print(f"{name} is drawn by no line of scripts/topology_pictures.sh", file=sys.stderr)
sys.exit(1 if wrong or kept.keys() - drawn.keys() else print("the pictures are up to date"))
END
