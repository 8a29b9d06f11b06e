"""No executed notebook shows an empty table, a column without a number, or a panel with nothing in it.

What is looked at is a small notebook made here; `EXECUTED=build/minis pytest tests/notebook/test_executed.py`, part of
`make test-notebooks`, looks at a whole run.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook, new_output

from howlinear.files import paths

NOTHING = {"", "NaN", "nan", "None", "<NA>"}
GROUP = "{http://www.w3.org/2000/svg}g"
FRAME = ("patch", "matplotlib.axis", "text", "legend")
SIDES = 5  # patches that any axes have: the ground and four sides


def empty_tables(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Where a table has no row, or a column holds nothing."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            page = BeautifulSoup(output.get("data", {}).get("text/html", ""), "html.parser")
            for table in page.find_all("table"):
                rows = [[cell.text for cell in row.find_all("td")] for row in table.find_all("tr")]
                columns = list(zip(*filter(None, rows), strict=True))
                if not columns or any(set(column) <= NOTHING for column in columns):
                    yield f"cell {number}: {cell.source[-80:]!r}"


def empty_panels(figure: Path) -> Iterator[str]:
    """Axes of an SVG that have a frame and nothing in it."""
    for axes in ElementTree.parse(figure).iter(GROUP):
        kinds = [part.get("id", "").rsplit("_", 1)[0] for part in axes]
        if not kinds or not re.fullmatch(r"axes_\d+", axes.get("id", "")):  # no axes, or switched off
            continue
        if set(kinds) <= {*FRAME} and kinds.count("patch") <= SIDES:
            yield f"{figure.name}: {axes.get('id')}"


def test_an_empty_table_and_an_empty_column_are_found():
    full = pd.DataFrame({"a": [1.0, None], "b": [1, 2]})
    tables = {"full": full, "no row": full.head(0), "no number": full.assign(a=None)}
    cells = [
        new_code_cell(name, outputs=[new_output("display_data", {"text/html": table.to_html()})])
        for name, table in tables.items()
    ]
    assert list(empty_tables(new_notebook(cells=cells))) == ["cell 1: 'no row'", "cell 2: 'no number'"]


def test_an_empty_panel_is_found(tmp_path):
    figure, (full, empty) = plt.subplots(1, 2)
    full.plot([1, 2])
    empty.set(title="nothing", xlabel="x")
    figure.savefig(tmp_path / "two.svg")
    assert list(empty_panels(tmp_path / "two.svg")) == ["two.svg: axes_2"]


def test_no_figure_on_record_has_an_empty_panel():
    figures = sorted(Path(paths.ROOT, "figures").glob("*/*.svg"))
    assert figures
    assert [fault for figure in figures for fault in empty_panels(figure)] == []


@pytest.mark.skipif("EXECUTED" not in os.environ, reason="EXECUTED names no run")
def test_no_executed_notebook_shows_an_empty_table():
    notebooks = sorted(Path(os.environ["EXECUTED"], "notebooks").glob("[0-9]*.ipynb"))
    assert notebooks
    faults = [f"{path.stem}, {fault}" for path in notebooks for fault in empty_tables(nbformat.read(path, 4))]
    assert faults == []
