#!/usr/bin/env bash
# The key `precision`: what is refused where, in one line, and that training in bf16 is close to
# fp32 where the processor is fast in it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config
run() { # FOLDER PRECISION [ARG...]
  local folder=$1 precision=$2
  shift 2
  "$train" small.json --set precision="$precision" --device cpu --output "$folder" "$@"
}
without_bf16() { STARLING_CPU_ISA=avx2 run "$@"; }
on_two() { # FOLDER PRECISION [ARG...]
  local folder=$1 precision=$2
  shift 2
  ranks 2 "$train" model.json --set precision="$precision" --device cpu --output "$folder" "$@"
}
export -f run without_bf16 on_two

check "fp16 on an older processor" 2 "fp16 needs a GPU; use fp32" without_bf16 refused fp16
check "bf16 on an older processor" 2 "precision: bf16 needs a processor" without_bf16 refused bf16
verify "nothing is left behind" test ! -e refused
check "auto on an older processor" 0 "on .*, fp32" without_bf16 older auto
verify "the config keeps the user's word" grep -q '"precision": "auto"' older/config.json
verify "the summary says what it was" grep -q '"precision": "fp32"' older/summary.json
check "fp64" 0 "on .*, fp64" run wide fp64

config '{"type": "sequential", "layers": [
  {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "stride": 2, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
  {"type": "residual", "layers": [{"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}, {"type": "batch_norm"}]},
  {"type": "relu"}, {"type": "global_avg_pool"}, {"type": "linear", "out_features": 10}]}' '  "batch_size": 16,
  "steps": 30,
  "optimizer": {"type": "adamw", "lr": 0.02},
  "checkpoint": {"every_steps": 20},' >model.json
if run probe bf16 --set steps=1 >/dev/null 2>&1; then
  check "auto takes bf16" 0 "on .*, bf16" run best auto
  check "30 steps in fp32" 0 "on .*, fp32" on_two full fp32
  check "30 steps in bf16" 0 "on .*, bf16" on_two half bf16
  mean_of_last() { losses "$1" | tail -5 | awk '{ sum += $2 } END { print sum / NR }'; }
  full=$(mean_of_last full)
  half=$(mean_of_last half)
  first=$(losses full | head -1 | awk '{ print $2 }')
  echo "loss: $first at first, then $full in fp32 and $half in bf16"
  verify "the loss falls in both" awk "BEGIN { exit !($full < 0.9 * $first && $half < 0.9 * $first) }"
  verify "bf16 is close to fp32" awk "BEGIN { d = $full - $half; exit !(d < 0.1 && d > -0.1) }"
  verify "but not the same" bash -c "! diff -q full/model.safetensors half/model.safetensors"
  verify "the test agrees too" awk "BEGIN { d = $(json_number full/summary.json test_loss) - $(json_number half/summary.json test_loss); exit !(d < 0.15 && d > -0.15) }"
  check "20 steps of the same" 0 "" on_two stopped bf16 --set steps=20
  check "resume in another precision" 2 "precision" on_two stopped fp32 --resume latest
  check "resume in bf16" 0 "continuing after step 20" on_two stopped bf16 --resume latest
  verify "resuming changes no bit" same_model half/model.safetensors stopped/model.safetensors
  verify "nor a loss" same_losses half stopped
  check "the model is tested alone in bf16" 0 "test_loss" "$train" model.json --set precision=bf16 --device cpu --evaluate half/model.safetensors
  verify "with the training run's loss" awk "BEGIN { d = $(json_number "$work/.stdout" test_loss) - $(json_number half/summary.json test_loss); exit !(d < 1e-3 && d > -1e-3) }"
  # auto may mean something else where a run goes on.
  check "auto, stopped" 0 "bf16" run moved auto --set steps=6
  check "auto goes on where it means fp32" 2 "precision: the checkpoint was made in bf16.*add --set precision=bf16" without_bf16 moved auto --resume latest
  check "auto, stopped where it means fp32" 0 "fp32" without_bf16 back auto --set steps=6
  check "and goes on where it means bf16" 2 "precision: the checkpoint was made in fp32.*add --set precision=fp32" run back auto --resume latest
  check "which the remedy allows" 0 "continuing after step 6" run back auto --set precision=fp32 --resume latest
else
  check "bf16 on this processor" 2 "precision: bf16 needs a processor" run refused bf16
  check "auto falls back" 0 "on .*, fp32" run best auto
fi

check "auto takes the CPU where there is no GPU" 0 "starling .* on .*threads?" "$train" small.json --device auto --set steps=2 --output device
finish
