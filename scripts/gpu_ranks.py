#!/usr/bin/env python3
"""Several ranks on one GPU against the CPU: what they learn, what one of them that overflows or dies does to the others, and their timeline.

  scripts/gpu_ranks.py agree    --ranks 4 [--transports nccl,staged]   every topology that allows the count ends where it does on the CPU, rank by rank
  scripts/gpu_ranks.py overflow [--transports …]     fp16: a rank whose gradients overflow takes the mix alone and halves its own loss scale
  scripts/gpu_ranks.py lost     [--transports …]     a rank is killed, another one stopped: the other ends with exit status 3 within timeout_s and names the exchange
  scripts/gpu_ranks.py trace    [--transports …]     the timeline has every bucket of every step in the device's lanes

Common: --train build-gpu/bin/starling-train, --out FILE (a row for a report is appended as soon as it is known), --topologies one-peer-exp,ring (of
agree; default: all), --jobs N runs at a time, --timeout N (sync.timeout_s of lost), --keep FOLDER (for timelines), --dry-run (the commands alone).
NCCL refuses ranks that share a GPU unless it takes them for ranks of different hosts: each gets a NCCL_HOSTID of its own, and they meet over the
loopback interface. Ranks that share a GPU take turns on it, some milliseconds each, and a kernel that waits for another rank uses up its turn: so few
jobs at a time, and a rank is lost only where nothing else runs. Exit status: 0 all as it must be, 1 something was not, 2 wrong usage.
"""

import argparse
import array
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 12
LONG = 10_000_000  # steps of a run that somebody ends
# Topologies that have settings here, by number of ranks; None: it is left out. All others of --list topologies take any of 1, 2, 4.
PAIRS = [[{"ranks": [0, 1]}, {"ranks": [2, 3]}], [{"ranks": [0, 3]}, {"ranks": [1, 2]}]]
SETTINGS = {
    "alternating-exp-ring": {2: {"ranks_per_node": 1}, 4: {"ranks_per_node": 2}},
    "custom": {1: None, 2: None, 4: {"rounds": PAIRS}},
    "hierarchical": {2: {"ranks_per_node": 1, "inter": {"type": "complete"}}, 4: {"ranks_per_node": 2, "inter": {"type": "complete"}}},
}
TOPOLOGIES = (
    "alternating-exp-ring base-2 complete custom directed-exp hierarchical hypercube one-peer-exp random-matching ring shift-one star "
    "static-exp static-ring torus"
).split()


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
        result[key] = {**result[key], **value} if isinstance(value, dict) else value
    return result


RUNNING = set()
WORK = ""


def give_up(*_):
    """Ended from outside: nothing stays behind."""
    for run in list(RUNNING):
        run.kill()
    if WORK:
        shutil.rmtree(WORK, ignore_errors=True)
    os._exit(124)


