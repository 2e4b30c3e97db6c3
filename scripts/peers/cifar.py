#!/usr/bin/env python3
"""A recipe on CIFAR-10 in PyTorch, to hold a config against: loss and test accuracy of each epoch,
a JSON object a line.

  cifar.py resnet20 FOLDER   configs/cifar10_resnet20_allreduce.json on 4 ranks: one process computes
                             the mean gradient of 4 batches of 32, each normalised by itself
  cifar.py airbench FOLDER   configs/cifar10_airbench.json, written from the paper's description
                             (Jordan 2024, arXiv 2404.00498)

    build/bin/starling-train configs/cifar10_airbench.json --set steps=1 --set optimizer.lr=0 --set 'optimizer.groups=[]' --output runs/begin
    scripts/peers/cifar.py airbench build/data/cifar10 --init runs/begin/model.safetensors --epochs 3

Models are those of examples/pytorch. Samples, crops and mirrored images are drawn as Starling draws
them, so that with --init what is left between the two is arithmetic and rounding. FOLDER has
CIFAR-10's binary files. Needs torch and numpy.
"""

import argparse
import json
import math
import pathlib
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from draws import accuracy, drawn_windows, epoch_order, normalised, open_data

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
from models import Airbench, CifarResNet  # noqa: E402
from starling_torch import read_safetensors  # noqa: E402

RANKS = 4


