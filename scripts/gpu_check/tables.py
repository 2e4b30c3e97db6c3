"""What the steps of a stage have left in its folder for the report: rows of checks, and figures with their goals."""


import collections
import re

MOST_FALL_BACKS = 6
# A program says in a line that it goes another way than meant: figures of it are then that way's.
FALL_BACK = re.compile(r"do not work here: |without CUDA graphs|get no branch|own kernels? do(es)? it")


def fall_backs(folder):
    """Each such line once, with how many logs have it."""
    found = collections.Counter()
    for path in sorted(folder.glob("*.log")):
        found.update({line.strip()[-300:] for line in lines_of(path)[1:] if FALL_BACK.search(line)})
    return [f"{line} ({count} log{'s' * (count > 1)})" for line, count in found.most_common(MOST_FALL_BACKS)]


def lines_of(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def cells(line):
    return [part.strip() for part in line.strip().strip("|").split("|")]


def of_folder(folder):
    """rows: (what, pass or **FAIL** or skipped, remark). figures: (what, goal, measured, verdict)."""
    rows = [tuple((cells(line) + ["", ""])[:3]) for line in lines_of(folder / "rows.md") if line.startswith("|")]
    figures = []
    for path in sorted(folder.glob("goals*.md")):
        found = [cells(line) for line in lines_of(path) if line.startswith("|")]
        figures += [tuple((row + ["", "", ""])[:4]) for row in found if row[0] != "what" and not row[0].startswith("---")]
    return {"rows": rows, "figures": figures, "fall_backs": fall_backs(folder)}
