#!/usr/bin/env python3
"""The recipe of configs/cifar10_resnet20_allreduce.json on 4 ranks in PyTorch, to hold it
against: the test accuracy of each epoch.

    build/bin/starling-train configs/cifar10_resnet20_allreduce.json --set steps=1 --set optimizer.lr=0 --output runs/begin
    python3 scripts/resnet20_torch.py build/data/cifar10 --init runs/begin/model.safetensors

One process computes what 4 ranks of DistributedDataParallel would: the mean gradient of 4 batches
of 32, each normalised by itself. The model is CifarResNet of examples/pytorch. Samples, crops and
mirrored images are drawn as Starling draws them, so that with --init what is left between the two
is arithmetic and rounding. Needs torch and numpy; no GPU.
"""
import argparse
import json
import math
import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from cifar_torch import accuracy, add_arguments, drawn_windows, epoch_order, normalised, open_data

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
from models import CifarResNet  # noqa: E402
from starling_torch import read_safetensors  # noqa: E402

RANKS, BATCH = 4, 32
RATE, LAST_RATE, DECAY, WARMUP, WARMUP_FACTOR = 1.6e-2, 1e-6, 0.1, 100, 0.01


def rate_at(step, total):
    """Straight up in the first steps, then a half wave of a cosine."""
    if step < WARMUP:
        return RATE * (WARMUP_FACTOR + (1 - WARMUP_FACTOR) * step / WARMUP)
    return LAST_RATE + (RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP)))


def augmented(images, samples, seed, epoch):
    """Windows of images with 4 black pixels around, some turned left to right."""
    tops, lefts, mirrored = map(torch.from_numpy, drawn_windows(samples, seed, epoch, 4))
    black = normalised(torch.zeros(3, 1, 1, dtype=images.dtype))
    wide = F.pad(images[torch.as_tensor(samples)] - black, (4,) * 4) + black
    rows, columns = tops[:, None] + torch.arange(32), lefts[:, None] + torch.arange(32)
    columns = torch.where(mirrored[:, None] == 1, columns.flip(1), columns)
    return wide[torch.arange(len(wide))[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class BatchNormOfRanks(nn.BatchNorm2d):
    """Normalises each rank's part of the batch by itself, and follows the statistics of all."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        return torch.cat([super(BatchNormOfRanks, self).forward(part) for part in x.chunk(RANKS)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, epochs=30, threads=2)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp64"], default="fp32", help="bf16: as torch.autocast does")
    parser.add_argument("--losses", action="store_true", help="a line for each step")
    options = parser.parse_args()
    dtype = torch.float64 if options.precision == "fp64" else torch.float32
    images, labels, test_images, test_labels = open_data(options, dtype)

    net = CifarResNet(20)
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = BatchNormOfRanks
            # 4 batches a step move the statistics as far as their mean moves them at 0.1
            module.momentum = 1 - 0.9**(1 / RANKS)
    net = net.to(dtype=dtype, memory_format=torch.channels_last)
    if options.init:
        net.load_state_dict(read_safetensors(options.init)[0], strict=False)
    optimizer = torch.optim.AdamW([{"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for p in net.parameters() if p.dim() <= 1], "weight_decay": 0.0}])
    steps_an_epoch = len(images) // (RANKS * BATCH)
    total, step, begin = options.epochs * steps_an_epoch, 0, time.time()
    for epoch in range(options.epochs):
        order, losses = epoch_order(options.seed, epoch, len(images)), []
        for k in range(steps_an_epoch):
            chosen = order[k * RANKS * BATCH:(k + 1) * RANKS * BATCH]
            # samples are dealt to the ranks in turn
            chosen = [sample for rank in range(RANKS) for sample in chosen[rank::RANKS]]
            inputs = augmented(images, chosen, options.seed, epoch).contiguous(memory_format=torch.channels_last)
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, total)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
                loss = F.cross_entropy(net(inputs), labels[chosen])
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            step += 1
            if options.losses:
                print(json.dumps({"step": step, "loss": losses[-1]}), flush=True)
        print(json.dumps({"epoch": epoch + 1, "step": step, "loss": sum(losses) / len(losses),
                          "test_accuracy": accuracy(net, test_images, test_labels), "seconds": round(time.time() - begin, 1)}), flush=True)


if __name__ == "__main__":
    main()
