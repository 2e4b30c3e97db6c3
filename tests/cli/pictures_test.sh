#!/usr/bin/env bash
# One's own pictures: from folders of files to a classifier, its confusion matrix, predictions on new files, and programs that use it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cmake=${STARLING_CMAKE:-cmake}
golden=$root/tests/golden/pictures
predict=$build/bin/starling-predict

for class in ant bee; do
  mkdir -p "pets/train/$class" "pets/val/$class"
  for i in $(seq 12); do cp "$golden/$([ $class = ant ] && echo 420.jpg || echo rgb8.png)" "pets/train/$class/$i.$([ $class = ant ] && echo jpg || echo png)"; done
done
cp "$golden/444.jpg" "$golden/progressive.jpg" pets/val/ant/
cp "$golden/rgb_alpha8.png" "$golden/rgb16.png" pets/val/bee/
cat >pets.json <<END
{
  "model": {"type": "resnet20"},
  "data": {"type": "image_folder", "path": "$work/pets", "image_size": 16, "test_resize": 24, "test_crop": 20,
           "augment": {"random_resized_crop": {"scale": [0.3, 1]}, "flip": true}},
  "batch_size": 4, "steps": 24, "optimizer": {"type": "adamw", "lr": 5e-3}, "sync": {"topology": {"type": "ring"}}, "log_every": 4
}
END
check "training on pictures, on 2 ranks" 0 "test accuracy" ranks 2 "$train" pets.json --output run
verify "the index is kept beside the pictures" test -f pets/train/.starling-index
verify "metrics say how long training waited for data" grep -q '"data_wait_ms":' run/metrics.jsonl
verify "the classes are the folders" bash -c 'python3 -c "import json; assert json.load(open(\"run/config.json\"))[\"data\"][\"classes\"] == 2"'
check "another number of threads that decode" 0 "" ranks 2 "$train" pets.json --output threads --set data.threads=3
verify "changes no bit" python3 - <<'END'
def tensors(run):
    import json, struct
    data = open(run + "/model.safetensors", "rb").read()
    length, = struct.unpack("<Q", data[:8])
    return data[8 + length:]
assert tensors("run") == tensors("threads")
END
check "a run that stops in the midst" 0 "" ranks 2 "$train" pets.json --output half --set steps=10
check "and goes on" 0 "continuing after step 10" ranks 2 "$train" pets.json --output half --resume latest
verify "has the bits of one that did not stop" same_model run/model.safetensors half/model.safetensors
check "the test of the model file alone" 0 '"test_accuracy"' "$train" --evaluate run --confusion confusion.csv
verify "its confusion matrix has the classes' names" grep -q "^true class,ant,bee" confusion.csv

grow=(--set 'data.progressive={"from": 8, "start_epoch": 1, "end_epoch": 5, "multiple": 4}')
check "images that grow in the run" 0 "epoch 3: training images of 12×12" ranks 2 "$train" pets.json --output grow "${grow[@]}"
verify "and change the model" bash -c "! $(dirname "$train")/same_tensors grow/model.safetensors run/model.safetensors"
check "a run that stops at a middle size" 0 "" ranks 2 "$train" pets.json --output grow-half "${grow[@]}" --set steps=10
check "goes on, and to the full size" 0 "epoch 4: training images of 16×16" ranks 2 "$train" pets.json --output grow-half "${grow[@]}" --resume latest
verify "to the same bits" same_model grow/model.safetensors grow-half/model.safetensors
check "images that shrink" 2 "data.progressive.from: is 17, larger than image_size 16" "$train" pets.json --dry-run --set 'data.progressive={"from": 17}'
check "a growth without epochs" 2 "data.progressive.end_epoch: is 3, not after start_epoch 3" "$train" pets.json --dry-run --set 'data.progressive={"from": 8, "start_epoch": 3, "end_epoch": 3}'

