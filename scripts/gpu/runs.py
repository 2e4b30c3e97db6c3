"""Runs of starling-train under mpirun, what they leave, and the rows of a report that checks of
them write."""

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
import subprocess
import tempfile
import threading

import processes

STEPS = 12


class Wrong(Exception):
    """What was found is not what must be."""


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


# --------------------------------------------------------------------------------------------- runs

RUNNING = set()
NOTING = threading.Lock()
WORK = ""


def give_up(*_):
    """Ended from outside: nothing stays behind, and no row says of a run that it failed."""
    NOTING.acquire(timeout=1)
    for run in list(RUNNING):
        run.kill()
    if WORK:
        shutil.rmtree(WORK, ignore_errors=True)
    os._exit(124)


class Run:
    """One mpirun. Each rank leaves its process number and its exit status in the run's folder."""

    RANK = (
        'export STARLING_SHARE_GPUS=1; "${@:2}" </dev/null & '
        'echo $! >"$1/pid-$OMPI_COMM_WORLD_RANK"; wait $!; s=$?; echo $s >"$1/status-$OMPI_COMM_WORLD_RANK"; exit $s'
    )
    # NCCL refuses ranks that share a GPU unless it takes them for ranks of different hosts; other
    # transports then see several hosts, too.
    HOSTS = "export NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo; "

    def __init__(self, options, ranks, device, settings, arguments=(), recovery=False, folder=None):
        self.options, self.ranks, self.process = options, ranks, None
        self.folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="ranks-", dir=options.work))
        self.config, self.out = self.folder / "config.json", self.folder / "out"
        self.config.write_text(json.dumps(settings))
        self.command = ["mpirun", "--oversubscribe", "--bind-to", "none", *(["--enable-recovery"] if recovery else []), "-n", str(ranks)]
        self.command += ["bash", "-c", (self.HOSTS if settings.get("sync", {}).get("transport") == "nccl" else "") + self.RANK, "_", str(self.folder), options.train, str(self.config), "--device", device]
        self.command += ["--output", str(self.out), *arguments]

    def start(self):
        self.log = open(self.folder / "log", "w", encoding="utf-8")
        RUNNING.add(self)
        # Open MPI's folder in /tmp is all runs', and a run that begins as the last of others ends
        # may fail on it.
        environment = {**os.environ, "OMPI_MCA_orte_tmpdir_base": str(self.folder / "mpi")}
        # In a thread, where nothing of Python's may run between fork and exec: give_up() ends it,
        # not processes.start's signal.
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    def end(self, seconds):
        """The exit status; None where it did not end in time, and was ended."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()
            RUNNING.discard(self)
            self.process.wait()
            self.log.close()

    def kill(self):
        for rank in range(self.ranks):  # a rank that is stopped, or was left behind
            if not self.rank_file("status", rank) and self.rank_file("pid", rank):
                self.signal(rank, signal.SIGKILL)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, AttributeError):
            pass

    def go(self):
        """Runs to its end, which must be a good one."""
        self.start()
        status = self.end(self.options.seconds)
        if status != 0:
            raise Wrong(f"{'no end within %d s' % self.options.seconds if status is None else 'exit status %d' % status}: {self.last_words()}")
        return self

    def rank_file(self, kind, rank):
        path = self.folder / f"{kind}-{rank}"
        return path.read_text().strip() if path.exists() else ""

    def signal(self, rank, number):
        try:
            os.kill(int(self.rank_file("pid", rank)), number)
        except ProcessLookupError:
            pass

    def words(self):
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace").replace("\r", "\n")

    def issued(self):
        """Why steps were no graphs; empty where they were."""
        return ([line.strip() for line in self.words().splitlines() if "without CUDA graphs" in line] or [""])[-1][:300]

    def last_words(self):
        # mpirun draws lines
        lines = [line.strip() for line in self.words().splitlines() if line.strip(" -")]
        said = [line for line in lines if re.match(r"(rank \d+: )?\[[a-z][a-z ]*\] ", line)]
        return said[-1][:400] if said else " ".join(lines[-12:])[-800:] or "nothing was said"

    def metrics(self):
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def checkpoint(self, rank, step):
        return self.out / "checkpoints" / f"step-{step}" / f"rank-{rank}.safetensors"

    def parameters(self, step=STEPS):
        """Of each rank all that it trains, in one array."""
        return [parameters(self.checkpoint(rank, step)) for rank in range(self.ranks)]

    def keep(self, path, name):
        if self.options.keep:
            os.makedirs(self.options.keep, exist_ok=True)
            shutil.copyfile(path, pathlib.Path(self.options.keep) / name)


# -------------------------------------------------------------------------------------------- files


def read_safetensors(path):
    """(metadata, the tensors: type, shape and bytes by name)."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    return metadata, {n: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]]) for n, t in header.items()}


