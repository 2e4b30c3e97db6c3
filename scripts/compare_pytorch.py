#!/usr/bin/env python3
"""Times Starling, PyTorch and decent-dp in one session, taking turns, and prints medians and ratios.

  scripts/compare_pytorch.py [--only resnet20,resnet18,mobilenet_v2,convnext_tiny,mlp,exposed] [--repeats 3] [--json]

Needs a built starling-bench and starling-train (scripts/test.sh builds them), torch, and for `mlp` and `exposed` decent-dp:
  python3 -m pip install torch decent-dp==0.2.3

Cases. One thread a rank, fp32, batches that lie ready in memory, medians over steps; each repeat runs every program once, in turn.
  resnet20, resnet18   a whole training step (forward, backward, AdamW) at CIFAR shape, batch 128, one process; PyTorch in channels_last
  mobilenet_v2, convnext_tiny   a step of starling-train at batch 8 of 96×96 pixels, one process, against torchvision's models in
                       PyTorch, in channels_last; needs torchvision
  mlp                  MLP 3072-512-512-10, batch 64, 2 ranks: gossip on a ring against decent-dp over gloo and PyTorch's DDP over gloo
  exposed              ResNet-20, batch 64, 2 ranks, ring: the share of a step that waits for communication
"""

import argparse
import json
import os
import pathlib
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ["mobilenet_v2", "convnext_tiny"]
CASES = ["resnet20", "resnet18", *PICTURES, "mlp", "exposed"]


# ---------------------------------------------------------------------------------------------------------------- PyTorch's side


def make_torch_model(name):
    import torch
    from torch import nn
    from torch.nn import functional

    if name in PICTURES:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=10)

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride, option_a):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.padding = (outputs - inputs) // 2 if option_a else 0
            self.stride = stride
            self.downsample = None
            if not option_a and (stride != 1 or inputs != outputs):
                self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
            y = self.bn2(self.conv2(y))
            if self.downsample is not None:
                x = self.downsample(x)
            elif self.padding:
                x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
            return functional.relu(y + x, inplace=True)

    class ResNet(nn.Module):
        def __init__(self, widths, blocks, option_a):
            super().__init__()
            self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(widths[0])
            layers, inputs = [], widths[0]
            for i, width in enumerate(widths):
                for j in range(blocks):
                    layers.append(Block(inputs, width, 2 if i > 0 and j == 0 else 1, option_a))
                    inputs = width
            self.blocks = nn.Sequential(*layers)
            self.fc = nn.Linear(widths[-1], 10)

        def forward(self, x):
            x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
            return self.fc(torch.flatten(functional.adaptive_avg_pool2d(self.blocks(x), 1), 1))

    if name == "resnet20":
        return ResNet([16, 32, 64], 3, True)
    if name == "resnet18":
        return ResNet([64, 128, 256, 512], 2, False)
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def worker(arguments):
    """One PyTorch process: one rank of a job, or a job by itself. Rank 0 prints a JSON object."""
    import torch
    from torch import distributed
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    model = make_torch_model(arguments.model)
    size = 96 if arguments.model in PICTURES else 32
    x = torch.randn(arguments.batch, 3, size, size)
    if arguments.model != "mlp":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (arguments.batch,))

    optimizer = None
    if arguments.peer in ("ddp", "decent-dp"):
        distributed.init_process_group("gloo")
    if arguments.peer == "decent-dp":
        from decent_dp.ddp import DecentralizedDataParallel

        def make_optimizer(named):  # its own optim_fn_adamw runs the slower loop over tensors
            return torch.optim.AdamW([tensor for _, tensor in named], lr=1e-3, weight_decay=0.1, fused=True)

        model = DecentralizedDataParallel(model, make_optimizer, topology="ring")
    else:
        if arguments.peer == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)

    model.train()
    times = []
    for step in range(arguments.warmup + arguments.steps):
        start = time.perf_counter()
        loss = functional.cross_entropy(model(x), labels)
        if optimizer is not None:
            optimizer.zero_grad()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        if step >= arguments.warmup:
            times.append(1e3 * (time.perf_counter() - start))
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"step_ms": statistics.median(times), "peak_memory_bytes": peak}), flush=True)
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def single_thread_environment():
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", LOGURU_LEVEL="WARNING")
    if os.geteuid() == 0:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environment.setdefault("HWLOC_HIDE_ERRORS", "2")
    return environment


def finish(process, what):
    out, err = process.communicate(timeout=1800)
    if process.returncode != 0:
        sys.exit(f"error: {what} ended with exit status {process.returncode}:\n{err.strip()[-3000:]}")
    return out


