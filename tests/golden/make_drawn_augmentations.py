#!/usr/bin/env python3
"""What torchvision makes of drawn crops, rectangles and mixtures, and how it draws them:
golden/drawn_augmentations.json. Needs torch and torchvision.

Draws differ from ours, so those of the first part are given: a box, or the share that a patched
distribution returns. Of what is drawn the second part has shares of draws at or below some
numbers. Bytes are H×W×C in base64, numbers N×H×W×C.
"""
import base64
import json
import math
import pathlib
import random

import numpy as np
import torch
import torchvision.transforms.v2 as v2
import torchvision.transforms.v2.functional as F
from PIL import Image

torch.manual_seed(5)
random.seed(5)
rng = np.random.default_rng(5)
DRAWS = 50000


def text(array):
    return base64.b64encode(np.ascontiguousarray(array)).decode()


def chw(image):
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(image, -1, -3)))


def hwc(tensor):
    return np.moveaxis(tensor.numpy(), -3, -1)


# Crops: smaller and larger than what they become, thin, at the rims, and the whole.
y, x = np.mgrid[0:34, 0:41]
waves = np.stack([127 + 100 * np.sin(a * x + b * y) for a, b in ((0.3, 0.1), (-0.1, 0.4), (0.05, 0.7))], -1)
picture = (waves + rng.normal(0, 12, waves.shape)).clip(0, 255).astype(np.uint8)
size = (16, 12)
crops = []
for way in ("bilinear", "bicubic", "nearest"):
    for top, left, height, width in ((0, 0, 34, 41), (5, 9, 24, 17), (29, 3, 5, 38), (1, 36, 30, 5), (11, 13, 8, 9)):
        mode = F.InterpolationMode(way)
        made = np.asarray(F.resized_crop(Image.fromarray(picture), top, left, height, width, size, mode))
        if way != "nearest":  # which tensors round otherwise than pictures
            tensor = hwc(F.resized_crop(chw(picture), top, left, height, width, size, mode, antialias=True))
            assert abs(tensor.astype(int) - made.astype(int)).max() <= 1
            made = tensor
        crops.append({"interpolation": way, "box": [top, left, height, width], "bytes": text(made)})

# A batch of which each byte tells its place, as tests/apps/data_test_support.h makes it.
BATCH, HEIGHT, WIDTH, CHANNELS, CLASSES = 4, 6, 5, 3, 10
pixels = HEIGHT * WIDTH * CHANNELS
raw = ((np.arange(BATCH)[:, None] * 31 + np.arange(pixels) * 5) % 256).astype(np.uint8).reshape(BATCH, HEIGHT, WIDTH, CHANNELS)
images = F.normalize(F.to_dtype(chw(raw), torch.float64, scale=True), [0.3, 0.4, 0.5], [0.2, 0.25, 0.3])
labels = torch.arange(BATCH) * 7 % CLASSES


def numbers(tensor):
    return [round(float(v), 7) for v in tensor.flatten()]


class Given:
    def __init__(self, share):
        self.share = share

    def sample(self, shape):
        return torch.tensor([self.share], dtype=torch.float64)


mixtures = []
for share in (0.0, 0.1375, 0.71, 1.0):
    way = v2.MixUp(alpha=1.0, num_classes=CLASSES)
    way._dist = Given(share)
    made, shares = way(images, labels)
    mixtures.append({"key": "mixup", "share": share, "box": [0, 0, 0, 0], "numbers": numbers(torch.movedim(made, -3, -1)), "labels": numbers(shares)})
for share in (0.0, 0.4, 0.75, 0.97, 1.0):
    way = v2.CutMix(alpha=1.0, num_classes=CLASSES)
    way._dist = Given(share)
    kept = {}
    make = way.make_params
    way.make_params = lambda inputs: kept.setdefault("p", make(inputs))
    made, shares = way(images, labels)
    left, top, right, bottom = kept["p"]["box"]
    mixtures.append({"key": "cutmix", "share": 1.0, "box": [top, left, bottom, right], "numbers": numbers(torch.movedim(made, -3, -1)), "labels": numbers(shares)})

