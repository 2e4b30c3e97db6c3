#!/usr/bin/env python3
"""Writes apps/text/unicode_table.cpp: the general category of every code point.

usage: scripts/unicode_table.py >apps/text/unicode_table.cpp
Needs the Python package unicodedata2 of the version of Unicode that is wanted: 16.0.0, which is what
tokenizers 0.23 and tiktoken 0.14 have.
"""
import itertools

import unicodedata2

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcd"


def runs():
    names = (unicodedata2.category(chr(code)) for code in range(0x110000))
    for name, run in itertools.groupby(names):
        count = sum(1 for _ in run)
        yield LETTERS[CATEGORIES.index(name)] + (str(count) if count > 1 else "")


def main():
    print("// Made by scripts/unicode_table.py of Unicode " + unicodedata2.unidata_version + ".")
    print('#include "apps/text/unicode.h"\n')
    print("namespace starling::unicode {\n")
    print("// A letter for the category, in the order of Category, and how many code points of it follow one")
    print("// another, if it is more than one.")
    print("// clang-format off")
    print("const char* const kCategoryRuns =")
    line = ""
    lines = []
    for run in runs():
        if len(line) + len(run) > 92:
            lines.append(line)
            line = ""
        line += run
    lines.append(line)
    print("\n".join('    "%s"' % line for line in lines) + ";")
    print("// clang-format on\n\n}  // namespace starling::unicode")


main()
