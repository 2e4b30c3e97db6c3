"""python3 -B scripts/gpu TOPIC …: proves and measures the CUDA backend. Each topic has --help.

  check    all parts of scripts/gpu_check.sh, in the order of their worth
  bench    measurements alone, with PyTorch's beside them
  measure  one measurement, as a line of JSON
  train    trainings of one rank against the CPU's
  graphs   steps that are CUDA graphs against steps that are issued
  ranks    several ranks on one GPU
"""

import importlib
import os
import pathlib
import re
import sys

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # the folder of scripts stays as it is
    scripts = pathlib.Path(__file__).resolve().parent.parent
    sys.path.append(str(scripts))
    os.environ.setdefault("STARLING_BUILD", str(scripts.parent / "build-gpu"))
    topic = sys.argv[1] if len(sys.argv) > 1 else ""
    if topic not in re.findall(r"^  ([a-z]+) ", __doc__, re.M):
        print(__doc__, file=sys.stdout if topic in ("-h", "--help") else sys.stderr)
        sys.exit(0 if topic in ("-h", "--help") else 2)
    sys.argv[:2] = [f"{pathlib.Path(sys.argv[0]).name} {topic}"]
    sys.exit(importlib.import_module("check" if topic == "bench" else topic).main())
