"""The stages, in the order of their value, and the steps of each. A stage's function gives
batches of steps; it runs nothing itself."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import machine
import processes
from runner import Batch, Step, passed_or_failed

STAGE_SECONDS = 480  # of each stage at most
GROUP_SECONDS = 90  # of a group of tests
# Groups whose cases take long: each of them is a process of its own.
SPLIT = ("cuda/operations*", "cuda/graph_training*")
# Of a command that is rehearsed in seconds.
QUICK = ("cuda/open*", "cuda/fill*", "cuda/pool:*")

# Own kernels alone: a library's are its maker's to check, and whole trainings take too long under a
# tool that slows everything 10 to 100 times. racecheck looks at shared memory, which the others do
# not use.
SANITIZED = {
    "memcheck": ["cuda/update*", "cuda/operations: NaN*", "cuda/operations: products without*", "cuda/fill*,cuda/image*,cuda/squared_norms*,cuda/layers*"],
    "racecheck": ["cuda/operations: NaN*", "cuda/operations: products without*"],
}
REFUSED = re.compile(r"Device not supported|not supported on (this|the) (device|platform)|Unable to find injection library|Target application terminated before first instrumented API call|returned error 999|Failed to initialize")

# The topologies that every GPU run tries: pairs, all of them at once (groups of three and more),
# neighbours. --all-topologies: the others too.
TOPOLOGIES = "one-peer-exp,complete,ring"

DIAGNOSIS_SECONDS = 60  # with less it is not begun


@dataclasses.dataclass
class Context:
    """What the steps' commands are made of."""

    root: pathlib.Path
    build: pathlib.Path
    work: pathlib.Path  # of this stage, in the archive
    rehearsed: bool = False
    dry_run: bool = False
    built: bool = False  # nothing is configured or compiled
    gpus: int = 0
    capability: str = ""
    all_topologies: bool = False
    device_test: list = dataclasses.field(default_factory=list)
    seconds: float = STAGE_SECONDS
    lease: int = 0  # of 15 minutes: the most valuable alone
    failed: list = dataclasses.field(default_factory=list)  # (stage, step) of this command

    def bin(self, name):
        return self.build / "bin" / name

    def processes(self):
        """Of tests that share the GPU: most of their time is the host's, which compiles plans."""
        return max(2, min(8, machine.cores() // 2)) if not self.rehearsed else 8


def proof_rows(root):
    """(source, patterns) of docs/checks.md's table, whose rows may have several: `a/{b,c}.cu`."""
    rows = []
    for line in (root / "docs" / "checks.md").read_text(encoding="utf-8").splitlines():
        cells = [part.strip().strip("`") for part in line.split("|")]
        if re.match(r"\| `(kernels/cuda|comm)/", line) and len(cells) > 4:
            before, names, after = re.fullmatch(r"([^{]*)(?:\{(.*)\})?(.*)", cells[1]).groups()
            rows += [(before + name + after, "-" if cells[3].startswith("-") else cells[3]) for name in (names or "").split(",")]
    return sorted(rows)


def patterns(root):
    found = {name for _, names in proof_rows(root) for name in names.split(",") if name != "-" and not names.startswith("ranks:")}
    return sorted(found, key=lambda name: (SPLIT.index(name) if name in SPLIT else len(SPLIT), name))


def listed(test, pattern=None):
    """Names of the test program's cases on a device."""
    command = [str(word) for word in test] + ["--list-test-cases", "--no-colors"] + ([f"--test-case={pattern}"] if pattern else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if re.match(r"[a-z]+/", line)]


def failed_cases(text):
    """Each case that failed, with its first error, as doctest says it."""
    found, case = {}, ""
    for line in text.splitlines():
        if line.startswith("TEST CASE:"):
            case = line.removeprefix("TEST CASE:").strip()
        elif re.search(r"(FATAL )?ERROR: ", line):
            found.setdefault(case, re.sub(r"^.*?((FATAL )?ERROR: )", r"\1", line).strip())
    return [f"{case}: {error}" for case, error in found.items()]


# ------------------------------------------------------------------------------------------- stages


def build(c):
    if not c.built:
        generator = ["-G", "Ninja"] if machine.shutil.which("ninja") and not (c.build / "CMakeCache.txt").exists() else []
        architectures = os.environ.get("STARLING_CUDA_ARCHITECTURES") or (c.capability.replace(".", "") + "-real" if c.capability else "")
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DSTARLING_CUDA=ON", "-DSTARLING_TESTS=ON", "-DSTARLING_WERROR=OFF", "-DSTARLING_GPU_TESTS=ON"]
        options += [f"-DSTARLING_CUDA_ARCHITECTURES={architectures}"] if architectures else []
        # Where they are missing, configuring says so.
        fetch = Step("cudnn-frontend's headers", [c.root / "scripts/get_cudnn_frontend.sh"], 100, judge=lambda status, text: ("passed" if status == 0 else "skipped", ""))
        yield Batch(1, [fetch])
        yield Batch(1, [Step("configure", ["cmake", "-S", c.root, "-B", c.build, *generator, *options], 90)])
        targets = ["starling_cuda", "test_cuda_device", "starling-train", "starling-bench", "starling-topo"]
        yield Batch(1, [Step("compile", ["cmake", "--build", c.build, "--parallel", machine.cores(), "--target", *targets], 400)])
    starts = [Step(f"{name} starts", [c.bin(name), word], 30) for name, word in (("starling-train", "--version"), ("starling-topo", "--help"))]
    starts.append(Step("starling-bench starts, and knows the floors", [c.bin("starling-bench"), "floor"], 60))

    def cases(status, text):
        found = len(re.findall(r"^cuda/", text, re.M))
        return ("passed", f"{found} cases") if status == 0 and found else ("FAILED", f"exit status {status}, {found} cases are listed")

    starts.append(Step("test cases are listed", [*c.device_test, "--list-test-cases", "--no-colors"], 60, judge=cases))

    def torch(status, text):
        fact = re.search(r"^FACT PyTorch: (.*)$", text, re.M)
        return ("passed", fact.group(1)) if fact else ("skipped", "PyTorch is not here: no figures of it beside ours")

    starts.append(Step("PyTorch", [sys.executable, "-c", machine.PYTORCH], 90, judge=torch, environment=processes.outer_libraries()))
    yield Batch(4, starts)
    first = Step("first call of the device", [c.bin("starling-bench"), "gpu-update", "--parameters", 4096, "--repeats", 2], 90)
    if c.gpus or c.rehearsed or c.dry_run:
        yield Batch(1, [first])


def test(c):
    def some(status, text):
        found = re.search(r"test cases: *(\d+) *\| *(\d+) passed", text)
        if status == 0 and not (found and int(found.group(2)) > 0):
            return "FAILED", "no test case matches"
        if status != 0:
            wrong = failed_cases(text)
            return ("FAILED", f"exit status {status}: " + " / ".join(wrong[:3])[:400]) if wrong else passed_or_failed(status, text)
        return "passed", ""

    # A program that is ended would leave nothing in its log but for this.
    line_by_line = ["stdbuf", "-oL"] if machine.shutil.which("stdbuf") else []
    steps, quick = [], c.lease and c.rehearsed
    for pattern in QUICK if quick else patterns(c.root):
        command = [*line_by_line, *c.device_test, "--no-colors", "--duration", f"--test-case={pattern}"]
        cases = listed(c.device_test, pattern) if pattern in SPLIT else []
        for i, name in enumerate(cases, 1):
            steps.append(Step(f"tests {name}", [*command, f"--first={i}", f"--last={i}"], GROUP_SECONDS, judge=some, about=pattern))
        if not cases:
            steps.append(Step(f"tests {pattern}", command, GROUP_SECONDS, judge=some, about=pattern))
    if not quick:
        rest = [*line_by_line, *c.device_test, "--no-colors", "--duration", "--test-case-exclude=" + ",".join(patterns(c.root))]
        steps.append(Step("all other device tests", rest, GROUP_SECONDS, judge=some))
    yield Batch(c.processes(), steps)


def ours(c, seconds, *arguments):
    """`seconds`: of a run at most, so that one that hangs is told before the stage's end."""
    return [*arguments, "--train", c.bin("starling-train"), "--out", c.work / "rows.md", "--seconds", min(seconds, int(0.75 * c.seconds))]


def train(c):
    """One process, since all precisions of a network are compared with one run of the CPU; it notes
    each as soon as it has it."""
    small = (["--small"] if c.rehearsed else []) + (["mlp"] if c.rehearsed and c.lease else [])
    yield Batch(1, [Step("trainings", processes.topic("train", *small, *ours(c, 150, "--jobs", 6)), STAGE_SECONDS)])


def measurements(c, what, only, *more):
    command = processes.topic("bench", *(["--rehearse"] if c.rehearsed else []), "--only", only, "--bench", c.bin("starling-bench"), "--out", c.work)
    seconds = max(10, int(c.seconds) - 8)
    return Step(what, [*command, *more, "--seconds", seconds], seconds + 5, too_slow="its rows are written one by one")


def bench(c):
    """One process, since measurements want the GPU to themselves; it notes each as soon as it has
    it."""
    if c.lease:
        yield Batch(1, [measurements(c, "measurements", "update,resnet50,resnet20", "--once", *(["--first", "2"] if c.lease == 1 else []))])
        return
    behind = 60  # seconds for what comes behind it and is worth less
    yield Batch(1, [measurements(dataclasses.replace(c, seconds=c.seconds - behind), "measurements", "update,resnet50,resnet20,resnet18,scheduler,exchange")])
    repeats = ["--repeats", 1, "--batch", 1] if c.rehearsed else ["--repeats", 5]
    yield Batch(1, [Step(f"operations, {precision}", [c.bin("starling-bench"), "kernels", "--device", "cuda", "--precision", precision, *repeats], 45) for precision in ("bf16", "fp32")[: 1 if c.rehearsed else 2]])


def graphs(c):
    small = ["--model", "mlp", "--image", 8, "--batch", 8] if c.rehearsed else []
    run = lambda *arguments: processes.topic("graphs", *arguments, *small, *ours(c, 150), "--keep", c.work / "timelines", "--goals", c.work / "goals_host.md")
    yield Batch(1, [Step("the bits of steps without graphs", run("agree", "--jobs", 3), 200)])
    yield Batch(1, [Step("the host's time of a replayed step", run("host"), 100)])
    for what, transport in (("read each other", "direct"), ("talk over NCCL", "nccl")) if not c.lease else ():
        yield Batch(1, [Step(f"2 ranks that {what}", run("agree", "--ranks", 2, "--transport", transport, "--jobs", 2), 200)])


LOST_SECONDS = 15  # sync.timeout_s of a run that loses a rank, which has the GPU to itself


def of_ranks(c, *arguments, jobs=2):
    return processes.topic("ranks", *arguments, *ours(c, 60, "--jobs", jobs), "--keep", c.work / "timelines")


def agree(c, count, *transports):
    topologies = "one-peer-exp" if c.lease else "all" if c.all_topologies else TOPOLOGIES
    return of_ranks(c, "agree", "--ranks", count, "--topologies", topologies, *transports)


def lost(c):
    return ["--timeout", 3 if c.rehearsed else LOST_SECONDS]


def ranks(c):
    yield Batch(1, [Step("2 ranks learn what they must", agree(c, 2, *(["--transports", "nccl"] if c.lease else [])), 200)])
    if not c.lease:
        yield Batch(1, [Step("a rank that overflows, fp16", of_ranks(c, "overflow"), 90)])
        yield Batch(1, [Step("timeline of 2 ranks", of_ranks(c, "trace"), 90)])
        yield Batch(1, [Step("4 ranks learn what they must", agree(c, 4), 200)])
        yield Batch(1, [Step("a rank that is lost", of_ranks(c, "lost", *lost(c), jobs=1), 150)])


def peers(c):
    yield Batch(1, [Step("2 ranks that read each other", agree(c, 2, "--transports", "direct"), 150)])
    if not c.lease:
        yield Batch(1, [Step("one that shares no memory", of_ranks(c, "refused"), 60)])
        yield Batch(1, [Step("4 ranks that read each other", agree(c, 4, "--transports", "direct"), 150)])
        yield Batch(1, [Step("one that others read is lost", of_ranks(c, "lost", "--transports", "direct", *lost(c), jobs=1), 90)])


def sanitized(c, kind, command, limit, name):
    """A step under compute-sanitizer."""

    def judge(status, text):
        if status != 0 and REFUSED.search(text):
            return "skipped", "compute-sanitizer cannot be used on this machine: " + REFUSED.search(text).group(0)
        summary = re.findall(r"========= ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
        verdict, remark = passed_or_failed(status, text)
        if verdict == "passed" and not summary:
            return "FAILED", "compute-sanitizer gave no summary"
        return verdict, summary[-1] if summary and verdict == "passed" else remark

    tool = machine.shutil.which("compute-sanitizer")
    if not tool and not c.dry_run:
        return Step(name, ["true"], 10, judge=lambda status, text: ("skipped", "compute-sanitizer is not installed (a part of the CUDA toolkit)"))
    command = [tool or "compute-sanitizer", "--tool", kind, "--error-exitcode", 99, "--print-limit", 20, *command]
    return Step(name, command, limit, judge=judge, too_slow="slower under compute-sanitizer than there is time for")


def sanitize(c):
    command = [*c.device_test, "--no-colors", "--duration"]
    yield Batch(3, [sanitized(c, kind, [*command, f"--test-case={name}"], 200, f"{kind}, {name}") for kind, names in SANITIZED.items() for name in names])


def diagnose(c):
    """The first step that failed, once the plain way; and the first group of tests that did, under
    memcheck."""
    steps = []
    if c.failed:
        step = c.failed[0][1]
        command = [str(word).replace(str(c.work.parent / c.failed[0][0]), str(c.work)) for word in step.command]
        plain = {**step.environment, "STARLING_FORK": "0"}
        steps.append(dataclasses.replace(step, name=f"{step.name}, again the plain way", command=command, environment=plain, about="", limit=DIAGNOSIS_SECONDS))
    for step in [step for stage, step in c.failed if stage == "test"][:1]:
        steps.append(sanitized(c, "memcheck", step.command[step.command.index(c.device_test[0]) :], DIAGNOSIS_SECONDS, f"{step.name}, memcheck"))
    yield Batch(2, steps)


@dataclasses.dataclass
class Stage:
    name: str
    what: str  # one line, for --help and the report
    share: int  # of the time, where several stages have to do with less than each may take
    steps: object
    words: tuple = ()  # `ranks:WORD` of docs/checks.md that it proves


# In the order of their value.
STAGES = [
    Stage("build", "programs start, or are built first; the machine; the first call of the device", 4, build),
    Stage("test", "every device test, in groups that are processes of their own", 10, test),
    Stage("train", "trainings of one rank against the CPU's, in fp32, bf16 and fp16", 5, train),
    Stage("bench", "updates, ResNet-50 and ResNet-20 steps, with PyTorch beside them", 16, bench),
    Stage("graphs", "steps that are CUDA graphs against steps that are issued", 6, graphs),
    Stage("ranks", "several ranks on the GPU, over NCCL and through host memory", 9, ranks, ("nccl", "staged", "trace")),
    Stage("peers", "ranks that read each other's GPU memory", 6, peers, ("direct",)),
    Stage("sanitize", "own kernels under compute-sanitizer's memcheck and racecheck", 4, sanitize),
]
# Behind them where a step of a stage has failed and there is time; not asked for by name.
DIAGNOSIS = Stage("diagnose", "what failed first, again the plain way and under memcheck", 0, diagnose)
DIAGNOSED = ("test", "train", "graphs", "ranks", "peers")
