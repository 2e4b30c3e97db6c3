"""scripts/gpu_check.sh: proves and measures the CUDA backend on a machine with a GPU, in parts, the
most worthy first.

  scripts/gpu_check.sh --seconds 560 --out ~/check     what fits into so many seconds
  scripts/gpu_check.sh --out ~/check                   then all that is left
  scripts/gpu_check.sh --list                          the parts, their limits and commands

Each part is a process with a time limit of its own. As soon as it has ended, OUT/results.jsonl has
a line of it (part, result, seconds, remark, log, figures) and OUT/logs its output. A part that has
passed, failed, or cannot be done on this machine is not tried again by the same commit; --again
does. report.md is made of the results at the end: counts, what failed, figures against their goals,
and a verdict for each CUDA source file. dmon.txt has the GPU's load, clocks and power.

Exit status: 0 all passed, 1 something failed or had no time, 2 wrong usage, 4 there is no GPU, so
that nothing was proven. Environment: STARLING_BUILD (default: build-gpu),
STARLING_CUDA_ARCHITECTURES (default: this GPU's), STARLING_COMMIT (where the tree has no history).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jobs
import measure

BEGIN = time.monotonic()
LEAST = 15  # seconds: with less, a part that may take longer is not begun
PROOF = jobs.ROOT / "docs" / "checks.md"
DEVICE_TEST = [jobs.BUILD / "bin" / "test_cuda_device", "--no-colors"]
SPLIT = ("cuda/operations*", "cuda/graph_training*")  # each case of them is a process of its own
TOPOLOGIES = "one-peer-exp,complete,ring"  # pairs, all at once, neighbours
# A program says in a line that it goes another way than meant: its figures are that way's.
FALL_BACK = re.compile(r"do not work here: |without CUDA graphs|get no branch|own kernels? do(es)? it")
ERROR_LINE = re.compile(r"(^|[^A-Za-z])(error|fatal|ERROR):|[A-Za-z]Error: |FAILED|========= (Invalid|Race|Error)|ended with exit status")
REFUSED = re.compile(r"Device not supported|not supported on (this|the) (device|platform)|Unable to find injection library|returned error 999|Failed to initialize|ERR_NVGPUCTRPERM")


@dataclasses.dataclass
class Part:
    name: str
    seconds: float
    command: list
    at_a_time: int = 1  # of parts that follow each other with the same number
    about: str = ""  # what docs/checks.md finds it by
    proves: object = None  # says of an output what is wrong though the exit status is 0
    environment: dict = dataclasses.field(default_factory=dict)


# ----------------------------------------------------------------------------------------- parts


def topic(*words):
    return [sys.executable, "-B", jobs.ROOT / "scripts" / "gpu", *words]


def proof_rows():
    """(source, patterns) of docs/checks.md's table, whose rows may have several: `a/{b,c}.cu`."""
    rows = []
    for line in jobs.read(PROOF).splitlines():
        cells = [part.strip().strip("`") for part in line.split("|")]
        if re.match(r"\| `(kernels/cuda|comm)/", line) and len(cells) > 4:
            before, names, after = re.fullmatch(r"([^{]*)(?:\{(.*)\})?(.*)", cells[1]).groups()
            rows += [(before + name + after, cells[3]) for name in (names or "").split(",")]
    return sorted(rows)


def cores():
    return len(os.sched_getaffinity(0))


def build_parts(capability):
    if (jobs.ROOT / "gpu_env.sh").exists():
        return []  # unpacked: nothing is built
    architectures = os.environ.get("STARLING_CUDA_ARCHITECTURES") or (capability.replace(".", "") + "-real" if capability else "")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DSTARLING_CUDA=ON", "-DSTARLING_TESTS=ON", "-DSTARLING_WERROR=OFF", "-DSTARLING_GPU_TESTS=ON"]
    options += [f"-DSTARLING_CUDA_ARCHITECTURES={architectures}"] if architectures else []
    options += ["-G", "Ninja"] if shutil.which("ninja") and not (jobs.BUILD / "CMakeCache.txt").exists() else []
    targets = ["starling_cuda", "test_cuda_device", "starling-train", "starling-bench", "starling-topo", "test_operations"]
    lines = [shlex.join(map(str, words)) for words in ([jobs.ROOT / "scripts/get_cudnn_frontend.sh"], ["cmake", "-S", jobs.ROOT, "-B", jobs.BUILD, *options],
                                                       ["cmake", "--build", jobs.BUILD, "--parallel", cores(), "--target", *targets])]  # fmt: skip
    return [Part("build", 600, ["bash", "-c", f"{lines[0]}\n{lines[1]} &&\n{lines[2]}"])]


