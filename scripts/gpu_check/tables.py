"""What the steps of a stage have left in its folder for the report: rows of checks, and figures with their goals."""


def lines_of(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def cells(line):
    return [part.strip() for part in line.strip().strip("|").split("|")]


def of_folder(folder):
    """rows: (what, pass or **FAIL** or skipped, remark). figures: (what, goal, measured, verdict)."""
    rows = [tuple((cells(line) + ["", ""])[:3]) for line in lines_of(folder / "rows.md") if line.startswith("|")]
    figures = []
    for path in sorted(folder.glob("goals*.md")):
        found = [cells(line) for line in lines_of(path) if line.startswith("|")]
        figures += [tuple((row + ["", "", ""])[:4]) for row in found if row[0] != "what" and not row[0].startswith("---")]
    return {"rows": rows, "figures": figures}
