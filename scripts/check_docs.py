#!/usr/bin/env python3
"""Looks at the documentation: words of sentences, widths of lines, links and their anchors.

scripts/check_docs.py [PAGE...]       the Markdown pages that git tracks, or these; exit status 2
                                      where a sentence has more than 30 words, a line more than 100
                                      columns, or a link leads nowhere
scripts/check_docs.py --site FOLDER   links of a built site (scripts/site.sh)

A row of a table is one line, however long: Markdown cannot wrap it. Code counts as one word. What
the program writes (docs/config.md) has sentences of its own.
"""

import html.parser
import os
import re
import subprocess
import sys
from urllib.parse import unquote

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORDS, COLUMNS = 30, 100
GENERATED = {"docs/config.md"}
faults = []


def fault(page, line, text):
    faults.append(f"{page}:{line}: {text}")


def lines_of(text):
    """(number, line, kind) of each line: code, table, heading, item, comment, blank or text."""
    fence = comment = False
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if re.match(r"(```|~~~)", bare):
            fence = not fence
            yield number, line, "code"
        elif fence or (line.startswith("    ") and not re.match(r"([-*]|\d+\.) ", bare)):
            yield number, line, "code"
        elif comment or bare.startswith("<!--"):
            comment = "-->" not in bare
            yield number, line, "comment"
        elif not bare:
            yield number, line, "blank"
        else:
            kinds = {r"\|": "table", r"#+ ": "heading", r"([-*>]|\d+\.) ": "item"}
            yield number, line, next((kind for start, kind in kinds.items() if re.match(start, bare)), "text")


def paragraphs(text):
    """(number of its first line, text) of each paragraph, item and cell of a table."""
    first, words = 0, []
    for number, line, kind in [*lines_of(text), (0, "", "blank")]:
        if kind != "text" and words:
            yield first, " ".join(words)
            words = []
        if kind == "table":
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
        elif kind in ("text", "item"):
            first = first if words else number
            words.append(re.sub(r"^([-*>]|\d+\.) +", "", line.strip()))


def plain(text):
    """Without the marks of Markdown; code is one word, which may end a sentence."""
    text = re.sub(r"`+[^`]*`+", "Code", re.sub(r"<!--.*?-->", "", text))
    return re.sub(r"[*_]{2,}", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))


def sentences(text):
    return re.split(r"(?<=[.!?])[\"”)*]*\s+(?=[\"“(*\[]*[A-Z0-9])", plain(text))


def check_text(page, text):
    for number, line, kind in lines_of(text):
        if kind != "table" and len(line) > COLUMNS:
            fault(page, number, f"{len(line)} columns; allowed: {COLUMNS}")
    if page in GENERATED:
        return
    for number, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            count = sum(bool(re.search(r"\w", word)) for word in sentence.split())
            if count > WORDS:
                fault(page, number, f"a sentence of {count} words; allowed: {WORDS}: {sentence[:60]}…")


def anchors(text):
    """What GitHub names the headings of a page."""
    found = {}
    for _, line, kind in lines_of(text):
        if kind == "heading":
            name = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("# ")).replace("`", "").strip()
            name = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
            found[name] = found.get(name, -1) + 1
    return {f"{name}-{k}" if k else name for name, last in found.items() for k in range(last + 1)}


def check_links(page, text, known):
    for number, line, kind in lines_of(text):
        if kind == "code":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(os.path.join(ROOT, path)):
                fault(page, number, f"a link to {target}, which is not there")
            elif anchor and path.endswith(".md") and anchor not in anchors(known(path)):
                fault(page, number, f"a link to {target}, which has no such heading")


class Page(html.parser.HTMLParser):
    """Links and anchors of a page of the site."""

    def __init__(self, path):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(open(path, encoding="utf-8").read())

    def handle_starttag(self, _, attributes):
        given = dict(attributes)
        self.names.update(given[key] for key in ("id", "name") if given.get(key))
        self.links += [(self.getpos()[0], given[key]) for key in ("href", "src") if given.get(key)]


def check_site(folder):
    pages = {}
    for above, _, files in os.walk(folder):
        for file in files:
            if file.endswith(".html"):
                path = os.path.normpath(os.path.join(above, file))
                pages[path] = Page(path)
    for page, content in pages.items():
        for line, link in content.links:
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:|//", target):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(page), target.split("?")[0])) if target else page
            path = os.path.join(path, "index.html") if os.path.isdir(path) else path
            if not os.path.isfile(path):
                fault(page, line, f"a link to {link}, which is not there")
            elif anchor and path in pages and anchor not in pages[path].names:
                fault(page, line, f"a link to {link}, which has no such anchor")
    return f"{len(pages)} pages with {sum(len(page.links) for page in pages.values())} links"


def main(arguments):
    if arguments[:1] == ["--site"]:
        seen = check_site(arguments[1])
    else:
        pages = arguments or subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).split()
        texts = {}

        def text_of(page):
            if page not in texts:
                texts[page] = open(os.path.join(ROOT, page), encoding="utf-8").read()
            return texts[page]

        for page in pages:
            check_text(page, text_of(page))
            check_links(page, text_of(page), text_of)
        seen = f"{len(pages)} pages"
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    print(f"{seen}: {len(faults)} faults")
    return 2 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
