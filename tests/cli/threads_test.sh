#!/usr/bin/env bash
# How OpenMP's threads wait: the programs that compute start again with short spins, unless the
# environment has its own word on it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ "$(nproc)" -lt 2 ]; then
  echo "SKIPPED: threads wait for each other on two cores and more"
  exit 77
fi
export OMP_DISPLAY_ENV=verbose
unset GOMP_SPINCOUNT OMP_WAIT_POLICY
spins() { # PROGRAM ARGUMENT...: what the runtime says when it is loaded last
  "$@" 2>&1 | sed -n "s/.*GOMP_SPINCOUNT = '\([0-9]*\)'.*/spins \1/p" | tail -1
}
export -f spins
check "starling-train" 0 "^spins 1000$" spins "$train" --version
check "starling-predict" 0 "^spins 1000$" spins "$build/bin/starling-predict" --help
check "starling-bench" 0 "^spins 1000$" spins "$build/bin/starling-bench" --help
check "under mpirun" 0 "^spins 1000$" spins ranks 1 --bind-to none "$train" --version
check "the user's spins" 0 "^spins 77$" env GOMP_SPINCOUNT=77 bash -c 'spins "$@"' _ "$train" --version
check "the user's policy" 0 "^spins 30000000000$" env OMP_WAIT_POLICY=active bash -c 'spins "$@"' _ "$train" --version
check "one core: nobody to wait for" 0 "^spins 300000$" taskset -c "$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')" bash -c 'spins "$@"' _ "$train" --version
unset OMP_DISPLAY_ENV
check "arguments stay as they were" 2 "no such \* file\.json" "$train" "no such * file.json"
small_config
"$train" small.json --set steps=1000000 --output long >/dev/null 2>&1 &
pid=$!
wait_for_lines long 1
verify "the program keeps its name and its number" grep -qx starling-train "/proc/$pid/comm"
kill $pid
wait $pid
status=$?
verify "a signal comes to it" test $status = 75
finish
