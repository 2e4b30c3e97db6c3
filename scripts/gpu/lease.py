"""scripts/gpu_lease.sh N: prints a command for a machine with an H100 or H200 that can be had for
15 minutes, is bare and reaches nothing.

  1  is it right, and the first figures: programs, device tests, trainings of one rank, the update,
     a step of ResNet-50
  2  on the same machine: PyTorch beside it; then graphs, ranks that read each other's memory, NCCL

The command is run in a folder that has build-gpu/starling-gpu.tar.xz (scripts/pack_gpu.sh). What
it finds it writes into $OUT as it goes, and says on stdout."""

import sys

from processes import ROOT

# seconds: of the machine, of a command at most, until it is there, until the archive is unpacked
ALL, COMMAND, START, UNPACK = 900, 600, 120, 15
LEASES = {  # stages with their seconds; what one leaves is the diagnosis's
    1: (("build", 50), ("test", 110), ("train", 60), ("bench", 65)),
    2: (("bench", 310), ("graphs", 65), ("peers", 30), ("ranks", 40)),
}
TEXT = """R=$PWD; cd "$(mktemp -d)"
tar -xJf "$R/{archive}" || python3 -m tarfile -e "$R/{archive}" || exit 2
starling-gpu/scripts/gpu_check.sh --lease {number} --out "${{OUT:?}}"
"""
ARCHIVE = "build-gpu/starling-gpu.tar.xz"


def seconds(number):
    return UNPACK + sum(limit for _, limit in LEASES[number])


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if sys.argv[1:] not in [[str(number)] for number in LEASES]:
        print(f"error: scripts/gpu_lease.sh takes one of {', '.join(map(str, LEASES))}; see --help", file=sys.stderr)
        return 2
    number, archive = int(sys.argv[1]), ROOT / ARCHIVE
    print(TEXT.format(number=number, archive=ARCHIVE), end="")
    sources = [path for folder in ("kernels/cuda", "comm/nccl", "comm/shared", "scripts/gpu") for path in (ROOT / folder).rglob("*") if path.suffix in (".cu", ".cpp", ".h", ".py")]
    if not archive.exists():
        print(f"hint: {ARCHIVE} is missing; scripts/pack_gpu.sh makes it", file=sys.stderr)
    elif newer := [str(path.relative_to(ROOT)) for path in sources if path.stat().st_mtime > archive.stat().st_mtime]:
        print(f"hint: {ARCHIVE} is older than {newer[0]}{f' and {len(newer) - 1} others' * (len(newer) > 1)}; scripts/pack_gpu.sh makes it anew", file=sys.stderr)
    print(f"It takes {seconds(number)} s at most.", file=sys.stderr)
    return 0
