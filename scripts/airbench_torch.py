#!/usr/bin/env python3
"""airbench94's recipe (Jordan 2024, arXiv 2404.00498) in PyTorch, to hold
configs/cifar10_airbench.json against: the test accuracy of each epoch.

    build/bin/starling-train configs/cifar10_airbench.json --set steps=1 --set optimizer.lr=0 --set 'optimizer.groups=[]' --output runs/begin
    python3 scripts/airbench_torch.py build/data/cifar10 --init runs/begin/model.safetensors --epochs 3

Written from the paper's description; the model is Airbench of examples/pytorch. With --init both
begin with the same numbers, and samples, crops and mirrored images are drawn as Starling draws
them, so that what is left between the two is arithmetic and rounding. Needs torch, numpy and
safetensors."""
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

from cifar_torch import accuracy, add_arguments, drawn_windows, epoch_order, open_data

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "examples" / "pytorch"))
from models import Airbench  # noqa: E402


def augmented(images, samples, seed, epoch, pad):
    """Windows of images that are mirrored at their rim by `pad` pixels; every second epoch an image
    is turned left to right."""
    tops, lefts, _ = drawn_windows(samples, seed, epoch, pad)
    parity = drawn_windows(samples, seed, 0, pad)[2]
    wide = F.pad(images[torch.as_tensor(samples)], (pad,) * 4, mode="reflect")
    rows = []
    for i, (top, left) in enumerate(zip(tops, lefts)):
        image = wide[i, :, top:top + 32, left:left + 32]
        rows.append(image.flip(-1) if (parity[i] + epoch) % 2 else image)
    return torch.stack(rows)


def make_net(first_images):
    net = Airbench()
    patches = first_images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (vectors.T / (values + 5e-4).sqrt()[:, None]).flip(0).reshape(12, 3, 2, 2).float()
    net[0].weight.data.copy_(torch.cat([filters, -filters]))
    net[0].bias.data.zero_()
    for name, weight in net.named_parameters():
        if "conv" in name:
            nn.init.dirac_(weight.data[:weight.shape[1]])
    return net


def six_views(net, x):
    """The mean of what is said of an image, its mirror image, and both moved by a pixel either
    way."""
    mirrored = lambda x: 0.5 * net(x) + 0.5 * net(x.flip(-1))
    wide = F.pad(x, (1,) * 4, mode="reflect")
    return 0.5 * mirrored(x) + 0.25 * mirrored(wide[:, :, :32, :32]) + 0.25 * mirrored(wide[:, :, 2:, 2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, epochs=9.9, threads=1)
    options = parser.parse_args()
    images, labels, test_images, test_labels = open_data(options)

    net = make_net(images[:5000])
    if options.init:
        from safetensors.torch import load_file
        given, own = load_file(options.init), net.state_dict()
        net.load_state_dict({name: own[name] if "running" in name or "num_batches" in name or name == "0.bias" else given[name].clone() for name in own})
    net = net.to(memory_format=torch.channels_last)
    batch = 1024
    steps_an_epoch = len(images) // batch
    total = math.ceil(options.epochs * steps_an_epoch)
    peak = int(0.23 * total)
    # The paper's rates are for a sum over the batch, per 1024 images and 1 / (1 - momentum).
    rate, decay, momentum = 11.5 / (1024 * (1 + 1 / (1 - 0.85))), 0.0153 / (1 + 1 / (1 - 0.85)), 0.85
    biases = [p for name, p in net.named_parameters() if "norm" in name and p.requires_grad]
    others = [p for name, p in net.named_parameters() if "norm" not in name and p.requires_grad]
    optimizer = torch.optim.SGD([{"params": biases, "lr": 64 * rate, "weight_decay": decay / (64 * rate)},
                                 {"params": others, "lr": rate, "weight_decay": decay / rate}], momentum=momentum, nesterov=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: np.interp(t, [0, peak, total], [0.2, 1, 0.07]))
    slow = {name: tensor.clone() for name, tensor in net.state_dict().items()}

    @torch.no_grad()
    def look_ahead(share):
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point():
                slow[name].lerp_(tensor, 1 - share)
                tensor.copy_(slow[name])

    step, begin = 0, time.time()
    for epoch in range(math.ceil(options.epochs)):
        net[0].bias.requires_grad_(epoch < 3)
        order = epoch_order(options.seed, epoch, len(images))
        sum_of_losses = 0.0
        for k in range(steps_an_epoch):
            chosen = order[k * batch:(k + 1) * batch]
            inputs = augmented(images, chosen, options.seed, epoch, 2).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(net(inputs), labels[chosen], label_smoothing=0.2, reduction="sum")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            sum_of_losses += loss.item() / batch
            step += 1
            if step % 5 == 0:
                look_ahead(0.95**5 * (step / total)**3)
            if step == total:
                look_ahead(1.0)
                break
        print(json.dumps({"epoch": epoch + 1, "step": step, "loss": sum_of_losses / (k + 1), "test_accuracy": accuracy(net, test_images, test_labels),
                          "seconds": round(time.time() - begin, 1)}), flush=True)
    print(json.dumps({"test_accuracy_of_six_views": accuracy(net, test_images, test_labels, lambda x: six_views(net, x))}), flush=True)


if __name__ == "__main__":
    main()