check "predictions of a folder, a line a picture" 0 "^pets/val/ant/444.jpg: (ant|bee) [0-9.]+ %, (ant|bee) [0-9.]+ %$" "$predict" run pets/val
check "as JSON" 0 '^\{"file":"pets/val/bee/rgb16.png","top":\[\{"class":"(ant|bee)","index":[01],"probability":' "$predict" run/model.safetensors pets/val/bee/rgb16.png --json --top 1
verify "what training measured is what is predicted" python3 - "$predict" <<'END'
import json, subprocess, sys
lines = subprocess.run([sys.argv[1], "run", "pets/val", "--json"], capture_output=True, text=True, check=True).stdout.splitlines()
rows = [json.loads(line) for line in lines]
assert len(rows) == 4 and all(abs(sum(t["probability"] for t in row["top"]) - 1) < 1e-6 for row in rows)
right = sum(row["top"][0]["class"] == row["file"].split("/")[2] for row in rows)
assert right / 4 == json.load(open("run/summary.json"))["test_accuracy"], right
END
echo nonsense >pets/val/bad.jpg
check "a bad picture among others is a line, and the others are predicted" 2 "^starling-predict: \[picture\] .*bad.jpg: is neither JPEG nor PNG" "$predict" run pets/val/bad.jpg pets/val/ant/444.jpg
verify "with the prediction on stdout" grep -q "^pets/val/ant/444.jpg: " .stdout
rm pets/val/bad.jpg
check "a folder without pictures" 2 "has no pictures; needed: files that end in" "$predict" run "$root/configs"
check "no model" 2 "has no model.safetensors, which a run writes at its end" "$predict" pets pets/val
check "a file of another program" 2 "has no metadata starling.config" "$predict" "$root/tests/golden/models/mlp.safetensors" pets/val
cp -r pets others && mv others/train/bee others/train/wasp && mv others/val/bee others/val/wasp
check "data whose classes are not the model's" 2 "its class 1 is .bee., the data.s is .wasp.; needed: data of the model.s classes" "$train" pets.json --set data.path=others --evaluate run
check "a test whose outputs overflow warns" 0 "the test after step 1 gives test_[a-z]+ -?nan" "$train" pets.json --output wild --set steps=1 --set optimizer.lr=1e30
check "such a model predicts nothing" 2 "444.jpg: the model.s scores of it are no finite numbers" "$predict" wild pets/val/ant/444.jpg
check "a closed output" 5 "stdout could not be written" bash -c "$predict run pets/val >/dev/full"

cp "$golden/420.jpg" pets/train/bee/0.jpg && truncate -s 900 pets/train/bee/0.jpg
check "a picture that is cut off ends the run by name" 2 "pets/train/bee/0.jpg: cannot be decoded as JPEG: Premature end" ranks 2 "$train" pets.json --output bad
check "or another stands in for it" 0 "bee/0.jpg: .*the next of its class stands in for it" ranks 2 "$train" pets.json --output skipped --set data.on_bad_image=skip
rm pets/train/bee/0.jpg
check "a part of train/ set aside beside val/, and what to do" 2 "but there is .*/pets/val; leave one of them out: with --set data.val_fraction=0 .*/pets/val is for tests" "$train" pets.json --output both --set data.val_fraction=0.1
check "a batch that is too large, and what to do" 2 "32 on 2 ranks is more than the 24 training samples; allowed: <= 12, as by --set batch_size=12" ranks 2 "$train" pets.json --output large --set batch_size=32
mkdir pets/val/cow && cp "$golden/444.jpg" pets/val/cow/
check "folders that differ" 2 "cow is in val/ alone; needed: the same folders in both" "$train" pets.json --output differ
rm -r pets/val/cow

mkdir 'two
lines' && cp "$golden/444.jpg" 'two
lines/a.jpg' && echo nonsense >'two
lines/b.jpg'
check "a line a picture, whatever its name" 2 '^two\\nlines/a.jpg: (ant|bee) ' "$predict" run 'two
lines'
verify "on stdout and on stderr" bash -c '[ "$(wc -l <.stdout)" = 1 ] && grep -q "^starling-predict: \[picture\] two\\\\nlines/b.jpg: is neither" .stderr && [ "$(wc -l <.stderr)" = 1 ]'
check "as JSON a name keeps its characters" 2 '^\{"file":"two\\nlines/a.jpg",' "$predict" run 'two
lines' --json
check "a model with a sigmoid for each class" 0 "" ranks 1 "$train" pets.json --output bce --set loss.type=bce_with_logits
verify "is predicted with these" python3 - "$predict" <<'END'
import json, subprocess, sys
line, = subprocess.run([sys.argv[1], "bce", "pets/val/ant/444.jpg", "--json"], capture_output=True, text=True, check=True).stdout.splitlines()
assert abs(sum(top["probability"] for top in json.loads(line)["top"]) - 1) > 1e-5, line
END
cp -r pets single && rm -r single/{train,val}/bee
check "one class only is worth a line" 0 "^warning: data: image_folder: $work/single/train has one class, ant: the model will say it of everything; add a folder for each other class$" ranks 2 "$train" pets.json --output single-run --set data.path="$work/single" --set steps=1
verify "and no more than one" test "$(grep -c "has one class" .stderr)" = 1

