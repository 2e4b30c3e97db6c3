#!/bin/sh
# lost_rank.sh MPIEXEC PROGRAM: how a job ends when a rank fails.
check() {  # MODE STATUS LIMIT PATTERN
  begin=$(date +%s)
  text=$("$mpiexec" -n 3 "$program" "$1" 2>&1)
  status=$?
  end=$(date +%s)
  lines=$(printf '%s\n' "$text" | grep -c "$4")
  if [ $status -ne "$2" ] || [ "$lines" -ne 1 ] || [ $((end - begin)) -gt "$3" ]; then
    printf 'mode %s: status %s (expected %s), %s s (at most %s), %s lines of "%s" (expected 1) in:\n%s\n' "$1" $status "$2" $((end - begin)) "$3" "$lines" "$4" "$text"
    failed=1
  fi
}
mpiexec=$1 program=$2 failed=0
check throw 2 8 'rank 1 sees this'
check all 2 8 'every rank sees this'
check stop 3 10 'for a barrier; missing: .*rank 1'
exit $failed
