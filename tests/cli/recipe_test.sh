#!/usr/bin/env bash
# Training recipes as users run them: losses, a moving average, the best checkpoint, a start from another run, and tests of a model file alone.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
config '{"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 4, "kernel_size": 3, "stride": 4}, {"type": "batch_norm"},
    {"type": "relu"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]}' '  "batch_size": 16,
  "steps": 12,
  "optimizer": {"type": "sgd", "lr": 0.02},
  "checkpoint": {"every_epochs": 0},' >net.json

for loss in bce_with_logits mse l1 huber focal; do
  check "a run that minimises $loss" 0 "done" "$train" net.json --set loss.type=$loss --set steps=3 --output "loss-$loss"
done
check "a loss's key that is out of range is named" 2 "loss\.gamma: expected .* found -1" "$train" net.json --set loss.type=focal --set loss.gamma=-1
check "an unknown loss has a near name" 2 "did you mean 'focal'" "$train" net.json --set loss.type=vocal

recipe=(--set ema.decay=0.9 --set sync.batch_norm=recalibrate --set sync.recalibrate_batches=4 --set checkpoint.best=true --set evaluate.every_steps=4)
check "two ranks train with an average, measured statistics and a best checkpoint" 0 "test ema_accuracy" ranks 2 "$train" net.json "${recipe[@]}" --output a
for file in model.safetensors model.ema.safetensors checkpoints/best/DONE checkpoints/best/model.safetensors checkpoints/best/rank-1.safetensors; do
  verify "$file is written" test -s "a/$file"
done
verify "each test has the average's accuracy" test "$(grep -c '"test_ema_accuracy"' a/metrics.jsonl)" = 3
verify "the summary names the best step" grep -q '"best"' a/summary.json
check "they go on" 0 "done" ranks 2 "$train" net.json "${recipe[@]}" --set steps=16 --output a --resume latest
check "a run of 16 steps at once" 0 "done" ranks 2 "$train" net.json "${recipe[@]}" --set steps=16 --output b
verify "has the same average" cmp a/model.ema.safetensors b/model.ema.safetensors
verify "and the same model" same_model a/model.safetensors b/model.safetensors
check "another decay on resume is named" 2 "ema\.decay" ranks 2 "$train" net.json "${recipe[@]}" --set ema.decay=0.5 --set steps=20 --output a --resume latest

# Synchronized norms: two ranks with half of a batch each are one with all of it, however they talk.
all_reduce=(--set precision=fp64 --set sync.algorithm=allreduce --set sync.batch_norm=sync --set log_every=1)
last_loss() { tail -2 "$1/metrics.jsonl" | head -1 | sed 's/.*"loss": *\([0-9.e-]*\).*/\1/'; }
check "one rank with a batch of 32" 0 "done" "$train" net.json "${all_reduce[@]}" --set batch_size=32 --output whole
for transport in direct mpi; do
  check "two ranks with 16 each, by $transport" 0 "done" ranks 2 "$train" net.json "${all_reduce[@]}" --set sync.transport=$transport --output "half-$transport"
  verify "have the same loss at the end" awk "BEGIN {d = $(last_loss whole) - $(last_loss "half-$transport"); exit !(d < 1e-9 && d > -1e-9)}"
done
check "without them" 0 "done" ranks 2 "$train" net.json "${all_reduce[@]}" --set sync.batch_norm=local --output half-local
verify "it is another" awk "BEGIN {d = $(last_loss whole) - $(last_loss half-local); exit d < 1e-6 && d > -1e-6}"

# A model file alone.
check "--evaluate takes a run's folder, on another number of ranks" 0 "^9 " ranks 3 "$train" --evaluate a --confusion confusion.csv
tail -1 "$work/.stdout" >line.json
verify "the last line is JSON" grep -qE '^\{.*"test_accuracy":.*"test_loss":.*\}$' line.json
verify "with the run's accuracy" test "$(json_number line.json test_accuracy)" = "$(json_number a/summary.json test_accuracy)"
verify "the table adds up to the test set" test "$(awk -F, 'NR > 1 {for (i = 2; i <= NF; ++i) sum += $i} END {print sum}' confusion.csv)" = 256
verify "its diagonal is the accuracy" test "$(awk -F, 'NR > 1 {sum += $NR} END {printf "%.6f", sum / 256}' confusion.csv)" = "$(printf '%.6f' "$(json_number line.json test_accuracy)")"
check "--evaluate takes the average's file" 0 '"test_accuracy"' "$train" --evaluate a/model.ema.safetensors
verify "and finds what the run did" test "$(json_number "$work/.stdout" test_accuracy)" = "$(json_number a/summary.json test_ema_accuracy)"
check "and the best checkpoint's" 0 '"test_accuracy"' "$train" --evaluate a/checkpoints/best/model.safetensors
check "a config may stand beside it" 0 '"test_accuracy"' "$train" net.json --evaluate a/model.safetensors --set data.test_limit=64
verify "with its own data" test "$(json_number "$work/.stdout" samples)" = 64
check "a checkpoint is no model file" 2 "rank-0\.safetensors does not say" "$train" --evaluate a/checkpoints/best/rank-0.safetensors
check "nor is a folder that holds none" 2 "has no model\.safetensors" "$train" --evaluate a/checkpoints
check "--confusion needs --evaluate" 2 "confusion" "$train" net.json --confusion x.csv
check "a table that cannot be written ends with 5" 5 "nowhere/x\.csv" "$train" --evaluate a --confusion nowhere/x.csv
verify "before anything is computed" test ! -s .stdout
cp net.json kept.json
check "a file that holds something else is left alone" 2 "\-\-confusion net.json: the file is there already and holds no confusion table; name another one" "$train" --evaluate a --confusion net.json
verify "as it was" cmp net.json kept.json
check "an older table is replaced" 0 '"test_accuracy"' "$train" --evaluate a --confusion confusion.csv
check "a device that is full takes the table, not the numbers" 5 '"test_accuracy"' "$train" --evaluate a --confusion /dev/full

# Fine-tuning.
two=(--set data.classes=2 --set 'model.layers.4.out_features=2')
check "a head of another shape is named, with what skips it" 2 'skip": \["4\.\*"\]' "$train" net.json "${two[@]}" --set init=a/model.safetensors --output c
check "with that it trains" 0 "done" ranks 2 "$train" net.json "${two[@]}" --set init.file=a/model.safetensors --set 'init.skip=["4.*"]' --output c
check "a pattern that matches nothing is named" 2 "init\.skip: 'fc\.\*'" "$train" net.json --set init.file=a/model.safetensors --set 'init.skip=["fc.*"]'
check "a file that is none" 2 "net\.json" "$train" net.json --set init=net.json
finish
