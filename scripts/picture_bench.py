#!/usr/bin/env python3
"""Reading and changing pictures: Starling against torchvision, in one run on one core a worker.

    python3 scripts/picture_bench.py make DEST CIFAR      2,000 JPEG files of 500×375 for the
                                                          measurement: DEST/<class>/*.jpg
    python3 scripts/picture_bench.py run DEST             random resized crops to 224: ours, PIL's,
                                                          torchvision's decode_jpeg and loader
    python3 scripts/picture_bench.py names DEST PICTURE   as many files as ImageNet has, with names
                                                          like its: links to PICTURE's bytes
    python3 scripts/picture_bench.py index DEST           what listing these files takes: time,
                                                          memory of 2 ranks
    python3 scripts/picture_bench.py augment              random changes, µs an image from bytes in
                                                          memory to normalised fp32: ours, and
                                                          torchvision's transforms.v2 on uint8
                                                          tensors, and on Pillow's images as its
                                                          reference scripts take them

make composes each picture of 12 photographs of CIFAR-10 (its official binary files in the folder
CIFAR), enlarged to 125×125 and stored at quality 90: an ordinary photograph's size in pixels and
bytes. Needs Pillow; run and augment need torch and torchvision, and build/bin/starling-bench.
index needs build/bin/starling-train, mpirun and strace, and a folder that names has made."""
import argparse
import io
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
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
            # a camera's noise
            tile = (tile + rng.normal(0, 4, tile.shape)).clip(0, 255).astype(np.uint8)
            picture.paste(Image.fromarray(tile), (125 * (k % 4), 125 * (k // 4)))
        path = pathlib.Path(destination) / str(records[chosen[0], 0]) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=90)
        total += path.stat().st_size
    print(f"{count} pictures of 500×375, {total / count / 1000:.0f} kB on average, in {destination}")


def torchvision_ms(files, decode):
    import torch
    from torchvision.transforms import v2
    torch.set_num_threads(1)
    crop = v2.RandomResizedCrop(224, antialias=True)
    begin = time.perf_counter()
    for data in files:
        crop(decode(data))
    return 1e3 * (time.perf_counter() - begin) / len(files)


def starling(folder, count, processes=1):
    """What each of so many processes at once tells of itself."""
    command = [ROOT / "build/bin/starling-bench", "pictures", folder, "--pictures", str(count), "--repeats", "1", "--json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    texts = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit("starling-bench failed")
    return [json.loads(text) for text in texts]


def loader_of(folder, paths, decode, workers=2):
    """Milliseconds a picture and worker of torchvision's ImageFolder behind PyTorch's DataLoader,
    as a function. `decode`: of torchvision.io, or None for Pillow's."""
    from torch.utils.data import DataLoader, Subset
    from torchvision import datasets, transforms
    from torchvision.io import ImageReadMode, read_file
    root = pathlib.Path(folder, "train")
    steps = [transforms.RandomResizedCrop(224, antialias=True)] + ([] if decode else [transforms.PILToTensor()])
    read = (lambda path: decode(read_file(path), mode=ImageReadMode.RGB)) if decode else datasets.folder.default_loader
    data = datasets.ImageFolder(root if root.is_dir() else folder, transforms.Compose(steps), loader=read)
    wanted = {str(path) for path in paths}
    chosen = Subset(data, [k for k, (path, _) in enumerate(data.samples) if path in wanted])
    loader = DataLoader(chosen, batch_size=20, num_workers=workers, persistent_workers=True)

    def measure():
        begin = time.perf_counter()
        for _ in loader:
            pass
        return 1e3 * (time.perf_counter() - begin) * workers / len(chosen)

    measure()  # starts the workers
    return measure


def run(folder, pictures, repeats):
    import torch
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_jpeg
    paths = sorted(pathlib.Path(folder).rglob("*.jpg"))
    paths = paths[::max(1, len(paths) // pictures)][:pictures]
    files = [path.read_bytes() for path in paths]
    tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    loaders = {"loader of PIL, 2": loader_of(folder, paths, None), "loader of decode_jpeg, 2": loader_of(folder, paths, decode_jpeg)}
    rows = {name: [] for name in ("PIL", "decode_jpeg", "starling", "library, whole pictures", *loaders, "starling, 2 at once")}
    for _ in range(repeats):  # in turns
        rows["PIL"].append(torchvision_ms(files, lambda data: Image.open(io.BytesIO(data)).convert("RGB")))
        rows["decode_jpeg"].append(torchvision_ms(tensors, lambda data: decode_jpeg(data, mode=ImageReadMode.RGB)))
        ours, = starling(folder, pictures)
        rows["starling"].append(ours["crop_ms"])
        rows["library, whole pictures"].append(ours["whole_ms"])
        for name, measure in loaders.items():
            rows[name].append(measure())
        rows["starling, 2 at once"].append(statistics.mean(one["crop_ms"] for one in starling(folder, pictures, 2)))
    medians = {name: statistics.median(times) for name, times in rows.items()}
    for name, ms in medians.items():
        print(f"{name:<26} {ms:8.3f} ms a picture {medians['PIL'] / ms:6.2f} × PIL's rate")
    print(f"rate over the library's on whole pictures: {medians['library, whole pictures'] / medians['starling']:.2f}")
    for name in loaders:
        print(f"a core's rate over the {name}: {medians[name] / medians['starling, 2 at once']:.2f}")
    print(f"rate over torchvision's with PIL: {medians['PIL'] / medians['starling']:.2f}, with decode_jpeg: {medians['decode_jpeg'] / medians['starling']:.2f}")


def names(destination, picture, classes=1000, files=1281):
    """destination/train and destination/val, of 1000 classes of 1281 and 1 files."""
    data = pathlib.Path(picture).read_bytes()
    rng = random.Random(1)
    folders = sorted(f"n{number:08}" for number in rng.sample(range(1440764, 15075141), classes))
    for part, count in (("train", files), ("val", 1)):
        for folder in folders:
            path = pathlib.Path(destination, part, folder)
            path.mkdir(parents=True)
            numbers = rng.sample(range(1, 30000), count)
            first, *others = (path / (f"{folder}_{n}.JPEG" if part == "train" else f"ILSVRC2012_val_{n:08}.JPEG") for n in numbers)
            first.write_bytes(data)
            for other in others:
                os.link(first, other)


def index(folder, repeats):
    train = ROOT / "build/bin/starling-train"
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        config = work / "run.json"
        config.write_text(json.dumps({
            "model": {"type": "resnet20"}, "batch_size": 4, "steps": 10**8, "log_every": 1, "optimizer": {"type": "sgd", "lr": 1e-3},
            "data": {"type": "image_folder", "path": str(pathlib.Path(folder).resolve()), "image_size": 16, "test_resize": 16,
                     "test_crop": 16}}))
        times = []
        # ms from the first class folder of train/ to val/. Other calls of the system run at full
        # speed.
        for _ in range(repeats):
            subprocess.run(["strace", "-f", "--seccomp-bpf", "-ttt", "-e", "trace=openat", "-o", work / "calls", train, config, "--set",
                            "steps=1", "--output", tempfile.mkdtemp(dir=work) + "/run"], check=True, capture_output=True)
            calls = (work / "calls").read_text().splitlines()
            begin = next(i for i, line in enumerate(calls) if "/train/" in line)
            end = next(line for line in calls[begin:] if '/val"' in line)
            times.append(1e3 * (float(end.split()[1]) - float(calls[begin].split()[1])))
        print(f"listed: {statistics.median(times):.0f} ms, median of {repeats}, {min(times):.0f} to {max(times):.0f}")
        job = subprocess.Popen(["mpirun", "--oversubscribe", "-n", "2", train, config, "--output", work / "long"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (work / "long" / "metrics.jsonl").exists() or len((work / "long" / "metrics.jsonl").read_text().splitlines()) < 10:
                if job.poll() is not None:
                    raise RuntimeError("training ended")
                time.sleep(0.2)
            for rank, process in enumerate(pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()):
                lines = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("Rss:", "Pss:", "Private_"))}
                print(f"rank {rank}: Rss {sizes['Rss'] * 1.024e-3:.1f} MB, Pss {sizes['Pss'] * 1.024e-3:.1f} MB, "
                      f"of its own {(sizes['Private_Clean'] + sizes['Private_Dirty']) * 1.024e-3:.1f} MB")
        finally:
            job.terminate()
            job.wait()


def augment(size, repeats):
    import torch
    from PIL import Image
    from torchvision.transforms import v2
    torch.set_num_threads(1)
    images = 128
    tensors = list((torch.rand(images, 3, size // 8, size // 8).mul(255).to(torch.uint8)).repeat_interleave(8, 2).repeat_interleave(8, 3))
    pictures = [Image.fromarray(tensor.permute(1, 2, 0).numpy()) for tensor in tensors]
    window = [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()]
    numbers = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    jitter, rand, trivial = v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandAugment(), v2.TrivialAugmentWide()
    rows = {"crop_padding, flip": window + numbers, "+ color_jitter": window + [jitter] + numbers, "+ rand_augment": window + [rand] + numbers,
            "+ trivial_augment": window + [trivial] + numbers, "+ random_erasing": window + numbers + [v2.RandomErasing(1.0)]}
    mixers = {"+ mixup": v2.MixUp(alpha=0.2, num_classes=100), "+ cutmix": v2.CutMix(alpha=1.0, num_classes=100)}
    labels = torch.arange(images) % 100

    def seconds(given, transform, mixer=None):
        begin = time.perf_counter()
        done = [transform(image) for image in given]
        if mixer:
            mixer(torch.stack(done), labels)
        return 1e6 * (time.perf_counter() - begin) / len(given)

    ours, theirs, pillow = {}, {}, {}
    for _ in range(repeats):
        text = subprocess.run([ROOT / "build/bin/starling-bench", "augment", "--size", str(size), "--repeats", "1", "--json"], check=True, capture_output=True,
                              text=True).stdout
        for name, time_taken in json.loads(text).items():
            ours.setdefault(name, []).append(time_taken)
        for name, steps in list(rows.items()) + [(name, window + numbers) for name in mixers]:
            transform = v2.Compose(steps)
            theirs.setdefault(name, []).append(seconds(tensors, transform, mixers.get(name)))
            pillow.setdefault(name, []).append(seconds(pictures, transform, mixers.get(name)))
    print(f"{'':<24} {'Starling':>10} {'tensors':>10} {'Pillow':>10}   µs an image of {size}×{size}, medians of {repeats} rounds in turns")
    for name, times in ours.items():
        own = statistics.median(times)
        if name in theirs:
            other, images = statistics.median(theirs[name]), statistics.median(pillow[name])
            print(f"{name:<24} {own:>10.2f} {other:>10.1f} {images:>10.1f}   {min(other, images) / own:.0f} × the faster of the two")
        else:
            print(f"{name:<24} {own:>10.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(function, *names, **numbers):
        one = commands.add_parser(function.__name__)
        for name in names:
            one.add_argument(name)
        for name, default in numbers.items():
            one.add_argument("--" + name, type=int, default=default)
        one.set_defaults(function=function)

    command(make, "destination", "cifar")
    command(run, "folder", pictures=200, repeats=5)
    command(names, "destination", "picture", files=1281)  # of each class in train/
    command(index, "folder", repeats=7)
    command(augment, size=32, repeats=7)
    arguments = vars(parser.parse_args())
    arguments.pop("function")(**arguments)


if __name__ == "__main__":
    sys.exit(main())
