#!/usr/bin/env bash
# Random kills (scripts/trials kill), a run of many steps in which nothing grows (scripts/trials
# soak), and what both say to bad usage.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export STARLING_BUILD=$build
trials=$root/scripts/trials
check "kills" 0 "20 of 20 trials hold" "$trials" kill --trials 20 --seed 3 --limit 40
check "an algorithm that is not there" 2 "invalid choice: 'none'" "$trials" kill --algorithms none
check "a command that is not there" 2 "scripts/trials soak" "$trials" burn
check "no program" 2 "starling-train is missing" env STARLING_BUILD="$work/nowhere" "$trials" kill --trials 1
check "a soak of no steps" 2 "must be at least 100" "$trials" soak --steps 0
# On a busy machine steps differ by more than here is looked at.
check "ten thousand steps" 0 "threads: .*: flat" "$trials" soak --steps 10000 --every 0.1 --slower 100
verify "descriptors too" grep -q "^descriptors: .*: flat" .stdout
finish
