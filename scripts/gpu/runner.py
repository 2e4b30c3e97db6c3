"""Runs the steps of a stage, some at a time, each within its limit, and notes how each ended as
soon as it has."""

import dataclasses
import os
import pathlib
import re
import time

import processes

LEAST = 3  # seconds: with less a step is not begun
HEARTBEAT = 1  # seconds between two reports while a step runs

ERROR_LINE = re.compile(
    r"(^|[^A-Za-z])(error|fatal|ERROR):|[A-Za-z]Error: |FAILED|========= (Invalid|Race|Error)|no test case matches|ended with exit status"
)


@dataclasses.dataclass
class Step:
    """A command with a limit. `judge` says of an exit status and the output what they mean:
    (verdict, remark)."""

    name: str
    command: list
    limit: float
    environment: dict = dataclasses.field(default_factory=dict)
    judge: object = None
    about: str = ""  # what a part of the report is found by: a pattern of docs/checks.md, say
    # where the limit is no fault of ours: what is said of a step that ran into it without an error
    # line
    too_slow: str = ""

    @property
    def slug(self):
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-")[:80]


@dataclasses.dataclass
class Batch:
    """Steps of which `jobs` run at a time; the next batch begins when all have ended."""

    jobs: int
    steps: list


def passed_or_failed(status, text):
    if status == 0:
        return "passed", ""
    lines = text.splitlines()[1:]  # the first one is the command
    lines = [line.strip() for line in lines if ERROR_LINE.search(line)] or [line.strip() for line in lines[-2:]]
    return "FAILED", f"exit status {status}" + (": " + " / ".join(lines[:2])[:300] if lines else "")


class Running:
    def __init__(self, step, limit, folder, number):
        self.step, self.limit = step, limit
        self.log = folder / f"{number:02d}-{step.slug}.log"
        self.begin = time.monotonic()
        self.file = open(self.log, "wb")
        self.file.write(("$ " + " ".join(map(str, step.command)) + "\n").encode())
        self.file.flush()
        self.failure = None
        try:
            self.process = processes.start([str(word) for word in step.command], stdout=self.file, stderr=self.file, env={**os.environ, **step.environment})
        except OSError as error:
            self.process, self.failure = None, str(error)

    def seconds(self):
        return time.monotonic() - self.begin

    def text(self):
        with open(self.log, "rb") as file:
            data = file.read()
        return data[-1_000_000:].decode("utf-8", errors="replace")

    def finished(self):
        """(verdict, remark) once it has ended, by itself or at its limit; else None."""
        if self.failure:
            return "FAILED", self.failure
        status = self.process.poll()
        if status is None and self.seconds() < self.limit:
            return None
        lines = [line.strip() for line in self.text().splitlines()[1:] if line.strip()]
        processes.end(self.process)  # what it left behind, too
        self.file.close()
        if status is None:
            if not any(ERROR_LINE.search(line) for line in lines):
                if self.step.too_slow:
                    return "skipped", f"{self.step.too_slow}: no end within {self.limit:.0f} s, and no error until then"
                if self.limit < self.step.limit:
                    return "not run", f"the stage's time was up after {self.limit:.0f} s, and there was no error until then"
            return "FAILED", f"no end within {self.limit:.0f} s; " + (f"its last line: {lines[-1][:200]}" if lines else "it said nothing")
        return (self.step.judge or passed_or_failed)(status, self.text())

    def stop(self):
        if self.process:
            processes.end(self.process, 2.0)


class Runner:
    """`note` is called with (step, verdict, remark, seconds) for each that has ended, `beat` with
    the running ones from time to time."""

    def __init__(self, folder, note, beat):
        self.folder, self.note, self.beat = pathlib.Path(folder), note, beat
        self.running, self.begun = [], 0

    def run(self, batch, deadline):
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = list(batch.steps)
        beaten = time.monotonic()
        while waiting or self.running:
            while waiting and len(self.running) < batch.jobs:
                step = waiting.pop(0)
                limit = min(step.limit, deadline - time.monotonic())
                if limit < LEAST:
                    self.note(step, "not run", "no time was left", 0.0)
                    continue
                self.begun += 1
                self.running.append(Running(step, limit, self.folder, self.begun))
            for one in list(self.running):
                ended = one.finished()
                if ended:
                    self.running.remove(one)
                    self.note(one.step, *ended, one.seconds())
            if time.monotonic() - beaten > HEARTBEAT and self.running:
                beaten = time.monotonic()
                self.beat(self.running)
            if self.running:
                time.sleep(0.05)

    def stop(self):
        """Ended from outside: what ran is noted so."""
        stopped, self.running = self.running, []
        for one in stopped:
            one.stop()
            self.note(one.step, "FAILED", "ended from outside", one.seconds())
