#!/usr/bin/env python3
"""Looks at the documentation: words of sentences, widths of lines, tables, links and their anchors.

scripts/check_docs.py [PAGE...]       the Markdown pages that git tracks, or these; exit status 2
                                      where a sentence has more than 30 words, a line more than 100
                                      columns, or a link leads nowhere; where a table lacks its head
                                      or cells; where a message of
                                      docs/troubleshooting.md is in no source, or
                                      docs/environment.md lacks a variable or has one too many
scripts/check_docs.py --stage FOLDER SITE   for scripts/site.sh: pages in FOLDER, FOLDER.yml
scripts/check_docs.py --site SITE           links of a built site

A row of a table is one line, however long: Markdown cannot wrap it. Code counts as one word. Words
are not counted in what the program writes, and in explanations that are mathematics or measurements.
"""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from urllib.parse import unquote

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORDS, COLUMNS = 30, 100
NOT_COUNTED = {f"docs/{name}.md" for name in ("config", "reference", "semantics", "benchmarks")}
PRODUCT = ("apps", "comm", "core", "kernels", "layers", "topology")
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
    if page in NOT_COUNTED or page.startswith("tests/"):
        return
    for number, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            count = sum(bool(re.search(r"\w", word)) for word in sentence.split())
            if count > WORDS:
                fault(page, number, f"a sentence of {count} words; allowed: {WORDS}: {sentence[:60]}…")


def check_tables(page, text):
    """Each table has a head and a line of dashes, and as many cells in each row as its head."""
    before, cells = "", 0
    for number, line, kind in lines_of(text):
        kind = "text" if kind == "table" and not line.rstrip().endswith("|") else kind
        count = len(re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line).strip().strip("|"))) if kind == "table" else 0
        dashes = re.fullmatch(r"[|\-: ]+", line.strip()) is not None
        if kind == "table" and before != "table":
            cells, start = count, number
        elif kind == "table" and number == start + 1 and not dashes:
            fault(page, start, "a table without a head: its second line is none of dashes")
        if before == "table" and kind != "table" and number == start + 1:
            fault(page, start, "a table of one line: a blank line before it parts it from its head")
        if kind == "table" and count != cells:
            fault(page, number, f"a row of {count} cells; its table has {cells}")
        before = kind


def slug(heading, _=None):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text):
    """What GitHub names the headings of a page."""
    found = {}
    for _, line, kind in lines_of(text):
        if kind == "heading":
            name = slug(re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("# ")).replace("`", ""))
            found[name] = found.get(name, -1) + 1
    return {f"{name}-{k}" if k else name for name, last in found.items() for k in range(last + 1)}


def links_of(page, text):
    """(line, target, the path that it leads to, its anchor) of each link within the repository."""
    for number, line, kind in lines_of(text):
        if kind == "code":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:", target):
                path, _, anchor = unquote(target).partition("#")
                yield number, target, os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page, anchor


def check_links(page, text, known):
    for number, target, path, anchor in links_of(page, text):
        if not os.path.exists(os.path.join(ROOT, path)):
            fault(page, number, f"a link to {target}, which is not there")
        elif anchor and path.endswith(".md") and anchor not in anchors(known(path)):
            fault(page, number, f"a link to {target}, which has no such heading")


def tracked(*patterns):
    return subprocess.check_output(["git", "ls-files", "--", *patterns], cwd=ROOT, text=True).split("\n")[:-1]


def text_of_all(files):
    return "\n".join(open(os.path.join(ROOT, file), encoding="utf-8", errors="replace").read() for file in files)


def check_messages(text):
    """The message that a row begins with, but for …, stands in a source; those of others are marked."""
    files = [file for file in tracked(*PRODUCT, "scripts/*.sh") if file.endswith((".cpp", ".h", ".sh"))]
    sources = re.sub(r'"\s*\n\s*"', "", text_of_all(files)).replace('\\"', '"')
    for number, line, kind in lines_of(text):
        message = re.match(r"\| `([^`]+)`([^|]*)", line) if kind == "table" else None
        if message and "words)" not in message[2]:
            for part in message[1].split("…"):
                if part.strip() not in sources:
                    fault("docs/troubleshooting.md", number, f"no source says '{part.strip()}'")


