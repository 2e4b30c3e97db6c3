#!/usr/bin/env bash
# Twenty random kills (scripts/kill_matrix), a run of many steps in which nothing grows (scripts/soak), and what both say to bad usage.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=$build
check "twenty kills" 0 "20 of 20 trials hold" "$root/scripts/kill_matrix" --trials 20 --seed 3 --limit 40
check "an algorithm that is not there" 2 "invalid choice: 'none'" "$root/scripts/kill_matrix" --algorithms none
check "no program" 2 "starling-train is missing" env STARLING_BUILD="$work/nowhere" "$root/scripts/kill_matrix" --trials 1
# On a busy machine steps differ by more than here is looked at.
check "ten thousand steps" 0 "threads: .*: flat" "$root/scripts/soak" --steps 10000 --every 0.1 --slower 100
verify "descriptors too" grep -q "^descriptors: .*: flat" .stdout
check "a soak of no steps" 2 "must be at least 100" "$root/scripts/soak" --steps 0
finish
