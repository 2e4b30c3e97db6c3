"""Several ranks on one GPU: what they learn, what one of them that overflows or dies does to the
others, and their timeline.

  agree     over nccl and staged every topology that allows the count ends where it does on the CPU,
            rank by rank; over direct, where ranks read each other's GPU memory, with the bits of
            staged, issued and as graphs, which steps must be wherever all exchanges are by peers
  overflow  fp16: a rank whose gradients overflow takes the mix alone and halves its own loss scale
  lost      a rank is killed, another one stopped: the other ends with exit status 3 within
            timeout_s and names the exchange
  refused   a rank that can share no memory: all ranks say so in one line, and learn the same
            through host memory
  trace     the timeline has every bucket of every step in the device's lanes

Ranks that share a GPU take turns on it, some milliseconds each, and a kernel that waits for
another rank uses up its turn: so few jobs at a time, and a rank is lost only where nothing else
runs. Exit status: 0 all as it must be, 1 something was not, 2 wrong usage, 77 not possible with
this build."""

import array
import re
import resource
import signal
import subprocess
import time

import jobs
import runs
from jobs import Failed
from runs import STEPS, Run, config, largest_difference, over

LONG = 10_000_000  # steps of a run that somebody ends
# Topologies that have settings here, by number of ranks; None: it is left out. All others of --list
# topologies take any of 1, 2, 4.
PAIRS = [[{"ranks": [0, 1]}, {"ranks": [2, 3]}], [{"ranks": [0, 3]}, {"ranks": [1, 2]}]]
SETTINGS = {
    "alternating-exp-ring": {2: {"ranks_per_node": 1}, 4: {"ranks_per_node": 2}},
    "custom": {1: None, 2: None, 4: {"rounds": PAIRS}},
    "hierarchical": {2: {"ranks_per_node": 1, "inter": {"type": "complete"}}, 4: {"ranks_per_node": 2, "inter": {"type": "complete"}}},
}
# Over direct, steps that are no graphs: sums of three or more and rounds over nodes go through host
# memory, and some rounds never repeat.
ISSUED = {2: ["random-matching"], 4: ["alternating-exp-ring", "complete", "hierarchical", "random-matching"]}


def close(run, expected, settings):
    """To the CPU's parameters."""
    difference = max(largest_difference(a, b) for a, b in zip(run.parameters(), expected))
    apart = max(largest_difference(expected[0], other) for other in expected)
    size = max(map(abs, expected[0]))
    bf16 = settings["sync"].get("exchange") == "bf16"
    limit = min([1e-4 * size, 0.02 * apart] if not bf16 and apart > 0 else [2e-2 * size if bf16 else 1e-4 * size])
    remark = f"largest difference {difference:.2g}, allowed {limit:.2g}; ranks are {apart:.2g} apart"
    if apart == 0 and run.ranks > 1 and settings["sync"].get("algorithm") != "allreduce":
        raise Failed(remark + ": the run shows nothing of the exchange")
    if not difference <= limit:
        raise Failed(remark)
    return remark


def same_bits(run, expected, settings):
    """As over staged."""
    if run.issued() and settings["cuda_graphs"] is True:
        raise Failed(run.issued())
    computed = run.parameters()
    wrong = [rank for rank in range(run.ranks) if computed[rank].tobytes() != expected[rank].tobytes()]
    if wrong:
        largest = max(largest_difference(computed[rank], expected[rank]) for rank in wrong)
        raise Failed(f"rank {wrong[0]} ends with other bits than over staged, by up to {largest:.2g}")
    return "the bits of staged on every rank" + ("; " + re.sub(r".*steps run", "steps run", run.issued())[:160] if run.issued() else "")


def agree(options, name, settings):
    """One config, on the GPU and by what it is compared with."""
    ranks, direct = options.ranks, options.transports == ["direct"]
    what = f"{ranks} rank{'s' * (ranks > 1)}, {name}"
    device, given, by = ("cuda", over(settings, "staged"), "staged") if direct else ("cpu", settings, "on the CPU")
    if direct:
        graphs = "auto" if name in ISSUED[ranks] else True
        others = [(", direct, step by step", over(settings, "direct", cuda_graphs=False)), (", direct, graphs", over(settings, "direct", cuda_graphs=graphs))]
    else:
        others = [(f", {transport}", over(settings, transport)) for transport in options.transports] if ranks > 1 else [("", settings)]
    try:
        expected = Run(options, ranks, device, given).go().parameters()
    except (Failed, OSError) as error:
        runs.note(f"{what}, {by}", False, str(error))
        return False
    check = lambda other: (same_bits if direct else close)(Run(options, ranks, "cuda", other).go(), expected, other)
    return all([runs.row(what + title, check, other) for title, other in others])


