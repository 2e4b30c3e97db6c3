#!/usr/bin/env python3
"""Writes docs/reference.md: each type that the <starling/...> headers bring, and what it is.

scripts/reference.py >docs/reference.md

A row has the first sentence of each type's comment and leads to their header, where members, units
and errors stand. Types that no comment tells of, private ones and those of namespaces `detail` are
left out.
"""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOOR = "apps/starling"
# A header is told by the first of these that brings it.
ORDER = ("layer", "functions", "operation", "optimizer", "topology", "algorithm", "transport", "data", "task", "schedule",
         "inference", "testing", "cuda")
# What the types of others are made of, and no author names.
INNER = ("kernels/cuda/", "kernels/math/", "kernels/gpu_update", "comm/nccl/", "comm/capture", "core/branches",
         "core/device_", "core/philox", "core/safetensors", "core/text", "core/trace")
HEAD = """# Reference

Written by `scripts/reference.py` from the headers; do not edit. [extending.md](extending.md) says
what to write, [functions.md](functions.md) what functions compute. A header, to which its row
leads, has its types' members, shapes, units and errors.
"""
COMMENT = r"((?:^///[^\n]*\n)+)(?:^template <.*>\n)?"
TYPE = re.compile(COMMENT + r"^(?:(?:class|struct|union|enum class|enum) (?:\[\[\w+\]\] )?(\w+)(?!\w*;)|using (\w+) =)", re.M)
MACRO = re.compile(COMMENT + r"^#define (STARLING_\w+)", re.M)


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def brought(path, known):
    """The headers that `path` brings and none before it has, in the order in which they are needed."""
    for other in re.findall(r'^#include "([^"]+)"', text_of(path), re.M):
        if other in known or not os.path.exists(os.path.join(ROOT, other)) or (other.startswith(INNER) and not path.startswith(DOOR)):
            continue
        known.add(other)
        yield from brought(other, known)
        yield other


def first_sentence(comment):
    words = re.sub(r"\s+", " ", re.sub(r"^/// ?", "", comment, flags=re.M)).strip()
    sentence = re.match(r"(.*?[.:;])(?= [A-Z`\"0-9(]|$)", words)
    return (sentence[1] if sentence else words).rstrip(".:;").replace("|", "\\|")


def main():
    doors = sorted(os.path.basename(file)[:-2] for file in os.listdir(os.path.join(ROOT, DOOR)))
    assert doors == sorted(ORDER), "ORDER lacks a public header, or has one too many"
    print(HEAD, end="")
    known = set()
    for door in ORDER:
        rows = []
        for header in brought(f"{DOOR}/{door}.h", known):
            text, types = text_of(header), {}
            for found in [*TYPE.finditer(text), *MACRO.finditer(text)]:
                space = re.findall(r"^(?:inline )?namespace (?:starling::)?(\w+) \{|^\}  // namespace", text[:found.start()], re.M)
                if space and space[-1] == "detail":
                    continue
                name = next(group for group in found.groups()[1:] if group)
                types.setdefault(name, f"`{name}`: {first_sentence(found[1])}.")
            if types:
                rows.append(f"| [{header}](../{header}) | {'<br>'.join(types[name] for name in sorted(types, key=str.lower))} |")
        if rows:
            print(f"\n## `<starling/{door}.h>`\n\n| header | types and macros |\n|---|---|")
            print("\n".join(sorted(rows)))


if __name__ == "__main__":
    main()
