#!/usr/bin/env python3
"""Writes docs/reference.md: what authors of plug-ins and programs get with each <starling/...> header.

scripts/reference.py >docs/reference.md     of the public headers, apps/starling/*.h, and what they
                                            include: types with their public and protected members,
                                            functions, constants and macros, with their comments

Bodies of functions, private members, and namespaces `detail` are left out. Of headers that no public
header includes itself types alone are told, and of some (INNER) nothing.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOOR = "apps/starling"
# In this order a header is told by the first that brings it.
ORDER = ("layer", "functions", "operation", "optimizer", "topology", "algorithm", "transport", "data", "task", "schedule",
         "inference", "testing", "cuda")
HEAD = """# Reference

Written by `scripts/reference.py` from the headers; do not edit. [extending.md](extending.md) says
what to write, [functions.md](functions.md) what functions compute.

A part begins with the header to include. Below it stands what that brings and no part before it:
types, functions and macros, by the file below `starling/detail` that declares them.
"""


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def includes(path):
    found = re.findall(r'^#include "([^"]+)"', text_of(path), re.M)
    return [header for header in found if os.path.exists(os.path.join(ROOT, header))]


INNER = ("kernels/cuda/", "kernels/math/", "kernels/gpu_update", "comm/nccl/", "comm/exchange_wait", "comm/capture", "core/branches",
         "core/device_", "core/philox", "core/safetensors", "core/text", "core/trace")


def inner(path):
    return path.startswith(INNER)


def brought(path, known):
    """The headers that `path` brings, in the order in which they are needed."""
    order = []

    def visit(header):
        for other in includes(header):
            if other not in known and not (inner(other) and header != path):
                known.add(other)
                visit(other)
                order.append(other)

    visit(path)
    return order


def end_of(text, begin):
    """Behind the declaration that begins there: its ';', or the '}' of a body that no ';' follows."""
    depth, i, body = 0, begin, False
    while i < len(text):
        if text.startswith("//", i):
            i = text.index("\n", i)
        elif text[i] in "\"'" and not (text[i] == "'" and text[i - 1].isalnum()):
            quote = text[i]
            i += 1
            while text[i] != quote:
                i += 2 if text[i] == "\\" else 1
        elif text[i] in "({[":
            depth += 1
            body = body or (depth == 1 and text[i] == "{")
        elif text[i] in ")}]":
            depth -= 1
            if depth == 0 and text[i] == "}" and not re.match(r"\s*(;|,|\{|\.|\))", text[i + 1:]):
                return i + 1
        elif text[i] == ";" and depth == 0:
            return i + 1
        i += 1
    return len(text)


def cut_body(declaration):
    """A function's declaration without its body; anything else as it is."""
    depth, seen = 0, False
    angle = re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), declaration)
    angle = re.sub(r"operator\s*\(\)|operator[^\w\s(]+", lambda m: "o" * len(m[0]), angle)
    for _ in range(4):  # arguments of templates
        angle = re.sub(r"<[^<>;{}]*>", lambda m: "t" * len(m[0]), angle)
    for i, char in enumerate(angle):
        if char == "(":
            seen = seen or depth == 0
            depth += 1
        elif char == ")":
            depth -= 1
        elif depth == 0 and char == "=" and not seen:
            return declaration
        elif depth == 0 and seen and (char == "{" or (char == ":" and angle[i - 1] != ":" and angle[i + 1] != ":")):
            return declaration[:i].rstrip() + ";"
        elif depth == 0 and char == "{":
            return declaration
    return declaration


KIND = re.compile(r"(?:template <(?:[^<>]|<[^<>]*>)*>\s*)?(?:class|struct|union|enum class|enum)\b")


def without_private(declaration):
    """A class with what others may use of it."""
    begin = re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), declaration).find("{")
    head = declaration[:begin] if begin >= 0 else ""
    if begin < 0 or not KIND.match(declaration) or re.match(r"enum", declaration):
        return declaration
    shown = not re.match(r"(?:template <(?:[^<>]|<[^<>]*>)*>\s*)?class", declaration)
    out, i, body = [], 0, declaration[begin + 1:declaration.rindex("}")]
    while i < len(body):
        access = re.compile(r"\s*\n? (public|protected|private):[ ]*\n?").match(body, i)
        comment = re.compile(r"[ \t]*(?:\n|//[^\n]*\n?|#[^\n]*\n?)").match(body, i)
        if access:
            shown = access[1] != "private"
            if shown:
                out.append(f"\n {access[1]}:\n")
            i = access.end()
        elif comment:
            if shown:
                out.append(comment[0])
            i = comment.end()
        else:
            blank = re.compile(r"\s*").match(body, i).end()
            if blank == len(body):
                break
            end = end_of(body, blank)
            member = body[blank:end]
            if shown and not re.match(r"friend\b", member):
                out.append(body[i:blank] + (without_private(member) if KIND.match(member) and "{" in member else cut_body(member)))
            i = end
    inside = re.sub(r"\n{2,}", "\n", "".join(out))
    inside = re.sub(r"\n (public|protected):\n(?=\s*(\n (public|protected):|\Z))", "\n", inside)
    return f"{head}{{{inside.rstrip()}\n}};" if inside.strip() else f"{head}{{}};"