def agree_jobs(options):
    found = [(name, SETTINGS.get(name, {}).get(options.ranks, {})) for name in options.topologies]
    cases = [(name, config(sync={"topology": {"type": name, **more}})) for name, more in found if more is not None]
    if options.transports != ["direct"]:
        cases.append(("allreduce", config(sync={"algorithm": "allreduce", "topology": None})))
        if options.ranks == 2 or options.ranks > 2 and options.all:
            cases.append(("base-2, bf16 on the wire", config(sync={"topology": {"type": "base-2"}, "exchange": "bf16"})))
    return [lambda case=case: agree(options, *case) for case in cases]


def overflow(options, transport):
    """semantics: a rank that overflows sets x(t+1) = c and halves its scale; the other one learns
    on."""
    settings = config(precision="fp16", steps=4, checkpoint={"every_steps": 1}, sync={"transport": transport})
    first = Run(options, 2, "cuda", settings).go()
    again = Run(options, 2, "cuda", {**settings, "steps": 5}, ("--resume", str(first.out)), folder=first.folder)
    runs.change_metadata(first.checkpoint(1, 4), loss_scale="0x1p+60")
    state = lambda run, step: [(runs.read_safetensors(run.checkpoint(rank, step))[0], numbers) for rank, numbers in enumerate(run.parameters(step))]
    before = state(first, 4)
    again.go()
    after = state(again, 5)
    mixed = array.array("f", (0.5 * a + 0.5 * b for a, b in zip(before[0][1], before[1][1])))
    off = largest_difference(after[1][1], mixed)
    if off > 1e-6:
        raise Failed(f"rank 1 overflowed, but is {off:.2g} off the mix")
    moved = largest_difference(after[0][1], mixed)
    if not 1e-6 < moved < 10:
        raise Failed(f"rank 0 did not overflow, but moved by {moved:.2g}")
    scales = [[float.fromhex(state[0]["loss_scale"]) for state in (before[rank], after[rank])] for rank in range(2)]
    counts = [[int(state[0]["optimizer_step"]) for state in (before[rank], after[rank])] for rank in range(2)]
    if scales[1] != [2.0**60, 2.0**59] or scales[0][0] != scales[0][1]:
        raise Failed(f"loss scales before and after: {scales}")
    if counts[1][0] != counts[1][1] or counts[0][0] + 1 != counts[0][1]:
        raise Failed(f"the optimizer's steps before and after: {counts}")
    return f"rank 1 takes the mix ({off:.1g} off) and halves its scale, rank 0 learns on"


def exchange_named(words):
    """The last line by which a transport says in which step, bucket and round an exchange failed,
    or for which rank one waited in vain in which step, or which rank has ended, and in which step
    this one was; empty where none does."""
    failed = r"\[(transport|nccl)\] .*\bstep \d+\b.*(, buckets? \d+( to \d+)?, round \d+|; missing: rank \d+)"
    ended = r"\[transport\] rank \d+ on host \S+ has ended: .*\bstep \d+"
    lines = [line.strip() for line in words.splitlines() if re.search(f"{failed}|{ended}", line)]
    return (lines or [""])[-1]


def lost(options, transport, how):
    # Past the captures, on which ranks agree, and with lines so rare that hardly anybody waits for
    # the sums in them: what fails is an exchange.
    settings = config(steps=LONG, checkpoint={"every_steps": 0}, log_every=8, sync={"transport": transport, "timeout_s": options.timeout})
    run = Run(options, 2, "cuda", settings, launcher_options=["--enable-recovery"] if how == signal.SIGKILL else []).start()
    job, lines = run.job, lambda: len(jobs.metrics(run.out))
    jobs.until(lambda: lines() >= 3 or job.over(), options.seconds, 0.05)
    if lines() < 3:
        raise Failed(f"no training before the rank was to be lost (exit status {job.wait(1)}): {run.last_words()}")
    job.signal(1, how)
    begin = time.monotonic()
    jobs.until(lambda: 0 in job.statuses() or job.over(), options.timeout + 10, 0.05)
    took = time.monotonic() - begin
    time.sleep(0.3)
    ended, status = job.statuses().get(0), job.wait(5)
    ended = ended[0] if ended else status  # mpirun was faster than the rank's shell
    if ended != 3:
        raise Failed(f"rank 0 {'ended with %s' % ended if ended is not None else 'had not ended'} {took:.1f} s after rank 1 was lost: {run.last_words()}")
    named = exchange_named(job.words())
    if not named:
        raise Failed(f"no line says in which step the exchange failed, or who has ended: {run.last_words()}")
    return f"exit status 3 after {took:.1f} s with timeout_s {options.timeout:g}: {named[:200]}"


