"""Starling's layers in PyTorch: what a config's lists of layers ask for, with the names of the
tensors in a model.safetensors."""
import inspect
import math

import torch
from torch import nn
from torch.nn import functional as F


def by_type(makers, what, config, place, *given):
    """What the maker of `config["type"]` makes of `given` and the other keys, which are its
    keyword-only arguments. A key that it does not have may change what is computed without changing
    a tensor's shape, so that none is ignored."""
    kind = config.get("type")
    if kind not in makers:
        raise ValueError(f"{place}.type: the {what} {kind} is not known here; known: {', '.join(makers)}")
    parameters = inspect.signature(makers[kind]).parameters.values()
    known = [p.name for p in parameters if p.kind == inspect.Parameter.KEYWORD_ONLY]
    keys = {key: value for key, value in config.items() if key != "type"}
    for key in keys:
        if key not in known:
            raise ValueError(f"{place}.{key}: is not known here of the {what} {kind}; known: {', '.join(known) or 'none'}")
    return makers[kind](*given, **keys)


def pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def on_last(function, x):
    """function(x) with Starling's last dimension behind, which in images are the channels."""
    return function(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if x.dim() == 4 else function(x)


def last(x):
    return x.shape[1 if x.dim() == 4 else -1]


class ChannelLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return on_last(super().forward, x)


class ChannelLinear(nn.Linear):
    def forward(self, x):
        return on_last(super().forward, x)


class LastBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x.flatten(0, -2)).view_as(x)


class EmbedInputs(nn.Module):
    """Numbers first … first + inputs - 1 of a vector, times a matrix, between the others."""

    def __init__(self, first, inputs, columns):
        super().__init__()
        self.first, self.inputs = first, inputs
        self.weight = nn.Parameter(torch.randn(columns, inputs))

    def forward(self, x):
        before, own, behind = x.split([self.first, self.inputs, x.shape[-1] - self.first - self.inputs], -1)
        return torch.cat([before, F.linear(own, self.weight), behind], -1)


class LayerScale(nn.Module):
    def __init__(self, shape, init):
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, float(init)))

    def forward(self, x):
        return self.weight * x


def drop_samples(x, p, training):
    """Stochastic depth: whole samples become 0, the others grow."""
    if not training or p == 0:
        return x
    kept = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device) >= p
    return x * kept / (1 - p)


