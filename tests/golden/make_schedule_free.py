#!/usr/bin/env python3
"""Writes schedule_free.json beside this file: the parameters and what is evaluated of them, in
fp64, by the package schedulefree.

Needs torch and schedulefree. Two parameters of SIZE numbers each; the first one is decayed, the
second one is not."""

import importlib.metadata

import torch
from golden import rounded, write
from schedulefree import AdamWScheduleFree

SIZE, STEPS, KEPT, RATE = 6, 14, [1, 2, 7, 14], 0.05


def updates(x, gradients, decay, **arguments):
    """After each of the KEPT steps: what is trained, y, and what is evaluated, x."""
    parameters = [torch.nn.Parameter(value.clone()) for value in x]
    groups = [{"params": [parameters[0]], "weight_decay": decay}, {"params": [parameters[1]], "weight_decay": 0.0}]
    optimizer = AdamWScheduleFree(groups, lr=RATE, foreach=False, **arguments)
    optimizer.train()
    trained, evaluated = [], []
    for step in range(STEPS):
        for p, gradient in zip(parameters, gradients[step]):
            p.grad = gradient.clone()
        optimizer.step()
        if step + 1 not in KEPT:
            continue
        trained.append([p.detach().tolist() for p in parameters])
        before = [p.detach().clone() for p in parameters]
        optimizer.eval()
        evaluated.append([p.detach().tolist() for p in parameters])
        optimizer.train()
        for p, value in zip(parameters, before):  # without eval()'s rounding
            p.data.copy_(value)
    return {"y": trained, "x": evaluated}


def main():
    torch.manual_seed(13)
    x = rounded(torch.randn(2, SIZE, dtype=torch.float64))
    gradients = rounded(torch.randn(STEPS, 2, SIZE, dtype=torch.float64))
    cases = []
    for config in ({}, {"warmup_steps": 5}, {"warmup_steps": 30}, {"betas": (0.7, 0.95), "eps": 1e-4, "warmup_steps": 2}):
        for decay in (0.0, 0.2):
            cases.append({"config": {**config, "weight_decay": decay}, **updates(x, gradients, decay, **config)})
    document = {
        "made_by": f"make_schedule_free.py, torch {torch.__version__}, schedulefree {importlib.metadata.version('schedulefree')}",
        "x": x.tolist(),
        "gradients": gradients.tolist(),
        "rate": RATE,
        "kept_steps": KEPT,
        "cases": cases,
    }
    write("schedule_free", document, separators=(",", ":"))


if __name__ == "__main__":
    main()
