#!/usr/bin/env python3
"""Test accuracy of several algorithms, each at the best of some learning rates, over seeds; as a table.

    scripts/compare_algorithms.py configs/fashion_mlp.json --ranks 8 --rates 0.01,0.03,0.1 --seeds 1,2,3,4 \\
        --algorithms allreduce gossip decentlam --set epochs=2 --set 'data.partition={"type": "dirichlet", "alpha": 0.01}'

An algorithm is a type, or NAME=JSON as `sync.algorithm` takes it, or "NAME: KEY=VALUE KEY=VALUE", settings as --set takes them. A seed is also that
of the partition, so algorithms are compared on the same data. Runs that --keep finds done are not repeated.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--algorithms", nargs="+", required=True, help='types, NAME=JSON, or "NAME: KEY=VALUE ..."')
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rates", default="", help="optimizer.lr, several with commas; default: the config's")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--set", action="append", default=[], help="as starling-train takes it")
    parser.add_argument("--keep", metavar="FOLDER", help="keep each run as FOLDER/NAME-RATE-SEED")
    parser.add_argument("--json", help="also write every accuracy into this file")
    return parser.parse_args()


def named_settings(text):
    """(name, settings) of one of --algorithms."""
    with_settings = re.fullmatch(r"([^={}]+): (.*)", text, re.S)
    if with_settings:
        return with_settings[1], shlex.split(with_settings[2])
    name, _, value = text.partition("=")
    return name, [f"sync.algorithm={value or name}"]


def accuracy(args, of_algorithm, rate, seed, folder):
    train = os.path.join(os.environ.get("STARLING_BUILD", os.path.join(ROOT, "build")), "bin", "starling-train")
    settings = args.set + [f"seed={seed}", "tensorboard=false", "threads=1"]
    if rate:
        settings.append(f"optimizer.lr={rate}")
    settings += of_algorithm
    command = ["mpirun", "--oversubscribe", "-n", str(args.ranks), train, args.config, "--output", folder]
    for setting in settings:
        command += ["--set", setting]
    summary = os.path.join(folder, "summary.json")
    done = None if os.path.exists(summary) else subprocess.run(command, capture_output=True, text=True)
    if done and done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("[")] or done.stderr.splitlines()[-3:]
        sys.exit(f"{' '.join(command)}\nends with {done.returncode}: " + "\n".join(lines))
    with open(summary) as file:
        return 100 * json.load(file)["test_accuracy"]


def main():
    args = parse()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    seeds = args.seeds.split(",")
    rates = args.rates.split(",")
    found = {}
    for named in args.algorithms:
        name, settings = named_settings(named)
        for rate in rates:
            for seed in seeds:
                folder = args.keep or tempfile.mkdtemp(prefix="starling-compare-")
                try:
                    run = "-".join(filter(None, (name.replace(" ", "_").replace("/", "_"), rate, seed)))
                    result = accuracy(args, settings, rate, seed, os.path.join(folder, run))
                finally:
                    if not args.keep:
                        shutil.rmtree(folder)
                found.setdefault(name, {}).setdefault(rate, {})[seed] = result
                print(f"{name} at {rate or 'its rate'}, seed {seed}: {result:.2f} %", file=sys.stderr)
    print("| algorithm | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | best rate |")
    print("|---" * (len(seeds) + 3) + "|")
    for name, of_rate in found.items():
        # One rate for all seeds: what somebody who tunes would take.
        rate = max(of_rate, key=lambda r: statistics.mean(of_rate[r].values()))
        row = [f"{of_rate[rate][seed]:.1f}" for seed in seeds]
        print(f"| `{name}` | {' | '.join(row)} | {statistics.mean(of_rate[rate].values()):.2f} | {rate} |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
