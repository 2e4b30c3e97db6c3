"""One measurement on a GPU, ours or PyTorch's, as a line of JSON; and the goals that all of them
together are held against.

  measure NAME [--small] [--known FILE]   NAME: SUBJECT/PART; without a name all are listed

--small: sizes for machines where nothing is fast. --known: results of scripts/gpu_check.sh, from
which `exchange` takes the step and the update that it predicts by. Exit status: 0; 1 a program
failed; 2 wrong usage; 77 this machine cannot do it.
"""

import argparse
import array
import functools
import glob
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import jobs
from jobs import Failed, Skipped

PARAMETERS = 25_600_000  # of the update
LLM_C = 463_000  # tokens a second of its bf16 run of GPT-2 124M on one H100 (llm.c, discussion 481)
STRETCH_IMAGES = 7_000  # a second, ResNet-50 in fp16 on one H200
UPDATE_BYTES_MIXED = 32  # and with one
UPDATE_BYTES = 28  # a parameter's share of AdamW's update without a neighbour, as starling-topo counts it
LINKS, LATENCY = (400, 100), 20  # of 8 hosts, assumed: Gbit/s, microseconds
IMAGES = {
    "resnet50": {"batch": 256, "image": 224, "classes": 1000, "stem": "imagenet", "label": "ResNet-50, batch 256"},
    "resnet18": {"batch": 512, "image": 32, "classes": 10, "stem": "cifar", "label": "CIFAR ResNet-18, batch 512"},
    "resnet20": {"batch": 128, "image": 32, "classes": 10, "stem": None, "label": "CIFAR ResNet-20, batch 128"},
    "mlp": {"batch": 8, "image": 8, "classes": 10, "stem": None, "label": "MLP, batch 8"},
}
LLAMA = (("type", "llama"), ("kv_heads", 4), ("hidden", 2048))  # what it has other than GPT-2 124M
SMALL = False
NO_TORCH = re.compile(r"No module named '(torch|numpy)'|not compiled with CUDA|No CUDA GPUs|no NVIDIA driver")


def gpus():
    """One line of nvidia-smi for each visible GPU."""
    query = "name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
    lines = []
    if shutil.which("nvidia-smi"):
        try:  # the first call of a driver that nobody keeps loaded may take long
            done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, timeout=45, check=False)
            lines = [line.strip() for line in done.stdout.splitlines() if done.returncode == 0 and re.match(r"\S.*, \d+\.\d+,", line)]
        except (OSError, subprocess.TimeoutExpired):
            pass
    lines = lines or ["a GPU that nvidia-smi does not tell,"] * len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return lines if visible is None else lines[: len([word for word in visible.split(",") if word.strip()])]


# -------------------------------------------------------------------------------------- programs


def run(command, env=None):
    return jobs.outputs_of([([str(word) for word in command], env or jobs.environment())], pathlib.Path(str(command[0])).name)[0]


def bench(*words, program="starling-bench"):
    return jobs.last_json(run([jobs.program(program), *words, "--json"]))


def torch(script, *words):
    try:
        return run([sys.executable, "-B", jobs.ROOT / "scripts/peers" / script, *words], jobs.outer_libraries())
    except Failed as error:
        if NO_TORCH.search(str(error)):
            raise Skipped("no PyTorch here that sees a GPU") from None
        raise


