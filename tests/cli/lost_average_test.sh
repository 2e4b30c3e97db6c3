#!/usr/bin/env bash
# ctest: longer at night
# A rank that is lost where all wait for all: before or in the midst of an average of models, and
# around a switch of algorithms. The others name it and end with status 3 long before
# sync.timeout_s, and the checkpoint before goes on to the bits of a run that lost nobody.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
config '{"type": "mlp", "hidden": [32, 32]}' '  "batch_size": 16,
  "steps": 24,
  "plugins": ["./libfaulty.so"],
  "optimizer": {"type": "sgd", "lr": 0.02, "momentum": 0.9},
  "checkpoint": {"every_epochs": 0, "every_steps": 4},
  "sync": {"timeout_s": 120, "bucket_mb": 0.001, "topology": {"type": "static-ring"}},
  "threads": 1, "tensorboard": false,' >run.json
check "the plug-in of this test is built" 0 "" ${CXX:-c++} -std=c++20 -O1 -fPIC -shared -I"$root" -I"$root/apps" -I"$build/apps/generated" "$root"/{tests/cli/faulty_plugin,cmake/plugin_stamp}.cpp -o libfaulty.so

trained() { # FOLDER OPTION...: nothing goes wrong
  local folder=$1
  shift
  FAULTY=off ranks 3 "$train" run.json --output "$folder" "$@"
}
export -f trained
lose() { # NAME OPTION...: rank 1 of three ends by itself
  local name=$1 mpirun begin r pid
  shift
  begin=$(date +%s%N)
  LOST_NAME=$work/$name mpirun --enable-recovery --oversubscribe -n 3 -x LOST_NAME bash -c "$noting" _ "$train" run.json --output "$name" "$@" >"$name.log" 2>&1 &
  mpirun=$!
  for r in 1 0 2; do
    while [ ! -s "$name.status.$r" ] && [ $(($(date +%s%N) - begin)) -lt 40000000000 ]; do sleep 0.05; done
    [ "$r" = 1 ] && begin=$(date +%s%N)  # from here on the others have a loss to notice
  done
  # The goal is 2 s; a machine that runs other tests beside gets 10 before this counts as waiting.
  verify "$name: gone long before the limit" test $(($(date +%s%N) - begin)) -lt 10000000000
  cp "$name.log" .out
  verify "$name: the rank was killed" bash -c "cat $name.log; [ \"\$(cat $name.status.1)\" = 137 ]"
  verify "$name: the others end with 3" bash -c "cat $name.log; [ \"\$(cat $name.status.0 $name.status.2)\" = \$'3\n3' ]"
  pid=$(cat "$name.pid.1")
  verify "$name: the lost rank has its name" bash -c "cat $name.log; grep -q 'rank 1 on host .* has ended: process $pid' $name.log"
  for r in 0 1 2; do kill -KILL "$(cat "$name.pid.$r")" 2>/dev/null; done
  kill -KILL "$mpirun" 2>/dev/null
  wait "$mpirun" 2>/dev/null
  check "$name: goes on" 0 'continuing after step (4|8|12|16)' trained "$name" "$@" --resume latest
  check "$name: without a loss" 0 'step 24/24' trained "$name-whole" "$@"
  verify "$name: the same bits" same_model "$name/model.safetensors" "$name-whole/model.safetensors"
  rm -rf "$name" "$name-whole"
}
faulty() { # ALGORITHM KEYS FAULT STEP: the algorithm with the fault, KEYS being its own
  echo "sync.algorithm={\"type\": \"faulty\", \"as\": \"$1\", $2 \"fault\": \"$3\", \"rank\": 1, \"at\": $4}"
}

# Averages are after steps 5, 11 and 17, counted from 0.
if nightly; then
lose local-before --set "$(faulty local_sgd '"period": 6,' kill_before_average 17)"
fi
lose local-in --set "$(faulty local_sgd '"period": 6, "states": "average",' kill_in_average 17)"
if nightly; then
lose slow-before --set "$(faulty slowmo '"period": 6, "inner": "gossip",' kill_before_average 17)"
lose slow-in --set "$(faulty slowmo '"period": 6,' kill_in_average 17)"
lose outer-in --set "$(faulty diloco '"period": 6,' kill_in_average 17)"
# Sums start at step 15, and are used after 17.
lose streaming-in --set "$(faulty diloco '"period": 6, "delay": 2,' kill_in_average 15)"

fi

# At a switch in step 18: before the old algorithm has finished what was in flight; then, before its
# numbers become means; in the new one's first step.
to_local='sync.switch=[{"step": 18, "algorithm": {"type": "local_sgd", "period": 2}}]'
nightly && lose switch-before --set "$(faulty diloco '"period": 10, "delay": 3,' kill_before_conclude 0)" --set "$to_local"
lose switch-in --set "$(faulty gossip '' kill_after_conclude 0)" --set "$to_local"
nightly && lose switch-after --set sync.algorithm=gossip \
  --set 'sync.switch=[{"step": 18, "algorithm": {"type": "faulty", "as": "local_sgd", "period": 2, "fault": "kill", "rank": 1, "at": 0}}]'
finish
