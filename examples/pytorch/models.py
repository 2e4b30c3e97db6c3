"""Starling's models in PyTorch, with the names and shapes of the tensors in a model.safetensors.

Transformers are in attention_models.py. The CIFAR ResNets follow akamaster/pytorch_resnet_cifar10, the wide ones
xternalz/WideResNet-pytorch, airbench arXiv 2404.00498, the others torchvision, in architecture
and names; they are written out here, so that PyTorch alone is enough."""
import torch
from torch import nn
from torch.nn import functional as F

from attention_models import ATTENTION_MODELS
from layers import ChannelLayerNorm, blur, by_type, drop_samples, make_sequential

# --- ResNets --------------------------------------------------------------------------------------

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
    def __init__(self, depth, classes=10, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
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
    def __init__(self, block, counts, classes=1000, cifar=False, wide=1, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False) if cifar else nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
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
    def __init__(self, depth=28, width=10, dropout=0.0, classes=10, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
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
    def __init__(self, classes=10, batch_norm=False, cifar=False, dropout=0.5, channels=3):
        super().__init__()
        layers, inputs = [], channels
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
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(dropout),
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
    def __init__(self, classes=10, width=1.0, dropout=0.2, channels=3):
        super().__init__()
        planes = divisible(32 * width)
        features = [conv_norm(channels, planes, 3, 2)]
        for expansion, unscaled, blocks, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                                    (6, 160, 3, 2), (6, 320, 1, 1)):
            for block in range(blocks):
                features.append(InvertedResidual(planes, divisible(unscaled * width), stride if block == 0 else 1, expansion))
                planes = divisible(unscaled * width)
        last = divisible(1280 * max(1.0, width))
        self.features = nn.Sequential(*features, conv_norm(planes, last, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class ConvNextBlock(nn.Module):
    def __init__(self, planes, scale, drop):
        super().__init__()
        self.layer_scale = nn.Parameter(torch.full((planes, 1, 1), float(scale)))
        self.block = nn.Sequential(nn.Conv2d(planes, planes, 7, padding=3, groups=planes), nn.Identity(), nn.LayerNorm(planes, eps=1e-6),
                                   nn.Linear(planes, 4 * planes), nn.GELU(), nn.Linear(4 * planes, planes))
        self.drop = drop

    def forward(self, x):
        y = self.layer_scale * self.block[2:](self.block[0](x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + drop_samples(y, self.drop, self.training)


class ConvNext(nn.Module):
    def __init__(self, blocks=(3, 3, 9, 3), widths=(96, 192, 384, 768), classes=10, scale=1e-6, drop=0.1, channels=3):
        super().__init__()
        features = [nn.Sequential(nn.Conv2d(channels, widths[0], 4, 4), ChannelLayerNorm(widths[0], eps=1e-6))]
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


class Divide(nn.Module):
    def __init__(self, divisor):
        super().__init__()
        self.divisor = divisor

    def forward(self, x):
        return x / self.divisor


class Airbench(nn.Sequential):
    def __init__(self, large=False, classes=10, scale=1 / 9, channels=3):
        whiten = nn.Conv2d(channels, 8 * channels, 2)
        whiten.weight.requires_grad = False
        widths = (128, 384, 512) if large else (64, 256, 256)
        groups = [AirbenchGroup(inputs, planes, large) for inputs, planes in zip((8 * channels, *widths), widths)]
        super().__init__(whiten, nn.GELU(), *groups, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(widths[-1], classes, bias=False),
                         Divide(1 / scale))


# --- by the config --------------------------------------------------------------------------------

# Makers by the name in the config. image: (H, W, C) of one input.

def blur_strided(model):
    """FFCV's rule for ResNets: convolutions with a stride and 16 input channels or more read a
    blurred image."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and max(module.stride) > 1 and module.in_channels >= 16:
            module.register_forward_pre_hook(lambda _, inputs: (blur(inputs[0], stride=1),))
    return model


def cifar_resnet(depth):
    def make(image, classes, *, blur_pool=False):
        model = CifarResNet(depth, classes, image[2])
        return blur_strided(model) if blur_pool else model
    return make


def imagenet_resnet(block, counts, wide=1):
    def make(image, classes, *, stem="imagenet", blur_pool=False):
        model = ResNet(block, counts, classes, one_of("stem", stem, "imagenet", "cifar") == "cifar", wide, image[2])
        return blur_strided(model) if blur_pool else model
    return make


def wide_resnet(image, classes, *, depth=28, width=10, dropout=0.0):
    return WideResNet(depth, width, dropout, classes, image[2])


def vgg11(image, classes, *, batch_norm=False, classifier="imagenet", dropout=0.5):
    return Vgg11(classes, batch_norm, one_of("classifier", classifier, "imagenet", "cifar") == "cifar", dropout, image[2])


def mobilenet_v2(image, classes, *, width_mult=1.0, dropout=0.2):
    return MobileNetV2(classes, width_mult, dropout, image[2])


def convnext_tiny(image, classes, *, layer_scale=1e-6, stochastic_depth=0.1):
    return ConvNext(classes=classes, scale=layer_scale, drop=stochastic_depth, channels=image[2])


def airbench(image, classes, *, variant="94", output_scale=1 / 9):
    return Airbench(one_of("variant", variant, "94", "96") == "96", classes, output_scale, image[2])


def sequential(image, classes, *, layers):
    tokens = layers[:1] and layers[0].get("type") == "embedding"
    x = torch.zeros((2, image[2], image[0], image[1]) if len(image) == 3 else (2, *image), dtype=torch.int32 if tokens else None)
    return make_sequential(layers, x, "model.layers")


def mlp(image, classes, *, hidden=(512, 512)):
    layers = [{"type": "flatten"}]
    for width in hidden:
        layers += [{"type": "linear", "out_features": width}, {"type": "relu"}]
    return sequential(image, classes, layers=[*layers, {"type": "linear", "out_features": classes}])


def one_of(key, value, *known):
    if value not in known:
        raise ValueError(f"model.{key}: is {value}, which is not known here; known: {', '.join(known)}")
    return value


MODELS = {
    **{f"resnet{depth}": cifar_resnet(depth) for depth in (20, 32, 44, 56, 110)},
    "resnet18": imagenet_resnet(BasicBlock, (2, 2, 2, 2)),
    "resnet34": imagenet_resnet(BasicBlock, (3, 4, 6, 3)),
    "resnet50": imagenet_resnet(Bottleneck, (3, 4, 6, 3)),
    "resnet101": imagenet_resnet(Bottleneck, (3, 4, 23, 3)),
    "resnet152": imagenet_resnet(Bottleneck, (3, 8, 36, 3)),
    "wide_resnet50_2": imagenet_resnet(Bottleneck, (3, 4, 6, 3), wide=2),
    **ATTENTION_MODELS,
    **{maker.__name__: maker for maker in (wide_resnet, vgg11, mobilenet_v2, convnext_tiny, airbench, mlp, sequential)},
}


def make_model(config, image, classes):
    """The model that `model` of a config asks for. image: (H, W, C) of one input; classes: where
    the config has no num_classes. ValueError names a type or key that is not known here."""
    keys = {key: value for key, value in config.items() if key != "num_classes"}
    return by_type(MODELS, "model", keys, "model", tuple(image), config.get("num_classes", classes))
