"""Figures of notebook 16: R²_lin between and within tokens, tables and lines, and lines over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from howlinear.plots import style

_LOWEST = -0.5  # lower end of R² in a panel, unless all values lie above
_MOST_NAMED = 16  # blocks along an axis; with more, the labels are thinned out to this many
_ASIDE = 0.12  # between the marks of one block, as a share of the step from block to block


def _figure(
    table: pd.DataFrame, quantity: str, draw: Callable[[Axes, pd.DataFrame, dict], None], handles: Sequence
) -> Figure:
    """Draw a panel per model from its rows and looks, under one legend in grey, since colours are the models'."""
    figure, panels = style.panel_grid(list(table["model"].unique()), 2.1, quantity, sharey=True)
    for model, axis in panels.items():
        own = table[table["model"] == model].sort_values("block")
        draw(axis, own, _looks(model))
        every = max(2 if len(own) > 6 else 1, -(-len(own) // _MOST_NAMED))
        axis.set_xticks(range(0, len(own), every), own["block"][::every].astype(str))
        axis.set_xlabel("block")
    axis.set_ylim(max(axis.get_ylim()[0], _LOWEST), 1.04)  # for all panels, which share the axis
    figure.legend(handles=list(handles), loc="outside upper center", ncols=len(handles))
    return figure


def _curves(axis: Axes, own: pd.DataFrame, columns: dict[str, dict]) -> None:
    """Draw columns of a table with their intervals, block by block, each shifted a little from the last."""
    places = np.arange(len(own))
    for column, shift in style.side_by_side(columns, _ASIDE).items():
        style.draw_intervals(axis, places + shift, own, column, elinewidth=0.6, **columns[column])


def _looks(model: str) -> dict[str, dict]:
    """Return the looks in a model's panel: filled, open, crossed and the line itself."""
    look = style.look(model)
    own = {"color": look["color"], "marker": look["marker"], "lw": 0.9}
    return {
        "filled": own | {"ls": "-"},
        "open": own | {"ls": "--", "mfc": "white"},
        "cross": {"color": style.GREY, "marker": "x", "ls": ":", "lw": 0.9},
        "line": {"color": "black", "ls": "-", "lw": 1.4},
    }


def _handle(kind: str, label: str) -> Line2D:
    """Make a mark for the legend, grey where the panels have the model's colour."""
    look = _looks("")[kind]
    color = {} if kind == "line" else {"color": style.GREY}
    marker = {"marker": "o"} if kind in ("filled", "open") else {}
    return Line2D([], [], **(look | color | marker), label=label)


def parts(table: pd.DataFrame) -> Figure:
    """R²_lin between token means and within tokens, over the share of the variance that lies between them."""

    def draw(axis: Axes, own: pd.DataFrame, looks: dict) -> None:
        axis.bar(range(len(own)), own["token_share"], width=0.8, color=style.GREY, alpha=0.25, lw=0, zorder=0)
        axis.plot(range(len(own)), own["r2"], **looks["line"])
        _curves(axis, own, {"r2_between": looks["filled"], "r2_within": looks["open"]})
        axis.axhline(0, color=style.GREY, lw=0.6)

    handles = [
        Patch(color=style.GREY, alpha=0.25, lw=0, label="token share"),
        _handle("filled", "R² between tokens"),
        _handle("line", "$R^2_{\\mathrm{lin}}$"),
        _handle("open", "R² within tokens"),
    ]
    return _figure(table, "share of variance, held out", draw, handles)


def tables(table: pd.DataFrame) -> Figure:
    """Held-out R² of the line, of a table of tokens, of both together, and of the line with the previous token's."""

    def draw(axis: Axes, own: pd.DataFrame, looks: dict) -> None:
        axis.plot(range(len(own)), own["r2"], **looks["line"])
        _curves(axis, own, {"r2_table": looks["cross"], "r2_both": looks["filled"], "r2_previous": looks["open"]})

    handles = [
        _handle("line", "line"),
        _handle("cross", "table"),
        _handle("filled", "table and line"),
        _handle("open", "line and previous token's table"),
    ]
    return _figure(table, "$R^2$, held out", draw, handles)


def vocabulary(table: pd.DataFrame) -> Figure:
    """Plot lines over the vocabulary and the bracket of the text's line, from held-out to in-sample R²."""

    def draw(axis: Axes, own: pd.DataFrame, looks: dict) -> None:
        places = np.arange(len(own))
        axis.fill_between(places, own["r2"], own["r2_train"], color=style.ACCENT, alpha=0.35, lw=2)
        axis.plot(places, own["r2_vocabulary"], "D", color=looks["filled"]["color"], ms=4)
        axis.plot(places, own["r2_carried"], "x", color=style.GREY)

    handles = [
        Patch(color=style.ACCENT, alpha=0.35, label="the text's line: held out to in sample"),
        Line2D([], [], color=style.GREY, marker="D", ls="none", label="over the vocabulary"),
        Line2D([], [], color=style.GREY, marker="x", ls="none", label="that line on held-out text"),
    ]
    return _figure(table, "$R^2$ before training", draw, handles)
