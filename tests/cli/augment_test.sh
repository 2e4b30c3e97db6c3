#!/usr/bin/env bash
# data.augment, all of it, on the shim's GPU.
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
install_shim starling-train || die "libstarling_cuda_shim.so is missing; build it first"
check "on the CPU" 0 "" "$train" run.json --output cpu --set steps=6
check "on the shim's GPU" 0 "on NVIDIA H200" installed/bin/starling-train run.json --device cuda --output cuda --set steps=6
verify "the losses are the CPU's" python3 - <<'END'
import json
losses = [[json.loads(line)["loss"] for line in open(f"{run}/metrics.jsonl") if "\"loss\"" in line] for run in ("cpu", "cuda")]
assert len(losses[0]) == len(losses[1]) == 6 and all(abs(a - b) < 5e-4 * a for a, b in zip(*losses)), losses
END
finish
