"""Trains on emulated hosts (scripts/netlab) while a link, a disk or a clock misbehaves, and looks
whether all that is promised holds.

    scripts/trials links                        # each fault once
    scripts/trials links --trials 80 --seed 7
    scripts/trials links --faults cut "disk full"

A trial trains a tiny model on 2 to 4 hosts with a random algorithm. In its midst, of a random
host,

    cut             the link goes down: within 10 s (sync.heartbeat_s is 4) all others have ended
                    with status 3, and its rank is named
    cut, clock back the same, while each rank's clock goes back by an hour at that moment
    stalled         the link loses all for 2 s
    lossy           it loses 5 % of its packets, each way, for 4 s
    slow            it has 1 Mbit/s for 4 s
    reordered       its packets wait up to 3 ms, each another time, for 4 s
    clock jumps     a rank's clock goes an hour ahead, and two back
    disk full       the output's disk is full: all end with 5, one line names the file, and --resume
                    latest goes on with the bits of the whole run

The others go on, and end with the losses and the model of a run on one host that nobody
disturbed. The clocks need Debian's libfaketime, whose MONOTONIC clock stays true, as the kernel's
does.
"""

import glob
import os
import re
import statistics
import subprocess
import sys
import time

import jobs
from jobs import NETLAB, Job, count_of_lines, differs, until
from trial.loop import finish, parser_of, print_table, reference, run_all, write_config


TRAIN = jobs.built("starling-train")
STEPS, LOGGED = 3000, 10
HEARTBEAT = 4.0
MARGIN = 6.0  # from the heartbeat's limit to the end of the last rank
# fault: seconds that it lasts
FAULTS = {"cut": 0, "cut, clock back": 0, "stalled": 2, "lossy": 4, "slow": 4, "reordered": 4, "clock jumps": 0.3, "disk full": 0}
ALGORITHMS = {"gossip": {}, "gossip, int8": {"exchange": "int8"}, "allreduce": {"algorithm": "allreduce"}}
FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), "")


def configure(trial, folder):
    sync = {"bucket_mb": 0.05, "timeout_s": 60, "heartbeat_s": HEARTBEAT, **ALGORITHMS[trial["algorithm"]]}
    write_config(folder, batch_size=8, steps=STEPS, sync=sync, checkpoint={"every_steps": 20, "keep": 2}, evaluate={"every_epochs": 0, "every_steps": 200}, log_every=LOGGED)


