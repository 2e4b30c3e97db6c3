#!/usr/bin/env python3
"""What torchvision makes of two images, and the lists of its automatic augmentations:
golden/augmentations.json. Needs torch, torchvision and Pillow.

Colours are its operations on uint8 tensors. Images are moved as Pillow does it, and the script
insists that its tensors agree. Bytes are H×W×C in base64."""
import base64
import json
import math
import pathlib

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms.autoaugment import RandAugment, TrivialAugmentWide

rng = np.random.default_rng(5)
y, x = np.mgrid[0:21, 0:19]
smooth = np.stack([120 + 90 * np.sin(a * x + b * y) for a, b in ((0.2, 0.05), (-0.1, 0.3), (0.05, 0.15))], -1)
images = {
    "random": rng.integers(0, 256, (17, 16, 3)).astype(np.uint8),
    "smooth": (smooth + rng.normal(0, 2, smooth.shape)).clip(0, 255).astype(np.uint8),
    "grey": rng.integers(30, 220, (18, 15, 1)).astype(np.uint8),
}


def text(array):
    return base64.b64encode(np.ascontiguousarray(array)).decode()


def by_tensor(image, f):
    return f(torch.from_numpy(image.transpose(2, 0, 1).copy())).numpy().transpose(1, 2, 0)


def by_pillow(image, f):
    moved = np.asarray(f(Image.fromarray(image.squeeze()))).reshape(image.shape)
    share = (moved == by_tensor(image, f)).mean()
    assert share > 0.99, share  # another pixel where a coordinate falls between two
    return moved


def shear(horizontal, vertical):
    degrees = [math.degrees(math.atan(v)) for v in (horizontal, vertical)]
    return lambda image: F.affine(image, 0.0, [0, 0], 1.0, degrees, center=[0, 0], fill=[0.0] if torch.is_tensor(image) else 0)


def reflected(top, left, flip):
    def f(image):
        height, width = image.shape[-2:]
        image = F.crop(F.pad(image, 6, padding_mode="reflect"), top + 6, left + 6, height, width)
        return F.hflip(image) if flip else image

    return f


colours = [("brightness", F.adjust_brightness, (0.3, 1.45, 1.9)), ("contrast", F.adjust_contrast, (0.2, 1.7)), ("saturation", F.adjust_saturation, (0.1, 1.9)),
           ("hue", F.adjust_hue, (0.2, -0.35, 0.5)), ("sharpness", F.adjust_sharpness, (0.1, 1.9)), ("posterize", F.posterize, (3, 7)),
           ("solarize", F.solarize, (110.5, 0)), ("autocontrast", lambda i, _: F.autocontrast(i), (0,)), ("equalize", lambda i, _: F.equalize(i), (0,))]
moves = [("shear_x", lambda v: shear(v, 0.0), (0.27, -0.97)), ("shear_y", lambda v: shear(0.0, v), (-0.3, 0.61)),
         ("translate_x", lambda v: lambda i: F.affine(i, 0.0, [v, 0], 1.0, [0.0, 0.0]), (3, -5)),
         ("translate_y", lambda v: lambda i: F.affine(i, 0.0, [0, v], 1.0, [0.0, 0.0]), (4,)), ("rotate", lambda v: lambda i: F.rotate(i, v), (17.3, -101.7))]
cases = []
for name, image in images.items():
    for operation, f, values in colours:
        cases += [{"image": name, "operation": operation, "value": v, "bytes": text(by_tensor(image, lambda i, v=v, f=f: f(i, v)))} for v in values]
    for operation, f, values in moves:
        cases += [{"image": name, "operation": operation, "value": v, "bytes": text(by_pillow(image, f(v)))} for v in values]
    for flip in (False, True):
        cases.append({"image": name, "operation": "reflect", "value": int(flip), "bytes": text(by_tensor(image, reflected(-5, 3, flip)))})


def listed(space):
    return [{"operation": name, "signed": signed, "magnitudes": m.tolist() if m.ndim else []} for name, (m, signed) in space.items()]


result = {
    "images": {name: {"shape": image.shape, "bytes": text(image)} for name, image in images.items()},
    "cases": cases,
    "rand_augment": {"shape": [24, 40], "list": listed(RandAugment()._augmentation_space(31, (24, 40)))},
    "trivial_augment": {"list": listed(TrivialAugmentWide()._augmentation_space(31))},
}
path = pathlib.Path(__file__).parent / "augmentations.json"
path.write_text(json.dumps(result, indent=None).replace('{"image"', '\n{"image"') + "\n")
