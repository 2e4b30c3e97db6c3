"""comm_bench.py learning: test accuracy of gossip against all-reduce at equal epochs, over seeds; a table and a plot."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from jobs import ROOT, Failed, Setup, Skipped, environment, program, run_all, run_options

SYNCS = {
    "all-reduce": {"algorithm": "allreduce"},
    "one-peer-exp": {"topology": {"type": "one-peer-exp"}},
    "base-2": {"topology": {"type": "base-2"}},
    "alternating-exp-ring": {"topology": {"type": "alternating-exp-ring", "ranks_per_node": 2}},
}
# Ranks, and what is compared on them; one-peer-exp and alternating-exp-ring want powers of two.
CASES = [(8, list(SYNCS)), (6, ["all-reduce", "base-2"])]


def build_config(base, sync, seed, arguments):
    config = json.loads(json.dumps(base))
    config.update(seed=seed, epochs=arguments.epochs, threads=1, tensorboard=False, sync=sync)
    # A step linear in the gradient: with a divided one a rank's smaller batch shortens gossip's steps (docs/benchmarks.md).
    config["optimizer"] = {"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005}
    config["checkpoint"] = {"every_epochs": 0}
    if arguments.limit:
        config.setdefault("data", {})["limit"] = arguments.limit
        config.setdefault("schedule", {}).pop("warmup_steps", None)
    return config


def main(words):
    parser = argparse.ArgumentParser(prog="comm_bench.py learning", description=__doc__)
    run_options(parser, "learning")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--limit", type=int, default=0, help="use only so many training samples, to try it")
    arguments = parser.parse_args(words)
    try:
        seeds = [int(word) for word in arguments.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {arguments.seeds}: whole numbers, separated by commas")
    try:
        return compare(arguments, seeds, Setup(arguments))
    except (Failed, Skipped) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run_one(arguments, setup, base, ranks, name, seed):
    folder = (arguments.out / f"{name}-{ranks}-{seed}").absolute()
    config = arguments.out / f"{folder.name}.json"
    text = json.dumps(build_config(base, SYNCS[name], seed, arguments), indent=1)
    if (folder / "summary.json").exists() and config.exists() and config.read_text() == text:
        print(f"  {folder.name}: done before", file=sys.stderr)
    else:
        if not setup.dry_run:
            arguments.out.mkdir(parents=True, exist_ok=True)
            config.write_text(text)
            subprocess.run(["rm", "-rf", "--", folder], check=True)
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", ranks, program("starling-train", setup), config.absolute(), "--output", folder]
        run_all([(command, environment())], setup, folder.name)
    if setup.dry_run:
        return None
    accuracy = 100 * json.loads((folder / "summary.json").read_text())["test_accuracy"]
    print(f"  {folder.name}: {accuracy:.2f} %", file=sys.stderr, flush=True)
    return accuracy


def compare(arguments, seeds, setup):
    base = json.loads(arguments.config.read_text())
    lines = ["| ranks | | accuracy of the mean model, % | against all-reduce, points | standard error over paired seeds | goal: within 0.5 points or two standard errors |",
             "|---|---|---|---|---|---|"]
    report = []
    for ranks, names in CASES:
        # Seed by seed, in turn: a run that is ended early has compared what it has.
        results = {name: [] for name in names}
        for seed in seeds:
            for name in names:
                results[name].append(run_one(arguments, setup, base, ranks, name, seed))
        if setup.dry_run:
            continue
        reference = results["all-reduce"]
        for name in names:
            mean = statistics.mean(results[name])
            row = {"ranks": ranks, "name": name, "accuracies": results[name], "mean": mean}
            difference, error, goal = "", "", ""
            if name != "all-reduce":
                row["difference"] = mean - statistics.mean(reference)
                difference = f"{row['difference']:+.2f}"
                if len(seeds) > 1:
                    # Paired: a seed gives both the same start and the same order of samples.
                    row["error"] = statistics.stdev(own - other for own, other in zip(results[name], reference)) / len(seeds) ** 0.5
                    error = f"{row['error']:.2f}"
                within = row["difference"] >= -0.5 or row["difference"] >= -2 * row.get("error", 0.0)
                goal = "met" if within else "**not met**"
            lines.append(f"| {ranks} | {name} | {mean:.2f} ({', '.join(f'{value:.2f}' for value in results[name])}) | {difference} | {error} | {goal} |")
            report.append(row)
    if setup.dry_run:
        return 0
    text = "\n".join(lines) + f"\n\n{arguments.config.name}, {arguments.epochs} epochs, SGD with momentum, seeds {arguments.seeds}"
    text += f", only {arguments.limit} training samples: **a check that it runs, not a measurement**.\n" if arguments.limit else ".\n"
    (arguments.out / "learning.md").write_text(text)
    (arguments.out / "learning.json").write_text(json.dumps(report, indent=1) + "\n")
    print(text)
    plot(arguments, seeds)
    return 0


def plot(arguments, seeds):
    target = arguments.plot or arguments.out / "learning.svg"
    labels = [f"{name}, {ranks} ranks={arguments.out / f'{name}-{ranks}-{seed}'}" for ranks, names in CASES for name in names for seed in seeds]
    process = subprocess.run([sys.executable, ROOT / "scripts" / "plot_runs.py", target, *labels], capture_output=True, text=True, check=False)
    print(f"curves: {target}" if process.returncode == 0 else f"no plot: {process.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
