"""Runs the programs that comm_bench compares: the trainer on one machine or across emulated
hosts, and PyTorch's side (peers.py)."""

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
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NETLAB = ROOT / "scripts" / "netlab" / "netlab"

ADAMW = {"type": "adamw", "lr": 1e-3, "weight_decay": 0.1}
# name: (config section, bytes of fp32 parameters)
MODELS = {
    "resnet20": ({"type": "resnet20"}, 4 * 269_722),
    "resnet18": ({"type": "resnet18", "stem": "cifar"}, 4 * 11_173_962),
    "mlp": ({"type": "mlp", "hidden": [512, 512]}, 4 * 1_841_162),
    "mlp25": ({"type": "mlp", "hidden": [2048] * 5 + [1024]}, 4 * 25_184_266),
}


def with_device_time(seconds):
    """mlp25 whose layers take so many seconds in all, forward and backward, beside their
    arithmetic, and no processor for it."""
    ms = 1e3 * seconds / 3 / 7
    layers = [{"type": "flatten"}]
    for width in [2048] * 5 + [1024]:
        layers += [{"type": "linear", "out_features": width}, {"type": "relu"}, {"type": "device_time", "ms": ms}]
    layers += [{"type": "linear", "out_features": 10}, {"type": "device_time", "ms": ms}]
    return {"type": "sequential", "num_classes": 10, "layers": layers}


def device_time_plugin(setup):
    """The library of the layer device_time, built once beside the programs."""
    build = pathlib.Path(os.environ.get("STARLING_BUILD", ROOT / "build")).absolute()
    folder = build / "device_time"
    for command in (["cmake", "-S", HERE / "device_time", "-B", folder, f"-Dstarling_DIR={build}", "-DSTARLING_CUDA=OFF"],
                    ["cmake", "--build", folder]):
        run_all([(command, environment())], setup, "building the layer device_time")
    return folder / "libdevice_time.so"


class Skipped(Exception):
    """This machine cannot do it; the text says why."""


class Failed(Exception):
    """A program failed; the text has its last words."""


class Setup:
    """How long to measure, and what only to print."""

    def __init__(self, arguments):
        self.quick, self.dry_run, self.verbose = arguments.quick, arguments.dry_run, arguments.verbose
        self.repeats = arguments.repeats or (1 if self.quick else 3)
        self.seconds = arguments.seconds or (4.0 if self.quick else 20.0)  # of a run
        self.timeout = arguments.timeout

    def steps(self, step_seconds):
        """Whole periods of up to four rounds, and at least two windows of metrics, of which the
        first is not counted."""
        most = 100 if self.quick else 1000
        return max(8, 4 * int(min(most, self.seconds / max(step_seconds, 1e-4)) / 4))


def program(name, setup=None):
    path = pathlib.Path(os.environ.get("STARLING_BUILD", ROOT / "build")).absolute() / "bin" / name
    if not path.exists() and not (setup and setup.dry_run):
        raise Skipped(f"{path} is missing; build it with scripts/test.sh, or name the build folder in STARLING_BUILD")
    return str(path)


def environment(**more):
    """One thread a rank for everybody."""
    result = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", LOGURU_LEVEL="WARNING", PYTHONWARNINGS="ignore")
    if os.geteuid() == 0:
        result.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    result.setdefault("HWLOC_HIDE_ERRORS", "2")
    result.update(more)
    return result


