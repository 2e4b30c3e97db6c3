"""tokenizers_compare.py PREPARE MEGABYTES: whether tokens of a mixed text, and the text of these,
are those of Hugging Face's tokenizers, in the forms that models' tokenizer.json have; and its
tokens those of tiktoken, where that is. Trains tokenizers of a part of it, and writes into the
current folder."""

import array
import base64
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK, PIECE = "\u2581", 20000
# Latin to Greek, Cyrillic, Hebrew, Arabic, Indic, Thai, Georgian, Hangul, kana, Han, presentation forms, signs, plane 1
RANGES = [(0x21, 0x7E), (0xA1, 0x17F), (0x180, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5B0, 0x5EA),
          (0x600, 0x6FF), (0x900, 0x97F), (0xB80, 0xBFF), (0xE00, 0xE5B), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1E00, 0x1FFF),
          (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2BFF), (0x3040, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
          (0xF900, 0xFAD9), (0xFB00, 0xFDFF), (0xFE00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF)]
BLANKS = [" "] * 12 + ["  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2009", "\u200b", "\x0b",
                       "\x0c", "\x85", "\u2028", "", "", MARK, "\x00"]
EMOJI = ["👩‍👩‍👧", "🇩🇪🇫🇷", "👍🏽", "❤️", "🏳️‍🌈", "1️⃣", "😀" * 3]
ENDS = ["'s", "'S", "'ll", "'LL", "'ſ", "'tis", "n't", "’s", "...", "!!", ")]}", "://", "_", "—", "<|endoftext|>", "<unk>", "<0x41>", "</s>",
        "<mask>", "zebra"]
TORN = [b"\xff", b"\xc3", b"\xe4\xbd", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\x80\x80"]


def word(draw):
    kind = draw.random()
    if kind < 0.1:
        return str(draw.randrange(10 ** draw.randrange(1, 19))) + draw.choice(["", ".5", ",000", "e-7", "%", "½", "Ⅷ", "٣٤"])
    if kind < 0.15:
        return draw.choice(EMOJI)
    if kind < 0.25:
        return draw.choice(ENDS)
    low, high = draw.choice(RANGES)
    text = "".join(chr(draw.randint(low, high)) for _ in range(draw.randrange(1, 9)))
    return unicodedata.normalize(draw.choice(["NFC", "NFD", "NFKC"]), text) if kind < 0.4 else text


def pieces(size):
    """Half of it this tree's own text and code, half made-up words; bytes that are no UTF-8 in every eighth piece."""
    draw = random.Random(7)
    names = sorted(path for path in ROOT.rglob("*") if path.suffix in (".md", ".cpp", ".h", ".py", ".sh", ".json", ".cu") and
                   path.is_file() and not path.relative_to(ROOT).parts[0].startswith(("build", ".", "runs")))
    own = b"".join(path.read_bytes() for path in names)
    total = 0
    while total < size:
        if draw.random() < 0.5:
            at = draw.randrange(len(own))
            piece = own[at:at + PIECE]  # may begin and end inside a character
        else:
            piece = "".join(word(draw) + draw.choice(BLANKS) for _ in range(PIECE // 16)).encode("utf-8", "surrogatepass")
        if draw.random() < 0.125:
            for _ in range(20):
                at = draw.randrange(len(piece))
                piece = piece[:at] + draw.choice(TORN) + piece[at:]
        total += len(piece)
        yield piece


def byte_level(text, first, normalizer=None):
    own = Tokenizer(models.BPE())
    own.normalizer, own.decoder = normalizer, decoders.ByteLevel()
    own.pre_tokenizer = first
    own.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=6000, show_progress=False, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return own


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_added(own):
    own.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    own.add_tokens([AddedToken("zebra", normalized=True)])
    return own


def digits():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def characters(text, before, normalizer=None):
    own = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    own.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "always", split=True)
    special = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
    own.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=6000, limit_alphabet=1000, show_progress=False, special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)]))
    whole = json.loads(own.to_str())
    whole["added_tokens"] = whole["added_tokens"][:len(special)]
    own = Tokenizer.from_str(json.dumps(whole))
    own.pre_tokenizer, own.normalizer = before, normalizer
    own.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return own


def prepared(prepare, name, *arguments):
    """All tokens of the texts, those of tests last."""
    subprocess.run([prepare, "tokens", "texts", name, *arguments], check=True, capture_output=True)
    tokens = array.array({"uint16": "H", "uint32": "I"}[json.load(open(f"{name}/meta.json"))["dtype"]])
    for file in ("train.bin", "val.bin"):
        tokens.frombytes(pathlib.Path(name, file).read_bytes())
    return tokens