def update():
    """Rows with one neighbour; a group of several updates is taken by the update."""
    found = bench("speed", "--device", "cuda", "--only", "update ", *(["--batch", 1, "--repeats", 1] if SMALL else ["--batch", PARAMETERS // 4096]), program="test_operations")
    row = lambda name, rate, ratio: {"name": name, "gb_per_s": rate, "ratio_to_copy": ratio, "ms": UPDATE_BYTES_MIXED * PARAMETERS / rate * 1e-6}
    rows = [row(one["operation"].split()[1], one["rate"], one["ratio"]) for one in found["rows"]]
    return {"device": found["device"], "results": [row("copy", found["copy_gb_per_second"], 1.0), *rows]}


def step(name, precision, *more, steps=40):
    name, steps = ("mlp", 5) if SMALL else (name, steps)
    case = IMAGES[name]
    words = ["--model", name, *(["--stem", case["stem"]] if case["stem"] else []), "--precision", precision, "--batch", case["batch"], "--image", case["image"]]
    return bench("step", "--device", "cuda", *words, "--classes", case["classes"], "--steps", steps, *more)


def torch_step(name, precision, mode, steps=40):
    case = IMAGES[name]
    model = {"type": name, **({"stem": case["stem"]} if case["stem"] else {})}
    about = {"model": model, "device": "cuda", "precision": precision, "mode": mode, "steps": steps, **{key: case[key] for key in ("batch", "image", "classes")}}
    return jobs.last_json(torch("step.py", "train", json.dumps(about)))


def trained(config, read, ranks=1):
    """What `read` makes of the output folder of a run of the trainer on the GPU."""
    with tempfile.TemporaryDirectory(prefix="starling-measure-") as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        mpi = [*jobs.MPIRUN, ranks] if ranks > 1 else []
        words = run(["bash", "-c", 'exec "$@" 2>&1', "_", *mpi, jobs.program("starling-train"), path / "config.json", "--device", "cuda", "--output", path / "out"])
        if config.get("cuda_graphs") is True and "without CUDA graphs" in words:
            raise Failed("the steps were no graphs")
        return read(path / "out")


def train_step(name, ranks=1, steps=1600, **changes):
    """Of starling-train, batches made and sent up as it goes; the first windows warm up and
    capture."""
    name, steps = ("mlp", 64) if SMALL else (name, steps)
    case = IMAGES[name]
    config = {
        "seed": 1, "model": {"type": name}, "batch_size": case["batch"], "steps": steps, "precision": "bf16",
        "data": {"type": "synthetic", "image_size": case["image"], "classes": case["classes"], "limit": max(16 * case["batch"] * ranks, 4096), "test_limit": 128,
                 "augment": {"flip": True, "crop_padding": 4}},
        "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01}, "log_every": max(1, steps // 8), "tensorboard": False,
        "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, "sync": {"topology": {"type": "one-peer-exp"}}, **changes,
    }  # fmt: skip
    return trained(config, lambda out: jobs.step_of(out, 2), ranks)


def text_config(folder, model, batch, **changes):
    """GPT-2 of 124 M parameters, or another one of `model`, on tokens as a text has them (Zipf's
    law): repeated ones are what the gradient of an embedding pays for."""
    sizes = {"layers": 2, "heads": 2, "width": 32, "context": 16, "vocab": 250} if SMALL else {"layers": 12, "heads": 12, "width": 768, "context": 1024, "vocab": 50257}
    sizes.update({key: changes.pop(key) for key in ("vocab",) if key in changes and not SMALL})
    drawn, tokens, length = random.Random(1), min(sizes["vocab"], 50257), sizes["context"]
    weights = [1 / (i + 2.7) for i in range(tokens)]
    for name, count in (("train.bin", 1 << (14 if SMALL else 20)), ("val.bin", 4 * length + 1)):
        pathlib.Path(folder, name).write_bytes(array.array("H", drawn.choices(range(tokens), weights, k=count)).tobytes())
    return {
        "seed": 1, "model": {"type": "gpt2", **sizes, **{key: value for key, value in model.items() if not SMALL or key == "type"}}, "batch_size": batch, "steps": 6 if SMALL else 60, "precision": "bf16", "cuda_graphs": True,
        "data": {"type": "tokens", "path": str(folder), "vocab": sizes["vocab"], "sequence_length": length},
        "optimizer": {"type": "adamw", "lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
        "schedule": {"type": "cosine", "warmup_steps": 4, "warmup_factor": 0.1, "min_lr": 0}, "log_every": 1 if SMALL else 5, "tensorboard": False,
        "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, **changes,
    }  # fmt: skip


def text(batch=32, model=(), **changes):
    with tempfile.TemporaryDirectory(prefix="starling-tokens-") as folder:
        config = text_config(folder, dict(model), batch, **changes)
        found = trained(config, lambda out: jobs.step_of(out, 2))
    tokens = batch * config.get("accumulate", 1) * config["data"]["sequence_length"]
    return {**found, "tokens_per_second": 1e3 * tokens / found["step_ms"]}


def torch_text(mode, batch=32, model=()):
    with tempfile.TemporaryDirectory(prefix="starling-tokens-") as folder:
        config = text_config(folder, dict(model), batch)
        path = pathlib.Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        # 50,304 rows suit PyTorch's products better.
        words = ["--device", "cuda", "--precision", "bf16", "--vocab", -(-config["model"]["vocab"] // 128) * 128, *(["--compile"] if mode == "compile" else [])]
        lines = [json.loads(line) for line in torch("gpt.py", path, *words).splitlines() if line.startswith("{")]
    times = [after["seconds"] - before["seconds"] for before, after in zip(lines, lines[1:])]
    seconds = statistics.median(times[len(times) // 2 :])
    return {"step_ms": 1e3 * seconds, "tokens_per_second": batch * config["data"]["sequence_length"] / seconds}


def operations(classes):
    return bench("step", "--device", "cuda", *(["--model", "mlp", "--image", 8, "--classes", 10, "--batch", 8, "--precision", "bf16", "--steps", 5] if SMALL else
                               ["--model", "gpt2", "--tokens", 1024, "--classes", classes, "--batch", 32, "--precision", "bf16", "--steps", 10]))  # fmt: skip


def functions(precision, only):
    return jobs.last_json(run([sys.executable, "-B", jobs.ROOT / "scripts/compare", "functions", "--device", "cuda", "--precision", precision, "--only", only, "--repeats", 1, "--json"]))


def exchange(known, model="resnet50"):
    """Exposed is what a step of several ranks takes longer than one of a rank alone: measured where
    there are several GPUs, else predicted by starling-topo from a step and an update."""
    count = len(gpus())
    ranks = 1 << (min(count, 8).bit_length() - 1) if count > 1 else 0
    if ranks:
        runs = {ranks: [], 1: []}
        for _ in range(1 if SMALL else 3):
            for number, found in runs.items():
                found.append(train_step(model, number, steps=200))
        many, alone = (statistics.median(one["step_ms"] for one in runs[number]) for number in (ranks, 1))
        return {"ranks": ranks, "transport": runs[ranks][0]["transport"], "many_ms": many, "alone_ms": alone, "exposed": many / alone - 1}
    step_ms = middle(known.get(f"{model}-bf16/starling") or [step(model, "bf16")], "step_ms")
    rates = [one["gb_per_s"] for found in known.get("update/starling") or [update()] for one in found["results"] if one["name"] == "adamw"]
    parameters, gb_per_s = 366_602 if SMALL else PARAMETERS, statistics.median(rates)
    update_ms, plans = parameters * UPDATE_BYTES / gb_per_s * 1e-6, {}
    for gbits in LINKS:
        # it adds the update itself
        words = ["plan", "-n", 8, "--ranks-per-node", 1, "--step-ms", f"{max(step_ms - update_ms, 1e-3):.6g}", "--memory-bandwidth", f"{gb_per_s:.6g}", "--json"]
        plan = json.loads(run([jobs.program("starling-topo"), *words, "--parameters", f"{parameters * 1e-6:.6g}", "--bandwidth", gbits, "--latency", LATENCY]))
        best = {name: min((c for c in plan["choices"] if c["topology"] == name), key=lambda c: c["step_ms"]) for name in ("one-peer-exp", "base-2")}
        plans[gbits] = {name: choice["step_ms"] / plan["compute_ms"] - 1 for name, choice in best.items()}
    return {"step_ms": step_ms, "gb_per_s": gb_per_s, "predicted": plans}


# (seconds at most, the measurement) by name.
MEASURES = {
    "gpt2/starling32": (60, text),
    "gpt2/compile": (150, functools.partial(torch_text, "compile")),
    "gpt2/eager": (60, functools.partial(torch_text, "eager")),
    "gpt2/starling16": (60, functools.partial(text, 16)),
    "gpt2/starling8": (60, functools.partial(text, 8)),
    "gpt2/classes50304": (60, functools.partial(text, vocab=50304)),
    "gpt2/not deterministic": (60, functools.partial(text, deterministic=False)),
    "gpt2/clip": (60, functools.partial(text, clip_norm=1.0)),
    "gpt2/accumulate2": (60, functools.partial(text, accumulate=2)),
    "gpt2/issued": (60, functools.partial(text, cuda_graphs=False)),
    "operations/gpt2 50257 classes": (40, functools.partial(operations, 50257)),
    "operations/gpt2 50304 classes": (40, functools.partial(operations, 50304)),
    "llama/starling": (60, functools.partial(text, model=LLAMA)),
    "llama/compile": (150, functools.partial(torch_text, "compile", model=LLAMA)),
    "update/starling": (90, update),
    "update/torch": (60, lambda: jobs.last_json(torch("step.py", "update"))),
    "update/compiled": (90, lambda: jobs.last_json(torch("step.py", "compiled"))),
    "matmul/torch": (40, lambda: jobs.last_json(torch("step.py", "matmul"))),
    "resnet20/starling": (60, functools.partial(train_step, "resnet20", cuda_graphs=True)),
    "resnet20/cudnn_benchmark": (60, functools.partial(train_step, "resnet20", cuda_graphs=True, cudnn_benchmark=True)),
    "resnet20/issued": (60, functools.partial(train_step, "resnet20", cuda_graphs=False)),
    **{f"resnet20/{mode}": (120, functools.partial(torch_step, "resnet20", "bf16", mode, 400)) for mode in ("eager", "graphs", "reduce-overhead")},
    "functions/attention bf16": (120, functools.partial(functions, "bf16", "attention")),
    "functions/attention fp32": (120, functools.partial(functions, "fp32", "attention")),
    "functions/bf16": (200, functools.partial(functions, "bf16", "")),
    "functions/fp32": (200, functools.partial(functions, "fp32", "")),
    "exchange/exchange": (150, exchange),
}
for _name, _precision in (("resnet50", "bf16"), ("resnet50", "fp16"), ("resnet18", "bf16")):
    MEASURES[f"{_name}-{_precision}/starling"] = (90, functools.partial(step, _name, _precision))
    MEASURES[f"{_name}-{_precision}/cudnn_benchmark"] = (90, functools.partial(step, _name, _precision, "--cudnn-benchmark"))
    for _mode, _seconds in (("eager", 60), ("compile", 150)):
        MEASURES[f"{_name}-{_precision}/{_mode}"] = (_seconds, functools.partial(torch_step, _name, _precision, _mode))


# ----------------------------------------------------------------------------------------- goals

GPT2, RESNET20 = "GPT-2 124M, bf16, 1,024 tokens a sample", IMAGES["resnet20"]["label"] + ", bf16, with uploads and augmentation"
OF_GPT2, OF_RESNET20 = ("gpt2/starling32", "gpt2/starling16"), ("resnet20/starling", "resnet20/cudnn_benchmark")
RATIOS = [  # what, ours (the best of them), theirs, figure, goal (None: measured, no more), theirs in words
    (GPT2, OF_GPT2, "gpt2/compile", "tokens_per_second", 1.0, "torch.compile"),
    (GPT2, OF_GPT2, "gpt2/eager", "tokens_per_second", None, "PyTorch eager"),
    (GPT2, OF_GPT2, "gpt2/issued", "tokens_per_second", None, "its own steps without graphs"),
    ("Llama 124M, bf16, 32 × 1,024 tokens", ("llama/starling",), "llama/compile", "tokens_per_second", 1.0, "torch.compile"),
    *((f"{IMAGES[name]['label']}, {precision}", (f"{name}-{precision}/starling", f"{name}-{precision}/cudnn_benchmark"), f"{name}-{precision}/{mode}", "images_per_second", goal, text)
      for name, precision, mode, goal, text in (("resnet50", "bf16", "eager", 1.3, "PyTorch channels_last AMP eager"), ("resnet50", "bf16", "compile", 1.1, "torch.compile"),
                                                ("resnet50", "fp16", "eager", 1.3, "PyTorch channels_last AMP eager"), ("resnet50", "fp16", "compile", 1.1, "torch.compile"),
                                                ("resnet18", "bf16", "compile", 1.3, "torch.compile"))),
    (RESNET20, OF_RESNET20, "resnet20/eager", "images_per_second", 3.0, "PyTorch eager"),
    (RESNET20, OF_RESNET20, "resnet20/graphs", "images_per_second", 1.3, "PyTorch with CUDA graphs"),
    (RESNET20, OF_RESNET20, "resnet20/reduce-overhead", "images_per_second", 1.3, "torch.compile, reduce-overhead"),
    (RESNET20, OF_RESNET20, "resnet20/issued", "images_per_second", None, "its own steps without graphs"),
]  # fmt: skip


def middle(results, key):
    values = [one[key] for one in results if key in one]
    return statistics.median(values) if values else None


def floors(known):
    """The least time of each goal's step on this device, in ms by the goal's name; empty where its
    ceilings are not known."""
    device = next((one["device"] for found in known.values() for one in found if "device" in one), "")
    ceilings = ["--on", device] if device else []
    copies = [1e-3 * r["gb_per_s"] for one in known.get("update/starling", []) for r in one["results"] if r["name"] == "copy"]
    try:
        try:
            rows = bench("floor", *ceilings)
        except Failed:
            if not copies or not known.get("matmul/torch"):
                return {}
            rows = bench("floor", "--bandwidth", f"{copies[0]:.4g}", "--flops", f"{known['matmul/torch'][0]['bf16']:.4g}")
    except (Skipped, Failed):
        return {}
    return {row["row"]: row["ms"] for row in rows} if device else {}


def goals(known):
    """(what, goal, measured, reached or missed or measured) of what is there."""
    rows = []

    def row(what, goal_text, value, measured, goal=None, below=False):
        if value is not None:
            rows.append((what, goal_text, measured, "measured" if goal is None else "reached" if (value <= goal if below else value >= goal) else "missed"))

    best = lambda names, key: max((v for name in names if (v := middle(known.get(name, []), key)) is not None), default=None)
    over = lambda a, b: a / b if a and b else None
    for what, ours, theirs, key, goal, text in RATIOS:
        mine, other = best(ours, key), middle(known.get(theirs, []), key)
        row(what, f"≥ {goal:g} × {text}" if goal else f"against {text}", over(mine, other), f"{over(mine, other) or 0:.2f} × ({mine or 0:,.0f} against {other or 0:,.0f})", goal)
    tokens = best(OF_GPT2, "tokens_per_second")
    row(GPT2, "≥ llm.c's 463,000 tokens/s on an H100", over(tokens, LLM_C), f"{(tokens or 0) / LLM_C:.2f} × ({tokens or 0:,.0f})", 1.0)
    images = best(("resnet50-fp16/starling", "resnet50-fp16/cudnn_benchmark"), "images_per_second")
    row("ResNet-50, batch 256, fp16: stretch goal", f"≥ {STRETCH_IMAGES:,} images/s", images, f"{images or 0:,.0f} images/s", STRETCH_IMAGES)
    for precision in ("bf16", "fp16"):
        mine = middle(known.get(f"resnet50-{precision}/starling", []), "peak_memory_bytes")
        other = middle(known.get(f"resnet50-{precision}/eager", []), "peak_memory_bytes")
        row(f"ResNet-50, batch 256, {precision}: memory", "≤ PyTorch's peak", over(mine, other), f"{over(mine, other) or 0:.2f} ×", 1.0, below=True)
    tables = [{r["name"]: r for r in one["results"]} for one in known.get("update/starling", [])]
    for rule in ("adamw", "accum_adamw") if tables else ():
        share, ms = (statistics.median(t[rule][key] for t in tables) for key in ("ratio_to_copy", "ms"))
        what = f"fused update with mixing, {rule}, {PARAMETERS * 1e-6:.1f} M parameters"
        row(what, "≥ 0.92 of copy bandwidth", share, f"{share:.3f} ({ms:.3f} ms)", 0.92)
        for key, part, goal, text in ((f"{rule}_ms", "torch", 2.0, "foreach kernels"), ("fused_ms", "torch", 1.0, "PyTorch's fused step"), ("compiled_ms", "compiled", 1.0, "both compiled")):
            other = middle(known.get(f"update/{part}", []), key)
            if rule == "adamw" or key.startswith(rule):
                row(what, f"≥ {goal:g} × {text}", over(other, ms), f"{over(other, ms) or 0:.2f} × ({other or 0:.3f} ms)", goal)
    for one in known.get("host", []):
        row("ResNet-20, bf16: host time of a replayed step", "≤ 50 µs", one["host_us"], f"{one['host_us']:.0f} µs, {one['launch_us']:.0f} of them for the launch", 50, below=True)
        row("ResNet-20, bf16: the device without work between replayed steps", "≤ 2 %", one["idle_percent"], f"{one['idle_percent']:.1f} % of {one['step_us']:.0f} µs", 2, below=True)
    for one in known.get("exchange/exchange", []):
        for gbits, longer in one.get("predicted", {}).items():
            row(f"ResNet-50, 8 hosts of one GPU, {gbits} Gbit/s (assumed): exposed exchange", "≤ 3 %", max(longer.values()), f"**predicted**: {100 * max(longer.values()):.1f} %", 0.03, below=True)
        if "exposed" in one:
            row(f"ResNet-50, {one['ranks']} GPUs, {one['transport']}: exposed exchange", "≤ 3 %", one["exposed"], f"{100 * one['exposed']:.1f} %", 0.03, below=True)
    for name in ("attention bf16", "attention fp32", "bf16", "fp32"):
        for one in known.get(f"functions/{name}", []):
            for function, ms in one["cases"]["functions"].items():
                value = over(ms.get("PyTorch"), ms["Starling"])
                row(f"{function}, {one['precision']}", "against PyTorch", value, f"{value or 0:.2f} × ({ms['Starling']:.3g} against {ms.get('PyTorch', 0):.3g} ms)")
    least = floors(known) if known else {}
    for name, label in {"gpt2/starling32": "GPT-2 124M, 32 × 1,024 tokens, bf16", **{f"resnet50-{p}/starling": f"ResNet-50, batch 256, 224², {p}" for p in ("bf16", "fp16")},
                        "resnet18-bf16/starling": "CIFAR ResNet-18, batch 512, bf16", "resnet20/starling": "CIFAR ResNet-20, batch 128, bf16"}.items():  # fmt: skip
        start = label.split(",")[0]
        floor = next((ms for what, ms in least.items() if what.startswith(start) and label.rsplit(", ", 1)[1] in what), None)
        took = middle(known.get(name, []), "step_ms")
        row(label, "share of the floor", over(floor, took), f"{over(floor, took) or 0:.2f} ({floor or 0:.1f} of {took or 0:.1f} ms)")
    return rows


def read_results(path):
    """(lines of a check's results, figures by part)."""
    lines = jobs.json_lines(path)
    known = {}
    for line in lines:
        if line.get("figures") is not None:
            known.setdefault(line["part"], []).append(line["figures"])
    return lines, known


def main():
    global SMALL
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(MEASURES), metavar="NAME")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--known", type=pathlib.Path)
    options = parser.parse_args()
    SMALL = options.small
    if not options.name:
        print("\n".join(MEASURES))
        return 0
    jobs.stop_on_sigterm()
    measure = MEASURES[options.name][1]
    try:
        print(json.dumps(measure(read_results(options.known)[1] if options.known else {}, "mlp" if SMALL else "resnet50") if measure is exchange else measure()))
    except (Skipped, Failed, ValueError, KeyError, OSError) as error:
        print(f"error: {options.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return 77 if isinstance(error, Skipped) else 1
    return 0
