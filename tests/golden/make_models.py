#!/usr/bin/env python3
"""Writes the golden files that tests/parity and tests/layers compare the models with. Needs torch, numpy and safetensors:

    python3 tests/golden/make_models.py

models/<case>.safetensors  a small net, in fp64: input, labels, all tensors (model.*), the training output, the loss, every gradient
                           (grad.*), the buffers after the pass (after.*) and the output in evaluation mode afterwards
models/<model>.safetensors a whole model whose tensors both sides make from a hash; of gradients only norm and three projections
models/names.json          names and shapes of tensors, parameter counts

The models are written out here, since torchvision may not be installed: the CIFAR ResNets follow akamaster/pytorch_resnet_cifar10,
the wide ones xternalz/WideResNet-pytorch, airbench arXiv 2404.00498, the others torchvision, in architecture and names.
"""
import json
import math
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

OUT = pathlib.Path(__file__).parent / "models"


# --- sequential, as Starling's config describes it ---------------------------------------------------------------------------

class ChannelLayerNorm(nn.LayerNorm):
    """Over the channels of every pixel: Starling's last dimension."""

    def forward(self, x):
        if x.dim() == 2:
            return super().forward(x)
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Residual(nn.Module):
    def __init__(self, layers, shortcut):
        super().__init__()
        self.layers = layers
        if shortcut is not None:
            self.shortcut = shortcut

    def forward(self, x):
        return self.layers(x) + (self.shortcut(x) if hasattr(self, "shortcut") else x)


