"""comm_bench.py race: test accuracy of several algorithms over seconds and over bytes, across
emulated hosts; a table and a plot. Of language models the test loss. --ddp adds PyTorch's
DistributedDataParallel over gloo, of language models alone (scripts/peers/gpt.py), and needs torch."""

import argparse
import io
import json
import pathlib
import re
import sys

import jobs
from jobs import NETLAB, ROOT, Failed, Lab, Setup, Skipped, program, torch_ranks

MOST_POINTS = 300  # of a curve

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
    parser.add_argument("--hosts", type=int, default=4, help="emulated hosts, one rank each")
    parser.add_argument("--rate", type=int, default=20, help="Mbit/s of each link and direction")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=100, help="steps between two evaluations")
    parser.add_argument("--set", action="append", default=[], help="as starling-train takes it")
    parser.add_argument("--sync", nargs=2, action="append", default=[], metavar=("NAME", "JSON"), help="one more, as the config's `sync`")
    parser.add_argument("--only", type=lambda text: text.split("; "), help=f"algorithms, \"; \" between them: {'; '.join(SYNCS)}")
    parser.add_argument("--ddp", action="store_true")
    arguments = parser.parse_args(words)
    setup = Setup(dry_run=arguments.dry_run, verbose=arguments.verbose, repeats=1, timeout=7200.0)
    try:
        SYNCS.update((name, json.loads(sync)) for name, sync in arguments.sync)
    except ValueError as error:
        parser.error(f"--sync: no JSON: {error}")
    arguments.only = arguments.only or list(SYNCS)
    unknown = [name for name in arguments.only if name not in SYNCS]
    if unknown:
        parser.error(f"--only: not known: {', '.join(unknown)}; there are: {'; '.join(SYNCS)}")
    try:
        runs = {name: run_one(arguments, setup, name) for name in arguments.only}
        if arguments.ddp:
            runs["PyTorch DDP"] = run_ddp(arguments, setup, folder_of(arguments, arguments.only[0]) / "config.json")
    except (Failed, Skipped) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not setup.dry_run:
        print(table(arguments, runs))
        plot(arguments, runs)
    return 0


def folder_of(arguments, name):
    return (arguments.out / name.replace(",", "").replace(" ", "_")).absolute()


def run_one(arguments, setup, name):
    """The run's points: lists of seconds in training, megabytes that a rank has sent, and
    accuracy, or of language models "loss"."""
    folder = folder_of(arguments, name)
    points = folder / "points.json"
    if points.exists():
        return json.loads(points.read_text())
    settings = ["threads=1", "tensorboard=false", f"epochs={arguments.epochs}", f"evaluate.every_steps={arguments.every}",
                "log_every=10", "checkpoint.every_epochs=0", f"sync={json.dumps({'timeout_s': 900, **SYNCS[name]})}", *arguments.set]
    command = [NETLAB, "run", 1, program("starling-train", setup.dry_run), arguments.config.absolute(), "--output", folder]
    for setting in settings:
        command += ["--set", setting]
    with Lab(setup, arguments.hosts, arguments.rate) as lab:
        before = sum(lab.sent_bytes())
        setup.outputs([(command, lab.env)], name)
        sent = (sum(lab.sent_bytes()) - before) / arguments.hosts
    if setup.dry_run:
        return None
    result = read_points(jobs.metrics(folder), sent)
    return keep(points, name, result)


def run_ddp(arguments, setup, config):
    """`config`: that of a run of the race, with every key."""
    points = folder_of(arguments, "PyTorch DDP") / "points.json"
    if points.exists():
        return json.loads(points.read_text())
    command = [sys.executable, ROOT / "scripts" / "peers" / "gpt.py", config, "--ddp", "--test-every", arguments.every]
    with Lab(setup, arguments.hosts, arguments.rate) as lab:
        before = sum(lab.sent_bytes())
        outputs = setup.outputs(torch_ranks(command, arguments.hosts, lab), "PyTorch DDP")
        sent = (sum(lab.sent_bytes()) - before) / arguments.hosts
    if setup.dry_run:
        return None
    points.parent.mkdir(parents=True, exist_ok=True)
    return keep(points, "PyTorch DDP", read_points([json.loads(line) for line in outputs[0].splitlines()], sent))