def test_parts():
    passed = lambda text: "" if re.search(r"test cases: *\d+ *\| *[1-9]\d* passed", text) else "no test case matches"
    # A program that is ended would leave nothing in its log but for stdbuf.
    command = [*(["stdbuf", "-oL"] if shutil.which("stdbuf") else []), *DEVICE_TEST, "--duration"]
    patterns = sorted({name for _, names in proof_rows() for name in names.split(",") if name != "-" and not name.startswith("ranks:")})
    found = []
    for pattern in sorted(patterns, key=lambda name: name not in SPLIT):
        cases = []
        if pattern in SPLIT and os.access(DEVICE_TEST[0], os.X_OK):
            listed = subprocess.run([*map(str, DEVICE_TEST), "--list-test-cases", f"--test-case={pattern}"], capture_output=True, text=True, check=False).stdout
            cases = [line for line in listed.splitlines() if re.match(r"[a-z]+/", line)]
        for i, name in enumerate(cases, 1):
            found.append(([f"--test-case={pattern}", f"--first={i}", f"--last={i}"], name, pattern))
        if not cases:
            found.append(([f"--test-case={pattern}"], pattern, pattern))
    found.append((["--test-case-exclude=" + ",".join(patterns)], "all others", ""))
    # Most of their time is the host's, which compiles plans.
    return [Part(f"tests {name}", 90, [*command, *words], max(2, min(8, cores() // 2)), about, passed) for words, name, about in found]


def measured(*names):
    return [Part(name, measure.MEASURES[name][0], topic("measure", name)) for name in names]


def sanitized(kind, names):
    passed = lambda text: "" if "SUMMARY: " in text else "compute-sanitizer gave no summary"
    command = ["compute-sanitizer", "--tool", kind, "--error-exitcode", 99, "--print-limit", 20, *DEVICE_TEST]
    return [Part(f"{kind} {name}", 200, [*command, f"--test-case={name}"], 3, proves=passed) for name in names]


def all_parts(capability=""):
    """In the order of their worth."""
    train = lambda *words: topic("train", *words, "--seconds", 110)
    ranks = lambda *words: topic("ranks", *words, "--seconds", 60)
    graphs = lambda *words: topic("graphs", *words, "--seconds", 110)
    agree = lambda count, *words: ranks("agree", "--ranks", count, "--topologies", TOPOLOGIES, *words)
    starts = " && ".join(f"{shlex.quote(str(jobs.BUILD / 'bin' / name))} {words}" for name, words in (("starling-train", "--version"), ("starling-topo", "--help"), ("starling-bench", "floor")))
    torch = "import torch; print('PyTorch', torch.__version__, 'CUDA', torch.version.cuda, 'cuDNN', torch.backends.cudnn.version())"
    kernels = ["ncu", "--clock-control", "none", "--launch-skip", 1000, "--launch-count", 600, "--csv", "--metrics",
               "gpu__time_duration.sum,dram__bytes.sum,smsp__inst_executed.sum,smsp__issue_active.avg.pct_of_peak_sustained_active",
               jobs.BUILD / "bin/starling-bench", "step", "--device", "cuda", "--model", "gpt2", "--tokens", 1024, "--classes", 50257, "--batch", 16, "--steps", 5]  # fmt: skip
    operations = lambda precision: [jobs.BUILD / "bin/test_operations", "speed", "--device", "cuda", "--precision", precision, "--repeats", 5]
    return [
        *build_parts(capability),
        Part("programs start", 60, ["bash", "-c", starts]),
        Part("PyTorch", 90, [sys.executable, "-c", torch], environment=jobs.outer_libraries()),
        Part("first call of the device", 90, [jobs.BUILD / "bin/test_operations", "test", "--device", "cuda", "--only", "update "]),
        *test_parts(),
        Part("trainings", 150, train()),
        *measured("gpt2/starling32", "gpt2/compile", "operations/gpt2 50257 classes", "update/starling", "resnet50-bf16/starling", "functions/attention bf16",
                  "update/torch", "resnet50-bf16/eager", "resnet20/starling", "resnet20/graphs"),
        Part("graphs agree", 120, graphs("agree", "--jobs", 3)),
        Part("host", 60, graphs("host")),
        Part("ranks direct", 120, agree(2, "--transports", "direct"), about="ranks:direct"),
        Part("ranks nccl", 120, agree(2, "--transports", "nccl"), about="ranks:nccl"),
        Part("ranks staged", 120, agree(2, "--transports", "staged"), about="ranks:staged"),
        *measured("gpt2/starling16", "gpt2/eager", "gpt2/classes50304", "gpt2/not deterministic", "gpt2/issued", "gpt2/clip", "gpt2/accumulate2", "llama/starling",
                  "llama/compile",                   "matmul/torch", "resnet50-bf16/compile", "resnet20/eager", "resnet20/reduce-overhead", "functions/attention fp32", "resnet50-fp16/starling",
                  "resnet50-fp16/eager", "update/compiled", "resnet50-bf16/cudnn_benchmark", "resnet20/cudnn_benchmark", "resnet50-fp16/cudnn_benchmark",
                  "resnet50-fp16/compile", "resnet20/issued", "gpt2/starling8", "operations/gpt2 50304 classes", "functions/bf16", "functions/fp32"),
        Part("kernels of gpt2", 120, kernels),
        Part("operations bf16", 60, operations("bf16")),
        Part("operations fp32", 60, operations("fp32")),
        Part("a rank that overflows", 90, ranks("overflow"), about="ranks:staged"),
        Part("timeline of 2 ranks", 90, ranks("trace"), about="ranks:trace ranks:staged"),
        Part("a rank that is lost", 150, ranks("lost", "--jobs", 1), about="ranks:staged"),
        Part("a rank that others read is lost", 90, ranks("lost", "--transports", "direct", "--jobs", 1), about="ranks:direct"),
        Part("a rank that shares no memory", 60, ranks("refused"), about="ranks:direct"),
        Part("4 ranks direct", 150, agree(4, "--transports", "direct"), about="ranks:direct"),
        Part("4 ranks nccl and staged", 200, agree(4), about="ranks:staged"),
        Part("graphs of 2 ranks direct", 150, graphs("agree", "--ranks", 2, "--transport", "direct", "--jobs", 2), about="ranks:direct"),
        Part("graphs of 2 ranks nccl", 150, graphs("agree", "--ranks", 2, "--transport", "nccl", "--jobs", 2), about="ranks:nccl"),
        *measured("resnet18-bf16/starling", "resnet18-bf16/compile", "resnet18-bf16/cudnn_benchmark"),
        Part("exchange/exchange", 150, topic("measure", "exchange/exchange", "--known", "results.jsonl")),
        # Own kernels alone: a library's are its maker's to check. racecheck looks at shared memory,
        # which the others do not use.
        *sanitized("memcheck", ["cuda/update*", "cuda/operations: NaN*", "cuda/operations: products without*", "cuda/fill*,cuda/image*,cuda/squared_norms*,cuda/layers*"]),
        *sanitized("racecheck", ["cuda/operations: NaN*", "cuda/operations: products without*"]),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- running


class Running:
    def __init__(self, part, limit, out):
        self.part, self.limit, self.begin = part, limit, time.monotonic()
        self.log = out / "logs" / (re.sub(r"[^A-Za-z0-9.]+", "-", part.name).strip("-")[:80] + ".log")
        self.file = open(self.log, "wb")
        self.file.write((shlex.join(map(str, part.command)) + "\n").encode())
        self.file.flush()
        self.process, self.remark = None, ""
        try:
            self.process = jobs.start(part.command, stdout=self.file, stderr=self.file, env={**jobs.environment(), **part.environment}, cwd=out, preexec_fn=jobs.die_with_parent)
        except OSError as error:
            self.remark = str(error)

    def seconds(self):
        return time.monotonic() - self.begin

    def ended(self):
        return self.process is None or self.process.poll() is not None or self.seconds() > self.limit

    def result(self):
        """(result, remark, figures, lines of other ways than meant)."""
        status = self.process.poll() if self.process else None
        if self.process:
            jobs.end(self.process)  # what it left behind, too
        self.file.close()
        lines = [line.strip() for line in jobs.read(self.log).splitlines()[1:] if line.strip()]
        text, told = "\n".join(lines), list(dict.fromkeys(line[-300:] for line in lines if FALL_BACK.search(line)))[:3]
        errors = [line for line in lines if ERROR_LINE.search(line)] or lines[-2:]
        if self.process is None:
            missing = os.path.basename(str(self.part.command[0])) in ("compute-sanitizer", "ncu")
            return "skipped" if missing else "failed", self.remark, None, told
        if status is None:
            return ("no time" if self.limit < self.part.seconds else "failed"), f"no end within {self.limit:.0f} s; its last line: {lines[-1][:200] if lines else 'none'}", None, told
        if status == 77 or (status != 0 and (self.part.name == "PyTorch" or REFUSED.search(text))):
            return "skipped", " / ".join(lines[-1:])[:300], None, told
        wrong = self.part.proves(text) if status == 0 and self.part.proves else ""
        if status != 0 or wrong:
            return "failed", wrong or f"exit status {status}: " + " / ".join(errors[:2])[:400], None, told
        try:
            figures = jobs.last_json(text) if "{" in text else None
        except ValueError:
            figures = None
        return "passed", "" if figures else " / ".join(lines[-1:])[:200], figures, told


class Check:
    def __init__(self, options):
        self.out, self.running, self.load = options.out.resolve(), [], None
        self.left = (lambda: options.seconds - (time.monotonic() - BEGIN)) if options.seconds else (lambda: 1e9)
        self.devices = measure.gpus()
        described = subprocess.run(["git", "-C", str(jobs.ROOT), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=False) if shutil.which("git") else None
        self.commit = os.environ.get("STARLING_COMMIT") or (described.stdout.strip() if described else "") or "unknown"

    def results(self):
        """Of this commit the last line by part."""
        return {line["part"]: line for line in measure.read_results(self.out / "results.jsonl")[0] if line["commit"] == self.commit}

    def note(self, one):
        result, remark, figures, told = one.result()
        line = {"part": one.part.name, "result": result, "seconds": round(one.seconds(), 1), "remark": remark, "log": str(one.log.relative_to(self.out)), "about": one.part.about,
                "figures": figures, "told": told, "commit": self.commit, "device": "; ".join(self.devices), "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}  # fmt: skip
        with open(self.out / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        shown = json.dumps(figures)[:300] if figures else remark
        print(f"{one.part.name:<44} {result} ({one.seconds():.0f} s){': ' + shown if shown else ''}", flush=True)
        return result

    def run(self, parts):
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        if self.devices and shutil.which("nvidia-smi"):
            self.load = jobs.start(["nvidia-smi", "dmon", "-s", "puc", "-d", "2", "-o", "T"], stdout=open(self.out / "dmon.txt", "ab"), stderr=subprocess.STDOUT, preexec_fn=jobs.die_with_parent)
        waiting = list(parts)
        while waiting or self.running:
            while waiting and len(self.running) < waiting[0].at_a_time and all(one.part.at_a_time == waiting[0].at_a_time for one in self.running):
                part = waiting.pop(0)
                if self.left() >= min(part.seconds, LEAST):
                    self.running.append(Running(part, min(part.seconds, self.left()), self.out))
            for one in [one for one in self.running if one.ended()]:
                self.running.remove(one)
                if self.note(one) == "failed" and one.part.name in ("build", "programs start", "first call of the device"):
                    print(f"STOP: {one.part.name} failed; nothing else can be right", flush=True)
                    waiting = []
            time.sleep(0.05)

    def stop(self):
        for one in self.running:
            one.limit = 0
            self.note(one)
        if self.load:
            jobs.end(self.load)


def file_verdict(patterns, results):
    """How the tests of a source file ended: patterns as docs/checks.md has them."""
    wanted = set(patterns.split(","))
    found = {line["result"] for line in results.values() if wanted & set(line["about"].replace(" ranks:", ",ranks:").split(","))}
    return "**failed**" if "failed" in found else "not run" if patterns == "-" or not found else "passed" if found == {"passed"} else ", ".join(sorted(found))


def report(check, parts):
    results = check.results()
    count = lambda result: sum(line["result"] == result for line in results.values())
    missing = [part.name for part in parts if results.get(part.name, {"result": "no time"})["result"] == "no time"]
    rows = lambda head, lines: ["", "| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines)]
    known = {line["part"]: [line["figures"]] for line in results.values() if line.get("figures")}
    lines = [f"# GPU check: {count('passed')} passed, {count('failed')} failed, {count('skipped')} skipped, {len(missing)} to do", "", f"{'; '.join(check.devices) or 'no GPU'}; commit {check.commit}"]
    lines += ["", *(f"- {line['part']}: {line['remark']} ({line['log']})" for line in results.values() if line["result"] == "failed")]
    lines += rows(("what", "goal", "measured", ""), measure.goals(known))
    if told := {text: line["part"] for line in results.values() for text in line.get("told", [])}:
        lines += ["", "Other ways than meant:", "", *(f"- {part}: {text}" for text, part in told.items())]
    lines += rows(("source file", "on this device"), [(f"`{source}`", file_verdict(patterns, results)) for source, patterns in proof_rows()])
    lines += rows(("part", "result", "seconds", ""), [(line["part"], line["result"], line["seconds"], line["remark"]) for line in results.values()])
    (check.out / "report.md").write_text("\n".join(lines) + "\n")
    return count("failed"), missing


def main():
    bench = sys.argv[0].endswith("bench")
    parser = argparse.ArgumentParser(prog="scripts/gpu bench" if bench else "scripts/gpu_check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=jobs.BUILD / "gpu_check", help="folder of the results (default: gpu_check in the build folder)")
    parser.add_argument("--seconds", type=float, help="of all parts together")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="parts whose names begin with one of these words, separated by commas")
    parser.add_argument("--first", type=int, help="the first N of them alone")
    parser.add_argument("--again", action="store_true", help="do what is done, too")
    parser.add_argument("--list", action="store_true", help="print the parts and their commands, and do nothing")
    parser.add_argument("--report", action="store_true", help="write the report of what is there, and do nothing else")
    if bench:
        parser.add_argument("--once", action="store_true", help="as it always is")
        parser.add_argument("--bench", type=pathlib.Path, help="starling-bench, beside which the other programs lie")
    options = parser.parse_args()
    if bench and options.bench and options.bench.resolve().parent.parent != jobs.BUILD.resolve():
        os.environ["STARLING_BUILD"] = str(options.bench.resolve().parent.parent)
        os.execv(sys.executable, [sys.executable, "-B", str(jobs.ROOT / "scripts" / "gpu"), "bench", *sys.argv[1:]])
    check = Check(options)
    parts = all_parts(check.devices[0].split(",")[1].strip() if check.devices else "")
    if bench:
        parts = [part for part in parts if part.name in measure.MEASURES]
    for word in options.only:
        if not any(part.name.startswith(word) for part in parts):
            parser.error(f"--only: no part begins with '{word}'; --list names them")
    parts = [part for part in parts if not options.only or part.name.startswith(tuple(options.only))][: options.first]
    if options.list:
        for part in parts:
            print(f"{part.name}, {part.seconds:.0f} s at most, {part.at_a_time} at a time: {shlex.join(map(str, part.command))}")
        return 0
    done = {} if options.again else {name: line for name, line in check.results().items() if line["result"] != "no time"}
    wanted = [part for part in parts if part.name not in done]
    if done:
        print(f"done before: {len(parts) - len(wanted)} of {len(parts)} parts", flush=True)

    def ended(number, frame):
        for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ended)
    try:
        if not options.report:
            check.run(wanted if check.devices else [part for part in wanted if part.name in ("build", "programs start", "PyTorch")])
    except KeyboardInterrupt:
        print("ended from outside", flush=True)
    finally:
        check.stop()
    check.out.mkdir(parents=True, exist_ok=True)
    failed, missing = report(check, parts)
    print("\n".join(f"| {' | '.join(row)} |" for row in measure.goals({line["part"]: [line["figures"]] for line in check.results().values() if line.get("figures")})))
    print(f"report: {check.out / 'report.md'}; {failed} failed" + (f"; no time was left for {len(missing)}: the same command goes on" if missing else ""))
    if failed:
        return 1
    if not check.devices:
        print("there is no GPU here: nothing was proven on a device")
        return 4
    return 1 if missing else 0