class Run:
    """One mpirun. Each rank leaves its process number and its exit status in the run's folder."""

    RANK = (
        'export NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo STARLING_SHARE_GPUS=1; "${@:2}" </dev/null & '
        'echo $! >"$1/pid-$OMPI_COMM_WORLD_RANK"; wait $!; s=$?; echo $s >"$1/status-$OMPI_COMM_WORLD_RANK"; exit $s'
    )

    def __init__(self, options, ranks, device, settings, arguments=(), recovery=False, folder=None):
        self.options, self.ranks = options, ranks
        self.folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="ranks-", dir=options.work))
        self.config = self.folder / "config.json"
        self.out = self.folder / "out"
        if not options.dry_run:
            self.config.write_text(json.dumps(settings))
        self.command = ["mpirun", "--oversubscribe", "--bind-to", "none", *(["--enable-recovery"] if recovery else []), "-n", str(ranks)]
        self.command += ["bash", "-c", self.RANK, "_", str(self.folder), options.train, str(self.config), "--device", device]
        self.command += ["--output", str(self.out), *arguments]
        self.settings = settings
        self.process = None

    def start(self):
        self.log = open(self.folder / "log", "w", encoding="utf-8")
        RUNNING.add(self)
        # Open MPI's folder in /tmp is all runs', and a run that begins as the last of others ends may fail on it.
        environment = {**os.environ, "OMPI_MCA_orte_tmpdir_base": str(self.folder / "mpi")}
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                                        start_new_session=True)  # fmt: skip

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
        """Runs to its end, which must be a good one. In a dry run: says what would run."""
        if self.options.dry_run:
            print("    " + " ".join(shlex.quote(word) if word != self.RANK else "'RANK'" for word in self.command))
            print("      config: " + json.dumps(self.settings))
            return self
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

    def last_words(self):
        lines = [line.strip() for line in self.words().splitlines() if line.strip(" -")]  # mpirun draws lines
        said = [line for line in lines if re.match(r"(rank \d+: )?\[[a-z][a-z ]*\] ", line)]
        return said[-1][:400] if said else " ".join(lines[-12:])[-800:] or "nothing was said"

    def lines(self):
        path = self.out / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def state(self, rank, step):
        return read_safetensors(self.out / "checkpoints" / f"step-{step}" / f"rank-{rank}.safetensors")


# ---------------------------------------------------------------------------------------------------------------- files


def read_safetensors(path):
    """(metadata, all fp32 parameters in one array in the order of their names)."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    numbers = array.array("f")
    for name in sorted(header):
        if name.startswith("model.") and header[name]["dtype"] == "F32":
            begin, end = header[name]["data_offsets"]
            numbers.frombytes(data[8 + size + begin : 8 + size + end])
    return metadata, numbers


def tensors(path):
    """All of a file but its metadata, which say by what config a model was trained."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, data[8 + size :]


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


# ---------------------------------------------------------------------------------------------------------------- checks


def topology_section(name, ranks):
    settings = SETTINGS.get(name, {}).get(ranks, {})
    return None if settings is None else {"type": name, **settings}


def agree_job(options, name, settings, transports):
    """Rows (what, verdict, remark) of one config on the CPU and on the GPU."""
    ranks, rows = options.ranks, []
    what = f"{ranks} rank{'s' * (ranks > 1)}, {name}"
    try:
        cpu = Run(options, ranks, "cpu", settings).go()
        if options.dry_run:
            expected = []
        else:
            expected = [cpu.state(rank, STEPS)[1] for rank in range(ranks)]
    except (Wrong, OSError) as error:
        return [(f"{what}, on the CPU", False, str(error))]
    for transport in transports:
        title = f"{what}, {transport}" if ranks > 1 else what
        on_gpu = {**settings, "sync": {**settings["sync"], "transport": transport}} if ranks > 1 else settings
        try:
            gpu = Run(options, ranks, "cuda", on_gpu).go()
            if options.dry_run:
                continue
            computed = [gpu.state(rank, STEPS)[1] for rank in range(ranks)]
            difference = max(largest_difference(a, b) for a, b in zip(computed, expected))
            apart = max(largest_difference(expected[0], other) for other in expected)
            size = max(map(abs, expected[0]))
            bf16 = settings["sync"].get("exchange") == "bf16"
            limit = min([1e-4 * size, 0.02 * apart] if not bf16 and apart > 0 else [2e-2 * size if bf16 else 1e-4 * size])
            remark = f"largest difference {difference:.2g}, allowed {limit:.2g}; ranks are {apart:.2g} apart"
            if apart == 0 and ranks > 1 and settings["sync"].get("algorithm") != "allreduce":
                raise Wrong(remark + ": the run shows nothing of the exchange")
            if not difference <= limit:
                raise Wrong(remark)
            rows.append((title, True, remark))
        except (Wrong, OSError) as error:
            rows.append((title, False, str(error)))
    return rows


