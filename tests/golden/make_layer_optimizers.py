#!/usr/bin/env python3
"""Writes layer_optimizers.json beside this file: updates in fp64 by the optimizers of timm and
torch that work on whole layers.

Needs torch (2.9 or newer) and timm. Parameters: a matrix, a vector, a matrix of zeros, and a
matrix whose gradients are zero."""

import importlib.metadata

import torch
from golden import rounded, write
from timm.optim import Lamb, Lars

SHAPES = [[5, 8], [6], [2, 5], [3, 4]]
STEPS, KEPT = 8, [1, 4, 8]
RATES = [0.05, 0.1, 0.1, 0.08, 0.06, 0.04, 0.02, 0.01]


def updates(kind, decay, adapt_all, x, gradients, **arguments):
    """The parameters after each of the KEPT steps."""
    parameters = [torch.nn.Parameter(value.clone()) for value in x]
    groups = [
        {"params": [p], "weight_decay": decay if p.dim() > 1 else 0.0, "always_adapt": adapt_all or p.dim() > 1} for p in parameters
    ]
    optimizer = kind(groups, **arguments)
    result = []
    for step in range(STEPS):
        for p, gradient in zip(parameters, gradients[step]):
            p.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = RATES[step]
        optimizer.step()
        if step + 1 in KEPT:
            result.append([p.detach().flatten().tolist() for p in parameters])
    return result


class Muon:
    """torch.optim.Muon for matrices, and AdamW for vectors, as its documentation says. Its products
    are in fp64 as all the rest is."""

    def __init__(self, groups, momentum, nesterov, adjust_lr_fn, **adamw):
        self.param_groups = []
        self.optimizers = []
        for group in groups:
            del group["always_adapt"]
            if group["params"][0].dim() > 1:
                made = torch.optim.Muon([group], momentum=momentum, nesterov=nesterov, adjust_lr_fn=adjust_lr_fn)
            else:
                made = torch.optim.AdamW([group], **adamw)
            self.optimizers.append(made)
            self.param_groups += made.param_groups

    def step(self):
        rounding, torch.bfloat16 = torch.bfloat16, torch.float64
        for optimizer in self.optimizers:
            optimizer.step()
        torch.bfloat16 = rounding


def adafactor(groups, **arguments):
    for group in groups:
        del group["always_adapt"]
    return torch.optim.Adafactor(groups, foreach=False, **arguments)


def main():
    torch.manual_seed(11)
    x = [rounded(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]
    gradients = [[rounded(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES] for _ in range(STEPS)]
    x[2].zero_()
    for step in gradients:
        step[3].zero_()
    kinds = [
        ("lars", Lars, {"momentum": 0.0}, {}),
        ("lars", Lars, {"momentum": 0.9, "trust": 0.02}, {"momentum": 0.9, "trust_coeff": 0.02}),
        ("lars", Lars, {"momentum": 0.8, "nesterov": True, "eps": 0.01}, {"momentum": 0.8, "nesterov": True, "eps": 0.01}),
        ("lamb", Lamb, {}, {"max_grad_norm": None}),
        ("lamb", Lamb, {"betas": [0.8, 0.95], "eps": 1e-3}, {"max_grad_norm": None, "betas": (0.8, 0.95), "eps": 1e-3}),
    ]
    cases = []
    for name, kind, config, arguments in kinds:
        for decay in (0.0, 0.2):
            for adapt in ("weights", "all"):
                cases.append({"type": name, "config": {**config, "weight_decay": decay, "adapt": adapt},
                              "x": updates(kind, decay, adapt == "all", x, gradients, **arguments)})
    for config in (
        {"momentum": 0.95, "nesterov": True, "adjust_lr": "match_rms_adamw"},
        {"momentum": 0.6, "nesterov": False, "adjust_lr": "original"},
        {"momentum": 0.8, "nesterov": True, "adjust_lr": "spectral_unclamped", "betas": [0.8, 0.95], "eps": 1e-3},
    ):
        arguments = {key: value for key, value in config.items() if key != "adjust_lr"}
        for decay in (0.0, 0.2):
            cases.append({"type": "muon", "config": {**config, "weight_decay": decay},
                          "x": updates(Muon, decay, False, x, gradients, adjust_lr_fn=config["adjust_lr"], **arguments)})
    for config in (
        {},
        {"beta2_decay": -0.5, "eps": [1.1, 0.2], "d": 1.5},
        {"beta2_decay": -1.2, "eps": [None, 1e-4], "d": 4.0},
    ):
        arguments = {key: tuple(value) if key == "eps" else value for key, value in config.items()}
        for decay in (0.0, 0.2):
            cases.append({"type": "adafactor", "config": {**config, "weight_decay": decay},
                          "x": updates(adafactor, decay, False, x, gradients, **arguments)})
    document = {
        "made_by": f"make_layer_optimizers.py, torch {torch.__version__}, timm {importlib.metadata.version('timm')}",
        "shapes": SHAPES,
        "x": [value.flatten().tolist() for value in x],
        "gradients": [[value.flatten().tolist() for value in step] for step in gradients],
        "rates": RATES,
        "kept_steps": KEPT,
        "optimizers": cases,
    }
    write("layer_optimizers", document, separators=(",", ":"))


if __name__ == "__main__":
    main()
