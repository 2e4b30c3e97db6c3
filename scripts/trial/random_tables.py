"""Tables for scripts/trials random: drawn columns and rows, written twice as two programs would, and what must
come of them by docs/data.md alone."""

import csv
import io
import json
import math
import os
import re

import jobs
from jobs import Ended, read

TRAIN, PREDICT = map(jobs.built, ("starling-train", "starling-predict"))

MISSING = ["", " ", "NA", "nan", "NaN", "N/A", "null", "#N/A", "<NA>"]
WORDS = ["red", "blue", "Red wine", "a,b", 'quo"te', "two\nlines", "it's", "café", "yes and no", "x" * 60, "-", "{}", "%s", "n°1", "maybe"]
NAMES = ["size", "a b", "col,1", 'q"n', "café", "x", "Z", "age (years)", "__proto__", "{0}", "row", "no"]


def number(rng):
    value = rng.choice([rng.uniform(-10, 10), rng.gauss(0, 1) * 10 ** rng.randint(-6, 6), float(rng.randint(-50, 50)), 0.0, rng.random()])
    return float(f"{value:.6g}")


def spelled_number(rng, value):
    """Texts that are the same double."""
    ways = [repr(value), f"{value:.17g}", f"{value:.17e}", f"{value:+.17g}", repr(value) + ("0" if re.fullmatch(r"-?\d+\.\d+", repr(value)) else "")]
    if value == int(value) and abs(value) < 1e15:
        ways += [str(int(value)), f"{int(value)}.0", f"{int(value)}e0", "-0" if value == 0 else f"{int(value):+d}"]
    return rng.choice(ways)


def spelled(rng, kind, value):
    if value is None:
        return rng.choice(MISSING)
    if kind == "number":
        return spelled_number(rng, value)
    if kind == "boolean":
        return rng.choice([str.lower, str.upper, str.capitalize])(value)
    return value


def cell(rng, text, quotes):
    if rng.random() < 0.1 and "\n" not in text:
        text = rng.choice([" ", "\t", "\u00a0"]) * rng.randint(0, 1) + text + " " * rng.randint(0, 2)
    return '"' + text.replace('"', '""') + '"' if quotes or any(c in text for c in ',"\n\r') or rng.random() < 0.05 else text


def written(rng, columns, rows, order):
    """The bytes of a CSV file; order: of the rows."""
    mine = rng.sample(columns, len(columns))
    quotes, end = rng.random() < 0.3, rng.choice(["\n", "\r\n"])
    index = rng.random() < 0.2  # as pandas writes it
    lines = [([rng.choice(["", "Unnamed: 0"])] if index else []) + [cell(rng, name, quotes) for name, _ in mine]]
    for place, row in enumerate(order):
        lines.append(([str(place)] if index else []) + [cell(rng, spelled(rng, kind, rows[row][name]), quotes) for name, kind in mine])
    text = end.join(",".join(line) for line in lines)
    # Empty lines are no rows, but count
    return (b"\xef\xbb\xbf" if rng.random() < 0.2 else b"") + (text + end * rng.randint(0, 3)).encode()


class Table:
    def __init__(self, rng):
        names = rng.sample(NAMES, rng.randint(2, 6))
        self.target, self.classes = names[0], rng.random() < 0.5
        kinds = ["number", "number", "words", "boolean"]
        self.columns = [(self.target, "words" if self.classes else "number")] + [(name, rng.choice(kinds)) for name in names[1:]]
        self.missing = rng.choice(["error", "mean", "column"])
        self.words = {name: rng.sample(WORDS, rng.randint(2, 5)) for name, kind in self.columns if kind == "words"}
        self.rows = [self.row(rng) for _ in range(rng.randint(30, 90))]
        for name in self.words:  # each is seen, and in the training rows of a table of its own
            for i, word in enumerate(self.words[name] * 2):
                self.rows[i][name] = word
        self.tie_breaker(rng)

    def row(self, rng):
        draw = {"number": lambda _: number(rng), "boolean": lambda _: rng.choice(self.pair(_)), "words": lambda name: rng.choice(self.words[name])}
        empty = lambda name: name != self.target and self.missing != "error" and rng.random() < 0.15
        return {name: None if empty(name) else draw[kind](name) for name, kind in self.columns}

    def pair(self, name):
        return ["true", "false"] if len(name) % 2 else ["yes", "no"]

    def tie_breaker(self, rng):
        """Equal rows are on one side, and would blur the counts: a column tells all apart."""
        name = "unique"
        self.columns.append((name, "number"))
        for i, row in enumerate(self.rows):
            row[name] = i + round(rng.random() / 2, 3)

    def tests_of(self, fraction):
        shares = {}
        for row in self.rows:
            key = row[self.target] if self.classes else None
            shares[key] = shares.get(key, 0) + 1
        half_up = lambda x: math.floor(x + 0.5)
        return sum(min(half_up(count * fraction), count - 1) for count in shares.values())


def break_table(rng, table):
    """A fault in the table, and what the error must name."""
    faults = ["label", "ragged", "twice", "no target", "infinite", "thousands"] + ["empty"] * (table.missing == "error") + ["mixed"]
    fault, row = rng.choice(faults), rng.randrange(len(table.rows))
    first = next((name for name, kind in table.columns if kind == "number" and name != table.target))
    if fault == "label":
        table.rows[row][table.target] = None
        return None, [f"row {row + 2}, column", "is empty", "is '"]
    if fault in ("infinite", "thousands", "mixed", "empty"):
        table.rows[row][first] = None
        text = {"infinite": rng.choice(["inf", "-Infinity"]), "thousands": "1,234", "mixed": "0x1p3", "empty": ""}[fault]
        return (row, first, text), [f"row {row + 2}, column '{first}'"]
    return (fault,), {"ragged": ["cells; needed", "cell; needed"], "twice": ["have the same name"], "no target": ["has no column"]}[fault]


