"""Has ranks join a run and kills ranks of it, at random moments, and looks whether it goes on and
loses nothing.

    scripts/trials join --trials 20

A trial begins a run with one rank, without mpirun. Then things happen to it, one after the other:
a rank joins (--join), or two at once; a random rank is killed with SIGKILL; a joiner is killed
half-way; a rank is killed while one joins. After each, all that live must come to be ranks of the
run, and it must go on. With replicas these join in place of ranks, and one that loses a rank leaves
as a whole. At last a random rank gets SIGTERM. Then:

  1. all end with status 75 after a checkpoint of them all, and nobody else has ended;
  2. each interval of steps has its line of metrics, and one (under a quorum one at most);
  3. where replicas are equal (diloco), no digest differed, which the run itself compares;
  4. the files that joiners read are gone, and the secret was its owner's alone.
"""

import json
import os
import random
import signal
import time

import jobs
from jobs import count_of_lines, metrics, read, until
from trial.loop import finish, parser_of, print_table, run_all, write_config

TRAIN = jobs.built("starling-train")
EVERY = 20  # steps between lines of metrics
MOST = {1: 5, 2: 8}  # ranks, by those of a replica
ALGORITHMS = {
    "gossip": {"algorithm": "gossip"},
    "gossip, int8": {"algorithm": {"type": "gossip", "error_feedback": True}, "exchange": "int8"},
    "gossip, ring": {"algorithm": "gossip", "topology": {"type": "static-ring"}},
    "gossip_diloco": {"algorithm": {"type": "gossip_diloco", "period": 10}},
    "diloco": {"algorithm": {"type": "diloco", "period": 20}, "verify": 20},
    "diloco, fragments": {"algorithm": {"type": "diloco", "period": 20, "fragments": 2, "delay": 3}, "bucket_mb": 0.005, "verify": 20},
    "diloco, quorum": {"algorithm": {"type": "diloco", "period": 20, "quorum": 2}, "verify": 20},
    "diloco, quorum, long periods": {"algorithm": {"type": "diloco", "period": 500, "quorum": 2}, "verify": 500},
    "gossip, replicas": {"algorithm": "gossip", "replica": 2},
    "gossip_diloco, replicas": {"algorithm": {"type": "gossip_diloco", "period": 10}, "replica": 2},
    "diloco, replicas": {"algorithm": {"type": "diloco", "period": 20}, "verify": 20, "replica": 2},
    "diloco, int4": {"algorithm": {"type": "diloco", "period": 20, "error_feedback": True}, "exchange": "int4", "verify": 20},
}
EVENTS = ("joins", "two join", "is killed", "dies half-way", "is killed as one joins")


