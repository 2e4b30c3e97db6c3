#!/usr/bin/env python3
"""Ranks that share a GPU and read each other's parameters there (sync.transport direct) against the way through host memory (staged).

  scripts/gpu_peer.py agree --ranks 4   every topology that allows the count ends with the bits of staged, rank by rank, step by step and as graphs,
                                        which they must be wherever all exchanges are by peers
  scripts/gpu_peer.py lost              a rank is killed, another one stopped: the other ends with exit status 3 within timeout_s
  scripts/gpu_peer.py refused           a rank that can share no memory: all ranks say so in one line, and learn the same through host memory

Common: --train, --out, --topologies, --jobs, --seconds, --timeout and --dry-run as of scripts/gpu_ranks.py. Exit status: 0 all as it must be, 1
something was not, 2 wrong usage.
"""

import argparse
import re
import resource
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True  # the folder of scripts stays as it is
import gpu_ranks
from gpu_ranks import STEPS, Run, Wrong, at_a_time, config, row_of, topology_section


# Topologies whose steps are no graphs here: sums of three or more and rounds over nodes go through host memory, and some rounds never repeat.
ISSUED = {2: ["random-matching"], 4: ["alternating-exp-ring", "complete", "hierarchical", "random-matching"]}


class PeerRun(Run):
    """Without a NCCL_HOSTID: NCCL leaves ranks on one GPU alone, and what peer memory does not carry goes through host memory."""

    RANK = Run.RANK.replace("NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo ", "")


class CrampedRun(PeerRun):
    """Rank 1 may write no file of more than 2 KiB, a file of memory neither, until it has said so."""

    RANK = '[ "$OMPI_COMM_WORLD_RANK" != 1 ] || ulimit -S -f 2; ' + PeerRun.RANK

    def end(self, seconds):
        begin = time.monotonic()
        while "GPU memory" not in self.words() and self.process.poll() is None and time.monotonic() - begin < seconds:
            time.sleep(0.01)
        if pid := self.rank_file("pid", 1):
            try:
                resource.prlimit(int(pid), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except ProcessLookupError:
                pass
        return super().end(seconds)


def over(settings, transport, **more):
    return {**settings, **more, "sync": {**settings["sync"], "transport": transport}}


def agree_job(options, name):
    """Rows (what, verdict, remark) of one topology."""
    ranks, rows = options.ranks, []
    what = f"{ranks} ranks, {name}"
    settings = config(sync={"topology": topology_section(name, ranks)})
    try:
        staged = PeerRun(options, ranks, "cuda", over(settings, "staged")).go()
        expected = [] if options.dry_run else [staged.state(rank, STEPS)[1] for rank in range(ranks)]
    except (Wrong, OSError) as error:
        return [(f"{what}, staged", False, str(error))]
    for mode in ("step by step", "graphs"):
        title = f"{what}, direct, {mode}"
        try:
            graphs = mode == "graphs" and ("auto" if name in ISSUED[ranks] else True)
            run = PeerRun(options, ranks, "cuda", over(settings, "direct", cuda_graphs=graphs)).go()
            if options.dry_run:
                continue
            issued = [line.strip() for line in run.words().splitlines() if "without CUDA graphs" in line]
            if issued and graphs is True:
                raise Wrong(issued[-1][:300])
            computed = [run.state(rank, STEPS)[1] for rank in range(ranks)]
            wrong = [rank for rank in range(ranks) if computed[rank].tobytes() != expected[rank].tobytes()]
            if wrong:
                largest = max(gpu_ranks.largest_difference(computed[rank], expected[rank]) for rank in wrong)
                raise Wrong(f"rank {wrong[0]} ends with other bits than over staged, by up to {largest:.2g}")
            note = "; " + re.sub(r".*steps run", "steps run", issued[-1])[:160] if issued else ""
            rows.append((title, True, "the bits of staged on every rank" + note))
        except (Wrong, OSError) as error:
            rows.append((title, False, str(error)))
    return rows


def agree(options):
    names = [name for name in options.topologies if topology_section(name, options.ranks)]
    return at_a_time(options, names, lambda name: agree_job(options, name))


def refused(options, transport):
    settings = config(steps=200, checkpoint={"every_steps": 0})  # its end, with files, is far off
    staged = PeerRun(options, 2, "cuda", over(settings, "staged")).go()
    cramped = CrampedRun(options, 2, "cuda", over(settings, transport)).go()
    if options.dry_run:
        return "one line, and the model of staged"
    said = [line for line in cramped.words().splitlines() if "GPU memory" in line and "because" in line]
    if len(said) != 1 or "rank 1: " not in said[0]:
        raise Wrong(f"{len(said)} lines say why there is no peer memory: {cramped.last_words()}")
    if gpu_ranks.tensors(staged.out / "model.safetensors") != gpu_ranks.tensors(cramped.out / "model.safetensors"):
        raise Wrong("the model is not the one of staged")
    return said[0].strip()[-200:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agree", "lost", "refused"])
    parser.add_argument("--ranks", type=int, choices=[2, 4], default=2, help="of agree")
    gpu_ranks.common_arguments(parser)
    options = parser.parse_args()
    gpu_ranks.Run = PeerRun
    gpu_ranks.begin(parser, options)
    try:
        if options.what == "agree":
            rows = agree(options)
        elif options.what == "lost":
            cases = [(gpu_ranks.lost, ("direct", how), f", {how.name}") for how in (signal.SIGKILL, signal.SIGSTOP)]
            rows = at_a_time(options, cases, lambda case: [row_of(options, *case)])
        else:
            rows = at_a_time(options, [(refused, ("auto",), "")], lambda case: [row_of(options, *case)])
    finally:
        if not options.dry_run:
            shutil.rmtree(options.work, ignore_errors=True)
    return gpu_ranks.status_of(options, rows)


if __name__ == "__main__":
    sys.exit(main())
