#!/usr/bin/env bash
# Checkpoints that prove themselves: damage is found before the first step, and a kill at any instant leaves the newest whole one.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=${STARLING_BUILD:-$build}
small_config
sed -i 's/"optimizer": {"type": "sgd", "lr": 0.02}/"optimizer": {"type": "adamw", "lr": 0.01}/; s/"checkpoint": {"every_epochs": 0}/"checkpoint": {"every_steps": 4, "keep": 3}/' small.json

# flip FILE TENSOR: one bit in the middle of a tensor's bytes. TENSOR may be "header".
flip() {
  python3 - "$@" <<'PYTHON'
import json, struct, sys
path, name = sys.argv[1:]
data = bytearray(open(path, "rb").read())
length, = struct.unpack_from("<Q", data)
if name == "header":
    at = data.index(b'batch_size') + 3
else:
    begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
    at = 8 + length + (begin + end) // 2
data[at] ^= 0x02
open(path, "wb").write(data)
PYTHON
}
export -f flip
resumed() { "$train" small.json --set steps=14 --output "$1" --resume latest; }
resumed2() { ranks 2 "$train" small.json --set steps=14 --output "$1" --resume latest; }
export -f resumed resumed2
state=model.layers.0.weight

check "a run" 0 "" "$train" small.json --output good
verify "keeps three checkpoints" bash -c '[ "$(ls good/checkpoints | sort | tr "\n" " ")" = "step-12 step-4 step-8 " ]'
check "two ranks" 0 "" ranks 2 "$train" small.json --output two
check "a run without a stop" 0 "" "$train" small.json --set steps=14 --output straight
tensor=$(python3 - <<'PYTHON'
import json, struct
data = open("good/checkpoints/step-12/rank-0.safetensors", "rb").read()
print(next(n for n in json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]]) if n.startswith("optimizer.") and n.endswith("weight")))
PYTHON
)
verify "DONE lists files, sizes and each tensor's checksum" python3 - "$tensor" <<'PYTHON'
import json, os, sys
folder = "two/checkpoints/step-12/"
done = json.load(open(folder + "DONE"))
assert done["step"] == 12 and sorted(done["files"]) == ["rank-0.safetensors", "rank-1.safetensors"], done
for name, file in done["files"].items():
    assert file["bytes"] == os.path.getsize(folder + name)
    assert len(file["tensors"][sys.argv[1]]) == 16
PYTHON

cp -r good flipped
flip flipped/checkpoints/step-12/rank-0.safetensors "$tensor"
cp -r flipped twice
check "a flipped bit: the checkpoint before it" 0 "step-12/rank-0\.safetensors: tensor '$tensor'.*damaged.*going on from step 8" resumed flipped
verify "said in one line" bash -c '[ "$(grep -c . .stderr)" = 1 ]'
verify "and the run goes on as it would have" same_losses straight flipped
verify "to the same model" same_model straight/model.safetensors flipped/model.safetensors
verify "the damaged one is set aside" test -d flipped/checkpoints/step-12.damaged
check "it is damaged no more" 0 "" resumed flipped

flip twice/checkpoints/step-8/rank-0.safetensors "$tensor"
cp -r twice none
check "two flipped bits: the one before both" 0 "step-12/rank-0.*going on from step 4" resumed twice
flip none/checkpoints/step-4/rank-0.safetensors "$tensor"
check "no whole one is left" 2 "step-12/rank-0\.safetensors: tensor '$tensor'" resumed none
verify "and nothing was renamed" bash -c '[ "$(ls none/checkpoints | sort | tr "\n" " ")" = "step-12 step-4 step-8 " ]'

cp -r two other
flip two/checkpoints/step-12/rank-1.safetensors "$tensor"
check "on another rank" 0 "step-12/rank-1\.safetensors: tensor '$tensor'.*going on from step 8" resumed2 two
for damage in 'flip other/checkpoints/step-12/rank-1.safetensors header' 'truncate -s -3 other/checkpoints/step-12/rank-1.safetensors' \
  'truncate -s +1 other/checkpoints/step-12/rank-0.safetensors' 'rm other/checkpoints/step-12/rank-1.safetensors' \
  'sed -i "s/\"step\": 12/\"step\":  12/" other/checkpoints/step-12/DONE' 'sed -i 2d other/checkpoints/step-12/DONE; echo >>other/checkpoints/step-12/DONE; truncate -s +1 other/checkpoints/step-12/DONE' \
  'echo "{}" >>other/checkpoints/step-12/DONE' 'sed -i s/checksum/checksun/ other/checkpoints/step-12/DONE' \
  'sed -i s/bytes/bites/ other/checkpoints/step-12/DONE' ': >other/checkpoints/step-12/DONE' \
  'cp other/checkpoints/step-8/rank-0.safetensors other/checkpoints/step-12/'; do
  rm -rf saved && cp -r other saved
  eval "$damage"
  check "$damage" 0 "step-12/.*going on from step 8" resumed2 other
  rm -rf other && mv saved other
