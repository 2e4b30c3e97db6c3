"""Damages a random file of a random checkpoint, many times, and looks whether a resumed run ever
trains on damage.

    scripts/trials corrupt --trials 20
    scripts/trials corrupt --trials 1000 --seed 7 --keep-failures runs/corrupt

A tiny model is trained in several ways (one rank and two, int8 messages with residuals, bf16 with
an average and a best checkpoint), with three checkpoints. A trial damages the newest one, or it
and the one before, or all: a bit, a byte or a page of a rank's file, its length, whose file it is
or of what step, the list DONE, or that it can be read at all; or the list DONE of the best
checkpoint. Then `--resume latest`:

  1. goes on from the newest checkpoint that is whole, and one line names the damaged file, and
     the tensor where the damage is in one;
  2. ends with the losses and the model of the run that nobody damaged;
  3. where no checkpoint is whole, ends with status 2 and one such line, and changes nothing;
  4. has ended within --limit seconds, and crashes never;
  5. where the best checkpoint is damaged, says so in one line, keeps it as best.damaged, and
     makes a new one at the next test.

Some trials damage a model file instead: `starling-train --evaluate` and `starling-predict` end
with 2 and name it. Damage that leaves all that is read as it was (a space of JSON made another)
may pass, and must change no number.
"""

import glob
import os
import pathlib
import random
import re
import shutil
import struct
import sys

import jobs
from jobs import Ended, differs, losses, read, split_safetensors, tensors
from trial.loop import finish, parser_of, print_table, run_all, write_config

TRAIN, PREDICT = map(jobs.built, ("starling-train", "starling-predict"))

STEPS, END = 12, 16  # where the damaged run stopped, and where the resumed one does
SAVED = [4, 8, 12]
PAGE = 4096

# name: (ranks, more keys)
RUNS = {
    "1 rank": (1, {}),
    "1 rank, bf16, ema, best": (1, {"precision": "bf16", "ema": {"decay": 0.9}, "checkpoint": {"every_steps": 4, "keep": 3, "best": True}}),
    "2 ranks": (2, {}),
    "2 ranks, int8": (2, {"sync": {"exchange": "int8", "bucket_mb": 0.001}}),
    "2 ranks, all-reduce": (2, {"sync": {"algorithm": "allreduce"}}),
}


CONFIG = {
    "model": {"type": "mlp", "hidden": [24]},
    "data": {"type": "synthetic", "limit": 64, "test_limit": 16, "image_size": 4},
    "batch_size": 4,
    "steps": STEPS,
    "checkpoint": {"every_steps": 4, "keep": 3},
    "evaluate": {"every_epochs": 0, "every_steps": 4},
    "log_every": 1,
}


def train(run, folder, limit, *more, output="run"):
    ranks = RUNS[run][0]
    launcher = [*jobs.MPIRUN, ranks] if ranks > 1 else []
    write_config(folder, **{**CONFIG, **RUNS[run][1]})
    # Root may read all files: without these rights a file's mode counts.
    mode_counts = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 and shutil.which("setpriv") else []
    return Ended([*mode_counts, *launcher, TRAIN, folder + "/config.json", "--output", f"{folder}/{output}", *more], folder, limit)


def evaluate(folder, limit):
    return [Ended([TRAIN, "--evaluate", folder + "/model"], folder, limit), Ended([PREDICT, folder + "/model", folder + "/picture.png"], folder, limit)]


