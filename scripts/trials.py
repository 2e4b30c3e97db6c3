"""What the scripts that try Starling many times share (kill_matrix, corrupt_matrix, link_faults,
random_runs, soak): where the programs are, how a run's results are read, and the loop over random
trials with its report."""

import argparse
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("STARLING_BUILD", os.path.join(ROOT, "build")))
TRAIN = os.path.join(BUILD, "bin", "starling-train")
DOCTOR = os.path.join(BUILD, "bin", "starling-doctor")
PREDICT = os.path.join(BUILD, "bin", "starling-predict")
NAME = os.path.basename(sys.argv[0])


def need(*programs):
    """Ends with 2 where one is not built."""
    for program in programs:
        if not os.access(program, os.X_OK):
            print(f"{NAME}: {program} is missing; build it first, or name the build folder in STARLING_BUILD", file=sys.stderr)
            sys.exit(2)


def mpi_environment(**more):
    """This process's, with what Open MPI needs to be told on a machine of few cores."""
    result = dict(os.environ, OMPI_MCA_mpi_yield_when_idle="1", HWLOC_HIDE_ERRORS="2")
    if os.geteuid() == 0:
        result.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    result.update(more)
    return result


def read(path):
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def alive(pid):
    state = re.search(r"\) (\S)", read(f"/proc/{pid}/stat"))
    return bool(state) and state.group(1) not in "ZX"


def until(condition, seconds, pause=0.002):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


class Ended:
    """A program that has ended: its status (None: not within the limit), what it said, and the
    seconds that it took; after the signal, where it was sent one: signalled = (seconds, signal)."""

    def __init__(self, command, folder, limit, cwd=None, signalled=None):
        os.makedirs(folder + "/mpi", exist_ok=True)
        begin = time.monotonic()
        with open(folder + "/stdout", "w") as out, open(folder + "/stderr", "w") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, cwd=cwd,
                                       # fmt: skip
                                       env=mpi_environment(OMPI_MCA_orte_tmpdir_base=folder + "/mpi"))
            try:
                if signalled:
                    until(lambda: process.poll() is not None, signalled[0])
                    process.send_signal(signalled[1])
                    begin = time.monotonic()
                self.status = process.wait(limit)
            except subprocess.TimeoutExpired:
                self.status = None
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.seconds = time.monotonic() - begin
        self.out, self.err = read(folder + "/stdout"), read(folder + "/stderr")
        # Of mpirun's own words about a rank that ended with an error, none counts.
        self.lines = [line for line in self.err.split("\n") if re.match(r"rank \d+: |\[\w+\] |warning: |starling|.*\.safetensors", line)]


def split_safetensors(data):
    """(header as a dict, where the tensors' bytes begin)."""
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), 8 + length


def tensors(path):
    """The tensors of a .safetensors file, to be compared; its metadata say by what config they were
    trained."""
    with open(path, "rb") as file:
        data = file.read()
    header, begin = split_safetensors(data)
    header.pop("__metadata__", None)
    return header, data[begin:]


def losses(run):
    """By step, of an output folder."""
    result = {}
    for line in read(run + "/metrics.jsonl").splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            result[entry["step"]] = entry["loss"]  # a resumed run tells its last steps again
    return result


def differs(run, reference):
    """What of a run's end is other than the (tensors, losses) of another."""
    wrong = ["the model has other bits"] if tensors(run + "/model.safetensors") != reference[0] else []
    return wrong + (["the losses differ"] if losses(run) != reference[1] else [])


def reference(known, key, work, train):
    """(tensors, losses) of the run of a kind that nothing disturbs. train(folder, log) trains it
    once, into folder/run; it gives the exit status."""
    if key not in known:
        folder = os.path.join(work, "straight-" + re.sub(r"\W+", "-", " ".join(map(str, key))))
        os.makedirs(folder + "/mpi")
        with open(folder + "/log", "w") as log:
            status = train(folder, log)
        if status != 0:
            sys.exit(f"{NAME}: {key} does not train at all: exit status {status}\n{read(folder + '/log')}")
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
    # so that what a trial has begun is ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rng = random.Random(options.seed)
    counts, failures = {}, 0
    work = tempfile.mkdtemp(prefix=f"starling-{NAME.replace('_', '-')}.")
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
