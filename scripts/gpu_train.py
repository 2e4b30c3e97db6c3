#!/usr/bin/env python3
"""A short training on a GPU ends where the same training on the CPU does.

  scripts/gpu_train.py mlp bf16        40 steps of an MLP on made-up images, fp32 on the CPU against bf16 on the GPU
  scripts/gpu_train.py resnet20 fp16   16 steps of CIFAR's ResNet-20: convolutions and batch norms
  scripts/gpu_train.py augmented fp32  the same with crops, colours and RandAugment, which the GPU does to the images' bytes
  scripts/gpu_train.py pictures fp32   on picture files that it draws, whose crops the GPU resizes

Options: --train build-gpu/bin/starling-train, --out FILE (a row for a report is appended), --seconds N (of one run), --small (sizes for the shim), --dry-run.
Exit status: 0 the last losses are close, 1 they are not, or a run failed, 2 wrong usage.
"""

import argparse
import json
import pathlib
import random
import struct
import sys
import zlib

sys.dont_write_bytecode = True  # the folder of scripts stays as it is
import gpu_ranks
from gpu_ranks import Run, Wrong

# Relative, of the last loss. fp32 differs by the order of sums, the others by their rounding.
TOLERANCE = {"mlp": {"fp32": 0.02, "bf16": 0.1, "fp16": 0.1}, "resnet20": {"fp32": 0.05, "bf16": 0.1, "fp16": 0.1}}
TOLERANCE["augmented"] = TOLERANCE["pictures"] = TOLERANCE["resnet20"]
FIRST = 0.01  # of the first loss in fp32, the forward pass alone: one of the changes of images left out makes 3 % of difference
AUGMENT = {
    "resnet20": {"crop_padding": 4, "flip": True},
    "augmented": {"random_resized_crop": {"scale": [0.3, 1]}, "flip": True, "color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, "rand_augment": {"n": 2}},
    "pictures": {"random_resized_crop": {"scale": [0.1, 1]}, "flip": True},
}


def png(width, height, rows):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b"")


def draw_pictures(folder):
    """48 pictures of two classes, stripes that lie or stand, none of one size."""
    draws = random.Random(1)
    for number in range(48):
        height, width, step = draws.randint(40, 160), draws.randint(40, 160), draws.randint(3, 9)
        colour = [draws.randint(0, 255) for _ in range(3)]
        lit = [[bytes(colour if ((y if number % 2 else x) // step) % 2 else (x % 256, y % 256, 128)) for x in range(width)] for y in range(height)]
        path = folder / "train" / ("lying" if number % 2 else "standing") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(width, height, [b"".join(row) for row in lit]))


def data_of(model, small, work):
    if model != "pictures":
        return {"type": "synthetic", "limit": 16 if small else 512, "augment": AUGMENT[model], **({"image_size": 8} if small else {})}
    side = 16 if small else 64
    return {"type": "image_folder", "path": f"{work}/pictures", "image_size": side, "test_resize": side, "test_crop": side, "val_fraction": 0.1,
            "augment": AUGMENT[model]}  # fmt: skip


def settings(model, precision, small, work):
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
        "data": data_of(model, small, work),
        "batch_size": 4 if small else 32 if model == "pictures" else 64,
        "steps": 2 if small else 16,
        "optimizer": {"type": "accum_adamw", "lr": 1e-4, "weight_decay": 0.1, "accum_iter": 4},
    }


def losses(run):
    return [line["loss"] for line in map(json.loads, (run.out / "metrics.jsonl").read_text().splitlines()) if "loss" in line]


def compare(options, precision):
    if options.model == "pictures" and not options.dry_run:
        draw_pictures(pathlib.Path(options.work, "pictures"))
    runs = [Run(options, 1, device, settings(options.model, computed, options.small, options.work)) for device, computed in (("cpu", "fp32"), ("cuda", precision))]
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
