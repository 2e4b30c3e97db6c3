"""Kills a random rank at a random moment of a random run, many times, and looks whether all that
is promised holds.

    scripts/trials kill --trials 20
    scripts/trials kill --trials 1000 --seed 7 --keep-failures runs/kill

A trial trains a tiny model with a random algorithm, transport, number of ranks and launcher (one
that ends the job when a rank dies, or one that does not, as srun), and kills one rank with
SIGKILL: while it starts, between two steps, while a checkpoint is being written, or near the end.
Then:

  1. all ranks have ended within --limit seconds of the kill, and those that saw it end with
     status 3;
  2. one of them names the victim, unless the launcher ended them first or training had not begun;
  3. `--resume latest` goes on to the end, with the bits of a run that nobody killed;
  4. no process, socket, file in /dev/shm or half-written checkpoint is left.
"""

import glob
import os
import re
import signal
import statistics
import subprocess
import time

import jobs
from jobs import Job, alive, count_of_lines, differs, read, until
from trial.loop import finish, parser_of, print_table, reference, run_all, write_config

TRAIN, DOCTOR = map(jobs.built, ("starling-train", "starling-doctor"))

STEPS = 240
MARK = "STARLING_KILL_TRIAL"

# Sections that each algorithm needs beside its name. A topology with three ranks and more is taken
# by all of them.
ALGORITHMS = {
    "gossip": {},
    "gossip, ring": {"topology": {"type": "static-ring"}},
    "gossip, int8": {"exchange": "int8"},
    "gossip, atc": {"algorithm": {"type": "gossip", "order": "atc"}},
    "gossip, interval": {"algorithm": {"type": "gossip", "interval": 3}},
    "allreduce": {"algorithm": "allreduce"},
    "qgm": {"algorithm": "qgm"},
    "gradient_tracking": {"algorithm": "gradient_tracking", "topology": {"type": "static-ring"}},
    "push_sum": {"algorithm": "push_sum", "topology": {"type": "directed-exp"}},
    "local_sgd": {"algorithm": {"type": "local_sgd", "period": 4}},
    "slowmo": {"algorithm": {"type": "slowmo", "period": 4}},
    "diloco": {"algorithm": {"type": "diloco", "period": 8}},
    "bytegrad": {"algorithm": "bytegrad"},
    "choco": {"algorithm": "choco", "topology": {"type": "static-ring"}},
}
PHASES = ["start", "step", "checkpoint", "late"]

def start(trial, folder, resume=False):
    os.makedirs(folder, exist_ok=True)
    sync = {"bucket_mb": 0.05, "timeout_s": 60, "heartbeat_s": 2, "transport": trial["transport"], **ALGORITHMS[trial["algorithm"]]}
    rule = {"optimizer": {"type": "sgd", "lr": 0.01}} if trial["algorithm"] in ("qgm", "gradient_tracking") else {}
    write_config(folder, batch_size=32, steps=STEPS, sync=sync, checkpoint={"every_steps": 12, "keep": 3}, evaluate={"every_epochs": 0, "every_steps": 40}, log_every=4, **rule)
    launcher = [*jobs.MPIRUN[:-1], *(["--enable-recovery"] if trial["launcher"] == "keeps" and not resume else []), "-n", trial["ranks"]]
    env = jobs.environment(OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_orte_tmpdir_base=folder + "/mpi")
    env[MARK] = trial["mark"]
    if trial["start_limit"] > 0:
        env["STARLING_START_TIMEOUT_S"] = str(trial["start_limit"])
    command = [TRAIN, folder + "/config.json", "--output", folder + "/run", *(["--resume", "latest"] if resume else [])]
    return Job(folder, trial["ranks"], command, launcher=launcher, env=env)


def marked(mark):
    """Living processes that a trial has started, found by what stands in their environment."""
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(folder + "/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0") and alive(int(folder[6:])):
                    found.append((int(folder[6:]), read(folder + "/comm").strip()))
        except OSError:
            pass
    return found


