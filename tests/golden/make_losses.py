#!/usr/bin/env python3
"""Writes losses.json beside this file: losses and their gradients, in fp64, by PyTorch's own
functions. Needs torch.

Of each loss the value (reduction "mean") and the gradient by the outputs, for class numbers and
for probabilities. Where a loss of PyTorch takes no class numbers, they are one-hot rows. `focal`
has no function in torch; it is autograd through log_softmax."""

import torch
from golden import write
from torch.nn import functional as F

ROWS, CLASSES = 4, 5


WEIGHTS = [0.5, 3.0, 1.25, 0.0, 2.0]  # of classes


def focal(x, target, gamma):
    log_p = F.log_softmax(x, dim=1)
    return -(target * (1 - log_p.exp()) ** gamma * log_p).sum(1).mean()


def main():
    torch.manual_seed(7)
    x = (torch.randn(ROWS, CLASSES, dtype=torch.float64) * 3000).round() / 1000
    labels = torch.tensor([0, 4, 2, 2])
    one_hot = F.one_hot(labels, CLASSES).double()
    # What a mix of two samples gives.
    soft = ((0.7 * one_hot + 0.3 * one_hot.flip(0)) * 1000).round() / 1000
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    cases = []
    for name, loss in {
        "cross_entropy": lambda x, t: F.cross_entropy(x, t),
        "cross_entropy smoothed": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        "focal": lambda x, t: focal(x, t, 2.0),
        "focal 0.5": lambda x, t: focal(x, t, 0.5),
        "bce_with_logits": F.binary_cross_entropy_with_logits,
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "huber": F.huber_loss,
        "huber 0.3": lambda x, t: F.huber_loss(x, t, delta=0.3),
        "cross_entropy weighted": lambda x, t: F.cross_entropy(x, t, weights),
        "cross_entropy weighted smoothed": lambda x, t: F.cross_entropy(
            x, t, weights, label_smoothing=0.1
        ),
    }.items():
        case = {"name": name}
        for kind, target in {"labels": one_hot, "soft": soft}.items():
            outputs = x.clone().requires_grad_()
            value = loss(outputs, labels if kind == "labels" and name.startswith("cross") else target)
            value.backward()
            case[kind] = {"value": value.item(), "gradient": outputs.grad.flatten().tolist()}
        cases.append(case)
    document = {
        "torch": torch.__version__,
        "shape": [ROWS, CLASSES],
        "outputs": x.flatten().tolist(),
        "labels": labels.tolist(),
        "soft": soft.flatten().tolist(),
        "weights": WEIGHTS,
        "cases": cases,
    }
    write("losses", document, indent=1)


if __name__ == "__main__":
    main()
