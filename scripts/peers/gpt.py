#!/usr/bin/env python3
"""A run of configs/text_gpt.json, or of another language model on `tokens`, in PyTorch, to hold
Starling against: training losses, test losses and seconds, a JSON object a line. Models are those
of examples/pytorch.

    build/bin/starling-train configs/text_gpt.json --set steps=1 --set optimizer.lr=0 --output runs/begin
    python3 scripts/peers/gpt.py runs/begin/config.json --init runs/begin/model.safetensors --ranks 4

Samples come in Starling's order, so that with --init what is left between the two is rounding.
--ranks computes in one process what so many of DistributedDataParallel would. --ddp makes each
process a rank over gloo, described by torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...).
Needs torch and numpy.
"""
import argparse
import json
import math
import os
import pathlib
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from draws import epoch_order

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
from models import make_model  # noqa: E402
from starling_torch import read_safetensors  # noqa: E402


def samples_of(file, length, device):
    """Tokens and targets [samples, length]."""
    tokens = np.fromfile(file, np.uint16).astype(np.int64)
    count = (len(tokens) - 1) // length
    return [torch.from_numpy(tokens[k:k + count * length].reshape(count, length)).to(device) for k in (0, 1)]


def loss_of(net, tokens, targets):
    return F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def test_loss(net, tokens, targets):
    losses = [loss_of(net, x, y).item() * len(x) for x, y in zip(tokens.split(32), targets.split(32))]
    return sum(losses) / len(tokens)


def rate_at(schedule, peak, step, total):
    """Straight up in the first steps, then a half wave of a cosine."""
    warmup, least = schedule["warmup_steps"], schedule["min_lr"]
    if step < warmup:
        factor = schedule["warmup_factor"]
        return peak * (factor + (1 - factor) * step / warmup)
    return least + (peak - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a run's config.json, which has every key")
    parser.add_argument("--init", help="a model.safetensors to begin with")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--steps", type=int, help="default: the config's steps, or its epochs")
    parser.add_argument("--seed", type=int, help="default: the config's")
    parser.add_argument("--test-every", type=int, default=0, help="steps; 0: at the end alone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: as torch.autocast does")
    parser.add_argument("--vocab", type=int, help="rows of the table; more than the tokens need may be faster")
    options = parser.parse_args()
    config = json.loads(pathlib.Path(options.config).read_text())
    model, batch = config["model"], config["batch_size"]
    seed = config["seed"] if options.seed is None else options.seed
    torch.set_num_threads(options.threads)
    torch.manual_seed(seed)

    rank, ranks, own = 0, options.ranks, range(options.ranks)
    if options.ddp:
        rank, ranks = (int(os.environ[word]) for word in ("RANK", "WORLD_SIZE"))
        own = [rank]
        torch.distributed.init_process_group("gloo")
    if options.vocab:
        model["vocab"] = options.vocab
    torch.set_float32_matmul_precision("high")
    net = make_model(model, (1, 1, 1), model["vocab"])
    if options.init:
        net.load_state_dict(read_safetensors(options.init)[0])
    plain = trained = net = net.to(options.device)
    if options.ddp:
        trained = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    if options.compile:
        trained = torch.compile(trained)
    adam = config["optimizer"]
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": adam["weight_decay"]},
                                   {"params": others, "weight_decay": 0.0}],
                                  betas=tuple(adam["betas"]), eps=adam["eps"], fused=True)
    folder = pathlib.Path(config["data"]["path"])
    length = config["data"]["sequence_length"]
    tokens, targets = samples_of(folder / "train.bin", length, options.device)
    test = samples_of(folder / "val.bin", length, options.device)
    steps_an_epoch = len(tokens) // (ranks * batch)
    total = options.steps or config.get("steps") or int(config["epochs"] * steps_an_epoch)

    def tell(**numbers):
        if rank == 0:
            print(json.dumps(numbers), flush=True)

    begin, order = time.perf_counter(), []
    testing = 0.0
    for step in range(total):
        if step % steps_an_epoch == 0:
            order = epoch_order(seed, step // steps_an_epoch, len(tokens))
        place = step % steps_an_epoch * ranks * batch
        chosen = order[place:place + ranks * batch]
        chosen = [sample for r in own for sample in chosen[r::ranks]]  # dealt to the ranks in turn
        for group in optimizer.param_groups:
            group["lr"] = rate_at(config["schedule"], adam["lr"], step, total)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = loss_of(trained, tokens[chosen], targets[chosen])
        loss.backward()
        if config.get("clip_norm"):
            nn.utils.clip_grad_norm_(net.parameters(), config["clip_norm"])
        optimizer.step()
        tested = {}
        if step + 1 == total or (options.test_every and (step + 1) % options.test_every == 0):
            before = time.perf_counter()
            if rank == 0:
                tested = {"test_loss": test_loss(plain, *test)}
            if options.ddp:
                torch.distributed.barrier()
            testing += time.perf_counter() - before
        tell(step=step + 1, loss=loss.item(), seconds=round(time.perf_counter() - begin - testing, 3), **tested)


if __name__ == "__main__":
    main()