class Reference:
    """Each run once as it is before the damage, and as it ends without."""

    def __init__(self):
        self.known = {}

    def of(self, run, work):
        if run not in self.known:
            folder = os.path.join(work, "run-" + re.sub(r"\W+", "-", run))
            os.makedirs(folder + "/model")
            for output, steps in (("run", STEPS), ("straight", END)):
                ended = train(run, folder, 120, "--set", f"steps={steps}", output=output)
                if ended.status != 0:
                    sys.exit(f"trials corrupt: '{run}' does not train at all: exit status {ended.status}\n{read(folder + '/stderr')}")
            shutil.copy(folder + "/run/model.safetensors", folder + "/model")
            picture = jobs.png(4, 4, [bytes((37 * (x + y * 4) + 11) % 256 for x in range(12)) for y in range(4)])
            pathlib.Path(folder, "picture.png").write_bytes(picture)
            answers = evaluate(folder, 120)
            if any(answer.status != 0 for answer in answers):
                sys.exit(f"trials corrupt: the model of '{run}' cannot be used: {[answer.lines for answer in answers]}")
            self.known[run] = (folder, (tensors(folder + "/straight/model.safetensors"), losses(folder + "/straight")), [a.out for a in answers])
        return self.known[run]


def place(rng, data):
    """Anywhere; the length, the header, its padding and the tensors as often as each other."""
    try:
        begin = 8 + struct.unpack_from("<Q", data)[0]
        text = len(data[:begin].rstrip(b" "))
    except struct.error:
        return rng.randrange(len(data))
    regions = [(0, 8), (8, text), (text, begin), (begin, len(data))]
    return rng.randrange(*rng.choice([region for region in regions if region[0] < region[1] <= len(data)] or [(0, len(data))]))


def bit(rng, data):
    data[place(rng, data)] ^= 1 << rng.randrange(8)


def byte(rng, data):
    data[place(rng, data)] ^= rng.randrange(1, 256)


def page(rng, data):
    at = rng.randrange(0, len(data), PAGE)
    data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))


def extend(rng, data):
    data += rng.choice([bytes, rng.randbytes])(rng.randrange(1, 5000))


# Damages: each takes (rng, path of the file, another checkpoint's folder) and changes what is
# there.
def edited(edit):
    def damage(rng, path, _):
        with open(path, "r+b") as file:
            data = bytearray(file.read())
            edit(rng, data)
            file.seek(0)
            file.write(data)

    return damage


def instead(make):
    def damage(_, path, __):
        os.unlink(path)
        make(path)

    return damage


IN_FILE = {
    "bit": edited(bit),
    "byte": edited(byte),
    "page": edited(page),
    "truncated": lambda rng, path, _: os.truncate(path, rng.randrange(os.path.getsize(path))),
    "empty": lambda rng, path, _: os.truncate(path, 0),
    "extended": edited(extend),
    "of an older step": lambda rng, path, other: shutil.copy(os.path.join(other, os.path.basename(path)), path),
    "missing": lambda rng, path, _: os.unlink(path),
    "unreadable": lambda rng, path, _: os.chmod(path, 0),
    "a folder": instead(os.mkdir),
    "a pipe": instead(os.mkfifo),
    "a link to itself": instead(lambda path: os.symlink(os.path.basename(path), path)),
}
IN_DONE = [name for name in IN_FILE if name != "page"]
# A best checkpoint lies there whole, or not at all. It has nobody beside it to be mistaken for.
IN_BEST = [name for name in IN_DONE if name != "of an older step"]
IN_MODEL = [*IN_FILE][:6]
# DONE alone says that a checkpoint is one. Without, it is none, as after a kill, and there is
# nothing to tell.
NONE_LEFT = ("missing", "a folder", "a pipe", "a link to itself")


def draw(rng, runs):
    run = rng.choice(runs)
    ranks = RUNS[run][0]
    has_best = RUNS[run][1].get("checkpoint", {}).get("best", False)
    target = rng.choice(["rank", "rank", "rank", "DONE", "model", *(["best", "best"] if has_best else [])])
    damages = {"rank": [*IN_FILE, *(["swapped"] if ranks > 1 else [])], "DONE": IN_DONE, "best": IN_BEST, "model": IN_MODEL}[target]
    return {
        "run": run,
        "target": target,
        "damage": rng.choice(damages),
        "rank": rng.randrange(ranks),
        # how many of the newest
        "checkpoints": rng.choice([1, 1, 1, 1, 2, 3]) if target in ("rank", "DONE") else 0,
        "seed": rng.randrange(1 << 32),
    }