def agree(options):
    known = set(TOPOLOGIES)
    if not options.dry_run:
        listed = subprocess.run([options.train, "--list", "topologies"], capture_output=True, text=True, check=False).stdout.split()
        if set(listed) != known:
            row = ("the topologies", False, f"{sorted(set(listed) ^ known)} stand on one side only: of --list topologies, and of this script")
            note(options, *row)
            return [row]
    jobs = []
    for name in options.topologies:
        section = topology_section(name, options.ranks)
        if section:
            jobs.append((name, config(sync={"topology": section})))
    jobs.append(("allreduce", config(sync={"algorithm": "allreduce", "topology": None})))
    if options.ranks == 2 or options.ranks > 2 and set(options.topologies) == known:
        jobs.append(("base-2, bf16 on the wire", config(sync={"topology": {"type": "base-2"}, "exchange": "bf16"})))
    transports = options.transports if options.ranks > 1 else ["none"]
    return at_a_time(options, jobs, lambda job: agree_job(options, *job, transports))


def overflow(options, transport):
    """semantics: a rank that overflows sets x(t+1) = c and halves its scale; the other one learns on."""
    settings = config(precision="fp16", steps=4, checkpoint={"every_steps": 1}, sync={"transport": transport})
    first = Run(options, 2, "cuda", settings).go()
    again = Run(options, 2, "cuda", {**settings, "steps": 5}, ("--resume", str(first.out)), folder=first.folder)
    if options.dry_run:
        again.go()
        return "rank 1's scale is 2^60 in the checkpoint between the two"
    change_metadata(first.out / "checkpoints" / "step-4" / "rank-1.safetensors", loss_scale="0x1p+60")
    before = [first.state(rank, 4) for rank in range(2)]
    again.go()
    after = [again.state(rank, 5) for rank in range(2)]
    mixed = array.array("f", (0.5 * a + 0.5 * b for a, b in zip(before[0][1], before[1][1])))
    off = largest_difference(after[1][1], mixed)
    if off > 1e-6:
        raise Wrong(f"rank 1 overflowed, but is {off:.2g} off the mix")
    moved = largest_difference(after[0][1], mixed)
    if not 1e-6 < moved < 10:
        raise Wrong(f"rank 0 did not overflow, but moved by {moved:.2g}")
    scales = [[float.fromhex(state[0]["loss_scale"]) for state in (before[rank], after[rank])] for rank in range(2)]
    counts = [[int(state[0]["optimizer_step"]) for state in (before[rank], after[rank])] for rank in range(2)]
    if scales[1] != [2.0**60, 2.0**59] or scales[0][0] != scales[0][1]:
        raise Wrong(f"loss scales before and after: {scales}")
    if counts[1][0] != counts[1][1] or counts[0][0] + 1 != counts[0][1]:
        raise Wrong(f"the optimizer's steps before and after: {counts}")
    return f"rank 1 takes the mix ({off:.1g} off) and halves its scale, rank 0 learns on"


def exchange_named(words):
    """The last line by which a transport says in which step, bucket and round an exchange failed, or which rank has ended, and in which step
    this one was; empty where none does."""
    failed = r"\[(transport|nccl)\] .*\bstep \d+\b.*, buckets? \d+( to \d+)?, round \d+"
    ended = r"\[transport\] rank \d+ on host \S+ has ended: .*\bstep \d+"
    lines = [line.strip() for line in words.splitlines() if re.search(f"{failed}|{ended}", line)]
    return (lines or [""])[-1]


