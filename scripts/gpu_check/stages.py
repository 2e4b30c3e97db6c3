"""The stages, in the order of their value, and the steps of each. A stage's function gives batches of steps; it runs nothing itself."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import machine
from runner import Batch, Step, passed_or_failed

STAGE_SECONDS = 480  # of each stage at most
GROUP_SECONDS = 240  # of a group of tests
# Groups whose cases take long: each of them is a process of its own.
SPLIT = ("cuda/operations*", "cuda/graph_training*")
SOURCE_OF_SHIM = "*shim_*_test.cpp"  # cases about the shim itself, which no GPU runs

# Own kernels alone: a library's are its maker's to check, and whole trainings take too long under a tool that slows everything 10 to 100 times.
# racecheck looks at shared memory, which the others do not use.
SANITIZED = {
    "memcheck": ["cuda/update*", "cuda/operations: NaN*", "cuda/operations: products without*", "cuda/fill*,cuda/image*,cuda/squared_norms*,cuda/layers*"],
    "racecheck": ["cuda/operations: NaN*", "cuda/operations: products without*"],
}
REFUSED = re.compile(r"Device not supported|not supported on (this|the) (device|platform)|Unable to find injection library|Target application terminated before first instrumented API call|returned error 999|Failed to initialize")

# The topologies that every GPU run tries: pairs, all of them at once (groups of three and more), neighbours. --all-topologies: the others too.
TOPOLOGIES = "one-peer-exp,complete,ring"


@dataclasses.dataclass
class Context:
    """What the steps' commands are made of."""

    root: pathlib.Path
    build: pathlib.Path
    work: pathlib.Path  # of this stage, in the archive
    python: str = sys.executable
    rehearsed: bool = False
    dry_run: bool = False
    built: bool = False  # nothing is configured or compiled
    gpus: int = 0
    capability: str = ""
    all_topologies: bool = False
    device_test: list = dataclasses.field(default_factory=list)
    seconds: float = STAGE_SECONDS

    def bin(self, name):
        return self.build / "bin" / name

    def script(self, name, *arguments):
        return [self.python, "-B", self.root / "scripts" / name, *arguments]

    def processes(self):
        """Of tests that share the GPU: most of their time is the host's, which compiles plans."""
        return max(2, min(8, machine.cores() // 2)) if not self.rehearsed else 8


def proof_rows(root):
    """(source, patterns) of docs/gpu-proof.md's table."""
    rows = []
    for line in (root / "docs" / "gpu-proof.md").read_text(encoding="utf-8").splitlines():
        cells = [part.strip().strip("`") for part in line.split("|")]
        if re.match(r"\| `(kernels/cuda|comm)/", line) and len(cells) > 4:
            rows.append((cells[1], "-" if cells[3].startswith("-") else cells[3]))
    return rows


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


# ---------------------------------------------------------------------------------------------------------------- stages


def build(c):
    if not c.built:
        generator = ["-G", "Ninja"] if machine.shutil.which("ninja") and not (c.build / "CMakeCache.txt").exists() else []
        deps = os.environ.get("STARLING_DEPS")
        architectures = os.environ.get("STARLING_CUDA_ARCHITECTURES") or (c.capability.replace(".", "") + "-real" if c.capability else "")
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DSTARLING_CUDA=ON", "-DSTARLING_TESTS=ON", "-DSTARLING_WERROR=OFF", "-DSTARLING_GPU_TESTS=ON"]
        options += [f"-DSTARLING_CUDA_ARCHITECTURES={architectures}"] if architectures else []
        options += [f"-DCMAKE_PREFIX_PATH={deps}/usr"] if deps else []
        if not deps:  # where they are missing, configuring says so
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

    starts.append(Step("PyTorch", [c.python, "-c", machine.PYTORCH], 90, judge=torch, environment=outer_libraries()))
    yield Batch(4, starts)
    first = Step("first call of the device", [c.bin("starling-bench"), "gpu-update", "--parameters", 4096, "--repeats", 2], 90)
    if c.gpus or c.rehearsed or c.dry_run:
        yield Batch(1, [first])


def outer_libraries():
    """PyTorch runs on the libraries that it was shipped with."""
    return {"LD_LIBRARY_PATH": os.environ.get("STARLING_OUTER_LIBRARY_PATH", "")}


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
    steps = []
    for pattern in patterns(c.root):
        command = [*line_by_line, *c.device_test, "--no-colors", "--duration", f"--test-case={pattern}"]
        cases = listed(c.device_test, pattern) if pattern in SPLIT else []
        if cases:
            for i, name in enumerate(cases, 1):
                steps.append(Step(f"tests {name}", [*command, f"--first={i}", f"--last={i}"], GROUP_SECONDS, judge=some, about=pattern))
        else:
            steps.append(Step(f"tests {pattern}", command, GROUP_SECONDS, judge=some, about=pattern))
    rest = [*line_by_line, *c.device_test, "--no-colors", "--duration", "--test-case-exclude=" + ",".join(patterns(c.root))]
    steps.append(Step("all other device tests", rest, GROUP_SECONDS, judge=some))
    yield from with_diagnosis(c.processes(), steps)


# Ways that a run takes unless the environment says 0 (docs/gpu.md). No GPU has run them before: where a step fails, the plain ways tell which.
SWITCHES = ("STARLING_PDL", "STARLING_FORK", "STARLING_LOW_GRADIENTS", "STARLING_CHOOSE_SCALE", "STARLING_EVICT_FIRST", "STARLING_BATCHED_STATISTICS", "STARLING_CUDNN_COMPILED")
MOST_DIAGNOSED = 2  # failed steps of a stage


def with_diagnosis(jobs, steps):
    """The steps; then those that failed, the first ones, without all of SWITCHES, and where that helps without each of them alone."""
    failed = []
    for step in steps:
        step.after = lambda verdict, step=step: failed.append(step) if verdict == "FAILED" else None
    yield Batch(jobs, steps)
    for step in failed[:MOST_DIAGNOSED]:
        helped = []

        def again(names, what, step=step, helped=helped):
            one = dataclasses.replace(step, name=f"{step.name}, again {what}", environment={**step.environment, **dict.fromkeys(names, "0")}, about="")
            one.command = [str(word).replace("rows.md", "again.md") for word in step.command]
            one.after = lambda verdict: helped.append(what) if verdict == "passed" else None
            return one

        yield Batch(1, [again(SWITCHES, "the plain ways")])
        if helped:
            yield Batch(jobs, [again([name], f"with {name}=0") for name in SWITCHES])


def ours(c, *arguments):
    return [*arguments, "--train", c.bin("starling-train"), "--out", c.work / "rows.md"]


def train(c):
    small = ["--small"] if c.rehearsed else []
    steps = []
    for model in ("mlp", "resnet20", "augmented", "pictures"):
        for precision in ("fp32", "bf16", "fp16"):
            command = c.script("gpu_train.py", model, precision, *small, *ours(c, "--seconds", 150))
            steps.append(Step(f"{model} in {precision}", command, 170))
    yield from with_diagnosis(3, steps)


def bench(c):
    """One process, since measurements want the GPU to themselves; it notes each as soon as it has it."""
    small = ["--rehearse"] if c.rehearsed else []
    common = ["--bench", c.bin("starling-bench"), "--out", c.work]
    behind = 90  # seconds for what comes behind: it takes its figures from others, none of the GPU's, or is worth less
    seconds = max(30, int(c.seconds - behind))
    yield Batch(1, [Step("measurements", c.script("gpu_bench.py", *small, *common, "--seconds", seconds), seconds + 10)])
    yield Batch(1, [Step("exchanges: measured or predicted", c.script("gpu_bench.py", *small, "--only", "exchange,scheduler-cost", *common, "--name", "goals_exchange", "--parts",
                                                                       c.work / "goals.json", "--seconds", 120 if c.gpus > 1 else 40), 130 if c.gpus > 1 else 50)])  # fmt: skip
    repeats = ["--repeats", 1, "--batch", 1] if c.rehearsed else ["--repeats", 5]
    yield Batch(1, [Step(f"operations, {precision}", [c.bin("starling-bench"), "kernels", "--device", "cuda", "--precision", precision, *repeats], 45) for precision in ("bf16", "fp32")[: 1 if c.rehearsed else 2]])


def graphs(c):
    small = ["--model", "mlp", "--image", 8, "--batch", 8] if c.rehearsed else []
    run = lambda *arguments: c.script("gpu_graphs.py", *arguments, *small, *ours(c, "--seconds", 150), "--keep", c.work / "timelines", "--goals", c.work / "goals_host.md")
    yield from with_diagnosis(1, [Step("the bits of steps without graphs", run("agree", "--jobs", 3), 200)])
    yield Batch(1, [Step("the host's time of a replayed step", run("host"), 100)])
    yield Batch(1, [Step("2 ranks that read each other", run("agree", "--ranks", 2, "--transport", "direct", "--jobs", 2), 200)])
    yield Batch(1, [Step("2 ranks over NCCL", run("agree", "--ranks", 2, "--transport", "nccl", "--jobs", 2), 200)])
    switches = c.script("gpu_bench.py", *(["--rehearse"] if c.rehearsed else []), "--only", "switches", "--bench", c.bin("starling-bench"), "--out", c.work, "--name", "goals_switches")
    seconds = 25 if c.rehearsed else 300
    yield Batch(1, [Step("what each new way saves", [*switches, "--seconds", seconds], seconds + 10, too_slow="its rows are written one by one")])


def topologies(c):
    return ["--topologies", "all" if c.all_topologies else TOPOLOGIES]


LOST_SECONDS = 15  # sync.timeout_s of a run that loses a rank, which has the GPU to itself


def ranks(c):
    run = lambda *arguments, jobs=2: c.script("gpu_ranks.py", *arguments, *ours(c, "--jobs", jobs, "--seconds", 60), "--keep", c.work / "timelines")
    lost = ["--timeout", 3 if c.rehearsed else LOST_SECONDS]
    yield Batch(1, [Step("2 ranks learn what they must", run("agree", "--ranks", 2, *topologies(c)), 200)])
    yield Batch(1, [Step("a rank that overflows, fp16", run("overflow"), 90)])
    yield Batch(1, [Step("timeline of 2 ranks", run("trace"), 90)])
    yield Batch(1, [Step("4 ranks learn what they must", run("agree", "--ranks", 4, *topologies(c)), 200)])
    yield Batch(1, [Step("a rank that is lost", run("lost", *lost, jobs=1), 150)])


def peers(c):
    run = lambda *arguments, jobs=2: c.script("gpu_peer.py", *arguments, *ours(c, "--jobs", jobs, "--seconds", 60))
    lost = ["--timeout", 3 if c.rehearsed else LOST_SECONDS]
    yield Batch(1, [Step("2 ranks that read each other", run("agree", "--ranks", 2, *topologies(c)), 150)])
    yield Batch(1, [Step("one that shares no memory", run("refused"), 60)])
    yield Batch(1, [Step("4 ranks that read each other", run("agree", "--ranks", 4, *topologies(c)), 150)])
    yield Batch(1, [Step("one that others read is lost", run("lost", *lost, jobs=1), 90)])


def sanitize(c):
    tool = machine.shutil.which("compute-sanitizer")

    def judge(status, text):
        if status != 0 and REFUSED.search(text):
            return "skipped", "compute-sanitizer cannot be used on this machine: " + REFUSED.search(text).group(0)
        summary = re.findall(r"========= ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
        verdict, remark = passed_or_failed(status, text)
        if verdict == "passed" and not summary:
            return "FAILED", "compute-sanitizer gave no summary"
        return verdict, summary[-1] if summary and verdict == "passed" else remark

    if not tool and not c.dry_run:
        yield Batch(1, [Step("compute-sanitizer", ["true"], 10, judge=lambda status, text: ("skipped", "it is not installed (a part of the CUDA toolkit)"))])
        return
    steps = []
    for kind, names in SANITIZED.items():
        for name in names:
            command = [tool or "compute-sanitizer", "--tool", kind, "--error-exitcode", 99, *c.device_test, "--no-colors", "--duration", f"--test-case={name}"]
            steps.append(Step(f"{kind}, {name}", command, 200, judge=judge, too_slow="slower under compute-sanitizer than there is time for"))
    yield Batch(3, steps)


@dataclasses.dataclass
class Stage:
    name: str
    what: str  # one line, for --help and the report
    share: int  # of the time, where several stages have to do with less than each may take
    steps: object
    words: tuple = ()  # `ranks:WORD` of docs/gpu-proof.md that it proves


# In the order of their value.
STAGES = [
    Stage("build", "programs start, or are built first; the machine; the first call of the device", 4, build),
    Stage("test", "every device test, in groups that are processes of their own", 10, test),
    Stage("train", "trainings of one rank against the CPU's, in fp32, bf16 and fp16", 5, train),
    Stage("bench", "updates, ResNet-50 and ResNet-20 steps, with PyTorch beside them", 16, bench),
    Stage("graphs", "steps that are CUDA graphs against steps that are issued", 8, graphs),
    Stage("ranks", "several ranks on the GPU, over NCCL and through host memory", 9, ranks, ("nccl", "staged", "trace")),
    Stage("peers", "ranks that read each other's GPU memory", 6, peers, ("direct",)),
    Stage("sanitize", "own kernels under compute-sanitizer's memcheck and racecheck", 4, sanitize),
]
