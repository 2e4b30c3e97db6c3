#!/usr/bin/env python3
"""Writes the golden files that tests/parity and tests/layers compare the models with. Needs
torch, numpy and safetensors:

    python3 tests/golden/make_models.py

models/<case>.safetensors  a small net, in fp64: input, labels, all tensors (model.*), the
training output, the loss, every gradient
                           (grad.*), the buffers after the pass (after.*) and the output in evaluation mode
                            afterwards
models/<model>.safetensors a whole model whose tensors both sides make from a hash; of gradients
only norm and three projections
models/names.json          names and shapes of tensors, parameter counts

The models are those of examples/pytorch/models.py.
"""
import json
import math
import pathlib
import sys

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "examples" / "pytorch"))
from models import make_model  # noqa: E402

OUT = HERE / "models"


# --- numbers that both sides can make -------------------------------------------------------------

def hashed(seed, count):
    """count numbers in [0, 1): splitmix64 of seed * 2^32 + i, its upper 53 bits."""
    with np.errstate(over="ignore"):
        z = (np.uint64(seed) << np.uint64(32)) + np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def fill_hashed(model):
    """Tensor k of the parameters, then the buffers, from seed 1 + k, in PyTorch's element order."""
    tensors = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if b.dim()]
    with torch.no_grad():
        for k, (name, tensor) in enumerate(tensors):
            u = hashed(1 + k, tensor.numel())
            if tensor.dim() > 1:
                u = (2 * u - 1) * math.sqrt(6 / tensor[0].numel())
            elif name.endswith("bias") or name.endswith("mean"):
                u = 0.2 * u - 0.1
            else:
                u = 0.5 + u
            tensor.copy_(torch.from_numpy(u).view(tensor.shape))


def projections(tensor):
    """Norm, and the scalar products with three vectors of numbers in [-1, 1)."""
    x = tensor.detach().numpy().ravel()
    return np.array([np.linalg.norm(x)] + [np.dot(x, 2 * hashed(1000 + k, x.size) - 1) for k in range(3)])


# --- cases ----------------------------------------------------------------------------------------

def conv(out, kernel, **more):
    return {"type": "conv2d", "out_channels": out, "kernel_size": kernel, **more}


def layer(kind, **more):
    return {"type": kind, **more}


TOKENS = 9  # that there are; inputs of two dimensions are of these

