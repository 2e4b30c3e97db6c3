#!/usr/bin/env python3
"""Runs a command; on one rank, stops and continues it in short turns, as a neighbour that takes
the core away would.

  slow_rank.py RANK FACTOR COMMAND...     FACTOR 2: the rank RANK runs half of the time, in turns of
                                          40 ms
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

TURN = 0.04


def main():
    rank, factor, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    own = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0"))
    if own != rank or factor <= 1.0:
        os.execvp(command[0], command)
    try:
        # this process only sleeps, but must wake in time; the command does not inherit it
        os.nice(-10)
    except OSError:
        pass

    def prepare():
        # the command does not outlive this process, stopped or not
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.nice(0) < 0:
            os.nice(-os.nice(0))

    child = subprocess.Popen(command, preexec_fn=prepare)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, _: (child.send_signal(number), child.send_signal(signal.SIGCONT)))
    while child.poll() is None:
        child.send_signal(signal.SIGSTOP)
        time.sleep(TURN * (1.0 - 1.0 / factor))
        child.send_signal(signal.SIGCONT)
        time.sleep(TURN / factor)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main())
