"""What all trials share: the undisturbed run that others are compared with, and the loop over
random trials with its report."""

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from jobs import NAME, losses, read, stop_on_sigterm, tensors


def reference(known, key, work, train):
    """(tensors, losses) of the run of a kind that nothing disturbs. train(folder) trains it once,
    into folder/run; it gives the exit status."""
    if key not in known:
        folder = os.path.join(work, "straight-" + re.sub(r"\W+", "-", " ".join(map(str, key))))
        os.makedirs(folder + "/mpi")
        status = train(folder)
        if status != 0:
            sys.exit(f"{NAME}: {key} does not train at all: exit status {status}\n{read(folder + '/log')}{read(folder + '/err.0')}")
        known[key] = (tensors(folder + "/run/model.safetensors"), losses(folder + "/run"))
    return known[key]


def write_config(folder, **changes):
    """folder/config.json: a tiny model on made-up images."""
    config = {
        "model": {"type": "mlp", "hidden": [32, 32]},
        "data": {"type": "synthetic", "limit": 512, "test_limit": 64, "image_size": 12},
        "optimizer": {"type": "adamw", "lr": 0.002},
        "threads": 1,
        "tensorboard": False,
        **changes,
    }
    with open(folder + "/config.json", "w") as file:
        json.dump(config, file, indent=1)


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


def parser_of(doc, limit, limit_help, trials=20):
    """The options that all of them have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=positive, default=trials)
    parser.add_argument("--seed", type=int, default=1, help="what is drawn; the same seed draws the same trials")
    parser.add_argument("--only", type=int, help="of the trials that the seed draws, this one alone")
    parser.add_argument("--limit", type=float, default=limit, help=limit_help)
    parser.add_argument("--keep-failures", metavar="FOLDER", help="keep the folders of trials that fail")
    return parser


def not_plain(path):
    """Pipes and devices: whoever copies one waits."""
    return not (os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path))


def run_all(options, draw, attempt, cell_of, hidden=(), jobs=1):
    """Draws and tries options.trials trials. draw(rng, number) gives a trial, a dict;
    attempt(trial, folder) what of it does not hold, a list of texts; cell_of(trial) the columns of
    the table that it counts in; `hidden` are keys of no use to a reader; `jobs` trials run at a
    time. Returns the counts, and how many failed."""
    stop_on_sigterm()
    rng = random.Random(options.seed)
    counts, failures = {}, 0
    work = tempfile.mkdtemp(prefix=f"starling-{NAME.replace(' ', '-')}.")
    pool = ThreadPoolExecutor(jobs)
    try:
        trials = [(number, draw(rng, number), os.path.join(work, str(number))) for number in range(options.trials)]
        trials = [trial for trial in trials if options.only in (None, trial[0])]
        for (number, trial, folder), wrong in zip(trials, pool.map(lambda of: attempt(*of[1:]), trials)):
            cell = counts.setdefault(cell_of(trial), [0, 0])
            cell[0] += 1
            cell[1] += not wrong
            if wrong:
                failures += 1
                what = {key: value for key, value in trial.items() if key not in hidden}
                print(f"FAILED  trial {number} of seed {options.seed}, {what}: " + "; ".join(wrong), flush=True)
                if options.keep_failures:
                    os.makedirs(options.keep_failures, exist_ok=True)
                    kept = os.path.join(options.keep_failures, f"{options.seed}-{number}")
                    shutil.copytree(folder, kept, symlinks=True, ignore=lambda at, names: [n for n in names if not_plain(os.path.join(at, n))], dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            if (number + 1) % 50 == 0:
                print(f"{number + 1} trials, {failures} failed", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(work, ignore_errors=True)
    return counts, failures


def print_table(names, counts):
    """One line a cell, under the names of its columns."""
    widths = [max(len(row[i]) for row in [names, *counts]) for i in range(len(names))]
    columns = lambda row: "  ".join(f"{text:<{width}}" for text, width in zip(row, widths))
    print(f"{columns(names)}   trials   hold")
    for cell, (trials, hold) in sorted(counts.items()):
        print(f"{columns(cell)} {trials:>8} {hold:>6}")


def finish(counts, failures, remark=""):
    total = sum(trials for trials, _ in counts.values())
    print(f"{total - failures} of {total} trials hold{remark}")
    sys.exit(1 if failures else 0)
