"""Runs of starling-train that checks of a GPU look into, and the lines that say what they found."""

import argparse
import array
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import tempfile

import jobs
from jobs import Failed

STEPS = 12
RUNNING = set()
OUT = None  # a file that gets what is said, too


def config(**changes):
    result = {
        "seed": 3,
        "model": {"type": "mlp", "hidden": [64, 64]},
        "data": {"type": "synthetic", "image_size": 8, "limit": 2048, "test_limit": 64},
        "batch_size": 16,
        "steps": STEPS,
        "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
        "precision": "fp32",
        "evaluate": {"every_epochs": 0},
        "checkpoint": {"every_epochs": 0, "every_steps": STEPS},
        "log_every": 1,
        "threads": 1,
        "sync": {"bucket_mb": 0.02, "topology": {"type": "ring"}, "timeout_s": 60},
    }
    for key, value in changes.items():
        same = isinstance(value, dict) and key in result and value.get("type") in (None, result[key].get("type"))
        result[key] = {**result[key], **value} if same else value
    return result


def over(settings, transport, **more):
    return {**settings, **more, "sync": {**settings["sync"], "transport": transport}}


class Run:
    """One mpirun of the trainer; `folder` has the log, `out` what the run leaves."""

    BEFORE = "export STARLING_SHARE_GPUS=1"
    # NCCL refuses ranks that share a GPU unless it takes them for ranks of different hosts.
    HOSTS = "; export NCCL_HOSTID=rank$rank NCCL_SOCKET_IFNAME=lo"

    def __init__(self, options, ranks, device, settings, arguments=(), launcher_options=(), folder=None):
        self.options, self.ranks = options, ranks
        self.folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=options.work))
        self.out, self.launcher_options = self.folder / "out", launcher_options
        (self.folder / "config.json").write_text(json.dumps(settings))
        self.before = self.BEFORE + (self.HOSTS if settings.get("sync", {}).get("transport") == "nccl" else "")
        self.command = [options.train, self.folder / "config.json", "--device", device, "--output", self.out, *arguments]

    def start(self):
        env = jobs.environment(OMPI_MCA_orte_tmpdir_base=f"{self.folder}/mpi")
        self.job = jobs.Job(self.folder, self.ranks, self.command, before=self.before, env=env, launcher=[*jobs.MPIRUN[:-1], *self.launcher_options, "-n", self.ranks])
        RUNNING.add(self.job)
        return self

    def finish(self):
        status = self.job.wait(self.options.seconds)
        RUNNING.discard(self.job)
        if status != 0:
            raise Failed(f"{'no end within %d s' % self.options.seconds if status is None else 'exit status %d' % status}: {self.last_words()}")
        return self

    def go(self):
        """Runs to its end, which must be a good one."""
        return self.start().finish()

    def issued(self):
        """Why steps were no graphs; empty where they were."""
        return ([line.strip() for line in self.job.words().splitlines() if "without CUDA graphs" in line] or [""])[-1][:300]

    def last_words(self):
        lines = [line.strip() for line in self.job.words().splitlines() if line.strip(" -")]
        said = [line for line in lines if re.match(r"(rank \d+: )?\[[a-z][a-z ]*\] ", line)]
        return said[-1][:400] if said else " ".join(lines[-12:])[-800:] or "nothing was said"

    def checkpoint(self, rank, step):
        return self.out / "checkpoints" / f"step-{step}" / f"rank-{rank}.safetensors"

    def parameters(self, step=STEPS):
        """Of each rank all that it trains, in one array. Of ranks that are copies, as with
        all-reduce, the first alone has written it."""
        found = [parameters(self.checkpoint(rank, step)) for rank in range(self.ranks)]
        return [numbers or found[0] for numbers in found]


# -------------------------------------------------------------------------------------- files


def read_safetensors(path):
    """(metadata, the tensors: type, shape and bytes by name)."""
    data = path.read_bytes()
    header, begin = jobs.split_safetensors(data)
    metadata = header.pop("__metadata__", {})
    return metadata, {n: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]]) for n, t in header.items()}


def parameters(path):
    """All fp32 parameters in one array, in the order of their names."""
    numbers = array.array("f")
    for name, (dtype, _, data) in sorted(read_safetensors(path)[1].items()):
        if name.startswith("model.") and dtype == "F32":
            numbers.frombytes(data)
    return numbers


def change_metadata(path, **changes):
    data = path.read_bytes()
    header, begin = jobs.split_safetensors(data)
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[begin:])
    # As older versions wrote it: without digests, which would tell that the file was changed.
    (path.parent / "DONE").write_text(f"step {path.parent.name.removeprefix('step-')}\n")


def largest_difference(a, b):
    if len(a) != len(b) or not a:
        raise Failed(f"{len(a)} numbers against {len(b)}")
    return max((float("inf") if not abs(x - y) < float("inf") else abs(x - y)) for x, y in zip(a, b))


def spans(path, rank=0):
    """(lane, name, begin, end) of a rank's timeline, in microseconds, as they begin."""
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    found = [(e["cat"], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e["pid"] == rank]
    return sorted(found, key=lambda span: span[2])


# ------------------------------------------------------------------------- lines, command line


def note(title, good, remark):
    """good: None where it was skipped."""
    line = f"skipped: {title}: {remark}" if good is None else f"{title}: {remark}" if good else f"error: {title}: {remark}"
    print(line, flush=True)
    if OUT:
        with open(OUT, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def row(title, check, *arguments):
    """Says what a check found; whether it passed."""
    try:
        remark, good = check(*arguments), True
    except (Failed, OSError, ValueError, KeyError) as error:
        remark, good = f"{type(error).__name__ + ': ' if not isinstance(error, Failed) else ''}{error}", False
    note(title, good, remark)
    return good


def has_nccl(options, what):
    """Whether the plug-in of this build can; a line says where it cannot."""
    plugin = pathlib.Path(options.train).parent.parent / "lib" / "libstarling_cuda.so"
    if plugin.exists() and b"libnccl.so" in plugin.read_bytes():
        return True
    note(f"{what} over NCCL", None, "this build has no NCCL")
    return False


def parser_of(doc, at_a_time=2):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default=jobs.BUILD / "bin" / "starling-train")
    parser.add_argument("--out", type=pathlib.Path, help="what is said goes to this file, too")
    parser.add_argument("--jobs", type=int, default=at_a_time, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=120, help="limit of one run")
    return parser


def begin(parser, options):
    """Where runs have their folders. Ended from outside, nothing of them stays behind."""
    if not os.access(options.train, os.X_OK):
        parser.error(f"--train: {options.train} is missing; build it first")
    options.work, globals()["OUT"] = tempfile.mkdtemp(prefix="starling-gpu-"), options.out

    def give_up(*_):
        for job in list(RUNNING):
            job.kill()
        shutil.rmtree(options.work, ignore_errors=True)
        os._exit(124)

    signal.signal(signal.SIGTERM, give_up)


def finish(options, checks):
    """The exit status of checks, functions that give whether all is well, some at a time."""
    try:
        with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
            good = list(pool.map(lambda check: check(), checks))
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    return 0 if all(good) else 1
