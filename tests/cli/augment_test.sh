#!/usr/bin/env bash
# data.augment: all of it on two ranks, resume to the bit, mixed targets, what is refused; and on the shim's GPU.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cat >run.json <<'END'
{
  "model": {"type": "sequential", "layers": [
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "global_avg_pool"}, {"type": "linear", "out_features": 4}]},
  "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 256, "test_limit": 64, "augment": {
    "crop_padding": 2, "padding_mode": "reflect", "flip": "alternating", "color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    "rand_augment": {"n": 2, "magnitude": 9}, "trivial_augment": true, "random_erasing": {"p": 0.25}, "cutout": 2, "mixup": 0.2, "cutmix": 1.0}},
  "loss": {"type": "cross_entropy", "label_smoothing": 0.1},
  "batch_size": 8,
  "steps": 24,
  "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
  "checkpoint": {"every_steps": 10, "keep": 9},
  "log_every": 1
}
END
two() { ranks 2 "$train" run.json "$@"; }
one() { "$train" run.json "$@"; }
export -f two one

for name in color_jitter crop_padding cutmix cutout flip mixup rand_augment random_erasing random_resized_crop trivial_augment; do
  check "--list augmentations has $name" 0 "^$name\$" "$train" --list augmentations
done
check "two ranks" 0 "" two --output straight
verify "tests measure accuracy as ever" grep -qE '"test_accuracy": (0|1)' straight/summary.json
cp -r straight again
rm -rf again/checkpoints/step-20 again/checkpoints/step-24 again/summary.json again/model.safetensors
check "resume in the middle of an epoch" 0 "continuing after step 10" two --output again --resume latest
verify "comes to the same bits" same_model straight/model.safetensors again/model.safetensors
check "with three threads that read" 0 "" two --output threads --set data.threads=3
verify "the same bits" same_model straight/model.safetensors threads/model.safetensors
check "without mixing" 0 "" two --output plain --set data.augment.mixup=0 --set data.augment.cutmix=0
verify "is another model" bash -c '! same_model straight/model.safetensors plain/model.safetensors'
check "bce_with_logits takes mixed targets" 0 "" one --output bce --set loss='{"type": "bce_with_logits"}' --set steps=2
check "a batch of one has no neighbour" 2 "batch_size: is 1, but data.augment.* mixes the images of a batch; needed: >= 2" one --dry-run --set batch_size=1
check "grey images have no hue" 2 "data.augment.color_jitter.hue: is for colours, the images are grey .28×28×1.; leave it out" one --dry-run --set \
  'data={"type": "fashion_mnist", "augment": {"color_jitter": {"hue": 0.1}}}'
check "an unknown flip" 2 "data.augment.flip: .*\"alternating\"" one --dry-run --set data.augment.flip=often
check "an unknown padding" 2 "data.augment.padding_mode: .*zero, reflect" one --dry-run --set data.augment.padding_mode=edge

shim=$(ls "$build"/lib/libstarling_cuda_shim.so* 2>/dev/null | head -1)
if [ -n "$shim" ]; then
  mkdir -p installed/bin installed/lib
  cp "$train" installed/bin
  for library in "$build"/lib/*.so*; do ln -s "$library" installed/lib; done
  ln -sf "$shim" installed/lib/libstarling_cuda.so
  check "on the CPU" 0 "" one --output cpu --set steps=6
  check "on the shim's GPU" 0 "on NVIDIA H200" installed/bin/starling-train run.json --device cuda --output cuda --set steps=6
  verify "the losses are the CPU's" python3 - <<'END'
import json
losses = [[json.loads(line)["loss"] for line in open(f"{run}/metrics.jsonl") if "\"loss\"" in line] for run in ("cpu", "cuda")]
assert len(losses[0]) == len(losses[1]) == 6 and all(abs(a - b) < 5e-4 * a for a, b in zip(*losses)), losses
END
fi
finish
