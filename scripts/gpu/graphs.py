"""Steps that are CUDA graphs against steps that are issued, on a GPU: the same bits, and what
they take of the host.

  agree   in fp32, bf16 and fp16: a run whose steps are graphs ends with the bits of one without,
          rank by rank; several ranks share the GPU, over NCCL, or read each other's memory (--ranks
          2 --transport nccl|direct)
  host    what a replayed step takes of the host, and how long the device is without work between
          two, from the timeline

Exit status: 0 all as it must be, 1 something was not, 2 wrong usage, 77 not possible with this
build.
"""

import json
import statistics

import jobs
import runs
from jobs import Failed
from runs import Run

STEPS = 16  # with a period of 4: 5 that are issued, 4 captures, 7 that are replayed
AHEAD = 4  # steps that the host may be ahead of the device


def config(options, precision, **changes):
    return {
        **runs.config(
            model={"type": options.model},
            data={"image_size": options.image, "classes": 10, "limit": 16 * options.batch, "augment": {"flip": True, "crop_padding": 2}},
            optimizer={"type": "accum_adamw", "lr": 0.001, "weight_decay": 0.05, "accum_iter": 4},
            checkpoint={"every_steps": STEPS},
            sync={"bucket_mb": 0.1, "topology": {"type": "one-peer-exp"}},
        ),
        **{"batch_size": options.batch, "steps": STEPS, "precision": precision, "deterministic": True, "cuda_graphs": True},
        **{"evaluate": {"every_steps": 11}, "log_every": 4, **changes},
    }


def traced(options, ranks, settings):
    run = Run(options, ranks, "cuda", settings)
    run.timeline = run.folder / "trace.json"
    run.command += ["--trace", str(run.timeline)]
    run.go()
    if run.issued():
        raise Failed(run.issued())
    return run


def learned(run):
    return [{key: line[key] for key in ("step", "loss", "test_loss", "test_accuracy", "consensus_distance") if key in line} for line in jobs.metrics(run.out)]


def agree(options, precision):
    ranks, base = options.ranks, config(options, precision)
    # What the device does to the images' bytes is part of the graph, too.
    base["data"]["augment"].update({"color_jitter": {"brightness": 0.4, "saturation": 0.4, "hue": 0.1}, "rand_augment": {"n": 2}})
    # With a rule that accumulates, ranks whose updates overflowed would need other graphs.
    if precision == "fp16":
        base["optimizer"] = {**base["optimizer"], "accum_iter": 1}
    if ranks > 1:
        base = runs.over(base, options.transport)
    replayed = traced(options, ranks, base)
    eager = Run(options, ranks, "cuda", {**base, "cuda_graphs": False}).go()
    counts = []
    for rank in range(ranks):
        counts.append(sum(lane == "compute" and name == "replay" for lane, name, _, _ in runs.spans(replayed.timeline, rank)))
        if counts[-1] < STEPS - 6:
            raise Failed(f"rank {rank}: {counts[-1]} of {STEPS} steps were graphs")
        (its, a), (others, b) = (runs.read_safetensors(run.checkpoint(rank, STEPS)) for run in (replayed, eager))
        if a.keys() != b.keys():
            raise Failed(f"rank {rank}: the checkpoints hold other tensors")
        unlike = [name for name in sorted(a) if a[name] != b[name]]
        if unlike:
            raise Failed(f"rank {rank}: {len(unlike)} of {len(a)} tensors differ, the first is {unlike[0]}")
        for key in ("loss_scale", "optimizer_step"):
            if its.get(key) != others.get(key):
                raise Failed(f"rank {rank}: {key} is {its.get(key)} with graphs and {others.get(key)} without")
    if learned(replayed) != learned(eager):
        raise Failed("the metrics differ")
    return f"every tensor of every rank has the same bits after {STEPS} steps, {min(counts)} of them graphs"


def host(options, precision):
    """Its figures are a line of JSON, too."""
    steps = 60
    settings = config(options, precision, steps=steps, log_every=steps, evaluate={"every_epochs": 0}, checkpoint={"every_epochs": 0})
    run = traced(options, 1, settings)
    all_spans = runs.spans(run.timeline)
    of = lambda lane, start: [span for span in all_spans if span[0] == lane and span[1].split(" ")[0] == start]
    inside = lambda span, others: [other for other in others if span[2] <= other[2] and other[3] <= span[3]]
    length = lambda spans: sum(span[3] - span[2] for span in spans)
    replays, captures, waits = of("compute", "replay"), of("compute", "capture"), of("compute", "wait")
    device = of("compute (device)", "replay")
    # The last one waits for the losses, the first ones find a device without work.
    replayed = [span for span in of("compute", "step") if inside(span, replays) and not inside(span, captures)][AHEAD:-1]
    if len(replayed) < 8 or len(device) < len(replayed):
        raise Failed(f"{len(replayed)} of {steps} steps were replayed, {len(device)} of them stand in the device's lane")
    # A host that is ahead waits until the device has read a batch, as it must: that is not the
    # step's own time.
    median = statistics.median(span[3] - span[2] - length(inside(span, waits)) for span in replayed)
    launch = statistics.median(length(inside(span, replays)) for span in replayed)
    device = device[-len(replayed) :]
    a_step = statistics.median(later[2] - one[2] for one, later in zip(device, device[1:]))
    idle = 100 * (1 - length(device[:-1]) / (device[-1][2] - device[0][2]))
    print(json.dumps({"host_us": median, "launch_us": launch, "idle_percent": idle, "step_us": a_step}), flush=True)
    return f"{median:.0f} µs of the host for a replayed step, {launch:.0f} µs of them for the launch; the device is without work for {idle:.1f} % of {a_step:.0f} µs"


def main():
    parser = runs.parser_of(__doc__, at_a_time=3)
    parser.add_argument("what", choices=["agree", "host"])
    parser.add_argument("--ranks", type=int, choices=[1, 2, 4], default=1, help="of agree")
    parser.add_argument("--transport", choices=["nccl", "direct"], default="nccl", help="of agree with several ranks")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], help="of one run instead")
    parser.add_argument("--model", default="resnet20", help="resnet20 or mlp")
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--batch", type=int, help="default: 64, for host 128")
    options = parser.parse_args()
    options.batch = options.batch or (128 if options.what == "host" else 64)
    runs.begin(parser, options)
    several = options.what == "agree" and options.ranks > 1
    precisions = [options.precision] if options.precision else ["bf16"] if options.what == "host" else ["fp32", "bf16", "fp16"]
    title = "graphs, " + (f"{options.ranks} rank{'s' * (options.ranks > 1)}" if options.what == "agree" else "the host")
    if several and options.transport == "nccl" and not runs.has_nccl(options, title):
        return runs.finish(options, []) or 77
    title += f", {options.transport}" * several
    check = {"agree": agree, "host": host}[options.what]
    return runs.finish(options, [lambda precision=precision: runs.row(f"{title}, {precision}", check, options, precision) for precision in precisions])
