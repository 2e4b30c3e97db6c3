"""What the scripts share that start Starling's programs: where they are, jobs of mpirun and what
their ranks leave, emulated hosts, time limits, and the results of a run."""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib

sys.dont_write_bytecode = True  # the folder of scripts stays as it is
ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("STARLING_BUILD", ROOT / "build")).absolute()
NETLAB = ROOT / "scripts" / "netlab" / "netlab"
MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "-n")
NAME = os.path.basename(sys.argv[0])
PR_SET_PDEATHSIG = 1
try:
    LIBC = ctypes.CDLL(None, use_errno=True)
except OSError:  # no libc to ask: processes may outlive a killed script then
    LIBC = None


class Skipped(Exception):
    """This machine cannot do it; the text says why."""


class Failed(Exception):
    """A program failed, or what it did is not right; the text says how."""


# ------------------------------------------------------------------------------------- programs


def built(name):
    """The path of a program that may be missing."""
    return str(BUILD / "bin" / name)


def program(name, dry_run=False):
    if not dry_run and not os.access(built(name), os.X_OK):
        raise Skipped(f"{built(name)} is missing; build it with scripts/test.sh, or name the build folder in STARLING_BUILD")
    return built(name)


def need(*names):
    """The paths of programs; ends with 2 where one is not built."""
    try:
        return [program(name) for name in names]
    except Skipped as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        sys.exit(2)


def environment(**more):
    """This process's, with what Open MPI needs to be told as root and in containers."""
    result = {**os.environ, **{key: os.environ.get(key, value) for key, value in {"HWLOC_HIDE_ERRORS": "2"}.items()}}
    if os.geteuid() == 0:
        result.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return {**result, **more}


def one_thread(**more):
    """For measurements: one thread a rank, ours and others'."""
    return environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", LOGURU_LEVEL="WARNING", PYTHONWARNINGS="ignore", **more)


def outer_libraries():
    """PyTorch runs on the libraries that it was shipped with, not on what gpu_check.sh puts into
    the path."""
    return environment(LD_LIBRARY_PATH=os.environ.get("STARLING_OUTER_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", "")))


def die_with_parent():
    """In a child, before its program starts: it gets SIGTERM when its parent ends, killed or
    not."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(command, **options):
    """A process in a group of its own, so that end() reaches what it starts."""
    return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, start_new_session=True, **options)


def end(process, patience=5.0):
    """SIGTERM to the group, and SIGKILL to what is left of it. One that a driver holds is left
    behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            pass


def stop_on_sigterm():
    """What this script has started ends with it, and its temporary folders go."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


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
    end_of = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end_of:
            return False
        time.sleep(pause)
    return True


def outputs_of(commands, what, limit=900.0, dry_run=False, verbose=False):
    """Starts all (command, environment) at once and gives their outputs; None in a dry run, which
    prints the commands. A failure or the time limit ends all of them."""
    for command, _ in commands if dry_run or verbose else ():
        print("  " + " ".join(shlex.quote(str(word)) for word in command), file=sys.stdout if dry_run else sys.stderr, flush=True)
    if dry_run:
        return None
    end_of, processes, outputs = time.monotonic() + limit, [], []
    try:
        for command, env in commands:
            processes.append(start(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent))
        for process in processes:
            try:
                out, err = process.communicate(timeout=max(1.0, end_of - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failed(f"{what}: no end within {limit:.0f} s") from None
            if process.returncode == 77:
                raise Skipped(err.strip().splitlines()[-1] if err.strip() else f"{what}: not possible here")
            if process.returncode != 0:
                words = [line for line in (err + out).strip().splitlines() if line.strip(" -")]
                raise Failed(f"{what}: exit status {process.returncode}: " + " | ".join(words[-3:])[-600:])
            outputs.append(out)
    finally:
        for process in processes:
            if process.poll() is None:
                end(process, 1.0)
    return outputs


def last_json(text):
    """The last line of an output that is JSON."""
    for line in reversed(text.splitlines()):
        if line.startswith(("{", "[")):
            try:
                return json.loads(line)
            except ValueError:  # a line that a program says of one of its parts: [nccl] ...
                pass
    raise ValueError("no JSON in the output")


class Ended:
    """A program that has ended: its status (None: not within the limit), what it said, and the
    seconds that it took; after the signal, where it was sent one: signalled = (seconds, signal)."""

    def __init__(self, command, folder, limit, cwd=None, signalled=None):
        os.makedirs(folder + "/mpi", exist_ok=True)
        begin = time.monotonic()
        with open(folder + "/stdout", "w") as out, open(folder + "/stderr", "w") as err:
            process = start(command, stdout=out, stderr=err, cwd=cwd, env=environment(OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_orte_tmpdir_base=folder + "/mpi"))
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


class Job:
    """Ranks under mpirun, or on the hosts of a lab, that are watched and killed one by one. Each
    leaves its process number, its exit status with the time, and what it writes to stderr in
    files of `folder`: mpirun tells the status of one rank alone.

    launcher: what comes before the command (mpirun by default); before: shell commands of each
    rank before it starts the program; `wrap` is a variable that they may set, words in front of
    it."""

    RANK = r"""