# What is no file of bytes is named, and never waited for.
mkfifo pipe.png
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket.jpg")'
check "a pipe as a picture, and the others are predicted" 2 "^starling-predict: \[picture\] pipe.png: cannot be read: it is a pipe, not a regular file" timeout 20 "$predict" run pipe.png pets/val/ant/444.jpg
verify "with the prediction on stdout" grep -q "^pets/val/ant/444.jpg: " .stdout
check "a device without an end" 2 "/dev/zero: cannot be read: it is a device" timeout 20 "$predict" run /dev/zero
check "a socket" 2 "socket.jpg: cannot be read: it is a socket" timeout 20 "$predict" run socket.jpg
check "a pipe as a model" 2 "pipe.png: cannot be read: it is a pipe" timeout 20 "$predict" pipe.png pets/val/ant/444.jpg
mkdir piped && mkfifo piped/model.safetensors
check "and in a run's folder" 2 "piped/model.safetensors: cannot be read: it is a pipe" timeout 20 "$predict" piped pets/val/ant/444.jpg
check "or as what is to be tested" 2 "pipe.png: cannot be read: it is a pipe" timeout 60 "$train" pets.json --evaluate pipe.png
cp -r pets changed && cp "$golden/rgb8.png" changed/train/bee/0.png
check "the folders are looked through" 0 "" ranks 1 "$train" pets.json --output changed-run --set data.path="$work/changed" --set steps=1
mkdir -p links/deep.jpg && ln -s "$work/unmounted/1.jpg" links/away.jpg && ln -s loop.png links/loop.png && mkfifo links/pipe.jpeg && cp "$golden/444.jpg" links/deep.jpg/
check "a folder with a link to nothing" 2 "^starling-predict: \[picture\] links/away.jpg: cannot be read: No such file or directory" timeout 20 "$predict" run links
verify "a link to itself and a pipe" bash -c 'grep -q "links/loop.png: cannot be read: Too many levels of symbolic links" .stderr && grep -q "links/pipe.jpeg: cannot be read: it is a pipe" .stderr'
verify "and the others are predicted, below a folder with a picture's name too" test "$(cut -d: -f1 .stdout)" = links/deep.jpg/444.jpg
cp -r pets linked && ln -s "$work/unmounted/1.jpg" linked/train/ant/away.jpg
check "a link to nothing among the training pictures ends the run by name" 2 "linked/train/ant/away.jpg: cannot be read: No such file or directory" timeout 60 mpirun --oversubscribe -n 1 "$train" pets.json --output linked-run --set data.path="$work/linked"
check "or is counted, and the next stands in for it" 0 "away.jpg: .*the next of its class stands in for it" timeout 120 mpirun --oversubscribe -n 1 "$train" pets.json --output linked-skip --set data.path="$work/linked" --set data.on_bad_image=skip
verify "as one picture" grep -q "data: 1 picture could not be decoded; others of the same class stood in" .stderr
verify "and summary.json has the number" grep -q "\"bad_pictures\": 1" linked-skip/summary.json
# A pipe takes a picture's place; what the index knows of its folder stays true.
touch -r changed/train/bee when && rm changed/train/bee/0.png && mkfifo changed/train/bee/0.png && touch -r when changed/train/bee
check "a pipe where a picture was ends the run by name" 2 "bee/0.png: cannot be read: it is a pipe" timeout 60 mpirun --oversubscribe -n 1 "$train" pets.json --output piped-run --set data.path="$work/changed"
check "or the next stands in for it" 0 "bee/0.png: .*the next of its class stands in for it" timeout 120 mpirun --oversubscribe -n 1 "$train" pets.json --output piped-skip --set data.path="$work/changed" --set data.on_bad_image=skip
check "preparing shards names it" 2 "bee/0.png: cannot be read: it is a pipe" timeout 60 "$build/bin/starling-prepare" images changed piped-shards --size 16
check "or leaves it out" 0 "1 picture.* left out|left out.* 1|skipped.* 1|1 .*skipped" timeout 60 "$build/bin/starling-prepare" images changed piped-shards --size 16 --on-bad-image skip
mv piped-shards/train-00000.shard whole.shard && mkfifo piped-shards/train-00000.shard
check "a pipe as a shard" 2 "cannot open .*train-00000.shard: it is a pipe" timeout 60 "$train" pets.json --output piped-set --set 'data={"type": "shards", "path": "piped-shards", "image_size": 16}'
mkdir digits && mkfifo digits/{train,t10k}-{images-idx3,labels-idx1}-ubyte
check "a pipe as a data set's file" 2 "cannot open digits/[a-z0-9-]+ubyte: it is a pipe" timeout 60 "$train" pets.json --output piped-digits --set 'data={"type": "mnist", "path": "digits"}'
check "a model that takes one size only" 2 "does not take 20×20×3" "$train" pets.json --output fixed --set 'model={"type": "mlp", "hidden": [4]}'
check "kept samples beside random crops" 2 "data.cache.type: is memory, but pictures are cut anew" "$train" pets.json --output cached --set data.cache=memory
verify "none of these made a folder" bash -c '! ls -d bad/model.safetensors differ fixed cached 2>/dev/null'

