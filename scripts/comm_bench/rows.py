"""The rows of comm_bench. Each is a function of the Setup that gives {"title", "columns", "rows",
"notes", "data"}."""

import copy
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from jobs import (ADAMW, MODELS, NETLAB, Failed, Lab, Skipped, alternate, device_time_plugin, environment, peer, program, run_all, train, train_alone, train_config,
                  with_device_time)

GOSSIP = {"topology": {"type": "one-peer-exp"}}
ALL_REDUCE = {"algorithm": "allreduce"}


def number(value, digits=4):
    return "-" if value is None else f"{value:.{digits}g}" if abs(value) < 1e4 else f"{value:,.0f}"


def ms(result):
    """The median with the runs it is of, or the reason why there is none."""
    if "error" in result:
        return result["error"].replace("|", "/")[:120]
    return f"{result['step_ms']:,.1f}" if result["step_ms"] < 1000 else f"{result['step_ms']:,.0f}"


def ratio(slow, fast):
    return None if "error" in slow or "error" in fast else slow["step_ms"] / fast["step_ms"]


def times(value):
    return "-" if value is None else f"{value:.2f} ×"


def verdict(value, goal, at_least=True):
    if value is None:
        return "not measured"
    return "met" if (value >= goal if at_least else value <= goal) else "**not met**"


def table(title, columns, notes):
    return {"title": title, "columns": columns, "rows": [], "notes": notes, "data": []}


def first_guess(setup, model, batch, ranks):
    """Rough seconds of a step of computation, to size runs by."""
    return 1e-3 * train_alone(setup, model, batch, 6, ranks)["step_ms"]


# -------------------------------------------------------------------------------------- on one host


def exchange(setup):
    result = table(
        "Exchange alone: 25 MB, 2 ranks on one host, 8 buckets in turn",
        ["update", "direct, ms", "MPI_Sendrecv + update, ms", "speed-up", "limit by bytes", "goal", "", "mixing / what its bytes cost", "goal ≤ 1.1"],
        "The limit counts bytes of memory traffic a parameter: the update's own (AdamW with mixing 32, averaging 12) against those and 24 more, "
        "for MPI's copy into shared memory and the copy out of it. Buckets are taken in turn, as in a training step: one alone would stay in a large "
        "third-level cache.",
    )
    for optimizer, goal, traffic in (("adamw", 1.4, 32), ("average", 2.5, 12)):
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", 2, program("starling-bench", setup), "exchange", "--mb", 25, "--buckets", 8,
                   "--optimizer", optimizer, "--repeats", 3 if setup.quick else 30, "--json"]
        runs = [run_all([(command, environment())], setup, "starling-bench exchange") for _ in range(1 if setup.dry_run else setup.repeats)]
        if setup.dry_run:
            continue
        runs = [json.loads(run[0].strip().splitlines()[-1]) for run in runs]

        def median(get):
            values = [get(run) for run in runs]
            return None if None in values else statistics.median(values)

        speedup, mixing = median(lambda run: run.get("speedup_over_sendrecv")), median(lambda run: run.get("extra_over_bytes"))
        direct, sendrecv = median(lambda run: run["ms"].get("direct exchange + update")), median(lambda run: run["ms"].get("MPI_Sendrecv + update"))
        result["rows"].append([optimizer, number(direct), number(sendrecv), times(speedup), times((traffic + 24) / traffic), f"≥ {goal} ×",
                               verdict(speedup, goal), number(mixing, 3), verdict(mixing, 1.1, False)])
        result["data"].append({"optimizer": optimizer, "runs": runs})
    return result


