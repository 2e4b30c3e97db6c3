#!/usr/bin/env python3
"""A short training on a GPU ends where the same training on the CPU does.

  scripts/gpu_train.py mlp bf16        40 steps of an MLP on made-up images, fp32 on the CPU against bf16 on the GPU
  scripts/gpu_train.py resnet20 fp16   16 steps of CIFAR's ResNet-20: convolutions and batch norms

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
        "data": {"type": "synthetic", "limit": 16 if small else 512, "augment": {"crop_padding": 4, "flip": True}, **({"image_size": 8} if small else {})},
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
    # The first is the forward pass alone; in between, fp16 skips some steps while it looks for its loss scale.
    apart = max(abs(a - b) / abs(a) for a, b in ((on_cpu[0], on_gpu[0]), (on_cpu[-1], on_gpu[-1])))
    said = f"loss {on_cpu[-1]:.4f} on the CPU, {on_gpu[-1]:.4f} on the GPU after {len(on_cpu)} steps; first and last are {apart:.2g} apart, allowed {tolerance:g}"
    if not apart <= tolerance:
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
