"""A notebook for the book's readers: solutions folded below their exercises, drawing code hidden.

Executed cells and their outputs stay as they are, in order. If the project has an address, a downloaded notebook
also runs in a hosted Jupyter: a first cell, which the page does not show, fetches the project if it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import jupytext
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from howlinear.errors import InputError
from howlinear.files import paths

EXERCISE = re.compile(r"^\*\*(\d)(?: \(([\w -]+)\))?\.\*\*", re.MULTILINE)
"""The number of an exercise, and how hard it is."""
# code that only draws or saves
ASIDE = re.compile(r"^(_ = )?run\.(figure|save)\(|^def (box|arrow)\(", re.MULTILINE)

HOSTED = """\
# Elsewhere than in the project, as in a hosted notebook: fetch it first. In the project this cell does nothing.
import importlib.util, subprocess, sys

if importlib.util.find_spec("howlinear") is None:
    subprocess.run(["git", "clone", "--depth", "1", "ADDRESS", "howlinear"], check=True)
    versions = ["--constraint", "howlinear/tools/constraints.txt"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--editable", "howlinear", *versions], check=True)
    sys.path.insert(0, "howlinear/lib")
"""


@cache
def notebook(stem: str) -> NotebookNode:
    """A notebook as read from its text file; cached, since it is used often."""
    return jupytext.read(paths.NOTEBOOKS / f"{stem}.py")


def difficulties(stem: str) -> dict[int, str]:
    """Exercise of a notebook → its stated difficulty."""
    words = "\n".join(cell.source for cell in notebook(stem).cells if cell.cell_type == "markdown")
    return {int(number): difficulty for number, difficulty in EXERCISE.findall(words)}


def folded(notebook: NotebookNode, answers: NotebookNode, address: str) -> NotebookNode:
    """The executed notebook for readers, changed in place: solutions folded below exercises, figures with alt text.

    If the project can be cloned from an `address`, a first cell fetches it.
    """
    start, parts = paired(notebook, answers)
    _, asked = exercises(notebook.cells)
    cells, heading = [], "figure"
    if address:
        cells.append(new_code_cell(HOSTED.replace("ADDRESS", address), metadata={"tags": ["remove-cell"]}))
    for number, cell in numbered(notebook.cells):
        heading = (re.findall(r"^## (.+)$", cell.source, re.MULTILINE) or [heading])[-1]
        if "injected-parameters" not in cell.metadata.get("tags", []):
            cells.append(cell)
        if cell.cell_type == "code" and ASIDE.search(cell.source):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-input"]
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            cell.metadata["mystnb"] = {"image": {"alt": heading}}
        if number and cell is asked[number][-1]:
            lead = start if number == min(asked) else []
            cells.append(new_markdown_cell(_fold(f"Solution {number}", [*lead, *parts[number]])))
    notebook.cells = cells
    return notebook


def paired(notebook: NotebookNode, answers: NotebookNode) -> tuple[list[NotebookNode], dict[int, list[NotebookNode]]]:
    """The start of the solutions, and exercise → the cells of its solution; each needs the other."""
    start, parts = exercises(answers.cells)
    _, asked = exercises(notebook.cells)
    if not asked or asked.keys() != parts.keys():
        raise InputError(f"exercises {sorted(asked)} but solutions {sorted(parts)}: each needs the other")
    return start, parts


def numbered(cells: Iterable[NotebookNode]) -> Iterator[tuple[int, NotebookNode]]:
    """Each cell with the number of the exercise it belongs to, 0 before the first."""
    number = 0
    for cell in cells:
        found = EXERCISE.search(cell.source) if cell.cell_type == "markdown" else None
        number = int(found.group(1)) if found else number
        yield number, cell


def exercises(cells: Iterable[NotebookNode]) -> tuple[list[NotebookNode], dict[int, list[NotebookNode]]]:
    """The cells before the first exercise, without the title, and exercise → its cells."""
    parts: dict[int, list[NotebookNode]] = {0: []}
    for number, cell in numbered(cells):
        parts.setdefault(number, []).append(cell)
    start = [cell for cell in parts.pop(0) if not cell.source.startswith("# ")]
    return start, parts


def _fold(title: str, cells: Iterable[NotebookNode]) -> str:
    """Cells as one closed drop-down, code as listings."""
    texts = (cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```" for cell in cells)
    return "\n\n".join((f"::::{{dropdown}} {title}", *texts, "::::"))