def parameters(path):
    """All fp32 parameters in one array, in the order of their names."""
    numbers = array.array("f")
    for name, (dtype, _, data) in sorted(read_safetensors(path)[1].items()):
        if name.startswith("model.") and dtype == "F32":
            numbers.frombytes(data)
    return numbers


def change_metadata(path, **changes):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    # As older versions wrote it: without digests, which would tell that the file was changed.
    (path.parent / "DONE").write_text(f"step {path.parent.name.removeprefix('step-')}\n")


def largest_difference(a, b):
    if len(a) != len(b) or not a:
        raise Wrong(f"{len(a)} numbers against {len(b)}")
    return max((float("inf") if not abs(x - y) < float("inf") else abs(x - y)) for x, y in zip(a, b))


def spans(path, rank=0):
    """(lane, name, begin, end) of a rank's timeline, in microseconds, as they begin."""
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    found = [(e["cat"], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e["pid"] == rank]
    return sorted(found, key=lambda span: span[2])


# ------------------------------------------------------------------------------- rows, command line

def note(options, title, good, remark):
    """A row of the report, at once: whoever is ended later has written it. good: None where it was
    skipped."""
    with NOTING:
        print(f"skipped: {title}: {remark}" if good is None else f"{title}: {remark}" if good else f"error: {title}: {remark}", flush=True)
        if options.out:
            with open(options.out, "a", encoding="utf-8") as file:
                file.write(f"| {title} | {'skipped' if good is None else 'pass' if good else '**FAIL**'} | {remark.replace('|', '/')} |\n")


def row(options, title, check, *arguments):
    """Whether it passed."""
    try:
        remark, good = check(options, *arguments), True
    except (Wrong, OSError, ValueError, KeyError) as error:
        remark, good = f"{type(error).__name__ + ': ' if not isinstance(error, Wrong) else ''}{error}", False
    note(options, title, good, remark)
    return good


def has_nccl(options, what):
    """Whether the plug-in of this build can; a row says where it cannot."""
    plugin = pathlib.Path(options.train).parent.parent / "lib" / "libstarling_cuda.so"
    if plugin.exists() and b"libnccl.so" in plugin.read_bytes():
        return True
    note(options, f"{what} over NCCL", None, "this build has no NCCL")
    return False


def parser_of(doc, jobs=2):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default=processes.built("starling-train"))
    parser.add_argument("--out", help="a row for a report is appended to it as soon as it is known")
    parser.add_argument("--keep", help="a folder for timelines")
    parser.add_argument("--jobs", type=int, default=jobs, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=120, help="limit of one run")
    return parser


def begin(parser, options):
    """Where runs have their folders."""
    signal.signal(signal.SIGTERM, give_up)
    if not os.access(options.train, os.X_OK):
        parser.error(f"--train: {options.train} is missing; build it first")
    globals()["WORK"] = options.work = tempfile.mkdtemp(prefix="starling-ranks-")


def finish(options, jobs):
    """The exit status of jobs, functions that give whether all is well, some at a time. The folders
    of their runs go, whatever happens."""
    try:
        with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
            good = list(pool.map(lambda job: job(), jobs))
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    return 0 if all(good) else 1