def with_fault(data, fault, table):
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    rows = [row for row in rows if row]
    names = [name.strip(" \t\u00a0") for name in rows[0]]
    if fault[0] == "ragged":
        rows[-1].append("1")
    elif fault[0] == "twice":
        rows = [row + row[-1:] for row in rows]
    elif fault[0] == "no target":
        rows[0][names.index(table.target)] = "another one"
    else:
        row, name, text = fault
        rows[row + 1][names.index(name)] = text
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def samples_of(path, rows_of_file):
    """By row of the table: (class or target, prediction)."""
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file))
    first = "class" if lines and "class" in lines[0] else "target"
    return {rows_of_file[int(line["file"].rsplit(":", 1)[1])]: (line[first], line["prediction"]) for line in lines}


def close(a, b):
    try:
        return math.isclose(float(a), float(b), rel_tol=1e-4, abs_tol=1e-4)
    except ValueError:
        return a == b


def try_tables(rng, folder, limit, _):
    os.makedirs(folder)
    table, run = Table(rng), folder + "/run"
    fraction = rng.choice([0.1, 0.25, 0.4])
    fault, names = break_table(rng, table) if rng.random() < 0.25 else (None, None)
    orders = [list(range(len(table.rows))), rng.sample(range(len(table.rows)), len(table.rows))]
    if names:
        orders[1] = orders[0]
    files = [f"{folder}/t{i}.csv" for i in range(2)]
    for path, order in zip(files, orders):
        data = written(rng, table.columns, table.rows, order)
        with open(path, "wb") as file:
            file.write(with_fault(data, fault, table) if fault else data)
    own_tests = rng.random() < 0.3
    data = {"type": "csv", "path": files[0], "target": table.target, "missing": table.missing, "scale_target": rng.random() < 0.5}
    data.update({"val_path": files[1]} if own_tests else {"val_fraction": fraction})
    config = {"data": data, "model": {"type": "mlp", "hidden": [4]}, "optimizer": {"type": "adam", "lr": 0.01}, "batch_size": 4, "steps": 5,
              "task": {"type": "classification" if table.classes else "regression"}, "threads": 1, "tensorboard": False, "seed": rng.randint(1, 99)}  # fmt: skip
    with open(folder + "/c.json", "w") as file:
        json.dump(config, file)
    trained = Ended([TRAIN, folder + "/c.json", "--output", run], folder + "/train", limit)
    if names:
        lines = [line for line in trained.err.rstrip("\n").split("\n") if not line.startswith(("warning: ", "data: "))]
        if trained.status != 2 or len(lines) != 1 or not any(name in lines[0] for name in names) or os.path.exists(run):
            return [f"ends with {trained.status}, one line with one of {names} was to come: {trained.err.strip()[-300:]}"]
        return []
    if trained.status != 0:
        return [f"ends with {trained.status}: {trained.err.strip()[-300:]}"]
    wrong, tests = [], len(table.rows) if own_tests else table.tests_of(fraction)
    if f"+ {tests} for tests" not in trained.out:
        wrong.append(f"{tests} rows are for tests, but: {trained.out[:300]}")
    tested, key = [], "val_path" if own_tests else "path"
    for path, order in zip(files, orders):
        to = path[:-4] + "-samples.csv"
        ended = Ended([TRAIN, "--evaluate", run, "--set", f"data.{key}={path}", "--samples", to], folder + "/evaluate", limit)
        if ended.status != 0:
            return [f"--evaluate ends with {ended.status}: {ended.err.strip()[-300:]}"]
        tested.append((samples_of(to, {place + 2: row for place, row in enumerate(order)}), json.loads(ended.out.strip().split("\n")[-1])))
    if set(tested[0][0]) != set(tested[1][0]):
        wrong.append("the same table, saved anew, has other test rows")
    if len(tested[0][0]) != tests or tested[0][1]["samples"] != tests:
        wrong.append(f"{tested[0][1]['samples']} rows were tested in place of {tests}")
    for name, value in tested[0][1].items():
        other = tested[1][1].get(name)
        if not (value is None and other is None) and (value is None or other is None or not math.isclose(value, other, rel_tol=1e-3, abs_tol=1e-3)):
            wrong.append(f"{name} is {value}, and {other} of the same table")
    out = folder + "/predictions.csv"
    piped = rng.random() < 0.3
    predict = [PREDICT, run, "/dev/stdin" if piped else files[1], "--out", out]
    ended = Ended(["sh", "-c", 'file=$1; shift; cat "$file" | "$@"', "sh", files[1], *predict] if piped else predict, folder + "/predict", limit)
    if ended.status != 0:
        return wrong + [f"starling-predict ends with {ended.status}: {ended.err.strip()[-300:]}"]
    with open(out, newline="") as file:
        predicted = {orders[1][int(line["row"]) - 2]: line["prediction"] for line in csv.DictReader(file)}
    if set(predicted) != set(range(len(table.rows))):
        wrong.append("not every row is predicted")
    for row, (_, of_test) in tested[1][0].items():
        if not close(predicted.get(row, "none"), of_test):
            wrong.append(f"row {row} of the table is {predicted.get(row)} by starling-predict, {of_test} by --evaluate")
            break
    if read(run + "/summary.json") == "":
        wrong.append("no summary.json")
    return wrong
