"""scripts/gpu_check.sh: proves and measures the CUDA backend on a machine with a GPU, stage by
stage.

Each stage takes 8 minutes at most and can be run alone, in any order; without one all run, the
most valuable first. OUT gets gpu_report.md, gpu_check.tar (logs, timelines) and gpu_check.json
(what the report is made of), brought up to date every few seconds: a run that is killed leaves
what it had. Stages that are run later into the same OUT join the report; --merge does that with
folders. Where a GPU is, dmon.txt has its load, clocks and power meanwhile.

Exit status: 0 all that was asked for passed, 1 something failed, 2 wrong usage, 4 there is no
GPU, so that nothing was proven. Environment: STARLING_BUILD (default: build-gpu),
STARLING_CUDA_ARCHITECTURES (default: this GPU's), STARLING_COMMIT (where the tree has no
history), STARLING_CHECK_BUILT=1 (nothing is compiled).
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import lease
import machine
import processes
import report
from processes import ROOT
from runner import Runner
from stages import DIAGNOSED, DIAGNOSIS, DIAGNOSIS_SECONDS, STAGE_SECONDS, STAGES, Context, proof_rows

BEGIN = time.monotonic()
RESERVE = 5  # seconds at a stage's end for the report


def seconds_for(chosen, i, left, limits):
    """What the stage may take. Where all have to do with less, its share of what is left: what a
    stage does not need goes to the later ones."""
    if left is None:
        return STAGE_SECONDS
    if limits:
        return max(0.0, min(limits[chosen[i].name], left))
    return max(0.0, min(STAGE_SECONDS, left * chosen[i].share / sum(stage.share for stage in chosen[i:])))


class Ended(Exception):
    """A signal came."""


class Check:
    def __init__(self, options):
        self.options = options
        self.out = options.out.resolve()
        self.proof = proof_rows(ROOT)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="starling-gpu-check-"))
        self.rehearsal = machine.Rehearsal(ROOT, self.work / "rehearsal.tmp") if options.rehearse else None
        self.build = self.rehearsal.build if self.rehearsal else pathlib.Path(os.environ["STARLING_BUILD"])
        self.devices = [] if self.rehearsal else machine.gpus()
        self.archive = report.Archive(self.work)
        self.state = report.read_state(self.out)
        self.runner = self.record = self.load = None
        self.failed, self.said = [], set()

    def begin(self):
        self.out.mkdir(parents=True, exist_ok=True)
        self.archive.unpack(self.out)
        if self.rehearsal:
            self.rehearsal.begin()
        self.state["rehearsed"] = self.rehearsal is not None
        if self.devices:
            self.load = processes.start(["nvidia-smi", "dmon", "-s", "puc", "-d", "2", "-o", "T"], stdout=open(self.out / "dmon.txt", "wb"), stderr=subprocess.STDOUT)
        facts = machine.facts(ROOT, self.build / "bin" / "starling-train", self.devices, self.rehearsal is not None)
        self.state["machine"] = {**self.state["machine"], **facts}
        self.state["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())

    def save(self):
        report.save(self.out, self.state, self.archive, known(self.state), self.proof)

    def context(self, stage, seconds):
        capability = self.devices[0].split(",")[1].strip() if self.devices else ""
        context = Context(ROOT, self.build, self.work / stage.name, rehearsed=self.rehearsal is not None, dry_run=self.options.dry_run, gpus=len(self.devices), capability=capability,
                          # fmt: skip
                          all_topologies=self.options.all_topologies, seconds=seconds, lease=self.options.lease or 0, failed=self.failed)
        context.built = self.rehearsal is not None or (ROOT / "gpu_env.sh").exists() or os.environ.get("STARLING_CHECK_BUILT") == "1"
        context.device_test = self.rehearsal.device_test if self.rehearsal else [self.build / "bin" / "test_cuda_device"]
        return context

    def note(self, step, verdict, remark, seconds):
        steps = self.record["steps"]
        steps[:] = [one for one in steps if one["verdict"] != "running"]
        steps.append({"name": step.name, "verdict": verdict, "remark": remark, "seconds": seconds, "about": step.about})
        print(f"{step.name:<60} {verdict} ({seconds:.0f} s){': ' + remark if remark else ''}", flush=True)
        if verdict == "FAILED" and self.stage.name in DIAGNOSED:
            self.failed.append((self.stage.name, step))
        if step.name == "PyTorch":
            self.state["machine"]["PyTorch"] = remark
        self.beat(self.runner.running)

    def beat(self, running):
        """The report as it is, with what runs."""
        steps = self.record["steps"]
        steps[:] = [one for one in steps if one["verdict"] != "running"]
        steps += [{"name": one.step.name, "verdict": "running", "remark": "", "seconds": one.seconds(), "about": one.step.about} for one in running]
        self.record["seconds"] = time.monotonic() - self.begun
        self.record.update(report.of_folder(self.work / self.stage.name))
        for line in ["  " + " | ".join(one) for one in self.record["rows"] + self.record["figures"] if not re.match("skipped|no time|not tried", one[-1])]:
            if line not in self.said:
                print(line, flush=True)
            self.said.add(line)
        self.save()

    def run_stage(self, stage, seconds):
        print(f"=== {stage.name}: {stage.what}, {seconds:.0f} s at most", flush=True)
        self.stage, self.begun = stage, time.monotonic()
        shutil.rmtree(self.work / stage.name, ignore_errors=True)
        self.record = self.state["stages"][stage.name] = {
            "steps": [], "seconds": 0.0, "limit": seconds, "ended": False, "words": stage.words, "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }  # fmt: skip
        self.runner = Runner(self.work / stage.name, self.note, self.beat)
        self.save()
        context = self.context(stage, seconds)
        if not (self.devices or self.rehearsal or stage.name == "build"):
            self.record["remark"] = "no GPU here"
        elif stage.name != "build" and not os.access(context.bin("starling-train"), os.X_OK):
            self.record["remark"] = f"nothing is built in {self.build}: run the stage build first"
            self.record["steps"] = [{"name": "programs", "verdict": "FAILED", "remark": self.record["remark"], "seconds": 0, "about": ""}]
        else:
            for batch in stage.steps(context):
                self.runner.run(batch, self.begun + seconds - RESERVE)
        self.record["ended"] = True
        self.beat([])

    def run(self, chosen, seconds, limits):
        left = lambda: BEGIN + seconds - time.monotonic() if seconds else None
        for i, stage in enumerate(chosen):
            self.run_stage(stage, seconds_for(chosen, i, left(), limits))
            steps = self.state["stages"][stage.name]["steps"]
            if any(step["name"].startswith("first call") and step["verdict"] == "FAILED" for step in steps):
                print("STOP: the device gave no answer")
                chosen = chosen[: i + 1]
                break
        if self.failed and (left() or DIAGNOSIS_SECONDS) >= DIAGNOSIS_SECONDS:
            self.run_stage(DIAGNOSIS, min(left() or STAGE_SECONDS, DIAGNOSIS_SECONDS + RESERVE))
        print(f"report: {self.out / report.REPORT}")
        good, bad, others = (sum(part) for part in zip(*(report.counts(self.state["stages"][s.name]["steps"], self.state["stages"][s.name].get("rows", [])) for s in chosen)))
        print(f"{good} passed, {bad} FAILED, {others} not run or skipped")
        if bad:
            return 1
        if not (self.devices or self.rehearsal):
            print("there is no GPU here: nothing was proven on a device")
            return 4
        unfinished = any(step["verdict"] == "not run" for s in chosen for step in self.state["stages"][s.name]["steps"])
        return 1 if unfinished else 0

    def stop(self):
        """Ended from outside, in time to say so."""
        if self.runner:
            self.runner.stop()

    def clean(self):
        if self.load:
            processes.end(self.load)
        shutil.rmtree(self.work, ignore_errors=True)

    def print_steps(self, chosen, seconds, limits):
        for i, stage in enumerate(chosen):
            limit = seconds_for(chosen, i, seconds, limits)
            seconds = seconds - limit if seconds else None
            print(f"{stage.name}: {stage.what}; {limit:.0f} s at most")
            for batch in stage.steps(self.context(stage, limit)):
                for step in batch.steps:
                    words = " ".join(str(word) if " " not in str(word) else f"'{word}'" for word in step.command)
                    print(f"  {step.name}, {min(step.limit, limit):.0f} s at most, {batch.jobs} at a time: {words}")


def known(state):
    return [(stage.name, stage.what) for stage in [*STAGES, *([DIAGNOSIS] if DIAGNOSIS.name in state["stages"] else [])]]


def merge(options):
    """Several folders' stages in one report; of a stage that stands in several the last one."""
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="starling-gpu-check-"))
    try:
        archive, state = report.Archive(work), report.empty_state()
        for folder in options.merge:
            one = report.read_state(folder)
            if not one["stages"]:
                sys.exit(f"error: {folder} has no {report.STATE} of a check")
            for name in one["stages"]:
                shutil.rmtree(work / name, ignore_errors=True)
            archive.unpack(folder)
            state = {**state, **one, "machine": {**state["machine"], **one["machine"]}, "stages": {**state["stages"], **one["stages"]}}
        report.save(out, state, archive, known(state), proof_rows(ROOT))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"report: {out / report.REPORT}")
    return 0