check "install" 0 "starlingConfig\.cmake" "$cmake" --install "$build" --prefix "$work/prefix"
cp -r "$root/examples/inference" mine
check "configure a program of one's own, where there is no MPI" 0 "Build files" "$cmake" -S mine -B mine/build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_CXX_FLAGS="-Wall -Wextra"
check "build it" 0 "classify" "$cmake" --build mine/build
verify "it needs no MPI" bash -c '! ldd mine/build/classify | grep -q libmpi'
check "it classifies a picture" 0 "^(ant|bee) +[0-9.]+ %" mine/build/classify run pets/val/ant/444.jpg
check "a model with more outputs than there are classes" 0 "" ranks 1 "$train" pets.json --output wide --set steps=1 --set model.num_classes=7
check "is predicted, with numbers for names" 0 "^pets/val/ant/444.jpg: .*\b[2-6] [0-9.]+ %" "$predict" wide pets/val/ant/444.jpg --top 7
check "in a program of one's own too" 0 "^[2-6] +[0-9.]+ %" mine/build/classify wide pets/val/ant/444.jpg

export PYTHONDONTWRITEBYTECODE=1
if python3 -c "import torch, PIL" 2>/dev/null; then
  check "PyTorch opens the model" 0 "^pets/val/ant/444.jpg: (ant|bee) " python3 "$root/examples/pytorch/starling_torch.py" run pets/val/ant/444.jpg pets/val/bee/rgb16.png "$golden/grey16.png"
  cp .stdout torch.txt
  "$predict" run pets/val/ant/444.jpg pets/val/bee/rgb16.png "$golden/grey16.png" >own.txt
  verify "and predicts the same" python3 - <<'END'
import re
numbers = [[float(x) for x in re.findall(r"([\d.]+) %", open(name).read())] for name in ("torch.txt", "own.txt")]
assert len(numbers[0]) == 6 and all(abs(a - b) < 2 for a, b in zip(*numbers)), numbers
END
  check "and its outputs beyond the classes" 0 "^pets/val/ant/444.jpg: .*\b[2-6] [0-9.]+ %" python3 "$root/examples/pytorch/starling_torch.py" wide pets/val/ant/444.jpg
  if python3 -c "import onnx, onnxruntime" 2>/dev/null; then
    check "the model as ONNX" 0 "" python3 "$root/examples/pytorch/starling_torch.py" run --onnx model.onnx
    verify "computes the same" python3 - "$root/examples/pytorch" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import onnxruntime, torch
from starling_torch import load
model, about = load("run")
images = torch.randn(3, 3, 20, 20)
logits, = onnxruntime.InferenceSession("model.onnx").run(None, {"images": images.numpy()})
assert abs(torch.from_numpy(logits) - model(images)).max() < 1e-4
END
  else
    echo "left out: the model as ONNX; Python has no onnx and onnxruntime here"
  fi
else
  echo "left out: the model in PyTorch; Python has no torch and Pillow here"
fi
finish
