#!/usr/bin/env python3
"""Steps that are CUDA graphs against steps that are issued, on a GPU: the same bits, and what they take of the host.

  scripts/gpu_graphs.py agree --ranks 2     in fp32, bf16 and fp16: a run whose steps are graphs ends with the bits of one without, rank by rank
                        [--transport nccl|direct]   several ranks share the GPU, over NCCL with a NCCL_HOSTID each, or read each other's memory
  scripts/gpu_graphs.py host                what a replayed step takes of the host, and whether it waits for the device, from the timeline

Common: --train build-gpu/bin/starling-train, --out FILE (rows for a report are appended), --goals FILE (the same for goals), --keep FOLDER (for
timelines), --model, --image, --batch, --precision (of one run instead), --dry-run (the commands alone). Exit status: 0 all as it must be, 1
something was not, 2 wrong usage.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import sys

sys.dont_write_bytecode = True  # the folder of scripts stays as it is
import gpu_ranks
from gpu_peer import PeerRun
from gpu_ranks import ROOT, Wrong

STEPS = 16  # with a period of 4: 5 that are issued, 4 captures, 7 that are replayed
AHEAD = 4  # the host may be so many steps ahead of the device; further ahead it waits for room, as it must


def config(options, precision, graphs, **changes):
    model = {"type": options.model, **({"hidden": [64, 64]} if options.model == "mlp" else {})}
    return {
        "seed": 3,
        "model": model,
        "data": {"type": "synthetic", "image_size": options.image, "classes": 10, "limit": 16 * options.batch, "test_limit": 64,
                 "augment": {"flip": True, "crop_padding": 2}},
        "batch_size": options.batch,
        "steps": STEPS,
        "optimizer": {"type": "accum_adamw", "lr": 0.001, "weight_decay": 0.05, "accum_iter": 4},
        "precision": precision,
        "deterministic": True,
        "cuda_graphs": graphs,
        "evaluate": {"every_steps": 11},
        "checkpoint": {"every_epochs": 0, "every_steps": STEPS},
        "log_every": 4,
        "threads": 1,
        "sync": {"bucket_mb": 0.1, "topology": {"type": "one-peer-exp"}, "timeout_s": 60},
        **changes,
    }  # fmt: skip


def spans(path, rank=0):
    """(lane, name, begin, end) of a rank, in microseconds, as they begin."""
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    found = [(e["cat"], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e["pid"] == rank]
    return sorted(found, key=lambda span: span[2])


def traced(options, ranks, settings, name):
    run = gpu_ranks.Run(options, ranks, "cuda", settings)
    run.timeline = run.folder / "trace.json"
    run.command += ["--trace", str(run.timeline)]
    run.go()
    if not options.dry_run:
        gpu_ranks.keep(options, run.timeline, f"{name}.json")
        said = [line for line in run.words().splitlines() if "without CUDA graphs" in line]
        if said and settings["cuda_graphs"]:
            raise Wrong(said[-1].strip()[:300])
    return run


# ---------------------------------------------------------------------------------------------------------------- the same bits


def tensors(path):
    """Every tensor's type, shape and bytes."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    return metadata, {n: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]]) for n, t in header.items()}


def learned(run):
    lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in ("step", "loss", "test_loss", "test_accuracy", "consensus_distance") if key in line} for line in lines]


def agree(options, precision):
    ranks = options.ranks
    transport = {"transport": options.transport} if ranks > 1 else {}
    base = config(options, precision, True)
    # What the device does to the images' bytes is part of the graph, too.
    base["data"]["augment"].update({"color_jitter": {"brightness": 0.4, "saturation": 0.4, "hue": 0.1}, "rand_augment": {"n": 2}})
    # With a rule that accumulates, the device does not choose the scale, and ranks whose updates overflowed would need other graphs.
    if precision == "fp16":
        base["optimizer"] = {**base["optimizer"], "accum_iter": 1}
    settings = {graphs: {**base, "cuda_graphs": graphs, "sync": {**base["sync"], **transport}} for graphs in (True, False)}
    name = f"trace-graphs-{precision}-{ranks}" + "-direct" * (ranks > 1 and options.transport == "direct")
    replayed = traced(options, ranks, settings[True], name)
    eager = gpu_ranks.Run(options, ranks, "cuda", settings[False]).go()
    if options.dry_run:
        return "bit for bit"
    counts = []
    for rank in range(ranks):
        names = [name for lane, name, _, _ in spans(replayed.timeline, rank) if lane == "compute"]
        counts.append(names.count("replay"))
        if counts[-1] < STEPS - 6:
            raise Wrong(f"rank {rank}: {counts[-1]} of {STEPS} steps were graphs")
        path = pathlib.Path("checkpoints") / f"step-{STEPS}" / f"rank-{rank}.safetensors"
        (its, a), (others, b) = tensors(replayed.out / path), tensors(eager.out / path)
        if a.keys() != b.keys():
            raise Wrong(f"rank {rank}: the checkpoints hold other tensors")
        unlike = [name for name in sorted(a) if a[name] != b[name]]
        if unlike:
            raise Wrong(f"rank {rank}: {len(unlike)} of {len(a)} tensors differ, the first is {unlike[0]}")
        for key in ("loss_scale", "optimizer_step"):
            if its.get(key) != others.get(key):
                raise Wrong(f"rank {rank}: {key} is {its.get(key)} with graphs and {others.get(key)} without")
    if learned(replayed) != learned(eager):
        raise Wrong("the metrics differ")
    return f"every tensor of every rank has the same bits after {STEPS} steps, {min(counts)} of them graphs"


