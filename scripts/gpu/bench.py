"""Measures Starling on a GPU against PyTorch in the same run, and writes the goals' table.

  --only update,resnet50,resnet20,gpt2,resnet18,scheduler   the default; with --first N the N most
                                                       valuable of ORDER, with --once each once
  --only exchange         what exchanges add to a step: measured where there are several GPUs, else
                          predicted by starling-topo from a step and an update that this call
                          measured, or measures now
  --rehearse              an MLP in the place of every network: to try the script where nothing is
                          fast

Needs a GPU, torch with CUDA (without it its rows say so) but for exchange, and a built
starling-bench, with starling-train and starling-topo beside it. Writes goals.md and goals.json
anew after every measurement, the most valuable first. Each runs in a process of its own with a
time limit, and one that fails leaves a row that says so.
"""

import argparse
import array
import functools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import processes
from pytorch import CASES, PARAMETERS

TEXT_BATCHES = (32, 16)
LLM_C = 463_000  # tokens a second of its bf16 run of GPT-2 124M on one H100 (llm.c, discussion 481)
STRETCH_IMAGES = 7_000  # a second, ResNet-50 in fp16 on one H200
LABELS = {"resnet50": "ResNet-50, batch 256", "resnet18": "CIFAR ResNet-18, batch 512", "resnet20": "CIFAR ResNet-20, batch 128", "mlp": "MLP, batch 8"}
MLP = {"batch": 8, "image": 8, "classes": 10, "stem": None}
MODELS = {**CASES, "mlp": MLP}
NO_PYTORCH = "no PyTorch here that sees a GPU"
NO_TIME = "no time was left"
# a parameter's share of AdamW's update without a neighbour, as starling-topo counts it
UPDATE_BYTES = 28
LINKS = (400, 100)  # Gbit/s of a host's link, assumed
LATENCY = 20  # microseconds between hosts, assumed
BEHIND = 45  # seconds for what comes behind ORDER: where it takes its figures from others

# ---------------------------------------------------------------------------------------- measuring


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith(("{", "[")):
            return json.loads(line)
    raise ValueError("no JSON in the output")


@functools.cache
def torch_sees_a_gpu():
    return machine.answer([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], 90, {**os.environ, **processes.outer_libraries()}) == "True"


