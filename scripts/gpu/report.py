"""What the steps have left in their folders, the report and the archive of the rest: what has
been found so far, rewritten whole after every step.

A folder holds gpu_report.md, gpu_check.tar and gpu_check.json, the last one being what the report
is made of, so that stages that run in commands of their own meet in one report. Each is replaced
by a whole new one: whoever is killed leaves the one before."""

import collections
import gzip
import io
import json
import pathlib
import re
import tarfile

from processes import replace

REPORT, ARCHIVE, STATE = "gpu_report.md", "gpu_check.tar", "gpu_check.json"
MOST = 15 << 20  # bytes of the archive
LOG_HEAD, LOG_TAIL = 256 << 10, 768 << 10  # what is kept of a long log
ZIPPED_FROM = 64 << 10
FIRST_FAILURES = 12


def empty_state():
    return {"machine": {}, "stages": {}}


def read_state(folder):
    try:
        state = json.loads((pathlib.Path(folder) / STATE).read_text())
        return state if isinstance(state.get("stages"), dict) and isinstance(state.get("machine"), dict) else empty_state()
    except (OSError, ValueError, AttributeError):
        return empty_state()


# ---------------------------------------------------------------------------------- what steps left

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
    """rows: (what, pass or **FAIL** or skipped, remark). figures: (what, goal, measured,
    verdict)."""
    rows = [tuple((cells(line) + ["", ""])[:3]) for line in lines_of(folder / "rows.md") if line.startswith("|")]
    figures = []
    for path in sorted(folder.glob("goals*.md")):
        found = [cells(line) for line in lines_of(path) if line.startswith("|")]
        figures += [tuple((row + ["", "", ""])[:4]) for row in found if row[0] != "what" and not row[0].startswith("---")]
    return {"rows": rows, "figures": figures, "fall_backs": fall_backs(folder)}


# ------------------------------------------------------------------------------------------ archive


class Archive:
    """A .tar of a folder's files: logs first, then timelines, as far as they fit."""

    def __init__(self, work):
        self.work, self.packed, self.left_out, self.saved = work, {}, [], None

    def unpack(self, folder):
        """What commands before this one have kept."""
        try:
            with tarfile.open(pathlib.Path(folder) / ARCHIVE) as tar:
                for member in tar.getmembers():
                    path = (self.work / member.name).resolve()
                    if member.isfile() and self.work.resolve() in path.parents:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(tar.extractfile(member).read())
        except (OSError, tarfile.TarError):
            pass

    def content(self, path):
        """(name's end, bytes) as they are kept; made once for as long as the file stays what it
        is."""
        status = path.stat()
        key = (status.st_size, status.st_mtime_ns)
        if self.packed.get(path, (None,))[0] != key:
            data = path.read_bytes()
            if path.suffix == ".log" and len(data) > LOG_HEAD + LOG_TAIL:
                data = data[:LOG_HEAD] + b"\n... cut here ...\n" + data[-LOG_TAIL:]
            zipped = len(data) > ZIPPED_FROM and path.suffix != ".gz"
            self.packed[path] = (key, ".gz" if zipped else "", gzip.compress(data, 6, mtime=0) if zipped else data)
        return self.packed[path][1:]

    def bytes(self):
        files = [path for path in sorted(self.work.rglob("*")) if path.is_file() and not any(part.endswith(".tmp") for part in path.relative_to(self.work).parts)]
        files.sort(key=lambda path: (path.suffix != ".log", path.stat().st_size > 1 << 20))
        out, self.left_out = io.BytesIO(), []
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path in files:
                try:
                    end, data = self.content(path)
                except OSError:  # it went meanwhile
                    continue
                name = str(path.relative_to(self.work)) + end
                if out.tell() + len(data) + 2048 > MOST:
                    self.left_out.append(name)
                    continue
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(data), int(path.stat().st_mtime)
                tar.addfile(member, io.BytesIO(data))
        return out.getvalue()


# ------------------------------------------------------------------------------------------- report


def cell(text):
    return str(text).replace("|", "/").replace("\n", " ")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]


def counts(steps, rows):
    """Passed, failed, the others: of rows, and of steps that say something which rows do not."""
    wrong_rows = any(row[1] == "**FAIL**" for row in rows)
    said = lambda step: rows and (step["verdict"] == "passed" or wrong_rows and step["remark"].startswith("exit status 1:"))
    verdicts = [step["verdict"] for step in steps if not said(step)] + [row[1] for row in rows]
    good = sum(verdict in ("passed", "pass") for verdict in verdicts)
    bad = sum(verdict in ("FAILED", "**FAIL**") for verdict in verdicts)
    return good, bad, len(verdicts) - good - bad


