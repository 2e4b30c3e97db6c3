"""What the machine is, for the head of the report: asked quickly, each question with a limit of its own."""

import os
import platform
import re
import shutil
import subprocess

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
    lines = answer(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]).splitlines()
    lines = [line.strip() for line in lines if re.match(r"\S.*, \d+\.\d+,", line)]
    if not lines:  # an old nvidia-smi may not know all of it
        lines = [line for line in answer(["nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader"]).splitlines() if line.count(",") == 3]
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
    smi = re.search(r"CUDA Version: *([0-9.]+)", answer(["nvidia-smi"]))
    nvcc = re.search(r"release ([0-9.]+)", answer(["nvcc", "--version"]))
    sanitizer = re.search(r"[Vv]ersion ([0-9.]+)", answer(["compute-sanitizer", "--version"]))
    result = {
        "device": "a fake: this is a rehearsal, nothing is proven" if rehearsed else "; ".join(devices) or "no GPU",
        "driver supports CUDA": smi.group(1) if smi else "–",
        "CUDA compiler": nvcc.group(1) if nvcc else "none",
        "compute-sanitizer": (sanitizer.group(1) if sanitizer else "yes") if shutil.which("compute-sanitizer") else "none",
        "host": f"{platform.system()} {platform.release()} {platform.machine()}, {cores()} cores, {memory_gib()} GiB",
        "Python": platform.python_version(),
        "commit": commit(root, train),
        "Starling": "; ".join(answer([str(train), "--version"]).splitlines()) or "not built",
    }
    return result


# Printed by a process of its own, since importing PyTorch may take long.
PYTORCH = """
import torch
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "-"
print("FACT PyTorch:", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(), "NCCL", nccl)
"""