def two_ranks(setup):
    result = table(
        "2 ranks on one host, ring, one thread each, against computation alone",
        ["model", "batch", "alone, ms", "gossip, ms", "gossip / alone", "waiting, share of the step", "exposed: gossip / alone - 1", "limit", "goal", "",
         "local SGD between averages, ms", "/ alone", "goal ≤ 1.01 ×"],
        "Alone: two jobs of one rank side by side, which share cores and memory as the ranks do; the slower one's step. Limit 1.00 ×: everything hidden. "
        "Local SGD: no average falls into the run.",
    )
    for model, batch, goal in (("resnet20", 64, 1.03), ("resnet18", 16, 1.03), ("mlp", 64, 1.10)):
        steps = setup.steps(first_guess(setup, model, batch, 2))
        runs = alternate(
            {
                "alone": lambda: train_alone(setup, model, batch, steps, 2, ADAMW),
                "gossip": lambda: train(setup, model, batch, steps, {"topology": {"type": "ring"}}, optimizer=ADAMW),
                "local": lambda: train(setup, model, batch, steps, {"algorithm": {"type": "local_sgd", "period": steps}}, optimizer=ADAMW),
            },
            setup,
        )
        alone, gossip, local = runs["alone"], runs["gossip"], runs["local"]
        value, local_value = ratio(gossip, alone), ratio(local, alone)
        share = None if "error" in gossip else 100 * gossip["wait_ms"] / gossip["step_ms"]
        result["rows"].append([model, batch, ms(alone), ms(gossip), times(value), "-" if share is None else f"{share:.1f} %",
                               "-" if value is None else f"{100 * (value - 1):+.1f} %", "1.00 ×", f"≤ {goal:.2f} ×", verdict(value, goal, False), ms(local), times(local_value),
                               verdict(local_value, 1.01, False)])
        result["data"].append({"model": model, "batch": batch, "steps": steps, "results": runs})
    return result


# --------------------------------------------------------------------------- 4 hosts, one rank each


def link_seconds(model, rate):
    """The bytes of one exchange alone, without headers."""
    return 8e-6 * MODELS[model][1] / rate


def limits(compute, exchange_seconds, ranks):
    """Least step of gossip, which has a whole step for an exchange, and of all-reduce, which has
    the backward pass (two thirds)."""
    return max(compute, exchange_seconds), max(compute, compute / 3 + 2 * (ranks - 1) / ranks * exchange_seconds)


def judged(runs, compute, exchange_seconds, goal=None, heavy=2.0):
    """Columns from gossip's time on, against all-reduce's. Without a goal it is that of computation
    and exchange, `heavy` times as long or more."""
    value, weight = ratio(runs["all-reduce"], runs["gossip"]), exchange_seconds / compute
    least, least_all_reduce = limits(compute, exchange_seconds, 4)
    goal = goal or (1.4 if weight >= heavy else 1.6 if 0.8 <= weight <= 1.25 else 0.97)
    busy = "-" if "error" in runs["gossip"] else f"{100 * runs['gossip']['busy']:.0f} %"
    return [ms(runs["gossip"]), busy, ms(runs["all-reduce"]), times(value), times(least_all_reduce / least), "≥ 1 ×" if goal < 1 else f"≥ {goal} ×", verdict(value, goal)]


def balanced_batch(setup, rate):
    """The batch of ResNet-18 whose computation takes as long as one exchange."""
    small, large = (first_guess(setup, "resnet18", batch, 4) for batch in (4, 12))
    per_image = max(1e-6, (large - small) / 8)
    return 8 if setup.dry_run else max(1, min(64, round((link_seconds("resnet18", rate) - small) / per_image) + 4))


