#!/usr/bin/env bash
# sync.algorithm under mpirun: averages by the clock. All else is
# tests/apps/algorithm_program_test.cpp's and recipe_contract_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
config '{"type": "mlp", "hidden": [32]}' '  "batch_size": 16,
  "steps": 24,
  "optimizer": {"type": "sgd", "lr": 0.02, "momentum": 0.9},
  "checkpoint": {"every_epochs": 0},
  "sync": {"bucket_mb": 0.001, "topology": {"type": "ring"}}, "threads": 1, "tensorboard": false,' >run.json
check "at a terminal with a line on each" 0 '^push_sum +gossip over one-way graphs' \
  python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)' "$train" --list algorithms

clock=(--set 'sync.algorithm={"type":"async","interval_ms":0,"warmup":3}' --set deterministic=false)
check "averages by the clock" 0 'step 24/24' ranks 4 "$train" run.json "${clock[@]}" --output by-clock
check "averages by the clock over messages" 0 'step 24/24' ranks 4 "$train" run.json "${clock[@]}" --output by-messages --set sync.transport=mpi
lose_one() { # a rank of two that stops
  mpirun --oversubscribe -n 2 "$train" run.json --output lost --set 'sync.algorithm={"type":"async","interval_ms":1}' --set deterministic=false --set steps=1000000 \
    --set sync.timeout_s=1 --set checkpoint.every_steps=0 >lost.log 2>&1 &
  local job=$! status=0
  for _ in $(seq 300); do [ "$(cat lost/metrics.jsonl 2>/dev/null | wc -l)" -ge 5 ] && break || sleep 0.1; done
  kill -STOP "$(pgrep -P "$job" -x starling-train | tail -1)"
  wait "$job" || status=$?
  cat lost.log
  return "$status"
}
export -f lose_one
check "a rank of them that stops is named" 3 'waited 1 s \(sync\.timeout_s\).*missing: rank [01] on host' lose_one
finish
