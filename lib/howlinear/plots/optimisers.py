"""Figures of notebook 07: optimisers on their way to the exact line, and where they fall short of it."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from howlinear.plots import style

_MARKERS = "osD^vPX*"
_COLOURS = ("#332288", style.ACCENT, "#661100", "#9966FF", "#D6008F", style.GREY, "#DDCC77", "#A0A0A0")
"""Colours of the optimisers; none is close to the colour of a model family in `style`."""

_RING = {"linestyle": (0, (2, 2)), "markerfacecolor": "none", "markersize": 5, "zorder": 2.5}
"""Look of Adam, drawn over AdamW so that both can be seen: their paths all but coincide."""

_WAYS = {
    "GD": {},
    "Adam": {"markerfacecolor": "none"},
    "momentum": {"marker": ".", "markersize": 2.5},
}
"""How a way of training changes a model's own marker."""

_LEFT = (0.01, 0.1, 0.5, 1.0, 2.0, 4.0)
"""Contours of the valley: shares of the output's variance that are still to be learned."""

_CLIP = (-0.2, 1.3)  # limits of the part learned: a direction with almost no variance may lie anywhere


def valley(surfaces: pd.DataFrame, walks: pd.DataFrame) -> Figure:
    """Plot contours of the loss over two weights, and the path of gradient descent down them: a panel per scaling."""
    scalings = list(walks.scaling.unique())
    widths = (2.4, 1)[: len(scalings)]
    figure, axes = style.row_of_panels([f"{scaling} inputs" for scaling in scalings], 2.4, width_ratios=widths)
    for axis, scaling in zip(axes, scalings, strict=True):
        surface = surfaces[surfaces.scaling == scaling].pivot_table(index="first", columns="second", values="unlearned")
        lines = axis.contour(surface.columns, surface.index, surface, levels=_LEFT, colors="0.6", linewidths=0.7)
        axis.clabel(lines, _LEFT[1:], fmt="%g", fontsize=6)  # the path covers the innermost
        walk = walks[walks.scaling == scaling]
        axis.plot(walk.second, walk["first"], "o-", color=style.ACCENT)
        apart = walk.round({"first": 1, "second": 1}).drop_duplicates(["first", "second"])
        above = {"xytext": (0, 4), "textcoords": "offset points", "fontsize": 7}
        for place in apart.itertuples():
            axis.annotate(f"{place.step}", (place.second, place.first), **above)
        axis.set(xlabel="weight of the quiet input", ylabel="weight of the loud input")
        axis.set_aspect("equal")  # so that a valley is as long as it looks
        axis.grid(visible=False)
    return figure


def paths(scores: pd.DataFrame, exact: float, low: float, high: float, batch: int) -> Figure:
    """Held-out R² against steps, one panel for each scaling of the inputs; values far below zero are cut off."""
    scalings = list(scores.scaling.unique())
    optimisers = scores.optimiser.unique()
    titles = [f"{scaling} inputs" for scaling in scalings]
    figure, panels = style.panel_grid(titles, 2.2, "$R^2$, held out", most=None, sharey=True)
    for axis, scaling in zip(panels.values(), scalings, strict=True):
        axis.axhspan(low, high, color="0.9", lw=0)
        axis.axhline(exact, color="0.1", ls="--", lw=1, label="closed form")
        for i, optimiser in enumerate(optimisers):
            path = scores[(scores.scaling == scaling) & (scores.optimiser == optimiser)]
            look = {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)], "markersize": 3}
            if optimiser == "Adam":
                look |= _RING
            axis.plot(path.step, path.reached, linewidth=1, label=optimiser, **look)
        axis.set(xscale="log", xlabel=f"steps of {batch} rows", ylim=(-0.02, 1.1 * high))
    style.legend(axis, columnspacing=1.2)
    return figure


def shortfall(profiles: pd.DataFrame, directions: pd.DataFrame, steps: int, name: str) -> Figure:
    """Plot the shortfall of all blocks by the condition of their inputs, and of one block direction by direction."""
    figure, (blocks, modes) = style.row_of_panels(["all blocks, raw inputs", name], 2.7)
    # colour and marker are the model, filling is the way of training
    for (model, way), group in profiles.groupby(["model", "way"], sort=False):
        look = style.look(model) | {"linestyle": "", "label": "_"} | _WAYS.get(way, {})
        blocks.plot(group.condition, group.gap, **look)
    for model in profiles.model.unique():
        blocks.plot([], [], **style.look(model) | {"linestyle": ""})
    for way in profiles.way.unique():
        look = {"color": style.GREY, "marker": "o", "linestyle": ""} | _WAYS.get(way, {})
        blocks.plot([], [], label=way, **look)
    blocks.axhline(0, color=style.GREY, lw=0.6)
    blocks.set(xscale="log", xlabel="condition number of the inputs", ylabel="shortfall in held-out $R^2$")
    # at the upper left where no block lies there, or else wherever there is room
    across, up = np.log(profiles.condition), profiles.gap
    left = across < across.min() + 0.45 * (across.max() - across.min())
    upper = up > up.min() + 0.5 * (up.max() - up.min())
    blocks.legend(loc="best" if (left & upper).any() else "upper left", handletextpad=0.2)

    # how much of each direction is learned, against its loudness; a point's area is its share of variance
    colours = ["0.2", style.ACCENT, "#56B4E9"]
    for i, (way, group) in enumerate(directions.groupby("way", sort=False)):
        look = {"marker": "o^D"[i % 3], "facecolor": "none", "edgecolor": colours[i % 3], "lw": 0.8, "label": way}
        modes.scatter(group.loudness, group.learned.clip(*_CLIP), s=6 + 600 * group.share, **look)
    curve = np.geomspace(directions.loudness.min(), 1, 200)
    modes.plot(curve, 1 - (1 - curve) ** steps, color="0.2", lw=1, label="GD, theory")
    modes.set(xscale="log", xlabel="$\\lambda_i / \\lambda_1$", ylabel=f"part learned in {steps} steps")
    modes.legend(loc="lower right")
    return figure


def baseline(table: pd.DataFrame) -> Figure:
    """Plot the untuned baselines, with the interval of their distance to the closed form, a column per block."""
    figure, axis = plt.subplots(figsize=(style.PAGE, 2.4))
    numbers = ["" if pd.isna(block) else f"\n{block:.0f}" for block in table.block]
    table = table.assign(name=table.model + numbers)
    names = list(table.name.unique())
    for k, (way, shift) in enumerate(style.side_by_side(table.way, 0.16).items()):
        group = table[table.way == way]
        at = group.name.map(names.index).to_numpy()
        bars = style.error_bars(group, "gap")[::-1]  # what is reached falls as the gap grows
        look = {"color": ("#0072B2", style.ACCENT)[k % 2], "marker": "o^"[k % 2], "ls": ""}
        axis.errorbar(at + shift, group.reached, bars, elinewidth=0.7, label=f"{way}, untuned", **look)
        if k == 0:
            axis.hlines(group.exact, at - 0.3, at + 0.3, color="0.1", lw=1.2, label="closed form")
    axis.axhline(0, color=style.GREY, lw=0.6)
    axis.set_xticks(range(len(names)), names)
    axis.grid(visible=False, axis="x")
    axis.set_ylabel("$R^2$, held out")
    style.legend(axis)
    return figure