def netlab(trial, *words, check=True):
    result = subprocess.run([NETLAB, *map(str, words)], env=lab_environment(trial), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode == 77:
        print(f"trials links: {result.stderr.strip()}", file=sys.stderr)
        sys.exit(77)
    if check and result.returncode != 0:
        raise RuntimeError(f"netlab {' '.join(map(str, words))}: exit status {result.returncode}: {result.stderr.strip()}")


def lab_environment(trial):
    return jobs.environment(OMPI_MCA_mpi_yield_when_idle="1", NETLAB_NAME=trial["lab"], NETLAB_PROCESSES="own")


def start(trial, folder, output, *more):
    """All ranks; that of a clock to play with has it."""
    before = ""
    if "clock" in trial["fault"]:
        set_clock(folder, 0)
        own = "true" if trial["fault"] == "cut, clock back" else f"[ $rank = {trial['clock_rank']} ]"
        before = (f"if {own}; then wrap='env LD_PRELOAD={FAKETIME} FAKETIME_TIMESTAMP_FILE={folder}/clock FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 "
                  "DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1 FAKETIME_DONT_RESET=1'; fi")  # fmt: skip
    configure(trial, folder)
    launcher = [NETLAB, "run", trial["per_host"], "--enable-recovery"]
    return Job(folder, ranks_of(trial), [TRAIN, folder + "/config.json", "--output", output, *more], launcher, before, lab_environment(trial))


def set_clock(folder, hours):
    with open(folder + "/clock.new", "w") as file:
        file.write(f"{hours * 3600:+d}\n")
    os.rename(folder + "/clock.new", folder + "/clock")


def ranks_of(trial):
    return trial["hosts"] * trial["per_host"]


def on_host(trial, host):
    return range(host * trial["per_host"], (host + 1) * trial["per_host"])


def straight(trial, references, work):
    """The run on one host that nobody disturbs; once for each kind."""

    def train(path):
        configure(trial, path)
        return Job(path, ranks_of(trial), [TRAIN, path + "/config.json", "--output", path + "/run"]).wait(300)

    return reference(references, (trial["algorithm"], ranks_of(trial)), work, train)


def fill(folder):
    with open(folder + "/filler", "wb", buffering=0) as file:
        for size in (65536, 512, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


def begin_fault(trial, folder, host):
    """Returns what ends it."""
    fault = trial["fault"]
    if fault in ("cut", "cut, clock back"):
        if "clock" in fault:
            set_clock(folder, -1)
        netlab(trial, "link", host, "down")
        return None
    words = {"stalled": ("link", "stall", "up"), "lossy": ("loss", 5, 0), "slow": ("rate", 1, 1000), "reordered": ("jitter", 3000, 0)}
    if fault in words:
        what, begun, ended = words[fault]
        netlab(trial, what, host, begun)
        return lambda: netlab(trial, what, host, ended)
    if fault == "clock jumps":
        set_clock(folder, 1)
        return lambda: set_clock(folder, -2)
    fill(folder + "/disk")
    return None


def look_at_cut(trial, job, begun, limit):
    others = [rank for host in range(trial["hosts"]) if host != trial["host"] for rank in on_host(trial, host)]
    wrong = []
    if not until(lambda: all(rank in job.statuses() for rank in others), limit, 0.02):
        wrong.append(f"after {limit:g} s there still were ranks {[rank for rank in others if rank not in job.statuses()]}")
    ended = {rank: found for rank, found in job.statuses().items() if rank in others}
    if any(status != 3 for status, _ in ended.values()):
        wrong.append(f"exit statuses of the others: { {rank: status for rank, (status, _) in ended.items()} }")
    lost = f"rank {on_host(trial, trial['host'])[0]} on host host{trial['host']} has given no sign of life"
    # Who watches that host says it, and tells the others that it has.
    if lost not in job.said(*others):
        wrong.append(f"nobody says '{lost}': {job.said(*others).strip()}")
    # The cut host's own ranks hear nothing of the others, and end too.
    if not until(lambda: len(job.statuses()) == job.ranks, limit, 0.02):
        wrong.append(f"of the cut host these have not ended: {[rank for rank in on_host(trial, trial['host']) if rank not in job.statuses()]}")
    return wrong, max((at for _, at in ended.values()), default=begun) - begun


def look_at_disk(trial, job, folder, output, expected, limit):
    wrong = []
    if not until(lambda: len(job.statuses()) == job.ranks, limit, 0.02):
        return [f"after {limit:g} s only {job.statuses()} had ended"]
    ended = {rank: status for rank, (status, _) in job.statuses().items()}
    if any(status != 5 for status in ended.values()):
        wrong.append(f"exit statuses: {ended}")
    if not re.search(re.escape(output) + r"/\S+: .*No space left on device", job.said()):
        wrong.append(f"no line names the file: {job.said().strip()}")
    os.unlink(folder + "/disk/filler")
    if not any(glob.glob(output + "/checkpoints/step-*/DONE")):
        wrong.append("no checkpoint is there")
    resumed = start(trial, folder, output, "--resume", "latest")
    status = resumed.wait(120)
    if status != 0 or "damaged" in resumed.said():
        wrong.append(f"the resumed run ends with {'none after 120 s' if status is None else status}: {resumed.said().strip()}")
    return wrong or differs(output, expected)


def run_trial(trial, folder, limit, references, figures):
    expected = straight(trial, references, os.path.dirname(folder))
    os.makedirs(folder + "/disk")
    output = folder + "/disk/run"
    if trial["fault"] == "disk full":  # hosts of the lab see what is mounted here before they start
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "starling-link-faults", folder + "/disk"], check=True)
    netlab(trial, "up", trial["hosts"], 1000, 50)
    job = None
    try:
        job = start(trial, folder, output)
        if not until(lambda: count_of_lines(output) >= trial["lines"] or job.over(), 120, 0.01):
            return [f"{count_of_lines(output)} lines of metrics after 120 s"]
        if job.over():
            return [f"it was over before the fault: {job.words().strip()[-500:]}"]
        begun, before = time.time(), count_of_lines(output)
        end_fault = begin_fault(trial, folder, trial["host"])
        if trial["fault"].startswith("cut"):
            wrong, seconds = look_at_cut(trial, job, begun, HEARTBEAT + MARGIN)
            figures.setdefault(trial["fault"], []).append(seconds)
            return wrong
        if trial["fault"] == "disk full":
            return look_at_disk(trial, job, folder, output, expected, limit)
        time.sleep(FAULTS[trial["fault"]])
        if job.over() and job.process.returncode == 0:
            return ["it was over before the fault was; raise STEPS"]
        figures.setdefault(trial["fault"], []).append((count_of_lines(output) - before) * LOGGED / FAULTS[trial["fault"]])
        end_fault()
        if not until(job.over, limit, 0.02):
            return [f"it had not ended {limit:g} s after the fault, at line {count_of_lines(output)}"]
        if job.process.returncode != 0:
            return [f"it ends with {job.process.returncode}: {job.said().strip()}"]
        return differs(output, expected)
    finally:
        netlab(trial, "down", check=False)
        if job:
            job.process.wait()
        if trial["fault"] == "disk full":
            subprocess.run(["umount", folder + "/disk"], check=False)


