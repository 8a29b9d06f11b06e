"""Figures of notebook 06: signals against costs, low-rank maps, several blocks at once, healing.

If its table is empty, a figure says in one sentence what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from howlinear.plots import style

_WAYS = (  # the first is black, since the others are compared with it
    {"color": "0.1", "marker": "o", "ls": "-"},
    {"color": style.ACCENT, "marker": "s", "ls": "--"},
    {"color": style.GREY, "marker": "^", "ls": ":"},
    {"color": "#56B4E9", "marker": "D", "ls": "-."},
)
_NO_LOSS = "No model of this run predicts a next token, so no swap of a block has a cost to show."


def signal_against_cost(points: pd.DataFrame, signals: Sequence[dict], floor: float) -> Figure:
    """Plot what swaps of blocks cost against their signals, both logarithmic: a panel per signal, a point per block."""
    if points.empty or not signals:
        return style.sentence_figure(_NO_LOSS)
    figure, axes = style.row_of_panels([signal["title"] for signal in signals], 2.7, sharey=True)
    least, most = points["nats"].clip(lower=floor).agg(["min", "max"])
    for axis, signal in zip(axes, signals, strict=True):
        for model, rows in points.groupby("model", sort=False):
            foreseen = rows[signal["column"]].clip(lower=floor / 10)
            cost = rows["nats"].clip(lower=floor)
            axis.plot(foreseen, cost, **style.look(model) | {"linestyle": "none"}, alpha=0.85)
        if signal.get("exact"):
            axis.plot([least, most], [least, most], color=style.GREY, lw=0.8, zorder=0)
        axis.set(xscale="log", yscale="log", xlabel=signal["label"])
        # ticks at powers of ten, and also at 2 and 5 times these if the axis spans less than two decades
        lowest, highest = axis.get_xlim()
        if highest / lowest < 100:
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    axes[0].set_ylabel("measured cost, nats / token")
    style.legend(axes[0], ncols=4)
    return figure


def reduced_rank(curves: pd.DataFrame, points: pd.DataFrame) -> Figure:
    """Plot how far a block's map may be reduced: held-out R² above, cost of the swap below, a column per place."""
    if points.empty:
        return style.sentence_figure(_NO_LOSS)
    curves, points = (table.assign(place=_places(table)) for table in (curves, points))
    places = [place for place in PLACES if place in set(points["place"])]
    size = (style.PAGE, 3.9)
    figure, axes = plt.subplots(2, len(places), figsize=size, sharex=True, sharey="row", squeeze=False)
    for (top, bottom), place in zip(axes.T, places, strict=True):
        for model, rows in points[points["place"] == place].groupby("model", sort=False):
            look = style.look(model)
            line = curves[(curves["model"] == model) & (curves["place"] == place)]
            top.plot(line["share"], line["r2"], color=look["color"], linestyle=look["linestyle"])
            top.fill_between(line["share"], line["r2_low"], line["r2_high"], color=look["color"], alpha=0.2, lw=0)
            full = rows.iloc[-1]
            top.plot(full["share"], full["r2"], **look)
            style.draw_intervals(bottom, rows["share"], rows, "delta", **look, capsize=1.5)
    for axis in axes.flat:
        axis.vlines([1 / 8, 1 / 12], 0, 1, transform=axis.get_xaxis_transform(), color=style.GREY, ls=":", lw=0.7)
    style.panels(axes[0], places)
    axes[0, 0].set(xscale="log", ylabel="held-out $R^2$", xticks=[0.01, 0.1], xticklabels=["1 %", "10 %"])
    axes[0, 0].xaxis.set_minor_formatter("")
    axes[1, 0].set(yscale="log", ylabel=r"$\Delta$ perplexity", ylim=(_lowest(points["delta"]), None))
    figure.supxlabel("numbers held, share of the block's own")
    style.legend(axes[0, 0], ncols=4)
    return figure


PLACES = ("first block", "middle block", "last block")


def _places(table: pd.DataFrame) -> pd.Series:
    """Return the place of each row's block among those of its model."""
    of_model = table.groupby("model")["block"]
    first = table["block"] == of_model.transform("min")
    last = table["block"] == of_model.transform("max")
    return pd.Series(np.select([first, last], [PLACES[0], PLACES[2]], PLACES[1]), table.index)


def frontier(table: pd.DataFrame) -> Figure:
    """Plot the cost of replacing several blocks at once, logarithmic: a panel per model, a line per way to pick."""
    if table.empty:
        return style.sentence_figure(_NO_LOSS)
    looks = {way: look | {"label": way} for way, look in zip(table["way"].unique(), cycle(_WAYS))}
    models = list(table["model"].drop_duplicates())
    figure, panels = style.panel_grid(models, 2.1, r"$\Delta$ perplexity", most=None, sharey=True)
    for model, axis in panels.items():
        for way, look in looks.items():
            rows = table[(table["model"] == model) & (table["way"] == way)]
            style.draw_intervals(axis, 100 * rows["share"], rows, "delta", **look, capsize=1.5)
        axis.set(yscale="log", xlabel="FFN parameters left, %")
    axis.set_ylim(_lowest(table["delta"]), None)  # for all panels, which share the axis
    style.legend(axis, ncols=4)
    return figure


def healing(table: pd.DataFrame) -> Figure:
    """Plot what a little training of one layer does to perplexity, a row per layer, a point per model."""
    if table.empty:
        return style.sentence_figure("No block of this run was healed.")
    layers = list(table["layer"].drop_duplicates())
    figure, axis = plt.subplots(figsize=(style.COLUMN, 2.0))
    for model, shift in style.side_by_side(table["model"], 0.18).items():
        rows = table[table["model"] == model]
        places = [-layers.index(layer) - shift for layer in rows["layer"]]
        look = style.look(model) | {"linestyle": "", "elinewidth": 0.7, "capsize": 1.5}
        axis.errorbar(rows["delta"], places, xerr=style.error_bars(rows, "delta"), **look)
    axis.axvline(0, color=style.GREY, lw=0.6)
    axis.set(yticks=[-place for place in range(len(layers))], yticklabels=layers, xlabel=r"$\Delta$ perplexity")
    style.legend(axis, ncols=4)
    return figure


def _lowest(costs: pd.Series) -> float:
    """Return where a logarithmic axis of costs begins: a little below the smallest; costs up to 0 are not shown."""
    return float(np.abs(costs[costs != 0]).min() / 3)
