#!/usr/bin/env bash
# Signals and resume.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config
sed -i 's/"steps": 12/"steps": 10000000/; s/"batch_size": 16/"batch_size": 64/' small.json

newest() { ls "$1/checkpoints" | sed 's/step-//' | sort -n | tail -1; }
ended() { # NAME STATUS PID: the process ends so within 25 s
  local name=$1 expected=$2 pid=$3 status=0
  checks=$((checks + 1))
  for _ in $(seq 250); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null
  wait "$pid" || status=$?
  if [[ "|$expected|" == *"|$status|"* ]]; then echo "ok      $name"; else
    cp "$name.log" "$work/.out" 2>/dev/null
    failed "$name: exit status $status instead of $expected"
  fi
}

# Kernels of libraries use the stack pointer for other things: no thread but the one that waits for
# signals may be given one (core/stop_signals.cpp).
blocked_everywhere() { # PID
  local blocked thread
  for thread in /proc/"$1"/task/*; do
    [ "$(cat "$thread/comm")" = signals ] && continue
    blocked=$(sed -nE 's/^SigBlk:\s*//p' "$thread/status")
    [ $((0x$blocked & 0x4203)) = $((0x4203)) ] || { echo "$thread ($(cat "$thread/comm")): SigBlk $blocked" && return 1; }
  done
}

# The first process of a container, to which the kernel passes no signal on that it does not ask
# for, here while its reader is slow.
if unshare -r --pid --fork true 2>/dev/null; then
  mkfifo full
  exec 9<>full
  timeout 0.3 cat /dev/zero >&9
  for name in train predict prepare topo doctor bench; do
    unshare -r --pid --fork --kill-child "$build/bin/starling-$name" --help >&9 2>"first-$name.log" &
    pid=$!
    for _ in $(seq 100); do grep -qs pipe_write "/proc/$(pgrep -P $pid)/wchan" && break; sleep 0.05; done
    kill -TERM "$(pgrep -P $pid)"
    ended "first-$name" 143 $pid
  done
  exec 9>&-
fi

for signal in TERM INT USR1 HUP; do
  (trap - INT HUP; exec "$train" small.json --output "alone-$signal") >"alone-$signal.log" 2>&1 &
  pid=$!
  wait_for_lines "alone-$signal" 5 || failed "one rank runs"
  [ "$signal" = USR1 ] && verify "no thread takes the signals" blocked_everywhere $pid
  kill -"$signal" $pid
  ended "alone-$signal" 75 $pid
  verify "SIG$signal leaves a checkpoint" test -f "alone-$signal/checkpoints/step-$(newest "alone-$signal")/DONE"
done
steps=$(($(newest alone-TERM) + 10))
check "resume goes on" 0 "" "$train" small.json --set steps=$steps --output alone-TERM --resume latest
check "a run without stop" 0 "" "$train" small.json --set steps=$steps --output straight
verify "the losses are the same to the bit" same_losses straight alone-TERM
verify "the model too" same_model straight/model.safetensors alone-TERM/model.safetensors

mpirun --oversubscribe -n 2 "$train" small.json --output two >two.log 2>&1 &
pid=$!
wait_for_lines two 5 || failed "two ranks run"
for rank in $(pgrep -P "$pid"); do verify "no thread of a rank takes the signals" blocked_everywhere "$rank"; done
kill -USR1 $pid
ended two "75" $pid
steps=$(($(newest two) + 10))
check "two ranks resume" 0 "" ranks 2 "$train" small.json --set steps=$steps --output two --resume latest
check "two ranks without stop" 0 "" ranks 2 "$train" small.json --set steps=$steps --output two-straight
verify "the losses are the same to the bit on two ranks" same_losses two-straight two
verify "the model too" same_model two-straight/model.safetensors two/model.safetensors

OMPI_MCA_odls_base_sigkill_timeout=3 mpirun --oversubscribe -n 2 "$train" small.json --output term >term.log 2>&1 &
pid=$!
wait_for_lines term 5 || failed "two ranks run"
kill -TERM $pid
ended term "1|75|143" $pid
verify "SIGTERM to mpirun leaves a checkpoint" bash -c 'ls term/checkpoints/*/DONE'

# A test is given up on all ranks where one is told to stop, and made up for.
cat >tested.json <<'END'
{"seed": 1, "threads": 1, "model": {"type": "resnet20"}, "data": {"type": "synthetic", "limit": 64, "test_limit": 5000, "image_size": 32}, "batch_size": 8,
 "steps": 3, "log_every": 1, "optimizer": {"type": "sgd", "lr": 0.01}, "evaluate": {"every_steps": 2}, "checkpoint": {"every_epochs": 0}}
END
mpirun --oversubscribe -n 2 "$train" tested.json --output tested >tested.log 2>&1 &
pid=$!
wait_for_lines tested 2 || failed "two ranks test"
kill -USR1 "$(pgrep -P $pid -x starling-train | tail -1)"
ended tested 75 $pid
verify "the test was given up" bash -c '! grep -q test_loss tested/metrics.jsonl && [ -f tested/checkpoints/step-2/DONE ]'
check "and is made up for" 0 "" ranks 2 "$train" tested.json --output tested --resume latest
check "two ranks without stop test" 0 "" ranks 2 "$train" tested.json --output tested-straight
verify "with the same figures" diff <(grep test_loss tested/metrics.jsonl) <(grep test_loss tested-straight/metrics.jsonl)
"$train" --evaluate tested --set data.test_limit=400000 >evaluated.log 2>&1 &
pid=$!
sleep 1
kill -TERM $pid
ended evaluated 143 $pid
# Before the first step there is nothing to save: here it waits for its config.
mkfifo pipe.json
"$train" pipe.json --output early >early.log 2>&1 &
pid=$!
sleep 1
kill -TERM $pid
ended early 75 $pid
verify "it says so" grep -q "before the first step" early.log

finish
