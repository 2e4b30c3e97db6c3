#!/usr/bin/env python3
"""Writes tokenizers.json beside this file: a tokenizer that Hugging Face's tokenizers has trained,
and the tokens of texts by it in several forms, and by tiktoken with its tokens for ranks. Needs
tokenizers, tiktoken."""

import base64
import json
import os
import random

import tiktoken
import tiktoken_ext.openai_public
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
HERE = os.path.dirname(os.path.abspath(__file__))


def english():
    """The words of this tree's own README: text that it was not tuned to."""
    return open(os.path.join(HERE, "../../docs/glossary.md"), encoding="utf-8").read()[:12000]


def byte_level(**keys):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **keys})


def split(pattern, behavior="isolated", **keys):
    return pre_tokenizers.Split(Regex(pattern), behavior, **keys)


def texts():
    draw = random.Random(3)
    words = (
        "the ranks of a run don't WE'LL he'S it'ſ you're I'd Hello naïve café Straße ŁÓDŹ ǅ ﬁ 你好 世界 日本語 "
        "한국어 العربية हिन्दी Ελληνικά Русский e\u0301 👩‍👩‍👧 🇩🇪 ½ Ⅷ ٣٤ 123 4567 $5.00 ... !!! foo_bar fooBar HTTPServer 'tis "
        "'' <|endoftext|> <|endoftext <mask> <mask>> zebra zebras ab. \u2028 \u00a0 \ufeff \u00ad \ua7cb \U00010d4a "
        "\u1112\u1161\u11ab \ud558\u11ab \u212b q\u0323\u0307 q\u0307\u0323 \u0958 \u1e9b\u0323 \u0344 \u2581x \u2581"
    ).split(" ")
    blanks = [" ", "  ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\x0b", "\x85", "", "\u2028"]
    result = ["", " ", "'", "\u0301", " " * 70, "A" * 90, "你" * 40, "  \n \n x", "a \n\u00a0\x0c", "'" * 9, "0" * 10]
    for _ in range(34):
        result.append("".join(draw.choice(words) + draw.choice(blanks) for _ in range(draw.randrange(2, 14))))
    return result


def characters_of(text):
    """BPE of characters, whose unknown ones are written as bytes."""
    own = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    own.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "always", split=True)
    special = ["<unk>", "<s>", "<|endoftext|>"]
    own.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=520, special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)], show_progress=False))
    own.pre_tokenizer = None
    whole = json.loads(own.to_str())
    whole["added_tokens"] = whole["added_tokens"][:len(special)]
    return json.dumps(whole)


def main():
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer, trained.decoder = byte_level(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    text = english()
    trained.train_from_iterator([text], trainer)
    sample = texts()
    forms = {
        "gpt2": byte_level(),
        "llama3": pre_tokenizers.Sequence([split(LLAMA3), byte_level(use_regex=False)]),
        "prefix_space": byte_level(add_prefix_space=True),
        "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
        "removed": pre_tokenizers.Sequence([split(r"\p{L}+|\s", "removed", invert=True), byte_level(use_regex=False)]),
        "several": pre_tokenizers.Sequence(
            [split("[\r\n]"), split("\\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+"), split("[一-龥ࠀ-一가-퟿]+"),
             pre_tokenizers.Split("ab.", "isolated"), byte_level(use_regex=False)]),
    }
    forms["qwen2"] = pre_tokenizers.Sequence([split(QWEN2), byte_level(use_regex=False)])
    # As Llama 2's and Mistral's files have it
    characters = characters_of(text)
    mark = "\u2581"
    of_blanks = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    forms.update(
        llama2=None, mistral=pre_tokenizers.Metaspace(mark, "first", split=False),
        metaspace=pre_tokenizers.Metaspace(mark, "always", split=True), bare=pre_tokenizers.Metaspace(mark, "never", split=False))
    cases = {}
    for name, form in forms.items():
        base = "characters" if name in ("llama2", "mistral", "metaspace", "bare") else "tokenizer"
        own = Tokenizer.from_str(characters if base == "characters" else trained.to_str())
        if form:
            own.pre_tokenizer = form
        if name in ("llama2", "qwen2"):
            own.normalizer = of_blanks if name == "llama2" else normalizers.NFC()
        if name == "llama3":
            own.model.ignore_merges = True
        if name == "prefix_space":
            own.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<mask>>", rstrip=True)])
            own.add_tokens([AddedToken("zebra", normalized=True)])
        whole = json.loads(own.to_str())
        cases[name] = {
            "base": base,
            "normalizer": whole["normalizer"],
            "pre_tokenizer": whole["pre_tokenizer"],
            "added_tokens": whole["added_tokens"],
            "ignore_merges": whole["model"]["ignore_merges"],
            "tokens": [encoding.ids for encoding in own.encode_batch(sample)],
        }
    model = json.loads(trained.to_str())["model"]
    letter = dict(zip(sorted(pre_tokenizers.ByteLevel.alphabet()), range(256)))
    # GPT-2's letters stand for the bytes that are no printable Latin-1 in the order of these
    seen = [b for b in range(256) if chr(b) in letter]
    byte_of = {chr(b): b for b in seen}
    byte_of.update({chr(256 + k): b for k, b in enumerate(b for b in range(256) if b not in seen)})
    names = [name for name in sorted(model["vocab"], key=model["vocab"].get) if name != "<|endoftext|>"]
    ranks = {bytes(byte_of[c] for c in name): k for k, name in enumerate(names)}
    tiktoken_ext.openai_public.load_tiktoken_bpe = lambda *_, **__: {}
    patterns = {
        "gpt2": tiktoken_ext.openai_public.r50k_pat_str,
        "cl100k": tiktoken_ext.openai_public.cl100k_base()["pat_str"],
        "o200k": tiktoken_ext.openai_public.o200k_base()["pat_str"],
    }
    of_ranks = {}
    for name, pattern in patterns.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        of_ranks[name] = [encoding.encode_ordinary(text) for text in sample]
    with open(os.path.join(HERE, "tokenizers.json"), "w", encoding="utf-8") as out:
        json.dump({
            "trained_on": text,
            "tokenizer": json.loads(trained.to_str()),
            "characters": json.loads(characters),
            "texts": sample,
            "cases": cases,
            "ranks": [base64.b64encode(token).decode() for token in ranks],
            "tiktoken": of_ranks,
        }, out, ensure_ascii=True, separators=(",", ":"))
        out.write("\n")


main()
