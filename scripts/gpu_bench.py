#!/usr/bin/env python3
"""Measures Starling on a GPU against PyTorch in the same run, taking turns, and writes the goals' table.

  scripts/gpu_bench.py [--only update,resnet50,resnet18,resnet20,scheduler] [--bench build-gpu/bin/starling-bench] [--out FOLDER] [--seconds 240]
  scripts/gpu_bench.py --only exchange [--parts goals.json]    what exchanges add to a step: measured where there are several GPUs, else predicted by
                                     starling-topo from a step and an update that are measured here, or stand in the file of the same run
  scripts/gpu_bench.py --only switches          what a step takes longer without each of the ways that docs/gpu.md has switches for
  scripts/gpu_bench.py --only scheduler-cost    the scheduler's own host time; needs no GPU
  scripts/gpu_bench.py --rehearse    an MLP in the place of every network: to try the script where nothing is fast

Needs a GPU, torch with CUDA (without it its rows say so; exchange and scheduler-cost need none), and a built starling-bench, with starling-train and
starling-topo beside it. Writes FOLDER/goals.md and FOLDER/goals.json (another name than goals: --name) anew after every measurement, the most valuable
first: ORDER has them all. Each runs in a process of its own with a time limit, and one that fails leaves a row that says so.
"""

import argparse
import functools
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the folder of scripts stays as it is
import gpu_process
from gpu_torch import CASES, PARAMETERS

ROOT = pathlib.Path(__file__).resolve().parent.parent
STRETCH_IMAGES = 7_000  # a second, ResNet-50 in fp16 on one H200
LABELS = {"resnet50": "ResNet-50, batch 256", "resnet18": "CIFAR ResNet-18, batch 512"}
NO_PYTORCH = "no PyTorch here that sees a GPU"
NO_TIME = "no time was left"

# Exchanges of several ranks, AdamW, bf16. "mlp" is there to try the script where nothing else is fast enough.
EXCHANGES = {
    "resnet50": {**CASES["resnet50"], "label": "ResNet-50, batch 256", "parameters": PARAMETERS, "steps": 200, "rounds": 3},
    "mlp": {"batch": 8, "image": 8, "classes": 10, "stem": None, "label": "MLP, batch 8", "parameters": 366_602, "steps": 16, "rounds": 1},
}
UPDATE_BYTES = 28  # a parameter's share of AdamW's update without a neighbour, as starling-topo counts it
LINKS = (400, 100)  # Gbit/s of a host's link, assumed
LATENCY = 20  # microseconds between hosts, assumed

# ---------------------------------------------------------------------------------------------------------------- measuring


class Clock:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise ValueError("no JSON in the output")


