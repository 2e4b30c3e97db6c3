"""What the scripts of the GPU check share about processes: none of them outlives the one that started it, however that one ends."""

import ctypes
import os
import signal
import subprocess

PR_SET_PDEATHSIG = 1
try:
    LIBC = ctypes.CDLL(None, use_errno=True)
except OSError:  # no libc to ask: processes may outlive a killed script then
    LIBC = None


def die_with_parent():
    """In a child, before its program starts: it gets SIGTERM when its parent ends, killed or not."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(command, **options):
    """A process in a group of its own, so that end() reaches what it starts."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent, **options)


def signal_group(process, number):
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def end(process, patience=5.0):
    """SIGTERM to the group, and SIGKILL to what is left of it."""
    signal_group(process, signal.SIGTERM)
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        pass
    signal_group(process, signal.SIGKILL)
    process.wait()
