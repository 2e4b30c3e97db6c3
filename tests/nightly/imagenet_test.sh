#!/usr/bin/env bash
# The ImageNet configs from end to end on a tree of 100 classes of drawn JPEG pictures of ordinary
# size: training, tests, resuming, predicting. Images, batches and epochs are few; all else is the
# configs' own.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
prepare=$build/bin/starling-prepare
predict=$build/bin/starling-predict
export prepare predict

check "a tree of 100 classes is drawn" 0 "^300 pictures of 100 classes, [0-9.]+ MB, in tree/train and tree/val$" "$prepare" example tree --train 2 --val 1
verify "as folders of JPEG files" bash -c '[ "$(ls tree/train | wc -l)" = 100 ] && [ "$(ls tree/val/class_099)" = 00000.jpg ] && [ "$(find tree -name "*.jpg" | wc -l)" = 300 ]'
check "with other threads" 0 "" "$prepare" example same --train 2 --val 1 --threads 3
verify "are the same pictures" diff -r tree same
check "another seed" 0 "" "$prepare" example other --train 2 --val 1 --classes 3 --seed 2
verify "draws others" bash -c '! cmp -s tree/train/class_000/00000.jpg other/train/class_000/00000.jpg'
check "a folder that is in use is left alone" 2 "tree: is there already, and no empty folder; name one" "$prepare" example tree
check "so is a file" 2 "file: is there already" bash -c 'touch file; "$prepare" example file --classes 1'
check "a folder that cannot be made" 5 "file/tree/train/class_000: cannot be made: Not a directory" "$prepare" example file/tree --classes 1

small=(--set data.path=tree --set data.image_size=64 --set data.test_resize=72 --set data.test_crop=64 --set batch_size=8 --set log_every=4)
paper=("$root/configs/imagenet_resnet50.json" "${small[@]}" --set sync.topology.ranks_per_node=1)
check "the paper's recipe trains on it, on 2 ranks" 0 "epoch 1, step 12: test accuracy [0-9.]+ %, test top5 [0-9.]+ %" ranks 2 "$train" "${paper[@]}" --set epochs=1 --output paper
for file in config.json metrics.jsonl summary.json model.safetensors checkpoints/step-12/DONE; do verify "$file is written" test -s "paper/$file"; done
verify "the rate is warming up, and the folders' classes are 100" python3 - <<'PYTHON'
import json
config = json.load(open("paper/config.json"))
assert config["data"]["classes"] == 100 and config["schedule"]["min_lr"] == 1e-5, config
rate = json.loads(open("paper/metrics.jsonl").readline())["lr"]
assert 1.5e-5 <= rate < 2e-5, rate
PYTHON
check "a run that stops in the midst" 0 "" ranks 2 "$train" "${paper[@]}" --set steps=7 --output half
check "goes on" 0 "continuing after step 7" ranks 2 "$train" "${paper[@]}" --set epochs=1 --output half --resume latest
verify "to the same bits" same_model paper/model.safetensors half/model.safetensors

# In fp32, so that predictions have the numbers of the run's own test.
short=("$root/configs/imagenet_resnet50_18_epochs.json" "${small[@]}" --set precision=fp32 --set model.num_classes=100 --set epochs=2 --set schedule.warmup_steps=2
  --set optimizer.lr=0.02 --set 'data.progressive={"from": 32, "start_epoch": 0, "end_epoch": 1, "multiple": 32}')
check "the short recipe trains on it, with images that grow" 0 "epoch 1: training images of 64×64 from here on" ranks 2 "$train" "${short[@]}" --output short
verify "to the end of its schedule" test "$(json_number short/summary.json steps)" = 24
check "a picture is predicted, with the classes' names" 0 '^\{"file":"tree/val/class_042/00000.jpg","top":(\[|.*,)\{"class":"class_0[0-9]{2}","index":' "$predict" short tree/val/class_042/00000.jpg --json --top 5
verify "what training measured is what is predicted" python3 - "$predict" <<'PYTHON'
import json, subprocess, sys
lines = subprocess.run([sys.argv[1], "short", "tree/val", "--json", "--top", "5"], capture_output=True, text=True, check=True).stdout.splitlines()
rows = [json.loads(line) for line in lines]
assert len(rows) == 100
for row in rows:
    assert len(row["top"]) == 5 and all(top["class"] == f"class_{top['index']:03}" for top in row["top"]), row
summary = json.load(open("short/summary.json"))
right = [[top["class"] for top in row["top"]].index(row["file"].split("/")[2]) if row["file"].split("/")[2] in [top["class"] for top in row["top"]] else 5 for row in rows]
assert sum(place == 0 for place in right) / 100 == summary["test_accuracy"], (right, summary["test_accuracy"])
assert sum(place < 5 for place in right) / 100 == summary["test_top5"], (right, summary["test_top5"])
PYTHON
verify "as the mean of two views" bash -c 'grep -q "\"tta\": \"mirror\"" short/config.json'
check "the model file alone" 0 '"test_top5"' "$train" --evaluate short --confusion confusion.csv
verify "its confusion matrix has 100 classes" test "$(wc -l <confusion.csv)" = 101

# Without a GPU a dry run says what a GPU would do; without the pictures it takes ImageNet's
# numbers.
for config in imagenet_resnet50 imagenet_resnet50_18_epochs; do
  check "$config plans for GPUs" 0 "floor on one H200" ranks 4 "$train" "$root/configs/$config.json" --device cuda --dry-run --set data.path=none
done
finish
