#!/usr/bin/env bash
# Output under mpirun, and a full disk. All else of the output folder is
# tests/apps/resume_program_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config

check "two ranks train, with a timeline" 0 "done: model" ranks 2 "$train" small.json --output a --trace a.json
verify "of update and exchange" grep -qi "update" a.json
verify "with a checkpoint's file for each rank" test -s a/checkpoints/step-12/rank-1.safetensors
check "a diverging run of two ranks ends with 4 and names the step" 4 "step [0-9]+" ranks 2 "$train" small.json --set optimizer.lr=1e30 --output b

if full_disk true 2>/dev/null; then
  check "a full disk ends with 5 and names the file" 5 "full/run/" full_disk "$train" small.json --output full/run
else
  echo "skipped a full disk: no user namespaces here"
fi
finish