def being_written(folder):
    """A checkpoint's folder that has no DONE yet."""
    return any(not os.path.exists(f + "/DONE") for f in glob.glob(f"{folder}/run/checkpoints/step-*"))


def wait_for_phase(trial, folder, job):
    if trial["phase"] == "start":
        until(lambda: trial["victim"] in job.pids() or job.over(), 30)
        time.sleep(trial["delay"] * 0.5)
        return
    until(lambda: len(job.pids()) == trial["ranks"] or job.over(), 30)
    needed = {"step": 2, "checkpoint": 3, "late": int(0.8 * STEPS / 4)}[trial["phase"]]
    until(lambda: count_of_lines(folder + "/run") >= needed or job.over(), 60)
    if trial["phase"] == "checkpoint":
        until(lambda: being_written(folder) or job.over(), 5, pause=0)
        time.sleep(trial["delay"] * 0.003)
    else:
        time.sleep(trial["delay"] * 0.1)


def abandoned_files():
    """Files in /dev/shm that no process has mapped: what other jobs of this machine use does not
    count."""
    try:
        names = {name for name in os.listdir("/dev/shm") if os.path.isfile("/dev/shm/" + name)}
    except OSError:
        return set()
    for process in glob.glob("/proc/[0-9]*/maps"):
        names -= set(re.findall(r"/dev/shm/(\S+)", read(process)))
    return names


