#!/usr/bin/env python3
"""Measures Starling on a GPU against PyTorch in the same run, taking turns, and writes the goals' table.

  scripts/gpu_bench.py [--only update,resnet50,resnet18,resnet20,scheduler] [--bench build-gpu/bin/starling-bench] [--out FOLDER] [--seconds 240]
  scripts/gpu_bench.py --only exchange [--parts goals.json]    what exchanges add to a step: measured where there are several GPUs, else predicted by
                                     starling-topo from a step and an update that are measured here, or stand in the file of the same run
  scripts/gpu_bench.py --only scheduler-cost    the scheduler's own host time; needs no GPU
  scripts/gpu_bench.py --warm        lets torch.compile fill its cache beforehand (TORCHINDUCTOR_CACHE_DIR)

Needs a GPU, torch with CUDA (exchange and scheduler-cost: not), and a built starling-bench, with starling-train and starling-topo beside it. Writes
FOLDER/goals.md and FOLDER/goals.json (another name than goals: --name); every measurement runs in a process of its own with a time limit, and
one that fails leaves a row that says so.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARAMETERS = 25_600_000
STRETCH_IMAGES = 7_000  # a second, ResNet-50 in fp16 on one H200
CASES = {
    "resnet50": {"batch": 256, "image": 224, "classes": 1000, "stem": "imagenet"},
    "resnet18": {"batch": 512, "image": 32, "classes": 10, "stem": "cifar"},
    "resnet20": {"batch": 128, "image": 32, "classes": 10, "stem": "cifar"},
}

# Exchanges of several ranks, AdamW, bf16. "mlp" is there to try the script where nothing else is fast enough.
EXCHANGES = {
    "resnet50": {**CASES["resnet50"], "label": "ResNet-50, batch 256", "parameters": PARAMETERS, "steps": 200, "rounds": 3},
    "mlp": {"batch": 8, "image": 8, "classes": 10, "stem": None, "label": "MLP, batch 8", "parameters": 366_602, "steps": 16, "rounds": 1},
}
UPDATE_BYTES = 28  # a parameter's share of AdamW's update without a neighbour, as starling-topo counts it
LINKS = (400, 100)  # Gbit/s of a host's link, assumed
LATENCY = 20  # microseconds between hosts, assumed

# ---------------------------------------------------------------------------------------------------------------- PyTorch's side


def make_model(name):
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, inputs, width, stride, bottleneck):
            super().__init__()
            outputs = 4 * width if bottleneck else width
            plan = [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)] if bottleneck else [(width, 3, stride), (width, 3, 1)]
            self.convs, self.norms, channels = nn.ModuleList(), nn.ModuleList(), inputs
            for channels_out, kernel, step in plan:
                self.convs.append(nn.Conv2d(channels, channels_out, kernel, step, kernel // 2, bias=False))
                self.norms.append(nn.BatchNorm2d(channels_out))
                channels = channels_out
            self.shortcut = None
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = x
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
                y = norm(conv(y))
                if i + 1 < len(self.convs):
                    y = functional.relu(y, inplace=True)
            return functional.relu(y + (x if self.shortcut is None else self.shortcut(x)), inplace=True)

    class ResNet(nn.Module):
        def __init__(self, blocks, bottleneck, stem, classes):
            super().__init__()
            self.stem = (
                nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
                if stem == "cifar"
                else nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
            )
            layers, inputs, width = [], 64, 64
            for stage, count in enumerate(blocks):
                for i in range(count):
                    layers.append(Block(inputs, width, 2 if stage > 0 and i == 0 else 1, bottleneck))
                    inputs = 4 * width if bottleneck else width
                width *= 2
            self.blocks = nn.Sequential(*layers)
            self.fc = nn.Linear(inputs, classes)

        def forward(self, x):
            return self.fc(torch.flatten(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1))

    class Small(nn.Module):
        """A block of CIFAR's ResNet-20, whose shortcut takes every second pixel and adds empty channels."""

        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
            self.stride, self.pad = stride, (outputs - inputs) // 2

        def forward(self, x):
            y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)), inplace=True)))
            if self.stride != 1:
                x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
            return functional.relu(y + x, inplace=True)

    class ResNet20(nn.Module):
        def __init__(self, classes):
            super().__init__()
            blocks, inputs = [], 16
            for stage, width in enumerate((16, 32, 64)):
                for i in range(3):
                    blocks.append(Small(inputs, width, 2 if stage > 0 and i == 0 else 1))
                    inputs = width
            self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
            self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(64, classes)

        def forward(self, x):
            return self.fc(torch.flatten(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1))

    case = CASES[name]
    if name == "resnet20":
        return ResNet20(case["classes"])
    if name == "resnet50":
        return ResNet([3, 4, 6, 3], True, case["stem"], case["classes"])
    return ResNet([2, 2, 2, 2], False, case["stem"], case["classes"])


