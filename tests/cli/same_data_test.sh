#!/usr/bin/env bash
# data.path may change, from host to host and where a run goes on; what lies there must be the same. And what a bad test picture costs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
golden=$root/tests/golden/pictures

# tree FOLDER CLASS...: ten training and four test pictures of each class
tree() {
  local folder=$1 class i
  shift
  for class in "$@"; do
    mkdir -p "$folder/train/$class" "$folder/val/$class"
    for i in 0 1 2 3 4 5 6 7 8 9; do cp "$golden/rgb8.png" "$folder/train/$class/$i.png"; done
    for i in 0 1 2 3; do cp "$golden/420.jpg" "$folder/val/$class/$i.jpg"; done
  done
}
tree first a b
tree names b zebra
tree three a b c
tree more a b && cp first/train/a/0.png more/train/a/more.png
tree fewer a b && rm fewer/val/b/3.jpg
tree renamed a b && mv renamed/train/b/3.png renamed/train/b/3x.png
tree tested a b && mv tested/val/a/1.jpg tested/val/a/1x.jpg
cat >run.json <<'END'
{
  "model": {"type": "mlp", "hidden": [4]}, "threads": 1,
  "data": {"type": "image_folder", "path": "first", "image_size": 8, "test_resize": 8, "test_crop": 8},
  "batch_size": 2, "steps": 12, "log_every": 1, "tensorboard": false, "optimizer": {"type": "sgd", "lr": 0.01},
  "checkpoint": {"every_steps": 4}, "evaluate": {"every_epochs": 0}
}
END
check "a run" 0 "" ranks 2 "$train" run.json --output whole
check "a part of it" 0 "" ranks 2 "$train" run.json --output part --set steps=8
cp -r first moved
from() { rm -rf "$1" && cp -r part "$1"; }
from same && check "goes on with the same data at another place" 0 "continuing after step 8" ranks 2 "$train" run.json --resume same --set data.path=moved
verify "to the bit" same_model whole/model.safetensors same/model.safetensors

# Resumed with other data.
from other
differs() { # NAME FOLDER PATTERN
  check "$1" 2 "rank-0\.safetensors: the data set in $2 has $3" ranks 2 "$train" run.json --resume other --set data.path="$2"
  check "$1, with --elastic" 2 "rank-0\.safetensors: the data set in $2 has $3" "$train" run.json --resume other --elastic --set data.path="$2"
}
differs "classes of other names" names "'b' as class 0, at the checkpoint it had 'a'; go on with the same data"
differs "another class" three "3 classes, at the checkpoint it had 2"
differs "a picture more" more "21 training samples, at the checkpoint it had 20"
differs "a test picture less" fewer "7 test samples, at the checkpoint it had 8"
differs "another name" renamed "names of pictures in train/ of checksum [0-9a-f]{8}, at the checkpoint it had as many of checksum"
differs "another name in val/" tested "names of pictures in val/ of checksum"
cp first/train/a/0.png moved/train/a/more.png
from other && check "data that changed where they lie" 2 "the data set in moved has 21 training" ranks 2 "$train" run.json --resume other --set data.path=moved
rm moved/train/a/more.png
from old && python3 - <<'END'
# A checkpoint as older versions wrote it: without the entry, and without checksums.
import json, struct
for rank in (0, 1):
    path = f"old/checkpoints/step-8/rank-{rank}.safetensors"
    data = open(path, "rb").read()
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header["__metadata__"].pop("data", None)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length:])
open("old/checkpoints/step-8/DONE", "w").write("step 8\n")
END
check "a checkpoint that does not say what its data were" 0 "continuing after step 8" ranks 2 "$train" run.json --resume old --set data.path=renamed
check "shards" 0 "" "$build/bin/starling-prepare" images first shards --size 16
check "of other names" 0 "" "$build/bin/starling-prepare" images renamed shards-renamed --size 16
check "of another size" 0 "" "$build/bin/starling-prepare" images first shards-small --size 12
check "in smaller files" 0 "" "$build/bin/starling-prepare" images first shards-many --size 16 --shard-pictures 4
sharded=(--set data.type=shards --set data.path=shards)
check "a part of a run on shards" 0 "" "$train" run.json "${sharded[@]}" --output of-shards --set steps=4
check "goes on with no others" 2 "in shards-renamed has names and sizes of prepared pictures" "$train" run.json "${sharded[@]}" --resume of-shards --set data.path=shards-renamed
check "nor those of another size" 2 "in shards-small has pictures by settings of starling-prepare" "$train" run.json "${sharded[@]}" --resume of-shards --set data.path=shards-small
check "but in files of any size" 0 "continuing after step 4" "$train" run.json "${sharded[@]}" --resume of-shards --set data.path=shards-many

