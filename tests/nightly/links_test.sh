#!/usr/bin/env bash
# ctest: alone
# Links, disks and clocks that misbehave on emulated hosts (scripts/trials links), each once.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export STARLING_BUILD=$build
check "a fault that is not there" 2 "invalid choice: 'none'" "$root/scripts/trials" links --faults none
"$root/scripts/trials" links --trials 1 --seed 2 --faults cut >cut.log 2>&1
status=$?
if [ $status = 77 ]; then
  echo "SKIPPED: $(cat cut.log)"
  exit 77
fi
verify "a cut link" bash -c 'cat cut.log; grep -q "^1 of 1 trials hold" cut.log'
check "links that stall, lose or hold back" 0 "^4 of 4 trials hold" "$root/scripts/trials" links --trials 4 --seed 5 --faults stalled lossy slow reordered
check "a full disk" 0 "^1 of 1 trials hold" "$root/scripts/trials" links --trials 1 --seed 4 --faults "disk full"
if compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null; then
  check "clocks that jump" 0 "^2 of 2 trials hold" "$root/scripts/trials" links --trials 2 --seed 3 --faults "cut, clock back" "clock jumps"
fi
finish
