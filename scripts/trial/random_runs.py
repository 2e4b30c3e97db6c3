"""Draws what users may give the programs, many times, and compares what comes out with a model of
what must.

    scripts/trials random --trials 300
    scripts/trials random --seed 7 --only 4711 --keep-failures runs/random

A trial is one of

  pictures   a folder of pictures: odd names, broken and other files, links, val/ or val_fraction,
             limits. A dry run or a training must count classes, pictures of each and what is left
             out, or name what is wrong. Some are predicted, or made shards, which train to the same
             bits;
  config     a config on made-up images: steps, epochs, tests, checkpoints and rates by
             docs/semantics.md. Or up to two faults in it, of keys that docs/config.md lists:
             misspelled, of another type, out of range, twice, of another part, or text that is no
             JSON. They must be named;
  options    spellings and orders of the command line, also by launch.sh; --resume of what is there,
             missing, or another config's;
  signal     a signal at a random moment of training, a test, --evaluate, starling-prepare or
             starling-predict. It must end in time, as docs/outputs.md says, and what goes on must
             end with the bits of a run that nobody stopped.

The model is written from docs/ alone. An error must be one line. Tables and texts are tried in the
same way by build/bin/fuzz_tables and fuzz_texts.
"""

import glob
import json
import math
import os
import random
import re
import signal
import threading
import traceback
from collections import Counter
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import jobs
from jobs import Ended, differs, losses, read, split_safetensors, tensors
from trial.loop import finish, parser_of, print_table, run_all

TRAIN, PREDICT, PREPARE = map(jobs.built, ("starling-train", "starling-predict", "starling-prepare"))
ROOT = str(jobs.ROOT)
LAUNCH = os.path.join(ROOT, "scripts", "launch.sh")
GOLDEN = sorted(glob.glob(ROOT + "/tests/golden/pictures/*.jpg") + glob.glob(ROOT + "/tests/golden/pictures/*.png"))
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
STOP_S = 5.0  # within which a signal must end a program; 2 on an idle machine


def bytes_of(path):
    return Path(path).read_bytes()


