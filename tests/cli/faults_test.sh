#!/usr/bin/env bash
# Faults from outside: two runs in one folder, hosts that were told different things, limits of the
# system, odd numbers and texts.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=${STARLING_BUILD:-$build}
export topo=$STARLING_BUILD/bin/starling-topo
small_config
cp small.json long.json
sed -i 's/"steps": 12/"steps": 10000000/' long.json
wait_for_file() {
  for _ in $(seq 300); do [ -e "$1" ] && return 0 || sleep 0.1; done
  return 1
}

# One run at a time in a folder.
"$train" long.json --output busy >busy.log 2>&1 &
pid=$!
wait_for_file busy/metrics.jsonl || failed "a long run starts"
check "a folder in which a run is writing" 2 "busy: process $pid on host $(hostname) is writing" "$train" small.json --output busy
check "to be resumed, too" 2 "busy: process $pid on host" "$train" small.json --output busy --resume latest
check "by its name, too" 2 "busy: process $pid on host|no complete checkpoint" "$train" small.json --resume busy
check "on two ranks" 2 "busy: process $pid" ranks 2 "$train" small.json --output busy
kill -KILL $pid
wait $pid 2>/dev/null
verify "a killed run leaves its lock file" test -e busy/.lock
check "which means nothing" 0 "" "$train" small.json --output busy --resume latest
verify "and goes with the next run" test ! -e busy/.lock
race() { # of 20 starts at once one runs, the others say one line
  local i statuses=()
  for i in $(seq 20); do (
    "$train" small.json --set steps=400 --output race >"race.$i.log" 2>&1
    echo $? >"race.$i.status"
  ) & done
  wait
  [ "$(cat race.*.status | grep -c '^0$')" = 1 ] && [ "$(cat race.*.status | grep -c '^2$')" = 19 ] || { cat race.*.log race.*.status && return 1; }
  for i in $(seq 20); do
    [ "$(cat "race.$i.status")" = 0 ] || grep -qE "process [0-9]+ on host .* is writing|is not empty" "race.$i.log" || { cat "race.$i.log" && return 1; }
    [ "$(cat "race.$i.status")" = 0 ] || [ "$(wc -l <"race.$i.log")" = 1 ] || { cat "race.$i.log" && return 1; }
  done
}
verify "of twenty starts one wins" race
check "a folder that is not empty stays as it was" 2 "not empty" bash -c 'mkdir -p mine && touch mine/file && "$train" small.json --output mine'
verify "without a lock" test ! -e mine/.lock
default_names() {
  for i in 1 2 3 4 5 6; do "$train" small.json >"default.$i" 2>&1 & done
  wait
  [ "$(ls runs | wc -l)" = 6 ] && [ "$(cat default.* | grep -c '^done:')" = 6 ] || { cat default.*; ls runs; return 1; }
}
verify "six starts without --output have six folders" default_names

# Data that another program shortens while it is mapped. Builds with a sanitizer leave SIGBUS to
# that.
mkdir -p data/cifar-10-batches-bin
refill() { for i in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do head -c $((3073 * 40)) /dev/zero >"data/cifar-10-batches-bin/$i.bin"; done; }
# Of 200 records an epoch is 10 updates here; declared are 50,000.
refill
check "a switch in epochs of the data that is there" 0 "step 5: from here on all-reduce" "$train" small.json --set data='{"type": "cifar10", "path": "data"}' \
  --set batch_size=20 --set steps=12 --set sync.switch='[{"epoch": 0.5, "algorithm": "allreduce"}]' --output switched
shortened() { # OUTPUT COMMAND...: training that ends when a file of its data is cut
  local output=$1 pid
  shift
  "$@" "$train" long.json --set data='{"type": "cifar10", "path": "data"}' --output "$output" &
  pid=$!
  wait_for_file "$output/metrics.jsonl" || return 1
  truncate -s 3073 data/cifar-10-batches-bin/data_batch_3.bin
  wait $pid
}
export -f wait_for_file shortened
if grep -q '^STARLING_SANITIZE:STRING=.' "$STARLING_BUILD/CMakeCache.txt" 2>/dev/null; then
  echo "skipped a file that is shortened while it is mapped: this build has a sanitizer"