def keep(file, name, points):
    file.write_text(json.dumps(points) + "\n")
    measure, unit = measured(points)
    print(f"  {name}: {measure} {points[measure][-1]:.3g}{unit} in {points['seconds'][-1]:.0f} s, {points['megabytes'][-1]:.0f} MB a rank", file=sys.stderr, flush=True)
    return points


def measured(points):
    return ("accuracy", " %") if "accuracy" in points else ("loss", "")


def read_points(lines, sent):
    """Bytes are spread evenly over the steps, as each algorithm here sends the same in each of its
    periods; evaluation's own are among them."""
    measure, key, scale = ("accuracy", "test_accuracy", 100) if any("test_accuracy" in line for line in lines) else ("loss", "test_loss", 1)
    result = {"seconds": [], "megabytes": [], measure: []}
    seconds, step, last = 0.0, 0, max(line["step"] for line in lines)
    for line in lines:
        if "step_ms" in line:
            seconds += 1e-3 * line["step_ms"] * (line["step"] - step)
            step = line["step"]
        if key in line:
            result["seconds"].append(line.get("seconds", seconds))
            result["megabytes"].append(1e-6 * sent * line["step"] / last)
            result[measure].append(scale * line[key])
    return result


def first_at(points, key, goal):
    """What it took to come to an accuracy or a loss, on the line between two tests; None where the
    run did not."""
    measure, _ = measured(points)
    sign, before = (1, (0.0, 0.0)) if measure == "accuracy" else (-1, None)
    for value, reached in zip(points[key], points[measure]):
        if sign * reached >= sign * goal:
            return value if before is None else before[0] + (value - before[0]) * (goal - before[1]) / (reached - before[1])
        before = (value, reached)
    return None


def table(arguments, runs):
    # What all but the worst reach, so that the columns compare most of them; or what DDP does.
    measure, unit = measured(next(iter(runs.values())))
    best = max if measure == "accuracy" else min
    goal = sorted((best(points[measure]) for points in runs.values()), reverse=measure == "loss")[:2][-1] - (0.05 if measure == "accuracy" else -0.005)
    if "PyTorch DDP" in runs:
        goal = runs["PyTorch DDP"][measure][-1]
    lines = [f"| | {measure} at the end{',' if unit else ''}{unit} | seconds | MB a rank | seconds to {goal:.4g}{unit} | MB to {goal:.4g}{unit} |", "|---|---|---|---|---|---|"]
    for name, points in runs.items():
        to = [first_at(points, key, goal) for key in ("seconds", "megabytes")]
        lines.append(f"| {name} | {points[measure][-1]:.4g} | {points['seconds'][-1]:.0f} | {points['megabytes'][-1]:.0f} | "
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
    matplotlib.rcParams["svg.fonttype"] = "none"  # texts as text, not as outlines
    import matplotlib.pyplot as plt  # the backend has to be chosen first

    measure, _ = measured(next(iter(runs.values())))
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for name, points in runs.items():
        every = -(-len(points[measure]) // MOST_POINTS)
        points = {key: values[::every] for key, values in points.items()}
        for one, key in zip(axes, ("seconds", "megabytes")):
            one.plot(points[key], points[measure], marker="o", markersize=3, linewidth=1, label=name)
    axes[0].set(xlabel="seconds of training", ylabel="test accuracy of the mean model, %" if measure == "accuracy" else "test loss of the mean model")
    if measure == "accuracy":
        axes[0].set_ylim(75, None)
    axes[1].set(xlabel="megabytes that a rank has sent", xscale="log")
    axes[0].legend(fontsize=8)
    for one in axes:
        one.grid(alpha=0.3)
    figure.tight_layout()
    drawn = io.StringIO()
    figure.savefig(drawn, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    # Matplotlib begins a line at every point of a curve.
    target.write_text(re.sub(r'"[^"<>]*"', lambda value: " ".join(value[0].split()), drawn.getvalue()))
    print(f"curves: {target}", file=sys.stderr)