def declarations(path):
    """(name, text) of what a header declares, with the comments before it."""
    text = text_of(path)
    text = re.sub(r"^#include[^\n]*\n|^#pragma once\n", "", text, flags=re.M)
    i, spaces, comment = 0, [], []
    while i < len(text):
        line_end = text.find("\n", i)
        line_end = len(text) if line_end < 0 else line_end
        line = text[i:line_end]
        if opened := re.match(r"(?:inline )?namespace ([\w:]*) ?\{", line):
            spaces.append(opened[1])
            i, comment = line_end + 1, []
        elif re.match(r"\}  // namespace", line):
            spaces.pop()
            i, comment = line_end + 1, []
        elif line.startswith("//"):
            comment.append(line)
            i = line_end + 1
        elif line.startswith("#"):
            while text[line_end - 1] == "\\":
                line_end = text.index("\n", line_end + 1)
            if (macro := re.match(r"#define (STARLING_\w+)(\([^)]*\))?", line)) and any(c.startswith("///") for c in comment):
                yield macro[1], "\n".join([*comment, macro[0]])
            i, comment = line_end + 1, []
        elif not line.strip():
            i, comment = line_end + 1, [] if not comment or not comment[-1].startswith("///") else comment
        else:
            end = end_of(text, i)
            declaration = text[i:end]
            i, told, comment = end, comment, []
            if any(space in ("", "detail") or space.endswith("::detail") for space in spaces):
                continue
            plain = KIND.match(declaration) is not None
            if plain and "{" not in declaration:
                continue  # named here, declared elsewhere
            rest = re.compile(r"[ \t]*///<[^\n]*(\n +///<[^\n]*)*").match(text, end)
            shown = without_private(declaration) if plain else cut_body(declaration)
            if rest:
                shown, i = shown + rest[0], rest.end()
            inner_space = "::".join(space for space in spaces if space != "starling").replace("starling::", "")
            name = re.search(r"(?:class|struct|union|enum|using)\s+(?:class\s+)?(\w+)", declaration) if plain or declaration.startswith("using") else None
            yield (f"{inner_space}::" if inner_space else "") + (name[1] if name else ""), "\n".join([*told, shown])


def main():
    doors = sorted(os.path.basename(file)[:-2] for file in os.listdir(os.path.join(ROOT, DOOR)))
    assert set(doors) == set(ORDER), "ORDER lacks a public header, or has one too many"
    known, parts, index = set(), [], []
    direct = {header for door in doors for header in includes(f"{DOOR}/{door}.h")}
    for door in ORDER:
        path = f"{DOOR}/{door}.h"
        about = " ".join(re.findall(r"^// ?(.*)", text_of(path), re.M))
        part = [f"\n## `<starling/{door}.h>`\n", *wrapped(about), ""]
        for header in brought(path, known):
            found = [(name, text) for name, text in declarations(header) if header in direct or name and not name.endswith("::")]
            if not found:
                continue
            part.append(f"### {header}\n\n```cpp")
            part.append("\n\n".join(text for _, text in found))
            part.append("```\n")
            index += [(name.rsplit("::", 1)[-1], name, door, header) for name, _ in found if name and not name.endswith("::")]
        parts.append("\n".join(part).rstrip() + "\n")
    print(HEAD)
    print("| type or macro | header | declared in |\n|---|---|---|")
    for _, name, door, header in sorted(set(index), key=lambda entry: (entry[0].lower(), entry[1:])):
        print(f"| `{name}` | `<starling/{door}.h>` | [{header}](#{re.sub('[^a-z0-9_-]', '', header.lower())}) |")
    print("".join(parts), end="")


def wrapped(text, width=100):
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    yield line


if __name__ == "__main__":
    sys.exit(main())
