"""comm_bench.py race: test accuracy of several algorithms over seconds and over bytes, across
emulated hosts; a table and a plot."""

import argparse
import json
import pathlib
import sys

from jobs import NETLAB, ROOT, Failed, Lab, Setup, Skipped, program, run_all

# Each as the config's `sync`. The periods are those of a long run, cut to a short one.
SYNCS = {
    "all-reduce": {"algorithm": "allreduce"},
    "bytegrad": {"algorithm": "bytegrad"},
    "gossip": {"topology": {"type": "one-peer-exp"}},
    "gossip, interval 4": {"algorithm": {"type": "gossip", "interval": 4}, "topology": {"type": "one-peer-exp"}},
    "gossip, int8": {"exchange": "int8", "topology": {"type": "one-peer-exp"}},
    "local SGD, period 8": {"algorithm": {"type": "local_sgd", "period": 8}},
    "DiLoCo, period 50": {"algorithm": {"type": "diloco", "period": 50, "outer_lr": 1.0, "outer_momentum": 0.5, "outer_nesterov": False}},
}


def main(words):
    parser = argparse.ArgumentParser(prog="comm_bench.py race", description=__doc__)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/race"), help="runs lie below it; those that are done are kept")
    parser.add_argument("--plot", type=pathlib.Path, help="SVG file (default: OUT/race.svg)")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.set_defaults(quick=False, repeats=1, seconds=1.0, timeout=7200.0)
    parser.add_argument("--hosts", type=int, default=4, help="emulated hosts, one rank each")
    parser.add_argument("--rate", type=int, default=20, help="Mbit/s of each link and direction")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=100, help="steps between two evaluations")
    parser.add_argument("--set", action="append", default=[], help="as starling-train takes it")
    arguments = parser.parse_args(words)
    setup = Setup(arguments)
    try:
        runs = {name: run_one(arguments, setup, name) for name in SYNCS}
    except (Failed, Skipped) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not setup.dry_run:
        print(table(arguments, runs))
        plot(arguments, runs)
    return 0


def run_one(arguments, setup, name):
    """The run's points: lists of seconds in training, megabytes that a rank has sent, and
    accuracy."""
    folder = (arguments.out / name.replace(",", "").replace(" ", "_")).absolute()
    points = folder / "points.json"
    if points.exists():
        return json.loads(points.read_text())
    settings = ["threads=1", "tensorboard=false", f"epochs={arguments.epochs}", f"evaluate.every_steps={arguments.every}",
                "log_every=10", "checkpoint.every_epochs=0", f"sync={json.dumps({'timeout_s': 900, **SYNCS[name]})}", *arguments.set]
    command = [NETLAB, "run", 1, program("starling-train", setup), arguments.config.absolute(), "--output", folder]
    for setting in settings:
        command += ["--set", setting]
    with Lab(setup, arguments.hosts, arguments.rate) as lab:
        before = sum(lab.sent_bytes())
        run_all([(command, lab.env)], setup, name)
        sent = (sum(lab.sent_bytes()) - before) / arguments.hosts
    if setup.dry_run:
        return None
    result = read_points(folder, sent)
    points.write_text(json.dumps(result) + "\n")
    print(f"  {name}: {result['accuracy'][-1]:.2f} % in {result['seconds'][-1]:.0f} s, {result['megabytes'][-1]:.0f} MB a rank", file=sys.stderr, flush=True)
    return result


def read_points(folder, sent):
    """Bytes are spread evenly over the steps, as each algorithm here sends the same in each of its
    periods; evaluation's own are among them."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = {"seconds": [], "megabytes": [], "accuracy": []}
    seconds, step, last = 0.0, 0, max(line["step"] for line in lines)
    for line in lines:
        if "step_ms" in line:
            seconds += 1e-3 * line["step_ms"] * (line["step"] - step)
            step = line["step"]
        if "test_accuracy" in line:
            result["seconds"].append(seconds)
            result["megabytes"].append(1e-6 * sent * line["step"] / last)
            result["accuracy"].append(100 * line["test_accuracy"])
    return result


def first_at(points, key, accuracy):
    """What it took to come to an accuracy, on the line between two tests; None where the run did
    not."""
    before = (0.0, 0.0)
    for value, reached in zip(points[key], points["accuracy"]):
        if reached >= accuracy:
            return before[0] + (value - before[0]) * (accuracy - before[1]) / (reached - before[1])
        before = (value, reached)
    return None


def table(arguments, runs):
    # What all but the worst reach, so that the columns compare most of them.
    goal = sorted(max(points["accuracy"]) for points in runs.values())[1] - 0.05
    lines = [f"| | accuracy at the end, % | seconds | MB a rank | seconds to {goal:.1f} % | MB to {goal:.1f} % |", "|---|---|---|---|---|---|"]
    for name, points in runs.items():
        to = [first_at(points, key, goal) for key in ("seconds", "megabytes")]
        lines.append(f"| {name} | {points['accuracy'][-1]:.2f} | {points['seconds'][-1]:.0f} | {points['megabytes'][-1]:.0f} | "
                     + " | ".join("-" if value is None else f"{value:.0f}" for value in to) + " |")
    return "\n".join(lines) + f"\n\n{arguments.config.name}, {arguments.hosts} hosts at {arguments.rate} Mbit/s, {arguments.epochs} epochs."


def plot(arguments, runs):
    target = arguments.plot or arguments.out / "race.svg"
    try:
        import matplotlib
    except ImportError:
        print("no plot: the Python package matplotlib is missing", file=sys.stderr)
        return
    matplotlib.use("svg")
    import matplotlib.pyplot as plt  # the backend has to be chosen first

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for name, points in runs.items():
        for one, key in zip(axes, ("seconds", "megabytes")):
            one.plot(points[key], points["accuracy"], marker="o", markersize=3, linewidth=1, label=name)
    axes[0].set(xlabel="seconds of training", ylabel="test accuracy of the mean model, %", ylim=(75, None))
    axes[1].set(xlabel="megabytes that a rank has sent", xscale="log")
    axes[0].legend(fontsize=8)
    for one in axes:
        one.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(target)
    print(f"curves: {target}", file=sys.stderr)
