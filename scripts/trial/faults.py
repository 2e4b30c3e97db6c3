"""Disturbs a run all the time, and looks what that costs it.

    scripts/trials faults --seconds 600 --every 20

A job of mpirun trains for so long undisturbed, then as long again while every so many seconds a
random rank is killed, stopped for a while, or slowed down. What dies comes back by itself. Told, of
both: the samples that were trained on, the loss after equally many, and the longest time in which
no rank got on. Then:

  1. the disturbed run has trained on at least --keep of the other's samples;
  2. its loss differs by at most --loss;
  3. all ranks are there at the end, which SIGTERM brings, after one checkpoint.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time

import jobs
from jobs import read, until
from trial.loop import positive, write_config

TRAIN = jobs.built("starling-train")
EVERY = 20  # steps between lines of metrics
ALGORITHMS = {
    "gossip": {"algorithm": "gossip"},
    "gossip_diloco": {"algorithm": {"type": "gossip_diloco", "period": 20}},
    "diloco": {"algorithm": {"type": "diloco", "period": 20}},
    "quorum": {"algorithm": {"type": "diloco", "period": 20, "quorum": 2}, "heartbeat_s": 1},
}
FAULTS = ("kill", "stop", "slow")


def ranks_of(job):
    """The processes that train: those below mpirun that have no children, in order."""
    parents = {}
    for entry in os.listdir("/proc"):
        fields = read(f"/proc/{entry}/stat").rpartition(")")[2].split() if entry.isdigit() else ()
        if fields and fields[0] not in "ZX":
            parents[int(entry)] = int(fields[1])
    below = lambda pid: pid == job.pid or (pid in parents and below(parents[pid]))
    mine = [pid for pid in parents if below(pid) and pid not in parents.values()]
    return sorted(pid for pid in mine if read(f"/proc/{pid}/comm").startswith("starling-train"))


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Run:
    def __init__(self, folder, options):
        self.run, self.options, self.longest = folder + "/run", options, 0.0
        os.makedirs(folder)
        sync = {"transport": "zeromq", "timeout_s": 20, **ALGORITHMS[options.algorithm]}
        # The letters of these pages: a loss that goes on falling for long
        text = {"type": "text", "path": f"{jobs.ROOT}/docs/*.md", "sequence_length": 32}
        model = {"type": "gpt2", "layers": 2, "heads": 2, "width": options.width, "context": 32}
        write_config(folder, deterministic=options.algorithm != "quorum", model=model, data=text, batch_size=4, steps=10**8, sync=sync, elastic={"join": True, "rejoin": 1000}, checkpoint={"every_epochs": 0}, evaluate={"every_epochs": 0}, log_every=EVERY)
        self.log = open(folder + "/log", "w")
        self.job = jobs.start([*jobs.MPIRUN, options.ranks, TRAIN, folder + "/config.json", "--output", self.run], stdout=self.log, stderr=self.log, env=jobs.environment(), preexec_fn=jobs.die_with_parent)

    def losses(self):
        """(samples up to a line, loss)."""
        total, result = 0.0, []
        for line in jobs.metrics(self.run):
            if "loss" in line:
                total += line["samples_per_second"] * line["step_ms"] / 1e3 * EVERY
                result.append((total, line["loss"]))
        return result

    def watch(self, seconds, disturb=lambda: None):
        """Lets it train, and notes how long it stood still. disturb() is called again and again."""
        size = lambda: os.stat(self.run + "/metrics.jsonl").st_size if os.path.exists(self.run + "/metrics.jsonl") else 0
        if not until(lambda: size() > 0, 120, 0.05):
            sys.exit(f"{jobs.NAME}: the run does not begin\n{read(self.log.name)}")
        end_of = last = time.monotonic()
        end_of, before = end_of + seconds, size()
        while time.monotonic() < end_of and self.job.poll() is None:
            disturb()
            time.sleep(0.01)
            if size() != before:
                before, last = size(), time.monotonic()
            self.longest = max(self.longest, time.monotonic() - last)

    def end(self):
        wrong = []
        if not until(lambda: self.job.poll() is not None or len(ranks_of(self.job)) == self.options.ranks, 60, 0.1):
            wrong.append(f"{len(ranks_of(self.job))} of {self.options.ranks} ranks are there at the end")
        time.sleep(5)  # the last to return is in
        ranks = ranks_of(self.job)
        if ranks:
            send(ranks[0], signal.SIGTERM)
        if not until(lambda: self.job.poll() is not None, 60, 0.1):
            wrong.append("does not end")
        elif self.job.returncode != 75:
            wrong.append(f"exit status {self.job.returncode}")
        return wrong


class Faults:
    def __init__(self, run, options):
        self.run, self.options, self.rng = run, options, random.Random(options.seed)
        self.next, self.done, self.until, self.victim = time.monotonic() + options.every, [], 0.0, None

    def __call__(self):
        now = time.monotonic()
        if self.victim and now > self.until:
            send(self.victim, signal.SIGCONT)
            self.victim = None
        elif self.victim and self.done[-1] == "slow":  # it has the processor half of the time
            send(self.victim, signal.SIGSTOP if int(now * 20) % 2 else signal.SIGCONT)
        ranks = ranks_of(self.run.job) if now > self.next else []
        if not ranks:
            return
        self.next = now + self.options.every
        self.done.append(self.rng.choice(FAULTS))
        victim = self.rng.choice(ranks)
        if self.done[-1] == "kill":
            return send(victim, signal.SIGKILL)
        self.victim, self.until = victim, now + self.rng.uniform(0.1, 0.5) * self.options.every
        if self.done[-1] == "stop":
            send(victim, signal.SIGSTOP)


def loss_at(losses, samples):
    """The mean of the losses of the last tenth of so many samples."""
    return statistics.mean(loss for at, loss in losses if 0.9 * samples <= at <= samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="diloco")
    parser.add_argument("--ranks", type=positive, default=3)
    parser.add_argument("--width", type=positive, default=32, help="of the model's layers")
    parser.add_argument("--seconds", type=float, default=300.0, help="that each of the two runs trains for")
    parser.add_argument("--every", type=float, default=20.0, help="seconds from one fault to the next")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--keep", type=float, default=0.9, help="least part of the samples that is kept")
    parser.add_argument("--loss", type=float, default=0.005, help="most that the loss may differ by, relatively")
    options = parser.parse_args()
    jobs.need("starling-train")
    jobs.stop_on_sigterm()
    work, wrong, runs = tempfile.mkdtemp(prefix="starling-faults."), [], {}
    try:
        for name in ("undisturbed", "disturbed"):
            run = runs[name] = Run(f"{work}/{name}", options)
            try:
                faults = Faults(run, options) if name == "disturbed" else lambda: None
                run.watch(options.seconds, faults)
                run.result = run.losses()
                wrong += [f"{name}: {text}" for text in run.end()]
            finally:
                if run.job.poll() is None:
                    jobs.end(run.job)
            if wrong:
                print(read(run.log.name)[-4000:])
        (a, _), (b, _) = runs["undisturbed"].result[-1], runs["disturbed"].result[-1]
        kept, common = b / a, min(a, b)
        losses = [loss_at(run.result, common) for run in runs.values()]
        differs = losses[1] / losses[0] - 1
        print(f"{options.algorithm}, {options.ranks} ranks, {len(faults.done)} faults in {options.seconds:g} s: " + ", ".join(f"{faults.done.count(name)} {name}" for name in FAULTS))
        print(f"samples kept {kept:.3f} ({b:.0f} of {a:.0f})")
        print(f"loss after {common:.0f} samples {losses[1]:.4f}, undisturbed {losses[0]:.4f} ({100 * differs:+.2f} %)")
        print(f"longest stop of all {runs['disturbed'].longest:.2f} s, undisturbed {runs['undisturbed'].longest:.2f} s")
        if kept < options.keep:
            wrong.append(f"fewer than {options.keep:g} of the samples were kept")
        if abs(differs) > options.loss:
            wrong.append(f"the loss differs by more than {100 * options.loss:g} %")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for text in wrong:
        print(f"FAILED  {text}")
    sys.exit(1 if wrong else 0)