def bytes_of(path):
    """None where it is no file: a pipe would keep the reader waiting."""
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def can_be_read(path):
    return os.path.isfile(path) and os.stat(path).st_mode & 0o777 != 0


def changed_tensors(before, after):
    """Of two files of a rank: which tensors differ; None where more than tensors does."""
    if after is None or len(before) != len(after):
        return None
    header, begin = split_safetensors(before)
    if before[:begin] != after[:begin]:
        return None
    entries = ((name, *entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")
    return [name for name, low, high in entries if before[begin + low : begin + high] != after[begin + low : begin + high]]


def damage_step(trial, rng, run_folder, step, whole):
    """Damages one checkpoint until it differs; `whole` is the run before any damage. Returns a
    pattern of the line that names it."""
    folder = f"{run_folder}/checkpoints/step-{step}"
    name = f"rank-{trial['rank']}.safetensors" if trial["target"] == "rank" else "DONE"
    path = f"{folder}/{name}"
    before = bytes_of(path)
    if trial["damage"] == "swapped":
        for source, target in (("rank-0.safetensors", "swapped"), ("rank-1.safetensors", "rank-0.safetensors"), ("swapped", "rank-1.safetensors")):
            os.rename(f"{folder}/{source}", f"{folder}/{target}")
        return rf"step-{step}/rank-\d\.safetensors"
    other = f"{whole}/checkpoints/step-{min(SAVED) if step != min(SAVED) else max(SAVED)}"
    while True:
        IN_FILE[trial["damage"]](rng, path, other)
        if not can_be_read(path) or bytes_of(path) != before:
            break  # a page may have been zero before
    if trial["target"] == "DONE":
        return rf"step-{step}/DONE|step-{step} holds no complete checkpoint"
    names = changed_tensors(before, bytes_of(path)) if can_be_read(path) else None
    inside = "" if names is None else rf": tensor '({'|'.join(map(re.escape, names))})'"
    return rf"step-{step}/{re.escape(name)}{inside}"


def try_checkpoint(trial, folder, limit, reference, work):
    source, expected, _ = reference.of(trial["run"], work)
    shutil.copytree(source + "/run", folder + "/run")
    rng = random.Random(trial["seed"])
    damaged = SAVED[::-1][: trial["checkpoints"]]
    patterns = {step: damage_step(trial, rng, folder + "/run", step, source + "/run") for step in damaged}
    names = sorted(os.listdir(folder + "/run/checkpoints"))
    ended = train(trial["run"], folder, limit, "--set", f"steps={END}", "--resume", "latest")
    whole = next((step for step in SAVED[::-1] if step not in damaged), None)
    skipped = damaged
    if trial["target"] == "DONE" and trial["damage"] in NONE_LEFT:
        skipped = []
        whole = whole or "no checkpoint"
    if ended.status is None:
        return [f"it had not ended after {limit:g} s"]
    wrong = []
    if whole is None:
        if ended.status != 2:
            wrong.append(f"no checkpoint is whole, and it ends with {ended.status}")
        if sorted(os.listdir(folder + "/run/checkpoints")) != names:
            wrong.append("no checkpoint is whole, and some were renamed")
    elif ended.status != 0:
        wrong.append(f"step {whole} is whole, and it ends with {ended.status}")
    else:
        said = f"no checkpoint in {folder}/run yet: starting afresh\n" if whole == "no checkpoint" else f"continuing after step {whole}\n"
        if said not in ended.out:
            wrong.append(f"it does not say '{said.strip()}': {re.findall('continuing.*', ended.out)}")
        wrong += differs(folder + "/run", expected)
        aside = sorted(glob.glob(folder + "/run/checkpoints/*.damaged"))
        if len(aside) != len(skipped):
            wrong.append(f"set aside are {aside}")
    if len(ended.lines) != (1 if skipped else 0):
        wrong.append(f"{len(ended.lines)} lines: {ended.lines}")
    elif skipped:
        if not re.search(patterns[skipped[0]], ended.lines[0]):
            wrong.append(f"the line does not match '{patterns[skipped[0]]}': {ended.lines[0]}")
        if whole is not None and f"going on from step {whole}, the newest whole checkpoint" not in ended.lines[0]:
            wrong.append(f"the line does not say where it goes on: {ended.lines[0]}")
    return wrong


def try_best(trial, folder, limit, reference, work):
    source, expected, _ = reference.of(trial["run"], work)
    shutil.copytree(source + "/run", folder + "/run")
    best = folder + "/run/checkpoints/best"
    before, rng = bytes_of(best + "/DONE"), random.Random(trial["seed"])
    while can_be_read(best + "/DONE") and bytes_of(best + "/DONE") == before:
        IN_FILE[trial["damage"]](rng, best + "/DONE", None)
    ended = train(trial["run"], folder, limit, "--set", f"steps={END}", "--resume", "latest")
    if ended.status is None:
        return [f"it had not ended after {limit:g} s"]
    wrong = [f"it ends with {ended.status}"] if ended.status != 0 else []
    wrong += differs(folder + "/run", expected)
    if len(ended.lines) != 1 or "checkpoints/best/DONE" not in ended.lines[0]:
        wrong.append(f"not one line that names it: {ended.lines}")
    if not os.path.isdir(best + ".damaged"):
        wrong.append("it is not set aside")
    if f'"step": {END}' not in read(best + "/DONE"):
        wrong.append("there is no new one")
    return wrong


def content(data):
    """What is read of a model file: tensors, and metadata without the checksums that guard them."""
    header, begin = split_safetensors(data)
    metadata = {key: value for key, value in header.pop("__metadata__", {}).items() if '"tensors"' not in value}
    return header, data[begin:], metadata


def unchanged(before, after):
    try:
        return content(before) == content(after)
    except (ValueError, struct.error, AttributeError, TypeError):
        return False


def try_model(trial, folder, limit, reference, work):
    source, _, answers = reference.of(trial["run"], work)
    shutil.copytree(source + "/model", folder + "/model")
    shutil.copy(source + "/picture.png", folder)
    path = folder + "/model/model.safetensors"
    before, rng = bytes_of(path), random.Random(trial["seed"])
    while bytes_of(path) == before:
        IN_FILE[trial["damage"]](rng, path, None)
    harmless = unchanged(before, bytes_of(path))
    wrong = []
    for program, answer, ended in zip(("--evaluate", "starling-predict"), answers, evaluate(folder, limit)):
        if ended.status is None:
            wrong.append(f"{program} had not ended after {limit:g} s")
        elif ended.status == 0:
            if not harmless or ended.out != answer.replace(source, folder):
                wrong.append(f"{program} takes it: {ended.out.strip().splitlines()[-1:]}")
        elif ended.status != 2 or len(ended.lines) != 1 or "model.safetensors" not in ended.lines[0]:
            wrong.append(f"{program} ends with {ended.status} and {ended.lines}")
    return wrong


def main():
    parser = parser_of(__doc__, 30.0, "seconds that a program may take")
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS), metavar="NAME", help="; ".join(RUNS))
    options = parser.parse_args()
    jobs.need("starling-train", "starling-predict")
    reference = Reference()

    def attempt(trial, folder):
        os.makedirs(folder)
        tried = {"model": try_model, "best": try_best}.get(trial["target"], try_checkpoint)
        return tried(trial, folder, options.limit, reference, os.path.dirname(folder))

    counts, failures = run_all(options, lambda rng, _: draw(rng, options.runs), attempt, lambda trial: (trial["target"], trial["damage"]))
    print_table(("file", "damage"), counts)
    finish(counts, failures)

