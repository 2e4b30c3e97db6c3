#!/usr/bin/env bash
# elastic.survive: without ULFM a line says what is missing, and a lost rank ends the run; with it
# the others go on in the same processes. The second part needs a build against an MPI that has
# ULFM, whose folder STARLING_ULFM_BUILD names (docs/reliability.md says how to make one).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cat >run.json <<'END'
{
  "model": {"type": "mlp", "hidden": [16]}, "precision": "fp64", "threads": 1,
  "data": {"type": "synthetic", "limit": 1000, "test_limit": 64, "image_size": 8},
  "batch_size": 8, "steps": 2000, "log_every": 1, "tensorboard": false,
  "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9}, "schedule": {"type": "cosine"},
  "sync": {"algorithm": "allreduce", "timeout_s": 30},
  "elastic": {"survive": true},
  "checkpoint": {"every_steps": 50, "keep": 999}, "evaluate": {"every_epochs": 0}
}
END
as_rank='echo $$ >"$NAME.pid.$OMPI_COMM_WORLD_RANK"; exec "$@"'

# Without ULFM.
check "what is missing is said" 0 "warning: elastic\.survive is true, but a lost rank will end this run: .*mpirun --with-ft ulfm" ranks 2 "$train" run.json --set steps=4 --output warned
verify "once" bash -c "[ \"\$(grep -c 'elastic\.survive' .stderr)\" = 1 ]"
check "nothing is lost on one rank" 0 "done: model" "$train" run.json --set steps=4 --output alone
verify "and nothing said" bash -c "! grep -q 'elastic\.survive' .stderr"
check "without the key" 0 "done: model" ranks 2 "$train" run.json --set steps=4 --set elastic.survive=false --output quiet
verify "neither" bash -c "! grep -q 'elastic\.survive' .stderr"
NAME=$work/ends mpirun --oversubscribe -n 3 -x NAME bash -c "$as_rank" _ "$train" run.json --set steps=10000000 --output ends >ends.log 2>&1 &
job=$!
wait_for_lines ends 5 || failed "ends: trains"
kill -KILL "$(cat ends.pid.1)"
wait $job
status=$?
verify "a lost rank ends the run" bash -c "cat ends.log; [ $status != 0 ]"
verify "and nobody goes on" bash -c "cat ends.log; ! grep -q 'going on' ends.log"

other=${STARLING_ULFM_BUILD:-}
if [ -z "$other" ]; then
  echo "skipped what needs ULFM: STARLING_ULFM_BUILD names no build against an MPI that has it"
  finish
fi
train=$other/bin/starling-train
[ -x "$train" ] || die "$train is missing; build it first"
folder=$(dirname "$(sed -n 's/^MPI_C_COMPILER:[^=]*=//p' "$other/CMakeCache.txt")")
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
with_ulfm() { # COUNT COMMAND...
  "$folder/mpirun" --with-ft ulfm --oversubscribe --bind-to none -n "$@"
}
export -f with_ulfm
export folder

check "all well" 0 "done: model" with_ulfm 4 "$train" run.json --set steps=20 --output well
verify "nobody warns" bash -c "! grep -q warning .stderr"
check "ULFM is there, but off" 0 "will end this run: ULFM is off in this run; start it with mpirun --with-ft ulfm" \
  "$folder/mpirun" --oversubscribe --bind-to none -n 2 "$train" run.json --set steps=4 --output off