CASES = {
    "convolutions": ((3, 3, 9, 8), 0.1, {"type": "sequential", "layers": [
        conv(4, 3, stride=2, padding=1), layer("silu"),
        conv(6, [3, 2], stride=[1, 2], padding=[2, 1], dilation=[2, 1], bias=False), layer("gelu"),
        conv(8, 3, padding=1, groups=2), layer("silu"), conv(8, 3, padding=1, groups=8, bias=False), layer("relu"),
        layer("global_avg_pool"), layer("linear", out_features=5)]}),
    "norms": ((4, 3, 5, 6), 0.1, {"type": "sequential", "layers": [
        conv(4, 3), layer("batch_norm"), layer("relu"), conv(6, 2), layer("batch_norm", eps=1e-3, momentum=0.3), layer("gelu"),
        layer("layer_norm"), layer("flatten"), layer("linear", out_features=7, bias=False), layer("batch_norm"), layer("relu"),
        layer("layer_norm", eps=1e-4), layer("linear", out_features=5)]}),
    "poolings": ((2, 2, 11, 10), 0.0, {"type": "sequential", "layers": [
        conv(4, 3, padding=1), layer("max_pool2d", kernel_size=3, stride=2, padding=1), layer("silu"),
        conv(4, 2), layer("avg_pool2d", kernel_size=[2, 3], stride=1, padding=[1, 1]),
        layer("max_pool2d", kernel_size=[2, 1]), layer("flatten"), layer("dropout", p=0.0), layer("linear", out_features=5)]}),
    "residuals": ((3, 3, 8, 8), 0.1, {"type": "sequential", "layers": [
        conv(4, 3, padding=1, bias=False), layer("batch_norm"), layer("relu"),
        layer("residual", layers=[conv(4, 3, padding=1, bias=False), layer("batch_norm"), layer("relu"),
                                  conv(4, 3, padding=1, bias=False), layer("batch_norm")]),
        layer("relu"),
        layer("residual", layers=[conv(6, 3, stride=2, padding=1), layer("batch_norm"), layer("relu"),
                                  conv(6, 3, padding=1), layer("batch_norm")],
              shortcut=[conv(6, 1, stride=2, bias=False), layer("batch_norm")]),
        layer("relu"),
        layer("residual", layers=[layer("relu"), conv(6, 3, padding=1), layer("silu")]),
        layer("sequential", layers=[layer("batch_norm"), layer("silu")]),
        layer("global_avg_pool"),
        layer("residual", layers=[layer("linear", out_features=6), layer("batch_norm")]),
        layer("linear", out_features=5)]}),
    "mlp": ((4, 3, 4, 3), 0.0, {"type": "mlp", "hidden": [9, 7]}),
    "blurs": ((2, 3, 11, 10), 0.1, {"type": "sequential", "layers": [
        conv(4, 3, padding=1), layer("blur_pool2d"), layer("silu"), conv(4, 2),
        layer("blur_pool2d", kernel_size=[2, 4], stride=1, padding=[1, 0]), layer("blur_pool2d", kernel_size=[5, 1], padding=[2, 0]),
        layer("flatten"), layer("linear", out_features=5)]}),
    "rectified": ((4, 3, 5, 6), 0.1, {"type": "sequential", "layers": [
        conv(4, 3, padding=1, bias=False), layer("batch_norm"), layer("relu6"),
        layer("residual", layers=[conv(4, 3, padding=1, bias=False), layer("batch_norm")]), layer("relu6"),
        layer("flatten"), layer("linear", out_features=7), layer("batch_norm"), layer("relu6"), layer("linear", out_features=5)]}),
    "channels": ((3, 3, 4, 5), 0.1, {"type": "sequential", "layers": [
        layer("linear", out_features=6), layer("relu"), layer("layer_norm"), layer("linear", out_features=4, bias=False),
        layer("batch_norm"), layer("relu"), layer("flatten"), layer("linear", out_features=5)]}),
    "tokens": ((4, 6), 0.1, {"type": "sequential", "layers": [
        layer("embedding", num_embeddings=TOKENS, embedding_dim=5), layer("linear", out_features=8), layer("relu"), layer("batch_norm"),
        layer("linear", out_features=4, bias=False), layer("layer_norm"), layer("gelu"), layer("batch_norm"), layer("relu"),
        layer("flatten"), layer("linear", out_features=5)]}),
}

WHOLE = {
    "resnet20": ((2, 3, 16, 16), 0.1, {"type": "resnet20"}),
    "resnet18_cifar": ((2, 3, 16, 16), 0.1, {"type": "resnet18", "stem": "cifar"}),
    "resnet50": ((2, 3, 48, 48), 0.0, {"type": "resnet50"}),
    "resnet18_blur": ((2, 3, 17, 16), 0.1, {"type": "resnet18", "stem": "cifar", "blur_pool": True}),
    "resnet50_blur": ((2, 3, 48, 44), 0.0, {"type": "resnet50", "blur_pool": True}),
    "wide_resnet": ((2, 3, 16, 16), 0.1, {"type": "wide_resnet", "depth": 16, "width": 2}),
    # Width 1: the first group's shortcuts are all plain.
    "wide_resnet_narrow": ((2, 3, 16, 16), 0.0, {"type": "wide_resnet", "depth": 10, "width": 1}),
    "vgg11_cifar": ((2, 3, 64, 32), 0.1, {"type": "vgg11", "classifier": "cifar"}),
    "mobilenet_v2": ((4, 3, 49, 40), 0.1, {"type": "mobilenet_v2", "width_mult": 0.25, "dropout": 0.0}),
    "convnext_tiny": ((2, 3, 70, 64), 0.1, {"type": "convnext_tiny", "stochastic_depth": 0.0}),
    "airbench": ((2, 3, 32, 32), 0.2, {"type": "airbench"}),
    "airbench96": ((2, 3, 32, 34), 0.0, {"type": "airbench", "variant": "96"}),
    "vgg11_bn_cifar": ((3, 3, 64, 32), 0.1, {"type": "vgg11", "classifier": "cifar", "batch_norm": True}),
}


