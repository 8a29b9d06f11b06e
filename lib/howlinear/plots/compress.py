"""Figures of notebook 14 (what smaller models cost) and of `howlinear compress` (what each block keeps)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter
from scipy.optimize import isotonic_regression

from howlinear.plots import style

_BARS = {"elinewidth": 0.6, "capsize": 1.2}
_COLOURS = ("0.1", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#8C6D31", style.GREY)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_DASHES = ("-", "--", "-.", ":")
_TICKS = (1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
_APART = 0.058  # share of a panel's height between the names of two lines


def pareto(table: pd.DataFrame, methods: Sequence[str], top: float = 2.5) -> Figure:
    """Plot perplexity over the whole model's against parameters kept, a panel per model: lower is better."""
    table = table.dropna(subset=["ratio"])
    if table.empty:
        return style.sentence_figure("No smaller model was made, so there is no perplexity to compare.")
    models = list(table["model"].drop_duplicates())
    width = style.COLUMN if len(models) == 1 else style.PAGE
    figure, panels = style.panel_grid(models, 2.3, most=2, width=width, sharex=True)
    for model, axis in panels.items():
        of_model = table[table["model"] == model]
        worst = min(top, 1.03 * of_model.loc[of_model["method"].isin(methods), "ratio_high"].max())
        axis.axhline(1, color=style.GREY, lw=0.6)
        axis.set(yscale="log", ylim=(min(0.99, of_model["ratio_low"].min()), worst))
        ends = {}
        for i, method in enumerate(methods):
            rows = of_model[of_model["method"] == method].sort_values("kept", ascending=False)
            if rows.empty:
                continue
            look = {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)]}
            look |= {"linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.8 if i == 0 else 1.0}
            bars = style.error_bars(rows, "ratio")
            bars[:, rows["ratio"] > worst] = np.nan  # no bars for points beyond the panel
            axis.errorbar(100 * rows["kept"], rows["ratio"], bars, **look, **_BARS, zorder=3 if i == 0 else 2)
            ends[method] = (rows["ratio"].iloc[-1], look)
        axis.yaxis.set_major_locator(FixedLocator(_TICKS))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        _name_ends(axis, ends)
    first = panels[models[0]]
    first.invert_xaxis()  # for all panels, which share the axis
    first.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for lowest in list(panels.values())[-style.abreast(len(models), most=2) :]:
        lowest.set_xlabel("parameters kept, %")
        lowest.tick_params(labelbottom=True)
    figure.supylabel("perplexity over the whole model's")
    return figure


def kept(table: pd.DataFrame) -> Figure:
    """Plot the share of its parameters that each block keeps, a bar per block."""
    figure, axis = plt.subplots(figsize=(style.COLUMN, 2.3))
    axis.bar(table["block"], 100 * table["kept"], color="0.35")
    axis.axhline(100, color=style.GREY, lw=0.6)
    axis.set(xlabel="block", ylabel="parameters kept, %")
    axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _name_ends(axis: Axes, ends: dict[str, tuple[float, dict]]) -> None:
    """Name each line to the right of a panel, as close to its end as possible without overlap."""
    low, high = np.log(axis.get_ylim())
    names = sorted(ends, key=lambda method: ends[method][0])
    heights = np.array([np.log(ends[method][0]) for method in names])
    places = spread_labels(np.clip((heights - low) / (high - low), 0, 1), _APART)
    across = axis.get_yaxis_transform()
    for method, place in zip(names, places, strict=True):
        ratio, look = ends[method]
        two_digits = float(f"{ratio:.2g}")
        beyond = f" ({two_digits:,g})" if np.log(ratio) > high else ""
        at = np.exp(low + place * (high - low))
        axis.plot([1.04], [at], **look | {"linestyle": "none"}, transform=across, clip_on=False)
        axis.text(1.08, at, method + beyond, color=look["color"], fontsize=6.5, va="center", transform=across)


def spread_labels(wanted: Sequence[float] | np.ndarray, gap: float) -> np.ndarray:
    """Return the places nearest to `wanted` (ascending) that lie a gap apart, moved down if they would end above 1."""
    # p with p_{i+1} ≥ p_i + gap and least Σ (p − wanted)²: p − i · gap is the isotonic regression of wanted − i · gap
    steps = gap * np.arange(len(wanted))
    places = isotonic_regression(np.asarray(wanted, dtype=float) - steps).x + steps
    ceiling = 1 - steps[::-1]  # the upper limit of each, if all above it lie a gap apart
    return np.minimum(places, ceiling)