def cells(setup, options):
    """(model, batch, rate in Mbit/s, disturbance, seconds of computation, seconds of an exchange),
    one after the other, with its lab up."""
    guesses = {}
    for rate in options.rates:
        for name in options.models:
            model = "resnet18" if name == "balanced" else name
            if name == "balanced" and rate < 200:
                continue  # a batch that fills seconds of a slow link is another matter
            batch = {"resnet18": 16, "mlp25": 8}[model] if name != "balanced" else balanced_batch(setup, rate)
            if (model, batch) not in guesses:
                guesses[model, batch] = first_guess(setup, model, batch, 4)
            for disturbance in options.disturb:
                slow = disturbance == "slow-link"
                compute = guesses[model, batch] * (2 if disturbance == "slow-rank" else 1)
                exchange_seconds = link_seconds(model, rate / 2 if slow else rate)
                label = {"none": "", "slow-rank": ", one rank at half speed", "slow-link": f", one link at {rate // 2}"}[disturbance]
                print(f"  {name}, {rate} Mbit/s{label}", file=sys.stderr, flush=True)
                try:
                    with Lab(setup, 4, rate, rate // 2 if slow else None) as lab:
                        yield {"model": name, "network": model, "batch": batch, "rate": rate, "label": f"{rate} Mbit/s{label}",
                               "disturbance": disturbance, "compute": compute, "exchange": exchange_seconds, "lab": lab,
                               "slow": (3, 2) if disturbance == "slow-rank" else None}
                except Failed as error:
                    print(f"    {error}", file=sys.stderr)


def cell_steps(setup, cell, factor=1.5):
    return setup.steps(max(cell["compute"], factor * cell["exchange"]))


def in_cell(setup, cell, steps):
    """What runs a `sync` of ours there, and what runs a peer."""
    where = {"lab": cell["lab"], "slow_rank": cell["slow"]}
    return (lambda sync: train(setup, cell["network"], cell["batch"], steps, sync, **where),
            lambda kind: peer(setup, kind, cell["network"], cell["batch"], steps, 4, "one-peer-exp", **where))


def describe(cell):
    return [cell["model"], cell["batch"], cell["label"], number(1e3 * cell["compute"]), number(1e3 * cell["exchange"])]


def plain(cell):
    return {key: value for key, value in cell.items() if key != "lab"}


def gossip(setup, options):
    result = table(
        "4 emulated hosts, one rank each: gossip over one-peer-exp against gradient all-reduce",
        ["model", "batch", "link", "computation C, ms", "bytes alone T, ms", "gossip, ms", "processors busy", "all-reduce, ms", "all-reduce / gossip", "limit", "goal",
         ""],
        "resnet18 has 11.2 million parameters, mlp25 25.2 million (five hidden layers of 2048, one of 1024); SGD with momentum, one thread a rank. "
        "C is of four jobs of one rank side by side, T the bytes of one exchange at the slowest link's rate, without headers. "
        "Limit: max(C, C/3 + 1.5 T) / max(C, T), as gossip has the whole step for an exchange and all-reduce the backward pass for 2(n-1)/n as many "
        "bytes. Processors busy: of the whole machine during gossip's run, which computes and emulates all hosts; where they are, they are the limit. "
        "Goals: 1.4 × where T ≥ 2 C, 1.6 × where T = C to 25 %, never slower (to 3 %) elsewhere.",
    )
    for cell in cells(setup, options):
        steps = cell_steps(setup, cell)
        job, _ = in_cell(setup, cell, steps)
        runs = alternate({"gossip": lambda: job(GOSSIP), "all-reduce": lambda: job(ALL_REDUCE)}, setup)
        result["rows"].append([*describe(cell), *judged(runs, cell["compute"], cell["exchange"], None if cell["disturbance"] == "none" else 0.97)])
        result["data"].append({**plain(cell), "steps": steps, "results": runs})
    return result


def device_time(setup, options):
    """Gossip against all-reduce where computation takes no processor, so that emulated hosts
    compute side by side as real ones do."""
    rate = options.rates[0]
    result = table(
        f"4 emulated hosts, {rate} Mbit/s, computation that takes time but no processor: gossip over one-peer-exp against gradient all-reduce",
        ["computation C, ms", "bytes alone T, ms", "gossip, ms", "processors busy", "all-reduce, ms", "all-reduce / gossip", "limit", "goal", ""],
        "mlp25 at batch 8 with a layer after each product that waits (device_time/), as for an accelerator: a third of the time in the forward pass, "
        "two thirds in the backward pass. C is measured, four jobs of one rank side by side; limit and goals as above.",
    )
    exchange_seconds = link_seconds("mlp25", rate)
    if setup.dry_run:
        plugin, own = "libdevice_time.so", 0.1
        print("  cmake --build of device_time/: libdevice_time.so")
    else:
        plugin, own = device_time_plugin(setup), first_guess(setup, "mlp25", 8, 4)
    for share in (0.5, 1.0, 2.0):
        config = {"plugins": [str(plugin)], "model": with_device_time(max(share * exchange_seconds - own, 0.0))}
        compute = first_guess(setup, config, 8, 4)
        steps = setup.steps(max(compute, 1.5 * exchange_seconds))
        with Lab(setup, 4, rate) as lab:
            runs = alternate({name: (lambda sync=sync: train(setup, config, 8, steps, sync, lab=lab)) for name, sync in
                              {"gossip": GOSSIP, "all-reduce": ALL_REDUCE}.items()}, setup)
        result["rows"].append([number(1e3 * compute), number(1e3 * exchange_seconds), *judged(runs, compute, exchange_seconds, heavy=1.8)])
        result["data"].append({"rate": rate, "compute": compute, "exchange": exchange_seconds, "steps": steps, "results": runs})
    return result


def peers(setup, options):
    result = table(
        "4 emulated hosts, one rank each: gossip over one-peer-exp against decent-dp 0.2.3 and PyTorch's DDP over gloo",
        ["model", "batch", "link", "computation C, ms", "bytes alone T, ms", "gossip, ms", "gossip with bf16 on the wire, ms", "decent-dp, ms", "DDP, ms",
         "decent-dp / gossip", "goal ≥ 1.5 ×", "DDP / gossip", "goal ≥ 2 ×", "limits by bytes"],
        "As above. decent-dp sends the same fp32 bytes as gossip, so where the link dominates it can only be slower by what gloo loses; the last "
        "column has the limit of both ratios for equal computation: 1 ×, and max(C, C/3 + 1.5 T) / max(C, T).",
    )
    for cell in cells(setup, options):
        steps = cell_steps(setup, cell, 2.0)
        job, other = in_cell(setup, cell, steps)
        runs = alternate({"gossip": lambda: job(GOSSIP), "gossip bf16": lambda: job({**GOSSIP, "exchange": "bf16"}),
                          "decent-dp": lambda: other("decent-dp"), "ddp": lambda: other("ddp")}, setup)
        least, least_all_reduce = limits(cell["compute"], cell["exchange"], 4)
        over_decent, over_ddp = ratio(runs["decent-dp"], runs["gossip"]), ratio(runs["ddp"], runs["gossip"])
        result["rows"].append([*describe(cell), ms(runs["gossip"]), ms(runs["gossip bf16"]), ms(runs["decent-dp"]), ms(runs["ddp"]), times(over_decent),
                               verdict(over_decent, 1.5), times(over_ddp), verdict(over_ddp, 2.0), f"1.00 ×, {times(least_all_reduce / least)}"])
        result["data"].append({**plain(cell), "steps": steps, "results": runs})
    return result


def fewer_bytes(setup, options):
    """What sends less than gossip of whole parameters does, on the slowest link, against the peers
    and against computation alone."""
    rate, batch = options.rates[-1], 16
    result = table(
        f"4 emulated hosts, one rank each, {rate} Mbit/s, ResNet-18, batch {batch}: fewer bytes",
        ["", "a step, ms", "of which waiting, ms", "DDP / this", "decent-dp / this", "this / computation alone", "goal", ""],
        "A step of those that average every so many steps is the mean over whole periods. Computation alone: four jobs of one rank side by side; it shares "
        "the two cores with nothing, while the other rows emulate a network beside it.",
    )
    with Lab(setup, 4, rate) as lab:
        compute = first_guess(setup, "resnet18", batch, 4)
        steps = setup.steps(max(compute, link_seconds("resnet18", rate)))

        def job(sync, length=0):
            return train(setup, "resnet18", batch, length or steps, sync, lab=lab, log_every=length // 3 if length else 0)

        def other(kind):
            return peer(setup, kind, "resnet18", batch, steps, 4, "one-peer-exp", lab=lab)

        period = 4 if setup.quick else 16
        runs = alternate({
            "computation alone": lambda: train_alone(setup, "resnet18", batch, steps, 4),
            "DDP": lambda: other("ddp"),
            "decent-dp": lambda: other("decent-dp"),
            "all-reduce": lambda: job(ALL_REDUCE),
            "gossip": lambda: job(GOSSIP),
            "gossip, bf16": lambda: job({**GOSSIP, "exchange": "bf16"}),
            "gossip, int8": lambda: job({**GOSSIP, "exchange": "int8"}),
            f"gossip, int8, interval {period // 2}": lambda: job({**GOSSIP, "exchange": "int8", "algorithm": {"type": "gossip", "interval": period // 2}}, 3 * period),
            f"local SGD, period {period}": lambda: job({"algorithm": {"type": "local_sgd", "period": period}}, 3 * period),
            f"DiLoCo, period {period}, delay {period // 2}":
                lambda: job({"algorithm": {"type": "diloco", "period": period, "delay": period // 2}}, 3 * period),
        }, setup)
    goals = {"gossip, int8": (4.0, "DDP / this ≥ 4 ×")}
    for name, run in runs.items():
        over_ddp, over_decent, over_alone = ratio(runs["DDP"], run), ratio(runs["decent-dp"], run), ratio(run, runs["computation alone"])
        ours = name not in ("computation alone", "DDP", "decent-dp")
        goal, met = "", ""
        if name in goals:
            goal, met = goals[name][1], verdict(over_ddp, goals[name][0])
        elif "period" in name or "interval" in name:
            goal, met = "this / alone ≤ 1.05 ×", verdict(over_alone, 1.05, False)
        waiting = number(run["wait_ms"]) if ours and "error" not in run else "-"
        result["rows"].append([name, ms(run), waiting, times(over_ddp), times(over_decent), times(over_alone), goal, met])
    result["data"].append({"steps": steps, "results": runs})
    return result


# ---------------------------------------------------------------------------- 2 hosts, 2 ranks each


def hierarchical(setup, options):
    rate = options.rates[-1]
    model, batch = ("resnet18", 4) if setup.quick else ("mlp25", 8)
    size = MODELS[model][1]
    result = table(
        f"2 emulated hosts, 2 ranks each, {rate} Mbit/s: hierarchical against flat",
        ["exchange", "ms a step", "times as slow as hierarchical", "bytes out of a host and step, × parameters", "expected", "bytes as expected", "goal"],
        f"{model} at batch {batch}. Bytes are the interfaces' counters, of a run less those of one of eight steps, headers and acknowledgements "
        "included. Expected: hierarchical 1 (every byte crosses the link once per direction), gossip in pairs 2 in rounds that "
        "cross (one-peer-exp and base-2: every second round; shift-one: all), complete and all-reduce 2: every rank sends "
        "each other one its quarter, and then the sum of its own (a ring of the four would take 1.5).",
    )
    compute = first_guess(setup, model, batch, 4)
    steps = max(16, setup.steps(max(compute, 1.5 * link_seconds(model, rate))))
    # name: (config, bytes out of a host in parameters' bytes)
    variants = {
        "hierarchical": ({"topology": {"type": "hierarchical", "ranks_per_node": 2, "inter": {"type": "base-2"}}}, 1.0),
        "one-peer-exp": (GOSSIP, 1.0),
        "shift-one": ({"topology": {"type": "shift-one"}}, 2.0),
        "complete": ({"topology": {"type": "complete"}}, 2.0),
        "all-reduce": (ALL_REDUCE, 2.0),
    }
    if setup.quick:
        variants = {name: variants[name] for name in ("hierarchical", "shift-one", "all-reduce")}
    with Lab(setup, 2, rate) as lab:

        few = {}  # bytes of a short run, once for each variant: what starting and ending take

        def count(sync, length):
            before = lab.sent_bytes()
            run = train(setup, model, batch, length, sync, lab=lab, per_host=2)
            return run, [after - start for after, start in zip(lab.sent_bytes(), before)]

        def job(name, sync):
            if name not in few:
                few[name] = count(sync, 8)[1]
            run, many = count(sync, steps)
            run["bytes"] = max(long - short for long, short in zip(many, few[name])) / (steps - 8) / size
            return run

        runs = alternate({name: (lambda name=name, sync=sync: job(name, sync)) for name, (sync, _) in variants.items()}, setup)
    for name, (_, expected) in variants.items():
        run = runs[name]
        value = ratio(run, runs["hierarchical"])
        sent = run.get("bytes")
        as_expected = "-" if sent is None else "yes" if 0.98 * expected <= sent <= 1.10 * expected else "**no**"
        goal = "" if name == "hierarchical" else f"≥ 1.5 ×: {verdict(value, 1.5)}"
        result["rows"].append([name, ms(run), times(value), number(sent, 3), number(expected, 3), as_expected, goal])
    result["data"].append({"model": model, "batch": batch, "rate": rate, "steps": steps, "compute": compute, "results": runs})
    return result


# ------------------------------------------------------------------------------------------ planner


def run_plan(setup, network, config, step_ms, buckets):
    command = [program("starling-topo", setup), "plan", "--measured", network, "--model", config, "--step-ms", f"{step_ms:.6g}", "--json"]
    for bucket in buckets:
        command += ["--bucket-mb", bucket]
    output = run_all([(command, environment())], setup, "starling-topo plan")
    return output and json.loads(output[0])


def planner(setup, options):
    # (name, hosts, ranks on each, rate of the links, the last one's)
    networks = [("one host", 1, 2, None, None), ("4 hosts", 4, 1, 1000, None), ("4 hosts", 4, 1, 100, None), ("4 hosts, one slow link", 4, 1, 1000, 200),
                ("2 hosts × 2", 2, 2, 1000, None)]
    models = [("resnet20", 16), ("mlp", 64), ("mlp25", 8)]
    topologies, buckets = ["all-reduce", "one-peer-exp", "static-exp", "complete", "hierarchical"], [4, 25]
    if setup.quick:
        networks, models, topologies, buckets = [networks[2]], models[1:2], ["all-reduce", "one-peer-exp", "complete"], [25]
    result = table(
        "Planner: predicted and measured step times",
        ["network", "model", "choice", "bucket, MB", "predicted, ms", "measured, ms", "error", "against the best measured"],
        "starling-topo measure on the real ranks, plan with the computation measured in the same minutes (as many jobs of one rank side by side), then every choice "
        "is run once. → marks plan's recommendation; auto is the trainer's own choice by \"topology\": {\"type\": \"auto\"} in a run of its own. Last column: the "
        "fastest of these runs, the recommendation and auto run three times more, in turn; medians.",
    )
    within, within_auto, errors, total = 0, 0, [], 0
    for (name, hosts, per_host, rate, slow), (model, batch) in ((network, model) for network in networks for model in models):
        if rate and 1.5 * link_seconds(model, slow or rate) > 2.5:
            continue  # a dozen choices, each in steps of many seconds
        label = name if rate is None else f"{name}, {rate} Mbit/s" if slow is None else f"{name}, {rate} and {slow} Mbit/s"
        print(f"  {label}, {model}", file=sys.stderr, flush=True)
        ranks = hosts * per_host
        try:
            with tempfile.TemporaryDirectory(prefix="starling-plan-") as folder:
                lab = Lab(setup, hosts, rate, slow).__enter__() if rate else None
                try:
                    cell = planner_cell(setup, pathlib.Path(folder), lab, ranks, per_host, model, batch, topologies, buckets)
                finally:
                    if lab:
                        lab.__exit__()
        except Skipped:
            raise
        except Failed as error:
            result["rows"].append([label, model, str(error).replace("|", "/")[:160], "", "", "", "", ""])
            continue
        if setup.dry_run:
            continue
        again = {key: run["step_ms"] for key, run in cell["again"].items() if "error" not in run}
        total += 1
        for key, run in cell["results"].items():
            choice = cell["choices"].get(key)
            predicted = choice["step_ms"] if choice else run.get("auto", {}).get("predicted_step_ms")
            error = None if "error" in run or predicted is None else predicted / run["step_ms"] - 1
            against = again[key] / again[cell["best"]] if key in again and cell["best"] in again else None
            if key == cell["recommended"] and against is not None and against <= 1.10:
                within += 1
            if key == "auto" and against is not None and against <= 1.10:
                within_auto += 1
            if error is not None and key != "auto":
                errors.append(abs(error))
            shown = f"auto: {run['auto']['topology']}" if key == "auto" and "auto" in run else key.split(" @ ")[0]
            bucket = run.get("auto", {}).get("bucket_mb") if key == "auto" else choice["bucket_mb"]
            result["rows"].append([label, model, ("→ " if key == cell["recommended"] else "") + shown, number(bucket), number(predicted), ms(run),
                                   "-" if error is None else f"{100 * error:+.0f} %", times(against)])
        result["data"].append({"network": label, "model": model, "batch": batch, **cell})
    if total:
        result["notes"] += (
            f" **Within 10 % of the best measured: plan's recommendation in {within} of {total} cells, auto's choice in {within_auto} of {total}** "
            f"(goal: 80 %). Error of the prediction: median {100 * statistics.median(errors):.0f} %, largest {100 * max(errors):.0f} %."
        )
    return result


def planner_cell(setup, folder, lab, ranks, per_host, model, batch, topologies, buckets):
    """Plans, then measures every choice of the grid, the recommendation and auto."""
    network, config = folder / "network.json", folder / "config.json"
    config.write_text(json.dumps(train_config(model, batch, 100, {})))
    measure = [program("starling-topo", setup), "measure", "--seconds", 2, "--threads", 1, "--output", network]
    start = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", ranks]
    run_all([([*([NETLAB, "run", per_host] if lab else start), *measure], lab.env if lab else environment())], setup, "starling-topo measure")
    alone = train_alone(setup, model, batch, setup.steps(first_guess(setup, model, batch, ranks)), ranks)
    # The time of a plan is forward and backward; what it adds for the update is taken off the whole
    # step that was measured.
    added = run_plan(setup, network, config, 1.0, buckets)
    plan = run_plan(setup, network, config, max(0.05, alone["step_ms"] - (added["compute_ms"] - 1.0 if added else 0)), buckets)
    choices, recommended = {}, None
    if plan:
        def name(topology, bucket):
            return f"{topology} @ {bucket:g}"

        everything = {name(choice["topology"] or "all-reduce", choice["bucket_mb"]): choice for choice in plan["choices"]}
        recommended = name(plan["recommended"]["topology"], plan["recommended"]["bucket_mb"])
        wanted = [name(topology, bucket) for topology in topologies for bucket in buckets]
        # The JSON may leave out a size that is no better: then only what it has is run.
        choices = {key: everything[key] for key in dict.fromkeys([*wanted, recommended]) if key in everything}
    slowest = max([choice["step_ms"] for choice in choices.values()], default=1000.0)

    def job(sync):
        return train(setup, model, batch, setup.steps(1e-3 * slowest), sync, ranks=ranks, lab=lab, per_host=per_host)

    def sync_of(choice):
        if choice["algorithm"] == "allreduce":
            return {"algorithm": "allreduce", "bucket_mb": choice["bucket_mb"]}
        return {"topology": {"type": choice["topology"]}, "bucket_mb": choice["bucket_mb"]}

    variants = {key: (lambda choice=choice: job(sync_of(choice))) for key, choice in choices.items()}
    variants["auto"] = lambda: job({"topology": {"type": "auto"}, "bucket_mb": "auto"})
    results = alternate(variants, setup)
    # The best of a dozen noisy runs flatters itself: it, the recommendation and auto run again, in
    # turn, and are compared by their medians.
    best = min((key for key, run in results.items() if key != "auto" and "error" not in run), key=lambda key: results[key]["step_ms"], default=None)
    again = copy.copy(setup)
    again.repeats = 1 if setup.quick or setup.dry_run else 3
    finalists = [key for key in dict.fromkeys([best, recommended, "auto"]) if key in variants]
    return {"alone_ms": alone["step_ms"], "choices": choices, "recommended": recommended, "results": results, "best": best,
            "again": alternate({key: variants[key] for key in finalists}, again)}


def plan4096(setup):
    result = table(
        "Plan for 4,096 ranks: time and memory",
        ["ranks", "ranks a host", "seconds", "of a core", "peak memory, MB", "goal: ≤ 1 s", "goal: ≤ 100 MB"],
        "Wall time, processor time and largest resident set of `starling-topo plan`, 25.6 million parameters, every topology × 4 bucket sizes.",
    )
    for per_host in (1, 8):
        command = [program("starling-topo", setup), "plan", "--ranks", 4096, "--ranks-per-node", per_host, "--bandwidth", 10, "--json"]
        if setup.dry_run:
            run_all([(command, environment())], setup, "plan")
            continue
        seconds, core, memory = [], [], []
        for _ in range(max(3, setup.repeats)):
            begin = time.monotonic()
            pid = os.posix_spawn(command[0], [str(word) for word in command], environment(),
                                 file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
            _, status, usage = os.wait4(pid, 0)
            if status != 0:
                raise Failed(f"starling-topo plan: status {os.waitstatus_to_exitcode(status)}")
            seconds.append(time.monotonic() - begin)
            core.append(usage.ru_utime + usage.ru_stime)
            memory.append(usage.ru_maxrss * 1024e-6)
        took, peak = statistics.median(seconds), max(memory)
        result["rows"].append([4096, per_host, number(took, 3), number(statistics.median(core), 3), number(peak, 3), verdict(took, 1, False), verdict(peak, 100, False)])
        result["data"].append({"ranks_per_host": per_host, "seconds": seconds, "core_seconds": core, "memory_mb": memory})
    return result