def lost(options, transport, how):
    # Past the captures, on which ranks agree, and with lines so rare that nobody waits for the sums in them: what fails is an exchange.
    settings = config(steps=LONG, checkpoint={"every_steps": 0}, log_every=8, sync={"transport": transport, "timeout_s": options.timeout})
    run = Run(options, 2, "cuda", settings, recovery=how == signal.SIGKILL)
    if options.dry_run:
        run.go()
        return f"rank 1 gets {how.name}"
    run.start()
    begin = time.monotonic()
    while run.lines() < 3 and run.process.poll() is None and time.monotonic() - begin < options.seconds:
        time.sleep(0.05)
    if run.lines() < 3:
        status = run.end(1)
        raise Wrong(f"no training before the rank was to be lost (exit status {status}): {run.last_words()}")
    run.signal(1, how)
    begin = time.monotonic()
    limit = options.timeout + 10
    while not run.rank_file("status", 0) and run.process.poll() is None and time.monotonic() - begin < limit:
        time.sleep(0.05)
    took = time.monotonic() - begin
    time.sleep(0.3)
    ended = run.rank_file("status", 0)
    status = run.end(5)
    if not ended and status is not None:  # mpirun was faster than the rank's shell
        ended = str(status)
    if ended != "3":
        raise Wrong(f"rank 0 {'ended with %s' % ended if ended else 'had not ended'} {took:.1f} s after rank 1 was lost: {run.last_words()}")
    named = exchange_named(run.words())
    if not named:
        raise Wrong(f"no line says in which step the exchange failed, or who has ended: {run.last_words()}")
    return f"exit status 3 after {took:.1f} s with timeout_s {options.timeout:g}: {named[:200]}"


def keep(options, path, name):
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
        shutil.copyfile(path, pathlib.Path(options.keep) / name)


def trace(options, transport):
    run = Run(options, 2, "cuda", config(cuda_graphs=False, sync={"transport": transport}), ())  # a graph is one span
    timeline = run.folder / "trace.json"
    run.command += ["--trace", str(timeline)]
    run.go()
    if options.dry_run:
        return "lanes of the device"
    keep(options, timeline, f"trace-{transport}.json")
    events = json.loads(timeline.read_text())
    events = [event for event in (events["traceEvents"] if isinstance(events, dict) else events) if event.get("ph") == "X"]
    counts = []
    for rank in range(2):
        named = {}
        for event in events:
            if event["pid"] == rank:
                named.setdefault((event["cat"], event["name"]), []).append(event)
        buckets = {name for lane, name in named if lane == "update"}
        if len(buckets) < 2:
            raise Wrong(f"rank {rank}: {len(buckets)} buckets on the host's lane of updates")
        wanted = {("compute (device)", "forward"): STEPS, ("compute (device)", "backward"): STEPS}
        for name in buckets:
            wanted["update (device)", name] = STEPS
            wanted["compute (device)", name.replace("update", "backward")] = STEPS
            for verb in ("exchange",) if transport == "nccl" else ("send", "receive"):
                wanted["exchange (device)", name.replace("update", verb)] = STEPS - 1
        for key, least in wanted.items():
            found = named.get(key, [])
            if len(found) < least or any(event["dur"] < 0 for event in found):
                raise Wrong(f"rank {rank}: '{key[1]}' stands {len(found)} times in the lane '{key[0]}', at least {least} are due")
        counts.append(sum(len(found) for (lane, _), found in named.items() if "(device)" in lane))
    return f"{' and '.join(map(str, counts))} spans in the device's lanes"


# ---------------------------------------------------------------------------------------------------------------- command line


NOTING = threading.Lock()


def note(options, title, good, remark):
    """A row of the report, at once: whoever is ended later has written it. good: None where it was skipped."""
    with NOTING:
        print(f"skipped: {title}: {remark}" if good is None else f"{title}: {remark}" if good else f"error: {title}: {remark}", flush=True)
        if options.out:
            with open(options.out, "a", encoding="utf-8") as file:
                file.write(f"| {title} | {'skipped' if good is None else 'pass' if good else '**FAIL**'} | {remark.replace('|', '/')} |\n")


def at_a_time(options, jobs, check):
    """All rows of check(job), options.jobs of them at a time; each is noted as soon as it is known."""

    def one(job):
        rows = check(job)
        for row in rows if not options.dry_run else []:
            note(options, *row)
        return rows

    with concurrent.futures.ThreadPoolExecutor(1 if options.dry_run else options.jobs) as pool:
        return [row for rows in pool.map(one, jobs) for row in rows]