class Bench:
    def __init__(self, options):
        self.options, self.rehearsed, self.end, self.raw = options, options.rehearse, time.monotonic() + options.seconds, {}
        self.bench, self.train, self.topo = (str(pathlib.Path(options.bench).parent / name) for name in (pathlib.Path(options.bench).name, "starling-train", "starling-topo"))

    def left(self):
        return self.end - time.monotonic()

    def run(self, command, limit, environment=None, json_of=last_json):
        """The command's JSON, or {"error": why}."""
        asked, limit, label = limit, min(limit, self.left()), " ".join(command[-6:])
        if limit < 5:
            return {"error": NO_TIME}
        begin = time.monotonic()
        try:
            process = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"{label}: no end within {limit:.0f} s", flush=True)
            processes.end(process)  # mpirun ends its ranks then
            return {"error": f"no end within {limit:.0f} s" if limit == asked else NO_TIME}
        except OSError as error:
            return {"error": str(error)}
        print(f"{label}: {time.monotonic() - begin:.1f} s, exit status {process.returncode}", flush=True)
        if process.returncode != 0:
            message = (errors.strip() or output.strip() or f"exit status {process.returncode}").splitlines()
            print("\n".join(message[-30:]), flush=True)
            return {"error": message[-1][:200]}
        try:
            result = json_of(output)
        except (ValueError, KeyError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)
        return result

    def torch(self, limit, *words):
        if not torch_sees_a_gpu():
            return {"error": NO_PYTORCH}
        return self.run(processes.topic("pytorch", *words), limit, processes.outer_libraries())

    def update(self, limit, parameters=PARAMETERS):
        size = ["--parameters", "4096", "--repeats", "1"] if self.rehearsed else ["--parameters", str(parameters)]
        return self.run([self.bench, "gpu-update", *size, "--json"], limit)

    def gpu_step(self, limit, name, precision, *more, steps=None):
        if self.rehearsed:
            name, steps = "mlp", 5
        case = MODELS[name]
        command = [self.bench, "gpu-step", "--model", name, *(["--stem", case["stem"]] if case["stem"] else []), "--precision", precision, "--batch", str(case["batch"]),
                   # fmt: skip
                   "--image", str(case["image"]), "--classes", str(case["classes"]), *(["--steps", str(steps)] if steps else []), *more, "--json"]
        return self.run(command, limit)

    def train_step(self, limit, name, precision="bf16", steps=1600, ranks=1, **changes):
        """Of starling-train, batches made and sent up as it goes: {"step_ms", "images_per_second",
        "transport"} or {"error"}."""
        if self.rehearsed:
            name, steps = "mlp", 64
        case = MODELS[name]
        config = {
            "seed": 1, "model": {"type": name}, "batch_size": case["batch"], "steps": steps, "precision": precision,
            "data": {"type": "synthetic", "image_size": case["image"], "classes": case["classes"], "limit": max(16 * case["batch"] * ranks, 4096), "test_limit": 128,
                     "augment": {"flip": True, "crop_padding": 4}},
            "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01}, "log_every": max(1, steps // 8), "tensorboard": False,
            "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, "sync": {"topology": {"type": "one-peer-exp"}}, **changes,
        }  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
            path = pathlib.Path(folder)
            (path / "config.json").write_text(json.dumps(config))

            def figures(output):
                if config.get("cuda_graphs") and "without CUDA graphs" in output:
                    raise ValueError("the steps were no graphs")
                lines = [json.loads(line) for line in (path / "out" / "metrics.jsonl").read_text().splitlines()]
                # the first ones warm up and capture
                lines = [line for line in lines if "step_ms" in line][2:]
                return {**{key: statistics.median(line[key] for line in lines) for key in ("step_ms", "images_per_second")},
                        # fmt: skip
                        "transport": json.loads((path / "out" / "summary.json").read_text()).get("transport", "none")}

            mpi = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
            command = ["bash", "-c", 'exec "$@" 2>&1', "_", *mpi, self.train, str(path / "config.json"), "--device", "cuda", "--output", str(path / "out")]
            return self.run(command, limit, json_of=figures)

    def text_step(self, limit, batch, mode=""):
        """GPT-2 of 124 M parameters in bf16 on random tokens, 1,024 a sample: {"step_ms",
        "tokens_per_second"} or {"error"}. mode: "" is Starling, "eager" and "compile" PyTorch."""
        sizes = {"layers": 2, "heads": 2, "width": 32, "context": 64, "vocab": 250} if self.rehearsed else {"layers": 12, "heads": 12, "width": 768, "context": 1024, "vocab": 50257}
        length, steps = sizes["context"], 12 if self.rehearsed else 60
        if mode and not torch_sees_a_gpu():
            return {"error": NO_PYTORCH}
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
            path = pathlib.Path(folder)
            drawn = random.Random(1)
            for name, count in (("train.bin", steps * batch * length + 1), ("val.bin", 4 * length + 1)):
                (path / name).write_bytes(array.array("H", (drawn.randrange(sizes["vocab"]) for _ in range(min(count, 1 << 20)))).tobytes())
            config = {
                "seed": 1, "model": {"type": "gpt2", **sizes}, "batch_size": batch, "steps": steps, "precision": "bf16", "cuda_graphs": True,
                "data": {"type": "tokens", "path": folder, "vocab": sizes["vocab"], "sequence_length": length},
                "optimizer": {"type": "adamw", "lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
                "schedule": {"type": "cosine", "warmup_steps": 4, "warmup_factor": 0.1, "min_lr": 0}, "log_every": 5, "tensorboard": False,
                "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0},
            }  # fmt: skip
            (path / "config.json").write_text(json.dumps(config))

            def rate(lines):
                lines = [json.loads(line) for line in lines]
                if mode:
                    times = [after["seconds"] - before["seconds"] for before, after in zip(lines, lines[1:])]
                    seconds = statistics.median(times[len(times) // 2 :])
                else:
                    # the first ones warm up and capture
                    seconds = 1e-3 * statistics.median([line["step_ms"] for line in lines if "step_ms" in line][2:])
                return {"step_ms": 1e3 * seconds, "tokens_per_second": batch * length / seconds}

            if mode:
                # 50,304 rows suit PyTorch's products better
                words = ["--device", "cuda", "--precision", "bf16", "--vocab", str(-(-sizes["vocab"] // 128) * 128), *(["--compile"] if mode == "compile" else [])]
                command = [sys.executable, "-B", str(processes.ROOT / "scripts" / "gpt_torch.py"), str(path / "config.json"), *words]
                return self.run(command, limit, processes.outer_libraries(), json_of=lambda output: rate([line for line in output.splitlines() if line.startswith("{")]))
            command = ["bash", "-c", 'exec "$@" 2>&1', "_", self.train, str(path / "config.json"), "--device", "cuda", "--output", str(path / "out")]
            return self.run(command, limit, json_of=lambda _: rate((path / "out" / "metrics.jsonl").read_text().splitlines()))

    def floors(self):
        """The least time of each goal's step on this device, in ms by the goal's name; empty where
        its ceilings are not known yet."""
        ours = [one for subject in self.raw.values() if isinstance(subject, dict) for results in subject.values() for one in results]
        device = next((one["device"] for one in ours if "device" in one), "")
        known = self.floors_at("--on", device) if device else {}
        if known or self.rehearsed:
            return known
        copies = [1e-3 * r["gb_per_s"] for one in ours for r in one.get("results", []) if r["name"] == "copy"]
        rates = [one["bf16"] for one in ours if "bf16" in one]
        return self.floors_at("--bandwidth", f"{copies[0]:.4g}", "--flops", f"{rates[0]:.4g}") if copies and rates else {}

    @functools.cache
    def floors_at(self, *ceilings):
        rows = self.run([self.bench, "floor", "--json", *ceilings], 30)
        return {} if "error" in rows else {row["row"]: row["ms"] for row in rows}


# --------------------------------------------------------------------------------------------- rows


def number(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def ratio(a, b):
    return a / b if a and b else None


def middle(results, key):
    values = [r[key] for r in results if key in r]
    return statistics.median(values) if values else None


def row(what, goal_text, measured, value, goal=None, below=False, of=(), note=""):
    """`of`: the results that it is made from, whose first error stands behind it. Without a goal it
    is measured, no more."""
    note = next((f" ({r['error']})" for r in of if "error" in r), "") + note
    if value is None:
        verdict = "skipped" if NO_PYTORCH in note else "no time" if NO_TIME in note else "not measured" if note else "not tried"
    else:
        verdict = "measured" if goal is None else "reached" if (value <= goal if below else value >= goal) else "missed"
    return {"what": what, "goal": goal_text, "measured": measured, "value": value, "verdict": verdict, "note": note}


# Of each subject the rows from what its parts gave until then: lists of results by part, whose
# median counts.


def update_rows(b, of):
    rows, ours, theirs, compiled = [], of("starling"), of("torch"), of("compiled")
    tables = [{r["name"]: r for r in one["results"]} for one in ours if "results" in one]
    floor = next((ms for name, ms in b.floors().items() if "adamw, 25.6 M parameters, fp32, 32 B" in name), None)
    for rule in ("adamw", "accum_adamw"):
        share, ms = (statistics.median([t[rule][key] for t in tables]) if tables else None for key in ("ratio_to_copy", "ms"))
        rows.append(row(f"fused update with mixing, {rule}, {PARAMETERS * 1e-6:.1f} M parameters", "≥ 0.92 of copy bandwidth",
                        # fmt: skip
                        f"{number(share, 3)} ({number(ms, 3)} ms; floor {number(floor, 3)} ms)", share, 0.92, of=ours))
        for what, key, goal, results in (("foreach kernels", f"{rule}_ms", 2.0, theirs), ("foreach mixing and PyTorch's fused step", "fused_ms", 1.0, theirs),
                                         # fmt: skip
                                         ("mixing and step compiled by PyTorch", "compiled_ms", 1.0, compiled)):
            if rule == "adamw" or key == "accum_adamw_ms":
                other = middle(results, key)
                rows.append(row(f"the same, {rule}, against {what}", f"≥ {goal:g} ×", f"{number(ratio(other, ms))} × ({number(other, 3)} ms)",
                                ratio(other, ms), goal, of=[*results, *ours]))  # fmt: skip
    return rows


def model_rows(name, precision, goals, b, of):
    """A training step, by heuristics and with every candidate of a convolution timed (which
    PyTorch's side does too)."""
    ours, timed, label, rows = of("starling"), of("cudnn_benchmark"), f"{LABELS[name]}, {precision}", []
    plain_speed, timed_speed = middle(ours, "images_per_second"), middle(timed, "images_per_second")
    speed = max((s for s in (plain_speed, timed_speed) if s), default=None)
    speeds = f"{number(speed, 0)}; by heuristics {number(plain_speed, 0)}, with cudnn_benchmark {number(timed_speed, 0)}"
    for mode, goal in goals.items():
        theirs = middle(of(mode), "images_per_second")
        text = {"eager": "PyTorch channels_last AMP eager", "compile": "torch.compile"}[mode]
        rows.append(row(label, f"≥ {goal} × {text}", f"{number(ratio(speed, theirs))} × ({speeds}; against {number(theirs, 0)} images/s)",
                        ratio(speed, theirs), goal, of=[*of(mode), *ours, *timed]))  # fmt: skip
    if name == "resnet50" and precision == "fp16":
        rows.append(row(f"{label}: stretch goal", f"≥ {STRETCH_IMAGES:,} images/s", f"{number(speed, 0)} images/s", speed, STRETCH_IMAGES, of=[*ours, *timed]))
    floor = next((ms for what, ms in b.floors().items() if what.startswith(LABELS[name]) and f", {precision}" in what), None)
    best = min((r["step_ms"] for r in [*ours, *timed] if "step_ms" in r), default=None)
    if floor and best:
        rows.append(row(label, "share of the floor", f"{number(floor / best)} ({number(floor, 1)} of {number(best, 1)} ms)", floor / best))
    if name == "resnet50":
        peak, theirs = max((r["peak_bytes"] for r in [*ours, *timed] if "peak_bytes" in r), default=None), middle(of("eager"), "peak_bytes")
        sizes = f"{number(peak and peak / 2**30)} against {number(theirs and theirs / 2**30)} GiB"
        rows.append(row(f"{label}: memory", "≤ PyTorch's peak", f"{number(ratio(peak, theirs))} × ({sizes})", ratio(peak, theirs), 1.0,
                        below=True, of=[*of("eager"), *ours]))  # fmt: skip
    return rows


def graphs_rows(b, of):
    """The small network, which launches bound: whole steps as graphs on both sides."""
    ours, timed, rows, label = of("starling"), of("cudnn_benchmark"), [], f"{LABELS['resnet20']}, bf16, with uploads and augmentation"
    speed = max((s for s in (middle(ours, "images_per_second"), middle(timed, "images_per_second")) if s), default=None)
    for mode, goal, text in (("eager", 3.0, "≥ 3 × PyTorch eager"), ("graphs", 1.3, "≥ 1.3 × PyTorch with CUDA graphs"), ("reduce-overhead", 1.3, "≥ 1.3 × torch.compile, reduce-overhead"),
                             # fmt: skip
                             ("starling", None, "with cudnn_benchmark against without"), ("issued", None, "against its own steps without graphs")):
        best, other = middle(timed, "images_per_second") if mode == "starling" else speed, middle(of(mode), "images_per_second")
        measured = f"{number(ratio(best, other))} × ({number(best, 0)} against {number(other, 0)} images/s)"
        rows.append(row(label, text, measured, ratio(best, other), goal, of=[*of(mode), *ours, *timed]))
    return rows


def text_rows(b, of):
    rows, label = [], "GPT-2 124M, bf16, 1,024 tokens a sample"
    ours = [one for batch in TEXT_BATCHES for one in of(f"starling{batch}")]
    speed = max((one["tokens_per_second"] for one in ours if "tokens_per_second" in one), default=None)
    for text, theirs, goal, results in (("llm.c's 463,000 tokens/s on an H100", LLM_C, 1.0, []), ("torch.compile", middle(of("compile"), "tokens_per_second"), 1.0, of("compile")),
                                        # fmt: skip
                                        ("PyTorch eager", middle(of("eager"), "tokens_per_second"), None, of("eager"))):
        rows.append(row(label, f"≥ {text}", f"{number(ratio(speed, theirs))} × ({number(speed, 0)} against {number(theirs, 0)} tokens/s)", ratio(speed, theirs), goal, of=[*ours, *results]))
    return rows


def scheduler_rows(b, of):
    scheduled, plain = middle(of("scheduled"), "step_ms"), middle(of("plain"), "step_ms")
    return [row("ResNet-50, batch 256, bf16: with the gossip scheduler, one rank", "≤ 1.01 × without it",
                # fmt: skip
                f"{number(ratio(scheduled, plain), 3)} × ({number(scheduled)} against {number(plain)} ms)", ratio(scheduled, plain), 1.01, below=True, of=[*of("scheduled"), *of("plain")])]


def exchange_rows(b):
    """Exposed is what a step of several ranks takes longer than one of a rank alone."""
    name = b.options.exchange_model or ("mlp" if b.rehearsed else "resnet50")
    parameters, steps, rounds = (366_602, 16, 1) if name == "mlp" else (PARAMETERS, 200, 3)
    label, gpus = f"{LABELS[name]}, bf16", len(machine.gpus())
    ranks = 1 << (min(gpus, 8).bit_length() - 1) if gpus > 1 else 0
    measured = b.raw.get(f"{name} bf16", {}).get("starling", [])
    if ranks:
        runs = {ranks: [], 1: []}
        for _ in range(rounds):
            for count, results in runs.items():
                results.append(b.train_step(60, name, steps=steps, ranks=count))
        b.raw["exchange"] = {f"{count} ranks": results for count, results in runs.items()}
        many, alone = (middle(runs[count], "step_ms") for count in (ranks, 1))
        exposed = many / alone - 1 if many and alone else None
        transport = next((r["transport"] for r in runs[ranks] if "transport" in r), "–")
        slower = ratio(alone, middle(measured, "step_ms")) or 1.0
        loads = f" (one rank takes {slower:.1f} × a step without a loader: the loader may hide what exchanges cost)" if slower > 1.25 else ""
        if exposed is not None:
            return [row(f"{label}, one-peer-exp, {ranks} GPUs of this host, {transport}: exposed exchange", "≤ 3 %",
                        # fmt: skip
                        f"{number(100 * exposed)} % ({number(many)} ms against {number(alone)} ms of one rank)", exposed, 0.03, below=True, note=loads)]
    if not measured:
        measured = [b.gpu_step(60, name, "bf16")]
    updates = b.raw.get("update", {}).get("starling", []) or [b.update(40, parameters)]
    step_ms, rates = middle(measured, "step_ms"), [r["gb_per_s"] for one in updates for r in one.get("results", []) if r["name"] == "adamw"]
    gb_per_s = statistics.median(rates) if rates else None
    rows, plans = [], b.raw.setdefault("exchange, predicted", {})
    for gbits in LINKS:
        plan = plans[gbits] = predicted(b, parameters, step_ms, gb_per_s, gbits) if step_ms and gb_per_s else {}
        longer = {name: 100 * (plan[name]["step_ms"] / plan["compute_ms"] - 1) for name in ("one-peer-exp", "base-2") if name in plan}
        said = [f"{name}: a step is {longer[name]:.1f} % longer, {plan[name]['exposed_ms']:.2f} ms of it waiting" for name in longer]
        value = max(longer.values()) / 100 if longer else None
        one = row(f"{label}, 8 hosts of one GPU, links of {gbits} Gbit/s: exposed exchange", "≤ 3 %",
                  f"predicted, {'; '.join(said) or '–'}; its parts, measured: a step of {number(step_ms)} ms, an update at {number(gb_per_s, 0)} GB/s",
                  value, 0.03, below=True, of=[*measured, *updates, plan])  # fmt: skip
        if value is not None:
            one["verdict"] = f"**predicted**, not measured: would be {one['verdict']}; assumed: the links, {LATENCY} µs of latency; "
            one["verdict"] += "what NCCL's kernels take of the multiprocessors is not in it"
        rows.append(one)
    return rows


def predicted(b, parameters, step_ms, gb_per_s, gbits):
    """What starling-topo makes of it, the best bucket size of each topology: {"compute_ms",
    topology: {"step_ms", "exposed_ms"}} or {"error"}."""
    update_ms = parameters * UPDATE_BYTES / gb_per_s * 1e-6
    # it adds the update itself
    command = [b.topo, "plan", "-n", "8", "--ranks-per-node", "1", "--step-ms", f"{max(step_ms - update_ms, 1e-3):.6g}", "--memory-bandwidth", f"{gb_per_s:.6g}",
               # fmt: skip
               "--parameters", f"{parameters * 1e-6:.6g}", "--bandwidth", str(gbits), "--latency", str(LATENCY), "--json"]

    def best(text):
        plan = json.loads(text)
        choices = {name: min((c for c in plan["choices"] if c["topology"] == name), key=lambda c: c["step_ms"]) for name in ("one-peer-exp", "base-2")}
        best_of = {name: {key: choice[key] for key in ("step_ms", "exposed_ms", "bucket_mb")} for name, choice in choices.items()}
        return {"command": " ".join(command[1:]), "compute_ms": plan["compute_ms"], **best_of}

    return b.run(command, 20, json_of=best)


# ----------------------------------------------------------------------------------------- in order


def measurements(b):
    """(limit in seconds, the measurement) by subject and part."""
    found = {
        ("update", "starling"): (40, b.update),
        ("update", "torch"): (60, lambda limit: b.torch(limit, "update")),
        ("update", "compiled"): (90, lambda limit: b.torch(limit, "compiled")),
        ("matmul", "matmul"): (40, lambda limit: b.torch(limit, "matmul")),
        ("resnet20 bf16", "starling"): (60, lambda limit: b.train_step(limit, "resnet20", cuda_graphs=True)),
        ("resnet20 bf16", "cudnn_benchmark"): (60, lambda limit: b.train_step(limit, "resnet20", cuda_graphs=True, cudnn_benchmark=True)),
        ("resnet20 bf16", "issued"): (60, lambda limit: b.train_step(limit, "resnet20", cuda_graphs=False)),
        ("scheduler", "scheduled"): (60, lambda limit: b.gpu_step(limit, "resnet50", "bf16", steps=40)),
        ("scheduler", "plain"): (60, lambda limit: b.gpu_step(limit, "resnet50", "bf16", "--plain", steps=40)),
    }
    for batch in TEXT_BATCHES:
        found["gpt2 bf16", f"starling{batch}"] = (60, functools.partial(b.text_step, batch=batch))
    for mode, limit in (("eager", 60), ("compile", 150)):
        found["gpt2 bf16", mode] = (limit, functools.partial(b.text_step, batch=TEXT_BATCHES[0], mode=mode))
    for mode, limit in (("eager", 60), ("graphs", 60), ("reduce-overhead", 120)):
        found["resnet20 bf16", mode] = (limit, lambda limit, mode=mode: b.torch(limit, "step", "resnet20", "bf16", mode, 400))
    for name, precision in (("resnet50", "bf16"), ("resnet50", "fp16"), ("resnet18", "bf16")):
        case = lambda part, limit, measure, *given: found.update({(f"{name} {precision}", part): (limit, functools.partial(measure, *given))})
        case("starling", 90, lambda name, precision, limit: b.gpu_step(limit, name, precision), name, precision)
        case("cudnn_benchmark", 90, lambda name, precision, limit: b.gpu_step(limit, name, precision, "--cudnn-benchmark"), name, precision)
        for mode, seconds in (("eager", 60), ("compile", 150)):
            case(mode, seconds, lambda name, precision, mode, limit: b.torch(limit, "step", name, precision, mode), name, precision, mode)
    return found


ROWS = {
    "update": update_rows,
    "resnet50 bf16": functools.partial(model_rows, "resnet50", "bf16", {"eager": 1.3, "compile": 1.1}),
    "resnet50 fp16": functools.partial(model_rows, "resnet50", "fp16", {"eager": 1.3, "compile": 1.1}),
    "resnet20 bf16": graphs_rows,
    "resnet18 bf16": functools.partial(model_rows, "resnet18", "bf16", {"compile": 1.3}),
    "gpt2 bf16": text_rows,
    "scheduler": scheduler_rows,
    "matmul": lambda b, of: [],
}
# In the order of value, a subject with its parts: a run that is cut has the figures before.
ORDER = [
    ("update", "starling"), ("resnet50 bf16", "starling"), ("update", "torch"), ("resnet50 bf16", "eager"),
    ("resnet20 bf16", "starling graphs eager"), ("matmul", "matmul"),
    ("resnet50 bf16", "compile"), ("resnet20 bf16", "reduce-overhead cudnn_benchmark"), ("resnet50 fp16", "starling eager"),
    ("resnet50 bf16", "cudnn_benchmark"), ("update", "compiled"), ("resnet50 fp16", "cudnn_benchmark compile"), ("resnet20 bf16", "issued"),
    ("update", "starling"), ("resnet50 bf16", "starling"), ("resnet50 fp16", "starling"), ("resnet20 bf16", "starling"),
    ("gpt2 bf16", "starling32 starling16 compile eager"),
    ("resnet18 bf16", "starling compile cudnn_benchmark"), ("scheduler", "scheduled plain scheduled plain"),
]  # fmt: skip
ORDER = [(subject, part) for subject, parts in ORDER for part in parts.split(" ")]


def main():
    known = ["update", "resnet50", "resnet20", "gpt2", "resnet18", "scheduler", "exchange"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(known[:6]), help=", ".join(known))
    parser.add_argument("--first", type=int, help="the first N measurements of them alone")
    parser.add_argument("--once", action="store_true", help="none a second time")
    parser.add_argument("--bench", default=processes.built("starling-bench"))
    parser.add_argument("--out", type=pathlib.Path, default=processes.ROOT / "build-gpu/gpu_check")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--exchange-model", choices=["resnet50", "mlp"], help="default: resnet50")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    only, b, tables = options.only.split(","), Bench(options), {}
    if unknown := sorted(set(only) - set(known)):
        parser.error(f"--only: unknown {', '.join(unknown)}; known: {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)

    def show(subject, rows):
        tables[subject] = rows
        everything = [one for table in tables.values() for one in table]
        lines = ["| what | goal | measured | |", "|---|---|---|---|"]
        lines += [f"| {'rehearsed on an MLP: ' * b.rehearsed}{r['what']} | {r['goal']} | {r['measured']} | {r['verdict']}{r['note']} |" for r in everything]
        for name, text in (("goals.md", "\n".join(lines)), ("goals.json", json.dumps({"rows": everything, "raw": b.raw}, indent=1))):
            processes.replace(options.out / name, (text + "\n").encode())
        return lines

    wanted = [one for one in ORDER if one[0].split(" ")[0] in only or one[0] == "matmul" and "resnet50" in only]
    wanted = (list(dict.fromkeys(wanted)) if options.once else wanted)[: options.first]
    b.end -= BEHIND * bool("exchange" in only and wanted)
    parts, lines = measurements(b), []
    for subject, part in wanted:
        if subject == "matmul" and b.floors():  # the device's ceilings are known
            continue
        limit, measure = parts[subject, part]
        results = b.raw.setdefault(subject, {}).setdefault(part, [])
        # Once it has failed, a second attempt would take the others' time.
        if not any("error" in one for one in results):
            results.append(measure(limit))
        lines = show(subject, ROWS[subject](b, lambda part, subject=subject: b.raw[subject].get(part, [])))
    b.end += BEHIND * bool("exchange" in only and wanted)
    if "exchange" in only:
        lines = show("exchange", exchange_rows(b))
    print("\n".join(lines), flush=True)
    return 1 if any(r["verdict"] == "not measured" for table in tables.values() for r in table) else 0
