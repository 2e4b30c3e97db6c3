#!/usr/bin/env python3
"""Measures communication: the rows of docs/benchmarks.md, each beside its rivals in the same run,
taking turns.

  scripts/comm_bench/comm_bench.py [--only ROWS] [--quick] [--dry-run] [--out FOLDER]   tables: FOLDER/comm.md and comm.json
  scripts/comm_bench/comm_bench.py race [--rate 20] [--epochs 2] ...                    accuracy over seconds and bytes across hosts; 20 minutes

  exchange       25 MB between 2 ranks of this host and an update, beside MPI_Sendrecv
  two-ranks      steps of 2 ranks on this host, beside computation alone and local SGD between averages
  plan4096       a plan for 4,096 ranks: time and memory
  gossip         4 emulated hosts, each of --rates: one-peer-exp beside all-reduce
  device-time    the same where computation takes time, but no processor
  peers          the same beside decent-dp and PyTorch's DDP over gloo
  fewer-bytes    8 bits on the wire, and averages every so many steps, on the last of --rates
  hierarchical   2 hosts of 2 ranks, on the last of --rates: milliseconds, and bytes out of a host

Emulated hosts need root and scripts/netlab; peers and fewer-bytes need torch and decent-dp==0.2.3;
a row that this machine cannot run says so and is left out. Needs built programs (scripts/test.sh).
For real figures let nothing else run. Environment: STARLING_BUILD (build), NETLAB_NAME (bench).
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import jobs  # noqa: E402
import race  # noqa: E402
from jobs import MPIRUN, Failed, Lab, Setup, Skipped, alternate, program, train, train_alone  # noqa: E402

ADAMW = {"type": "adamw", "lr": 1e-3, "weight_decay": 0.1}
MODELS = {
    "resnet20": {"type": "resnet20"},
    "resnet18": {"type": "resnet18", "stem": "cifar"},
    "mlp": {"type": "mlp", "hidden": [512, 512]},
    "mlp25": {"type": "mlp", "hidden": [2048] * 5 + [1024]},
}
BYTES = {"resnet18": 4 * 11_173_962, "mlp25": 4 * 25_184_266}  # of fp32 parameters
BATCH = {"resnet18": 16, "mlp25": 8}
EXCHANGES = ("direct exchange + update", "MPI_Sendrecv + update")
GOSSIP, ALL_REDUCE = {"topology": {"type": "one-peer-exp"}}, {"algorithm": "allreduce"}


def keys(model):
    return {"model": MODELS[model]}


def link_seconds(model, rate):
    """The bytes of one exchange alone, without headers."""
    return 8e-6 * BYTES[model] / rate


def first_guess(setup, model, batch, ranks):
    """Rough seconds of a step of computation, to size runs by."""
    return 1e-3 * train_alone(setup, model if isinstance(model, dict) else keys(model), batch, 6, ranks)["step_ms"]


def number(value):
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"


def line(label, results, seconds=None, bytes_out=False):
    """A row of a table: of each variant its milliseconds, and how much slower than the first."""
    first, cells = next(iter(results.values())), []
    for name, result in results.items():
        if "error" in result:
            cells.append(f"{name}: {result['error']}".replace("|", "/")[:160])
            continue
        ratio = "" if result is first or "error" in first else f", {result['step_ms'] / first['step_ms']:.2f} ×"
        more = [f"waits {number(result['wait_ms'])}"] if result.get("wait_ms") else []
        more += [f"processors busy {100 * result['busy']:.0f} %"] if "busy" in result else []
        more += [f"{result['bytes']:.2f} × the parameters out of a host"] if bytes_out else []
        cells.append(f"{name}: {number(result['step_ms'])} ms{ratio}{' (' + '; '.join(more) + ')' if more else ''}")
    return {"label": label, "cells": cells, "results": results, **({} if seconds is None else {"link_seconds": seconds})}


# -------------------------------------------------------------------------------------- one host


def exchange(setup, _):
    lines = []
    for optimizer in "adamw", "average":
        command = [*MPIRUN, 2, program("starling-bench", setup.dry_run), "exchange", "--mb", 25, "--buckets", 8, "--optimizer", optimizer, "--repeats", 3 if setup.quick else 30, "--json"]

        def both(command=command):
            output = setup.outputs([(command, jobs.one_thread())], "starling-bench exchange")
            return dict.fromkeys(EXCHANGES, 1.0) if output is None else jobs.last_json(output[0])["ms"]

        runs = [both() for _ in range(1 if setup.dry_run else setup.repeats)]
        lines.append(line(f"exchange, then {optimizer}", {name: {"step_ms": statistics.median(run[name] for run in runs)} for name in EXCHANGES}))
    return lines


def two_ranks(setup, _):
    lines = []
    for model, batch in (("resnet20", 64), ("resnet18", 16), ("mlp", 64)):
        steps = setup.steps(first_guess(setup, model, batch, 2))
        job = lambda sync, model=model, batch=batch, steps=steps: train(setup, keys(model), batch, steps, sync, optimizer=ADAMW)
        lines.append(line(f"{model}, batch {batch}", alternate({
            # two jobs of one rank side by side, which share cores and memory as the ranks do
            "alone": lambda: train_alone(setup, keys(model), batch, steps, 2, ADAMW),
            "gossip": lambda: job({"topology": {"type": "ring"}}),
            "local SGD between averages": lambda: job({"algorithm": {"type": "local_sgd", "period": steps}}),
        }, setup)))  # fmt: skip
    return lines


def plan4096(setup, _):
    lines = []
    for per_host in 1, 8:
        command = [program("starling-topo", setup.dry_run), "plan", "--ranks", 4096, "--ranks-per-node", per_host, "--bandwidth", 10, "--json"]
        if setup.dry_run:
            setup.outputs([(command, jobs.one_thread())], "plan")
            continue
        seconds, memory = [], []
        for _ in range(max(3, setup.repeats)):
            begin = time.monotonic()
            pid = os.posix_spawn(command[0], [str(word) for word in command], jobs.one_thread(), file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
            _, status, usage = os.wait4(pid, 0)
            if status != 0:
                raise Failed(f"starling-topo plan: status {os.waitstatus_to_exitcode(status)}")
            seconds.append(time.monotonic() - begin)
            memory.append(usage.ru_maxrss * 1024e-6)
        took, peak = statistics.median(seconds), max(memory)
        lines.append({"label": f"4,096 ranks, {per_host} a host", "cells": [f"{took:.2f} s (goal 1)", f"{peak:.0f} MB (goal 100)"], "seconds": took, "memory_mb": peak})
    return lines


# --------------------------------------------------------------------------- 4 hosts, one rank each


def on_hosts(setup, model, rate, variants, compute=None, hosts=4, per_host=1, config=None, most=1.5, label=""):
    """A line of {name: sync, or the kind of a peer}."""
    config, batch = config or keys(model), BATCH[model]
    compute = first_guess(setup, config, batch, hosts * per_host) if compute is None else compute
    steps = setup.steps(max(compute, most * link_seconds(model, rate)))
    with Lab(setup, hosts, rate) as lab:

        def run(what):
            if isinstance(what, str):
                return jobs.peer(setup, {"model": MODELS[model], "kind": what, "topology": "one-peer-exp", "optimizer": "sgd"}, batch, steps, 4, lab)
            if what is None:
                return train_alone(setup, config, batch, steps, hosts)
            # of those that average every so many steps, whole periods
            period = what.get("algorithm", {}).get("period", what.get("algorithm", {}).get("interval", 0)) if isinstance(what.get("algorithm"), dict) else 0
            return train(setup, config, batch, 3 * period or steps, what, lab=lab, per_host=per_host, log_every=period)

        results = alternate({name: (lambda what=what: run(what)) for name, what in variants.items()}, setup)
    return line(f"{label or model}, batch {batch}, {rate} Mbit/s, computation alone {number(1e3 * compute)} ms", results, link_seconds(model, rate))


def gossip(setup, options):
    return [on_hosts(setup, model, rate, {"gossip": GOSSIP, "all-reduce": ALL_REDUCE}) for rate in options.rates for model in ("mlp25", "resnet18")]


def device_time(setup, options):
    """Computation takes no processor, so that emulated hosts compute side by side as real ones
    do: mlp25 with a layer after each product that waits, a third of the time in the forward
    pass."""
    rate, lines = options.rates[0], []
    folder = jobs.BUILD / "device_time"
    for command in (["cmake", "-S", jobs.ROOT / "scripts/comm_bench/device_time", "-B", folder, f"-Dstarling_DIR={jobs.BUILD}", "-DSTARLING_CUDA=OFF"], ["cmake", "--build", folder]):
        setup.outputs([(command, jobs.environment())], "building the layer device_time")
    own = 0.1 if setup.dry_run else first_guess(setup, "mlp25", 8, 4)
    for share in (0.5, 1.0, 2.0):
        wait = {"type": "device_time", "ms": 1e3 * max(share * link_seconds("mlp25", rate) - own, 0.0) / 3 / 7}
        layers = [{"type": "flatten"}]
        for width in MODELS["mlp25"]["hidden"]:
            layers += [{"type": "linear", "out_features": width}, {"type": "relu"}, wait]
        layers += [{"type": "linear", "out_features": 10}, wait]
        config = {"plugins": [str(folder / "libdevice_time.so")], "model": {"type": "sequential", "num_classes": 10, "layers": layers}}
        lines.append(on_hosts(setup, "mlp25", rate, {"gossip": GOSSIP, "all-reduce": ALL_REDUCE}, config=config, label="mlp25 that waits"))
    return lines


def peers(setup, options):
    variants = {"gossip": GOSSIP, "gossip, bf16": {**GOSSIP, "exchange": "bf16"}, "decent-dp": "decent-dp", "DDP": "ddp"}
    return [on_hosts(setup, model, rate, variants, most=2.0) for rate in options.rates for model in ("mlp25", "resnet18")]


def fewer_bytes(setup, options):
    period = 4 if setup.quick else 16
    return [on_hosts(setup, "resnet18", options.rates[-1], {
        "gossip, int8": {**GOSSIP, "exchange": "int8"}, "DDP": "ddp", "decent-dp": "decent-dp", "computation alone": None, "all-reduce": ALL_REDUCE, "gossip": GOSSIP,
        "gossip, bf16": {**GOSSIP, "exchange": "bf16"},
        f"gossip, int8, interval {period // 2}": {**GOSSIP, "exchange": "int8", "algorithm": {"type": "gossip", "interval": period // 2}},
        f"local SGD, period {period}": {"algorithm": {"type": "local_sgd", "period": period}},
        f"DiLoCo, period {period}, delay {period // 2}": {"algorithm": {"type": "diloco", "period": period, "delay": period // 2}},
    }, most=1.0)]  # fmt: skip


def hierarchical(setup, options):
    """Bytes are the interfaces' counters, of a run less those of one of eight steps: 1 with
    hierarchical and in pairs, 2 where every rank sends to each other host's."""
    rate, model = options.rates[-1], "resnet18" if setup.quick else "mlp25"
    variants = {"hierarchical": {"topology": {"type": "hierarchical", "ranks_per_node": 2, "inter": {"type": "base-2"}}}, "all-reduce": ALL_REDUCE,
                "one-peer-exp": GOSSIP, "shift-one": {"topology": {"type": "shift-one"}}, "complete": {"topology": {"type": "complete"}}}  # fmt: skip
    variants = dict(list(variants.items())[:2]) if setup.quick else variants
    steps, few = max(16, setup.steps(max(first_guess(setup, model, BATCH[model], 4), 1.5 * link_seconds(model, rate)))), {}
    with Lab(setup, 2, rate) as lab:

        def count(sync, length):
            before = lab.sent_bytes()
            run = train(setup, keys(model), BATCH[model], length, sync, lab=lab, per_host=2)
            return run, [after - begun for after, begun in zip(lab.sent_bytes(), before)]

        def job(name, sync):
            if name not in few:
                few[name] = count(sync, 8)[1]
            run, many = count(sync, steps)
            return {**run, "bytes": max(long - short for long, short in zip(many, few[name])) / (steps - 8) / BYTES[model]}

        results = alternate({name: (lambda name=name, sync=sync: job(name, sync)) for name, sync in variants.items()}, setup)
    return [line(f"2 hosts × 2 ranks, {model}, {rate} Mbit/s", results, bytes_out=True)]


