#!/usr/bin/env python3
"""Times Starling, PyTorch and decent-dp in one session, taking turns, and prints medians and
ratios.

  scripts/compare_pytorch.py [--only resnet20,resnet18,mobilenet_v2,convnext_tiny,mlp,exposed,gpt,gpt2_124m,vit_ti_16] [--repeats 3] [--json]

Needs a built starling-bench and starling-train (scripts/test.sh builds them), torch, and for
`mlp` and `exposed` decent-dp:
  python3 -m pip install torch decent-dp==0.2.3

Cases. One thread a rank, fp32, batches that lie ready in memory, medians over steps; each repeat
runs every program once, in turn.
  resnet20, resnet18   a whole training step (forward, backward, AdamW) at CIFAR shape, batch 128,
                       one process; PyTorch in channels_last
  mobilenet_v2, convnext_tiny   a step of starling-train at batch 8 of 96×96 pixels, one process,
                                against the same in PyTorch, in channels_last
  gpt, gpt2_124m, vit_ti_16   a step of AdamW with a batch in memory, eager and compiled: GPT of
                              6 × 384 (12 × 256 bytes), GPT-2 (2 × 512, two threads), ViT-Ti/16
                              (16 of 224²)
  mlp                  MLP 3072-512-512-10, batch 64, 2 ranks: gossip on a ring against decent-dp
                       over gloo and PyTorch's DDP over gloo
  exposed              ResNet-20, batch 64, 2 ranks, ring: the share of a step that waits for
                       communication
PyTorch's models are those of examples/pytorch.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "comm_bench"))
# noqa: E402
from jobs import ADAMW, Setup, alternate, describe_machine, environment, peer, program, run_all, train, train_alone

TRANSFORMERS = {  # what starling-bench trains, and a batch
    "gpt": ({"model": {"type": "gpt2", "layers": 6, "heads": 6, "width": 384, "context": 256}, "tokens": 256, "classes": 256}, 12),
    "gpt2_124m": ({"model": {"type": "gpt2"}, "tokens": 512, "classes": 50257, "threads": 2}, 2),
    "vit_ti_16": ({"model": {"type": "vit_ti_16"}, "image": 224, "classes": 1000}, 16),
}
CASES = ["resnet20", "resnet18", "mobilenet_v2", "convnext_tiny", "mlp", "exposed", *TRANSFORMERS]


def run_torch(setup, kind, model, batch, ranks, steps):
    # 4 steps warm up
    return peer(setup, kind, model, batch, steps + 4, ranks, "ring", optimizer="adamw", every=1)


def run_bench(setup, model, batch, steps, optimizer):
    command = [program("starling-bench"), "step", "--model", model, *(["--stem", "cifar"] if model == "resnet18" else []), "--batch", batch, "--threads", 1,
               "--optimizer", optimizer, "--steps", steps, "--json"]
    return json.loads(run_all([(command, environment())], setup, "starling-bench step")[0])


def timed(setup, programs):
    results = alternate(programs, setup)
    for name, result in results.items():
        if "error" in result:
            sys.exit(f"error: {name}: {result['error']}")
    return results


def case_step(setup, model, arguments):
    if model in ("resnet20", "resnet18"):
        batch, steps = 128, arguments.steps or (20 if model == "resnet20" else 5)
        own = lambda: run_bench(setup, model, batch, steps, arguments.optimizer)
    else:
        batch, steps = 8, max(8, arguments.steps or 30)
        config = {"model": {"type": model}, "data": {"type": "synthetic", "image_size": 96}}
        own = lambda: train_alone(setup, config, batch, steps, 1, ADAMW)
    result = timed(setup, {"starling": own, "pytorch": lambda: run_torch(setup, "none", model, batch, 1, steps)})
    ours, theirs = result["starling"], result["pytorch"]
    result["ratios"] = {
        "starling / pytorch (speed)": theirs["step_ms"] / ours["step_ms"],
        "peak memory, starling / pytorch": ours["peak_memory_bytes"] / theirs["peak_memory_bytes"],
    }
    if "conv_bound_ms" in ours:
        for name in ("starling", "pytorch"):
            result["ratios"][f"{name} / convolution-only bound (speed)"] = ours["conv_bound_ms"] / result[name]["step_ms"]
    return result


def case_transformer(setup, case, arguments):
    about, batch = TRANSFORMERS[case]
    about = {**about, "precision": arguments.precision}
    steps = arguments.steps or 5
    command = [program("starling-bench"), "step", "--model", json.dumps(about["model"]), "--batch", batch, "--optimizer", "adamw", "--steps", steps, "--json"]
    for key in "tokens", "image", "classes", "threads", "precision":
        command += ["--" + key, about[key]] if key in about else []
    result = timed(setup, {
        "starling": lambda: json.loads(run_all([(command, environment())], setup, "starling-bench step")[0]),
        "pytorch": lambda: run_torch(setup, "none", json.dumps(about), batch, 1, steps),
        "pytorch, torch.compile": lambda: run_torch(setup, "none", json.dumps({**about, "compile": True}), batch, 1, steps),
    })
    ours = result["starling"]
    result["ratios"] = {f"starling / {name} (speed)": result[name]["step_ms"] / ours["step_ms"] for name in list(result)[1:]}
    result["ratios"]["peak memory, starling / pytorch"] = ours["peak_memory_bytes"] / result["pytorch"]["peak_memory_bytes"]
    return result


def case_ranks(setup, model, steps):
    batch = 64
    result = timed(setup, {
        "starling, 2 ranks, ring": lambda: train(setup, model, batch, steps, {"topology": {"type": "ring"}}, optimizer=ADAMW),
        "decent-dp, 2 ranks, ring, gloo": lambda: run_torch(setup, "decent-dp", model, batch, 2, steps),
        "pytorch ddp, 2 ranks, gloo": lambda: run_torch(setup, "ddp", model, batch, 2, steps),
        "starling, without communication": lambda: train_alone(setup, model, batch, steps, 2, ADAMW),
        "pytorch, without communication": lambda: run_torch(setup, "none", model, batch, 2, steps),
    })
    ours, decent, ddp, alone, torch_alone = (run["step_ms"] for run in result.values())
    result["ratios"] = {
        "starling / decent-dp (speed)": decent / ours,
        "starling / pytorch ddp (speed)": ddp / ours,
        "starling / pytorch, both without communication (speed)": torch_alone / alone,
        "starling: wait / step": result["starling, 2 ranks, ring"]["wait_ms"] / ours,
        "starling: with / without communication": ours / alone,
        "decent-dp: with / without communication": decent / torch_alone,
        "pytorch ddp: with / without communication": ddp / torch_alone,
    }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="cases to run, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="timed steps of a run (default: by case)")
    parser.add_argument("--optimizer", default="accum_adamw", help="of starling-bench; PyTorch has AdamW")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"), help="of gpt, gpt2_124m and vit_ti_16")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.set_defaults(quick=False, dry_run=False, verbose=False, seconds=1.0, timeout=1800.0)
    arguments = parser.parse_args()
    cases = arguments.only.split(",")
    if unknown := [case for case in cases if case not in CASES]:
        parser.error(f"unknown case {unknown[0]}; known: {', '.join(CASES)}")
    setup, report = Setup(arguments), {"machine": describe_machine(), "repeats": arguments.repeats, "cases": {}}
    for case in cases:
        print(f"{case}:", file=sys.stderr)
        several = {"mlp": ("mlp", 100), "exposed": ("resnet20", 30)}.get(case)
        if case in TRANSFORMERS:
            report["cases"][case] = case_transformer(setup, case, arguments)
        elif several:
            report["cases"][case] = case_ranks(setup, several[0], max(8, arguments.steps or several[1]))
        else:
            report["cases"][case] = case_step(setup, case, arguments)
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    for key, value in report["machine"].items():
        print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    for case, result in report["cases"].items():
        print(f"\n{case} (medians of {arguments.repeats})")
        ratios = result.pop("ratios")
        for name, run in result.items():
            extra = f"  wait {run['wait_ms']:.2f} ms" if "wait_ms" in run else ""
            spread = " ".join(f"{one['step_ms']:.1f}" for one in run["runs"])
            print(f"  {name:34} {run['step_ms']:9.2f} ms a step  {run['peak_memory_bytes'] / 2**20:7.0f} MiB{extra}  ({spread})")
        for name, ratio in ratios.items():
            print(f"  {name:56} {ratio:6.3f}")


if __name__ == "__main__":
    main()
