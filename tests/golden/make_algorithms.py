#!/usr/bin/env python3
"""Writes algorithms.json beside this file: runs on quadratics in fp64 by PyTorch's
DistributedDataParallel, its post-local-SGD hook and optimizer, and by decent-dp, with its
adaptive factor and with an optimizer that uses its pre_average_hook.

Needs torch and decent-dp==0.2.3. Rank i's loss is that of tests/comm/support.h (Job): parameter p
of SIZES has curvature 1 + p/4, element e starts at sin(0.37 e) and is drawn to 0.3 i + cos(0.11 e
(i + 1)). Ranks are processes that gloo connects.
"""

import math
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from decent_dp.ddp import DecentralizedDataParallel
from decent_dp.topo import RingTopology, TopologyReg
from golden import write
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

SIZES = [35, 33, 108, 1, 100, 153, 32]
WEIGHTS = [0, 2, 5]  # of two or more dimensions: these decay
RANKS, STEPS, RATE = 4, 14, 0.1
SGD = {"momentum": 0.8, "weight_decay": 0.05}
ADAMW = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.05}

# As `sync.algorithm` and `optimizer` have them. A group of 2 ranks is a node; "gradients" says
# whose mean steps between averages take.
CASES = [
    ("allreduce", {"type": "allreduce"}, "sgd"),
    ("allreduce", {"type": "allreduce"}, "adamw"),
    ("local", {"type": "local_sgd", "period": 3}, "sgd"),
    ("local", {"type": "local_sgd", "period": 4}, "adamw"),
    ("post-local", {"type": "local_sgd", "period": 3, "start": 5}, "sgd"),
    ("post-local of nodes", {"type": "local_sgd", "period": 3, "start": 5, "gradients": "node", "ranks_per_node": 2}, "sgd"),
    ("post-local of nodes", {"type": "local_sgd", "period": 4, "start": 2, "gradients": "node", "ranks_per_node": 2}, "adamw"),
    ("decent-dp", {"type": "gossip"}, "adamw"),
    ("decent-dp, adaptive factor", {"type": "gossip", "mixing": 0.6}, "sgd"),
    ("decent-dp, pre_average_hook", {"type": "qgm", "order": "awc", "mu": 0.6}, "sgd"),
]


class Quadratics(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        e = torch.arange(sum(SIZES), dtype=torch.float64)
        self.parts = torch.nn.ParameterList(x.clone() for x in torch.sin(0.37 * e).split(SIZES))
        self.targets = (0.3 * rank + torch.cos(0.11 * e * (rank + 1))).split(SIZES)

    def forward(self, _):
        return sum((1 + p / 4) / 2 * ((x - t) ** 2).sum() for p, (x, t) in enumerate(zip(self.parts, self.targets)))


class QuasiGlobalMomentum(torch.optim.Optimizer):
    """Lin et al. 2021, arXiv 2102.04761: the momentum follows the parameters, mixing included. The
    hook sees them before they are mixed."""

    def __init__(self, groups, mu):
        super().__init__(groups, {"lr": RATE, "mu": mu, **SGD})

    def pre_average_hook(self, edge, weight):
        assert len(edge.ranks) == 2 and weight == 0.5
        for group in self.param_groups:
            for x in group["params"]:
                self.state[x]["before"] = x.detach().clone()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for x in group["params"]:
                state = self.state[x]
                momentum = state.setdefault("momentum", torch.zeros_like(x))
                x.sub_(group["momentum"] * momentum + x.grad + group["weight_decay"] * state["before"], alpha=group["lr"])
                momentum.mul_(group["mu"]).add_(state["before"] - x, alpha=(1 - group["mu"]) / group["lr"])


@TopologyReg.register("ring-from-0")
class RingFromZero(RingTopology):
    """decent-dp's exchanges ask for the edges 1, 3, 4, 5, …; Starling's are the rounds 0, 1, 2, 3,
    …: the same from the second on, in a ring."""

    def get_edge(self, step):
        return super().get_edge(0 if step == 1 else step)


def train_decent(rank, algorithm, optimizer):
    def make(named):
        named = [(int(name.split(".")[-1]), x) for name, x in named]
        groups = [{"params": [x for p, x in named if p in WEIGHTS]}, {"params": [x for p, x in named if p not in WEIGHTS], "weight_decay": 0.0}]
        if algorithm["type"] == "qgm":
            return QuasiGlobalMomentum(groups, algorithm["mu"])
        return torch.optim.SGD(groups, lr=RATE, **SGD) if optimizer == "sgd" else torch.optim.AdamW(groups, lr=RATE, **ADAMW)

    model = DecentralizedDataParallel(Quadratics(rank), make, topology="ring-from-0")
    model.set_adaptive_factor(algorithm.get("mixing", 1.0))
    for _ in range(STEPS):
        model(None).backward()
    return torch.cat([x.detach() for x in model._model.parts])


def train(rank, algorithm, optimizer, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    if algorithm["type"] in ("gossip", "qgm"):
        torch.save(train_decent(rank, algorithm, optimizer), f"{folder}/{rank}.pt")
        dist.destroy_process_group()
        return
    model = DistributedDataParallel(Quadratics(rank))
    parts = model.module.parts
    groups = [{"params": [parts[p] for p in WEIGHTS]}, {"params": [x for p, x in enumerate(parts) if p not in WEIGHTS], "weight_decay": 0.0}]
    steps = torch.optim.SGD(groups, lr=RATE, **SGD) if optimizer == "sgd" else torch.optim.AdamW(groups, lr=RATE, **ADAMW)
    if algorithm["type"] == "local_sgd":
        start, period = algorithm.get("start", 0), algorithm["period"]
        size = algorithm.get("ranks_per_node", 1) if algorithm.get("gradients") == "node" else 1
        node, _ = dist.new_subgroups(size)
        model.register_comm_hook(PostLocalSGDState(None, node, start_localSGD_iter=start), post_localSGD_hook)
        # torch averages after steps warmup_steps, warmup_steps + period, …; ours `period` steps
        # after `start` for the first time.
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
    write("algorithms", result, indent=0)


if __name__ == "__main__":
    main()
