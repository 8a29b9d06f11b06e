"""Figure of notebook 13: the board of claims, one strip each."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from howlinear.plots import style

COLOURS = {"holds here": "#0b72b5", "does not hold here": "#d55e00", "mixed": "#8a7a00", "no power here": "#a5a5a5"}
"""Verdict → colour of its mark; the side of the threshold says the same."""

RING = {"marker": "o", "markersize": 4.5, "markerfacecolor": "none", "color": style.GREY, "linestyle": "none"}
"""Look of the paper's own numbers."""

HEIGHT = 0.24
"""Inches per strip."""


def board(verdicts: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """Plot a strip per claim, scaled to its furthest point, with the threshold in the middle; it holds on the right."""
    claims = verdicts.drop_duplicates("claim").reset_index(drop=True)
    figure, axis = plt.subplots(figsize=(style.PAGE, HEIGHT * len(claims) + 0.7))
    for y, claim in claims.iterrows():
        ours, theirs = (table[table["claim"] == claim["claim"]].dropna(subset="margin") for table in (verdicts, paper))
        margins = [*ours["margin_low"], *ours["margin_high"], *theirs["margin"]]
        furthest = np.abs(margins).max(initial=0) or 1.0
        _strip(axis, y, ours, theirs, furthest)
        grey = {"va": "center", "color": style.GREY}
        axis.text(1.1, y, claim["asked"], fontsize=7, **grey)
        if not len(ours):
            axis.text(-1.0, y, "not testable here", fontsize=6, **grey)
        if y == 0 or claim["section"] != claims["section"][y - 1]:
            axis.text(2.0, y, claim["section"], ha="right", fontsize=7, **grey)
            axis.axhline(y - 0.5, color=style.GREY, linewidth=0.4)
    axis.axvline(0, color="black", linewidth=0.8)
    figure.legend(handles=_keys(verdicts.dropna(subset=["margin"])), loc="outside lower center", ncols=4)
    axis.set(xlim=(-1.05, 2.0), ylim=(len(claims) - 0.5, -0.5))
    axis.set_xticks([-0.55, 0, 0.55], ["does not hold", "threshold", "holds"])
    axis.set_yticks(range(len(claims)), claims["claim"])
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    return figure


def _strip(axis: Axes, y: int, ours: pd.DataFrame, theirs: pd.DataFrame, furthest: float) -> None:
    """One claim: the paper's numbers as rings, ours with their intervals, models below one another."""
    shifts = np.linspace(-0.28, 0.28, len(ours)) if len(ours) > 1 else [0.0]
    for shift, row in zip(shifts, ours.itertuples(), strict=False):
        colour = COLOURS[row.verdict]
        ends = [row.margin_low / furthest, row.margin_high / furthest]
        axis.plot(ends, [y + shift] * 2, color=colour, linewidth=0.9, solid_capstyle="butt", zorder=2)
        face = "white" if row.hangs_on_ends or row.hangs_on_massive_rows else colour
        mark = {"marker": style.look(row.model)["marker"], "markersize": 3.2, "markeredgewidth": 0.8}
        axis.plot(row.margin / furthest, y + shift, color=colour, markerfacecolor=face, linestyle="none", **mark)
    axis.plot(theirs["margin"] / furthest, [y] * len(theirs), **RING)


def _keys(shown: pd.DataFrame) -> list[Line2D]:
    """Explain the marks in a legend: the models' shapes; rings, open and pale marks."""
    dark = {"color": "0.2", "linestyle": "none", "markersize": 4}
    keys = []
    for model in shown["model"].unique():
        label = "a pair, or twins" if model == "together" else model
        keys.append(Line2D([], [], marker=style.look(model)["marker"], label=label, **dark))
    keys.append(Line2D([], [], label="the paper's models", **RING))
    reasons = {"end blocks": "hangs_on_ends", "massive rows": "hangs_on_massive_rows"}
    there = [reason for reason, hanging in reasons.items() if shown[hanging].any()]
    if there:
        label = f"open: another verdict without {' or '.join(there)}"
        keys.append(Line2D([], [], marker="s", markerfacecolor="white", label=label, **dark))
    if "no power here" in set(shown["verdict"]):
        pale = dark | {"color": COLOURS["no power here"]}
        keys.append(Line2D([], [], marker="s", label="pale: a search without power", **pale))
    return keys