def draw(rng, number, faults):
    hosts = rng.choice([2, 3, 4])
    per_host = rng.choice([1, 2]) if hosts == 2 else 1
    return {
        "fault": faults[number % len(faults)],
        "lab": f"lf{os.getpid()}n{number}",
        "hosts": hosts,
        "per_host": per_host,
        "algorithm": rng.choice(list(ALGORITHMS)),
        "host": rng.randrange(hosts),
        "clock_rank": rng.randrange(hosts * per_host),
        "lines": rng.randrange(5, 60),  # of metrics, before the fault
    }


def main():
    parser = parser_of(__doc__, 120.0, "seconds that a run may go on after its fault, where it goes on", trials=len(FAULTS))
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), metavar="NAME", help="; ".join(FAULTS))
    options = parser.parse_args()
    jobs.need("starling-train")
    faults = options.faults or list(FAULTS)
    if not FAKETIME:
        if any("clock" in fault for fault in options.faults or []):
            parser.error("clocks need libfaketime (Debian's package libfaketime)")
        print("trials links: without libfaketime (Debian's package) no clock jumps", file=sys.stderr)
        faults = [fault for fault in faults if "clock" not in fault]
    references, figures = {}, {}
    counts, failures = run_all(
        options,
        lambda rng, number: draw(rng, number, faults),
        lambda trial, folder: run_trial(trial, folder, options.limit, references, figures),
        lambda trial: (trial["fault"], f"{trial['hosts']} hosts"),
        hidden=("lab",),
    )
    print_table(("fault", "on"), counts)
    for fault, found in figures.items():
        middle = statistics.median(found)
        if fault.startswith("cut"):
            print(f"{fault}: from the cut to the end of the last other rank: median {middle:.2f} s, longest {max(found):.2f} s, of {len(found)}")
        else:
            print(f"{fault}: {middle:.0f} steps a second in the fault (median of {len(found)}, {min(found):.0f} to {max(found):.0f})")
    finish(counts, failures)