def run_torch(peer, model, batch, ranks, steps):
    """Median step of `ranks` processes; peer "none": without communication, side by side."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--worker", peer, "--model", model, "--batch", str(batch), "--steps", str(steps)]
    processes = []
    for rank in range(ranks):
        environment = single_thread_environment()
        environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [finish(process, f"PyTorch ({peer}, {model})") for process in processes]
    return json.loads(outputs[0].strip().splitlines()[-1])


# --------------------------------------------------------------------------------------------------------------- Starling's side


def program(name):
    build = pathlib.Path(os.environ.get("STARLING_BUILD", ROOT / "build"))
    path = build / "bin" / name
    if not path.exists():
        sys.exit(f"error: {path} is missing; build it with scripts/test.sh, or name the build folder in STARLING_BUILD")
    return str(path)


def run_bench(model, batch, steps, optimizer):
    command = [program("starling-bench"), "step", "--model", model, "--batch", str(batch), "--threads", "1"]
    command += ["--optimizer", optimizer, "--steps", str(steps), "--json"]
    if model == "resnet18":
        command += ["--stem", "cifar"]
    process = subprocess.Popen(command, env=single_thread_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return json.loads(finish(process, " ".join(command)))


def run_train(model, batch, ranks, steps, communicate=True):
    """Medians of the metrics lines after the first. Without communication: `ranks` one-rank runs side by side."""
    section = {"type": "mlp", "hidden": [512, 512]} if model == "mlp" else {"type": model}
    config = {
        "threads": 1, "model": section, "data": {"type": "synthetic", "image_size": 96 if model in PICTURES else 32}, "batch_size": batch, "steps": steps, "log_every": 5,
        "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.1}, "tensorboard": False,
        "sync": {"topology": {"type": "ring"}}, "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0},
    }
    with tempfile.TemporaryDirectory(prefix="starling-compare-") as folder:
        path = pathlib.Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        trainer = [program("starling-train"), str(path)]
        commands = [["mpirun", "--oversubscribe", "-n", str(ranks)] + trainer + ["--output", f"{folder}/0"]]
        if not communicate or ranks == 1:
            commands = [trainer + ["--output", f"{folder}/{i}"] for i in range(ranks)]
        processes = [
            subprocess.Popen(command, env=single_thread_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for command in commands
        ]
        for process, command in zip(processes, commands):
            finish(process, " ".join(command))
        lines = [json.loads(line) for line in (pathlib.Path(folder) / "0" / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((pathlib.Path(folder) / "0" / "summary.json").read_text())
    lines = [line for line in lines if "step_ms" in line][1:]
    return {
        "step_ms": statistics.median(line["step_ms"] for line in lines),
        "wait_ms": statistics.median(line["wait_ms"] for line in lines),
        "peak_memory_bytes": summary["peak_memory_bytes"],
    }


# ------------------------------------------------------------------------------------------------------------------------- cases


def alternate(programs, repeats):
    """Runs each of {name: function} once a repeat, in turn; gives {name: {key: median}}."""
    results = {name: [] for name in programs}
    for repeat in range(repeats):
        for name, run in programs.items():
            results[name].append(run())
            print(f"  {repeat + 1}/{repeats} {name}: {results[name][-1]['step_ms']:.2f} ms a step", file=sys.stderr, flush=True)
    medians = {}
    for name, runs in results.items():
        keys = [key for key, value in runs[0].items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
        medians[name] = {key: statistics.median(run[key] for run in runs) for key in keys}
        medians[name]["all_step_ms"] = [run["step_ms"] for run in runs]
    return medians


def case_step(model, arguments):
    steps = arguments.steps or (20 if model == "resnet20" else 5)
    result = alternate(
        {
            "starling": lambda: run_bench(model, 128, steps, arguments.optimizer),
            "pytorch": lambda: run_torch("none", model, 128, 1, steps),
        },
        arguments.repeats,
    )
    ours, theirs = result["starling"], result["pytorch"]
    result["ratios"] = {
        "starling / pytorch (speed)": theirs["step_ms"] / ours["step_ms"],
        "peak memory, starling / pytorch": ours["peak_memory_bytes"] / theirs["peak_memory_bytes"],
    }
    if "conv_bound_ms" in ours:
        result["ratios"]["starling / convolution-only bound (speed)"] = ours["conv_bound_ms"] / ours["step_ms"]
        result["ratios"]["pytorch / convolution-only bound (speed)"] = ours["conv_bound_ms"] / theirs["step_ms"]
    return result


def case_pictures(model, arguments):
    batch, steps = 8, arguments.steps or 30
    result = alternate(
        {
            "starling": lambda: run_train(model, batch, 1, steps),
            "pytorch": lambda: run_torch("none", model, batch, 1, steps),
        },
        arguments.repeats,
    )
    ours, theirs = result["starling"], result["pytorch"]
    result["ratios"] = {
        "starling / pytorch (speed)": theirs["step_ms"] / ours["step_ms"],
        "peak memory, starling / pytorch": ours["peak_memory_bytes"] / theirs["peak_memory_bytes"],
    }
    return result


def case_ranks(model, steps, arguments):
    batch, steps = 64, arguments.steps or steps
    result = alternate(
        {
            "starling, 2 ranks, ring": lambda: run_train(model, batch, 2, steps),
            "decent-dp, 2 ranks, ring, gloo": lambda: run_torch("decent-dp", model, batch, 2, steps),
            "pytorch ddp, 2 ranks, gloo": lambda: run_torch("ddp", model, batch, 2, steps),
            "starling, without communication": lambda: run_train(model, batch, 2, steps, communicate=False),
            "pytorch, without communication": lambda: run_torch("none", model, batch, 2, steps),
        },
        arguments.repeats,
    )
    ms = {name: run["step_ms"] for name, run in result.items()}
    ours = result["starling, 2 ranks, ring"]
    result["ratios"] = {
        "starling / decent-dp (speed)": ms["decent-dp, 2 ranks, ring, gloo"] / ours["step_ms"],
        "starling / pytorch ddp (speed)": ms["pytorch ddp, 2 ranks, gloo"] / ours["step_ms"],
        "starling / pytorch, both without communication (speed)":
            ms["pytorch, without communication"] / ms["starling, without communication"],
        "starling: wait / step": ours["wait_ms"] / ours["step_ms"],
        "starling: with / without communication": ours["step_ms"] / ms["starling, without communication"],
        "decent-dp: with / without communication": ms["decent-dp, 2 ranks, ring, gloo"] / ms["pytorch, without communication"],
        "pytorch ddp: with / without communication": ms["pytorch ddp, 2 ranks, gloo"] / ms["pytorch, without communication"],
    }
    return result


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    except (OSError, IndexError):
        return "?"


def describe_machine():
    import importlib.metadata as metadata

    def version(package):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "absent"

    cpu, flags = "?", set()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "instruction_sets": [name for name in ("avx2", "avx512f", "amx_bf16") if name in flags],
        "system": platform.platform(),
        "starling": first_line([program("starling-train"), "--version"]),
        "pytorch": version("torch"),
        "decent-dp": version("decent-dp"),
        "open mpi": first_line(["mpirun", "--version"]),
        "python": platform.python_version(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="cases to run, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="timed steps of a run (default: by case)")
    parser.add_argument("--optimizer", default="accum_adamw", help="of starling-bench; PyTorch has AdamW")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--worker", dest="peer", choices=["none", "ddp", "decent-dp"], help=argparse.SUPPRESS)
    parser.add_argument("--model", default="resnet20", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=128, help=argparse.SUPPRESS)
    parser.add_argument("--warmup", type=int, default=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return worker(arguments)

    cases = arguments.only.split(",")
    unknown = [case for case in cases if case not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; known: {', '.join(CASES)}")
    report = {"machine": describe_machine(), "repeats": arguments.repeats, "cases": {}}
    for case in cases:
        print(f"{case}:", file=sys.stderr)
        if case in ("resnet20", "resnet18"):
            report["cases"][case] = case_step(case, arguments)
        elif case in PICTURES:
            report["cases"][case] = case_pictures(case, arguments)
        else:
            model, steps = ("mlp", 100) if case == "mlp" else ("resnet20", 30)
            report["cases"][case] = case_ranks(model, steps, arguments)

    if arguments.json:
        print(json.dumps(report, indent=1))
        return None
    for key, value in report["machine"].items():
        print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    for case, result in report["cases"].items():
        print(f"\n{case} (medians of {arguments.repeats})")
        for name, run in result.items():
            if name != "ratios":
                extra = f"  wait {run['wait_ms']:.2f} ms" if "wait_ms" in run else ""
                spread = " ".join(f"{value:.1f}" for value in run["all_step_ms"])
                print(f"  {name:34} {run['step_ms']:9.2f} ms a step  {run['peak_memory_bytes'] / 2**20:7.0f} MiB{extra}  ({spread})")
        for name, ratio in result["ratios"].items():
            print(f"  {name:56} {ratio:6.3f}")
    return None


if __name__ == "__main__":
    sys.exit(main())
