#!/usr/bin/env python3
"""Random changes of images: Starling against torchvision, in turns in one run on one core.

    python3 scripts/augment_bench.py [--size 32] [--repeats 7]      µs an image, from bytes in memory to normalised fp32

torchvision's transforms.v2 on uint8 tensors, and on Pillow's images as its reference scripts take them. Needs torch and torchvision, and build/bin/starling-bench.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = 128


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    import torch
    from PIL import Image
    from torchvision.transforms import v2
    torch.set_num_threads(1)
    size = arguments.size
    tensors = list((torch.rand(IMAGES, 3, size // 8, size // 8).mul(255).to(torch.uint8)).repeat_interleave(8, 2).repeat_interleave(8, 3))
    pictures = [Image.fromarray(tensor.permute(1, 2, 0).numpy()) for tensor in tensors]
    window = [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()]
    numbers = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    jitter, rand, trivial = v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandAugment(), v2.TrivialAugmentWide()
    rows = {"crop_padding, flip": window + numbers, "+ color_jitter": window + [jitter] + numbers, "+ rand_augment": window + [rand] + numbers,
            "+ trivial_augment": window + [trivial] + numbers, "+ random_erasing": window + numbers + [v2.RandomErasing(1.0)]}
    mixers = {"+ mixup": v2.MixUp(alpha=0.2, num_classes=100), "+ cutmix": v2.CutMix(alpha=1.0, num_classes=100)}
    labels = torch.arange(IMAGES) % 100

    def seconds(images, transform, mixer=None):
        begin = time.perf_counter()
        done = [transform(image) for image in images]
        if mixer:
            mixer(torch.stack(done), labels)
        return 1e6 * (time.perf_counter() - begin) / len(images)

    ours, theirs, pillow = {}, {}, {}
    for _ in range(arguments.repeats):
        text = subprocess.run([ROOT / "build/bin/starling-bench", "augment", "--size", str(size), "--repeats", "1", "--json"], check=True, capture_output=True,
                              text=True).stdout
        for name, time_taken in json.loads(text).items():
            ours.setdefault(name, []).append(time_taken)
        for name, steps in list(rows.items()) + [(name, window + numbers) for name in mixers]:
            transform = v2.Compose(steps)
            theirs.setdefault(name, []).append(seconds(tensors, transform, mixers.get(name)))
            pillow.setdefault(name, []).append(seconds(pictures, transform, mixers.get(name)))
    print(f"{'':<24} {'Starling':>10} {'tensors':>10} {'Pillow':>10}   µs an image of {size}×{size}, medians of {arguments.repeats} rounds in turns")
    for name, times in ours.items():
        own = statistics.median(times)
        if name in theirs:
            other, images = statistics.median(theirs[name]), statistics.median(pillow[name])
            print(f"{name:<24} {own:>10.2f} {other:>10.1f} {images:>10.1f}   {min(other, images) / own:.0f} × the faster of the two")
        else:
            print(f"{name:<24} {own:>10.2f}")


if __name__ == "__main__":
    sys.exit(main())
