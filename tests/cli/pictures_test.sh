#!/usr/bin/env bash
# One's own pictures: from folders of files to a classifier, predictions on new files, and programs
# that use it. What training does and refuses is
# tests/apps/data_program_test.cpp's.
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

# passed over, as in training
mkdir pets/val/ant/.trash && cp "$golden/444.jpg" pets/val/ant/.trash/ && echo hidden >pets/val/bee/._rgb16.png
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
python3 - run/model.safetensors regression.safetensors <<'PYTHON'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
length, = struct.unpack_from("<Q", data)
head = json.loads(data[8:8 + length])
config = json.loads(head["__metadata__"]["starling.config"])
config["task"] = {"type": "my_regression"}
head["__metadata__"].pop("starling.checksums")
head["__metadata__"]["starling.config"] = json.dumps(config)
text = json.dumps(head).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length:])
PYTHON
check "of another task than classification the numbers are printed" 0 "444.jpg: -?[0-9.e-]+(, -?[0-9.e-]+)+$" "$predict" regression.safetensors pets/val/ant/444.jpg
check "as JSON too" 0 '"outputs":\[' "$predict" regression.safetensors pets/val/ant/444.jpg --json
check "a closed output" 5 "stdout could not be written" bash -c "$predict run pets/val >/dev/full"

mkdir 'two
lines' && cp "$golden/444.jpg" 'two
lines/a.jpg' && echo nonsense >'two
lines/b.jpg'
check "a line a picture, whatever its name" 2 '^two\\nlines/a.jpg: (ant|bee) ' "$predict" run 'two
lines'
verify "on stdout and on stderr" bash -c '[ "$(wc -l <.stdout)" = 1 ] && grep -q "^starling-predict: \[picture\] two\\\\nlines/b.jpg: is neither" .stderr && [ "$(wc -l <.stderr)" = 1 ]'
check "as JSON a name keeps its characters" 2 '^\{"file":"two\\nlines/a.jpg",' "$predict" run 'two
lines' --json
odd=$'caf\xe9.jpg' && cp "$golden/444.jpg" "$odd"
verify "and its bytes, if they are no UTF-8" python3 - "$predict" <<'END'
import json, os, subprocess, sys
name = b"caf\xe9.jpg"
run = lambda *more: subprocess.run([sys.argv[1], "run", name, *more], capture_output=True, check=True).stdout
assert run().startswith(name + b": "), run()
assert os.fsencode(json.loads(run("--json"))["file"]) == name, run("--json")
END
check "a model with a sigmoid for each class" 0 "" ranks 1 "$train" pets.json --output bce --set loss.type=bce_with_logits
verify "is predicted with these" python3 - "$predict" <<'END'
import json, subprocess, sys
line, = subprocess.run([sys.argv[1], "bce", "pets/val/ant/444.jpg", "--json"], capture_output=True, text=True, check=True).stdout.splitlines()
assert abs(sum(top["probability"] for top in json.loads(line)["top"]) - 1) > 1e-5, line
END
# What is no file of bytes is named, and never waited for.
mkfifo pipe.png
check "a pipe as a picture, and the others are predicted" 2 "^starling-predict: \[picture\] pipe.png: cannot be read: it is a pipe, not a regular file" timeout 20 "$predict" run pipe.png pets/val/ant/444.jpg
verify "with the prediction on stdout" grep -q "^pets/val/ant/444.jpg: " .stdout
check "a pipe as a model" 2 "pipe.png: cannot be read: it is a pipe" timeout 20 "$predict" pipe.png pets/val/ant/444.jpg
mkdir piped && mkfifo piped/model.safetensors
check "and in a run's folder" 2 "piped/model.safetensors: cannot be read: it is a pipe" timeout 20 "$predict" piped pets/val/ant/444.jpg
mkdir -p links/deep.jpg && ln -s "$work/unmounted/1.jpg" links/away.jpg && ln -s loop.png links/loop.png && mkfifo links/pipe.jpeg && cp "$golden/444.jpg" links/deep.jpg/
check "a folder with a link to nothing" 2 "^starling-predict: \[picture\] links/away.jpg: cannot be read: No such file or directory" timeout 20 "$predict" run links
verify "a link to itself and a pipe" bash -c 'grep -q "links/loop.png: cannot be read: Too many levels of symbolic links" .stderr && grep -q "links/pipe.jpeg: cannot be read: it is a pipe" .stderr'
verify "and the others are predicted, below a folder with a picture's name too" test "$(cut -d: -f1 .stdout)" = links/deep.jpg/444.jpg

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
    check "the model as ONNX, and what it takes" 0 "takes images of N×3×[0-9]+×[0-9]+, .pixel / 255 - " python3 "$root/examples/pytorch/starling_torch.py" run --onnx model.onnx
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
