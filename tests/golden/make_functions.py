#!/usr/bin/env python3
"""Writes functions.json beside this file: values and gradients of tensor functions, in fp64, by
PyTorch's functions of the same names. Needs torch.

Inputs are numbers from a hash, as tests/layers/support.cpp's noise(), scaled to a range; the loss is
the sum of the result weighted by such numbers."""

import torch
from golden import write
from torch.nn import functional as F

MASK = (1 << 64) - 1


def noise(seed, count):
    numbers = []
    for i in range(count):
        z = ((seed << 32) + i + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        numbers.append(2.0 * float(z >> 11) * 2.0**-53 - 1.0)
    return numbers


def tensor(seed, shape, low=-1.0, high=1.0):
    count = 1
    for size in shape:
        count *= size
    numbers = [low + (high - low) * (x + 1.0) / 2.0 for x in noise(seed, count)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def images(function, x):
    """A function of N×C×H×W as one of N×H×W×C."""
    return function(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def resize(factor, mode):
    return lambda x: F.interpolate(x, scale_factor=factor, mode=mode)


A, B, C = (2, 3, 4), (3, 1), (4,)
IMAGE = (2, 3, 2, 4)
TARGETS = torch.tensor([4, -100, 0, 2, -100, 2])
# By name: the inputs' shapes, their range, and the function. Names are those of
# tests/layers/functions_test.cpp.
CASES = {
    "add": ([A, B], (-2, 2), torch.add),
    "subtract": ([A, C], (-2, 2), torch.subtract),
    "multiply": ([B, A], (-2, 2), torch.multiply),
    "divide": ([A, B], (0.5, 2), torch.divide),
    "power": ([A, B], (0.5, 2), torch.pow),
    "maximum": ([A, C], (-1, 1), torch.maximum),
    "minimum": ([A, C], (-1, 1), torch.minimum),
    "maximum of equal": ([A], (-1, 1), lambda x: torch.maximum(x * 0.5, x - x * 0.5)),
    "negative": ([A], (-2, 2), torch.negative),
    "abs": ([A], (-2, 2), torch.abs),
    "square": ([A], (-2, 2), torch.square),
    "reciprocal": ([A], (0.5, 2), torch.reciprocal),
    "exp": ([A], (-2, 2), torch.exp),
    "log": ([A], (0.5, 3), torch.log),
    "log1p": ([A], (-0.5, 3), torch.log1p),
    "sqrt": ([A], (0.5, 3), torch.sqrt),
    "rsqrt": ([A], (0.5, 3), torch.rsqrt),
    "sin": ([A], (-4, 4), torch.sin),
    "cos": ([A], (-4, 4), torch.cos),
    "tanh": ([A], (-3, 3), torch.tanh),
    "sigmoid": ([A], (-4, 4), torch.sigmoid),
    "softplus": ([A], (-4, 4), F.softplus),
    "erf": ([A], (-2, 2), torch.erf),
    "relu": ([A], (-2, 2), torch.relu),
    "gelu": ([A], (-3, 3), F.gelu),
    "gelu tanh": ([A], (-3, 3), lambda x: F.gelu(x, approximate="tanh")),
    "silu": ([A], (-4, 4), F.silu),
    "clamp": ([A], (-2, 2), lambda x: torch.clamp(x, -0.5, 0.75)),
    "where": ([A, C], (-1, 1), lambda a, b: torch.where(b < 0.1, a, b * a)),
    "gated": ([A, A, A], (-2, 2), lambda x, y, z: F.gelu(x) * torch.sigmoid(y) + z),
    "chain": (
        [A, B, C],
        (0.5, 2),
        lambda x, y, z: torch.tanh(torch.exp(x * y) / z - torch.sqrt(z)) * torch.log(y + x),
    ),
    "sum": ([A], (-1, 1), lambda x: x.sum((0, 2))),
    "sum kept": ([A], (-1, 1), lambda x: x.sum(-2, keepdim=True)),
    "mean": ([A], (-1, 1), lambda x: x.mean((1, 2))),
    "mean of all": ([A], (-1, 1), lambda x: x.mean()),
    "max": ([A], (-1, 1), lambda x: x.amax(-1)),
    "min": ([A], (-1, 1), lambda x: x.amin((0, 1))),
    "max of equal": ([A], (-1, 1), lambda x: torch.clamp(x, -0.2, 0.2).amax(1)),
    "variance": ([A], (-1, 1), lambda x: x.var((-1,), correction=1)),
    "variance of a batch": ([A], (-1, 1), lambda x: x.var((0, 1), correction=0, keepdim=True)),
    "logsumexp": ([A], (-3, 3), lambda x: x.logsumexp((1, 2))),
    "norm": ([A], (-1, 1), lambda x: torch.linalg.vector_norm(x, dim=1)),
    "softmax": ([A], (-3, 3), lambda x: x.softmax(-1)),
    "softmax along 1": ([A], (-3, 3), lambda x: x.softmax(1)),
    "log_softmax": ([A], (-3, 3), lambda x: x.log_softmax(-1)),
    "log_softmax along 0": ([A], (-3, 3), lambda x: x.log_softmax(0)),
    "cumsum": ([A], (-1, 1), lambda x: x.cumsum(-1)),
    "cumsum along 1": ([A], (-1, 1), lambda x: x.cumsum(1)),
    "topk": ([A], (-1, 1), lambda x: x.topk(2, -1).values),
    "topk along 0": ([A], (-1, 1), lambda x: x.topk(1, 0).values),
    "scatter_add": (
        [A, (2, 2, 4)],
        (-1, 1),
        lambda x, y: x.scatter_add(
            1, torch.tensor([[[0, 2, 1, 2], [0, 1, 1, 0]], [[1, 1, 0, 2], [2, 2, 0, 2]]]), y
        ),
    ),
    "group_norm": (
        [IMAGE],
        (-1, 1),
        lambda x: images(lambda y: F.group_norm(y, 2, tensor(50, [4]), tensor(51, [4])), x),
    ),
    "group_norm of rows": ([(3, 6)], (-1, 1), lambda x: F.group_norm(x, 2)),
    "instance_norm": ([IMAGE], (-1, 1), lambda x: images(F.instance_norm, x)),
    "conv_transpose2d": (
        [IMAGE],
        (-1, 1),
        lambda x: images(
            lambda y: F.conv_transpose2d(
                y,
                tensor(52, [4, 3, 2, 3]).permute(0, 3, 1, 2),
                tensor(53, [6]),
                stride=(2, 3),
                padding=(1, 0),
                output_padding=(1, 2),
                groups=2,
                dilation=(1, 2),
            ),
            x,
        ),
    ),
    "upsample": ([IMAGE], (-1, 1), lambda x: images(resize(2.0, "nearest"), x)),
    "upsample smaller": ([IMAGE], (-1, 1), lambda x: images(resize(0.7, "nearest"), x)),
    "upsample bilinear": ([IMAGE], (-1, 1), lambda x: images(resize(2.0, "bilinear"), x)),
    "upsample bilinear by 1.75": ([IMAGE], (-1, 1), lambda x: images(resize(1.75, "bilinear"), x)),
    "adaptive_avg_pool2d": (
        [(2, 5, 3, 4)],
        (-1, 1),
        lambda x: images(lambda y: F.adaptive_avg_pool2d(y, (3, 2)), x),
    ),
    "cross_entropy": (
        [(2, 3, 5)],
        (-2, 2),
        lambda x: F.cross_entropy(x.flatten(0, 1), TARGETS, label_smoothing=0.1),
    ),
    "linear_cross_entropy": (
        [(2, 3, 4)],
        (-2, 2),
        lambda x: F.cross_entropy(F.linear(x, tensor(54, [5, 4])).flatten(0, 1), TARGETS),
    ),
    "matmul": ([(2, 3), (3, 4)], (-1, 1), torch.matmul),
    "matmul of batches": ([(2, 1, 3, 4), (3, 4, 2)], (-1, 1), torch.matmul),
    "matmul with one matrix": ([(2, 3, 4), (4, 5)], (-1, 1), torch.matmul),
    "matmul of a row": ([(4,), (2, 4, 3)], (-1, 1), torch.matmul),
    "matmul with a column": ([(2, 3, 4), (4,)], (-1, 1), torch.matmul),
    "matmul of vectors": ([(4,), (4,)], (-1, 1), torch.matmul),
    "permute": ([A], (-1, 1), lambda x: x.permute(2, 0, 1)),
    "transpose": ([A], (-1, 1), lambda x: x.transpose(0, -1)),
    "expand": ([B], (-1, 1), lambda x: x.expand(2, 3, 4)),
    "slice": ([A], (-1, 1), lambda x: x[:, :, 1:3]),
    "slice of the first": ([A], (-1, 1), lambda x: x[1:2]),
    "split": ([A], (-1, 1), lambda x: x.split([1, 2], 1)[1] * x.split([1, 2], 1)[0]),
    "concat": ([A, (2, 1, 4)], (-1, 1), lambda x, y: torch.cat([x, y, x], 1)),
    "stack": ([C, C], (-1, 1), lambda x, y: torch.stack([x, y], 1)),
    "pad": ([A], (-1, 1), lambda x: F.pad(x, (1, 2, 0, 1), value=0.25)),
    "flip": ([A], (-1, 1), lambda x: x.flip((0, 2))),
    "gather": (
        [A],
        (-1, 1),
        lambda x: x.gather(1, torch.tensor([[[0, 2, 1, 2]], [[1, 1, 0, 2]]])),
    ),
    "index_select": ([A], (-1, 1), lambda x: x.index_select(1, torch.tensor([2, 0, 2]))),
}


def main():
    document = {"torch": torch.__version__, "cases": []}
    for name, (shapes, (low, high), function) in CASES.items():
        inputs = [tensor(k + 1, shape, low, high).requires_grad_() for k, shape in enumerate(shapes)]
        result = function(*inputs)
        (result.contiguous() * tensor(77, result.shape)).sum().backward()
        document["cases"].append(
            {
                "name": name,
                "shapes": [list(shape) for shape in shapes],
                "range": [low, high],
                "shape": list(result.shape),
                "value": result.flatten().tolist(),
                "gradients": [x.grad.flatten().tolist() for x in inputs],
            }
        )
    write("functions", document)


if __name__ == "__main__":
    main()
