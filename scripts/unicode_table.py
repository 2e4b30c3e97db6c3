#!/usr/bin/env python3
"""Writes apps/text/unicode_table.cpp: the general category of every code point, and what normal
form C needs (Unicode Standard Annex 15).

usage: scripts/unicode_table.py >apps/text/unicode_table.cpp
Needs the Python packages tokenizers, and unicodedata2 of the version of Unicode that is wanted: 16.0.0,
which is what tokenizers 0.23 and tiktoken 0.14 have in their patterns.
"""
import itertools

import unicodedata2
from tokenizers import normalizers

# Form C is what tokenizers has, whose tables know no characters of Unicode 13 and later
DECOMPOSED = normalizers.NFD().normalize_str

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcd"


def runs():
    names = (unicodedata2.category(chr(code)) for code in range(0x110000))
    for name, run in itertools.groupby(names):
        count = sum(1 for _ in run)
        yield LETTERS[CATEGORIES.index(name)] + (str(count) if count > 1 else "")


DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def number(value):
    """Five bits a letter, the lowest first; a letter of the second half says that more follow."""
    text = ""
    while True:
        text += DIGITS[value % 32 + (32 if value >= 32 else 0)]
        value //= 32
        if value == 0:
            return text


def signed(value):
    return number(2 * value if value >= 0 else -2 * value - 1)


def decompositions():
    before = [0, 0, 0]
    for code in range(0x110000):
        parts = unicodedata2.decomposition(chr(code)).split()
        if not parts or parts[0].startswith("<") or DECOMPOSED(chr(code)) == chr(code):
            continue
        first, second = (int(part, 16) for part in (parts + ["0"])[:2])
        stays = unicodedata2.normalize("NFC", chr(code)) == chr(code)
        yield number(2 * (code - before[0]) + stays) + signed(first - before[1]) + signed(second - before[2])
        before = [code, first, second]


def classes():
    end = 0
    def combining(code):
        value = unicodedata2.combining(chr(code))
        pair = chr(code) + "\u0334" if value > 1 else "\u0301" + chr(code)  # of classes 1 and 230
        return value if value and DECOMPOSED(pair) != pair else 0

    groups = itertools.groupby(range(0x110000), key=combining)
    for value, codes in groups:
        codes = list(codes)
        if value:
            yield number(codes[0] - end) + number(len(codes)) + number(value)
            end = codes[-1] + 1


def show(name, pieces):
    print("const char* const %s =" % name)
    lines = [""]
    for piece in pieces:
        if len(lines[-1]) + len(piece) > 92:
            lines.append("")
        lines[-1] += piece
    print("\n".join('    "%s"' % line for line in lines) + ";")


def main():
    print("// Made by scripts/unicode_table.py of Unicode " + unicodedata2.unidata_version + ".")
    print('#include "apps/text/unicode.h"\n')
    print("namespace starling::unicode {\n")
    print("// A letter for the category, in the order of kCategoryNames, and how many code points of it follow")
    print("// one another, if it is more than one.")
    print("// clang-format off")
    show("kCategoryRuns", runs())
    print("// Numbers as number() of the script writes them. Of each canonical decomposition the distance from")
    print("// the code point before, doubled, with 1 where form C keeps the code point, and how far its two")
    print("// parts are from those before. Of runs of a combining class the distance, length and class.")
    show("kDecompositions", decompositions())
    show("kCombiningClasses", classes())
    print("// clang-format on\n\n}  // namespace starling::unicode")


main()