ROWS = {"exchange": exchange, "two-ranks": two_ranks, "plan4096": plan4096, "gossip": gossip, "device-time": device_time, "peers": peers, "fewer-bytes": fewer_bytes,
        "hierarchical": hierarchical}  # fmt: skip


def run_row(name, setup, options):
    begin, load = time.monotonic(), os.getloadavg()[0]
    print(f"{name}:", file=sys.stderr, flush=True)
    result = {"row": name}
    try:
        result["lines"] = ROWS[name](setup, options)
    except (Skipped, Failed) as error:
        result["reason"] = f"{'skipped' if isinstance(error, Skipped) else 'failed'}: {error}"
        print(f"  {result['reason']}", file=sys.stderr, flush=True)
    return {**result, "load": [load, os.getloadavg()[0]], "seconds": time.monotonic() - begin}


def markdown(report):
    head = report["machine"]
    lines = [f"{report['date']}; {head['cpu']}, {head['cores']} cores; {head['starling']}; PyTorch {head['pytorch']}, decent-dp {head['decent-dp']}; medians of {report['repeats']}"
             + (", **quick: only a check that it runs, not a measurement**" if report["quick"] else "") + "."]  # fmt: skip
    for row in report["rows"]:
        lines += ["", f"### {row['row']}", "", row["reason"] if "reason" in row else f"Load average before and after: {row['load'][0]:.1f}, {row['load'][1]:.1f}; {row['seconds']:.0f} s.", ""]
        lines += [f"- {one['label']}: " + "; ".join(one["cells"]) for one in row.get("lines", [])]
    return "\n".join(lines) + "\n"


