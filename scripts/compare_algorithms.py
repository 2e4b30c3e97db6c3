#!/usr/bin/env python3
"""Test accuracy of several algorithms, each at the best of some learning rates, over seeds; as a
table.

    scripts/compare_algorithms.py configs/fashion_mlp.json --ranks 8 --rates 0.01,0.03,0.1 --seeds 1,2,3,4 \\
        --algorithms allreduce gossip decentlam --set epochs=2 --set 'data.partition={"type": "dirichlet", "alpha": 0.01}'

An algorithm is a type, or NAME=JSON as `sync.algorithm` takes it, or "NAME: KEY=VALUE KEY=VALUE",
settings as --set takes them. A seed is also that of the partition, so algorithms are compared on
the same data, and with the first one by pairs: its last column has the mean difference and its
standard error. Runs that --keep finds done are not repeated.

With --steps-to-loss a second table says how many steps come to the same test loss, for one of the
first algorithm's: the median over the losses that this has at 30 even steps, of which those count
that the other reaches too. Curves are means over the seeds, of the lowest loss so far. It wants
evaluate.every_steps and a constant rate.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import statistics
import sys
import tempfile

import jobs

DIVERGED = 4  # starling-train's exit status


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--algorithms", nargs="+", required=True, help='types, NAME=JSON, or "NAME: KEY=VALUE ..."')
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rates", default="", help="optimizer.lr, several with commas; default: the config's")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--set", action="append", default=[], help="as starling-train takes it")
    parser.add_argument("--keep", metavar="FOLDER", help="keep each run as FOLDER/NAME-RATE-SEED")
    parser.add_argument("--steps-to-loss", action="store_true", help="compare the curves of the test loss too, with the first algorithm's")
    parser.add_argument("--json", help="also write every accuracy into this file")
    return parser.parse_args()


def named_settings(text):
    """(name, settings) of one of --algorithms."""
    with_settings = re.fullmatch(r"([^={}]+): (.*)", text, re.S)
    if with_settings:
        return with_settings[1], shlex.split(with_settings[2])
    name, _, value = text.partition("=")
    return name, [f"sync.algorithm={value or name}"]


def run(args, of_algorithm, rate, seed, folder):
    """(test accuracy at the end in %, {step: test loss}); (0, {}) of a run that diverged."""
    settings = args.set + [f"seed={seed}", "tensorboard=false", "threads=1"] + ([f"optimizer.lr={rate}"] if rate else []) + of_algorithm
    command = [*jobs.MPIRUN, args.ranks, *jobs.need("starling-train"), args.config, "--output", folder, *(word for setting in settings for word in ("--set", setting))]
    if not os.path.exists(f"{folder}/summary.json"):
        done = jobs.Ended(command, folder + ".said", None)
        if done.status == DIVERGED:
            return 0.0, {}
        if done.status != 0:
            sys.exit(f"{shlex.join(map(str, command))}\nends with {done.status}: " + "\n".join(done.lines or done.err.splitlines()[-3:]))
        shutil.rmtree(folder + ".said")
    return 100 * json.loads(jobs.read(f"{folder}/summary.json"))["test_accuracy"], {row["step"]: row["test_loss"] for row in jobs.metrics(folder) if "test_loss" in row}


def mean_curve(curves):
    """[(step, lowest loss so far)], the mean over the seeds."""
    points, lowest = [], float("inf")
    for step in sorted(set.intersection(*map(set, curves))):
        lowest = min(lowest, statistics.mean(curve[step] for curve in curves))
        points.append((step, lowest))
    return points


def step_at(points, loss):
    """Where a falling curve comes to a loss, straight between its points; None where it does
    not."""
    for (step, above), (later, below) in zip(points, points[1:]):
        if above >= loss > below:
            return step + (later - step) * (above - loss) / (above - below)
    return None


def loss_at(points, step):
    for (before, above), (later, below) in zip(points, points[1:]):
        if before <= step <= later:
            return above + (below - above) * (step - before) / (later - before)
    return points[-1][1]


def steps_ratio(first, other, losses=30):
    """Steps of `other` to a loss, for one of `first`: the median over losses that both reach; nan
    where there are none."""
    if len(first) < 2 or len(other) < 2:
        return math.nan
    begin, end = first[0][0], first[-1][0]
    wanted = [loss_at(first, begin + (end - begin) * (k + 1) / losses) for k in range(losses)]
    at = [(step_at(first, loss), step_at(other, loss)) for loss in wanted]
    ratios = [b / a for a, b in at if a and b]
    return statistics.median(ratios) if ratios else math.nan


def main():
    args = parse()
    seeds = args.seeds.split(",")
    rates = args.rates.split(",")
    found, curves = {}, {}
    for named in args.algorithms:
        name, settings = named_settings(named)
        for rate in rates:
            for seed in seeds:
                folder = args.keep or tempfile.mkdtemp(prefix="starling-compare-")
                try:
                    of_run = "-".join(filter(None, (name.replace(" ", "_").replace("/", "_"), rate, seed)))
                    result, curve = run(args, settings, rate, seed, os.path.join(folder, of_run))
                finally:
                    if not args.keep:
                        shutil.rmtree(folder)
                found.setdefault(name, {}).setdefault(rate, {})[seed] = result
                curves.setdefault((name, rate), []).append(curve)
                print(f"{name} at {rate or 'its rate'}, seed {seed}: {f'{result:.2f} %' if result else 'diverged'}", file=sys.stderr)
    print("| algorithm | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | best rate | against the first |")
    print("|---" * (len(seeds) + 4) + "|")
    first = None
    for name, of_rate in found.items():
        # One rate for all seeds: what somebody who tunes would take.
        rate = max(of_rate, key=lambda r: statistics.mean(of_rate[r].values()))
        row = [of_rate[rate][seed] for seed in seeds]
        first = first or row
        apart = [own - other for own, other in zip(row, first)]
        error = f" ± {statistics.stdev(apart) / len(apart) ** 0.5:.2f}" if len(apart) > 1 else ""
        print(f"| `{name}` | {' | '.join(f'{one:.2f}' for one in row)} | {statistics.mean(row):.2f} | {rate} | {statistics.mean(apart):+.2f}{error} |")
    if args.steps_to_loss:
        first = next(iter(found))
        print(f"\n| steps to a loss, for one of {first} | " + " | ".join(rate or "its rate" for rate in rates) + " |")
        print("|---" * (len(rates) + 1) + "|")
        for name in found:
            ratios = [steps_ratio(mean_curve(curves[first, rate]), mean_curve(curves[name, rate])) for rate in rates]
            print(f"| `{name}` | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
