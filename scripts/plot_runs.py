#!/usr/bin/env python3
"""Plots test accuracy and training loss of several runs over epochs from their metrics.jsonl.

usage: plot_runs.py OUT.svg LABEL=RUN_FOLDER [LABEL=RUN_FOLDER ...]

Runs with the same label share a colour (seeds of one setting). Needs matplotlib.
"""
import json
import pathlib
import sys

try:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt  # (the backend has to be chosen first)
except ModuleNotFoundError as error:
    sys.exit(f"plot_runs.py needs {error.name}; install it with: pip install matplotlib (or apt-get install python3-matplotlib)")


def read(folder):
    path = pathlib.Path(folder) / "metrics.jsonl"
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def smooth(values, width):
    """The mean of the last `width` values at each, of fewer at the beginning."""
    return [sum(values[max(0, i - width + 1) : i + 1]) / min(i + 1, width) for i in range(len(values))]


def main():
    if len(sys.argv) < 3 or any("=" not in a for a in sys.argv[2:]):
        sys.exit(__doc__)
    figure, (accuracy, loss) = plt.subplots(1, 2, figsize=(10, 3.8))
    colours = {}
    for argument in sys.argv[2:]:
        label, folder = argument.split("=", 1)
        first = label not in colours
        colour = colours.setdefault(label, f"C{len(colours)}")
        lines = read(folder)
        tests = [l for l in lines if "test_accuracy" in l]
        steps = [l for l in lines if "loss" in l]
        accuracy.plot([l["epoch"] for l in tests], [100 * l["test_accuracy"] for l in tests], color=colour, marker="o", markersize=3,
                      label=label if first else None)
        loss.plot([l["epoch"] for l in steps], smooth([l["loss"] for l in steps], 10), color=colour, linewidth=1)
    accuracy.set(xlabel="epoch", ylabel="test accuracy of the mean model, %")
    loss.set(xlabel="epoch", ylabel="training loss (running mean)", yscale="log")
    accuracy.legend()
    for axes in (accuracy, loss):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
