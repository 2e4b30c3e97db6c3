#!/usr/bin/env bash
# starling-topo: what it prints, its JSON and SVG, and what it refuses.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export topo=$build/bin/starling-topo

check "rounds and weights" 0 '^round 1: \[1 2\] self 1/3, other 2/3$' "$topo" show base-2 -n 3
check "exact consensus" 0 '^consensus: exact after 3 rounds$' "$topo" show base-2 -n 3
check "spectral gap" 0 '^spectral gap: 0\.292893218813$' "$topo" show ring -n 8
check "a rate" 0 '^consensus: disagreement × 0\.707107 a round' "$topo" show ring -n 8
check "nodes" 0 '^round 0: \[0 1\] \[2 3\] weight 1/2; \[4-7\] weight 1/4$' "$topo" show alternating-exp-ring -n 8 --ranks-per-node 2
check "one rank" 0 '^consensus: exact after 0 rounds$' "$topo" show base-2 -n 1
verify "one line a round, whatever n" bash -c '"$topo" show one-peer-exp -n 4096 | awk "/^round 9: / { found = length < 810 } END { exit !found }"'
check "a seed" 0 'no period' "$topo" show random-matching -n 5 --set seed=3
check "a custom topology" 0 '^spectral gap: 0\.5$' "$topo" show custom -n 3 --set 'rounds=[[{"ranks": [0, 1]}], [{"ranks": [1, 2]}]]'
check "the product of a period" 0 '^  2/3  1/6  1/6$' "$topo" show static-ring -n 3 --set 'weights=[0.6666666666666666, 0.1666666666666667, 0.1666666666666667]'
check "the product of a long period" 0 '^product over the period: J/n$' "$topo" show base-2 -n 24
check "a product that is no mean" 0 '^product over the period: not J/n, largest deviation 0\.283$' "$topo" show static-ring -n 20
check "the consensus curve" 0 '^consensus curve, disagreement left: 1 0\.6547 0\.378 0 0$' "$topo" show one-peer-exp -n 8
check "nodes and inter" 0 '^round 1: mean inside each node of 2 ranks; nodes \[1 2\] self 1/3, other 2/3$' "$topo" show hierarchical -n 6 --ranks-per-node 2
check "inter by name" 0 '^round 1: mean inside each node of 2 ranks; nodes \[0 3\] \[1 2\] weight 1/2$' "$topo" show hierarchical -n 8 --ranks-per-node 2 --set inter=ring
check "a directed round" 0 '^round 1: 0 = 1/2·x0 \+ 1/2·x3;' "$topo" show directed-exp -n 5
check "4,096 ranks" 0 '^spectral gap: 0\.153846153846$' "$topo" show hypercube -n 4096
check "help" 0 'ranks-per-node' "$topo" show --help

check "JSON" 0 '^\{"spectral_gap":1\.0,"rounds_to_consensus":1,"matrices":\[\[\[0\.5,0\.5\],\[0\.5,0\.5\]\]\],"product":\[\[0\.5,0\.5\],\[0\.5,0\.5\]\],"product_deviation":0\.0,"product_columns":2,"consensus_curve":\[1\.0,0\.0,0\.0,0\.0,0\.0\],"ranks":2,"period":1,"rounds":\[\[\{"ranks":\[0,1\],"weight":0\.5\}\]\]\}$' "$topo" show complete -n 2 --json
# What the JSON lists as rounds is a custom topology: the same matrices come back. Above 64 ranks
# there are rounds alone.
same_as_custom() { # TYPE N [ARGUMENT...]
  local n=$2
  "$topo" show "$1" -n "$n" "${@:3}" --json >from.json &&
    sed -E 's/^.*"rounds":(\[.*\])\}$/{"rounds": \1}/' from.json >rounds.json &&
    "$topo" show custom -n "$n" --set "rounds=$(sed -E 's/^\{"rounds": (.*)\}$/\1/' rounds.json)" --json | diff from.json - >difference
}
for type in complete base-2 hypercube star directed-exp shift-one; do
  verify "JSON of $type comes back through custom" same_as_custom "$type" 8
