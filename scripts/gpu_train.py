#!/usr/bin/env python3
"""A short training on a GPU ends where the same training on the CPU does.

  scripts/gpu_train.py mlp bf16        40 steps of an MLP on made-up images, fp32 on the CPU against bf16 on the GPU
  scripts/gpu_train.py resnet20 fp16   16 steps of CIFAR's ResNet-20: convolutions and batch norms
  scripts/gpu_train.py augmented fp32  the same with crops, colours and RandAugment, which the GPU does to the images' bytes

Options: --train build-gpu/bin/starling-train, --out FILE (a row for a report is appended), --seconds N (of one run), --small (sizes for the shim), --dry-run.
Exit status: 0 the last losses are close, 1 they are not, or a run failed, 2 wrong usage.
"""

import argparse
import json
import sys

sys.dont_write_bytecode = True  # the folder of scripts stays as it is
import gpu_ranks
from gpu_ranks import Run, Wrong

# Relative, of the last loss. fp32 differs by the order of sums, the others by their rounding.
TOLERANCE = {"mlp": {"fp32": 0.02, "bf16": 0.1, "fp16": 0.1}, "resnet20": {"fp32": 0.05, "bf16": 0.1, "fp16": 0.1}}
TOLERANCE["augmented"] = TOLERANCE["resnet20"]
FIRST = 0.01  # of the first loss in fp32, the forward pass alone: one of the changes of images left out makes 3 % of difference
AUGMENT = {
    "resnet20": {"crop_padding": 4, "flip": True},
    "augmented": {"random_resized_crop": {"scale": [0.3, 1]}, "flip": True, "color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, "rand_augment": {"n": 2}},
}


def settings(model, precision, small):
    common = {"seed": 1, "precision": precision, "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, "log_every": 1}
    if model == "mlp":
        return {
            **common,
            "model": {"type": "mlp", "num_classes": 10, "hidden": [32, 32] if small else [512, 512]},
            "data": {"type": "synthetic", "limit": 64 if small else 2048, **({"image_size": 8} if small else {})},
            "batch_size": 16 if small else 64,
            "steps": 4 if small else 40,
            "optimizer": {"type": "adamw", "lr": 3e-4, "weight_decay": 0.01},
        }
    return {
        **common,
        "model": {"type": "resnet20", "num_classes": 10},
        "data": {"type": "synthetic", "limit": 16 if small else 512, "augment": AUGMENT[model], **({"image_size": 8} if small else {})},
        "batch_size": 4 if small else 64,
        "steps": 2 if small else 16,
        "optimizer": {"type": "accum_adamw", "lr": 1e-4, "weight_decay": 0.1, "accum_iter": 4},
    }


def losses(run):
    return [line["loss"] for line in map(json.loads, (run.out / "metrics.jsonl").read_text().splitlines()) if "loss" in line]


def compare(options, precision):
    runs = [Run(options, 1, device, settings(options.model, computed, options.small)) for device, computed in (("cpu", "fp32"), ("cuda", precision))]
    if options.dry_run:
        return [run.go() for run in runs] and "close losses"
    on_cpu, on_gpu = (losses(run.go()) for run in runs)
    if not on_cpu or len(on_cpu) != len(on_gpu):
        raise Wrong(f"{len(on_cpu)} losses on the CPU, {len(on_gpu)} on the GPU")
    tolerance = TOLERANCE[options.model][precision]
    allowed = (FIRST if precision == "fp32" else tolerance, tolerance)
    # In between, fp16 skips some steps while it looks for its loss scale.
    apart = [abs(on_cpu[at] - on_gpu[at]) / abs(on_cpu[at]) for at in (0, -1)]
    said = (
        f"loss {on_cpu[-1]:.4f} on the CPU, {on_gpu[-1]:.4f} on the GPU after {len(on_cpu)} steps; "
        f"first and last are {apart[0]:.2g} and {apart[1]:.2g} apart, allowed {allowed[0]:g} and {allowed[1]:g}"
    )
    if not all(a <= b for a, b in zip(apart, allowed)):
        raise Wrong(said)
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TOLERANCE))
    parser.add_argument("precision", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--small", action="store_true")
    gpu_ranks.common_arguments(parser)
    options = parser.parse_args()
    gpu_ranks.begin(parser, options)
    options.what = f"training, {options.model}"
    return gpu_ranks.finish(options, lambda: gpu_ranks.at_a_time(options, [options.precision], lambda precision: [gpu_ranks.row_of(options, compare, (precision,), "")]))


if __name__ == "__main__":
    sys.exit(main())
