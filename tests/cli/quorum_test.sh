#!/usr/bin/env bash
# DiLoCo with a quorum, as processes: a rank that is stopped (SIGSTOP) and goes on, while the others
# take outer steps without it; a signal to end; a resume.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
config '{"type": "mlp", "hidden": [64, 64]}' '  "batch_size": 32,
  "steps": 6000, "deterministic": false,
  "optimizer": {"type": "sgd", "lr": 0.01},
  "checkpoint": {"every_epochs": 0},
  "sync": {"timeout_s": 60, "bucket_mb": 0.01,
           "algorithm": {"type": "diloco", "period": 100, "quorum": 2, "grace_ms": 20, "late": "carry"}},
  "threads": 1, "tensorboard": false,' >run.json

begin() { # NAME OPTION...: three ranks in the background; waits for the first outer step
  name=$1
  shift
  LOST_NAME=$work/$name mpirun --oversubscribe -n 3 -x LOST_NAME bash -c "$noting" _ "$train" run.json --output "$name" "$@" >"$name.log" 2>&1 &
  job=$!
  for _ in $(seq 600); do
    grep -qs participants "$name/metrics.jsonl" && return
    kill -0 "$job" 2>/dev/null || break
    sleep 0.05
  done
}
participants() { # FOLDER: those of each outer step, a line each
  python3 -c 'import json, sys
for line in open(sys.argv[1] + "/metrics.jsonl"):
    line = json.loads(line)
    if "participants" in line: print(line["step"], *line["participants"])' "$1"
}

begin still
pid=$(cat still.pid.2)
kill -STOP "$pid"
for _ in $(seq 600); do grep -q "rank 2 is left out" still.log && break; sleep 0.05; done
sleep 0.5
kill -CONT "$pid"
wait "$job"
status=$?
cp still.log .out
verify "a run with a rank that stood still ends" test "$status" = 0
verify "it is told that it was left out" grep -q "rank 2 is left out of the outer step of update" still.log
participants still >still.txt
cp still.txt .out
verify "each outer step has a line" test "$(cut -d' ' -f1 still.txt | sort -un | wc -l)" = 60
verify "some without it" grep -q " 0 1$" still.txt
verify "and it comes back" bash -c "sed -n '/ 0 1\$/,\$p' still.txt | grep -q ' 2\$'"

begin ended --set steps=40000
kill -TERM "$(cat ended.pid.1)"
wait "$job"
status=$?
cp ended.log .out
verify "a signal to one rank ends the run of all" test "$status" = 75
step=$(ls ended/checkpoints | sed 's/step-0*//' | tail -1)
verify "after an outer step" bash -c "[ $step -lt 40000 ] && [ $((step % 100)) = 0 ]"
check "it goes on from there" 0 "step $((step + 500))/" ranks 3 "$train" run.json --output ended --resume latest --set "steps=$((step + 500))"
finish