# ---------------------------------------------------------------------------------------------------------------- the host's time


def host(options, precision):
    """A row for the goals."""
    steps = 60
    settings = config(options, precision, True, steps=steps, log_every=steps, evaluate={"every_epochs": 0}, checkpoint={"every_epochs": 0})
    run = traced(options, 1, settings, f"trace-host-{precision}")
    if options.dry_run:
        return "host's time"
    all_spans = spans(run.timeline)
    of = lambda lane, start: [span for span in all_spans if span[0] == lane and span[1].split(" ")[0] == start]
    inside = lambda span, others: [other for other in others if span[2] <= other[2] and other[3] <= span[3]]
    replays, captures = of("compute", "replay"), of("compute", "capture")
    device = sorted(span[3] for span in of("compute (device)", "replay"))
    replayed = [span for span in of("compute", "step") if inside(span, replays) and not inside(span, captures)]
    if len(replayed) < 8 or len(device) < len(replayed):
        raise Wrong(f"{len(replayed)} of {steps} steps were replayed, {len(device)} of them stand in the device's lane")
    launched = lambda at: sum(1 for span in replays if span[2] < at)
    through = lambda at: sum(1 for end in device if end <= at)
    near = [span for span in replayed[:-1] if launched(span[2]) - through(span[2]) <= AHEAD]  # the last one waits for the losses
    if not near:
        raise Wrong("the host was never close to the device")
    took = [span[3] - span[2] for span in near]
    launch = statistics.median(inner[3] - inner[2] for span in near for inner in inside(span, replays))
    a_step = statistics.median(b - a for a, b in zip(device[-len(replayed) :], device[-len(replayed) + 1 :]))
    waits = sum(1 for span in near if inside(span, of("compute", "wait")))  # "wait for the device"
    what = f"{options.model}, batch {options.batch}, {precision}"
    median = statistics.median(took)
    say = lambda good: "reached" if good else "missed"
    rows = [
        f"| {what}: host time of a replayed step | ≤ 50 µs | {median:.0f} µs, of them {launch:.0f} µs for the launch ({len(near)} steps) | {say(median <= 50)} |",
        f"| {what}: steps that wait for the device | none | {waits} of {len(near)}; the device takes {a_step:.0f} µs a step | {say(waits == 0)} |",
    ]
    if options.goals:
        with open(options.goals, "a", encoding="utf-8") as file:
            file.write("\n".join(rows) + "\n")
    return f"{median:.0f} µs of the host for a replayed step, {launch:.0f} µs of them for the launch; {waits} of {len(near)} steps wait for the device"


# ---------------------------------------------------------------------------------------------------------------- command line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agree", "host"])
    parser.add_argument("--ranks", type=int, choices=[1, 2, 4], default=1, help="of agree")
    parser.add_argument("--transport", choices=["nccl", "direct"], default="nccl", help="of agree with several ranks")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--model", default="resnet20", help="resnet20 or mlp")
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--batch", type=int, help="default: 64, for host 128")
    parser.add_argument("--train", default=os.environ.get("STARLING_BUILD", str(ROOT / "build-gpu")) + "/bin/starling-train")
    parser.add_argument("--out")
    parser.add_argument("--goals")
    parser.add_argument("--keep")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="limit of one run")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.batch = options.batch or (128 if options.what == "host" else 64)
    several = options.what == "agree" and options.ranks > 1
    if several and options.transport == "direct":
        gpu_ranks.Run = PeerRun
    gpu_ranks.begin(parser, options)
    precisions = [options.precision] if options.precision else ["bf16"] if options.what == "host" else ["fp32", "bf16", "fp16"]
    check = {"agree": agree, "host": host}[options.what]
    options.what = "graphs, " + (f"{options.ranks} rank{'s' * (options.ranks > 1)}" if options.what == "agree" else "the host")
    if several and options.transport == "nccl" and not options.dry_run and not gpu_ranks.has_nccl(options.train):
        gpu_ranks.note(options, f"{options.what} over NCCL", None, "this build has no NCCL")
        precisions = []
    if several:
        options.what += f", {options.transport}"
    return gpu_ranks.finish(options, lambda: gpu_ranks.at_a_time(options, precisions, lambda precision: [gpu_ranks.row_of(options, check, (precision,), "")]))


if __name__ == "__main__":
    sys.exit(main())
