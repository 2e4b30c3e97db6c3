"""What the checks share about processes: none of them outlives the one that started it, however
that one ends."""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
try:
    LIBC = ctypes.CDLL(None, use_errno=True)
except OSError:  # no libc to ask: processes may outlive a killed script then
    LIBC = None
if hasattr(os, "geteuid") and os.geteuid() == 0:
    os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"


def built(program):
    return os.environ.get("STARLING_BUILD", str(ROOT / "build-gpu")) + f"/bin/{program}"


def topic(*words):
    """The command of a topic of this folder."""
    return [sys.executable, "-B", str(ROOT / "scripts" / "gpu"), *map(str, words)]


def outer_libraries():
    """PyTorch runs on the libraries that it was shipped with, not on what gpu_check.sh puts into
    the path."""
    return {"LD_LIBRARY_PATH": os.environ.get("STARLING_OUTER_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))}


def die_with_parent():
    """In a child, before its program starts: it gets SIGTERM when its parent ends, killed or
    not."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(command, **options):
    """A process in a group of its own, so that end() reaches what it starts."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent, **options)


def end(process, patience=5.0):
    """SIGTERM to the group, and SIGKILL to what is left of it. One that the driver holds is left
    behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            pass


def replace(path, data):
    """A whole file in the place of the one before: whoever is killed leaves one of them."""
    new = path.with_name("." + path.name + ".new")
    new.write_bytes(data)
    os.replace(new, path)
