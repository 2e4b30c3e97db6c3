#!/usr/bin/env python3
"""Reading pictures: Starling against torchvision, in one run on one core a worker.

    python3 scripts/picture_bench.py make DEST CIFAR      2,000 JPEG files of 500×375 for the measurement: DEST/<class>/*.jpg
    python3 scripts/picture_bench.py run DEST             random resized crops to 224: ours, PIL's, torchvision's decode_jpeg

make composes each picture of 12 photographs of CIFAR-10 (its official binary files in the folder CIFAR), enlarged to 125×125 and stored at
quality 90: an ordinary photograph's size in pixels and bytes. Needs Pillow; run needs torch and torchvision, and build/bin/starling-bench.
"""
import argparse
import io
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def make(destination, cifar, count=2000):
    import numpy as np
    from PIL import Image
    file = next(pathlib.Path(cifar).rglob("data_batch_1.bin"))
    records = np.fromfile(file, np.uint8).reshape(-1, 3073)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    rng = np.random.default_rng(1)
    total = 0
    for number in range(count):
        picture = Image.new("RGB", (500, 375))
        chosen = rng.integers(0, len(images), 12)
        for k, index in enumerate(chosen):
            tile = np.asarray(Image.fromarray(images[index]).resize((125, 125), Image.BICUBIC)).astype(np.int16)
            tile = (tile + rng.normal(0, 4, tile.shape)).clip(0, 255).astype(np.uint8)  # a camera's noise
            picture.paste(Image.fromarray(tile), (125 * (k % 4), 125 * (k // 4)))
        path = pathlib.Path(destination) / str(records[chosen[0], 0]) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=90)
        total += path.stat().st_size
    print(f"{count} pictures of 500×375, {total / count / 1000:.0f} kB on average, in {destination}")


def torchvision_ms(files, decode, repeats):
    import torch
    from torchvision.transforms import v2
    torch.set_num_threads(1)
    crop = v2.RandomResizedCrop(224, antialias=True)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for data in files:
            crop(decode(data))
        times.append(1e3 * (time.perf_counter() - begin) / len(files))
    return statistics.median(times)


def run(folder, count, repeats):
    import torch
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_jpeg
    paths = sorted(pathlib.Path(folder).rglob("*.jpg"))
    paths = paths[::max(1, len(paths) // count)][:count]
    files = [path.read_bytes() for path in paths]
    tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    rows = {"PIL": [], "decode_jpeg": [], "starling": [], "library, whole pictures": []}
    for _ in range(repeats):  # in turns
        rows["PIL"].append(torchvision_ms(files, lambda data: Image.open(io.BytesIO(data)).convert("RGB"), 1))
        rows["decode_jpeg"].append(torchvision_ms(tensors, lambda data: decode_jpeg(data, mode=ImageReadMode.RGB), 1))
        text = subprocess.run([ROOT / "build/bin/starling-bench", "pictures", folder, "--pictures", str(count), "--repeats", "1", "--json"],
                              check=True, capture_output=True, text=True).stdout
        ours = json.loads(text)
        rows["starling"].append(ours["crop_ms"])
        rows["library, whole pictures"].append(ours["whole_ms"])
    medians = {name: statistics.median(times) for name, times in rows.items()}
    for name, ms in medians.items():
        print(f"{name:<26} {ms:8.3f} ms a picture {medians['PIL'] / ms:6.2f} × PIL's rate")
    print(f"rate over the library's on whole pictures: {medians['library, whole pictures'] / medians['starling']:.2f}")
    print(f"rate over torchvision's with PIL: {medians['PIL'] / medians['starling']:.2f}, with decode_jpeg: {medians['decode_jpeg'] / medians['starling']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("destination")
    making.add_argument("cifar")
    running = commands.add_parser("run")
    running.add_argument("folder")
    running.add_argument("--pictures", type=int, default=200)
    running.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.destination, arguments.cifar)
    else:
        run(arguments.folder, arguments.pictures, arguments.repeats)


if __name__ == "__main__":
    sys.exit(main())
