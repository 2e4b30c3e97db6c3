#!/usr/bin/env bash
# A kill at any instant leaves a whole checkpoint, a write error ends the run, and damage is found.
# Kinds of damage are tests/apps/resume_program_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=${STARLING_BUILD:-$build}
small_config
sed -i 's/"optimizer": {"type": "sgd", "lr": 0.02}/"optimizer": {"type": "adamw", "lr": 0.01}/; s/"checkpoint": {"every_epochs": 0}/"checkpoint": {"every_steps": 4, "keep": 3}/' small.json

# flip FILE TENSOR: one bit in the middle of a tensor's bytes.
flip() {
  python3 - "$@" <<'PYTHON'
import json, struct, sys
path, name = sys.argv[1:]
data = bytearray(open(path, "rb").read())
length, = struct.unpack_from("<Q", data)
begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
data[8 + length + (begin + end) // 2] ^= 0x02
open(path, "wb").write(data)
PYTHON
}
check "two ranks" 0 "" ranks 2 "$train" small.json --output two
flip two/checkpoints/step-12/rank-1.safetensors model.1.weight
check "damage on one of them: the checkpoint before it" 0 "step-12/rank-1\.safetensors: tensor 'model.1.weight'.*going on from step 8" \
  ranks 2 "$train" small.json --set steps=14 --output two --resume latest
verify "said in one line" bash -c '[ "$(grep -c . .stderr)" = 1 ]'
flip two/model.safetensors 1.weight
check "starling-predict finds it in a model" 2 "model\.safetensors: tensor '1.weight'.*damaged" "$STARLING_BUILD/bin/starling-predict" two none.png

# Nothing that is not finite leaves in silence: here the last update alone overflows, with and
# without a test behind it.
wild() { "$train" small.json --set data.limit=64 --set steps=8 --set optimizer='{"type": "sgd", "lr": 0.02}' --set schedule='{"type": "multistep", "milestones": [1.75], "gamma": 1e60}' "$@"; }
export -f wild
export train
check "a last update that overflows" 4 "step 8 gives test_loss .*the last good checkpoint is overflow/checkpoints/step-4" wild --output overflow
check "before a checkpoint without a test" 4 "step-8/rank-0.safetensors: is not written: tensor '[a-z0-9.]*' holds numbers that are not finite.*untested/checkpoints/step-4" \
  wild --set steps=12 --set evaluate.every_epochs=0 --output untested
verify "there is no model and no later checkpoint" bash -c '! ls {overflow,untested}/model.safetensors {overflow,untested}/checkpoints/step-8/DONE 2>/dev/null'
python3 - two/checkpoints/step-12/rank-0.safetensors nan.safetensors <<'PYTHON'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
length, = struct.unpack_from("<Q", data)
head = json.loads(data[8:8 + length])
tensors = {name.removeprefix("model."): entry for name, entry in head.items() if name.startswith("model.")}
blob, header = b"", {}
for name, entry in tensors.items():
    begin, end = entry["data_offsets"]
    header[name] = dict(entry, data_offsets=[len(blob), len(blob) + end - begin])
    blob += data[8 + length + begin:8 + length + end]
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + blob[:-4] + struct.pack("<f", float("nan")))
PYTHON
check "an initial file with such a number" 2 "nan.safetensors: tensor [a-z0-9.]* holds numbers that are not finite" \
  "$train" small.json --set init=nan.safetensors --output initial

# What a run goes on with otherwise is said.
resumed() { "$train" small.json --set threads=1 --set schedule='{"type": "cosine"}' --output longer "$@"; }
export -f resumed
check "a cosine of 8 steps" 0 "" resumed --set steps=8
check "made longer" 0 "spans 16 steps now and 8 before: the rate of step 9 is 0.005[0-9]*, where it would have been 1e-06$" resumed --set steps=16 --resume latest
verify "with what was changed" grep -q "^changed since the checkpoint: steps 8 → 16" .stdout
cp -r longer before
check "fewer steps than are done" 0 "longer has done 16 steps, asked for: 3; there is nothing to do" resumed --set steps=3 --resume latest
check "fewer steps of another run" 2 "now says 5 for seed, the checkpoint was made with" resumed --set steps=3 --set seed=5 --resume latest
verify "and nothing is touched" diff -r longer before
check "other threads" 0 "made with 1 thread a rank, now there are 2" resumed --set steps=17 --set threads=2 --resume latest

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