# Ranks with data of their own.
apart() { # FOLDER [MORE...]: the second rank has its data there
  local folder=$1
  shift
  timeout 60 mpirun --oversubscribe -n 1 "$train" run.json "$@" : -n 1 "$train" run.json "$@" --set data.path="$folder"
}
export -f apart
disagree() { # NAME FOLDER PATTERN PATTERN
  check "ranks: $1" 2 "the ranks' data are not the same: rank 1 \(host [^ ]+, data.path $2\) has $3, rank 0 \(host [^ ]+, data.path first\) has $4" apart "$2" --output apart
  verify "in one line" bash -c '[ "$(grep -c "data" .stderr)" = 1 ]'
}
disagree "classes of other names" names "'b' as class 0" "'a'; needed"
disagree "a picture more" more "21 training samples" "20"
disagree "a test picture less" fewer "7 test samples" "8"
disagree "another name" renamed "names of pictures in train/ of checksum [0-9a-f]+" "as many of checksum"
check "ranks: another class" 2 "data.classes is 2 on rank 0 \(host [^ ]+, data.path first\) and 3 on rank 1 \(host [^ ]+, data.path three\)" apart three --output apart
check "ranks: a test of a model" 2 "the ranks' data are not the same: rank 1" apart names --evaluate whole
verify "and no folder was made" test ! -e apart
check "ranks: a copy each" 0 "done" apart moved --output copies
verify "of the same bits" same_model whole/model.safetensors copies/model.safetensors

# Threads that decode change no bit, so that each host may have as many as it likes, and a resumed run others.
from threads && check "other threads that decode" 0 "continuing after step 8" ranks 2 "$train" run.json --resume threads --set data.threads=3
verify "change no bit" same_model whole/model.safetensors threads/model.safetensors
check "other threads on another rank" 0 "done" apart first --output threads-apart --set data.threads=1
check "on each rank its own" 0 "done" timeout 60 mpirun --oversubscribe -n 1 "$train" run.json --set data.threads=1 --output threads-own : -n 1 "$train" run.json --set data.threads=4 --output threads-own
verify "change no bit either" same_model whole/model.safetensors threads-own/model.safetensors

# A test picture that is cut off, of one rank's part alone (val/a/1.jpg is sample 1).
cp -r first bad && truncate -s 600 bad/val/a/1.jpg
tests=(--set evaluate.every_steps=4)
check "a whole run with tests" 0 "test accuracy" ranks 2 "$train" run.json "${tests[@]}" --output tested-whole
check "a bad test picture ends the run by name" 2 "rank 1: .*bad/val/a/1.jpg: cannot be decoded" timeout 60 mpirun --oversubscribe -n 2 "$train" run.json "${tests[@]}" --set data.path=bad --output cut
verify "with one line of error" bash -c '[ "$(grep -c "1.jpg" .stderr)" = 1 ]'
verify "but the checkpoint that was due is there" test -f cut/checkpoints/step-4/DONE
cp first/val/a/1.jpg bad/val/a/1.jpg
check "the run goes on once the picture is mended" 0 "continuing after step 4" ranks 2 "$train" run.json "${tests[@]}" --set data.path=bad --resume cut
verify "to the bits of a whole run" same_model tested-whole/model.safetensors cut/model.safetensors
verify "with its losses" same_losses tested-whole cut
truncate -s 600 bad/val/a/1.jpg
check "where no checkpoint is due" 2 "rank 1: .*1.jpg" timeout 60 mpirun --oversubscribe -n 2 "$train" run.json "${tests[@]}" --set data.path=bad --output undue --set checkpoint.every_steps=5
verify "there is none" bash -c '! ls undue/checkpoints/step-* 2>/dev/null'
check "at the last step" 2 "1.jpg: cannot be decoded" timeout 60 mpirun --oversubscribe -n 2 "$train" run.json --set data.path=bad --output last --set checkpoint.best=true
verify "the whole run is saved" test -f last/checkpoints/step-12/DONE
verify "and none is called the best" test ! -e last/checkpoints/best
cp first/val/a/1.jpg bad/val/a/1.jpg
check "and needs its test alone" 0 "done" ranks 2 "$train" run.json --set data.path=bad --resume last --set checkpoint.best=true
verify "to the bit" same_model whole/model.safetensors last/model.safetensors
truncate -s 600 bad/val/a/1.jpg
check "one rank" 2 "1.jpg: cannot be decoded" "$train" run.json "${tests[@]}" --set data.path=bad --output alone
verify "saves it, too" test -f alone/checkpoints/step-4/DONE
check "of two ranks' averages" 2 "rank 1: .*1.jpg" timeout 60 mpirun --oversubscribe -n 2 "$train" run.json "${tests[@]}" --set data.path=bad --output ema --set ema.decay=0.9
verify "saves them" test -f ema/checkpoints/step-4/DONE
check "a test alone ends on all ranks" 2 "rank 1: .*1.jpg" timeout 60 mpirun --oversubscribe -n 2 "$train" run.json --set data.path=bad --evaluate whole
finish