class Run:
    def __init__(self, folder, algorithm, limit):
        self.folder, self.run, self.limit, self.wrong = folder, folder + "/run", limit, []
        os.makedirs(folder)
        sync = {"transport": "zeromq", "timeout_s": 20, **ALGORITHMS[algorithm]}
        self.asynchronous, self.replica = "quorum" in algorithm, sync.get("replica", 1)
        elastic = {"join": True} if self.replica == 1 else {"join": True, "rejoin": 0}
        write_config(folder, deterministic=not self.asynchronous, batch_size=32, steps=10**8, sync=sync, elastic=elastic, checkpoint={"every_steps": 500, "keep": 2}, evaluate={"every_epochs": 0}, log_every=EVERY)
        self.started, self.living, self.leaving, self.first = 0, [], 0, None
        command = [TRAIN, folder + "/config.json", "--output", self.run]
        if self.replica == 1:
            self.start(command)
        else:
            self.first = jobs.Job(folder + "/first", self.replica, command, launcher=[*jobs.MPIRUN[:-1], "--enable-recovery", "-n", self.replica])

    def start(self, command):
        with open(f"{self.folder}/log.{self.started}", "w") as log:
            self.living.append(jobs.start(command, stdout=log, stderr=log, preexec_fn=jobs.die_with_parent))
        self.started += 1
        return self.living[-1]

    def begin(self):
        """mpirun, which starts the first replica, ends with a rank of it: another takes its place."""
        if self.first:
            until(self.ranks, self.limit)
            self.join()
            if not until(lambda: self.ranks() == 2 * self.replica, self.limit):
                self.wrong.append(f"the second replica does not join: {self.ranks()} ranks")
            self.first.signal(0, signal.SIGKILL)
            if not until(lambda: len(self.first.statuses()) == self.replica, self.limit) or self.first.statuses()[1][0] != 3:
                self.wrong.append(f"exit statuses of the first replica: {self.first.statuses()}")
        self.settle("begin")

    def join(self):
        for _ in range(self.replica):
            process = self.start([TRAIN, "--join", self.run])
        return process

    def kill(self, process):
        self.living.remove(process)
        process.kill()
        process.wait()
        self.leaving += self.replica - 1

    def ranks(self):
        """How many the run has; 0 where it cannot be joined."""
        try:
            return len(json.loads(read(self.run + "/job.json"))["members"])
        except ValueError:
            return 0

    def whole(self):
        return self.ranks() == len(self.living) or any(process.poll() is not None for process in self.living)

    def settle(self, event, may_fail=None):
        """Waits until all that live are ranks, and have stayed so for some steps: a rank that has
        just been lost is still in the run's list."""
        end_of = time.monotonic() + self.limit
        while not self.wrong:
            until(self.whole, min(end_of - time.monotonic(), 5 if self.replica > 1 else self.limit))
            # A joiner whose replica is not whole waits for another one.
            for _ in range(-len(self.living) % self.replica if not self.whole() else 0):
                self.start([TRAIN, "--join", self.run])
            before, steady = count_of_lines(self.run), time.monotonic() + 2
            until(lambda: not self.whole() or (count_of_lines(self.run) > before + 2 and time.monotonic() > steady), end_of - time.monotonic())
            for process in [one for one in self.living if one.poll() is not None]:
                self.living.remove(process)
                if process.returncode == 3 and self.leaving > 0:
                    self.leaving -= 1
                elif process is not may_fail or process.returncode not in (2, 3):
                    self.wrong.append(f"after '{event}' a rank has ended with {process.returncode}")
            if self.whole() and count_of_lines(self.run) > before + 2:
                return
            if time.monotonic() > end_of:
                self.wrong.append(f"after '{event}' {len(self.living)} processes live, the run has {self.ranks()} ranks and {count_of_lines(self.run)} lines of metrics")

    def happens(self, event, rng):
        joiner = None
        if event in ("joins", "two join"):
            for _ in range(1 + (event == "two join")):
                self.join()
        elif event == "is killed":
            self.kill(rng.choice(self.living))
        elif event == "dies half-way":
            joiner = self.join()
            time.sleep(rng.random() * 0.5)
            self.kill(joiner)
        else:
            victim, joiner = rng.choice(self.living), self.join()
            time.sleep(rng.random() * 0.5)
            self.kill(victim)
        self.settle(event, joiner)
        if os.path.exists(self.run + "/secret") and os.stat(self.run + "/secret").st_mode & 0o77:
            self.wrong.append("others may read the secret")

    def end(self, rng):
        rng.choice(self.living).send_signal(signal.SIGTERM)
        ended = until(lambda: all(process.poll() is not None for process in self.living), self.limit)
        statuses = [process.poll() for process in self.living]
        if not ended or set(statuses) != {75}:
            self.wrong.append(f"exit statuses at the end: {statuses}")
        steps = [line["step"] for line in metrics(self.run) if "loss" in line]
        # Under a quorum several lines may await the numbers of a rank that is lost.
        if steps != sorted(set(steps)) or (steps != list(range(EVERY, steps[-1] + 1, EVERY)) and not self.asynchronous):
            self.wrong.append("a line of metrics is missing, or there twice")
        newest = max(os.listdir(self.run + "/checkpoints"), key=lambda name: int(name.split("-")[1]))
        files = [name for name in os.listdir(f"{self.run}/checkpoints/{newest}") if name.startswith("rank-")]
        if len(files) != len(statuses):
            self.wrong.append(f"{newest} is not of {len(statuses)} ranks")
        self.wrong += [f"{name} is left" for name in ("job.json", "secret") if os.path.exists(f"{self.run}/{name}")]

    def stop(self):
        if self.first:
            self.first.kill()
        for process in self.living:
            process.kill()
            process.wait()


def fits(event, ranks, replica):
    """More than half of the ranks must stay."""
    return ranks <= MOST[replica] - 2 * replica if "join" in event and "killed" not in event else ranks >= 3 if "killed" in event else True


def run_trial(trial, folder, limit):
    run, rng = Run(folder, trial["algorithm"], limit), random.Random(trial["moments"])
    try:
        run.begin()
        for event in trial["events"]:
            if run.wrong:
                break
            if fits(event, len(run.living), run.replica):
                run.happens(event, rng)
        if not run.wrong:
            run.end(rng)
        return run.wrong
    finally:
        run.stop()


def main():
    parser = parser_of(__doc__, 30.0, "seconds in which the run goes on after something has happened to it")
    parser.add_argument("--events", type=int, default=8, help="of a trial")
    options = parser.parse_args()
    jobs.need("starling-train")

    def draw(rng, number):
        events = ["two join"] + [rng.choice(EVENTS) for _ in range(options.events - 1)]
        return {"algorithm": rng.choice(list(ALGORITHMS)), "events": events, "moments": rng.random()}

    counts, failures = run_all(options, draw, lambda trial, folder: run_trial(trial, folder, options.limit), lambda trial: (trial["algorithm"],))
    print_table(("algorithm",), counts)
    finish(counts, failures)