def put(path, content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def files_of(folder):
    """Below a folder, by name."""
    found = glob.glob(glob.escape(folder) + "/**", recursive=True, include_hidden=True)
    return {os.path.relpath(path, folder): bytes_of(path) for path in found if os.path.isfile(path)}


def refused(ended, *names):
    """What is wrong with a refusal that must name one of these."""
    if ended.status != 2:
        return [f"ends with {ended.status} in place of 2 for {names}: {ended.err.strip()[-300:]}"]
    lines = ended.lines if "mpirun" in ended.err else ended.err.rstrip("\n").split("\n")
    if sum(not line.startswith(("warning: ", "starling-prepare: [picture] ")) for line in lines) != 1:
        return [f"an error of several lines: {ended.err!r}"]
    return [] if any(name in ended.err for name in names) else [f"names none of {names}: {ended.err.strip()}"]


def worked(ended):
    return [] if ended.status == 0 else [f"ends with {ended.status}: {ended.err.strip()[-400:]}"]


def ended_as(run):
    return tensors(run + "/model.safetensors"), losses(run)


# ---- pictures

CLASSES = ["ant", "bee", "Ant", "ant ", " bee", "café", "cafe\u0301", "tab\there", "two\nlines", "\x01control", "it's", 'quo"te', "a.b", "a..", "-n", "--help",
           "x" * 150, "100%", "{}", "{0}", "back\\slash", "class.jpg", "\u2028", "\U0001f41d", "a,b", "a=b", "0", "*", "$HOME", "CON", "n + 1"]  # fmt: skip
FILES = ["a", "1", "b c", "trail ", "café", "cafe\u0301", "n\nl", "q'\"", "x" * 240, "-", "{}", "%s", "a.b", "\udce9", "tab\t", ".hid", "sub/a", "sub/deep.jpg/c", "\x7f"]
OTHERS = {"notes.txt": ".txt", "x.webp": ".webp", "README": "without an ending", "y.JPG.bak": ".bak", "jpg": "without an ending", "z.GIF": ".gif", "odd.t\nt": ".t\\nt"}


def shown(name, limit=80):
    """As the programs write a name into a line."""
    plain = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    escape = lambda c: plain.get(c) or "".join(f"\\x{byte:02x}" for byte in c.encode(errors="surrogateescape"))
    odd = lambda c: ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029" or "\udc80" <= c <= "\udcff"
    return "".join(escape(c) if odd(c) else c for c in name[:limit]) + "…" * (len(name) > limit)


def make_class(rng, folder, name, elsewhere, breakable):
    """A class folder, and what is in it: pictures, how many of them are surely bad, or where all of
    them is read (cut), their names, other files."""
    made, place = SimpleNamespace(name=name, pictures=0, bad=0, cut=0, names=[], others=[]), folder + "/" + name
    if rng.random() < 0.05:  # a link to it
        os.symlink(elsewhere, place)
        place = elsewhere
    os.makedirs(place)
    for file in rng.sample(FILES, 0 if rng.random() < 0.02 else rng.randint(1, 6)):
        path, source = f"{place}/{file}" + rng.choice([".jpg", ".jpeg", ".png", ".PNG", ".Jpg"]), rng.choice(GOLDEN)
        fault = rng.choice(["empty", "text", "head", "nothing", "cut"]) if rng.random() < breakable else "hidden" if file.startswith(".") else ""
        if not file.startswith("."):  # hidden files are passed over
            made.pictures += 1
            made.names.append(shown(f"/{name}{path.removeprefix(place)}", 1000))
            made.bad += fault not in ("", "cut")
            made.cut += fault == "cut"
        if fault == "nothing" or (not fault and rng.random() < 0.1):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink("/nowhere/x.jpg" if fault else source, path)
        else:
            whole = bytes_of(source)
            put(path, {"": whole, "empty": b"", "head": whole[:12], "cut": whole[: len(whole) * rng.randint(30, 60) // 100]}.get(fault, b"no picture"))
    for file in rng.sample(list(OTHERS), rng.choice([0, 0, 1, 2])):
        put(f"{place}/{file}", "other")
        made.others.append(OTHERS[file])
    return made


class Pictures:
    """A tree of pictures, and what must be said of it: `wrong` are the reasons to refuse it."""

    def __init__(self, rng, folder):
        self.path, self.wrong, self.splits, breakable = folder + "/pets", [], {}, 0.15 * (rng.random() < 0.25)
        names = rng.sample(CLASSES, rng.randint(1, 5)) + ["latin\udce9"] * (rng.random() < 0.02)
        for split in ["train", "val"] if rng.random() < 0.5 else ["train"]:
            place, mine = f"{self.path}/{split}", names[:-1] if split == "val" and rng.random() < 0.08 else names
            mine = mine + ["odd one"] * (split == "val" and rng.random() < 0.05)
            os.makedirs(place)
            self.splits[split] = [make_class(rng, place, name, f"{folder}/{split}-{i}", breakable) for i, name in enumerate(mine)]
            self.splits[split].sort(key=lambda one: one.name.encode(errors="surrogateescape"))
            self.wrong += [f"{shown(one.name, 1000)} has no pictures" for one in self.splits[split] if not one.pictures]
            self.wrong += ["latin\\xe9"] * ("latin\udce9" in mine)
            if rng.random() < 0.02:
                os.symlink("/nowhere/dog", place + "/dog")
                self.wrong.append("dog is a link to nothing")
        self.beside = rng.random() < 0.1
        for name in ["stray.PNG"] * self.beside + [".hidden/a.jpg"] * (rng.random() < 0.1):
            put(self.path + "/train/" + name, "x")
        train, val = self.splits["train"], self.splits.get("val", [])
        self.fraction = 0 if val and rng.random() < 0.97 else rng.choice([0, 0.4, 0.4, 0.4, 0.1, 0.25, 0.3, 0.5, 0.75, 0.999, 0.001])
        counts = [one.pictures for one in train]
        aside = [one.pictures for one in val] if val else [max(min(math.floor(n * self.fraction + 0.5), n - 1), 0) for n in counts]
        self.counts = {"train": counts if val else [n - m for n, m in zip(counts, aside)], "test": aside}
        self.limits = {split: rng.choice([0, 0, 0, 1, 2, 5, 100]) for split in self.counts}
        self.totals = {split: min(sum(self.counts[split]), limit or 1000) for split, limit in self.limits.items()}
        self.skip, self.batch, self.all = rng.random() < 0.6, rng.choice([1, 1, 2, 3]), train + val
        if val:
            self.wrong += ["the same folders in both"] * ([a.name for a in train] != [b.name for b in val]) + ["leave one of them out"] * (self.fraction > 0)
        else:
            self.wrong += [f"there are no classes in {self.path}/val" if not self.fraction else "is a whole picture"] * (not any(aside))
        self.wrong += ["batch_size"] * (self.totals["train"] < self.batch)
        data = {"type": "image_folder", "path": self.path, "image_size": 8, "test_resize": 8, "test_crop": 8, "threads": 1, "val_fraction": self.fraction,
                # fmt: skip
                "limit": self.limits["train"], "test_limit": self.limits["test"], "on_bad_image": "skip" if self.skip else "error"}
        put(folder + "/config.json", json.dumps({"model": {"type": "mlp", "hidden": [2]}, "batch_size": self.batch, "epochs": 1, "threads": 1, "log_every": 1, "tensorboard": False,
                                                 # fmt: skip
                                                 "checkpoint": {"every_epochs": 0}, "optimizer": {"lr": 1e-4}, "data": data}))

    def said(self, out):
        """What is wrong with what a run says of its pictures."""
        line = re.search(r"^pictures: (\d+) for training \+ (\d+) for tests: (.*)$", out, re.M)
        numbers = [(int(a), int(b)) for a, b in re.findall(r" (\d+) \+ (\d+)(?=, |$)", line[3])] if line else []
        names = [shown(one.name) for one in self.splits["train"]]
        if ", ".join(f"{name} {a} + {b}" for name, (a, b) in zip(names, numbers)) != (line or "????")[3]:
            return [f"the classes are {names}: {line and line[0]}"]
        wrong = []
        for column, (split, total) in enumerate(self.totals.items()):
            counts, found = self.counts[split], [pair[column] for pair in numbers]
            if not int(line[column + 1]) == sum(found) == total or any(abs(n - count * total / sum(counts)) >= 1 for n, count in zip(found, counts)):
                wrong.append(f"{split}: {total} of {counts} must be taken, in proportion: {line[0]}")
        others = Counter([kind for one in self.all for kind in one.others] + [".png beside the class folders"] * self.beside)
        for text, expected in (
            (r"^files that are left out: (.*); needed", [f"{count} {kind}" for kind, count in others.items()]),
            (r"^classes without a test picture: (.*)$", [name for name, (_, tests) in zip(names, numbers) if tests == 0]),
        ):
            found = re.search(text, out, re.M)
            if sorted(found[1].split(", ") if found else []) != sorted(", ".join(expected).split(", ") if expected else []):
                wrong.append(f"{text} {expected}: {found and found[0]}")
        return wrong


def try_pictures(rng, folder, limit, _):
    tree, run = Pictures(rng, folder), folder + "/run"
    dry = rng.random() < 0.4
    ended = Ended([TRAIN, folder + "/config.json", "--output", run, *["--dry-run"] * dry], folder, limit)
    if tree.wrong or dry:
        return refused(ended, *tree.wrong) if tree.wrong else worked(ended) or tree.said(ended.out)
    surely, steps = sum(one.bad for one in tree.all), tree.totals["train"] // tree.batch
    perhaps, names = surely + sum(one.cut for one in tree.all), [name for one in tree.all for name in one.names]
    # each picture is read, in training or a test
    whole = not any(tree.limits.values()) and tree.totals["train"] % tree.batch == 0
    if perhaps and (ended.status == 2 or (whole and surely and not tree.skip)):
        return refused(ended, *(["no training picture of the class", "no test picture", "test samples can be read"] if tree.skip else names))
    wrong = worked(ended) or tree.said(ended.out)
    if wrong:
        return wrong
    summary = json.loads(read(run + "/summary.json"))
    if not (surely if whole else 0) <= summary["bad_pictures"] <= perhaps or summary["steps"] != steps:
        wrong.append(f"{surely} to {perhaps} bad pictures and {steps} steps: {summary}")
    header, _ = split_safetensors(bytes_of(run + "/model.safetensors"))
    if json.loads(header["__metadata__"]["starling.classes"]) != [one.name for one in tree.splits["train"]]:
        wrong.append("the model has other classes")
    if bool(re.search("warning: .*one class", ended.out + ended.err)) != (len(tree.splits["train"]) == 1):
        wrong.append("a warning of a single class")
    if rng.random() < 0.3:
        predicted, bad = Ended([PREDICT, run, tree.path], folder, limit), perhaps + tree.beside
        expected = (2 if bad else 0, len(names) - perhaps, bad)
        if (predicted.status, predicted.out.count("\n"), predicted.err.count("\n")) != expected:
            wrong.append(f"status, predictions and complaints are not {expected}: {predicted.status}, {predicted.out[-300:]}, {predicted.err[-300:]}")
    if rng.random() < 0.3:
        made = Ended([PREPARE, "images", tree.path, folder + "/shards", *["--on-bad-image", "skip"] * tree.skip], folder, limit)
        if perhaps and (made.status == 2 or not tree.skip):
            return wrong + refused(made, *(["no pictures", "no picture"] if tree.skip else names))
        wrong += worked(made) or worked(Ended([PREPARE, "check", folder + "/shards"], folder, limit))
        if not perhaps and not wrong:
            again = ["--set", "data.type=shards", "--set", f"data.path={folder}/shards", "--output", folder + "/again"]
            wrong += worked(Ended([TRAIN, folder + "/config.json", *again], folder, limit)) or differs(folder + "/again", ended_as(run))
    return wrong


# ---- configs


def documented():
    """docs/config.md: {"": {"": {key: (type, allowed)}}, "data": {"synthetic": {…}}, …}"""
    tables, part, of = {"": {"": {}}}, "", ""
    for line in read(ROOT + "/docs/config.md").split("\n"):
        if line.startswith("# "):
            part = (re.search(r"\(`([\w.]+)\.type`\)", line) or ["", "-"])[1]
        elif line.startswith("## "):
            part, of = ("", "") if line == "## The config" else (part, line[3:])
        row = re.match(r"\| `([\w.]+)` \| ([^|]+) \| [^|]* \| ([^|]*) \|", line)
        if row:
            tables.setdefault(part, {}).setdefault(of, {})[row[1]] = (row[2], row[3].replace("&lt;", "<").strip())
    return tables


DOCUMENTED, PARTS = documented(), ["data", "model", "optimizer", "schedule"]


def at(config, path):
    return reduce(lambda holder, key: holder.get(key) if isinstance(holder, dict) else None, path.split(".") if path else [], config)


def place(config, path, value):
    *above, last = path.split(".")
    holder = reduce(lambda holder, key: holder.setdefault(key, {}) if isinstance(holder, dict) else None, above, config)
    if isinstance(holder, dict):
        holder[last] = value


def valid_config(rng):
    schedule = rng.choice([{"type": "constant"}, {"type": "cosine", "min_lr": 0.001}, {"type": "linear", "final_lr": 0.01}, {"type": "inverse_sqrt"}, {"type": "step", "step_size": 2},
                           # fmt: skip
                           {"type": "multistep", "milestones": rng.choice([[0.5], [1, 2], [0.25, 1.5]]), "gamma": 0.5}])
    if rng.random() < 0.5:
        schedule.update(warmup_steps=rng.choice([1, 3, 7, 50]), warmup_factor=rng.choice([0, 0.01, 0.5]))
    channels, two = rng.randint(1, 3), lambda: {key: rng.randint(0, 5) for key in ("every_epochs", "every_steps") if rng.random() < 0.6}
    return {
        "seed": rng.randrange(1000), "threads": 1, "tensorboard": False, "log_every": rng.choice([1, 1, 3, 10]), "model": {"type": "mlp", "hidden": rng.choice([[], [3], [4, 2]])},
        "data": {"type": "synthetic", "limit": rng.randint(4, 60), "test_limit": rng.randint(1, 9), "image_size": rng.randint(1, 4), "channels": channels,
                 "classes": rng.randint(2, 12), "normalize": {"mean": [0.5] * channels, "std": [0.25] * channels}},
        "batch_size": rng.randint(1, 8), "accumulate": rng.choice([1, 1, 1, 2, 3]), "optimizer": {"type": rng.choice(["sgd", "adamw"]), "lr": rng.choice([0.1, 0.02])},
        "schedule": schedule, "evaluate": two(), "checkpoint": {**two(), "keep": rng.randint(1, 5)},
        # fmt: skip
        **({"epochs": rng.choice([1, 2, 3, 0.5, 1.3])} if rng.random() < 0.6 else {"steps": rng.randint(1, 30)})}


def due(keys, updates, total):
    """The steps after which a test or a checkpoint is due."""
    epochs = keys.get("every_epochs", 0 if "every_steps" in keys else 1)
    return sorted({total}.union(*(range(every, total + 1, every) for every in (epochs * updates, keys.get("every_steps", 0)) if every)))


def rate(config, t, updates, total):
    """docs/semantics.md, "Learning-rate schedules"."""
    schedule, base = config["schedule"], config["optimizer"]["lr"]
    kind, warm, share = schedule["type"], schedule.get("warmup_steps", 0), schedule.get("warmup_factor", 0.01)
    base *= share + (1 - share) * t / warm if t < warm else 1
    if kind in ("cosine", "linear") and t >= warm:
        least, length = schedule.get("min_lr", schedule.get("final_lr")), total - warm - (kind == "linear")
        done = (t - warm) / length if length else 1  # an update after the warm-up is the last, too
        return least + (base - least) * ((1 + math.cos(math.pi * done)) / 2 if kind == "cosine" else 1 - done)
    return base * {
        "multistep": lambda: schedule["gamma"] ** sum(t >= math.ceil(m * updates - 1e-9) for m in schedule["milestones"]),
        "step": lambda: 0.1 ** (t // (schedule["step_size"] * updates)),
        "inverse_sqrt": lambda: math.sqrt(max(warm, 1) / max(t, warm, 1)),
    }.get(kind, lambda: 1)()  # fmt: skip


def check_run(config, ranks, ended, run):
    """What of a run is not as its config says."""
    data, batches = config["data"], config["data"]["limit"] // ranks // config["batch_size"]
    updates = batches // config["accumulate"]
    if updates == 0:
        return refused(ended, "accumulate" if batches else "batch_size")
    wrong = worked(ended)
    if wrong:
        return wrong
    total = config.get("steps") or math.ceil(config["epochs"] * updates - 1e-9)
    widths = [data["channels"] * data["image_size"] ** 2, *config["model"]["hidden"], data["classes"]]
    expected = {"steps": total, "ranks": ranks, "parameters": sum((a + 1) * b for a, b in zip(widths, widths[1:])), "epochs": total / updates}
    summary, entries = json.loads(read(run + "/summary.json")), [json.loads(line) for line in read(run + "/metrics.jsonl").splitlines()]
    lines, every = [entry for entry in entries if "loss" in entry], config["log_every"]
    kept = due(config["checkpoint"], updates, total)[-config["checkpoint"].get("keep", 2) :]
    for name, found, right in (
        ("summary", {key: summary[key] for key in expected}, expected),
        ("lines", [entry["step"] for entry in lines], sorted({*range(every, total + 1, every), total})),
        ("epochs", [entry["epoch"] for entry in lines], [entry["step"] / updates for entry in lines]),
        ("tests", [entry["step"] for entry in entries if "test_loss" in entry], due(config["evaluate"], updates, total)),
        ("checkpoints", sorted(int(path.split("-")[-1]) for path in glob.glob(run + "/checkpoints/step-*")), kept),
    ):
        wrong += [f"{name}: {found}, not {right}"] * (found != right)
    for entry in lines:
        right = rate(config, entry["step"] - 1, updates, total)
        if not math.isclose(entry["lr"], right, rel_tol=1e-9, abs_tol=1e-15):
            wrong.append(f"rate of step {entry['step']} of {total}: {entry['lr']}, not {right}")
    return wrong[:3]


def misspelled(rng, word):
    i = rng.randrange(len(word))
    return rng.choice([word[:i] + word[i + 1 :], word[:i] + rng.choice("aeioxz_") + word[i:], word[:i] + word[i + 1 : i + 2] + word[i] + word[i + 2 :], word.upper(), word + "s"])


def bad_values(kind, allowed):
    """Of another type, or out of range."""
    numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", allowed)]
    values = {"integer": [[], {}, 1.5, "3", True, None, -1e30, 1e30], "number": [[], {}, "0.1", False, None], "boolean": [[], {}, "true", 1, None],
              # fmt: skip
              "text": [[], {}, 5] + [True] * ("true" not in allowed) + ["no such"] * ("," in allowed), "object": ["text", 7, [], True]}.get(kind, [7 if kind.startswith(("boolean", "object")) else True])
    if kind in ("integer", "number") and numbers:
        whole = int if kind == "integer" else float
        values += [whole(numbers[0] - 1)] + [whole(numbers[-1] + 1)] * ("…" in allowed) + [whole(numbers[0])] * allowed.startswith("> ") + [whole(numbers[-1])] * ("< " in allowed)
    return values


TEXTS = [lambda rng, text: (text[:-1] + ",}", "not valid JSON"), lambda rng, text: (text[: rng.randrange(len(text))], "config.json"), lambda rng, text: (text + "}", "config.json"),
         lambda rng, text: (text[:-1] + ', "seed": 3, "seed": 3}', "seed"), lambda rng, text: ("// a word\n" + text, "config.json"), lambda rng, text: (text.replace('"', "'"), "config.json"),
         # fmt: skip
         *(lambda rng, text, number=number: (text[:-1] + f', "clip_norm": {number}}}', name) for number, name in (("1e-400", "1e-400"), ("1e400", "1e400"), ("NaN", "config.json")))]


def break_config(rng, keys, config):
    """Does something wrong to the config; gives what the error may name."""
    what = rng.choice(["misspelled", "value", "value", "foreign"])
    path = rng.choice([path for path in keys if what == "value" or at(config, path) is not None])
    above, _, last = path.rpartition(".")
    holder = at(config, above)
    if what == "misspelled":
        wrong = misspelled(rng, last)
        if not wrong or not isinstance(holder, dict) or last not in holder or wrong in holder or f"{above}.{wrong}".lstrip(".") in keys:
            return []
        holder[wrong] = holder.pop(last)
        # its mean and deviation do not fit the default
        return [wrong] + ["data.normalize"] * (path == "data.channels")
    if what == "value":
        # Where a run has one of epochs and steps, the other is another fault; sync.verify is a
        # number, too.
        if (path in ("epochs", "steps", "sync.verify") and at(config, path) is None) or (path.split(".")[0] in PARTS and path.split(".")[0] not in config):
            return []
        place(config, path, rng.choice(bad_values(*keys[path])))
        return [path] + [above] * above.count(".")
    part = rng.choice(PARTS)
    path = part + "." + rng.choice(sorted({key for table in DOCUMENTED[part].values() for key in table if "." not in key}))
    if path in keys or at(config, path) is not None or part not in config:
        return []
    place(config, path, 1)
    return [path]


def try_config(rng, folder, limit, _):
    config, named, settings, run = valid_config(rng), [], [], folder + "/run"
    keys = dict(DOCUMENTED[""][""])
    for part in PARTS:
        keys.update({f"{part}.{key}": row for key, row in DOCUMENTED[part].get(config[part]["type"], {}).items()})
    whole = json.dumps(config)
    faults = rng.choice([0, 0, 1, 1, 1, 2])
    for _ in range(faults):
        named += break_config(rng, keys, config)
    text = json.dumps(config)
    value = at(config, named[0]) if faults == 1 and named else None
    if value is not None and not isinstance(value, str) and "." in named[0] and rng.random() < 0.2:
        text, settings = whole, ["--set", f"{named[0]}={json.dumps(value)}"]
    elif rng.random() < 0.15:
        text, name = rng.choice(TEXTS)(rng, text)
        named.append(name)
    put(folder + "/config.json", text)
    ranks = 2 if not named and rng.random() < 0.04 else 1
    ended = Ended([*[*jobs.MPIRUN, "2"] * (ranks - 1), TRAIN, folder + "/config.json", "--output", run, *settings], folder, limit)
    if not named:
        return check_run(config, ranks, ended, run)
    return refused(ended, *named) + ["leaves an output"] * bool(files_of(run))


# ---- options

SHORT = {"model": {"type": "mlp", "hidden": [2]}, "data": {"type": "synthetic", "limit": 20, "test_limit": 4, "image_size": 2}, "batch_size": 4, "steps": 4, "threads": 1,
         "tensorboard": False, "log_every": 1}  # fmt: skip
NAMES = ["run", "two words", "café", "l\udce9", "-dash", "a=b", "x.y", "new\nline", "deep/er/run", "it's", "{}", "%d", "run/"]
SETTINGS = [("batch_size", 2), ("batch_size", 5), ("seed", 3), ("optimizer.lr", 0.5), ("steps", 2), ("epochs", 1), ("sync.topology.type", "ring"), ("data.limit", 12)]
OPTIONS = ["--output", "--set", "--resume", "--dry-run", "--evaluate", "--device", "--elastic", "--trace"]


def try_options(rng, folder, limit, _):
    put(folder + "/config.json", json.dumps(SHORT))
    option = lambda key, value: [f"{key}={value}"] if rng.random() < 0.5 or value.startswith("-") else [key, value]
    fault = rng.choice(["", "", "", "misspelled", "twice", "empty", "no config", "not there", "no =", "used", "resume", "resume", "resume"])
    # which sets steps, too
    chosen = [one for one in rng.sample(SETTINGS, rng.randint(0, 3)) if fault != "resume" or one[0] != "epochs"]
    name, launcher = rng.choice(NAMES), [LAUNCH, "-n", "1"] * (rng.random() < 0.05)
    output, file = folder + "/" + name, "nothere.json" if fault == "not there" else "config.json"
    groups = [] if fault == "no config" else [[file]]
    if fault != "empty":
        groups.insert(rng.randint(0, len(groups)), option("--output", rng.choice([output, name])))
    for i, (key, value) in sorted(zip((rng.randint(0, len(groups)) for _ in chosen), reversed(chosen)), key=lambda one: -one[0]):
        # in their order: the last of a key counts
        groups.insert(i, option("--set", f"{key}={value}"))
    settings = dict(re.sub("^--set=", "", group[-1]).split("=", 1) for group in groups if group[0].startswith("--set"))
    words = lambda without="?": [word for group in groups for word in group if not group[0].startswith(without)]
    train = lambda *more: Ended([*launcher, TRAIN, *words(), *more], folder, limit, cwd=folder)
    insert = lambda *group: groups.insert(rng.randint(0, len(groups)), list(group))
    refusal = {"twice": "--output", "no config": "no config", "not there": "nothere.json", "no =": "--set steps"}.get(fault)
    if fault == "misspelled":
        right = rng.choice(OPTIONS)
        wrong, refusal = "--" + misspelled(rng, right[2:]), f"'{right}'"
        insert((wrong if wrong not in OPTIONS and len(wrong) > 4 else right.upper()) + rng.choice(["", "=x"]))
    elif fault in ("twice", "no ="):
        insert(*(["--output", folder + "/other"] if fault == "twice" else ["--set", "steps"]))
    elif fault == "empty":
        refusal = rng.choice([key for key in OPTIONS if key not in ("--dry-run", "--elastic")])
        insert(*rng.choice([[refusal, ""], [refusal + "="]]))
    elif not refusal and {"steps", "epochs"} <= settings.keys():
        refusal = "steps: is given together with epochs"
    if refusal:
        return refused(train(), refusal) + ["makes its output"] * (os.path.exists(output) or os.path.exists(folder + "/runs"))
    # without a checkpoint it starts afresh
    wrong = worked(train(*option("--resume", "latest")) if rng.random() < 0.2 else train())
    if wrong:
        return wrong
    resolved = json.loads(read(output + "/config.json"))
    wrong = [f"{key} is {at(resolved, key)}, not {value}" for key, value in settings.items() if str(at(resolved, key)) != value]
    before, steps = files_of(output), json.loads(read(output + "/summary.json"))["steps"]
    how = rng.choice(["more", "path", "other", "missing", "fewer"]) if fault == "resume" else fault
    if how in ("more", "path"):
        further = option("--set", f"steps={steps + 3}")
        ended = train(*option("--resume", "latest" if how == "more" else output), *further)
        wrong += worked(Ended([TRAIN, *words("--output"), *further, "--output", folder + "/straight"], folder, limit, cwd=folder))
        return wrong or worked(ended) or differs(output, ended_as(folder + "/straight"))
    if how == "used":
        wrong += refused(train(), "--resume")
    elif how == "other":
        key, value = rng.choice([("batch_size", 3), ("optimizer.type", "adam"), ("model.hidden", "[3]"), ("seed", 99), ("data.limit", 19)])
        wrong += refused(train(*option("--resume", "latest"), *option("--set", f"{key}={value}")), key.split(".")[0])
    elif how == "missing":
        wrong += refused(train(*option("--resume", folder + "/gone")), "gone")
    elif how == "fewer" and steps > 1:
        wrong += worked(train(*option("--resume", "latest"), *option("--set", f"steps={steps - 1}")))
    after = files_of(output)
    return wrong + [f"changes {path}" for path in before if path != ".lock" and before[path] != after.get(path)]


# ---- signals

LONG = {**SHORT, "model": {"type": "mlp", "hidden": [16]}, "data": {"type": "synthetic", "limit": 256, "test_limit": 16, "image_size": 6}, "steps": 2000,
        # fmt: skip
        "optimizer": {"type": "adamw", "lr": 0.001}, "evaluate": {"every_steps": 500}, "checkpoint": {"every_steps": 300}}
TRAININGS = {
    "train": LONG,
    "train with an average": {**LONG, "ema": {"decay": 0.9}, "checkpoint": {"every_steps": 150, "keep": 1, "best": True}},
    "test": {**LONG, "steps": 40, "data": {**LONG["data"], "test_limit": 20000}, "evaluate": {"every_steps": 10}},
}
SECONDS, LOCK = {}, threading.RLock()
WHOLE = r"config\.json|confusion\.csv|metrics\.jsonl|summary\.json|model(\.ema)?\.safetensors|\.lock|checkpoints/(step-\d+|best)/(DONE|rank-0\.safetensors|model(\.ema)?\.safetensors)"


def undisturbed(name, work, limit, command):
    """The folder of what nobody stops, once; command(folder, name) gives its words. SECONDS has
    what it took."""
    with LOCK:
        if name not in SECONDS:
            folder = f"{work}/straight-{name}"
            ended = Ended(command(folder, name), folder, limit)
            if ended.status != 0:
                raise RuntimeError(f"{name} does not work at all: {ended.err}")
            SECONDS[name] = ended.seconds
    return f"{work}/straight-{name}"


def try_signal(rng, folder, limit, work):
    def command(place, name):
        if name in TRAININGS:
            put(place + "/config.json", json.dumps(TRAININGS[name]))
            return [TRAIN, place + "/config.json", "--output", place + "/run"]
        if name == "prepare":
            return [PREPARE, "images", work + "/pets", place + "/shards", "--size", "16", "--shard-pictures", "40", "--threads", "1"]
        model = undisturbed("test", work, limit, command) + "/run"
        return [TRAIN, "--evaluate", model] if name == "evaluate" else [PREDICT, model, work + "/pets", "--threads", "1"]

    target, sig = rng.choice([*TRAININGS, "train", "evaluate", "prepare", "predict"]), rng.choice([*STOPS, signal.SIGKILL])
    straight, run = undisturbed(target, work, limit, command), folder + "/run"
    seconds = rng.uniform(0, 1.15) * SECONDS[target]
    ended = Ended(command(folder, target), folder, limit, signalled=(seconds, sig))
    # before a training has taken the signals over, the system ends it
    early = not os.path.exists(run)
    statuses = {0, -sig} if sig == signal.SIGKILL else {0, 75} | ({-sig, 128 + sig} if early else set()) if target in TRAININGS else {0, 128 + sig, -sig}
    wrong = [f"ends with {ended.status}, not one of {statuses}: {ended.err[-300:]}"] * (ended.status not in statuses)
    wrong += [f"ends after {ended.seconds:.1f} s"] * (ended.status != 0 and ended.seconds > STOP_S)
    if ended.status == 75 and "before the first step" not in ended.err + ended.out and not glob.glob(run + "/checkpoints/step-*/DONE"):
        wrong.append("75 without a checkpoint: " + ended.err)
    odd = lambda: [path for path in files_of(run) if not re.fullmatch(WHOLE, path)] + [path for path in files_of(folder + "/shards") if path not in files_of(straight + "/shards")]
    wrong += [f"leaves {odd()}"] * bool(odd() and sig != signal.SIGKILL)
    if target in TRAININGS and not wrong:
        wrong = worked(Ended([*command(folder, target), "--resume", "latest"], folder, limit)) or differs(run, ended_as(straight + "/run"))
    elif target == "prepare" and not wrong:
        wrong = worked(Ended(command(folder, target), folder, limit)) or ["other shards"] * (files_of(folder + "/shards") != files_of(straight + "/shards"))
    elif target == "predict" and not read(straight + "/stdout").startswith(ended.out):
        wrong.append(f"other output: {ended.out[-200:]}")
    wrong += [f"leaves {odd()} in the end"] * bool(not wrong and odd())
    return [f"{target}, {sig.name} after {seconds:.2f} s: {text}" for text in wrong]


KINDS = {"pictures": (try_pictures, 36), "config": (try_config, 30), "options": (try_options, 13), "signal": (try_signal, 9)}


def main():
    parser = parser_of(__doc__, 60.0, "seconds that a program may take", trials=300)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    options = parser.parse_args()
    jobs.need("starling-train", "starling-predict", "starling-prepare")
    os.environ["OMP_NUM_THREADS"] = "1"
    for sig in STOPS:
        # else programs would inherit that some are ignored
        signal.signal(sig, lambda *_: os._exit(1))

    def draw(rng, _):
        return {"kind": rng.choices(options.kinds, [KINDS[kind][1] for kind in options.kinds])[0], "seed": rng.getrandbits(48)}

    def attempt(trial, folder):
        work = os.path.dirname(folder)
        with LOCK:
            for i, name in enumerate([] if os.path.exists(work + "/pets") else GOLDEN * 6):
                put(f"{work}/pets/train/c{i % 3}/{i}{name[-4:]}", bytes_of(name))
        try:
            return KINDS[trial["kind"]][0](random.Random(trial["seed"]), folder, options.limit, work)
        except Exception:  # a file that is missing, or no JSON
            return [traceback.format_exc()]

    counts, failures = run_all(options, draw, attempt, lambda trial: (trial["kind"],), hidden=("seed",), jobs=options.jobs)
    print_table(("kind",), counts)
    finish(counts, failures)