def torch_step(name, precision, mode, steps):
    """Forward, backward and AdamW on a batch that lies in the GPU's memory; mode: eager, compile, graphs (the whole step as one)."""
    import torch
    from torch.nn import functional

    case = CASES[name]
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    model = make_model(name).cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True, capturable=mode == "graphs")
    images = torch.randn(case["batch"], 3, case["image"], case["image"], device="cuda").to(memory_format=torch.channels_last)
    labels = torch.arange(case["batch"], device="cuda") % case["classes"]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16", init_scale=1024.0)
    run = torch.compile(model) if mode == "compile" else model
    if mode == "graphs" and precision == "fp16":
        raise ValueError("fp16 looks for overflows on the host: not as one graph")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype, cache_enabled=mode != "graphs"):
            loss = functional.cross_entropy(run(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    begin = time.monotonic()
    if mode == "graphs":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                step()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()

        def step():
            graph.replay()
            return captured

    for _ in range(8):
        step()
    torch.cuda.synchronize()
    warm_up = time.monotonic() - begin
    torch.cuda.reset_peak_memory_stats()  # trying out algorithms took more than training does
    times, window = [], 5
    for _ in range(max(1, steps // window)):
        begin = time.monotonic()
        for _ in range(window):
            loss = step()
        torch.cuda.synchronize()
        times.append((time.monotonic() - begin) / window)
    seconds = statistics.median(times)
    return {
        "step_ms": 1e3 * seconds,
        "images_per_second": case["batch"] / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "loss": float(loss),
        "warm_up_s": warm_up,
    }


class ForeachAccumAdamW:
    """docs/semantics.md, section 7, `accum_adamw`, one foreach kernel after another, as decent-dp's optimizer runs it."""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, accum_iter=4):
        import torch

        self.parameters, self.lr, self.betas, self.eps, self.weight_decay, self.k = parameters, lr, betas, eps, weight_decay, accum_iter
        self.m, self.v, self.a = ([torch.zeros_like(p) for p in parameters] for _ in range(3))
        self.steps = 0

    def step(self):
        import torch

        self.steps += 1
        p, m, v, a = self.parameters, self.m, self.v, self.a
        g = [x.grad for x in p]
        beta1, beta2 = self.betas
        q = -(-self.steps // self.k)
        torch._foreach_mul_(p, 1 - self.lr * self.weight_decay)
        torch._foreach_add_(a, g, alpha=1 / self.k)
        first = torch._foreach_add(m, g, alpha=1 - beta1)
        second = torch._foreach_addcmul(v, g, g, value=1 - beta2)
        torch._foreach_sqrt_(second)
        torch._foreach_div_(second, (1 - beta2**q) ** 0.5)
        torch._foreach_add_(second, self.eps)
        torch._foreach_addcdiv_(p, first, second, value=-self.lr / (1 - beta1**q))
        if self.steps % self.k == 0:
            torch._foreach_add_(m, a, alpha=1 - beta1)
            torch._foreach_mul_(m, beta1)
            torch._foreach_addcmul_(v, a, a, value=1 - beta2)
            torch._foreach_mul_(v, beta2)
            torch._foreach_zero_(a)


def torch_update(repeats, device="cuda", elements=PARAMETERS):
    """decent-dp's sequence: the neighbour's parameters are mixed in with foreach kernels, then the optimizer's foreach step; and a plain copy."""
    import torch

    # ResNet-50's 161 tensors, more or less: the split matters to foreach kernels only through their number.
    sizes = [elements // 160] * 160
    make = lambda value: [torch.full((n,), value, device=device) for n in sizes]
    parameters = [torch.nn.Parameter(p) for p in make(0.5)]
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    received = make(0.25)
    optimizers = {
        "adamw": torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, foreach=True),
        "accum_adamw": ForeachAccumAdamW(parameters),
    }
    source, target = torch.ones(4 * elements, device=device), torch.zeros(4 * elements, device=device)

    @torch.no_grad()
    def sequence(optimizer):
        torch._foreach_mul_(parameters, 0.5)
        torch._foreach_add_(parameters, received, alpha=0.5)
        optimizer.step()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    def timed(work, calls=12):  # a whole number of AccumAdamW's groups
        wait()
        begin = time.monotonic()
        for _ in range(calls):
            work()
        wait()
        return (time.monotonic() - begin) / calls

    subjects = {name: (lambda optimizer=optimizer: sequence(optimizer)) for name, optimizer in optimizers.items()}
    subjects["copy"] = lambda: target.copy_(source)
    times = {name: [] for name in subjects}
    for repeat in range(-1, repeats):  # the first round warms up
        for name, work in subjects.items():
            seconds = timed(work)
            if repeat >= 0:
                times[name].append(seconds)
    result = {f"{name}_ms": 1e3 * statistics.median(times[name]) for name in optimizers}
    return {**result, "copy_gb_per_s": 32.0 * elements / statistics.median(times["copy"]) * 1e-9}


def torch_matmul():
    import torch

    result = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        a, b = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
        for _ in range(3):
            a @ b
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        result[name] = 2.0 * 8192**3 * 10 / (time.monotonic() - begin) * 1e-12
    return result


PEERS = {
    "step": lambda name, precision, mode, steps="40": torch_step(name, precision, mode, int(steps)),
    "update": lambda device="cuda", elements=PARAMETERS, repeats="10": torch_update(int(repeats), device, int(elements)),
    "matmul": torch_matmul,
}

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
        return {"error": "no time was left"}
    begin = time.monotonic()
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{label}: no end within {limit:.0f} s", flush=True)
        process.terminate()  # mpirun ends its ranks then
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
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


def peer(arguments, limit, clock):
    """PyTorch runs on the libraries that it was shipped with, not on the toolkit's that gpu_check.sh puts into the path."""
    environment = dict(os.environ)
    folders = [f for f in environment.get("LD_LIBRARY_PATH", "").split(":") if f and f != environment.get("STARLING_CUDA_LIB")]
    environment["LD_LIBRARY_PATH"] = ":".join(folders)
    return run([sys.executable, str(pathlib.Path(__file__).resolve()), "--peer", *arguments], limit, clock, environment)


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


def verdict(value, goal, below=False):
    if value is None:
        return "not measured"
    return "reached" if (value <= goal if below else value >= goal) else "missed"


def row(rows, what, goal_text, measured, value, goal, below=False, note=""):
    rows.append({"what": what, "goal": goal_text, "measured": measured, "value": value, "verdict": verdict(value, goal, below), "note": note})


def measure_update(bench, clock, rows, raw):
    ours = [run([bench, "gpu-update", "--parameters", str(PARAMETERS), "--json"], 40, clock)]
    theirs = peer(["update"], 60, clock)
    ours.append(run([bench, "gpu-update", "--parameters", str(PARAMETERS), "--json"], 40, clock))
    raw["update"] = {"starling": ours, "torch": theirs}
    tables = [{r["name"]: r for r in one["results"]} for one in ours if "results" in one]
    for rule in ("adamw", "accum_adamw"):
        share = statistics.median([t[rule]["ratio_to_copy"] for t in tables]) if tables else None
        ms = statistics.median([t[rule]["ms"] for t in tables]) if tables else None
        row(rows, f"fused update with mixing, {rule}, 25.6 M parameters", "≥ 0.92 of copy bandwidth", f"{number(share, 3)} ({number(ms, 3)} ms)", share, 0.92,
            note=error_of(*ours))
        foreach = theirs.get(f"{rule}_ms")
        faster = ratio(foreach, ms)
        row(rows, f"the same, {rule}, against foreach kernels", "≥ 2 ×", f"{number(faster)} × ({number(foreach, 3)} ms)", faster, 2.0, note=error_of(theirs, *ours))


def measure_model(name, precision, goals, bench, clock, rows, raw):
    case = CASES[name]
    command = [bench, "gpu-step", "--model", name, "--stem", case["stem"], "--precision", precision, "--batch", str(case["batch"]),
               "--image", str(case["image"]), "--classes", str(case["classes"]), "--json"]  # fmt: skip
    ours = [run(command, 60, clock)]
    # PyTorch's side times cuDNN's candidates for each convolution (cudnn.benchmark); ours both with and without that.
    timed = [run([*command, "--cudnn-benchmark"], 60, clock)]
    results = {mode: peer(["step", name, precision, mode], 100, clock) for mode in goals}
    ours.append(run(command, 60, clock))
    raw[f"{name} {precision}"] = {"starling": ours, "starling, cudnn_benchmark": timed, **results}
    plain_speed, timed_speed = middle(ours, "images_per_second"), middle(timed, "images_per_second")
    speed = max((s for s in (plain_speed, timed_speed) if s), default=None)
    speeds = f"{number(speed, 0)}; by heuristics {number(plain_speed, 0)}, with cudnn_benchmark {number(timed_speed, 0)}"
    label = {"resnet50": "ResNet-50, batch 256", "resnet18": "CIFAR ResNet-18, batch 512"}[name] + f", {precision}"
    for mode, goal in goals.items():
        theirs = results[mode].get("images_per_second")
        value = ratio(speed, theirs)
        text = {"eager": "PyTorch channels_last AMP eager", "compile": "torch.compile"}[mode]
        row(rows, label, f"≥ {goal} × {text}", f"{number(value)} × ({speeds}; against {number(theirs, 0)} images/s)", value, goal,
            note=error_of(results[mode], *ours, *timed))
    good = [r for r in ours + timed if "floor_ms" in r]
    if name == "resnet50" and precision == "fp16":
        share = max((r["floor_ms"] / r["step_ms"] for r in good), default=None)
        row(rows, f"{label}: stretch goal", f"≥ {STRETCH_IMAGES:,} images/s", f"{number(speed, 0)} images/s, {number(share)} of the traffic floor",
            speed, STRETCH_IMAGES, note=error_of(*ours, *timed))
    if good:
        share = max(r["floor_ms"] / r["step_ms"] for r in good)
        row(rows, label, "share of the traffic floor", f"{number(share)} ({number(good[0]['floor_ms'])} ms)", share, 0.0)
        rows[-1]["verdict"] = "measured"
    if name == "resnet50":
        peak = max((r["peak_bytes"] for r in ours + timed if "peak_bytes" in r), default=None)
        theirs = results.get("eager", {}).get("peak_bytes")
        value = ratio(peak, theirs)
        row(rows, f"{label}: memory", "≤ PyTorch's peak", f"{number(value)} × ({number(peak and peak / 2**30)} against {number(theirs and theirs / 2**30)} GiB)",
            value, 1.0, below=True, note=error_of(*ours))


def train_speed(train, name, precision, graphs, steps, clock):
    """Images a second of starling-train, batches made and sent up as it goes: {"images_per_second"} or {"error"}."""
    case = CASES[name]
    log_every = steps // 8
    config = {
        "seed": 1, "model": {"type": name}, "batch_size": case["batch"], "steps": steps, "precision": precision, "cuda_graphs": graphs,
        "data": {"type": "synthetic", "image_size": case["image"], "classes": case["classes"], "limit": 8192, "test_limit": 128,
                 "augment": {"flip": True, "crop_padding": 4}},
        "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01}, "log_every": log_every, "tensorboard": False,
        "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        command = ["bash", "-c", 'exec "$@" 2>&1', "_", train, str(path / "config.json"), "--device", "cuda", "--output", str(path / "out")]
        done = run(command, 60, clock, json_of=lambda text: {"output": text[-2000:]})
        if "error" in done:
            return done
        if graphs and "without CUDA graphs" in done["output"]:
            return {"error": "the steps were no graphs"}
        lines = [json.loads(line) for line in (path / "out" / "metrics.jsonl").read_text().splitlines()]
        speeds = [line["images_per_second"] for line in lines if "images_per_second" in line][2:]  # the first ones warm up and capture
        return {"images_per_second": statistics.median(speeds), "lines": speeds}


def measure_graphs(train, clock, rows, raw):
    """The small network, which launches bound: whole steps as graphs on both sides."""
    name, precision, steps = "resnet20", "bf16", 1600
    ours = [train_speed(train, name, precision, True, steps, clock)]
    issued = train_speed(train, name, precision, False, steps, clock)
    theirs = {mode: peer(["step", name, precision, mode, "400"], 80, clock) for mode in ("eager", "graphs")}
    ours.append(train_speed(train, name, precision, True, steps, clock))
    raw[f"{name} {precision}"] = {"starling": ours, "starling, issued": issued, **theirs}
    speed = middle(ours, "images_per_second")
    label = f"CIFAR ResNet-20, batch 128, {precision}, with uploads and augmentation"
    for mode, goal, text in (("eager", 3.0, "PyTorch eager"), ("graphs", 1.3, "PyTorch with CUDA graphs")):
        other = theirs[mode].get("images_per_second")
        value = ratio(speed, other)
        row(rows, label, f"≥ {goal:g} × {text}", f"{number(value)} × ({number(speed, 0)} against {number(other, 0)} images/s)", value, goal,
            note=error_of(theirs[mode], *ours))
    value = ratio(speed, issued.get("images_per_second"))
    row(rows, label, "against its own steps without graphs", f"{number(value)} × ({number(issued.get('images_per_second'), 0)} images/s)", value, 0.0,
        note=error_of(issued))
    if value is not None:
        rows[-1]["verdict"] = "measured"


def measure_scheduler(bench, clock, rows, raw):
    case = CASES["resnet50"]
    command = [bench, "gpu-step", "--model", "resnet50", "--stem", case["stem"], "--precision", "bf16", "--batch", str(case["batch"]), "--image",
               str(case["image"]), "--classes", str(case["classes"]), "--steps", "40", "--json"]  # fmt: skip
    scheduled, plain = [], []
    for _ in range(2):
        scheduled.append(run(command, 40, clock))
        plain.append(run([*command, "--plain"], 40, clock))
    raw["scheduler"] = {"scheduled": scheduled, "plain": plain}
    value = ratio(middle(scheduled, "step_ms"), middle(plain, "step_ms"))
    row(rows, "ResNet-50, batch 256, bf16: with the gossip scheduler, one rank", "≤ 1.01 × without it",
        f"{number(value, 3)} × ({number(middle(scheduled, 'step_ms'))} against {number(middle(plain, 'step_ms'))} ms)", value, 1.01, below=True,
        note=error_of(*scheduled, *plain))


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


def write(out, rows, raw, name="goals"):
    out.mkdir(parents=True, exist_ok=True)
    lines = ["| what | goal | measured | |", "|---|---|---|---|"]
    lines += [f"| {r['what']} | {r['goal']} | {r['measured']} | {r['verdict']}{r['note']} |" for r in rows]
    (out / f"{name}.md").write_text("\n".join(lines) + "\n")
    (out / f"{name}.json").write_text(json.dumps({"rows": rows, "raw": raw}, indent=1) + "\n")
    print("\n".join(lines), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="update,resnet50,resnet18")
    parser.add_argument("--name", default="goals")
    parser.add_argument("--bench", default=str(ROOT / "build-gpu/bin/starling-bench"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build-gpu/gpu_check")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--parts", type=pathlib.Path, help="of exchange: the .json of an earlier call of this run, whose gpu-step and gpu-update it takes")
    parser.add_argument("--exchange-model", choices=sorted(EXCHANGES), default="resnet50")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(PEERS[arguments.peer[0]](*arguments.peer[1:])))
        return 0
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    clock = Clock(arguments.seconds)
    if arguments.warm:
        for name, precision in (("resnet50", "fp16"), ("resnet50", "bf16"), ("resnet18", "bf16")):
            peer(["step", name, precision, "compile", "1"], 120, clock)
        return 0
    only = arguments.only.split(",")
    known = ["update", "scheduler", "scheduler-cost", "exchange", *CASES]
    unknown = set(only) - set(known)
    if unknown:
        sys.exit(f"error: --only: unknown {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    rows, raw = [], {}
    if set(only) & {"update", "resnet50", "resnet18"}:
        raw["ceilings"] = {"matmul_tflops": peer(["matmul"], 40, clock)}
    if "resnet20" in only:
        measure_graphs(str(pathlib.Path(arguments.bench).parent / "starling-train"), clock, rows, raw)
        write(arguments.out, rows, raw, arguments.name)
    if "scheduler" in only:
        measure_scheduler(arguments.bench, clock, rows, raw)
        write(arguments.out, rows, raw, arguments.name)
    if "update" in only:
        measure_update(arguments.bench, clock, rows, raw)
        write(arguments.out, rows, raw, arguments.name)
    if "resnet50" in only:
        for precision in ("fp16", "bf16"):
            measure_model("resnet50", precision, {"eager": 1.3, "compile": 1.1}, arguments.bench, clock, rows, raw)
            write(arguments.out, rows, raw, arguments.name)
    if "resnet18" in only:
        measure_model("resnet18", "bf16", {"compile": 1.3}, arguments.bench, clock, rows, raw)
        write(arguments.out, rows, raw, arguments.name)
    if "exchange" in only:
        parts = raw if arguments.parts is None else json.loads(arguments.parts.read_text())["raw"] if arguments.parts.exists() else {}
        measure_exchange(arguments.bench, arguments.exchange_model, parts, clock, rows, raw)
        write(arguments.out, rows, raw, arguments.name)
    if "scheduler-cost" in only:
        measure_scheduler_cost(arguments.bench, clock, rows, raw)
        write(arguments.out, rows, raw, arguments.name)
    return 1 if any(r["verdict"] == "not measured" for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