def blur(x, kernel_size=3, stride=2, padding=None):
    """Zhang 2019 (arXiv 1904.11486), with zeros around the image: a binomial filter on every channel."""
    pair = lambda v: tuple(v) if isinstance(v, (tuple, list)) else (v, v)
    rows, columns = ([math.comb(k - 1, i) / 2 ** (k - 1) for i in range(k)] for k in pair(kernel_size))
    weight = torch.outer(torch.tensor(rows), torch.tensor(columns)).to(x.dtype)
    padding = tuple(k // 2 for k in pair(kernel_size)) if padding is None else padding
    return F.conv2d(x, weight.expand(x.shape[1], 1, -1, -1), stride=stride, padding=padding, groups=x.shape[1])


class Blur(nn.Module):
    def __init__(self, **args):
        super().__init__()
        self.args = args

    def forward(self, x):
        return blur(x, **self.args)


def blur_strided(model):
    """FFCV's rule for ResNets: convolutions with a stride and 16 input channels or more read a blurred image."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and max(module.stride) > 1 and module.in_channels >= 16:
            module.register_forward_pre_hook(lambda _, inputs: (blur(inputs[0], stride=1),))
    return model


def make_layer(spec, x):
    kind = spec["type"]
    args = {k: v for k, v in spec.items() if k not in ("type", "layers", "shortcut")}
    args = {k: tuple(v) if isinstance(v, list) else v for k, v in args.items()}
    if kind == "conv2d":
        return nn.Conv2d(x.shape[1], **args)
    if kind == "linear":
        return nn.Linear(x.shape[1], **args)
    if kind == "batch_norm":
        return (nn.BatchNorm2d if x.dim() == 4 else nn.BatchNorm1d)(x.shape[1], **args)
    if kind == "layer_norm":
        return ChannelLayerNorm(x.shape[1], **args)
    if kind == "residual":
        shortcut = make_sequential(spec["shortcut"], x) if "shortcut" in spec else None
        return Residual(make_sequential(spec["layers"], x), shortcut)
    if kind == "sequential":
        return make_sequential(spec["layers"], x)
    if kind == "global_avg_pool":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "relu6": nn.ReLU6, "flatten": nn.Flatten, "max_pool2d": nn.MaxPool2d,
             "avg_pool2d": nn.AvgPool2d, "blur_pool2d": Blur, "dropout": nn.Dropout}
    return plain[kind](**args)


def make_sequential(specs, x):
    layers = []
    for spec in specs:
        layers.append(make_layer(spec, x).double().eval())
        with torch.no_grad():
            x = layers[-1](x)
    return nn.Sequential(*layers)


# --- ResNets ---------------------------------------------------------------------------------------------------------------

class CifarBlock(nn.Module):
    def __init__(self, in_planes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.stride, self.extra = stride, planes - in_planes

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1 or self.extra:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra // 2))
        return F.relu(out + x)


class CifarResNet(nn.Module):
    def __init__(self, depth, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        planes = 16
        for stage, width in enumerate((16, 32, 64)):
            blocks = []
            for block in range((depth - 2) // 6):
                blocks.append(CifarBlock(planes, width, 2 if stage and not block else 1))
                planes = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride, wide=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)

    def body(self, x):
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))

    def forward(self, x):
        return F.relu(self.body(x) + (self.downsample(x) if hasattr(self, "downsample") else x))


class Bottleneck(BasicBlock):
    expansion = 4

    def __init__(self, inplanes, planes, stride, wide=1):
        nn.Module.__init__(self)
        self.conv1 = nn.Conv2d(inplanes, wide * planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide * planes)
        self.conv2 = nn.Conv2d(wide * planes, wide * planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide * planes)
        self.conv3 = nn.Conv2d(wide * planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)

    def body(self, x):
        return self.bn3(self.conv3(F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))))


class ResNet(nn.Module):
    def __init__(self, block, counts, classes=1000, cifar=False, wide=1):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = (lambda x: x) if cifar else nn.MaxPool2d(3, 2, 1)
        inplanes = 64
        for stage, count in enumerate(counts):
            blocks = []
            for index in range(count):
                planes, stride = 64 << stage, 2 if stage and not index else 1
                blocks.append(block(inplanes, planes, stride, wide))
                if stride != 1 or inplanes != planes * block.expansion:
                    blocks[-1].downsample = nn.Sequential(nn.Conv2d(inplanes, planes * block.expansion, 1, stride, bias=False),
                                                          nn.BatchNorm2d(planes * block.expansion))
                inplanes = planes * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inplanes, classes)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class WideBlock(nn.Module):
    def __init__(self, in_planes, planes, stride, dropout):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        if in_planes != planes:
            self.convShortcut = nn.Conv2d(in_planes, planes, 1, stride, bias=False)
        self.dropout = dropout

    def forward(self, x):
        active = F.relu(self.bn1(x))
        out = F.dropout(F.relu(self.bn2(self.conv1(active))), self.dropout, self.training)
        return self.conv2(out) + (self.convShortcut(active) if hasattr(self, "convShortcut") else x)


class WideGroup(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.layer = nn.Sequential(*blocks)

    def forward(self, x):
        return self.layer(x)


class WideResNet(nn.Module):
    def __init__(self, depth=28, width=10, dropout=0.0, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        planes = 16
        for group in range(3):
            blocks = []
            for block in range((depth - 4) // 6):
                wide = (16 << group) * width
                blocks.append(WideBlock(planes, wide, 2 if group and not block else 1, dropout))
                planes = wide
            setattr(self, f"block{group + 1}", WideGroup(blocks))
        self.bn1 = nn.BatchNorm2d(planes)
        self.fc = nn.Linear(planes, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.block3(self.block2(self.block1(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))


class Vgg11(nn.Module):
    def __init__(self, classes=10, batch_norm=False, cifar=False):
        super().__init__()
        layers, inputs = [], 3
        for planes in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
            if planes == "M":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                norm = [nn.BatchNorm2d(planes)] if batch_norm else []
                layers += [nn.Conv2d(inputs, planes, 3, padding=1), *norm, nn.ReLU()]
                inputs = planes
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1 if cifar else 7)
        self.classifier = nn.Linear(512, classes) if cifar else nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, classes))

    def forward(self, x):
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


def divisible(width):
    """The next multiple of 8, not less than 90 % of `width`."""
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * width else nearest


def conv_norm(inputs, planes, kernel, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(inputs, planes, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(planes),
                         nn.ReLU6())


class InvertedResidual(nn.Module):
    def __init__(self, inputs, planes, stride, expansion):
        super().__init__()
        inner = expansion * inputs
        expand = [conv_norm(inputs, inner, 1)] if expansion != 1 else []
        self.conv = nn.Sequential(*expand, conv_norm(inner, inner, 3, stride, inner), nn.Conv2d(inner, planes, 1, bias=False),
                                  nn.BatchNorm2d(planes))
        self.adds = stride == 1 and inputs == planes

    def forward(self, x):
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes=10, width=1.0, dropout=0.2):
        super().__init__()
        planes = divisible(32 * width)
        features = [conv_norm(3, planes, 3, 2)]
        for expansion, channels, blocks, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                                    (6, 160, 3, 2), (6, 320, 1, 1)):
            for block in range(blocks):
                features.append(InvertedResidual(planes, divisible(channels * width), stride if block == 0 else 1, expansion))
                planes = divisible(channels * width)
        last = divisible(1280 * max(1.0, width))
        self.features = nn.Sequential(*features, conv_norm(planes, last, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class ConvNextBlock(nn.Module):
    def __init__(self, planes, scale, drop):
        super().__init__()
        self.layer_scale = nn.Parameter(torch.full((planes, 1, 1), scale))
        self.block = nn.Sequential(nn.Conv2d(planes, planes, 7, padding=3, groups=planes), nn.Identity(), nn.LayerNorm(planes, eps=1e-6),
                                   nn.Linear(planes, 4 * planes), nn.GELU(), nn.Linear(4 * planes, planes))
        self.drop = drop

    def forward(self, x):
        y = self.layer_scale * self.block[2:](self.block[0](x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.training and self.drop > 0:
            y = y * (torch.rand(len(x), 1, 1, 1) >= self.drop) / (1 - self.drop)
        return x + y


class ConvNext(nn.Module):
    def __init__(self, blocks=(3, 3, 9, 3), widths=(96, 192, 384, 768), classes=10, scale=1e-6, drop=0.1):
        super().__init__()
        features = [nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), ChannelLayerNorm(widths[0], eps=1e-6))]
        drops = [drop * i / (sum(blocks) - 1) for i in range(sum(blocks))]
        for stage, (count, planes) in enumerate(zip(blocks, widths)):
            if stage:
                features.append(nn.Sequential(ChannelLayerNorm(widths[stage - 1], eps=1e-6), nn.Conv2d(widths[stage - 1], planes, 2, 2)))
            features.append(nn.Sequential(*(ConvNextBlock(planes, scale, drops.pop(0)) for _ in range(count))))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.LayerNorm(widths[-1], eps=1e-6), nn.Flatten(), nn.Linear(widths[-1], classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class AirbenchGroup(nn.Module):
    def __init__(self, inputs, planes, residual):
        super().__init__()
        for i in range(3 if residual else 2):
            setattr(self, f"conv{i + 1}", nn.Conv2d(planes if i else inputs, planes, 3, padding=1, bias=False))
            norm = nn.BatchNorm2d(planes, eps=1e-12, momentum=0.4)
            norm.weight.requires_grad = False
            setattr(self, f"norm{i + 1}", norm)
        self.residual = residual

    def forward(self, x):
        first = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        x = F.gelu(self.norm2(self.conv2(first)))
        return F.gelu(self.norm3(self.conv3(x)) + first) if self.residual else x


def airbench(large=False, classes=10):
    class Scale(nn.Module):
        def forward(self, x):
            return x / 9

    whiten = nn.Conv2d(3, 24, 2)
    whiten.weight.requires_grad = False
    widths = (128, 384, 512) if large else (64, 256, 256)
    groups = [AirbenchGroup(inputs, planes, large) for inputs, planes in zip((24, *widths), widths)]
    return nn.Sequential(whiten, nn.GELU(), *groups, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(widths[-1], classes, bias=False), Scale())


# --- numbers that both sides can make ------------------------------------------------------------------------------------------

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


# --- cases -----------------------------------------------------------------------------------------------------------------

def conv(out, kernel, **more):
    return {"type": "conv2d", "out_channels": out, "kernel_size": kernel, **more}


def layer(kind, **more):
    return {"type": kind, **more}


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
}

WHOLE = {
    "resnet20": ((2, 3, 16, 16), 0.1, {"type": "resnet20"}, lambda: CifarResNet(20, 5)),
    "resnet18_cifar": ((2, 3, 16, 16), 0.1, {"type": "resnet18", "stem": "cifar"}, lambda: ResNet(BasicBlock, (2, 2, 2, 2), 5, True)),
    "resnet50": ((2, 3, 48, 48), 0.0, {"type": "resnet50"}, lambda: ResNet(Bottleneck, (3, 4, 6, 3), 5)),
    "resnet18_blur": ((2, 3, 17, 16), 0.1, {"type": "resnet18", "stem": "cifar", "blur_pool": True},
                      lambda: blur_strided(ResNet(BasicBlock, (2, 2, 2, 2), 5, True))),
    "resnet50_blur": ((2, 3, 48, 44), 0.0, {"type": "resnet50", "blur_pool": True}, lambda: blur_strided(ResNet(Bottleneck, (3, 4, 6, 3), 5))),
    "wide_resnet": ((2, 3, 16, 16), 0.1, {"type": "wide_resnet", "depth": 16, "width": 2}, lambda: WideResNet(16, 2, 0.0, 5)),
    # Width 1: the first group's shortcuts are all plain.
    "wide_resnet_narrow": ((2, 3, 16, 16), 0.0, {"type": "wide_resnet", "depth": 10, "width": 1}, lambda: WideResNet(10, 1, 0.0, 5)),
    "vgg11_cifar": ((2, 3, 64, 32), 0.1, {"type": "vgg11", "classifier": "cifar"}, lambda: Vgg11(5, False, True)),
    "mobilenet_v2": ((4, 3, 49, 40), 0.1, {"type": "mobilenet_v2", "width_mult": 0.25, "dropout": 0.0}, lambda: MobileNetV2(5, 0.25, 0.0)),
    "convnext_tiny": ((2, 3, 70, 64), 0.1, {"type": "convnext_tiny", "stochastic_depth": 0.0}, lambda: ConvNext(classes=5, drop=0.0)),
    "airbench": ((2, 3, 32, 32), 0.2, {"type": "airbench"}, lambda: airbench(False, 5)),
    "airbench96": ((2, 3, 32, 34), 0.0, {"type": "airbench", "variant": "96"}, lambda: airbench(True, 5)),
    "vgg11_bn_cifar": ((3, 3, 64, 32), 0.1, {"type": "vgg11", "classifier": "cifar", "batch_norm": True}, lambda: Vgg11(5, True, True)),
}


def run(model, x, labels, smoothing, out, gradient):
    """One training pass and one in evaluation mode after it; `gradient` shortens what is stored of a gradient or buffer."""
    model.train()
    x.requires_grad_()
    output = model(x)
    loss = F.cross_entropy(output, labels, label_smoothing=smoothing)
    loss.backward()
    out["output"], out["loss"], out["grad.input"] = output, loss, gradient(x.grad)
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
        x, labels = torch.randn(shape), torch.randint(0, 5, (shape[0],))
        specs = config.get("layers")
        if name == "mlp":
            specs = [layer("flatten")]
            for width in config["hidden"]:
                specs += [layer("linear", out_features=width), layer("relu")]
            specs += [layer("linear", out_features=5)]
        model = make_sequential(specs, x)
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

    for name, (shape, smoothing, config, make) in WHOLE.items():
        model = make()
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
        counts = {f"resnet{d}": CifarResNet(d) for d in (20, 32, 44, 56, 110)}
        for depth, block, blocks in ((18, BasicBlock, (2, 2, 2, 2)), (34, BasicBlock, (3, 4, 6, 3)), (50, Bottleneck, (3, 4, 6, 3)),
                                     (101, Bottleneck, (3, 4, 23, 3)), (152, Bottleneck, (3, 8, 36, 3))):
            counts[f"resnet{depth}"] = ResNet(block, blocks, 10)
        counts["wide_resnet50_2"] = ResNet(Bottleneck, (3, 4, 6, 3), 10, wide=2)
        counts["wide_resnet"] = WideResNet()
        counts["vgg11"] = Vgg11()
        counts["mobilenet_v2"] = MobileNetV2()
        counts["convnext_tiny"] = ConvNext()
        counts["airbench"] = airbench()
    names = {
        "tensors": {name: describe(counts[name]) for name in ("resnet20", "resnet18", "resnet50", "wide_resnet50_2", "wide_resnet", "vgg11",
                                                               "mobilenet_v2", "convnext_tiny", "airbench")},
        "parameter_counts": {name: sum(p.numel() for p in model.parameters() if p.requires_grad) for name, model in counts.items()},
    }
    (OUT / "names.json").write_text(json.dumps(names, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