def file_verdict(patterns, stages):
    """How the tests of a source file ended: patterns as docs/checks.md has them."""
    if patterns == "-":
        return "not run"
    found = []
    if patterns.startswith("ranks:"):
        word = patterns.removeprefix("ranks:")
        for stage in ("ranks", "peers"):
            record = stages.get(stage, {})
            rows = [row[1] for row in record.get("rows", []) if word in row[0].replace(",", " ").split()]
            found += [{"pass": "passed", "**FAIL**": "FAILED"}.get(verdict, verdict) for verdict in rows]
            if not rows and word in record.get("words", []):
                found += [step["verdict"] for step in record.get("steps", []) if step["verdict"] != "passed"]
    else:
        wanted = set(patterns.split(","))
        found = [step["verdict"] for step in stages.get("test", {}).get("steps", []) if step.get("about") in wanted]
        seen = {step.get("about") for step in stages.get("test", {}).get("steps", [])}
        if found and not wanted <= seen:
            found.append("not run")
    for verdict, shown in (("FAILED", "**FAIL**"), ("running", "running"), ("not run", "not run: no time was left"), ("passed", "pass")):
        if verdict in found:
            return shown
    return "skipped" if found else "not run"


def render(state, stages_known, proof_rows):
    machine, stages = state["machine"], state["stages"]
    good = bad = others = 0
    overview, failures = [], []
    for name, what in stages_known:
        record = stages.get(name)
        if not record:
            overview.append((name, "–", "–", "–", "–", f"not asked for ({what})"))
            continue
        part = counts(record["steps"], record.get("rows", []))
        good, bad, others = good + part[0], bad + part[1], others + part[2]
        running = ", ".join(step["name"] for step in record["steps"] if step["verdict"] == "running")
        remark = record.get("remark", "") or (f"ENDED EARLY, in the midst of: {running or 'its start'}" if not record.get("ended") else "")
        overview.append((name, *part, f"{record['seconds']:.0f}", remark))
        failures += [f"{name}: {step['name']}: {step['remark']}" for step in record["steps"] if step["verdict"] == "FAILED"]
        failures += [f"{name}: {row[0]}: {row[2]}" for row in record.get("rows", []) if row[1] == "**FAIL**"]
    lines = [f"# GPU check{' (rehearsal)' if state.get('rehearsed') else ''}: {good} passed, {bad} failed, {others} not run or skipped", ""]
    lines += [f"{machine.get('device', 'no GPU')} · commit {machine.get('commit', 'unknown')} · {state.get('date', '')}", ""]
    lines += table(("stage", "passed", "failed", "other", "seconds", ""), overview)
    if failures:
        lines += ["", "## What failed", ""]
        lines += [f"- {cell(line)[:400]}" for line in failures[:FIRST_FAILURES]]
        if len(failures) > FIRST_FAILURES:
            lines.append(f"- and {len(failures) - FIRST_FAILURES} more, below")
    told = [f"{name}: {line}" for name, _ in stages_known for line in stages.get(name, {}).get("fall_backs", [])]
    if told:
        lines += ["", "## Ways that programs did not take", "", *(f"- {cell(line)}" for line in told)]
    figures = [row for name, _ in stages_known for row in stages.get(name, {}).get("figures", [])]
    lines += ["", "## Figures", ""]
    lines += table(("what", "goal", "measured", ""), figures) if figures else ["None yet."]
    lines += ["", "## CUDA source files", ""]
    verdicts = [(source, file_verdict(patterns, stages), patterns) for source, patterns in proof_rows]
    lines += table(("file", "on this device", "its tests"), [(f"`{source}`", verdict, f"`{patterns}`") for source, verdict, patterns in verdicts])
    for name, what in stages_known:
        record = stages.get(name)
        if not record:
            continue
        lines += ["", f"## Stage {name}: {what}", "", f"Begun {record.get('date', '')}, {record['seconds']:.0f} s of {record['limit']:.0f} s at most.", ""]
        lines += table(("step", "result", "seconds", ""), [(s["name"], s["verdict"], f"{s['seconds']:.0f}", s["remark"]) for s in record["steps"]])
        if record.get("rows"):
            lines += ["", *table(("what", "result", ""), record["rows"])]
    lines += ["", "## Machine", "", *table(("", ""), machine.items())]
    lines += ["", f"Logs and timelines: `{ARCHIVE}` (timelines are for Perfetto)."]
    if state.get("left_out"):
        lines.append(f"Left out of it, being too large: {', '.join(state['left_out'][:10])}.")
    return "\n".join(lines) + "\n"


def save(folder, state, archive, stages_known, proof_rows):
    """All three files, as things are now; the report last, so that what it names is there."""
    packed = archive.bytes()
    state["left_out"] = archive.left_out
    if packed != archive.saved:
        replace(folder / ARCHIVE, packed)
        archive.saved = packed
    replace(folder / STATE, (json.dumps(state, indent=1) + "\n").encode())
    replace(folder / REPORT, render(state, stages_known, proof_rows).encode())