def image_of(shape):
    """(H, W, C) of inputs of that shape, or (T,) of tokens."""
    return (*shape[2:], shape[1])


def run(model, x, labels, smoothing, out, gradient):
    """One training pass and one in evaluation mode after it; `gradient` shortens what is stored of
    a gradient or buffer."""
    model.train()
    x.requires_grad_(x.is_floating_point())
    output = model(x)
    loss = F.cross_entropy(output, labels, label_smoothing=smoothing)
    loss.backward()
    out["output"], out["loss"] = output, loss
    if x.requires_grad:
        out["grad.input"] = gradient(x.grad)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            out["grad." + name] = gradient(parameter.grad)
    for name, value in model.named_buffers():
        out["after." + name] = gradient(value) if value.dim() else value
    model.eval()
    with torch.no_grad():
        out["output_eval"] = model(x)


def write(name, config, smoothing, tensors, out):
    arrays = {}
    for key, value in {**tensors, **out}.items():
        value = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        arrays[key] = np.array(value, order="C", copy=True)
    metadata = {"model": json.dumps({**config, "num_classes": 5}), "label_smoothing": str(smoothing)}
    save_file(arrays, OUT / f"{name}.safetensors", metadata)


def main():
    OUT.mkdir(exist_ok=True)
    torch.set_default_dtype(torch.float64)
    for number, (name, (shape, smoothing, config)) in enumerate(CASES.items()):
        torch.manual_seed(number)
        x = torch.randn(shape) if len(shape) == 4 else torch.randint(0, TOKENS, shape, dtype=torch.int32)
        labels = torch.randint(0, 5, (shape[0],))
        model = make_model(config, image_of(shape), 5)
        with torch.no_grad():  # no tensor at its initial 0 or 1
            for key, value in model.state_dict().items():
                if value.dim() == 1:
                    value.copy_(torch.rand(value.shape) + 0.5 if key.endswith(("weight", "var")) else 0.3 * torch.randn(value.shape))
        if name == "rectified":  # on both sides of 6
            with torch.no_grad():
                for module in model.modules():
                    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                        module.weight.mul_(5)
        tensors = {"input": x.clone(), "labels": labels, **{"model." + k: v.clone() for k, v in model.state_dict().items()}}
        out = {}
        run(model, x, labels, smoothing, out, lambda t: t)
        write(name, config, smoothing, tensors, out)

    for name, (shape, smoothing, config) in WHOLE.items():
        model = make_model(config, image_of(shape), 5)
        fill_hashed(model)
        x = torch.from_numpy(2 * hashed(0, math.prod(shape)) - 1).view(shape)
        labels = torch.arange(shape[0]) % 5
        out = {}
        run(model, x, labels, smoothing, out, projections)
        write(name, config, smoothing, {"input_shape": np.array(shape), "labels": labels}, out)

    def describe(model):
        shapes = lambda pairs: [[name, list(value.shape)] for name, value in pairs]
        return {"parameters": shapes(model.named_parameters()), "buffers": shapes(model.named_buffers())}

    with torch.device("meta"):
        names = [f"resnet{depth}" for depth in (20, 32, 44, 56, 110, 18, 34, 50, 101, 152)]
        names += ["wide_resnet50_2", "wide_resnet", "vgg11", "mobilenet_v2", "convnext_tiny", "airbench"]
        counts = {name: make_model({"type": name}, (32, 32, 3), 10) for name in names}
    described = {
        "tensors": {name: describe(counts[name]) for name in ("resnet20", "resnet18", "resnet50", "wide_resnet50_2", "wide_resnet", "vgg11",
                                                               "mobilenet_v2", "convnext_tiny", "airbench")},
        "parameter_counts": {name: sum(p.numel() for p in model.parameters() if p.requires_grad) for name, model in counts.items()},
    }
    (OUT / "names.json").write_text(json.dumps(described, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