class StochasticDepth(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return drop_samples(x, self.p, self.training)


def blur(x, kernel_size=3, stride=2, padding=None):
    """Zhang 2019 (arXiv 1904.11486), with zeros around the image: a binomial filter on every
    channel."""
    rows, columns = ([math.comb(k - 1, i) / 2 ** (k - 1) for i in range(k)] for k in pair(kernel_size))
    channels = int(x.shape[1])
    # From numbers alone: ONNX takes only weights of known shape.
    weight = torch.tensor([[[[row * column for column in columns] for row in rows]]] * channels, dtype=x.dtype, device=x.device)
    padding = tuple(k // 2 for k in pair(kernel_size)) if padding is None else padding
    return F.conv2d(x, weight, stride=stride, padding=padding, groups=channels)


class Blur(nn.Module):
    def __init__(self, **args):
        super().__init__()
        self.args = args

    def forward(self, x):
        return blur(x, **self.args)


class RmsNorm(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x):
        return on_last(lambda y: y * (y.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight, x)


class LastGroupNorm(nn.GroupNorm):
    """Of N×T×C too; of N×C×H×W and N×C as it is."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2) if x.dim() == 3 else super().forward(x)


def torch_dim(x, dim):
    """Starling's dimension of a batch: images are N×H×W×C there."""
    dim = dim + x.dim() if dim < 0 else dim
    return (0, 2, 3, 1)[dim] if x.dim() == 4 else dim


class Softmax(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return x.softmax(torch_dim(x, self.dim))


class Branches(nn.ModuleList):
    """The product of the branches' outputs; or they stand one behind the other along `dim`."""

    def __init__(self, branches, dim=None):
        super().__init__(branches)
        self.dim = dim

    def forward(self, x):
        values = [branch(x) for branch in self]
        return math.prod(values[1:], start=values[0]) if self.dim is None else torch.cat(values, torch_dim(values[0], self.dim))


class SqueezeExcite(nn.Module):
    def __init__(self, channels, few):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, few, 1)
        self.fc2 = nn.Conv2d(few, channels, 1)

    def forward(self, x):
        return x * self.fc2(self.fc1(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class SelfAttention(nn.Module):
    def __init__(self, width, heads, kv_heads, causal, dropout, bias):
        super().__init__()
        self.heads, self.kv_heads, self.causal, self.dropout = heads, kv_heads, causal, dropout
        rows = width // heads * (heads + 2 * kv_heads)
        self.in_proj_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(rows, width)))
        self.in_proj_bias = nn.Parameter(torch.zeros(rows)) if bias else None
        self.out_proj = nn.Linear(width, width, bias)

    def forward(self, x):
        heads = F.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (self.heads + 2 * self.kv_heads, -1)).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, None, self.dropout if self.training else 0.0, self.causal)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class Residual(nn.Module):
    def __init__(self, layers, shortcut):
        super().__init__()
        self.layers = layers
        if shortcut is not None:
            self.shortcut = shortcut

    def forward(self, x):
        return self.layers(x) + (self.shortcut(x) if hasattr(self, "shortcut") else x)


# Makers by the name in the config. x: what the layer gets, for its shape; place: of the layer in
# the config, for errors.

def conv2d(x, place, *, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True):
    return nn.Conv2d(x.shape[1], out_channels, pair(kernel_size), pair(stride), pair(padding), pair(dilation), groups, bias)


def linear(x, place, *, out_features, bias=True):
    return ChannelLinear(last(x), out_features, bias)


def batch_norm(x, place, *, eps=1e-5, momentum=0.1):
    return (nn.BatchNorm2d if x.dim() == 4 else LastBatchNorm)(last(x), eps, momentum)


def layer_norm(x, place, *, eps=1e-5):
    return ChannelLayerNorm(last(x), eps)


def embedding(x, place, *, num_embeddings, embedding_dim):
    return nn.Embedding(num_embeddings, embedding_dim)


def embed_inputs(x, place, *, first, inputs, embedding_dim):
    return EmbedInputs(first, inputs, embedding_dim)


def layer_scale(x, place, *, init=1e-6):
    return LayerScale((x.shape[1], 1, 1) if x.dim() == 4 else x.shape[-1:], init)


def max_pool2d(x, place, *, kernel_size, stride=None, padding=0):
    return nn.MaxPool2d(pair(kernel_size), stride and pair(stride), pair(padding))


def avg_pool2d(x, place, *, kernel_size, stride=None, padding=0):
    return nn.AvgPool2d(pair(kernel_size), stride and pair(stride), pair(padding))


def blur_pool2d(x, place, *, kernel_size=3, stride=2, padding=None):
    return Blur(kernel_size=kernel_size, stride=pair(stride), padding=padding if padding is None else pair(padding))


def global_avg_pool(x, place):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def dropout(x, place, *, p=0.5):
    return nn.Dropout(p)


def stochastic_depth(x, place, *, p=0.1):
    return StochasticDepth(p)


def residual(x, place, *, layers, shortcut=None):
    other = make_sequential(shortcut, x, f"{place}.shortcut") if shortcut else None
    return Residual(make_sequential(layers, x, f"{place}.layers"), other)


def sequential(x, place, *, layers):
    return make_sequential(layers, x, f"{place}.layers")


def rms_norm(x, place, *, eps=1e-5):
    return RmsNorm(last(x), eps)


def group_norm(x, place, *, num_groups, eps=1e-5, affine=True):
    return LastGroupNorm(num_groups, last(x), eps, affine)


def instance_norm(x, place, *, eps=1e-5, affine=False):
    return LastGroupNorm(last(x), last(x), eps, affine)


def softmax(x, place, *, dim=-1):
    return Softmax(dim)


def conv_transpose2d(x, place, *, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, output_padding=0):
    return nn.ConvTranspose2d(x.shape[1], out_channels, pair(kernel_size), pair(stride), pair(padding), pair(output_padding), groups, bias,
                              pair(dilation))


def upsample(x, place, *, scale_factor, mode="nearest"):
    return nn.Upsample(scale_factor=float(scale_factor), mode=mode, align_corners=False if mode == "bilinear" else None)


def adaptive_avg_pool2d(x, place, *, output_size):
    return nn.AdaptiveAvgPool2d(pair(output_size))


def squeeze_excite(x, place, *, reduction=16):
    return SqueezeExcite(x.shape[1], max(1, x.shape[1] // reduction))


def multi_head_attention(x, place, *, num_heads, kv_heads=0, causal=False, dropout=0.0, bias=True):
    return SelfAttention(last(x), num_heads, kv_heads or num_heads, causal, dropout, bias)


def make_branches(x, place, branches):
    return [make_sequential(layers, x, f"{place}.branches[{i}]") for i, layers in enumerate(branches)]


def multiply(x, place, *, branches):
    return Branches(make_branches(x, place, branches))


def concat(x, place, *, branches, dim=-1):
    return Branches(make_branches(x, place, branches), dim)


def checkpoint(x, place, *, layers):
    """What is computed again in Starling is what is computed."""
    return make_sequential(layers, x, f"{place}.layers")


def plain(module):
    return lambda x, place: module()


LAYERS = {maker.__name__: maker for maker in (conv2d, linear, batch_norm, layer_norm, embedding, embed_inputs, layer_scale, max_pool2d, avg_pool2d,
                                              blur_pool2d, global_avg_pool, dropout, stochastic_depth, residual, sequential, rms_norm,
                                              group_norm, instance_norm, softmax, conv_transpose2d, upsample, adaptive_avg_pool2d,
                                              squeeze_excite, multi_head_attention, multiply, concat, checkpoint)}
LAYERS |= {"relu": plain(nn.ReLU), "relu6": plain(nn.ReLU6), "gelu": plain(nn.GELU), "silu": plain(nn.SiLU), "flatten": plain(nn.Flatten),
           "sigmoid": plain(nn.Sigmoid), "tanh": plain(nn.Tanh), "softplus": plain(nn.Softplus)}


def make_sequential(specs, x, place):
    """The layers that a list of the config asks for, for inputs as x."""
    made = []
    for index, spec in enumerate(specs):
        made.append(by_type(LAYERS, "layer", spec, f"{place}[{index}]", x, f"{place}[{index}]").eval())
        with torch.no_grad():
            x = made[-1](x)
    return nn.Sequential(*made)