class CrampedRun(Run):
    """Rank 1 may write no file of more than 2 KiB, a file of memory neither, until it has said
    so."""

    BEFORE = '[ "$rank" != 1 ] || ulimit -S -f 2; ' + Run.BEFORE

    def finish(self):
        jobs.until(lambda: "GPU memory" in self.job.words() or self.job.over(), self.options.seconds, 0.01)
        try:
            resource.prlimit(self.job.pids()[1], resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (KeyError, ProcessLookupError):
            pass
        return super().finish()


def refused(options, transport):
    settings = config(steps=200, checkpoint={"every_steps": 0})  # its end, with files, is far off
    staged = Run(options, 2, "cuda", over(settings, "staged")).go()
    cramped = CrampedRun(options, 2, "cuda", over(settings, transport)).go()
    said = [line for line in cramped.job.words().splitlines() if "GPU memory" in line and "because" in line]
    if len(said) != 1 or "rank 1: " not in said[0]:
        raise Failed(f"{len(said)} lines say why there is no peer memory: {cramped.last_words()}")
    if runs.read_safetensors(staged.out / "model.safetensors")[1] != runs.read_safetensors(cramped.out / "model.safetensors")[1]:
        raise Failed("the model is not the one of staged")
    return said[0].strip()[-200:]


def trace(options, transport):
    # a graph is one span
    run = Run(options, 2, "cuda", config(cuda_graphs=False, sync={"transport": transport}))
    timeline = run.folder / "trace.json"
    run.command += ["--trace", str(timeline)]
    run.go()
    counts = []
    for rank in range(2):
        named = {}
        for lane, name, begin, end in runs.spans(timeline, rank):
            named.setdefault((lane, name), []).append(end - begin)
        buckets = {name for lane, name in named if lane == "update"}
        if len(buckets) < 2:
            raise Failed(f"rank {rank}: {len(buckets)} buckets on the host's lane of updates")
        wanted = {("compute (device)", "forward"): STEPS, ("compute (device)", "backward"): STEPS}
        for name in buckets:
            wanted["update (device)", name] = STEPS
            wanted["compute (device)", name.replace("update", "backward")] = STEPS
            for verb in ("exchange",) if transport == "nccl" else ("send", "receive"):
                wanted["exchange (device)", name.replace("update", verb)] = STEPS - 1
        for key, least in wanted.items():
            found = named.get(key, [])
            if len(found) < least or min(found) < 0:
                raise Failed(f"rank {rank}: '{key[1]}' stands {len(found)} times in the lane '{key[0]}', at least {least} are due")
        counts.append(sum(len(found) for (lane, _), found in named.items() if "(device)" in lane))
    return f"{' and '.join(map(str, counts))} spans in the device's lanes"


def main():
    parser = runs.parser_of(__doc__)
    checks = {"overflow": overflow, "lost": lost, "refused": refused, "trace": trace}
    parser.add_argument("what", choices=["agree", *checks])
    parser.add_argument("--ranks", type=int, choices=[1, 2, 4], default=2, help="of agree")
    parser.add_argument("--topologies", default="all", help="of agree")
    parser.add_argument("--transports", help="nccl, staged, or direct alone; default: nccl,staged, of refused auto")
    parser.add_argument("--timeout", type=float, default=15, help="sync.timeout_s of lost")
    options = parser.parse_args()
    options.transports = (options.transports or {"refused": "auto"}.get(options.what, "nccl,staged")).split(",")
    if options.transports not in (["direct"], ["auto"]) and (unknown := sorted(set(options.transports) - {"nccl", "staged"})):
        parser.error(f"--transports: unknown {unknown[0]}; known: nccl and staged, or direct alone")
    runs.begin(parser, options)
    listed = subprocess.run([options.train, "--list", "topologies"], capture_output=True, text=True, check=False).stdout.split()
    options.all = options.topologies == "all"
    options.topologies = sorted(listed) if options.all else options.topologies.split(",")
    for name in sorted(set(options.topologies) - set(listed)):
        parser.error(f"--topologies: unknown {name}; known: all, {', '.join(listed)}")
    alone = options.what == "agree" and options.ranks == 1
    if "nccl" in options.transports and not alone and not runs.has_nccl(options, options.what + f", {options.ranks} ranks," * (options.what == "agree")):
        options.transports.remove("nccl")
    if not options.transports:
        return runs.finish(options, []) or 77
    if options.what == "agree":
        return runs.finish(options, agree_jobs(options))
    check, hows = checks[options.what], [(signal.SIGKILL,), (signal.SIGSTOP,)] if options.what == "lost" else [()]
    cases = [(", ".join([options.what, transport, *(sign.name for sign in how)]), check, options, transport, *how) for transport in options.transports for how in hows]
    return runs.finish(options, [lambda case=case: runs.row(*case) for case in cases])
