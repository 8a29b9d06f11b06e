"""Figures of notebook 11: what R²_lin depends on. Tidy tables in, figures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from howlinear.plots import style

_SIDES = {  # column → label and look
    "r2_train": ("rows of the fit", {"marker": "v", "color": "#56B4E9", "ls": ":"}),
    "r2": ("held-out rows", {"marker": "o", "color": "#0072B2", "ls": "--"}),
}
_CHOICES = {  # column → label of its rows below the curve
    "denominator": "denominator",
    "split": "split",
    "rows": "rows an input",
    "seq_len": "sequence",
    "position_0": "position 0",
    "loud": "loudest",
    "null": "null cut",
}
_NAMED = {"paper": {"ls": ":", "marker": "D", "mfc": "white"}, "ours": {"ls": "-", "marker": "o"}}


def rows_needed(curves: pd.DataFrame, blocks: Mapping[str, Sequence[int]]) -> Figure:
    """Plot R² on both sides of the split over the number of train rows, and its estimated limit: a panel per model."""
    models = list(blocks)
    figure, panels = style.panel_grid(models, 2.3, "$R^2$", most=None, sharex=True, sharey=True)
    for model, axis in panels.items():
        for block in blocks[model]:
            curve = curves[(curves.model == model) & (curves.block == block)].sort_values("factor")
            for column, (label, look) in _SIDES.items():
                axis.plot(curve.factor, curve[column], lw=0.9, label=label, **look)
            look = {"fmt": "s-", "color": "black", "lw": 0.9, "label": "limit"}
            style.draw_intervals(axis, curve.factor, curve, "r2_limit", **look)
            last = curve.iloc[-1]
            end = (last.factor, last.r2 if np.isnan(last.r2_limit) else last.r2_limit)
            beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
            axis.annotate(f"block {block}", end, **beside, fontsize=7)
        factors = sorted(curves.factor.unique())
        axis.set(xscale="log", xlabel="train rows for each input", xlim=(factors[0] / 1.25, factors[-1] * 2.6))
        axis.set_xticks(factors, [str(factor) for factor in factors])
        axis.minorticks_off()
    style.legend(axis, loc="outside lower center")
    return figure


def multiverse(
    table: pd.DataFrame, statistic: str, threshold: float, label: str, named: Mapping[str, Mapping[str, object]]
) -> Figure:
    """Plot a specification curve: a statistic of every model's profile under every protocol, and its choices."""
    table = table.dropna(subset=[statistic])
    if table.empty:
        return style.sentence_figure("No model of this run has two blocks whose outputs vary, so there is no profile.")
    choices = list(_CHOICES)
    wide = table.pivot_table(index=choices, columns="model", values=statistic, sort=False)[list(table.model.unique())]
    ordered = wide.loc[wide.mean(axis=1).sort_values(kind="stable").index]
    values = {choice: table[choice].unique() for choice in choices}
    real = [choice for choice in choices if len(values[choice]) > 1] or choices
    levels = [(choice, level) for choice in real for level in values[choice]]
    heights = [1.0, 0.14 * len(levels)]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(style.PAGE, 5.0), sharex=True, height_ratios=heights)
    number = np.arange(len(ordered))
    for model in ordered.columns:
        top.plot(number, ordered[model], **style.look(model) | {"linestyle": "none"}, ms=1.8)
    top.axhline(threshold, color="black", lw=0.8)
    top.set(ylabel=label, xlim=(-3, len(ordered) + 2), ylim=(0, None))
    style.legend(top, markerscale=2.5)

    universes = ordered.index.to_frame(index=False)
    _draw_levels(bottom, universes, levels)
    places = {}
    for name, protocol in named.items():
        is_it = np.logical_and.reduce([universes[choice] == level for choice, level in protocol.items()])
        places |= dict.fromkeys(np.flatnonzero(is_it), name)
    for place, name in places.items():
        for axis in (top, bottom):
            axis.axvline(place, color=style.ACCENT, lw=1, zorder=0.5)
        # the leftmost is named on its left, the others on their right: neighbours' names would cover one another
        leftmost = place == min(places)
        beside = {"ha": "right", "xytext": (-2, 0)} if leftmost else {"ha": "left", "xytext": (2, 0)}
        at = {"xy": (place, 0.03), "xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        top.annotate(name, **at, **beside, fontsize=7)
    bottom.set_xlabel(f"{len(ordered)} protocols, in order of the mean over models")
    return figure


def _draw_levels(axis: Axes, universes: pd.DataFrame, levels: Sequence[tuple[str, object]]) -> None:
    """Draw a row per level, with a stroke at each protocol that has it; rows of one choice are adjacent."""
    for row, (choice, level) in enumerate(levels):
        has_it = np.flatnonzero((universes[choice] == level).to_numpy())
        shade = ("black", style.GREY)[list(_CHOICES).index(choice) % 2]
        axis.vlines(has_it, row - 0.38, row + 0.38, lw=0.5, color=shade)
        if row == 0 or choice != levels[row - 1][0]:
            place = {"xy": (-0.19, row), "xycoords": ("axes fraction", "data")}
            axis.annotate(_CHOICES[choice], **place, fontsize=7, ha="left", va="center", annotation_clip=False)
    axis.set_yticks(range(len(levels)), [str(level) for _, level in levels], fontsize=6.5)
    axis.set_ylim(len(levels) - 0.4, -0.6)
    axis.grid(visible=False)


def profiles(table: pd.DataFrame) -> Figure:
    """Plot the profile of every model under each named protocol: a panel per model."""
    models = list(table.model.unique())
    figure, panels = style.panel_grid(models, 2.1, "$R^2_{\\mathrm{lin}}$", most=None, sharey=True)
    shifts = style.side_by_side(table.protocol, 0.16)  # so that bars do not cover one another
    for model, axis in panels.items():
        color = style.look(model)["color"]
        for protocol, mine in table[table.model == model].groupby("protocol", sort=False):
            look = _NAMED.get(protocol, {"ls": "-.", "marker": "^"})
            places = mine.block + shifts[protocol]
            style.draw_intervals(axis, places, mine, "r2", color=color, lw=1, label=protocol, **look)
        style.number_blocks(axis)
    style.legend(panels[models[0]], loc="outside lower center", labelcolor="black")
    return figure