def row_of(options, check, arguments, note):
    title = f"{options.what}, {arguments[0]}{note}"
    try:
        return (title, True, check(options, *arguments))
    except (Wrong, OSError, ValueError, KeyError) as error:
        return (title, False, f"{type(error).__name__ + ': ' if not isinstance(error, Wrong) else ''}{error}")


def has_nccl(train):
    return "NCCL" in subprocess.run([train, "--version"], capture_output=True, text=True, check=False).stdout


def begin(parser, options):
    """Where runs have their folders; nothing is made in a dry run."""
    if hasattr(options, "topologies"):
        options.topologies = sorted(TOPOLOGIES) if options.topologies == "all" else options.topologies.split(",")
        for name in sorted(set(options.topologies) - set(TOPOLOGIES)):
            parser.error(f"--topologies: unknown {name}; known: all, {', '.join(TOPOLOGIES)}")
    signal.signal(signal.SIGTERM, give_up)
    options.jobs = max(1, options.jobs)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    options.work = "WORK"
    if options.dry_run:
        tempfile.mkdtemp = lambda prefix, dir: f"{dir}/run"
        print(f"    RANK stands for: {Run.RANK}")
        return
    if not os.access(options.train, os.X_OK):
        parser.error(f"--train: {options.train} is missing; build it first")
    globals()["WORK"] = options.work = tempfile.mkdtemp(prefix="starling-ranks-")


def common_arguments(parser):
    parser.add_argument("--topologies", default="all", help="of agree")
    parser.add_argument("--train", default=os.environ.get("STARLING_BUILD", str(ROOT / "build-gpu")) + "/bin/starling-train")
    parser.add_argument("--out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="limit of one run")
    parser.add_argument("--timeout", type=float, default=15, help="sync.timeout_s of lost")
    parser.add_argument("--dry-run", action="store_true")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agree", "overflow", "lost", "trace"])
    parser.add_argument("--ranks", type=int, choices=[1, 2, 4], default=2, help="of agree")
    parser.add_argument("--transports", default="nccl,staged")
    common_arguments(parser)
    parser.add_argument("--keep")
    options = parser.parse_args()
    options.transports = options.transports.split(",")
    unknown = sorted(set(options.transports) - {"nccl", "staged"})
    if unknown:
        parser.error(f"--transports: unknown {unknown[0]}; known: nccl, staged")
    begin(parser, options)
    rows, skipped = [], []
    needs_nccl = not (options.what == "agree" and options.ranks == 1)
    if "nccl" in options.transports and needs_nccl and not options.dry_run and not has_nccl(options.train):
        options.transports.remove("nccl")
        skipped.append((f"{options.what}{f', {options.ranks} ranks,' if options.what == 'agree' else ''} over NCCL", "this build has no NCCL"))
    for title, reason in skipped:
        note(options, title, None, reason)
    try:
        if options.what == "agree":
            rows = agree(options)
        else:
            cases = [(lost, (transport, how), f", {how.name}") for transport in options.transports for how in (signal.SIGKILL, signal.SIGSTOP)]
            if options.what != "lost":
                cases = [({"overflow": overflow, "trace": trace}[options.what], (transport,), "") for transport in options.transports]
            rows = at_a_time(options, cases, lambda case: [row_of(options, *case)])
    finally:
        if not options.dry_run:
            shutil.rmtree(options.work, ignore_errors=True)
    return status_of(options, rows)


def finish(options, checks):
    """The exit status of `checks`, which gives rows. The folders of its runs go, whatever happens."""
    try:
        rows = checks()
    finally:
        if not options.dry_run:
            shutil.rmtree(options.work, ignore_errors=True)
    return status_of(options, rows)


def status_of(options, rows):
    """The exit status."""
    return 0 if options.dry_run or all(good for _, good, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
