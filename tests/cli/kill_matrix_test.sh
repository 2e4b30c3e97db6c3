#!/usr/bin/env bash
# ctest: longer at night
# Random kills (scripts/kill_matrix; twenty at night), and what that and scripts/soak say to bad
# usage.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=$build
trials=3
if nightly; then trials=20; fi
check "kills" 0 "$trials of $trials trials hold" "$root/scripts/kill_matrix" --trials $trials --seed 3 --limit 40
check "an algorithm that is not there" 2 "invalid choice: 'none'" "$root/scripts/kill_matrix" --algorithms none
check "no program" 2 "starling-train is missing" env STARLING_BUILD="$work/nowhere" "$root/scripts/kill_matrix" --trials 1
check "a soak of no steps" 2 "must be at least 100" "$root/scripts/soak" --steps 0
# a run of many steps in which nothing grows; on a busy machine steps differ by more than here is
# looked at
if nightly; then
  check "ten thousand steps" 0 "threads: .*: flat" "$root/scripts/soak" --steps 10000 --every 0.1 --slower 100
  verify "descriptors too" grep -q "^descriptors: .*: flat" .stdout
fi
finish
