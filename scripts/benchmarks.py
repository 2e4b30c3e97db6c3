#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md from the measurements in docs/benchmarks.jsonl.

scripts/benchmarks.py            after a change of docs/benchmarks.jsonl
scripts/benchmarks.py --check    writes nothing; exit status 2 where the page is not up to date
scripts/benchmarks.py NUMBER     prints the command that the page has this number for

A line of the file is a row: {"subject": "steps", "what": "ResNet-20", ..., "machine": "Xeon",
"command": "scripts/..."}, with the newest measurement of its case only. The table of a subject
stands below `<!-- rows: SUBJECT -->`, with the columns of its rows; `date`, for
people who edit the file, is no column. Commands have numbers there, in the file's order.
"""

import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE, ROWS = (os.path.join(ROOT, "docs", f"benchmarks.{kind}") for kind in ("md", "jsonl"))
HIDDEN = ("subject", "date")


def table(subject, rows, numbers):
    rows = [row for row in rows if row["subject"] == subject]
    if not rows:
        sys.exit(f"error: {PAGE}: no row of {ROWS} has the subject '{subject}'")
    columns = [name for name in rows[0] if name not in HIDDEN]
    cells = [columns, ["---"] * len(columns)]
    for row in rows:
        if [name for name in row if name not in HIDDEN] != columns:
            sys.exit(f"error: {ROWS}: '{row['what']}' has the columns {', '.join(row)}; the first of its subject has {', '.join(columns)}")
        cells.append([str(numbers[row[name]]) if name == "command" else row[name] for name in columns])
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def page(text, rows, numbers):
    if left := {row["subject"] for row in rows} - set(re.findall(r"<!-- rows: (\w+) -->", text)):
        sys.exit(f"error: {PAGE} has no table of {', '.join(sorted(left))}")
    made = lambda match: f"{match[1]}\n{table(match[2], rows, numbers)}\n"
    return re.sub(r"(<!-- rows: (\w+) -->)\n(?:\|.*\n)*", made, text)


def main(words):
    with open(ROWS, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    numbers = {}
    for row in rows:
        numbers.setdefault(row["command"], len(numbers) + 1)
    commands = {str(number): command for command, number in numbers.items()}
    if len(words) == 1 and words[0] in commands:
        print(commands[words[0]])
        return 0
    if words not in ([], ["--check"]):
        print(__doc__.strip(), file=sys.stdout if words == ["--help"] else sys.stderr)
        return 0 if words == ["--help"] else 2
    with open(PAGE, encoding="utf-8") as file:
        before = file.read()
    after = page(before, rows, numbers)
    if words and after != before:
        print("docs/benchmarks.md is not what docs/benchmarks.jsonl says; scripts/benchmarks.py writes it", file=sys.stderr)
        return 2
    if after != before:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