done
verify "JSON of hierarchical comes back through custom" same_as_custom hierarchical 12 --ranks-per-node 2 --set inter=torus
verify "JSON of 100 ranks comes back through custom" same_as_custom base-2 100
check "JSON of 100 ranks has no matrices" 0 '^\{"spectral_gap":1\.0,"rounds_to_consensus":[0-9]+,"product_deviation":' "$topo" show base-2 -n 100 --json
check "JSON without consensus" 0 '"rounds_to_consensus":null' "$topo" show ring -n 6 --json
check "JSON of 64 rounds" 0 '^64$' bash -c '"$topo" show random-matching -n 3 --json | sed -E "s/,\"product.*//" | grep -o "\[\[" | wc -l'
verify "SVG" "$topo" show base-2 -n 12 --svg picture.svg
verify "SVG is a picture" grep -q '</svg>' picture.svg
verify "SVG of 4,096 ranks" "$topo" show hierarchical -n 4096 --ranks-per-node 8 --svg picture.svg
verify "SVG of 4,096 ranks is small" [ "$(wc -c <picture.svg)" -lt 300000 ]
verify "the pictures of docs/topologies.md are what is drawn" bash "$root/scripts/topology_pictures.sh" --check

check "simulate" 0 '^      4 +[0-9.]+e-1[5-9] +[0-9.]+e-1[5-9]$' "$topo" simulate base-2 -n 6 --rounds 6 --lr 0
check "simulate to the optimum" 0 '^    400 +[0-9.]+e[+-]0[01] +[0-9.]+e-(0[89]|1[0-9])$' "$topo" simulate ring -n 8 --rounds 400 --lr 0.5
check "simulate a seed" 0 'seed 7$' "$topo" simulate ring -n 8 --seed 7 --rounds 1
check "simulate 4,096 ranks" 0 '^   1000  ' "$topo" simulate one-peer-exp -n 4096 --rounds 1000 --dimension 2
check "simulate JSON" 0 '^\{"topology":"star","ranks":3,"lr":0\.1,"dimension":8,"heterogeneity":1\.0,"seed":0,"consensus_error":\[[0-9.e-]+,[0-9.e-]+,[0-9.e-]+\],"distance":\[[0-9.e-]+,[0-9.e-]+,[0-9.e-]+\]\}$' "$topo" simulate star -n 3 --rounds 2 --json
check "simulate one rank" 0 '^     32 +0\.000000e\+00' "$topo" simulate base-2 -n 1
check "simulate nothing" 0 '^      0 ' "$topo" simulate base-2 -n 2 --rounds 0
verify "a line a round, the start and two of headings" [ "$(wc -l <.stdout)" = 3 ]
check "a rate that is too large" 4 'became infinite in round [0-9]+; use a smaller --lr' "$topo" simulate ring -n 4 --lr 1000 --rounds 1000
check "simulate what does not exist" 2 "did you mean 'torus'" "$topo" simulate toras -n 4

check "the wrong number of ranks" 2 '^starling-topo: \[topology\] ring needs an even number of ranks, not 5; for 5 ranks: ' "$topo" show ring -n 5
check "a malformed setting" 2 'foo' "$topo" show ring -n 4 --set foo
check "a topology that does not mix" 2 'does not mix' "$topo" show custom -n 2 --set 'rounds=[[{"ranks": [0, 1], "weight": 0}]]'
check "no ranks" 2 'ranks' "$topo" show ring
check "an unknown subcommand" 2 "unknown subcommand 'paint'; known: show, simulate" "$topo" paint ring -n 4
check "a misspelt subcommand" 2 "did you mean 'show'" "$topo" shwo ring -n 4
check "no subcommand" 2 'subcommand' "$topo"
check "JSON and SVG at once" 2 'json' "$topo" show ring -n 4 --json --svg picture.svg
echo mine >mine.txt
check "a file of another kind" 2 "svg mine.txt: the file is there already and holds no topology's picture" "$topo" show ring -n 4 --svg mine.txt
verify "a picture takes the place of one" "$topo" show ring -n 4 --svg picture.svg
check "figures, too" 2 "output mine.txt: the file is there already and holds no measured network" ranks 2 "$topo" measure --seconds 0.1 --output mine.txt
verify "it stays" grep -qx mine mine.txt
check "an SVG that cannot be opened" 5 'no/such' "$topo" show ring -n 4 --svg no/such/picture.svg
check "a full disk" 5 'could not be written' bash -c '"$topo" show ring -n 4 >/dev/full'
check "consensus with what an algorithm encodes" 0 "with what it encodes: disagreement × 0.[78][0-9]+ a round, down to fp32's own rounding" "$topo" show static-ring -n 8 --algorithm choco
check "and with an exchange that is encoded" 0 "a round, down to 0.0[0-9]+ of the parameters' size" "$topo" show static-ring -n 8 --algorithm gossip --exchange int8
check "which not every algorithm has" 2 'DecentLaM does not encode its exchanges; allowed: fp32' "$topo" show static-ring -n 8 --algorithm decentlam --exchange int8
finish
