"""Minutes to read a notebook (prose, code and figures at a reader's pace) and to run it, for the notebook's header.

`python -m tools.reading_time` writes the minutes into the headers; a test checks them. Exercises are left out, as their
time varies, and so are imports, which nobody reads. Minutes to run are those last recorded on the embedded models.
"""

from __future__ import annotations

import ast
import math
import re

import jupytext
from nbformat import NotebookNode

from howlinear.files import atomic, numbers, paths, tables

WORDS_A_MINUTE = 130
LINES_A_MINUTE = 14
MINUTES_A_FIGURE = 1.5
STEP = 5
"""Minutes are rounded to multiples of this, since the pace is a guess."""

STATED = re.compile(r"\*\*Time\*\* (\d+) minutes to read, (\d+) to run")


def minutes(notebook: NotebookNode) -> int:
    """Minutes to read a notebook up to its exercises, in whole steps."""
    words, lines, figures = 0, 0, 0
    for cell in notebook.cells:
        prose, exercises, _ = cell.source.partition("## Exercises")
        if cell.cell_type == "markdown":
            words += len(prose.split())
        else:
            lines += code_lines(cell.source)
            figures += cell.source.count("run.figure(")
        if exercises:
            break
    total = words / WORDS_A_MINUTE + lines / LINES_A_MINUTE + figures * MINUTES_A_FIGURE
    return STEP * max(1, round(total / STEP))


def code_lines(source: str) -> int:
    """Number of lines of code to read, without empty lines and imports."""
    lines = {number for number, line in enumerate(source.splitlines(), 1) if line.strip()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def main() -> None:
    """Write the minutes into the header of every notebook; say which changed."""
    for path in sorted(paths.NOTEBOOKS.glob("[0-9][0-9]_*.py")):
        old = path.read_text(encoding="utf-8")
        read = minutes(jupytext.reads(old, "py:percent"))
        run = math.ceil(numbers.load(paths.results("minis") / path.stem / tables.RUN)["seconds"] / 60)
        stated = f"**Time** {read} minutes to read, {run} to run"
        new = STATED.sub(stated, old, count=1)
        if new != old:
            atomic.write_text(path, new)
            print(f"{path.name}: {stated}")


if __name__ == "__main__":
    main()