def run_all(commands, setup, what):
    """Starts all (command, environment) at once and gives their outputs. A failure or the time
    limit ends all of them."""
    if setup.dry_run:
        for command, _ in commands:
            print("  " + " ".join(shlex.quote(str(word)) for word in command))
        return None
    if setup.verbose:
        for command, _ in commands:
            print("  $ " + " ".join(shlex.quote(str(word)) for word in command), file=sys.stderr, flush=True)
    end = time.monotonic() + setup.timeout
    processes, outputs = [], []
    try:
        for command, env in commands:
            processes.append(subprocess.Popen([str(word) for word in command], env=env, cwd=ROOT, stdin=subprocess.DEVNULL,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
        for process in processes:
            try:
                out, err = process.communicate(timeout=max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failed(f"{what}: not done after {setup.timeout:.0f} s (--timeout)") from None
            if process.returncode == 77:
                raise Skipped(err.strip().splitlines()[-1] if err.strip() else f"{what}: not possible here")
            if process.returncode != 0:
                words = [line for line in (err + out).strip().splitlines() if line.strip(" -")]
                raise Failed(f"{what}: exit status {process.returncode}: " + " | ".join(words[-3:])[-600:])
            outputs.append(out)
    finally:
        for process in processes:
            if process.poll() is None:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    try:
                        os.killpg(process.pid, number)
                    except ProcessLookupError:
                        break
                    time.sleep(0.3)
                process.communicate()
    return outputs


class Lab:
    """Emulated hosts on links of a chosen rate. Use in `with`."""

    def __init__(self, setup, hosts, rate, slow_host_rate=None, delay_us=0):
        self.setup, self.hosts, self.rate, self.slow, self.delay_us = setup, hosts, rate, slow_host_rate, delay_us
        self.env = environment(NETLAB_NAME=os.environ.get("NETLAB_NAME", "bench"))

    def call(self, *words):
        return run_all([([NETLAB, *words], self.env)], self.setup, "netlab " + " ".join(map(str, words)))

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


def train_config(model, batch, steps, sync, optimizer=None):
    """`model`: a name of MODELS, or a dictionary of keys with a model of its own."""
    return {
        "threads": 1, "data": {"type": "synthetic", "test_limit": 16}, "batch_size": batch, "steps": steps,
        "log_every": window(steps), "tensorboard": False, "optimizer": optimizer or {"type": "sgd", "lr": 0.001, "momentum": 0.9},
        "sync": {"timeout_s": 900, **sync}, "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0},
        **(model if isinstance(model, dict) else {"model": MODELS[model][0]}),
    }


def window(steps):
    """Steps between two lines of metrics: whole periods of the topologies here, as ranks are not in
    the same round's wait at the same time."""
    return max(4, 4 * (steps // 24))


def read_run(folder):
    """Medians over the windows after the first, of the slowest rank."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "step_ms" in line][1:]
    summary = json.loads((folder / "summary.json").read_text())
    result = {key: statistics.median(line[key] for line in lines) for key in ("step_ms", "wait_ms")}
    result.update(transport=summary["transport"], peak_memory_bytes=summary["peak_memory_bytes"])
    if "auto" in summary:
        result["auto"] = {key: summary["auto"][key] for key in ("topology", "bucket_mb", "predicted_step_ms", "compute_ms")}
    return result


def processor_ticks():
    """(Busy, all) of this machine's processors so far, kernel and everything else that runs
    included."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def train(setup, model, batch, steps, sync, ranks=2, lab=None, per_host=1, slow_rank=None, optimizer=None, log_every=0):
    """A job of the trainer on this machine, or `per_host` ranks on each host of a lab; slow_rank:
    (rank, factor); log_every: steps of a window."""
    with tempfile.TemporaryDirectory(prefix="starling-comm-") as folder:
        config = pathlib.Path(folder) / "config.json"
        keys = train_config(model, batch, steps, sync, optimizer)
        config.write_text(json.dumps({**keys, "log_every": log_every or keys["log_every"]}))
        command = [program("starling-train", setup), config, "--output", pathlib.Path(folder) / "run"]
        if slow_rank:
            command = [sys.executable, HERE / "slow_rank.py", *slow_rank, *command]
        command = [NETLAB, "run", per_host, *command] if lab else ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", ranks, *command]
        before = processor_ticks()
        run_all([(command, lab.env if lab else environment())], setup, f"training {model} with {sync}")
        busy, everything = (after - start for after, start in zip(processor_ticks(), before))
        if setup.dry_run:
            return {"step_ms": 1.0, "wait_ms": 0.0, "transport": "", "busy": 0.0}
        return {**read_run(pathlib.Path(folder) / "run"), "busy": busy / max(everything, 1)}


def train_alone(setup, model, batch, steps, ranks, optimizer=None):
    """Computation alone: as many jobs of one rank side by side, so that they share cores and memory
    as the ranks do; the slowest one's."""
    with tempfile.TemporaryDirectory(prefix="starling-comm-") as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps(train_config(model, batch, steps, {}, optimizer)))
        commands = [([program("starling-train", setup), config, "--output", pathlib.Path(folder) / str(i)], environment()) for i in range(ranks)]
        run_all(commands, setup, f"training {model} alone")
        if setup.dry_run:
            return {"step_ms": 1.0, "wait_ms": 0.0}
        runs = [read_run(pathlib.Path(folder) / str(i)) for i in range(ranks)]
    return {"wait_ms": 0.0, **{key: max(run[key] for run in runs) for key in ("step_ms", "peak_memory_bytes")}}


def torch_ranks(command, ranks, lab=None):
    """The command for each rank of a PyTorch job over gloo, with torchrun's variables."""
    address, interface = ("10.77.0.1", "eth0") if lab else ("127.0.0.1", "lo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    commands = []
    for rank in range(ranks):
        env = environment(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR=address, MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=interface,
                          LOCAL_RANK="0" if lab else str(rank), LOCAL_WORLD_SIZE="1" if lab else str(ranks))
        if lab:
            env["NETLAB_NAME"] = lab.env["NETLAB_NAME"]
        commands.append(([NETLAB, "exec", rank, *command] if lab else command, env))
    return commands


def peer(setup, kind, model, batch, steps, ranks, topology, lab=None, slow_rank=None, optimizer="sgd", every=0):
    """PyTorch's DDP or decent-dp over gloo, one process a host of the lab or `ranks` on this
    machine; every: steps of a window."""
    for package in ("torch", *(["decent_dp"] if kind == "decent-dp" else [])):
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"the Python package {package} is missing (python3 -m pip install torch decent-dp==0.2.3)")
    command = [sys.executable, HERE / "peers.py", kind, model, batch, steps, every or window(steps), topology, optimizer]
    if slow_rank:
        command = [sys.executable, HERE / "slow_rank.py", *slow_rank, *command]
    outputs = run_all(torch_ranks(command, ranks, lab), setup, f"{kind}, {model}")
    if outputs is None:
        return {"step_ms": 1.0}
    results = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    return {key: max(result[key] for result in results) for key in results[0]}


def alternate(variants, setup):
    """Runs each of {name: function} once a repeat, in turn. A variant that fails or cannot run
    leaves its reason. {name: result}."""
    runs = {name: [] for name in variants}
    reasons = {}
    for repeat in range(setup.repeats):
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
        if setup.dry_run:
            break
    results = {}
    for name, list_of in runs.items():
        if name in reasons:
            results[name] = {"error": reasons[name]}
            continue
        results[name] = dict(list_of[0], runs=list_of)
        for key, value in list_of[0].items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                results[name][key] = statistics.median(run[key] for run in list_of)
    return results


def describe_machine():
    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "absent"

    try:
        starling = subprocess.run([program("starling-train"), "--version"], capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    except (Skipped, IndexError):  # every row will say so
        starling = "not built"
    of = lambda key: (re.findall(rf"^{key}\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M) or ["?"])[0]
    sets = [name for name in ("avx2", "avx512f", "amx_bf16") if name in of("flags").split()]
    return {"cpu": of("model name"), "cores": os.cpu_count(), "instruction_sets": sets, "starling": starling, "pytorch": version("torch"),
            "decent-dp": version("decent-dp")}
