#!/usr/bin/env python3
"""Torchvision's side of the measurements of pictures, as a line of JSON; one core a worker.

  make FOLDER CIFAR          2,000 JPEG files of 500×375, FOLDER/<class>/*.jpg: 12 photographs of
                             CIFAR-10 each, enlarged to 125×125, at quality 90: an ordinary
                             photograph's size in pixels and bytes
  crops FOLDER PIL|decode_jpeg   milliseconds of a random resized crop to 224 of 200 of them, alone and
                             by ImageFolder behind a DataLoader of 2 workers
  augment SIZE               microseconds an image of random changes, from bytes in memory to
                             normalised fp32: transforms.v2 on uint8 tensors and on Pillow's images
"""

import io
import json
import pathlib
import sys
import time


def make(folder, cifar, count=2000):
    import numpy as np
    from PIL import Image

    file = next(pathlib.Path(cifar).rglob("data_batch_1.bin"))
    records = np.fromfile(file, np.uint8).reshape(-1, 3073)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    rng, total = np.random.default_rng(1), 0
    for number in range(count):
        picture = Image.new("RGB", (500, 375))
        chosen = rng.integers(0, len(images), 12)
        for k, index in enumerate(chosen):
            tile = np.asarray(Image.fromarray(images[index]).resize((125, 125), Image.BICUBIC)).astype(np.int16)
            tile = (tile + rng.normal(0, 4, tile.shape)).clip(0, 255).astype(np.uint8)  # a camera's noise
            picture.paste(Image.fromarray(tile), (125 * (k % 4), 125 * (k // 4)))
        path = pathlib.Path(folder) / str(records[chosen[0], 0]) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=90)
        total += path.stat().st_size
    print(f"{count} pictures of 500×375, {total / count / 1000:.0f} kB on average, in {folder}")


def crops(folder, way, count=200, workers=2):
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Subset
    from torchvision import datasets, transforms
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    paths = sorted(pathlib.Path(folder).rglob("*.jpg"))
    paths = paths[:: max(1, len(paths) // count)][:count]
    crop = v2.RandomResizedCrop(224, antialias=True)
    if way == "PIL":
        given, decode = [path.read_bytes() for path in paths], lambda data: Image.open(io.BytesIO(data)).convert("RGB")
        steps, read = [transforms.PILToTensor()], datasets.folder.default_loader
    else:
        given = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths]
        decode = lambda data: decode_jpeg(data, mode=ImageReadMode.RGB)
        steps, read = [], lambda path: decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
    begin = time.perf_counter()
    for data in given:
        crop(decode(data))
    alone = 1e3 * (time.perf_counter() - begin) / len(given)
    root = pathlib.Path(folder, "train")
    data = datasets.ImageFolder(root if root.is_dir() else folder, transforms.Compose([transforms.RandomResizedCrop(224, antialias=True), *steps]), loader=read)
    wanted = {str(path) for path in paths}
    chosen = Subset(data, [k for k, (path, _) in enumerate(data.samples) if path in wanted])
    loader = DataLoader(chosen, batch_size=20, num_workers=workers, persistent_workers=True)
    for _ in range(2):  # the first time starts the workers
        begin = time.perf_counter()
        for _ in loader:
            pass
        together = 1e3 * (time.perf_counter() - begin) * workers / len(chosen)
    print(json.dumps({"a crop": alone, "a crop, 2 at once": together}))


def augment(size):
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    images, size = 128, int(size)
    tensors = list((torch.rand(images, 3, size // 8, size // 8).mul(255).to(torch.uint8)).repeat_interleave(8, 2).repeat_interleave(8, 3))
    pictures = [Image.fromarray(tensor.permute(1, 2, 0).numpy()) for tensor in tensors]
    window = [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()]
    numbers = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    jitter, rand, trivial = v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandAugment(), v2.TrivialAugmentWide()
    rows = {"crop_padding, flip": window + numbers, "+ color_jitter": window + [jitter] + numbers, "+ rand_augment": window + [rand] + numbers,
            "+ trivial_augment": window + [trivial] + numbers, "+ random_erasing": window + numbers + [v2.RandomErasing(1.0)],
            "+ mixup": window + numbers, "+ cutmix": window + numbers}  # fmt: skip
    mixers, labels = {"+ mixup": v2.MixUp(alpha=0.2, num_classes=100), "+ cutmix": v2.CutMix(alpha=1.0, num_classes=100)}, torch.arange(images) % 100

    def microseconds(given, transform, mixer):
        begin = time.perf_counter()
        done = [transform(image) for image in given]
        if mixer:
            mixer(torch.stack(done), labels)
        return 1e6 * (time.perf_counter() - begin) / len(given)

    print(json.dumps({who: {name: microseconds(given, v2.Compose(steps), mixers.get(name)) for name, steps in rows.items()} for who, given in (("tensors", tensors), ("Pillow", pictures))}))


if __name__ == "__main__":
    commands = {"make": make, "crops": crops, "augment": augment}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    commands[sys.argv[1]](*sys.argv[2:])
