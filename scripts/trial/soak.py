"""Trains a tiny model for a very long time, and looks whether anything grows: memory, open files,
threads, the time of a step.

    scripts/trials soak --steps 1000000 --ranks 4
    scripts/trials soak --steps 20000 --every 0.2

Evaluations and checkpoints go on beside it. Once in --every seconds the resident memory,
descriptors and threads of every rank are read from /proc; the first fifth of the samples is
warm-up and does not count. Prints each figure's slope (least squares, the steepest rank's) for a
million steps, and the step time at the end beside that at the beginning.

Flat means: a rank's memory grows by --megabytes at most, its descriptors and threads by no more
than a checkpoint under way has (2), and the step time by less than the factor --slower.

Exit status 0: all is flat; 1: something is not; 2: bad usage, or the training did not come to its
last step.
"""

import argparse
import glob
import os
import re
import shutil
import statistics
import sys
import tempfile
import time

import jobs
from jobs import read
from trial.loop import write_config


def of_process(pid):
    """(MB of resident memory, descriptors, threads); None where it has ended."""
    status = read(f"/proc/{pid}/status")
    memory, threads = re.search(r"VmRSS:\s+(\d+)", status), re.search(r"Threads:\s+(\d+)", status)
    if not memory or not threads:
        return None
    try:
        return int(memory.group(1)) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(threads.group(1))
    except OSError:
        return None


def slope(points):
    """Of y over x by least squares; 0 where there are fewer than two."""
    xs, ys = zip(*points)
    return statistics.linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0


def typical(rows, column):
    return statistics.median(row[column] for row in rows)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--transport", default="auto", choices=["auto", "direct", "mpi"])
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples")
    parser.add_argument("--megabytes", type=float, default=8.0, help="growth a rank that still counts as flat")
    parser.add_argument("--slower", type=float, default=1.25, help="the step time of the last fifth over that of the second one")
    return parser.parse_args()


def main():
    options = parse()
    if options.steps < 100 or options.ranks < 1 or options.every <= 0:
        print("soak: --steps must be at least 100, --ranks at least 1, --every above 0", file=sys.stderr)
        sys.exit(2)
    (train,) = jobs.need("starling-train")
    work = tempfile.mkdtemp(prefix="starling-soak.")
    often = max(options.steps // 200, 1)
    write_config(work, model={"type": "mlp", "hidden": [8]}, data={"type": "synthetic", "limit": 1024, "test_limit": 32, "image_size": 4}, batch_size=4,
                 steps=options.steps, sync={"topology": {"type": "one-peer-exp"}, "transport": options.transport},
                 # fmt: skip
                 evaluate={"every_epochs": 0, "every_steps": often}, checkpoint={"every_steps": often, "keep": 2}, log_every=max(options.steps // 2000, 1))
    folder = work + "/run"
    samples = {}  # rank's process: [(step, memory, descriptors, threads)]
    try:
        job = jobs.Job(work, options.ranks, [train, work + "/config.json", "--output", folder])
        begin = time.monotonic()
        while not job.over():
            time.sleep(options.every)
            steps = re.findall(r'"step": ?(\d+)', read(folder + "/metrics.jsonl"))
            for pid in job.pids().values():
                sample = of_process(pid)
                if sample and steps:
                    samples.setdefault(pid, []).append((int(steps[-1]), *sample))
        seconds = time.monotonic() - begin
        if job.process.returncode != 0:
            print(f"soak: the training ended with {job.process.returncode}:\n" + job.words()[-2000:], file=sys.stderr)
            sys.exit(2)
        found = jobs.metrics(folder)
        checkpoints = len(glob.glob(folder + "/checkpoints/step-*/DONE"))
    finally:
        shutil.rmtree(work, ignore_errors=True)

    times = [entry["step_ms"] for entry in found if "step_ms" in entry]
    tests = sum("test_loss" in entry for entry in found)
    fifth = max(len(times) // 5, 1)
    early, late = statistics.median(times[fifth : 2 * fifth] or times), statistics.median(times[-fifth:])
    counted = {pid: rows[len(rows) // 5 :] for pid, rows in samples.items()}
    if len(counted) != options.ranks or min(len(rows) for rows in counted.values()) < 4:
        print("soak: too few samples; raise --steps or lower --every", file=sys.stderr)
        sys.exit(2)
    print(f"{options.steps} steps on {options.ranks} ranks in {seconds:.0f} s, {tests} evaluations, the last {checkpoints} checkpoints kept")
    steady = True
    for column, (name, unit) in enumerate([("memory", "MB"), ("descriptors", ""), ("threads", "")], 1):
        steepest = max((slope([(row[0] / 1e6, row[column]) for row in rows]) for rows in counted.values()), key=abs)
        # Medians: a checkpoint that is being written has a file open, and a thread.
        grown = max(typical(rows[-(len(rows) // 3 or 1) :], column) - typical(rows[: len(rows) // 3 or 1], column) for rows in counted.values())
        most = max(row[column] for rows in counted.values() for row in rows)
        # One file and one thread of a checkpoint that is being written come and go; one lost at
        # each of 200 checkpoints would be 200.
        flat = grown <= (options.megabytes if column == 1 else 2)
        steady = steady and flat
        print(f"{name + ':':<13} at most {most:.1f} {unit}".rstrip() + f", slope {steepest:+.2f} {unit} a million steps".replace("  ", " ")
              + f", grown by {grown:.1f}: " + ("flat" if flat else "NOT FLAT"))  # fmt: skip
    ratio = late / early
    steady = steady and ratio <= options.slower
    print(f"step time:    {late:.3f} ms at the end over {early:.3f} ms at the beginning = {ratio:.2f}: " + ("flat" if ratio <= options.slower else "NOT FLAT"))
    sys.exit(0 if steady else 1)

