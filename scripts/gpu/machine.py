"""What the machine is, for the head of the report, each question with a limit of its own; and
what stands in for a machine with a GPU: the plug-in is the shim's (tests/fakes/cuda), which runs
the kernels on the CPU, and the fakes of cuDNN and of a shared device are as slow as the real ones
are."""

import glob
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

SMI_SECONDS = 45  # the first call of a driver that nobody keeps loaded may take as long
QUERY = "name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_mode"


def answer(command, seconds=15, environment=None):
    """The command's output; empty where it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpus():
    """One line of nvidia-smi for each visible GPU."""
    for query, form in ((QUERY, r"\S.*, \d+\.\d+,"), ("name,compute_cap,driver_version,memory.total", r"[^,]+(,[^,]+){3}$")):  # an old one may not know all of it
        lines = [line.strip() for line in answer(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], SMI_SECONDS).splitlines() if re.match(form, line)]
        if lines or not shutil.which("nvidia-smi"):
            break
    lines = lines or ["a GPU that nvidia-smi does not tell,"] * len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return lines if visible is None else lines[: len([word for word in visible.split(",") if word.strip()])]


def memory_gib():
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return round(int(file.readline().split()[1]) / 2**20)
    except (OSError, ValueError, IndexError):
        return 0


def cores():
    return len(os.sched_getaffinity(0))


def commit(root, train):
    found = answer(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]) if (root / ".git").exists() else ""
    return found or os.environ.get("STARLING_COMMIT", "") or (answer([str(train), "--version"]).splitlines() or ["unknown"])[0]


def facts(root, train, devices, rehearsed):
    """Name and value of each fact, in the report's order."""
    smi = re.search(r"CUDA Version: *([0-9.]+)", answer(["nvidia-smi"], SMI_SECONDS)) if devices else None
    nvcc = re.search(r"release ([0-9.]+)", answer(["nvcc", "--version"]))
    sanitizer = re.search(r"[Vv]ersion ([0-9.]+)", answer(["compute-sanitizer", "--version"]))
    nccl = re.search(r"NCCL [0-9.]+", answer([str(train.with_name("starling-doctor")), "check", "--json"]))
    return {
        "device": "a fake: this is a rehearsal, nothing is proven" if rehearsed else "; ".join(devices) or "no GPU",
        "driver supports CUDA": smi.group(1) if smi else "–",
        "CUDA compiler": nvcc.group(1) if nvcc else "none",
        "compute-sanitizer": (sanitizer.group(1) if sanitizer else "yes") if shutil.which("compute-sanitizer") else "none",
        "host": f"{platform.system()} {platform.release()} {platform.machine()}, {cores()} cores, {memory_gib()} GiB",
        "Python": platform.python_version(),
        "commit": commit(root, train),
        "Starling": "; ".join(answer([str(train), "--version"]).splitlines() + ([nccl.group()] if nccl else [])) or "not built",
    }


# Printed by a process of its own, since importing PyTorch may take long.
PYTORCH = """
import torch
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "-"
print("FACT PyTorch:", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(), "NCCL", nccl)
"""

SLOW = {
    "STARLING_SHIM_CUDNN": "1",
    "STARLING_SHIM_SLICE_MS": "5",  # contexts that share the GPU
}


class Rehearsal:
    def __init__(self, root, folder):
        self.source = pathlib.Path(os.environ.get("STARLING_REHEARSAL_BUILD") or root / "build").resolve()
        self.build = folder
        self.device_test = [folder / "bin" / "test_cuda", "--source-file-exclude=*shim_*_test.cpp"]

    def begin(self):
        shim = self.source / "lib" / "libstarling_cuda_shim.so"
        programs = [self.source / "bin" / name for name in ("starling-train", "starling-bench", "starling-topo", "test_cuda")]
        missing = [str(path) for path in (shim, *programs) if not path.exists()]
        if missing:
            print(f"error: --rehearse: {missing[0]} is missing; build it with STARLING_TESTS=ON, in build or where STARLING_BUILD says", file=sys.stderr)
            sys.exit(2)
        (self.build / "bin").mkdir(parents=True)
        (self.build / "lib").mkdir()
        for program in programs:
            shutil.copy2(program, self.build / "bin")
        for library in (self.source / "lib").glob("*.so*"):
            if not library.name.startswith("libstarling_cuda.so"):
                os.symlink(library, self.build / "lib" / library.name)
        os.symlink(shim, self.build / "lib" / "libstarling_cuda.so")
        for name, value in SLOW.items():
            os.environ.setdefault(name, value)