else
  refill
  check "a file that is shortened while it is mapped" 2 "^\[data\] data/cifar-10-batches-bin/data_batch_3\.bin: was shortened from 122920 to 3073 bytes" shortened cut env
  verify "said in one line" bash -c '[ "$(grep -c . .stderr)" = 1 ]'
  verify "and in the flight record" grep -q "data_batch_3.bin: was shortened" cut/flight/rank-0.jsonl
  refill
  check "on two ranks" 2 "^(rank 1: )?\[data\] .*data_batch_3\.bin: was shortened" shortened cut2 mpirun --oversubscribe -n 2
fi

# Hosts that were told different things.
differ() { # ARGUMENTS of rank 0, ARGUMENTS of rank 1
  mpirun --oversubscribe -n 1 "$train" small.json --set sync.timeout_s=20 $1 : -n 1 "$train" small.json --set sync.timeout_s=20 $2
}
export -f differ
check "a timeline of rank 0 alone" 0 "done: model" differ '--output t0 --trace t0.json' '--output t0'
check "a timeline of rank 1 alone" 0 "done: model" differ '--output t1' '--output t1 --trace t1.json'
check "of both" 0 "done: model" differ '--output t2 --trace t2.json' '--output t2 --trace t2.json'
check "each is there, and begins at 0 or later" 0 "^0 1 01$" python3 -c '
import json
ranks = []
for name in ("t0", "t1", "t2"):
    spans = [e for e in json.load(open(name + ".json"))["traceEvents"] if e["ph"] == "X"]
    assert min(e["ts"] for e in spans) >= 0, min(e["ts"] for e in spans)
    ranks.append("".join(map(str, sorted({e["pid"] for e in spans}))))
print(*ranks)'
mkdir folder
check "a timeline into a folder" 2 "folder" bash -c '"$train" small.json --trace folder --output tf; status=$?; test ! -e tf || exit 99; [ $status = 5 ] && exit 2; exit $status'
check "a timeline nowhere" 5 "none/t\.json" "$train" small.json --trace none/t.json --output tn
verify "is refused before training" test ! -e tn

# Limits of the system.
for kb in 73728 81920; do
  check "a dry run in $kb KiB of addresses" "0|6" "memory|parameters" bash -c "ulimit -v $kb; \"\$train\" small.json --dry-run 2>&1"
  verify "and nothing is said to be terminated" bash -c '! grep -q "terminate called" .stdout'
done
check "more threads than the system gives" 6 "4096 threads were asked for, and the system gives" \
  bash -c 'ulimit -v 8388608; "$train" small.json --set threads=4096 --output th'
verify "in one line" bash -c '[ "$(grep -c . .stderr)" = 1 ]'

network='{"ranks": 4, "ranks_per_node": 2, "inside": {"latency_us": 1, "bandwidth_gbs": 5}, "between": {"latency_us": 50, "bandwidth_gbs": 0.1},
  "hosts_bandwidth_gbs": [], "memory_bandwidth_gbs": 20, "message_cpu_ns_per_byte": 0, "direct": true, "spare_cores": false, "both_directions": 2}'
echo "$network" >network.json
check "a measured network" 0 "soonest" "$topo" plan --measured network.json
echo "$network" | sed 's/"latency_us": 50, "bandwidth_gbs": 0.1/"latency_us": 50, "bandwidth_gbs": 1e-320/' >tiny.json
echo "$network" | sed 's/"ranks": 4/"ranks": 1000000/' >many.json
check "a measured bandwidth of 1e-320" 2 "tiny\.json: .*bandwidth_gbs' must be" "$topo" plan --measured tiny.json
check "a million measured ranks" 2 "many\.json: 'ranks' must be a whole number from 1 to 65536" "$topo" plan --measured many.json

# Texts of any length. The trainer's are tests/apps/refusals_test.cpp's.
short() { # COMMAND...: its error is short
  "$@" >.o 2>&1 && { echo "no error" && return 1; }
  head -c 3000 .o
  [ "$(wc -c <.o)" -lt 2500 ]
}
big=$(head -c 100000 /dev/zero | tr '\0' a)
verify "a long topology" short "$topo" show "$big" -n 4
finish