erasings = []
for top, left, height, width, value in ((0, 0, 3, 2, 0.0), (2, 1, 4, 4, -1.5), (5, 4, 1, 1, 2.25)):
    made = F.erase(images, top, left, height, width, torch.tensor(value))
    erasings.append({"box": [top, left, top + height, left + width], "value": value, "numbers": numbers(torch.movedim(made, -3, -1))})


def shares_below(draws):
    """For each name, some of its values and the shares of draws that do not exceed them."""
    result = {}
    for name in draws[0]:
        values = np.sort([draw[name] for draw in draws])
        # A little beside values that occur, where rounding decides nothing.
        quantiles = [values[int(p * (len(values) - 1))] for p in (0, 0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)]
        points = sorted({round(float(v) + 1e-6, 7) for v in quantiles} | {round(float(values[0]) - 1e-6, 7)})
        result[name] = [[p, round(float(np.searchsorted(values, p, "right")) / len(values), 5)] for p in points]
    return result


def drawn_box(top, left, height, width, image, ratio_of):
    free = [(at + 0.5) / (size - side + 1) for at, size, side in ((top, image[0], height), (left, image[1], width))]
    ratio = height / width if ratio_of == "height" else width / height
    return {"area": height * width / (image[0] * image[1]), "log_ratio": math.log(ratio), "height": height, "width": width, "top": free[0], "left": free[1]}


def drawn(key, keys, image, draw):
    draws = [found for found in (draw() for _ in range(DRAWS)) if found is not None]
    return {"key": key, "keys": keys, "image": image, "share": round(len(draws) / DRAWS, 5), "below": shares_below(draws)}


distributions = []
# Pictures in which everything fits, in which many tries do not, of which some have none that does,
# and in which nothing fits: too wide and too tall.
for image, keys in (((300, 400), {}), ((70, 50), {"scale": [0.3, 1.0], "ratio": [0.4, 3.0]}), ((90, 150), {"scale": [0.8, 1.0]}), ((40, 400), {"scale": [0.4, 1.0]}),
                    ((333, 25), {"scale": [0.5, 0.9]})):
    way = v2.RandomResizedCrop(16, **keys)
    shape = [torch.empty(3, *image)]

    def crop():
        p = way.make_params(shape)
        return drawn_box(p["top"], p["left"], p["height"], p["width"], image, "width")

    distributions.append(drawn("random_resized_crop", keys, image, crop))
# Small ones, and large ones which often do not fit ten times in turn.
for image, keys in (((224, 160), {}), ((32, 32), {"scale": [0.1, 0.6], "ratio": [0.2, 2.0]}), ((64, 16), {"scale": [0.55, 0.9], "ratio": [0.5, 3.0]})):
    way = v2.RandomErasing(p=1.0, **keys)
    shape = [torch.empty(3, *image)]

    def erase():
        p = way.make_params(shape)
        return None if p["v"] is None else drawn_box(p["i"], p["j"], p["h"], p["w"], image, "height")

    distributions.append(drawn("random_erasing", keys, image, erase))
for alpha in (0.2, 1.0, 4.0):
    way = v2.MixUp(alpha=alpha, num_classes=CLASSES)
    distributions.append(drawn("mixup", alpha, (32, 32), lambda: {"share": way.make_params([])["lam"]}))
for alpha, image in ((0.3, (20, 30)), (1.0, (224, 160))):
    way = v2.CutMix(alpha=alpha, num_classes=CLASSES)
    shape = [torch.empty(3, *image)]

    def cut():
        p = way.make_params(shape)
        left, top, right, bottom = p["box"]
        return {"share": p["lam_adjusted"], "top": top, "left": left, "bottom": bottom, "right": right}

    distributions.append(drawn("cutmix", alpha, image, cut))

result = {
    "picture": {"shape": picture.shape, "bytes": text(picture)},
    "size": size,
    "crops": crops,
    "mixtures": mixtures,
    "erasings": erasings,
    "distributions": distributions,
}
path = pathlib.Path(__file__).parent / "drawn_augmentations.json"
path.write_text(json.dumps(result, indent=None, separators=(",", ":")).replace('{"interp', '\n{"interp').replace('{"key', '\n{"key').replace('{"box', '\n{"box') + "\n")
