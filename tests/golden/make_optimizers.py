#!/usr/bin/env python3
"""Writes optimizers.json beside this file: updates and learning rates in fp64 by PyTorch and
decent-dp.

Needs torch and decent-dp; Lion, which neither has, is written out here. Two parameters of SIZE
numbers each; the first one is decayed, the second one is not."""

import importlib.metadata

import torch
from decent_dp.optim import AccumAdam, AccumAdamW, lr_scheduler_fn_cosine_with_warmup
from golden import rounded, write

SIZE, STEPS, KEPT = 6, 8, [1, 4, 8]
RATES = [0.05, 0.1, 0.1, 0.08, 0.06, 0.04, 0.02, 0.01]


def updates(make, x, gradients):
    """The parameters after each of the KEPT steps."""
    first, second = (torch.nn.Parameter(x[i].clone()) for i in (0, 1))
    optimizer = make(first, second)
    result = []
    for step in range(STEPS):
        first.grad, second.grad = gradients[step][0].clone(), gradients[step][1].clone()
        for group in optimizer.param_groups:
            group["lr"] = RATES[step]
        optimizer.step()
        if step + 1 in KEPT:
            result.append([first.detach().tolist(), second.detach().tolist()])
    return result


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, arXiv 2302.06675, algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (beta1 * m + (1 - beta1) * p.grad).sign()
                p.sub_(lr * (update + group["weight_decay"] * p))
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


def optimizer_cases(x, gradients):
    optim = torch.optim
    rmsprop, centered = {"alpha": 0.9, "momentum": 0.8}, {"alpha": 0.95, "eps": 1e-4, "momentum": 0.9, "centered": True}
    adagrad = {"lr_decay": 0.1, "eps": 1e-4, "initial_accumulator_value": 0.3}
    decoupled = {"eps": 1e-4, "momentum_decay": 0.1, "decoupled_weight_decay": True}
    kinds = [
        ("sgd", optim.SGD, {}, {}),
        ("sgd", optim.SGD, {"momentum": 0.9}, {"momentum": 0.9}),
        ("sgd", optim.SGD, {"momentum": 0.8, "nesterov": True}, {"momentum": 0.8, "nesterov": True}),
        ("adam", optim.Adam, {"betas": [0.9, 0.999]}, {"betas": (0.9, 0.999)}),
        ("adamw", optim.AdamW, {"betas": [0.8, 0.95], "eps": 1e-4}, {"betas": (0.8, 0.95), "eps": 1e-4}),
        ("accum_adam", AccumAdam, {"accum_iter": 3}, {"accum_iter": 3}),
        ("accum_adamw", AccumAdamW, {"accum_iter": 3}, {"accum_iter": 3}),
        ("accum_adamw", AccumAdamW, {"accum_iter": 1}, {"accum_iter": 1}),
        ("rmsprop", optim.RMSprop, {}, {}),
        ("rmsprop", optim.RMSprop, rmsprop, rmsprop),
        ("rmsprop", optim.RMSprop, {"centered": True}, {"centered": True}),
        ("rmsprop", optim.RMSprop, centered, centered),
        ("adagrad", optim.Adagrad, {}, {}),
        ("adagrad", optim.Adagrad, adagrad, adagrad),
        ("nadam", optim.NAdam, {}, {}),
        ("nadam", optim.NAdam, {"betas": [0.8, 0.95]}, {"betas": (0.8, 0.95)}),
        ("nadam", optim.NAdam, decoupled, decoupled),
        ("lion", Lion, {}, {}),
        ("lion", Lion, {"betas": [0.8, 0.95]}, {"betas": (0.8, 0.95)}),
    ]
    cases = []
    for name, kind, config, arguments in kinds:
        for decay in (0.0, 0.2):
            make = lambda a, b: kind([{"params": [a], "weight_decay": decay}, {"params": [b], "weight_decay": 0.0}], lr=0.1, **arguments)
            cases.append({"type": name, "config": {**config, "weight_decay": decay}, "x": updates(make, x, gradients)})
    return cases


def rates(make, base, count):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    scheduler = make(optimizer)
    result = []
    for _ in range(count):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return result


def schedule_cases():
    sched = torch.optim.lr_scheduler
    spe = 4  # steps per epoch; PyTorch's schedulers of epochs run on steps here

    def case(kind, config, make, base, total):
        return {"type": kind, "config": config, "base_lr": base, "total_steps": total, "steps_per_epoch": spe, "lr": rates(make, base, total)}

    return [
        case("cosine", {"min_lr": 1e-3}, lambda o: sched.CosineAnnealingLR(o, T_max=24, eta_min=1e-3), 0.1, 24),
        case("cosine", {"min_lr": 1e-6, "warmup_steps": 6, "warmup_factor": 0.01},
             lambda o: lr_scheduler_fn_cosine_with_warmup(o, t_max=18, t_warmup=6), 0.3, 24),
        case("multistep", {"milestones": [1, 2.5, 4], "gamma": 0.3},
             lambda o: sched.MultiStepLR(o, milestones=[4, 10, 16], gamma=0.3), 0.1, 24),
        case("step", {"step_size": 2, "gamma": 0.5}, lambda o: sched.StepLR(o, step_size=8, gamma=0.5), 0.1, 24),
        case("linear", {"final_lr": 0.01}, lambda o: sched.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=23), 0.1, 24),
        case("constant", {"warmup_steps": 5, "warmup_factor": 0.1},
             lambda o: sched.LinearLR(o, start_factor=0.1, total_iters=5), 0.2, 10),
    ]


def main():
    torch.set_default_dtype(torch.float64)  # of the product that NAdam keeps
    torch.manual_seed(7)
    x = rounded(torch.randn(2, SIZE, dtype=torch.float64))
    gradients = rounded(torch.randn(STEPS, 2, SIZE, dtype=torch.float64))
    document = {
        "made_by": f"make_optimizers.py, torch {torch.__version__}, decent-dp {importlib.metadata.version('decent-dp')}",
        "x": x.tolist(),
        "gradients": gradients.tolist(),
        "rates": RATES,
        "kept_steps": KEPT,
        "optimizers": optimizer_cases(x, gradients),
        "schedules": schedule_cases(),
    }
    write("optimizers", document, separators=(",", ":"))


if __name__ == "__main__":
    main()
