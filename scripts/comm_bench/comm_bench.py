#!/usr/bin/env python3
"""Measures communication: the goals behind docs/benchmarks.md, each against its rival and its limit
in the same run, taking turns.

  scripts/comm_bench/comm_bench.py [--only ROWS] [--quick] [--dry-run] [--out FOLDER]     tables: FOLDER/comm.md and comm.json
  scripts/comm_bench/comm_bench.py race [--rate 20] [--epochs 2] ...                      accuracy over seconds and bytes across hosts; 20 minutes

Rows: exchange, two-ranks (one host); gossip, device-time, peers (4 emulated hosts against our
all-reduce, with real computation and with computation that takes no processor; against decent-dp
and PyTorch's DDP); fewer-bytes (8 bits on the wire, and averages every so many steps, on the last
of --rates); hierarchical (2 hosts x 2 ranks); planner; plan4096. Emulated hosts need root and
scripts/netlab; `peers` and `fewer-bytes` need torch and decent-dp==0.2.3; a row that this machine
cannot run says so and is left out. Needs built programs (scripts/test.sh). For real figures let
nothing else run. Environment: STARLING_BUILD (build), NETLAB_NAME (bench).
"""

import argparse
import json
import os
import pathlib
import sys
import time

import race
import rows
from jobs import MODELS, Failed, Setup, Skipped, describe_machine

ROWS = ["exchange", "two-ranks", "gossip", "device-time", "peers", "fewer-bytes", "hierarchical", "planner", "plan4096"]


def markdown(report):
    head = report["machine"]
    lines = [f"Measured {report['date']}; {head['cpu']}, {head['cores']} cores; {head['starling']}; PyTorch {head['pytorch']}, decent-dp {head['decent-dp']}; "
             f"medians of {report['repeats']}" + (", **quick: only a check that it runs, not a measurement**" if report["quick"] else "") + "."]
    for row in report["rows"]:
        lines += ["", f"### {row['title']}", ""]
        if "reason" in row:
            lines.append(row["reason"])
            continue
        lines.append("| " + " | ".join(row["columns"]) + " |")
        lines.append("|" + "---|" * len(row["columns"]))
        lines += ["| " + " | ".join(str(value) for value in line) + " |" for line in row["rows"]]
        lines += ["", row["notes"] + f" Load average before and after: {row['load'][0]:.1f}, {row['load'][1]:.1f}; {row['seconds']:.0f} s."]
    return "\n".join(lines) + "\n"


def run_row(name, setup, arguments):
    begin, load = time.monotonic(), os.getloadavg()[0]
    print(f"{name}:", file=sys.stderr, flush=True)
    function = getattr(rows, name.replace("-", "_"))
    try:
        result = function(setup, arguments) if name in ("gossip", "device-time", "peers", "fewer-bytes", "hierarchical", "planner") else function(setup)
    except Skipped as error:
        result = {"title": name, "reason": f"skipped: {error}"}
    except Failed as error:
        result = {"title": name, "reason": f"failed: {error}"}
    if "reason" in result:
        print(f"  {result['reason']}", file=sys.stderr, flush=True)
    return {"row": name, **result, "load": [load, os.getloadavg()[0]], "seconds": time.monotonic() - begin}


def words(known):
    def parse(text):
        chosen = text.split(",")
        for word in chosen:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word} is unknown; known: {', '.join(known)}")
        return chosen

    return parse


def rates(text):
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 2:
        raise argparse.ArgumentTypeError(f"{text}: whole numbers of Mbit/s, separated by commas")
    return values


def main():
    if sys.argv[1:2] == ["race"]:
        return race.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=words(ROWS), default=ROWS, help="rows, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="few steps and one repeat: a check that it runs")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--repeats", type=int, default=0, help="runs of each variant (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.0, help="about how long a run trains (default: 20)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds after which a program is taken for stuck")
    parser.add_argument("--rates", type=rates, default=[1000, 100], help="Mbit/s of the emulated links (default: 1000,100); hierarchical and fewer-bytes take the last")
    parser.add_argument("--models", type=words(["resnet18", "balanced", "mlp25"]), default=["resnet18", "balanced", "mlp25"],
                        help="of gossip and peers; balanced: resnet18 with the batch that computes as long as one exchange takes")
    parser.add_argument("--disturb", type=words(["none", "slow-rank", "slow-link"]), default=None,
                        help="of gossip and peers: none, slow-rank (one at half speed), slow-link (one at half the rate); default: all, quick: none")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/comm"), help="folder of comm.md and comm.json")
    parser.add_argument("--verbose", action="store_true", help="print each command as it is run")
    arguments = parser.parse_args()
    if arguments.disturb is None:
        arguments.disturb = ["none"] if arguments.quick else ["none", "slow-rank", "slow-link"]
    setup = Setup(arguments)
    if not setup.dry_run:
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"error: --out {arguments.out}: {error.strerror}")

    report = {"date": time.strftime("%Y-%m-%d %H:%M"), "machine": {} if setup.dry_run else describe_machine(), "quick": setup.quick, "repeats": setup.repeats,
              "command": " ".join(sys.argv[1:]), "parameter_bytes": {name: size for name, (_, size) in MODELS.items()}, "rows": []}
    for name in arguments.only:
        report["rows"].append(run_row(name, setup, arguments))
        if not setup.dry_run:  # after each row, so that a run that is ended leaves what it has
            (arguments.out / "comm.json").write_text(json.dumps(report, indent=1, default=str) + "\n")
            (arguments.out / "comm.md").write_text(markdown(report))
    if not setup.dry_run:
        print(markdown(report))
    return 1 if any(row.get("reason", "").startswith("failed") for row in report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
