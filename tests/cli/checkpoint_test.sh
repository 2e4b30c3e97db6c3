#!/usr/bin/env bash
# A kill at any instant leaves a whole checkpoint, and a write error ends the run. Kinds of damage
# are tests/apps/resume_program_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=${STARLING_BUILD:-$build}
small_config
sed -i 's/"optimizer": {"type": "sgd", "lr": 0.02}/"optimizer": {"type": "adamw", "lr": 0.01}/; s/"checkpoint": {"every_epochs": 0}/"checkpoint": {"every_steps": 4, "keep": 3}/' small.json

check "a run" 0 "" "$train" small.json --output whole
python3 - whole/model.safetensors <<'PYTHON'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
length, = struct.unpack_from("<Q", data)
data[8 + length + json.loads(data[8:8 + length])["1.weight"]["data_offsets"][0]] ^= 0x02
open(sys.argv[1], "wb").write(data)
PYTHON
check "starling-predict finds a flipped bit in a model" 2 "model\.safetensors: tensor '1.weight'.*damaged" "$STARLING_BUILD/bin/starling-predict" whole none.png

# A write error beside training ends the run with 5, as one in it does.
check "a file size limit" 5 "rank-0\.safetensors: could not be written: File too large" bash -c \
  'ulimit -f 500; "$train" small.json --set steps=2000 --set model.hidden=[512] --output limited'
check "and on one of two ranks" 5 "rank-0\.safetensors: could not be written: File too large" ranks 2 bash -c \
  '[ "$OMPI_COMM_WORLD_RANK" = 1 ] || ulimit -f 1000; exec "$train" small.json --set steps=2000 --set model.hidden=[512] --set sync.transport=mpi --output limited2'
verify "whose error it is, as the flight records say" bash -c 'grep -q "\"reason\":\"error\"" limited2/flight/rank-0.jsonl && grep -q "\"reason\":\"other\"" limited2/flight/rank-1.jsonl'
verify "which leaves no checkpoint" bash -c '! ls limited*/checkpoints/*/DONE 2>/dev/null'

# A kill at any instant.
survive() { # COUNT: starts, kills after a while, resumes
  local begin=0 pid now i
  for i in $(seq "$1"); do
    "$train" small.json --set steps=1000000 --set checkpoint.every_steps=1 --set checkpoint.keep=2 --set model.hidden=[256] --output kill --resume latest >kill.log 2>&1 &
    pid=$!
    sleep "0.$((RANDOM % 8))$((RANDOM % 10))"
    kill -KILL $pid
    wait $pid 2>/dev/null
    grep -qi "damaged\|error\|cannot" kill.log && cat kill.log && return 1
    now=$(ls kill/checkpoints/*/DONE 2>/dev/null | sed -E 's/.*step-([0-9]+).*/\1/' | sort -n | tail -1)
    [ "${now:-0}" -ge "$begin" ] || { echo "from $begin to $now" && return 1; }
    begin=${now:-0}
  done
  echo "came to step $begin"
  [ "$begin" -gt 0 ]
}
verify "kills leave whole checkpoints" survive 5
check "and the run goes on from the last" 0 "continuing after step" bash -c \
  'step=$(ls kill/checkpoints/*/DONE | sed -E "s/.*step-([0-9]+).*/\1/" | sort -n | tail -1); "$train" small.json --set steps=$((step + 3)) --set model.hidden=[256] --output kill --resume latest'
finish
