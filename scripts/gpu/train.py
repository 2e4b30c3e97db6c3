"""A short training on a GPU ends where the same training on the CPU does, in fp32 there: the last
losses are close.

  mlp        40 steps of an MLP on made-up images
  resnet20   16 steps of CIFAR's ResNet-20: convolutions and batch norms
  augmented  the same with crops, colours and RandAugment, which the GPU does to the images' bytes
  pictures   on picture files that it draws, whose crops the GPU resizes

Exit status: 0 the losses are close, 1 they are not, or a run failed, 2 wrong usage.
"""

import os
import pathlib
import random
import threading

import jobs
import runs
from jobs import Failed
from runs import Run

# Relative, of the last loss. fp32 differs by the order of sums, the others by their rounding.
TOLERANCE = {"mlp": {"fp32": 0.02, "bf16": 0.1, "fp16": 0.1}, "resnet20": {"fp32": 0.05, "bf16": 0.1, "fp16": 0.1}}
TOLERANCE["augmented"] = TOLERANCE["pictures"] = TOLERANCE["resnet20"]
# of the first loss in fp32, the forward pass alone: one of the changes of images left out makes 3 %
# of difference
FIRST = 0.01
AUGMENT = {
    "resnet20": {"crop_padding": 4, "flip": True},
    "augmented": {"random_resized_crop": {"scale": [0.3, 1]}, "flip": True, "color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, "rand_augment": {"n": 2}},
    "pictures": {"random_resized_crop": {"scale": [0.1, 1]}, "flip": True},
}


def draw_pictures(folder):
    """48 pictures of two classes, stripes that lie or stand, none of one size."""
    draws = random.Random(1)
    for number in range(48):
        height, width, step = draws.randint(40, 160), draws.randint(40, 160), draws.randint(3, 9)
        colour = [draws.randint(0, 255) for _ in range(3)]
        lit = [[bytes(colour if ((y if number % 2 else x) // step) % 2 else (x % 256, y % 256, 128)) for x in range(width)] for y in range(height)]
        path = folder / "train" / ("lying" if number % 2 else "standing") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jobs.png(width, height, [b"".join(row) for row in lit]))


def data_of(model, small, work):
    if model != "pictures":
        return {"type": "synthetic", "limit": 16 if small else 512, "augment": AUGMENT[model], **({"image_size": 8} if small else {})}
    side = 16 if small else 64
    return {"type": "image_folder", "path": f"{work}/pictures", "image_size": side, "test_resize": side, "test_crop": side, "val_fraction": 0.1,
            "augment": AUGMENT[model]}  # fmt: skip


def settings(model, precision, small, work):
    # Others run beside it.
    common = {"seed": 1, "threads": max(1, len(os.sched_getaffinity(0)) // 4), "precision": precision, "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, "log_every": 1}
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


def losses(options, model, device, precision):
    run = Run(options, 1, device, settings(model, precision, options.small, options.work)).go()
    return [line["loss"] for line in jobs.metrics(run.out) if "loss" in line]


class References:
    """The CPU's losses of each model, which all precisions share: computed once, by whoever comes
    first."""

    def __init__(self, options):
        self.options, self.found = options, {model: (threading.Lock(), []) for model in options.models}

    def of(self, model):
        lock, found = self.found[model]
        with lock:
            if not found:
                try:
                    found.append(losses(self.options, model, "cpu", "fp32"))
                except Failed as error:
                    found.append(Failed(f"on the CPU: {error}"))
        if isinstance(found[0], Failed):
            raise found[0]
        return found[0]


def compare(options, references, model, precision):
    on_gpu, on_cpu = losses(options, model, "cuda", precision), references.of(model)
    if not on_cpu or len(on_cpu) != len(on_gpu):
        raise Failed(f"{len(on_cpu)} losses on the CPU, {len(on_gpu)} on the GPU")
    tolerance = TOLERANCE[model][precision]
    allowed = (FIRST if precision == "fp32" else tolerance, tolerance)
    # In between, fp16 skips some steps while it looks for its loss scale.
    apart = [abs(on_cpu[at] - on_gpu[at]) / abs(on_cpu[at]) for at in (0, -1)]
    said = (
        f"loss {on_cpu[-1]:.4f} on the CPU, {on_gpu[-1]:.4f} on the GPU after {len(on_cpu)} steps; "
        f"first and last are {apart[0]:.2g} and {apart[1]:.2g} apart, allowed {allowed[0]:g} and {allowed[1]:g}"
    )
    if not all(a <= b for a, b in zip(apart, allowed)):
        raise Failed(said)
    return said


def main():
    parser = runs.parser_of(__doc__, at_a_time=6)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="mlp, resnet20, augmented, pictures; default: all")
    parser.add_argument("--precisions", default="fp32,bf16,fp16")
    parser.add_argument("--small", action="store_true", help="sizes for the shim")
    options = parser.parse_args()
    options.models, precisions = options.models or list(TOLERANCE), options.precisions.split(",")
    for given, known in ((options.models, list(TOLERANCE)), (precisions, ["fp32", "bf16", "fp16"])):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"unknown {unknown[0]}; known: {', '.join(known)}")
    runs.begin(parser, options)
    if "pictures" in options.models:
        draw_pictures(pathlib.Path(options.work, "pictures"))
    references = References(options)

    def reference(model):  # a failure stands in the rows of those that ask for it
        try:
            references.of(model)
        except Failed:
            pass
        return True

    checks = [lambda model=model: reference(model) for model in options.models]
    for precision in precisions:
        for model in options.models:
            checks.append(lambda case=(model, precision): runs.row("training, " + ", ".join(case), compare, options, references, *case))
    return runs.finish(options, checks)
