"""Starling's models in PyTorch, with the names and shapes of the tensors in a model.safetensors.

The CIFAR ResNets follow akamaster/pytorch_resnet_cifar10, the others torchvision, in architecture and names; they are written out here, so
that PyTorch alone is enough.
"""
import torch
from torch import nn
from torch.nn import functional as F

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
             "avg_pool2d": nn.AvgPool2d, "dropout": nn.Dropout}
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

    def __init__(self, inplanes, planes, stride):
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

    def __init__(self, inplanes, planes, stride):
        nn.Module.__init__(self)
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)

    def body(self, x):
        return self.bn3(self.conv3(F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))))


class ResNet(nn.Module):
    def __init__(self, block, counts, classes=1000, cifar=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = (lambda x: x) if cifar else nn.MaxPool2d(3, 2, 1)
        inplanes = 64
        for stage, count in enumerate(counts):
            blocks = []
            for index in range(count):
                planes, stride = 64 << stage, 2 if stage and not index else 1
                blocks.append(block(inplanes, planes, stride))
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


# --- by the config ---------------------------------------------------------------------------------------------------------

IMAGENET_RESNETS = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}
CIFAR_RESNETS = {f"resnet{depth}": depth for depth in (20, 32, 44, 56, 110)}


def make_model(config, image, classes):
    """The model that `model` of a config asks for. image: (H, W, C) of one input."""
    kind = config["type"]
    if kind in CIFAR_RESNETS:
        return CifarResNet(CIFAR_RESNETS[kind], classes)
    if kind in IMAGENET_RESNETS:
        block, counts = IMAGENET_RESNETS[kind]
        return ResNet(block, counts, classes, config.get("stem") == "cifar")
    x = torch.zeros((2, image[2], image[0], image[1]) if len(image) == 3 else (2, *image))
    if kind == "mlp":
        return make_mlp(config["hidden"], classes, x)
    if kind == "sequential":
        return make_sequential(config["layers"], x)
    raise ValueError(f"{kind} is not known here; known: mlp, sequential, " + ", ".join([*CIFAR_RESNETS, *IMAGENET_RESNETS]))


def make_mlp(hidden, classes, x):
    specs = [{"type": "flatten"}]
    for width in hidden:
        specs += [{"type": "linear", "out_features": width}, {"type": "relu"}]
    return make_sequential(specs + [{"type": "linear", "out_features": classes}], x)
