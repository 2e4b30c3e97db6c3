#!/usr/bin/env python3
"""Writes algorithms.json beside this file: runs on quadratics in fp64 by PyTorch's DistributedDataParallel, its post-local-SGD hook and optimizer.

Needs torch. Rank i's loss is that of tests/comm/support.h (Job): parameter p of SIZES has curvature 1 + p/4, element e starts at sin(0.37 e) and is
drawn to 0.3 i + cos(0.11 e (i + 1)). Ranks are processes that gloo connects.
"""

import json
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

SIZES = [35, 33, 108, 1, 100, 153, 32]
WEIGHTS = [0, 2, 5]  # of two or more dimensions: these decay
RANKS, STEPS, RATE = 4, 14, 0.1
SGD = {"momentum": 0.8, "weight_decay": 0.05}
ADAMW = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.05}

# As `sync.algorithm` and `optimizer` have them. A group of 2 ranks is a node; "gradients" says whose mean steps between averages take.
CASES = [
    ("allreduce", {"type": "allreduce"}, "sgd"),
    ("allreduce", {"type": "allreduce"}, "adamw"),
    ("local", {"type": "local_sgd", "period": 3}, "sgd"),
    ("local", {"type": "local_sgd", "period": 4}, "adamw"),
    ("post-local", {"type": "local_sgd", "period": 3, "start": 5}, "sgd"),
    ("post-local of nodes", {"type": "local_sgd", "period": 3, "start": 5, "gradients": "node", "ranks_per_node": 2}, "sgd"),
    ("post-local of nodes", {"type": "local_sgd", "period": 4, "start": 2, "gradients": "node", "ranks_per_node": 2}, "adamw"),
]


class Quadratics(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        e = torch.arange(sum(SIZES), dtype=torch.float64)
        self.parts = torch.nn.ParameterList(x.clone() for x in torch.sin(0.37 * e).split(SIZES))
        self.targets = (0.3 * rank + torch.cos(0.11 * e * (rank + 1))).split(SIZES)

    def forward(self, _):
        return sum((1 + p / 4) / 2 * ((x - t) ** 2).sum() for p, (x, t) in enumerate(zip(self.parts, self.targets)))


def train(rank, algorithm, optimizer, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(Quadratics(rank))
    parts = model.module.parts
    groups = [{"params": [parts[p] for p in WEIGHTS]}, {"params": [x for p, x in enumerate(parts) if p not in WEIGHTS], "weight_decay": 0.0}]
    steps = torch.optim.SGD(groups, lr=RATE, **SGD) if optimizer == "sgd" else torch.optim.AdamW(groups, lr=RATE, **ADAMW)
    if algorithm["type"] == "local_sgd":
        start, period = algorithm.get("start", 0), algorithm["period"]
        size = algorithm.get("ranks_per_node", 1) if algorithm.get("gradients") == "node" else 1
        node, _ = dist.new_subgroups(size)
        model.register_comm_hook(PostLocalSGDState(None, node, start_localSGD_iter=start), post_localSGD_hook)
        # torch averages after steps warmup_steps, warmup_steps + period, …; ours `period` steps after `start` for the first time.
        steps = PostLocalSGDOptimizer(optim=steps, averager=PeriodicModelAverager(period=period, warmup_steps=start + period - 1))
    for _ in range(STEPS):
        steps.zero_grad()
        model(None).backward()
        steps.step()
    numbers = torch.cat([x.detach() for x in model.module.parts])
    torch.save(numbers, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def kept(numbers):
    """Every 13th number, and a sum that notices the others."""
    weights = torch.cos(torch.arange(len(numbers), dtype=torch.float64))
    return numbers[::13].tolist() + [float((numbers * weights).sum())]


def main():
    cases = []
    for name, algorithm, optimizer in CASES:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(train, args=(algorithm, optimizer, folder), nprocs=RANKS)
            ranks = [kept(torch.load(f"{folder}/{r}.pt")) for r in range(RANKS)]
        assert all(math.isfinite(v) for numbers in ranks for v in numbers)
        settings = {"sgd": {"type": "sgd", **SGD}, "adamw": {"type": "adamw", **ADAMW}}[optimizer]
        cases.append({"name": name, "algorithm": algorithm, "optimizer": settings, "ranks": ranks})
    result = {"torch": torch.__version__, "steps": STEPS, "lr": RATE, "cases": cases}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "algorithms.json"), "w") as file:
        json.dump(result, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
