#!/usr/bin/env bash
# The output folder: what is in it, what keeps it safe, and that its config.json repeats the run.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config

check "two ranks train" 0 "" ranks 2 "$train" small.json --output a
for file in config.json metrics.jsonl summary.json model.safetensors; do verify "$file is written" test -s "a/$file"; done
verify "TensorBoard's events are written" bash -c 'ls a/events.out.tfevents.*'
verify "a final checkpoint is written" test -f a/checkpoints/step-12/DONE
verify "with a file for each rank" test -s a/checkpoints/step-12/rank-1.safetensors
verify "a loss for each step" test "$(losses a | wc -l)" = 12
for key in steps epochs test_accuracy test_loss train_seconds images_per_second peak_memory_bytes ranks parameters version; do
  verify "summary.json has $key" grep -q "\"$key\"" a/summary.json
done
verify "summary.json counts 2 ranks" test "$(json_number a/summary.json ranks)" = 2
verify "summary.json counts 98,666 parameters" test "$(json_number a/summary.json parameters)" = 98666

check "its config.json trains again" 0 "" ranks 2 "$train" a/config.json --output b
verify "with the same losses" same_losses a b
verify "and the same model" same_model a/model.safetensors b/model.safetensors
verify "and writes the same config.json" cmp a/config.json b/config.json

tree() { find a -type f -exec cksum {} + | sort -k3; }
before=$(tree)
check "a folder in use is refused" 2 "a" "$train" small.json --output a
verify "and stays untouched" test "$before" = "$(tree)"
mkdir foreign && echo mine >foreign/notes.txt
check "a foreign folder is refused" 2 "foreign" "$train" small.json --output foreign
verify "and keeps its file" test "$(ls foreign) $(cat foreign/notes.txt)" = "notes.txt mine"
mkdir empty
check "an empty folder is taken" 0 "" "$train" small.json --output empty
: >plain
check "a folder that cannot be made" "2|5" "plain" "$train" small.json --output plain/folder
check "no output option: runs/<name>-<time>" 0 "" "$train" small.json
verify "is where it went" bash -c 'test -s runs/small-*/summary.json'

accuracy=$(json_number a/summary.json test_accuracy)
check "--evaluate repeats the test accuracy" 0 "accuracy" "$train" small.json --evaluate a/model.safetensors
echo "$accuracy" >accuracy.txt
verify "to four digits ($accuracy)" grep -qE "$(printf '%.4f' "$accuracy" | sed 's/0*$//')|$(awk "BEGIN {printf \"%.2f\", 100 * $accuracy}")" "$work/.stdout"
head -c 1000 a/model.safetensors >short.safetensors
twelve=(--set data.classes=12 --set steps=2)
check "a run of 12 classes" 0 "done" "$train" small.json "${twelve[@]}" --output twelve
check "--evaluate gives top 5 beyond 10 classes" 0 '"test_top5":' "$train" small.json "${twelve[@]}" --evaluate twelve/model.safetensors
verify "as the run did" test "$(json_number "$work/.stdout" test_top5)" = "$(json_number twelve/summary.json test_top5)"
check "a truncated model is refused" 2 "short\.safetensors" "$train" small.json --evaluate short.safetensors
check "a model of another shape is refused" 2 "1\.weight" "$train" small.json --set model.hidden='[16]' --evaluate a/model.safetensors
check "init from a model" 0 "" "$train" small.json --set init=a/model.safetensors --output c
check "--trace writes a timeline" 0 "" ranks 2 "$train" small.json --output d --trace d.json
verify "with spans of update and exchange" grep -qi "update" d.json

check "a diverging run ends with 4 and names the step" 4 "step [0-9]+" "$train" small.json --set optimizer.lr=1e30 --output e
verify "and leaves no checkpoint of it" bash -c '! ls e/checkpoints/*/DONE 2>/dev/null'
check "so it does on two ranks" 4 "step [0-9]+" ranks 2 "$train" small.json --set optimizer.lr=1e30 --output f

# A full disk: a file system of 300 kB, where the kernel lets us make one.
full_disk() {
  unshare -rm bash -c 'mkdir -p full && mount -t tmpfs -o size=300k none full && "$train" small.json --output full/run'
}
export -f full_disk
if unshare -rm bash -c 'mkdir -p full && mount -t tmpfs -o size=300k none full' 2>/dev/null; then
  check "a full disk ends with 5 and names the file" 5 "full/run/" full_disk
else
  echo "skipped a full disk: no user namespaces here"
fi
finish
