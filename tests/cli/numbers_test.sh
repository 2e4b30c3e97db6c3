#!/usr/bin/env bash
# Every number of every program's command line has a range: what is none, or is beyond it, is
# refused in one line that names the option, the value and what it may be. A config's are
# tests/apps/refusals_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cat >walk.py <<'PYTHON'
import re, subprocess, sys

def run(words):
    return subprocess.run(words, capture_output=True, text=True, timeout=100)

# As --help has them: an option, its kind, and the ends of its range.
OPTION = re.compile(r"^ +(?:-\w,)?(--[\w-]+) (INT|UINT|FLOAT)(?::([^\s=]+?)\.\.([^\s=]+))?")
faults, walked, read = [], 0, set()
for name in ("train", "predict", "prepare", "report", "topo", "bench", "doctor"):
    program = [f"{sys.argv[1]}/starling-{name}"]
    text = run(program + ["--help"]).stdout
    commands = re.findall(r"^  ([a-z][\w-]*) ", text.split("\nSubcommands:")[1], re.M) if "\nSubcommands:" in text else []
    for command in [[]] + [[each] for each in commands]:
        for line in run(program + command + ["--help"]).stdout.splitlines():
            found = OPTION.match(line)
            if not found:
                if re.match(r"^ +(-\w,)?--[\w-]+ (INT|UINT|FLOAT|\S*NUMBER)", line): faults.append(f"not understood: {line}")
                continue
            option, kind, least, most = found.groups()
            where = " ".join(program[0].split("/")[-1:] + command + [option])
            walked += 1
            if least is None:
                faults.append(f"{where}: --help names no range")
                continue
            # Each option's own are the ends. How a number is read is one function of each kind: a
            # program's first of the kind meets all of them.
            bad, first = ["nan"], (name, kind) not in read
            read.add((name, kind))
            if first: bad += ["inf", "-inf", "abc", "1x", "1e999", "-1e999", "1" + "0" * 400, "-1" + "0" * 400, "--1", " ", "1,2"]
            if kind == "FLOAT":
                bad += [repr(float(most) * (2 if float(most) > 0 else 0.5) + 1), repr(float(least) - max(1.0, abs(float(least))))]
                if first: bad += ["1e-320"]
            else:
                bad += [str(int(most) + 1), str(int(least) - 1)]
                if first: bad += ["1e3", "1.0", "0x10", "010", "+1", "1'000", "99999999999999999999", "-99999999999999999999"]
            for value in bad:
                said = run(program + command + [option + "=" + value])
                text = said.stdout + said.stderr
                expected = re.compile(re.escape(option) + ": expected a (whole )?number from " + re.escape(least) + " to " + re.escape(most) + ", found '")
                if said.returncode != 2 or not expected.search(text) or len(said.stderr.splitlines()) != 1 or value[:40] not in text:
                    faults.append(f"{where}={value[:40]}: {said.returncode}: {text[:200]!r}")
print(f"{walked} numbers")
print("\n".join(faults[:20]))
sys.exit(1 if faults or walked < 70 else 0)
PYTHON
verify "every number of every program" python3 walk.py "$build/bin"
finish