done
check "another number of ranks is no damage" 2 "made by 2 ranks, this run has 3" ranks 3 "$train" small.json --set steps=14 --output other --resume latest
check "nor is one fewer" 2 "made by 2 ranks, this run has 1" resumed other
verify "and all checkpoints are there" test -f other/checkpoints/step-12/DONE

# Of an older version.
cp -r good old
for step in 4 8 12; do echo "step $step" >old/checkpoints/step-$step/DONE; done
check "a checkpoint without checksums resumes" 0 "continuing after step 12" resumed old
verify "to the same bits" same_losses straight old
cp -r good listed
sed -i 2d listed/checkpoints/step-12/DONE
check "so does one whose DONE has no checksum of its own" 0 "continuing after step 12" resumed listed

# The best checkpoint, beside them.
best=(--set checkpoint.best=true --set evaluate.every_steps=4)
check "two ranks with a best checkpoint" 0 "" ranks 2 "$train" small.json "${best[@]}" --output best
cp -r best whole
sed -i 's/"value": 0/"value": 9/' best/checkpoints/best/DONE
check "what it was best by has changed" 0 "warning: best/checkpoints/best/DONE: its bytes are not .*damaged; it is kept as best\.damaged" \
  ranks 2 "$train" small.json "${best[@]}" --set steps=16 --output best --resume latest
verify "said in one line" bash -c '[ "$(grep -c . .stderr)" = 1 ]'
verify "it is kept" grep -q '"value": 9' best/checkpoints/best.damaged/DONE
verify "and there is a new one" grep -q '"step": 16' best/checkpoints/best/DONE
check "of which a later run says nothing" 0 "continuing after step 16" ranks 2 "$train" small.json "${best[@]}" --set steps=17 --output best --resume latest
verify "at all" bash -c '! grep . .stderr'
truncate -s -1 whole/checkpoints/best/rank-1.safetensors
check "one of its files was cut" 0 "warning: whole/checkpoints/best/rank-1\.safetensors: has [0-9]+ bytes, [0-9]+ were written" \
  ranks 2 "$train" small.json "${best[@]}" --set steps=16 --output whole --resume latest
verify "it is kept, too" test -f whole/checkpoints/best.damaged/DONE

# Model files say it themselves.
check "a whole model is read" 0 "" "$train" --evaluate good
for tensor in $(python3 -c 'import json, struct
data = open("good/model.safetensors", "rb").read()
print(*[n for n in json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]]) if n != "__metadata__"])'); do
  rm -rf model && mkdir model && cp good/model.safetensors model
  flip model/model.safetensors "$tensor"
  check "--evaluate finds a flipped bit in $tensor" 2 "model\.safetensors: tensor '$tensor'.*damaged" "$train" --evaluate model
done
check "init finds it" 2 "model\.safetensors: tensor '$tensor'.*damaged" "$train" small.json --set init=model/model.safetensors --output init
check "starling-predict finds it" 2 "model\.safetensors: tensor '$tensor'.*damaged" "$STARLING_BUILD/bin/starling-predict" model none.png
cp good/model.safetensors model && flip model/model.safetensors header
check "a changed config in it" 2 "model\.safetensors" "$train" --evaluate model

# A write error beside training ends the run with 5, as one in it does.
check "a file size limit" 5 "rank-0\.safetensors: could not be written: File too large" bash -c \
  'ulimit -f 500; "$train" small.json --set steps=2000 --set model.hidden=[512] --output limited'
check "and on two ranks" 5 "could not be written: File too large" ranks 2 bash -c \
  'ulimit -f 1000; exec "$train" small.json --set steps=2000 --set model.hidden=[512] --set sync.transport=mpi --output limited2'
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
verify "fifteen kills leave whole checkpoints" survive 15
check "and the run goes on from the last" 0 "continuing after step" bash -c \
  'step=$(ls kill/checkpoints/*/DONE | sed -E "s/.*step-([0-9]+).*/\1/" | sort -n | tail -1); "$train" small.json --set steps=$((step + 3)) --set model.hidden=[256] --output kill --resume latest'
finish