rank=$OMPI_COMM_WORLD_RANK
wrap=""
%s
$wrap "$@" </dev/null 2>"$0/err.$rank" &
echo $! >"$0/pid.$rank.new" && mv "$0/pid.$rank.new" "$0/pid.$rank"
status=0
wait $! || status=$?
echo "$status $(date +%%s.%%N)" >"$0/status.$rank.new" && mv "$0/status.$rank.new" "$0/status.$rank"
exit $status
"""

    def __init__(self, folder, ranks, command, launcher=None, before="", env=None, options=()):
        self.folder, self.ranks = str(folder), ranks
        os.makedirs(self.folder + "/mpi", exist_ok=True)
        for rank in range(ranks):
            for kind in "pid", "status", "err":
                pathlib.Path(f"{self.folder}/{kind}.{rank}").unlink(missing_ok=True)
        # Open MPI's folder in /tmp is all jobs', and one that begins as the last of others ends may
        # fail on it.
        env = env or environment(OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_orte_tmpdir_base=self.folder + "/mpi")
        with open(self.folder + "/log", "w") as log:
            self.process = start([*(launcher or [*MPIRUN, ranks]), *options, "bash", "-c", self.RANK % before, self.folder, *command], stdout=log, stderr=log, env=env)

    def over(self):
        return self.process.poll() is not None

    def pids(self):
        """By rank, of those that have started."""
        return {rank: int(text) for rank in range(self.ranks) if (text := read(f"{self.folder}/pid.{rank}").strip())}

    def statuses(self):
        """(exit status, seconds since 1970) by rank, of those that have ended."""
        words = {rank: read(f"{self.folder}/status.{rank}").split() for rank in range(self.ranks)}
        return {rank: (int(found[0]), float(found[1])) for rank, found in words.items() if len(found) == 2}

    def said(self, *ranks):
        return "".join(read(f"{self.folder}/err.{rank}") for rank in ranks or range(self.ranks))

    def words(self):
        """All that was said, mpirun's words too."""
        return (read(self.folder + "/log") + self.said()).replace("\r", "\n")

    def signal(self, rank, number):
        try:
            os.kill(self.pids()[rank], number)
        except (KeyError, ProcessLookupError):
            pass

    def wait(self, seconds):
        """The exit status; None where it did not end in time, and was ended."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self):
        if self.over() and len(self.statuses()) == len(self.pids()):
            return
        ended = self.statuses()
        for rank in range(self.ranks):  # one that is stopped, or was left behind
            if rank not in ended:
                self.signal(rank, signal.SIGKILL)
        end(self.process, 1.0)


def png(width, height, rows):
    """A picture of rows of bytes."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b"")


# ------------------------------------------------------------------------------ what a run leaves


def split_safetensors(data):
    """(header as a dict, where the tensors' bytes begin)."""
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), 8 + length


def tensors(path):
    """The tensors of a .safetensors file, to be compared; its metadata say by what config they were
    trained."""
    data = pathlib.Path(path).read_bytes()
    header, begin = split_safetensors(data)
    header.pop("__metadata__", None)
    return header, data[begin:]


def json_lines(path):
    """Those that are whole."""
    return [json.loads(line) for line in read(path).splitlines() if line.endswith("}")]


def metrics(run):
    return json_lines(f"{run}/metrics.jsonl")


def count_of_lines(run):
    """Of an output folder's metrics, while they are written."""
    return read(f"{run}/metrics.jsonl").count("\n")


def losses(run):
    """By step; a resumed run tells its last steps again."""
    return {entry["step"]: entry["loss"] for entry in metrics(run) if "loss" in entry}


