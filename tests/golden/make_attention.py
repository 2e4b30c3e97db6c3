#!/usr/bin/env python3
"""Writes attention.json beside this file: values and gradients of attention and rotary position
embeddings, in fp64, by torch's scaled_dot_product_attention and MultiheadAttention, and by formulas
of Hugging Face's Llama (halves) and of RoFormer (pairs). Needs torch.

Inputs are make_functions.py's; the loss is the sum of the result weighted by such numbers."""

import torch
from golden import write
from make_functions import tensor
from torch.nn import functional as F

POSITIONS = torch.tensor([0, 3, 1, 40, 2000])


def attention(causal=False, mask=None, scale=None):
    def run(q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )

    return run


def masked():
    """The additive mask of tests/layers/attention_test.cpp: query 2 sees nothing."""
    mask = tensor(9, (4, 6))
    mask[mask > 0.5] = -torch.inf
    mask[2] = -torch.inf
    return mask


def angles(x):
    half = x.shape[-1] // 2
    frequency = 100.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    return POSITIONS.to(torch.float64)[:, None] * frequency


def rotary_halves(x):
    a, b = x.chunk(2, -1)
    cos, sin = angles(x).cos(), angles(x).sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotary_pairs(x):
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles(x).cos(), angles(x).sin()
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def layer(x, in_weight, in_bias, out_weight, out_bias):
    module = torch.nn.MultiheadAttention(6, 3, batch_first=True).to(torch.float64)
    weights = {
        "in_proj_weight": in_weight,
        "in_proj_bias": in_bias,
        "out_proj.weight": out_weight,
        "out_proj.bias": out_bias,
    }
    mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=torch.float64)
    options = {"attn_mask": mask, "is_causal": True, "need_weights": False}
    return torch.func.functional_call(module, weights, (x, x, x), options)[0]


Q, K = (2, 4, 4, 3), (2, 4, 6, 3)
CASES = {
    "plain": ([Q, K, K], attention()),
    "causal": ([Q, K, K], attention(causal=True)),
    "scaled": ([Q, K, K], attention(scale=0.3)),
    "masked": ([Q, K, K], attention(mask=masked())),
    "groups": ([Q, (2, 2, 6, 3), (2, 2, 6, 3)], attention(causal=True)),
    "rotary": ([(2, 3, 5, 6)], rotary_halves),
    "rotary pairs": ([(2, 3, 5, 6)], rotary_pairs),
    "layer": ([(2, 5, 6), (18, 6), (18,), (6, 6), (6,)], layer),
}


def main():
    document = {"torch": torch.__version__, "cases": []}
    for name, (shapes, function) in CASES.items():
        inputs = [tensor(k + 1, shape, -2, 2).requires_grad_() for k, shape in enumerate(shapes)]
        result = function(*inputs)
        (result * tensor(77, result.shape)).sum().backward()
        document["cases"].append(
            {
                "name": name,
                "shapes": [list(shape) for shape in shapes],
                "shape": list(result.shape),
                "value": result.flatten().tolist(),
                "gradients": [x.grad.flatten().tolist() for x in inputs],
            }
        )
    write("attention", document)


if __name__ == "__main__":
    main()