def uncleaned(before):
    """What stays in /dev/shm though starling-doctor cleans up: Open MPI leaves its segments where
    ranks or launchers were killed."""
    shared = set()

    def clean():
        # It lets files of the last two seconds be, since a job that starts makes its files before
        # it maps them. A short trial's are as young.
        subprocess.run([DOCTOR, "clean"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shared.clear()
        shared.update(abandoned_files() - before)
        return not shared

    until(clean, 5, 0.5)
    return shared


def end_all(trial, job):
    for pid, _ in marked(trial["mark"]):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    job.kill()


def straight(trial, references, folder):
    """The run that nobody kills; once for each kind."""
    quiet = dict(trial, start_limit=0, launcher="ends", mark=trial["mark"] + "-straight")
    key = (trial["algorithm"], trial["transport"], trial["ranks"])
    return reference(references, key, folder, lambda path: start(quiet, path).wait(300))


def run_trial(trial, folder, limit, references):
    """(what does not hold; seconds from the kill to the last rank's end, or None where nobody was
    there to be killed; whether a launcher that ends jobs had to be ended itself, with all ranks
    gone)."""
    wrong = []
    expected = straight(trial, references, os.path.dirname(folder))
    before = abandoned_files()
    job = start(trial, folder)
    wait_for_phase(trial, folder, job)
    begun = count_of_lines(folder + "/run") > 0
    victim = job.pids().get(trial["victim"])
    killed = victim is not None and alive(victim) and trial["victim"] not in job.statuses()
    if killed:
        os.kill(victim, signal.SIGKILL)
    at = time.monotonic()
    # Ranks that come up after the kill count too; none comes any more where all have been there.
    none_comes = lambda: begun or job.over() or len(job.pids()) == trial["ranks"]
    gone = until(lambda: not any(alive(pid) for pid in job.pids().values()) and none_comes(), limit, 0.005)
    seconds = time.monotonic() - at
    # the statuses are written a moment after the ranks have ended
    if trial["launcher"] == "keeps":
        until(lambda: len(job.statuses()) == len(job.pids()), 2)
    still = [rank for rank, pid in job.pids().items() if alive(pid)]
    if killed and not gone and still:
        wrong.append(f"ranks {still} were still there after {limit:g} s")
    # A launcher that does not end the job may wait for good; and Open MPI's may miss the end of a
    # rank that was killed while it started.
    stayed = not until(job.over, 1 if trial["launcher"] == "keeps" else 10)
    if stayed:
        jobs.end(job.process, 10)
    statuses = {rank: status for rank, (status, _) in job.statuses().items()}
    if killed and begun:
        if trial["launcher"] == "keeps":
            others = {rank: statuses.get(rank) for rank in range(trial["ranks"]) if rank != trial["victim"]}
            # A rank that was through before the kill ends with 0.
            if any(status != 3 and not (status == 0 and trial["phase"] == "late") for status in others.values()):
                wrong.append(f"exit statuses of the others: {others}")
            if 3 in others.values() and not re.search(rf"rank {trial['victim']} on host \S+ has ended", job.words()):
                wrong.append("nobody names the victim")
        # A rank that is killed when all has been done is missed by nobody.
        elif job.process.returncode == 0 and not os.path.exists(folder + "/run/summary.json"):
            wrong.append(f"the launcher ends with {job.process.returncode}")
    left = marked(trial["mark"])
    if left and not until(lambda: not marked(trial["mark"]), 3, 0.05):
        wrong.append(f"processes are left: {left}")
    end_all(trial, job)
    if shared := uncleaned(before):
        wrong.append(f"left in /dev/shm: {sorted(shared)}")

    again = dict(trial, start_limit=0, mark=trial["mark"] + "-resumed")
    resumed = start(again, folder, resume=True)
    status = resumed.wait(120)
    if status != 0:
        wrong.append(f"the resumed run ends with {'none after 120 s' if status is None else status}: {resumed.words().strip().splitlines()[:1]}")
    else:
        wrong += [f"resumed, {one}" for one in differs(folder + "/run", expected)]
        if being_written(folder) or glob.glob(folder + "/run/**/*.new", recursive=True) or glob.glob(folder + "/run/**/*.tmp", recursive=True):
            wrong.append("half-written files are left")
    if marked(again["mark"]):
        wrong.append(f"processes of the resumed run are left: {marked(again['mark'])}")
        end_all(again, resumed)
    return wrong, seconds if killed and gone else None, stayed and trial["launcher"] == "ends"


def draw(rng, number, algorithms, phases, limit):
    ranks = rng.choice([2, 3, 4])
    return {
        "mark": f"{os.getpid()}-{number}",
        "start_limit": limit / 2,  # what a rank that never comes takes of --limit
        "algorithm": rng.choice(algorithms),
        "transport": rng.choice(["direct", "mpi"]),
        "ranks": ranks,
        "victim": rng.randrange(ranks),
        "launcher": rng.choice(["ends", "keeps"]),
        "phase": rng.choice(phases),
        "delay": rng.random(),
    }


def main():
    parser = parser_of(__doc__, 10.0, "seconds from the kill to the end of the last rank; half of it is the limit for a rank that never comes")
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS), metavar="NAME")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES, metavar="NAME", help=", ".join(PHASES))
    options = parser.parse_args()
    jobs.need("starling-train", "starling-doctor")
    references, times, missed, launchers = {}, [], 0, 0

    def attempt(trial, folder):
        nonlocal missed, launchers
        wrong, seconds, stayed = run_trial(trial, folder, options.limit, references)
        launchers += stayed
        if seconds is not None:
            times.append(seconds)
        elif not wrong:
            missed += 1
        return wrong

    counts, failures = run_all(
        options,
        lambda rng, number: draw(rng, number, options.algorithms, options.phases, options.limit),
        attempt,
        lambda trial: (trial["phase"], trial["launcher"]),
        hidden=("mark", "delay", "start_limit"),
    )
    print_table(("phase", "launcher"), counts)
    if times:
        print(f"from the kill to the end of the last rank: median {statistics.median(times):.2f} s, longest {max(times):.2f} s, of {len(times)}")
    if launchers:
        print(f"mpirun was still there 10 s after the last rank of {launchers} trial{'s' * (launchers > 1)}, and had to be ended")
    finish(counts, failures, f"; in {missed} the run was over before the kill")