def differs(run, reference):
    """What of a run's end is other than the (tensors, losses) of another."""
    wrong = ["the model has other bits"] if tensors(run + "/model.safetensors") != reference[0] else []
    return wrong + (["the losses differ"] if losses(run) != reference[1] else [])


def step_of(run, skip=1):
    """Medians over the windows after the first, of the slowest rank."""
    lines = [line for line in metrics(run) if "step_ms" in line][skip:]
    summary = json.loads(read(f"{run}/summary.json"))
    result = {key: statistics.median(line[key] for line in lines) for key in ("step_ms", "wait_ms", "images_per_second") if all(key in line for line in lines)}
    result.update({key: summary[key] for key in ("transport", "peak_memory_bytes") if key in summary})
    if "auto" in summary:
        result["auto"] = {key: summary["auto"][key] for key in ("topology", "bucket_mb", "predicted_step_ms", "compute_ms")}
    return result


# ----------------------------------------------------------------------------------- measurements


class Setup:
    """How long to measure, and what only to print."""

    def __init__(self, quick=False, dry_run=False, verbose=False, repeats=0, seconds=0.0, timeout=900.0):
        self.quick, self.dry_run, self.verbose, self.timeout = quick, dry_run, verbose, timeout
        self.repeats = repeats or (1 if quick else 3)
        self.seconds = seconds or (4.0 if quick else 20.0)  # of a run

    def outputs(self, commands, what):
        return outputs_of(commands, what, self.timeout, self.dry_run, self.verbose)

    def steps(self, step_seconds):
        """Whole periods of up to four rounds, and at least two windows of metrics, of which the
        first is not counted."""
        most = 100 if self.quick else 1000
        return max(8, 4 * int(min(most, self.seconds / max(step_seconds, 1e-4)) / 4))


class Lab:
    """Emulated hosts on links of a chosen rate. Use in `with`."""

    def __init__(self, setup, hosts, rate, slow_host_rate=None, delay_us=0):
        self.setup, self.hosts, self.rate, self.slow, self.delay_us = setup, hosts, rate, slow_host_rate, delay_us
        self.env = one_thread(NETLAB_NAME=os.environ.get("NETLAB_NAME", "bench"))

    def call(self, *words):
        return self.setup.outputs([([NETLAB, *words], self.env)], "netlab " + " ".join(map(str, words)))

    def __enter__(self):
        self.call("up", self.hosts, self.rate, self.delay_us)
        if self.slow:
            self.call("rate", self.hosts - 1, self.slow)
        return self

    def __exit__(self, *_):
        self.call("down")

    def sent_bytes(self):
        """What each host's interface has sent so far, frames and all."""
        if self.setup.dry_run:
            return [0] * self.hosts
        return [int(self.call("exec", host, "cat", "/sys/class/net/eth0/statistics/tx_bytes")[0]) for host in range(self.hosts)]