def main():
    names = "\n".join(f"  {stage.name:<9} {stage.what}" for stage in STAGES)
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh", usage="scripts/gpu_check.sh [STAGE…] [--out OUT] [--seconds N] [--lease N] [--dry-run] [--rehearse] [--all-topologies]",
                                     description=__doc__.split("\n\n", 1)[0], epilog="stages:\n" + names + "\n\n" + __doc__.split("\n\n", 1)[1],
                                     # fmt: skip
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the report (default: gpu_check in the build folder)")
    parser.add_argument("--seconds", type=float, help=f"of all stages together (default: {STAGE_SECONDS} for each)")
    parser.add_argument("--lease", type=int, choices=sorted(lease.LEASES), help="the stages of a command of scripts/gpu_lease.sh, in its time, the most valuable steps alone")
    parser.add_argument("--dry-run", action="store_true", help="print the steps and their commands, and do nothing")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, by the fakes of the tests' build (STARLING_BUILD): small sizes, and devices as slow as real ones")
    parser.add_argument("--all-topologies", action="store_true", help="ranks and peers try every topology, not three")
    parser.add_argument("--merge", nargs="+", type=pathlib.Path, metavar="FOLDER", help="put the reports of several folders into OUT, and do nothing else")
    options = parser.parse_args()
    unknown = [name for name in options.stages if name not in {stage.name for stage in STAGES}]
    if unknown:
        parser.error(f"unknown stage '{unknown[0]}'; known: {', '.join(stage.name for stage in STAGES)}")
    if os.environ.get("STARLING_CHECK_BUILT", "0") not in ("0", "1"):
        parser.error(f"STARLING_CHECK_BUILT is '{os.environ['STARLING_CHECK_BUILT']}'; it is 0 or 1")
    if options.seconds is not None and not options.seconds >= 1:
        parser.error("--seconds: a number from 1 up is needed")
    options.out = options.out or pathlib.Path(os.environ["STARLING_BUILD"]) / "gpu_check"
    if options.merge:
        return merge(options)
    limits = dict(lease.LEASES[options.lease]) if options.lease else {}
    # in the order that was asked for
    names = options.stages or list(limits) or [stage.name for stage in STAGES]
    chosen = [stage for name in dict.fromkeys(names) for stage in STAGES if stage.name == name]
    seconds = options.seconds or sum(limits.values()) or None

    def ended(number, frame):
        for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise Ended

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ended)
    check = Check(options)
    try:
        if options.dry_run:
            check.print_steps(chosen, seconds, limits)
            return 0
        check.begin()
        return check.run(chosen, seconds, limits)
    except Ended:
        check.stop()
        print(f"ended from outside; report: {check.out / report.REPORT}", flush=True)
        return 1
    finally:
        check.clean()