def check_environment(text):
    """The page names what getenv() and scripts read, and nothing that nobody reads."""
    programs = text_of_all(file for file in tracked(*PRODUCT) if file.endswith((".cpp", ".h", ".cu")))
    scripts = text_of_all([*tracked("scripts"), ".ci/run"])
    read = set(re.findall(r'getenv\("([A-Z_0-9]+)"\)', programs))
    for names in re.findall(r"(?:variable|number)\(\{([^}]*)\}\)|for \(const char\* name : \{([^}]*)\}", programs):
        read.update(re.findall(r'"([A-Z]+_[A-Za-z_0-9]+)"', " ".join(names)))
    read.update(re.findall(r"\$\{?((?:STARLING|NETLAB)_[A-Z_0-9]+|CLANG_FORMAT)", scripts))
    read.update(re.findall(r'environ(?:\.get\(|\[)"((?:STARLING|NETLAB)_[A-Z_0-9]+)"', scripts))
    named = set(re.findall(r"`([A-Z_]+_[A-Za-z_0-9]+|TMPDIR|TERM|RANK)`", text))
    for name in sorted(read - named):
        fault("docs/environment.md", 1, f"lacks {name}, which is read")
    for name in sorted(named - read):
        fault("docs/environment.md", 1, f"has {name}, which nobody reads")


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
            above = folder if target.startswith("/") else os.path.dirname(page)
            path = os.path.normpath(os.path.join(above, target.split("?")[0].lstrip("/"))) if target else page
            path = os.path.join(path, "index.html") if os.path.isdir(path) else path
            if not os.path.isfile(path):
                fault(page, line, f"a link to {link}, which is not there")
            elif anchor and path in pages and anchor not in pages[path].names:
                fault(page, line, f"a link to {link}, which has no such anchor")
    return f"{len(pages)} pages with {sum(len(page.links) for page in pages.values())} links"


def stage(folder, site):
    """What mkdocs reads: the pages at their places, what they link to, and the contents' order."""
    links = set()
    for page in [*tracked("docs"), "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"]:
        copy(page, folder)
        if page.endswith(".md"):
            links.update(path for _, _, path, _ in links_of(page, text_of_all([page])))
    for link in sorted(links):
        if os.path.isdir(os.path.join(ROOT, link)):  # a page with its files
            files = [file for file in tracked(link) if not file.endswith(".md")]
            blocks = (f"## {os.path.relpath(file, link)}\n\n````\n{text_of_all([file])}\n````\n" for file in files)
            os.makedirs(os.path.join(folder, link), exist_ok=True)
            with open(os.path.join(folder, link, "index.md"), "w", encoding="utf-8") as page:
                page.write(f"# {link}\n\n" + "\n".join(blocks))
        elif not os.path.exists(os.path.join(folder, link)):
            copy(link, folder)
    order = ["README.md", "docs/README.md", "docs/tutorial.md"]
    nav = [f"  - {title}: {page}" for title, page in zip(("Starling", "Contents", "Tutorial"), order)]
    contents = text_of_all(["docs/README.md"])
    found = {number: [] for number, _, _ in lines_of(contents)}
    for number, _, path, _ in links_of("docs/README.md", contents):
        found[number].append(path)
    for number, line, _ in lines_of(contents):
        if line.startswith("## "):
            nav.append(f"  - {json.dumps(line[3:].strip())}:")
        for page in found[number]:
            if page not in order and page.endswith(".md"):
                order.append(page)
                nav.append(f"      - {json.dumps(page)}")
    with open(folder + ".yml", "w", encoding="utf-8") as file:
        file.write(
            f"site_name: Starling\ndocs_dir: {folder}\nsite_dir: {site}\ntheme: {{name: mkdocs, highlightjs: false}}\n"
            "use_directory_urls: false\nplugins: [search]\nextra_css: [wide.css]\n"
            "markdown_extensions:\n  - toc:\n      slugify: !!python/name:check_docs.slug\nnav:\n" + "\n".join(nav) + "\n"
        )
    with open(os.path.join(folder, "wide.css"), "w", encoding="utf-8") as file:
        file.write("table { display: block; overflow-x: auto; }\n")


def copy(file, folder):
    os.makedirs(os.path.dirname(os.path.join(folder, file)), exist_ok=True)
    shutil.copyfile(os.path.join(ROOT, file), os.path.join(folder, file))


OWN = {"docs/troubleshooting.md": check_messages, "docs/environment.md": check_environment}


def main(arguments):
    if arguments[:1] == ["--stage"]:
        stage(*map(os.path.abspath, arguments[1:]))
        return 0
    if arguments[:1] == ["--site"]:
        seen = check_site(arguments[1])
    else:
        pages = arguments or tracked("*.md")
        texts = {}

        def text_of(page):
            if page not in texts:
                texts[page] = open(os.path.join(ROOT, page), encoding="utf-8").read()
            return texts[page]

        for page in pages:
            check_text(page, text_of(page))
            check_tables(page, text_of(page))
            check_links(page, text_of(page), text_of)
            if page in OWN:
                OWN[page](text_of(page))
        seen = f"{len(pages)} pages"
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    print(f"{seen}: {len(faults)} faults")
    return 2 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