def of_tiktoken(prepare, byte_level_model, texts):
    """Failures, with the ranks of a model whose letters stand for bytes."""
    import tiktoken
    import tiktoken_ext.openai_public as openai

    openai.load_tiktoken_bpe = lambda *_, **__: {}
    letters = set(pre_tokenizers.ByteLevel.alphabet())
    plain = [byte for byte in range(256) if chr(byte) in letters]
    byte_of = {chr(byte): byte for byte in plain}
    byte_of.update({chr(256 + k): byte for k, byte in enumerate(sorted(set(range(256)) - set(plain)))})
    names = [name for name in sorted(byte_level_model, key=byte_level_model.get) if name != "<|endoftext|>"]
    ranks = {bytes(byte_of[c] for c in name): k for k, name in enumerate(names)}
    pathlib.Path("ranks").write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
    patterns = {"gpt2": openai.r50k_pat_str, "cl100k": openai.cl100k_base()["pat_str"], "o200k": openai.o200k_base()["pat_str"]}
    failures = 0
    for name, pattern in patterns.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        ours = prepared(prepare, f"tiktoken-{name}", "--tokenizer", "ranks", "--pattern", name).tolist()
        same = ours == [token for text in texts for token in encoding.encode_ordinary(text)]
        print(f"tiktoken, {name}: {len(ours)} tokens:", "the same" if same else "differ", flush=True)
        failures += not same
    return failures


def main():
    prepare, size = sys.argv[1], int(float(sys.argv[2]) * 1e6)
    raw = list(pieces(size))
    os.makedirs("texts", exist_ok=True)
    for number, piece in enumerate(raw):
        pathlib.Path(f"texts/{number:05}.txt").write_bytes(piece)
    texts = [piece.decode("utf-8", "replace") for piece in raw]
    part = texts[:1 + len(texts) // 8]
    of_blanks = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    forms = {
        "gpt2": lambda: byte_level(part, pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "llama3": lambda: byte_level(part, split(LLAMA3)),
        "qwen2": lambda: byte_level(part, split(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")), normalizers.NFC()),
        "llama2": lambda: characters(part, None, of_blanks),
        "prefix_space": lambda: with_added(byte_level(part, pre_tokenizers.ByteLevel(add_prefix_space=True))),
        "digits": lambda: byte_level(part, digits()),
        "mistral": lambda: characters(part, pre_tokenizers.Metaspace(MARK, "first", split=False)),
        "metaspace": lambda: characters(part, pre_tokenizers.Metaspace(MARK, "always", split=True)),
    }
    failures = 0
    for name, make in forms.items():
        own = make()
        if name == "gpt2" and importlib.util.find_spec("tiktoken"):
            failures += of_tiktoken(prepare, own.get_vocab(), texts)
        own.save(f"{name}.json")
        ours = prepared(prepare, name, "--tokenizer", f"{name}.json")
        at, wrong, theirs = 0, 0, own.encode_batch(texts, add_special_tokens=False)
        for number, encoding in enumerate(theirs):
            ids = encoding.ids
            if ours[at:at + len(ids)].tolist() != ids and not wrong:
                k = next(k for k, token in enumerate(ids) if at + k >= len(ours) or ours[at + k] != token)
                print(f"{name}: texts/{number:05}.txt, token {k}: ours {ours[at + k:at + k + 8].tolist()} "
                      f"{[own.id_to_token(t) for t in ours[at + k:at + k + 8]]}, theirs {ids[k:k + 8]} {encoding.tokens[k:k + 8]}, "
                      f"text {texts[number][max(0, encoding.offsets[k][0] - 20):encoding.offsets[k][1] + 20]!r}")
                wrong = 1
            at += len(ids)
        wrong = wrong or at != len(ours)
        # Back: what `show` prints of a conversation's tokens, of which only the second message is trained on
        back = 0
        for number in range(0, len(texts), max(1, len(texts) // 20)):
            pathlib.Path("chat.jsonl").write_text(json.dumps({"prompt": texts[number], "completion": "."}) + "\n")
            shown = subprocess.run([prepare, "show", "chat.jsonl", "--tokenizer", f"{name}.json", "--template", "plain"],
                                   check=True, capture_output=True).stdout.decode("utf-8", "replace")
            plain = own
            plain.encode_special_tokens = True
            text = plain.decode(plain.encode(texts[number] + ".", add_special_tokens=False).ids, skip_special_tokens=False)
            text = text[:text.rindex(".")]
            if text not in shown and not back:
                own_text = shown.split("\n", 1)[1]
                k = next((k for k, pair in enumerate(zip(text, own_text)) if pair[0] != pair[1]), 0)
                print(f"{name}: texts/{number:05}.txt is {own_text[k:k + 30]!r} of tokens, in tokenizers {text[k:k + 30]!r}")
                back = 1
        print(f"{name}: {len(ours)} tokens of {sum(map(len, raw))} bytes:", "differ" if wrong or back else "the same", flush=True)
        failures += wrong or back
    sys.exit(failures > 0)


main()
