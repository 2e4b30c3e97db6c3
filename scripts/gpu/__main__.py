"""python3 -B scripts/gpu TOPIC …: proves and measures the CUDA backend. Each topic has --help.

  check    all stages of scripts/gpu_check.sh, with a report
  lease    the commands for a machine that is lent for 15 minutes (scripts/gpu_lease.sh)
  bench    updates and steps, with PyTorch beside them
  pytorch  one measurement of PyTorch's
  train    trainings of one rank against the CPU's
  graphs   steps that are CUDA graphs against steps that are issued
  ranks    several ranks on one GPU
"""

import importlib
import pathlib
import re
import sys

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # the folder of scripts stays as it is
    topic = sys.argv[1] if len(sys.argv) > 1 else ""
    if topic not in re.findall(r"^  ([a-z]+) ", __doc__, re.M):
        print(__doc__, file=sys.stdout if topic in ("-h", "--help") else sys.stderr)
        sys.exit(0 if topic in ("-h", "--help") else 2)
    sys.argv[:2] = [f"{pathlib.Path(sys.argv[0]).name} {topic}"]
    sys.exit(importlib.import_module(topic).main())