def run(command, limit, clock, environment=None, json_of=last_json):
    """The command's JSON, or {"error": why}."""
    limit = min(limit, clock.left())
    label = " ".join(command[-6:])
    if limit < 5:
        return {"error": NO_TIME}
    begin = time.monotonic()
    try:
        process = gpu_process.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{label}: no end within {limit:.0f} s", flush=True)
        gpu_process.end(process)  # mpirun ends its ranks then
        return {"error": f"no end within {limit:.0f} s"}
    except OSError as error:
        return {"error": str(error)}
    print(f"{label}: {time.monotonic() - begin:.1f} s, exit status {process.returncode}", flush=True)
    if process.returncode != 0:
        message = (errors.strip() or output.strip() or f"exit status {process.returncode}").splitlines()
        print("\n".join(message[-30:]), flush=True)
        return {"error": message[-1][:200]}
    try:
        result = json_of(output)
    except (ValueError, KeyError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
    return result


@functools.cache
def torch_sees_a_gpu():
    if importlib.util.find_spec("torch") is None:
        return False
    return subprocess.run([sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"], check=False).returncode == 0


def peer(arguments, limit, clock):
    """PyTorch runs on the libraries that it was shipped with, not on what gpu_check.sh puts into the path."""
    if not torch_sees_a_gpu():
        return {"error": NO_PYTORCH}
    environment = {**os.environ, "LD_LIBRARY_PATH": os.environ.get("STARLING_OUTER_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))}
    return run([sys.executable, str(pathlib.Path(__file__).resolve().parent / "gpu_torch.py"), *arguments], limit, clock, environment)


def number(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def ratio(a, b):
    return a / b if a and b else None


def middle(results, key):
    values = [r[key] for r in results if key in r]
    return statistics.median(values) if values else None


def error_of(*results):
    errors = [r["error"] for r in results if "error" in r]
    return f" ({errors[0]})" if errors else ""


def verdict(value, goal, below=False, note=""):
    if value is None:
        return "skipped" if NO_PYTORCH in note else "no time" if NO_TIME in note else "not measured"
    return "reached" if (value <= goal if below else value >= goal) else "missed"


def row(rows, what, goal_text, measured, value, goal, below=False, note=""):
    rows.append({"what": what, "goal": goal_text, "measured": measured, "value": value, "verdict": verdict(value, goal, below, note), "note": note})


# Of each subject: `parts`, the measurements by name, each (limit in seconds, the measurement), and `rows` from what they gave until then: lists by
# part. Each measurement may come several times, in turn with others; the median counts.


def update_subject(bench, rehearsed):
    parameters = 4096 if rehearsed else PARAMETERS
    command = [bench, "gpu-update", "--parameters", str(parameters), *(["--repeats", "1"] if rehearsed else []), "--json"]
    parts = {"starling": (40, lambda limit, clock: run(command, limit, clock)), "torch": (60, lambda limit, clock: peer(["update"], limit, clock))}

    def rows_of(results):
        rows, ours, theirs = [], results["starling"], results["torch"]
        tables = [{r["name"]: r for r in one["results"]} for one in ours if "results" in one]
        for rule in ("adamw", "accum_adamw"):
            share = statistics.median([t[rule]["ratio_to_copy"] for t in tables]) if tables else None
            ms = statistics.median([t[rule]["ms"] for t in tables]) if tables else None
            row(rows, f"fused update with mixing, {rule}, {parameters * 1e-6:.1f} M parameters", "≥ 0.92 of copy bandwidth", f"{number(share, 3)} ({number(ms, 3)} ms)",
                share, 0.92, note=error_of(*ours))  # fmt: skip
            foreach = middle(theirs, f"{rule}_ms")
            faster = ratio(foreach, ms)
            row(rows, f"the same, {rule}, against foreach kernels", "≥ 2 ×", f"{number(faster)} × ({number(foreach, 3)} ms)", faster, 2.0, note=error_of(*theirs, *ours))
        return rows

    return parts, rows_of


def step_command(bench, name, precision, rehearsed):
    case = CASES[name]
    if rehearsed:
        return [bench, "gpu-step", "--model", "mlp", "--precision", precision, "--batch", "8", "--image", "8", "--classes", "10", "--steps", "5", "--json"]
    return [bench, "gpu-step", "--model", name, "--stem", case["stem"], "--precision", precision, "--batch", str(case["batch"]), "--image", str(case["image"]),
            "--classes", str(case["classes"]), "--json"]  # fmt: skip


def model_subject(bench, rehearsed, name, precision, goals):
    """A training step, by heuristics and with every candidate of a convolution timed (which PyTorch's side does too)."""
    command = step_command(bench, name, precision, rehearsed)
    parts = {
        "starling": (90, lambda limit, clock: run(command, limit, clock)),
        "cudnn_benchmark": (90, lambda limit, clock: run([*command, "--cudnn-benchmark"], limit, clock)),
        "eager": (60, lambda limit, clock: peer(["step", name, precision, "eager"], limit, clock)),
        "compile": (150, lambda limit, clock: peer(["step", name, precision, "compile"], limit, clock)),
    }

    def rows_of(results):
        rows, ours, timed = [], results["starling"], results["cudnn_benchmark"]
        plain_speed, timed_speed = middle(ours, "images_per_second"), middle(timed, "images_per_second")
        speed = max((s for s in (plain_speed, timed_speed) if s), default=None)
        speeds = f"{number(speed, 0)}; by heuristics {number(plain_speed, 0)}, with cudnn_benchmark {number(timed_speed, 0)}"
        label = f"{LABELS[name]}, {precision}"
        for mode, goal in goals.items():
            theirs = middle(results[mode], "images_per_second")
            value = ratio(speed, theirs)
            text = {"eager": "PyTorch channels_last AMP eager", "compile": "torch.compile"}[mode]
            row(rows, label, f"≥ {goal} × {text}", f"{number(value)} × ({speeds}; against {number(theirs, 0)} images/s)", value, goal,
                note=error_of(*results[mode], *ours, *timed))  # fmt: skip
        good = [r for r in ours + timed if "floor_ms" in r]
        if name == "resnet50" and precision == "fp16":
            share = max((r["floor_ms"] / r["step_ms"] for r in good), default=None)
            row(rows, f"{label}: stretch goal", f"≥ {STRETCH_IMAGES:,} images/s", f"{number(speed, 0)} images/s, {number(share)} of the traffic floor",
                speed, STRETCH_IMAGES, note=error_of(*ours, *timed))  # fmt: skip
        if good:
            share = max(r["floor_ms"] / r["step_ms"] for r in good)
            row(rows, label, "share of the traffic floor", f"{number(share)} ({number(good[0]['floor_ms'])} ms)", share, 0.0)
            rows[-1]["verdict"] = "measured"
        if name == "resnet50":
            peak = max((r["peak_bytes"] for r in ours + timed if "peak_bytes" in r), default=None)
            theirs = middle(results["eager"], "peak_bytes")
            value = ratio(peak, theirs)
            row(rows, f"{label}: memory", "≤ PyTorch's peak", f"{number(value)} × ({number(peak and peak / 2**30)} against {number(theirs and theirs / 2**30)} GiB)",
                value, 1.0, below=True, note=error_of(*results["eager"], *ours))  # fmt: skip
        return rows

    return parts, rows_of


def train_speed(train, name, precision, graphs, steps, limit, clock, rehearsed=False, switches=None):
    """Images a second of starling-train, batches made and sent up as it goes: {"images_per_second"} or {"error"}. `switches`: its environment's."""
    case = {**CASES[name], **({"batch": 8, "image": 8} if rehearsed else {})}
    log_every = steps // 8
    config = {
        "seed": 1, "model": {"type": "mlp" if rehearsed else name}, "batch_size": case["batch"], "steps": steps, "precision": precision, "cuda_graphs": graphs,
        "data": {"type": "synthetic", "image_size": case["image"], "classes": case["classes"], "limit": 8192, "test_limit": 128,
                 "augment": {"flip": True, "crop_padding": 4}},
        "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01}, "log_every": log_every, "tensorboard": False,
        "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        command = ["bash", "-c", 'exec "$@" 2>&1', "_", train, str(path / "config.json"), "--device", "cuda", "--output", str(path / "out")]
        done = run(command, limit, clock, environment={**os.environ, **(switches or {})}, json_of=lambda text: {"output": text[-2000:]})
        if "error" in done:
            return done
        if graphs and "without CUDA graphs" in done["output"]:
            return {"error": "the steps were no graphs"}
        lines = [json.loads(line) for line in (path / "out" / "metrics.jsonl").read_text().splitlines()]
        speeds = [line["images_per_second"] for line in lines if "images_per_second" in line][2:]  # the first ones warm up and capture
        return {"images_per_second": statistics.median(speeds), "lines": speeds}


def graphs_subject(train, rehearsed):
    """The small network, which launches bound: whole steps as graphs on both sides."""
    name, precision, steps = "resnet20", "bf16", 64 if rehearsed else 1600
    ours = lambda graphs: (60, lambda limit, clock: train_speed(train, name, precision, graphs, steps, limit, clock, rehearsed))
    theirs = lambda mode: (60, lambda limit, clock: peer(["step", name, precision, mode, "400"], limit, clock))
    parts = {"starling": ours(True), "issued": ours(False), "eager": theirs("eager"), "graphs": theirs("graphs")}

    def rows_of(results):
        rows, speed = [], middle(results["starling"], "images_per_second")
        label = f"CIFAR ResNet-20, batch 128, {precision}, with uploads and augmentation"
        for mode, goal, text in (("eager", 3.0, "PyTorch eager"), ("graphs", 1.3, "PyTorch with CUDA graphs")):
            other = middle(results[mode], "images_per_second")
            value = ratio(speed, other)
            row(rows, label, f"≥ {goal:g} × {text}", f"{number(value)} × ({number(speed, 0)} against {number(other, 0)} images/s)", value, goal,
                note=error_of(*results[mode], *results["starling"]))  # fmt: skip
        other = middle(results["issued"], "images_per_second")
        value = ratio(speed, other)
        row(rows, label, "against its own steps without graphs", f"{number(value)} × ({number(other, 0)} images/s)", value, 0.0, note=error_of(*results["issued"]))
        if value is not None:
            rows[-1]["verdict"] = "measured"
        return rows

    return parts, rows_of


# What a step takes longer with one of the environment's switches off (docs/gpu.md). Each with what was estimated, in microseconds a step, before
# any GPU had run it: 2 to 3 for a launch in a graph, 4 to 6 for one that is issued, bytes at 4.3 TB/s.
SWITCHES = [  # switch, what it stands for, model, precision, estimate
    ("STARLING_FORK", "weights' gradients as a branch of the graph", "resnet20", "bf16", "40 to 60"),
    ("STARLING_BATCHED_STATISTICS", "running statistics in one launch", "resnet20", "bf16", "36 to 54"),
    ("STARLING_LOW_GRADIENTS", "gradients left in low precision", "resnet20", "bf16", "about 40"),
    ("STARLING_PDL", "dependent launches", "resnet20", "bf16", "20 to 30"),
    ("STARLING_CUDNN_COMPILED", "batch norms that cuDNN compiles, not our own", "resnet20", "bf16", "0 to 60"),
    ("STARLING_CHOOSE_SCALE", "the loss scale chosen on the device", "resnet20", "fp16", "20 to 50"),
    ("STARLING_BATCHED_STATISTICS", "running statistics in one launch", "resnet50", "bf16", "208 to 312"),
    ("STARLING_LOW_GRADIENTS", "gradients left in low precision", "resnet50", "bf16", "about 120"),
    ("STARLING_PDL", "dependent launches", "resnet50", "bf16", "50 to 100"),
    ("STARLING_EVICT_FIRST", "the update's hints to the cache", "resnet50", "bf16", "0 to 20"),
    ("STARLING_CUDNN_COMPILED", "batch norms that cuDNN compiles, not our own", "resnet50", "bf16", "unknown"),
]


def switches_subject(bench, train, rehearsed):
    """ResNet-20's steps are graphs of starling-train, ResNet-50's are issued by starling-bench."""

    def step_of(model, precision, switches):
        def measure(limit, clock):
            if model == "resnet50":
                return run(step_command(bench, model, precision, rehearsed), limit, clock, environment={**os.environ, **switches})
            speed = train_speed(train, model, precision, True, 64 if rehearsed else 800, limit, clock, rehearsed, switches)
            batch = 8 if rehearsed else CASES[model]["batch"]
            return {"step_ms": 1e3 * batch / speed["images_per_second"]} if "images_per_second" in speed else speed

        return 60, measure

    cases = list(dict.fromkeys((model, precision) for _, _, model, precision, _ in SWITCHES))
    parts = {f"{model} {precision}": step_of(model, precision, {}) for model, precision in cases}
    parts.update({f"{model} {precision} {switch}": step_of(model, precision, {switch: "0"}) for switch, _, model, precision, _ in SWITCHES})

    def rows_of(results):
        rows = []
        for switch, what, model, precision, estimate in SWITCHES:
            on, off = (middle(results[f"{model} {precision}{end}"], "step_ms") for end in ("", f" {switch}"))
            saved = 1e3 * (off - on) if on and off else None
            label = {"resnet20": "CIFAR ResNet-20, batch 128, graphs", "resnet50": "ResNet-50, batch 256, issued"}[model]
            row(rows, f"{label}, {precision}: {what} ({switch})", f"estimated: saves {estimate} µs a step", f"saves {number(saved, 0)} µs ({number(on, 3)} against {number(off, 3)} ms)",
                saved, 0.0, note=error_of(*results[f"{model} {precision}"], *results[f"{model} {precision} {switch}"]))  # fmt: skip
            if saved is not None:
                rows[-1]["verdict"] = "measured"
        return rows

    return parts, rows_of


def scheduler_subject(bench, rehearsed):
    command = step_command(bench, "resnet50", "bf16", rehearsed)
    command[-1:] = [*([] if rehearsed else ["--steps", "40"]), "--json"]
    parts = {"scheduled": (60, lambda limit, clock: run(command, limit, clock)), "plain": (60, lambda limit, clock: run([*command, "--plain"], limit, clock))}

    def rows_of(results):
        scheduled, plain, rows = results["scheduled"], results["plain"], []
        value = ratio(middle(scheduled, "step_ms"), middle(plain, "step_ms"))
        row(rows, "ResNet-50, batch 256, bf16: with the gossip scheduler, one rank", "≤ 1.01 × without it",
            f"{number(value, 3)} × ({number(middle(scheduled, 'step_ms'))} against {number(middle(plain, 'step_ms'))} ms)", value, 1.01, below=True,
            note=error_of(*scheduled, *plain))  # fmt: skip
        return rows

    return parts, rows_of


def subjects(bench, rehearsed):
    """What there is to measure, by name; --only takes the first word."""
    train = str(pathlib.Path(bench).parent / "starling-train")
    rates = {"matmul": (40, lambda limit, clock: peer(["matmul"], limit, clock))}
    return {
        "update": update_subject(bench, rehearsed),
        "resnet50 bf16": model_subject(bench, rehearsed, "resnet50", "bf16", {"eager": 1.3, "compile": 1.1}),
        "resnet50 fp16": model_subject(bench, rehearsed, "resnet50", "fp16", {"eager": 1.3, "compile": 1.1}),
        "resnet20 bf16": graphs_subject(train, rehearsed),
        "resnet18 bf16": model_subject(bench, rehearsed, "resnet18", "bf16", {"compile": 1.3}),
        "scheduler": scheduler_subject(bench, rehearsed),
        "switches": switches_subject(bench, train, rehearsed),
        "matmul": (rates, lambda results: []),
    }


# (subject, part), in the order of value: a run that is cut has the figures before.
ORDER = [
    ("update", "starling"), ("update", "torch"),
    ("resnet50 bf16", "starling"), ("resnet50 fp16", "starling"), ("resnet50 bf16", "eager"), ("resnet50 fp16", "eager"),
    ("resnet20 bf16", "starling"), ("resnet20 bf16", "graphs"),
    ("update", "starling"), ("resnet50 bf16", "starling"), ("resnet50 fp16", "starling"),
    ("matmul", "matmul"), ("resnet20 bf16", "issued"), ("resnet20 bf16", "eager"),
    ("resnet50 bf16", "compile"), ("resnet50 bf16", "cudnn_benchmark"), ("resnet50 fp16", "cudnn_benchmark"), ("resnet50 fp16", "compile"),
    ("resnet20 bf16", "starling"), ("resnet18 bf16", "starling"), ("resnet18 bf16", "compile"), ("resnet18 bf16", "cudnn_benchmark"),
    ("scheduler", "scheduled"), ("scheduler", "plain"), ("scheduler", "scheduled"), ("scheduler", "plain"),
    ("switches", "resnet20 bf16"), *(("switches", f"{model} {precision} {switch}") for switch, _, model, precision, _ in SWITCHES if model == "resnet20"),
    ("switches", "resnet20 fp16"), ("switches", "resnet20 bf16"),
    ("switches", "resnet50 bf16"), *(("switches", f"{model} {precision} {switch}") for switch, _, model, precision, _ in SWITCHES if model == "resnet50"),
    ("switches", "resnet50 bf16"),
]  # fmt: skip


def measure_in_order(only, bench, rehearsed, clock, raw, show):
    """`show(subject, rows)` after each measurement. Rows of subjects that no time was left for stand there too."""
    known = subjects(bench, rehearsed)
    for subject, part in ORDER:
        if subject.split(" ")[0] not in only and not (subject == "matmul" and "resnet50" in only):
            continue
        parts, rows_of = known[subject]
        limit, measure = parts[part]
        results = raw.setdefault(subject, {})
        # Once it has failed, a second attempt would take the others' time.
        if not any("error" in one for one in results.get(part, [])):
            results.setdefault(part, []).append(measure(limit, clock))
        rows = rows_of({name: results.get(name, []) for name in parts})
        show(subject, [{**one, "what": "rehearsed on an MLP: " + one["what"]} for one in rows] if rehearsed else rows)


def measure_scheduler_cost(bench, clock, rows, raw):
    """On a backend and a transport that do nothing: without a GPU."""
    result = raw["scheduler-cost"] = run([bench, "scheduler", "--json"], 30, clock)
    for algorithm, what in (("gossip", "gossip"), ("allreduce", "all-reduce")):
        part = result.get(algorithm, {})
        value, goal = part.get("step_us"), result.get("goal_us", 20.0)
        about = f", ResNet-50 in {result['buckets']} buckets, {result['topology']} over {result['ranks']} ranks" if part else ""
        row(rows, f"the scheduler's own host time, {what}, on fakes{about}", f"≤ {goal:g} µs a step",
            f"{number(value)} µs (after other memory was read {number(part.get('after_other_memory_us'), 1)} µs)", value, goal, below=True, note=error_of(result))


def gpu_count():
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=False)
        count = len(listed.stdout.split()) if listed.returncode == 0 else 0
    except (OSError, subprocess.TimeoutExpired):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if visible is None else min(count, len([word for word in visible.split(",") if word.strip()]))


def train_step_ms(train, name, ranks, clock):
    """Median step of starling-train with gossip over one-peer-exp: {"step_ms", "transport"} or {"error"}."""
    case = EXCHANGES[name]
    config = {
        "seed": 1, "model": {"type": name}, "batch_size": case["batch"], "steps": case["steps"], "precision": "bf16",
        "data": {"type": "synthetic", "image_size": case["image"], "classes": case["classes"], "limit": 16 * case["batch"] * ranks, "test_limit": 64,
                 "augment": {"flip": True, "crop_padding": 2}},
        "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01}, "log_every": case["steps"] // 8, "tensorboard": False,
        "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, "sync": {"topology": {"type": "one-peer-exp"}},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), train, str(path / "config.json"), "--device", "cuda"]
        done = run([*command, "--output", str(path / "out")], 60, clock, json_of=lambda text: {"output": text[-2000:]})
        if "error" in done:
            return done
        lines = [json.loads(line) for line in (path / "out" / "metrics.jsonl").read_text().splitlines()]
        times = [line["step_ms"] for line in lines if "step_ms" in line][2:]  # the first ones warm up and capture
        transport = json.loads((path / "out" / "summary.json").read_text())["transport"]
        return {"step_ms": statistics.median(times), "transport": transport, "lines": times} if times else {"error": "no step was timed"}


def predicted_exchange(topo, case, step_ms, gb_per_s, gbits, clock):
    """What starling-topo makes of it, the best bucket size of each topology: {"compute_ms", topology: {"step_ms", "exposed_ms"}} or {"error"}."""
    update_ms = case["parameters"] * UPDATE_BYTES / gb_per_s * 1e-6
    command = [topo, "plan", "-n", "8", "--ranks-per-node", "1", "--step-ms", f"{max(step_ms - update_ms, 1e-3):.6g}",  # it adds the update itself
               "--memory-bandwidth", f"{gb_per_s:.6g}", "--parameters", f"{case['parameters'] * 1e-6:.6g}", "--bandwidth", str(gbits),
               "--latency", str(LATENCY), "--json"]  # fmt: skip

    def best(text):
        plan = json.loads(text)
        result = {"command": " ".join(command[1:]), "compute_ms": plan["compute_ms"]}
        for name in ("one-peer-exp", "base-2"):
            choice = min((c for c in plan["choices"] if c["topology"] == name), key=lambda c: c["step_ms"])
            result[name] = {key: choice[key] for key in ("step_ms", "exposed_ms", "bucket_mb")}
        return result

    return run(command, 20, clock, json_of=best)


def measure_exchange(bench, name, parts, clock, rows, raw):
    """Exposed is what a step of several ranks takes longer than one of a rank alone."""
    case, folder, goal = EXCHANGES[name], pathlib.Path(bench).parent, 0.03
    label = f"{case['label']}, bf16, one-peer-exp"
    gpus = gpu_count()
    ranks = 1 << (min(gpus, 8).bit_length() - 1) if gpus > 1 else 0
    if ranks:
        runs = {ranks: [], 1: []}
        for _ in range(case["rounds"]):
            for count, results in runs.items():
                results.append(train_step_ms(str(folder / "starling-train"), name, count, clock))
        raw["exchange"] = {f"{count} ranks": results for count, results in runs.items()}
        many, alone = (middle(runs[count], "step_ms") for count in (ranks, 1))
        exposed = many / alone - 1 if many and alone else None
        transport = next((r["transport"] for r in runs[ranks] if "transport" in r), "–")
        without = middle([r for r in parts.get(f"{name} bf16", {}).get("starling", []) if "step_ms" in r], "step_ms")
        slower = alone / without if alone and without else 1.0
        loads = f" (one rank takes {slower:.1f} × a step without a loader: the loader may hide what exchanges cost)" if slower > 1.25 else ""
        row(rows, f"{label}, {ranks} GPUs of this host, {transport}: exposed exchange", "≤ 3 %",
            f"{number(exposed and 100 * exposed)} % ({number(many)} ms against {number(alone)} ms of one rank)", exposed, goal, below=True,
            note=error_of(*runs[ranks], *runs[1]) + loads)
        if exposed is not None:
            return
    steps = [r for r in parts.get(f"{name} bf16", {}).get("starling", []) if "step_ms" in r]
    if not steps:
        command = [bench, "gpu-step", "--model", name, "--precision", "bf16", "--batch", str(case["batch"]), "--image", str(case["image"]), "--classes",
                   str(case["classes"]), *(["--stem", case["stem"]] if case["stem"] else []), "--steps", str(min(40, case["steps"])), "--json"]  # fmt: skip
        steps = [run(command, 60, clock)]
    updates = [r for r in parts.get("update", {}).get("starling", []) if "results" in r]
    if not updates:
        updates = [run([bench, "gpu-update", "--parameters", str(case["parameters"]), "--json"], 40, clock)]
    step_ms = middle(steps, "step_ms")
    rates = [r["gb_per_s"] for one in updates for r in one.get("results", []) if r["name"] == "adamw"]
    gb_per_s = statistics.median(rates) if rates else None
    raw["exchange, predicted"] = plans = {}
    for gbits in LINKS:
        plan = plans[gbits] = predicted_exchange(str(folder / "starling-topo"), case, step_ms, gb_per_s, gbits, clock) if step_ms and gb_per_s else {}
        longer = {name: 100 * (plan[name]["step_ms"] / plan["compute_ms"] - 1) for name in ("one-peer-exp", "base-2") if name in plan}
        said = [f"{name}: a step is {longer[name]:.1f} % longer, {plan[name]['exposed_ms']:.2f} ms of it waiting" for name in longer]
        value = max(longer.values()) / 100 if longer else None
        row(rows, f"{case['label']}, bf16, 8 hosts of one GPU, links of {gbits} Gbit/s: exposed exchange", "≤ 3 %",
            f"predicted, {'; '.join(said) or '–'}; its parts, measured: a step of {number(step_ms)} ms, an update at {number(gb_per_s, 0)} GB/s", value, goal,
            below=True, note=error_of(*steps, *updates, plan))
        if value is not None:
            rows[-1]["verdict"] = f"**predicted**, not measured: would be {rows[-1]['verdict']}"
            rows[-1]["note"] += f"; assumed: the links, {LATENCY} µs of latency; what NCCL's kernels take of the multiprocessors is not in it"


def table_lines(rows):
    return ["| what | goal | measured | |", "|---|---|---|---|", *(f"| {r['what']} | {r['goal']} | {r['measured']} | {r['verdict']}{r['note']} |" for r in rows)]


def write(out, rows, raw, name="goals"):
    """Whole files in the place of the ones before."""
    out.mkdir(parents=True, exist_ok=True)
    for path, text in ((out / f"{name}.md", "\n".join(table_lines(rows))), (out / f"{name}.json", json.dumps({"rows": rows, "raw": raw}, indent=1))):
        new = path.with_name("." + path.name + ".new")
        new.write_text(text + "\n")
        os.replace(new, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="update,resnet50,resnet20,resnet18,scheduler")
    parser.add_argument("--name", default="goals")
    parser.add_argument("--bench", default=str(ROOT / "build-gpu/bin/starling-bench"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build-gpu/gpu_check")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--parts", type=pathlib.Path, help="of exchange: the .json of an earlier call of this run, whose gpu-step and gpu-update it takes")
    parser.add_argument("--exchange-model", choices=sorted(EXCHANGES), help="default: resnet50")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    clock = Clock(arguments.seconds)
    only = arguments.only.split(",")
    known = ["update", "scheduler", "scheduler-cost", "exchange", "switches", *CASES]
    unknown = set(only) - set(known)
    if unknown:
        sys.exit(f"error: --only: unknown {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    tables, raw = {}, {}

    def show(subject, rows):
        tables[subject] = rows
        write(arguments.out, [one for table in tables.values() for one in table], raw, arguments.name)

    measure_in_order(only, arguments.bench, arguments.rehearse, clock, raw, show)
    if "exchange" in only:
        parts = raw if arguments.parts is None else json.loads(arguments.parts.read_text())["raw"] if arguments.parts.exists() else {}
        rows = []
        model = arguments.exchange_model or ("mlp" if arguments.rehearse else "resnet50")
        measure_exchange(arguments.bench, model, parts, clock, rows, raw)
        show("exchange", rows)
    if "scheduler-cost" in only:
        rows = []
        measure_scheduler_cost(arguments.bench, clock, rows, raw)
        show("scheduler-cost", rows)
    print("\n".join(table_lines([one for table in tables.values() for one in table])), flush=True)
    return 1 if any(r["verdict"] == "not measured" for table in tables.values() for r in table) else 0


if __name__ == "__main__":
    sys.exit(main())