going_on() { grep -ac 'going on without a restart, on ' "$1.log"; }
trains_on() { # NAME LOSSES: after so many losses the others have taken steps again
  [ "$(going_on "$1")" = "$2" ] && [ "$(tail -n +"$(grep -an 'going on without' "$1.log" | tail -n 1 | cut -d : -f 1)" "$1.log" | grep -ac '^step')" -gt 0 ]
}
# NAME LINES SIGNAL "VICTIM..." OPTION...: 4 ranks. Once so many lines are there, the victims, by
# their first numbers, get the signal, each when
lose() {
  # the others go on without those before it. The others must come to the end.
  local name=$1 lines=$2 signal=$3 victims left job status k
  read -ra victims <<<"$4"
  shift 4
  left=$((4 - ${#victims[@]} * ${replica:-1}))
  NAME=$work/$name with_ulfm 4 -x NAME bash -c "$as_rank" _ "$train" run.json "$@" --output "$name" >"$name.log" 2>&1 &
  job=$!
  wait_for_lines "$name" "$lines" || failed "$name: trains"
  for k in "${!victims[@]}"; do
    for _ in $(seq 400); do
      [ "$k" = 0 ] || trains_on "$name" "$k" && break
      sleep 0.05
    done
    kill -"$signal" "$(cat "$name.pid.${victims[k]}")"
  done
  for _ in $(seq 1200); do
    kill -0 $job 2>/dev/null || break
    sleep 0.05
  done
  kill -KILL $job 2>/dev/null && echo "ended by the test" >>"$name.log"
  wait $job
  status=$?
  verify "$name: ends with 0" bash -c "tail -n 20 $name.log; [ $status = 0 ]"
  verify "$name: one line a loss says so" bash -c "cat $name.log; [ \"\$(grep -ac 'going on without a restart, on ' $name.log)\" = ${#victims[@]} ]"
  verify "$name: the last step is right" bash -c "tail -n 1 $name/metrics.jsonl; tr -d ' \n' <$name/summary.json | grep -F '\"steps\":2000,'"
  verify "$name: and the ranks" bash -c "tr -d ' \n' <$name/summary.json | grep -F '\"ranks\":$left,'"
  verify "$name: each step has its line" diff <(losses "$name" | cut -d ' ' -f 1) <(seq 2000)
  verify "$name: no lock stays" test ! -e "$name/.lock"
}
# NAME RANKS OPTION...: the same from the checkpoint that the last loss went on from, started anew
by_hand() {
  local name=$1 count=$2 step
  shift 2
  step=$(grep -a 'going on without a restart' "$name.log" | tail -n 1 | sed -nE 's/.*from step ([0-9]+).*/\1/p')
  mkdir -p "$name.anew/checkpoints" && cp -r "$name/checkpoints/step-$step" "$name.anew/checkpoints/"
  check "$name: started anew by hand, from step $step" 0 "done: model" with_ulfm "$count" "$train" run.json "$@" --resume "$name.anew" --elastic
  verify "$name: to the same bits" same_model "$name/model.safetensors" "$name.anew/model.safetensors"
}
peers=(--set sync.algorithm=gossip --set sync.topology.type=one-peer-exp)

lose all-reduce 120 KILL 2
by_hand all-reduce 3
verify "all-reduce: the samples of an update" grep -aq "batch_size 11 in place of 8, 33 samples an update" all-reduce.log
verify "all-reduce: the rank has its name" grep -aq "rank 2 on host .* has ended: process $(cat all-reduce.pid.2) is gone" all-reduce.log
verify "all-reduce: the summary says so" bash -c "tr -d ' \n' <all-reduce/summary.json | grep -F '\"elastic\":{\"from_ranks\":4,'"
lose first-rank 120 KILL 0
by_hand first-rank 3
lose shared 120 KILL 3 "${peers[@]}" --set sync.transport=direct
by_hand shared 3 "${peers[@]}" --set sync.transport=direct
verify "shared: another topology" grep -aq "one-peer-exp needs a power of two.*going on with elastic.topology, base-2" shared.log
lose shared-first 120 KILL 0 "${peers[@]}" --set sync.transport=direct
lose messages 120 KILL 1 "${peers[@]}" --set sync.transport=mpi
by_hand messages 3 "${peers[@]}" --set sync.transport=mpi
lose twice 120 KILL "1 2" "${peers[@]}"
by_hand twice 2 "${peers[@]}"
lose to-the-last 120 KILL "0 3 1"
lose early 3 KILL 1 --set checkpoint.every_steps=0 --set checkpoint.every_epochs=0
verify "early: from the start" grep -aq "on 3 of 4 ranks, from step 0" early.log
lose crashed 120 SEGV 3 "${peers[@]}"
lose stopped 120 STOP 2 --set sync.timeout_s=3
verify "stopped: is ended" grep -aq "rank 2 on host .* does not answer and was ended" stopped.log

# A replica leaves as a whole.
parts=("${peers[@]}" --set sync.replica=2)
replica=2 lose replica 120 KILL 1 "${parts[@]}"
by_hand replica 2 "${parts[@]}"
verify "replica: the other rank says why it leaves" grep -aqE "^rank 0: \[survive\] rank 1 on host .* is gone.*its replica, ranks 0 to 1, leaves with it" replica.log
verify "replica: and the others" grep -aq "is gone.*; rank 0 of its replica leaves with it; going on without a restart, on 2 of 4 ranks" replica.log

# What the ranks that are left cannot have ends the run, as without the key.
NAME=$work/none with_ulfm 4 -x NAME bash -c "$as_rank" _ "$train" run.json "${peers[@]}" --set elastic.topology=hypercube --output none >none.log 2>&1 &
job=$!
wait_for_lines none 60
kill -KILL "$(cat none.pid.2)"
wait $job
status=$?
verify "no topology for 3: the end, with 3" bash -c "tail -n 20 none.log; [ $status = 3 ]"
verify "and why" bash -c "tail -n 20 none.log; grep -aq 'is gone.*the run cannot continue with 3 of 4 ranks: .*power of two' none.log"
finish