def words(known):
    def parse(text):
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word} is unknown; known: {', '.join(known)}")
        return text.split(",")

    return parse


def rates(text):
    if not all(word.isdigit() and int(word) >= 2 for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: whole numbers of Mbit/s, separated by commas")
    return [int(word) for word in text.split(",")]


def main():
    if sys.argv[1:2] == ["race"]:
        return race.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=words(ROWS), default=list(ROWS), help="rows, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="few steps and one repeat: a check that it runs")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--repeats", type=int, default=0, help="runs of each variant (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.0, help="about how long a run trains (default: 20)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds after which a program is taken for stuck")
    parser.add_argument("--rates", type=rates, default=[1000, 100], help="Mbit/s of the emulated links (default: 1000,100)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/comm"), help="folder of comm.md and comm.json")
    parser.add_argument("--verbose", action="store_true", help="print each command as it is run")
    options = parser.parse_args()
    jobs.stop_on_sigterm()  # emulated hosts are taken down
    setup = Setup(options.quick, options.dry_run, options.verbose, options.repeats, options.seconds, options.timeout)
    if not setup.dry_run:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"error: --out {options.out}: {error.strerror}")
    report = {"date": time.strftime("%Y-%m-%d %H:%M"), "machine": {} if setup.dry_run else jobs.describe_machine(), "quick": setup.quick, "repeats": setup.repeats,
              "command": " ".join(sys.argv[1:]), "rows": []}  # fmt: skip
    for name in options.only:
        report["rows"].append(run_row(name, setup, options))
        if not setup.dry_run:  # after each row, so that a run that is ended leaves what it has
            (options.out / "comm.json").write_text(json.dumps(report, indent=1, default=str) + "\n")
            (options.out / "comm.md").write_text(markdown(report))
    if not setup.dry_run:
        print(markdown(report))
    return 1 if any(row.get("reason", "").startswith("failed") for row in report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