def window(steps):
    """Steps between two lines of metrics: whole periods of the topologies here, as ranks are not in
    the same round's wait at the same time."""
    return max(4, 4 * (steps // 24))


def bench_config(keys, batch, steps, sync, optimizer=None, log_every=0):
    return {
        "threads": 1, "data": {"type": "synthetic", "test_limit": 16}, "batch_size": batch, "steps": steps, "log_every": log_every or window(steps), "tensorboard": False,
        "optimizer": optimizer or {"type": "sgd", "lr": 0.001, "momentum": 0.9}, "sync": {"timeout_s": 900, **sync},
        "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, **keys,
    }  # fmt: skip


def processor_ticks():
    """(Busy, all) of this machine's processors so far, whatever keeps them busy."""
    fields = [int(word) for word in read("/proc/stat").split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def train(setup, keys, batch, steps, sync, ranks=2, lab=None, per_host=1, wrap=(), optimizer=None, log_every=0):
    """A job of the trainer on this machine, or `per_host` ranks on each host of a lab; wrap: words
    before the program."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps(bench_config(keys, batch, steps, sync, optimizer, log_every)))
        command = [*([NETLAB, "run", per_host] if lab else [*MPIRUN, ranks]), *wrap, program("starling-train", setup.dry_run), config, "--output", f"{folder}/run"]
        before = processor_ticks()
        setup.outputs([(command, lab.env if lab else one_thread())], f"training with {sync}")
        busy, everything = (after - begun for after, begun in zip(processor_ticks(), before))
        if setup.dry_run:
            return {"step_ms": 1.0, "wait_ms": 0.0, "transport": "", "busy": 0.0}
        return {**step_of(f"{folder}/run"), "busy": busy / max(everything, 1)}


def train_alone(setup, keys, batch, steps, ranks, optimizer=None):
    """Computation alone: as many jobs of one rank side by side, so that they share cores and memory
    as the ranks do; the slowest one's."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps(bench_config(keys, batch, steps, {}, optimizer)))
        setup.outputs([([program("starling-train", setup.dry_run), config, "--output", f"{folder}/{i}"], one_thread()) for i in range(ranks)], "training alone")
        if setup.dry_run:
            return {"step_ms": 1.0, "wait_ms": 0.0}
        runs = [step_of(f"{folder}/{i}") for i in range(ranks)]
    return {"wait_ms": 0.0, **{key: max(run[key] for run in runs) for key in ("step_ms", "peak_memory_bytes")}}


def torch_ranks(command, ranks, lab=None):
    """The command for each rank of a PyTorch job over gloo, with torchrun's variables."""
    address, interface = ("10.77.0.1", "eth0") if lab else ("127.0.0.1", "lo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    commands = []
    for rank in range(ranks):
        env = one_thread(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR=address, MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=interface,
                         LOCAL_RANK="0" if lab else str(rank), LOCAL_WORLD_SIZE="1" if lab else str(ranks))  # fmt: skip
        if lab:
            env["NETLAB_NAME"] = lab.env["NETLAB_NAME"]
        commands.append(([NETLAB, "exec", rank, *command] if lab else command, env))
    return commands


def peer(setup, about, batch, steps, ranks=1, lab=None, wrap=()):
    """PyTorch's step (scripts/peers/step.py), its DDP or decent-dp over gloo, one process a host of
    the lab or `ranks` on this machine; about: {"kind", "model", ...} as there."""
    for package in ("torch", *(["decent_dp"] if about.get("kind") == "decent-dp" else [])):
        if not setup.dry_run and importlib.util.find_spec(package) is None:
            raise Skipped(f"the Python package {package} is missing (python3 -m pip install torch decent-dp==0.2.3)")
    about = {"batch": batch, "steps": steps, "window": window(steps), **about}
    outputs = setup.outputs(torch_ranks([*wrap, sys.executable, "-B", ROOT / "scripts/peers/step.py", "train", json.dumps(about)], ranks, lab), f"PyTorch, {about.get('kind')}")
    if outputs is None:
        return {"step_ms": 1.0}
    results = [last_json(output) for output in outputs]
    return {key: max(result[key] for result in results) for key in results[0]}


def alternate(variants, setup):
    """Runs each of {name: function} once a repeat, in turn. A variant that fails or cannot run
    leaves its reason. {name: result}: medians of all numbers."""
    runs, reasons = {name: [] for name in variants}, {}
    for repeat in range(1 if setup.dry_run else setup.repeats):
        for name, function in variants.items():
            if name in reasons:
                continue
            if setup.dry_run:
                print(f" {name}:")
            try:
                runs[name].append(function())
            except (Skipped, Failed) as error:
                reasons[name] = ("skipped: " if isinstance(error, Skipped) else "failed: ") + str(error)
                print(f"    {name}: {reasons[name]}", file=sys.stderr, flush=True)
                continue
            if not setup.dry_run and "step_ms" in runs[name][-1]:
                print(f"    {repeat + 1}/{setup.repeats} {name}: {runs[name][-1]['step_ms']:.2f} ms", file=sys.stderr, flush=True)
    return {name: {"error": reasons[name]} if name in reasons else medians(found) for name, found in runs.items()}


def medians(runs):
    numbers = {key for key, value in runs[0].items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    return {**runs[0], "runs": runs, **{key: statistics.median(run[key] for run in runs) for key in numbers}}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def describe_machine():
    try:
        starling = subprocess.run([program("starling-train"), "--version"], capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    except (Skipped, IndexError):  # every row will say so
        starling = "not built"
    of = lambda key: (re.findall(rf"^{key}\s*: (.*)", read("/proc/cpuinfo"), re.M) or ["?"])[0]
    sets = [name for name in ("avx2", "avx512f", "amx_bf16") if name in of("flags").split()]
    return {"cpu": of("model name"), "cores": os.cpu_count(), "instruction_sets": sets, "starling": starling, "pytorch": version("torch"), "decent-dp": version("decent-dp")}
