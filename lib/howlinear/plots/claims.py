"""The figure of notebook 13: the board of claims, one verdict a cell."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from howlinear.plots import style

COLOURS = {
    "holds here": "#9fd3f0",
    "does not hold here": "#f2b76b",
    "mixed": "#f4ec9a",
    "not testable here": "#ececec",
}
"""Verdict → colour of its cell; the symbol in the cell says the same."""


def board(cells: pd.DataFrame, columns: Sequence[str]) -> Figure:
    """The claims against the models: a row a claim, a column a model, and what was asked at the right.

    Thin lines part the sections of the paper, which stand at the far right.

    Args:
        cells: a row a cell: `claim`, `section`, `column`, `verdict` (one of `COLOURS`), its `symbol`, the `number` as
            text, and what the claim `asked`; as of `ledger.cells`.
        columns: the columns from left to right; a cell of another column is an error.

    Returns:
        The figure.

    Raises:
        ValueError: a cell's column is not among them.
    """
    claims = list(cells["claim"].unique())
    places = {name: x for x, name in enumerate(columns)}
    unknown = sorted(set(cells["column"]) - places.keys())
    if unknown:
        raise ValueError(f"no column for {', '.join(unknown)}: the board has {', '.join(columns)}")
    figure, axis = plt.subplots(figsize=(style.PAGE, 0.24 * len(claims) + 0.7))
    for y, claim in enumerate(claims):
        row = cells[cells["claim"] == claim]
        for cell in row.itertuples():
            _cell(axis, places[cell.column], y, COLOURS[cell.verdict], f"{cell.symbol} {cell.number}".strip())
        axis.text(len(columns) - 0.4, y, row["asked"].iloc[0], va="center", fontsize=7, color=style.GREY)
    for section, first in _first_rows(cells, claims).items():
        if first > 0:
            axis.axhline(first - 0.5, color=style.GREY, linewidth=0.4)
        axis.text(len(columns) + 0.7, first, section, va="center", ha="right", fontsize=7, color=style.GREY)
    axis.set(xlim=(-0.5, len(columns) + 0.7), ylim=(len(claims) - 0.5, -0.5))
    axis.set_xticks(range(len(columns) + 1), [*columns, "asked"])
    axis.set_yticks(range(len(claims)), claims)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    return figure


def _first_rows(cells: pd.DataFrame, claims: Sequence[str]) -> dict[str, int]:
    """Section → the row of its first claim."""
    sections = cells.drop_duplicates("claim").set_index("claim")["section"]
    first: dict[str, int] = {}
    for y, claim in enumerate(claims):
        first.setdefault(sections[claim], y)
    return first


def _cell(axis: Axes, x: int, y: int, colour: str, text: str) -> None:
    """One verdict: a coloured rectangle about its place, with its text."""
    width, height = 0.94, 0.88
    axis.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, facecolor=colour, linewidth=0))
    axis.text(x, y, text, ha="center", va="center", fontsize=7)
