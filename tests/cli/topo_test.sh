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
check "one line a round, whatever n" 0 '^round 9: .{20,800}$' "$topo" show one-peer-exp -n 4096
check "a seed" 0 'no period' "$topo" show random-matching -n 5 --set seed=3
check "a custom topology" 0 '^spectral gap: 0\.5$' "$topo" show custom -n 3 --set 'rounds=[[{"ranks": [0, 1]}], [{"ranks": [1, 2]}]]'
check "help" 0 'ranks-per-node' "$topo" show --help

check "JSON" 0 '^\{"spectral_gap":1\.0,"rounds_to_consensus":1,"matrices":\[\[\[0\.5,0\.5\],\[0\.5,0\.5\]\]\]\}$' "$topo" show complete -n 2 --json
check "JSON without consensus" 0 '"rounds_to_consensus":null' "$topo" show ring -n 6 --json
check "JSON of 64 rounds" 0 '^64$' bash -c '"$topo" show random-matching -n 3 --json | grep -o "\[\[" | wc -l'
verify "SVG" "$topo" show base-2 -n 12 --svg picture.svg
verify "SVG is a picture" grep -q '</svg>' picture.svg

check "the wrong number of ranks" 2 '^starling-topo: \[topology\] ring needs an even number of ranks, not 5; for 5 ranks: ' "$topo" show ring -n 5
check "an unknown type" 2 "did you mean 'base-2'" "$topo" show base2 -n 5
check "an unknown key" 2 'sede' "$topo" show random-matching -n 5 --set sede=3
check "a malformed setting" 2 'foo' "$topo" show ring -n 4 --set foo
check "a topology that does not mix" 2 'does not mix' "$topo" show custom -n 2 --set 'rounds=[[{"ranks": [0, 1], "weight": 0}]]'
check "no ranks" 2 'ranks' "$topo" show ring
check "zero ranks" 2 'ranks' "$topo" show ring -n 0
check "ranks that are no number" 2 'ranks' "$topo" show ring -n four
check "an unknown subcommand" 2 "unknown subcommand 'paint'" "$topo" paint ring -n 4
check "no subcommand" 2 'subcommand' "$topo"
check "JSON and SVG at once" 2 'json' "$topo" show ring -n 4 --json --svg picture.svg
check "an SVG that cannot be opened" 2 'no/such' "$topo" show ring -n 4 --svg no/such/picture.svg
check "a full disk" 5 'could not be written' bash -c '"$topo" show ring -n 4 >/dev/full'
finish