class BatchNormOfRanks(nn.BatchNorm2d):
    """Normalises each rank's part of the batch by itself, and follows the statistics of all."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        return torch.cat([super(BatchNormOfRanks, self).forward(part) for part in x.chunk(RANKS)])


class Resnet20:
    epochs, batch, smoothing, reduction = 30, 32 * RANKS, 0.0, "mean"
    rate, last_rate, decay, warmup, warmup_factor = 1.6e-2, 1e-6, 0.1, 100, 0.01

    def __init__(self, images, init):
        self.images, self.net = images, CifarResNet(20)
        for module in self.net.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)
            if isinstance(module, nn.BatchNorm2d):
                module.__class__ = BatchNormOfRanks
                # 4 batches a step move the statistics as far as their mean moves them at 0.1
                module.momentum = 1 - 0.9 ** (1 / RANKS)
        self.net = self.net.to(images.dtype)
        if init:
            self.net.load_state_dict(read_safetensors(init)[0], strict=False)
        matrices, others = ([p for p in self.net.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False))
        self.optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": self.decay}, {"params": others, "weight_decay": 0.0}])

    def dealt(self, chosen):
        """Samples are dealt to the ranks in turn."""
        return [sample for rank in range(RANKS) for sample in chosen[rank::RANKS]]

    def inputs(self, samples, seed, epoch):
        """Windows of images with 4 black pixels around, some turned left to right."""
        tops, lefts, mirrored = map(torch.from_numpy, drawn_windows(samples, seed, epoch, 4))
        black = normalised(torch.zeros(3, 1, 1, dtype=self.images.dtype))
        wide = F.pad(self.images[torch.as_tensor(samples)] - black, (4,) * 4) + black
        rows, columns = tops[:, None] + torch.arange(32), lefts[:, None] + torch.arange(32)
        columns = torch.where(mirrored[:, None] == 1, columns.flip(1), columns)
        return wide[torch.arange(len(wide))[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    def before(self, step, total, epoch):
        """The rate goes straight up in the first steps, then follows a half wave of a cosine."""
        if step < self.warmup:
            rate = self.rate * (self.warmup_factor + (1 - self.warmup_factor) * step / self.warmup)
        else:
            rate = self.last_rate + (self.rate - self.last_rate) * 0.5 * (1 + math.cos(math.pi * (step - self.warmup) / (total - self.warmup)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def after(self, step, total):
        pass


class Recipe94:
    epochs, batch, smoothing, reduction = 9.9, 1024, 0.2, "sum"
    # The paper's rates are for a sum over the batch, per 1024 images and 1 / (1 - momentum).
    momentum, rate, decay = 0.85, 11.5 / (1024 * (1 + 1 / (1 - 0.85))), 0.0153 / (1 + 1 / (1 - 0.85))

    def __init__(self, images, init):
        self.images, net = images, Airbench()
        patches = images[:5000].unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors.T / (values + 5e-4).sqrt()[:, None]).flip(0).reshape(12, 3, 2, 2).float()
        net[0].weight.data.copy_(torch.cat([filters, -filters]))
        net[0].bias.data.zero_()
        for name, weight in net.named_parameters():
            if "conv" in name:
                nn.init.dirac_(weight.data[: weight.shape[1]])
        if init:
            given, own = read_safetensors(init)[0], net.state_dict()
            net.load_state_dict({name: own[name] if "running" in name or "num_batches" in name or name == "0.bias" else given[name].clone() for name in own})
        self.net = net
        biases, others = ([p for name, p in net.named_parameters() if ("norm" in name) == wanted and p.requires_grad] for wanted in (True, False))
        self.optimizer = torch.optim.SGD([{"params": biases, "lr": 64 * self.rate, "weight_decay": self.decay / (64 * self.rate)},
                                          {"params": others, "lr": self.rate, "weight_decay": self.decay / self.rate}], momentum=self.momentum, nesterov=True)  # fmt: skip
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.slow = {name: tensor.clone() for name, tensor in net.state_dict().items()}

    def dealt(self, chosen):
        return chosen

    def inputs(self, samples, seed, epoch):
        """Windows of images that are mirrored at their rim by 2 pixels; every second epoch an image
        is turned left to right."""
        tops, lefts, _ = drawn_windows(samples, seed, epoch, 2)
        parity = drawn_windows(samples, seed, 0, 2)[2]
        wide, rows = F.pad(self.images[torch.as_tensor(samples)], (2,) * 4, mode="reflect"), []
        for i, (top, left) in enumerate(zip(tops, lefts)):
            image = wide[i, :, top : top + 32, left : left + 32]
            rows.append(image.flip(-1) if (parity[i] + epoch) % 2 else image)
        return torch.stack(rows)

    def before(self, step, total, epoch):
        self.net[0].bias.requires_grad_(epoch < 3)
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * np.interp(step, [0, int(0.23 * total), total], [0.2, 1, 0.07])

    def after(self, step, total):
        if step % 5 == 0:
            self.look_ahead(0.95**5 * (step / total) ** 3)
        if step == total:
            self.look_ahead(1.0)

    @torch.no_grad()
    def look_ahead(self, share):
        for name, tensor in self.net.state_dict().items():
            if tensor.is_floating_point():
                self.slow[name].lerp_(tensor, 1 - share)
                tensor.copy_(self.slow[name])

    def six_views(self, x):
        """The mean of what is said of an image, its mirror image, and both moved by a pixel either
        way."""
        mirrored = lambda x: 0.5 * self.net(x) + 0.5 * self.net(x.flip(-1))
        wide = F.pad(x, (1,) * 4, mode="reflect")
        return 0.5 * mirrored(x) + 0.25 * mirrored(wide[:, :, :32, :32]) + 0.25 * mirrored(wide[:, :, 2:, 2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recipes = {"resnet20": Resnet20, "airbench": Recipe94}
    parser.add_argument("recipe", choices=list(recipes))
    parser.add_argument("cifar", metavar="FOLDER")
    parser.add_argument("--init", help="a model.safetensors to begin with")
    parser.add_argument("--epochs", type=float, help="default: the recipe's")
    parser.add_argument("--limit", type=int, default=50000, help="training images")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp64"], default="fp32", help="bf16: as torch.autocast does")
    parser.add_argument("--losses", action="store_true", help="a line for each step")
    options = parser.parse_args()
    images, labels, test_images, test_labels = open_data(options, torch.float64 if options.precision == "fp64" else torch.float32)
    recipe = recipes[options.recipe](images, options.init)
    recipe.net = net = recipe.net.to(memory_format=torch.channels_last)
    batch, epochs = recipe.batch, options.epochs or recipe.epochs
    steps_an_epoch = len(images) // batch
    total, step, begin = math.ceil(epochs * steps_an_epoch), 0, time.time()
    for epoch in range(math.ceil(epochs)):
        order, losses = epoch_order(options.seed, epoch, len(images)), []
        for k in range(min(steps_an_epoch, total - step)):
            chosen = recipe.dealt(order[k * batch : (k + 1) * batch])
            inputs = recipe.inputs(chosen, options.seed, epoch).contiguous(memory_format=torch.channels_last)
            recipe.before(step, total, epoch)
            recipe.optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
                loss = F.cross_entropy(net(inputs), labels[chosen], label_smoothing=recipe.smoothing, reduction=recipe.reduction)
            loss.backward()
            recipe.optimizer.step()
            step += 1
            recipe.after(step, total)
            losses.append(loss.item() / (batch if recipe.reduction == "sum" else 1))
            if options.losses:
                print(json.dumps({"step": step, "loss": losses[-1]}), flush=True)
        print(json.dumps({"epoch": epoch + 1, "step": step, "loss": sum(losses) / len(losses), "test_accuracy": accuracy(net, test_images, test_labels),
                          "seconds": round(time.time() - begin, 1)}), flush=True)  # fmt: skip
    if hasattr(recipe, "six_views"):
        print(json.dumps({"test_accuracy_of_six_views": accuracy(net, test_images, test_labels, recipe.six_views)}), flush=True)


if __name__ == "__main__":
    main()
