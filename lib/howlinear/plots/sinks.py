"""Figures of notebook 12: massive rows, R²_lin with and without them, their cause, and what maps cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatter, NullFormatter, SymmetricalLogLocator

from howlinear.plots import style

_FLOOR = -0.1  # R² below this is drawn as an arrow at the edge: a map that serves the sinks may reach −100 elsewhere
_R2_APART = 0.06  # R²; numbers of blocks closer than this are written together
_COSTS_APART = 0.055  # share of the panel's height; likewise
_COLUMN_APART = 8  # points; between the numbers of two models
_LETTER = 3.0  # points; width of a character of these numbers and the commas between them
_LINEAR = 0.01  # nats per token: costs below it are drawn on a linear scale
_NARROW = 4  # times the lowest cost: if all lie below it, a log scale would have no round numbers to show
_BARS = {"elinewidth": 0.6}
_INTERVENED = (  # over depth: what is done to the sink, and the control
    {"color": style.ACCENT, "marker": "s", "lw": 0.8},
    {"color": style.GREY, "marker": "x", "lw": 0.8, "ls": ":"},
)


def massive(blocks: pd.DataFrame, flow: pd.DataFrame, multiple: float = 10.0) -> Figure:
    """Plot every block's heaviest output in median norms, and the direction of massive outputs, if several have one."""
    several = flow["cosine"].count() > 1
    figure, axes = style.row_of_panels(["size", "direction"] if several else ["size"], 2.6)
    size, direction = axes[0], axes[-1]
    for model, of_model in blocks.groupby("model", sort=False):
        size.plot(of_model["block"], of_model["heaviest"], **style.look(model))
    size.axhline(multiple, color=style.GREY, ls=":", lw=1)
    size.set_yscale("log")
    size.yaxis.set_major_formatter(LogFormatter())
    size.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    size.set_ylabel("heaviest output, in median norms")
    style.number_blocks(size)
    if several:
        for model in blocks["model"].unique():
            of_model = flow[flow["model"] == model]
            dots = style.look(model) | {"linestyle": "none"}
            direction.plot(of_model["block"], of_model["cosine"].astype(float), **dots)
        direction.axhline(0, color=style.GREY, lw=0.6)
        direction.set(ylabel="cosine with its writer,\na block before it", ylim=(-1.1, 1.1), xlim=size.get_xlim())
        style.number_blocks(direction)
    style.legend(size, ncols=4, handlelength=2.8)
    return figure


def with_and_without(blocks: pd.DataFrame) -> Figure:
    """Plot R²_lin of all rows, of ordinary ones, and of the map of all rows on ordinary ones: a panel per model."""
    # models without massive rows are left out, unless no model has any
    heavy = blocks.loc[blocks["massive_rows"] > 0, "model"]
    models = list((heavy if len(heavy) else blocks["model"]).unique())
    figure, panels = style.panel_grid(models, 2.3, "$R^2_{\\mathrm{lin}}$, held out", sharey=True)
    for model, ax in panels.items():
        of_model = blocks[blocks["model"] == model].sort_values("block")
        filled = style.look(model) | {"label": "all rows", "elinewidth": 0.5}
        hollow = filled | {"label": "ordinary rows", "markerfacecolor": "white", "linestyle": "none"}
        style.draw_intervals(ax, of_model["block"], of_model, "r2", **filled)
        style.draw_intervals(ax, of_model["block"], of_model, "r2_ordinary", **hollow)
        # a cross, or an arrow for values below the floor
        low = of_model[of_model["of_all"] < _FLOOR]
        within = of_model[of_model["of_all"] >= _FLOOR]
        ax.plot(within["block"], within["of_all"], "x", color=style.GREY, label="map of all rows on ordinary ones")
        ax.plot(low["block"], [_FLOOR] * len(low), marker=r"$\downarrow$", ms=6, ls="none", color=style.GREY)
        ax.set_ylim(_FLOOR - 0.06, 1.03)
        style.number_blocks(ax)
    style.legend(panels[models[0]], handlelength=2.8)
    return figure


def cuts(table: pd.DataFrame, blocks: pd.DataFrame) -> Figure:
    """Plot R²_lin over depth, a line per cut above which rows are left out; and the share of rows that carry R²."""
    models = list(blocks["model"].unique())
    abreast = style.abreast(len(models))
    rows = -(-len(models) // abreast)
    shape = {"sharey": "row", "height_ratios": [2, 1] * rows}
    figure, axes = plt.subplots(2 * rows, abreast, figsize=(style.PAGE, 3.4 * rows + 0.4), squeeze=False, **shape)
    upper, lower = axes[::2].ravel(), axes[1::2].ravel()
    style.panels(upper[: len(models)], models)
    choices = sorted(table["cut"].unique())
    colors = plt.get_cmap("viridis")(np.linspace(0, 1, len(choices)))
    for top, bottom, model in zip(upper, lower, models, strict=False):
        of_model = blocks[blocks["model"] == model].sort_values("block")
        by_cut = table[table["model"] == model].sort_values("block")
        for cut, color in zip(choices, colors, strict=True):
            of_cut = by_cut[by_cut["cut"] == cut]
            top.plot(of_cut["block"], of_cut["r2"], color=color, lw=1, label=f"≤ {cut:g} medians")
        top.plot(of_model["block"], of_model["r2"], color="black", lw=0.8, marker=".", label="all rows")
        without = {"marker": "D", "ls": "none", "mfc": "none", "mec": style.ACCENT, "mew": 0.9, "ms": 4}
        top.plot(of_model["block"], of_model["r2_without_first"], **without, label="without position 0")
        bottom.plot(of_model["block"], of_model["carrying_share"], color="black", lw=0.8, marker=".")
        bottom.set(yscale="log", ylim=(0.8 * blocks["carrying_share"].min(), 1.1))
        bottom.yaxis.set_major_locator(FixedLocator([sub * 10.0**-power for power in range(7) for sub in (1, 2, 5)]))
        bottom.yaxis.set_major_formatter("{x:g}")
        bottom.yaxis.set_minor_formatter(NullFormatter())
        for ax in (top, bottom):
            style.number_blocks(ax)
        top.set_xlabel("")
    for unused in [*upper[len(models) :], *lower[len(models) :]]:
        unused.set_axis_off()
    for top, bottom in zip(axes[::2, 0], axes[1::2, 0], strict=True):
        top.set_ylabel("$R^2_{\\mathrm{lin}}$, held out")
        bottom.set_ylabel("share of rows\nthat carry $R^2$")
    style.legend(upper[0], ncols=5, handlelength=1.8)
    return figure


def interventions(effects: pd.DataFrame, highlighted: Mapping[str, str]) -> Figure:
    """Plot what changing massive outputs does to the blocks after their writer, a row of panels per model.

    `highlighted` are the interventions drawn over depth, besides the model as it is: name → label in the legend.
    """
    # a model's first block in the table is the writer
    later = effects[effects["block"] > effects.groupby("model")["block"].transform("min")]
    if later.empty:
        return style.sentence_figure("No block comes after one that writes massive outputs.")
    models = list(later["model"].unique())
    size = (style.PAGE, 2.7 * len(models) + 0.4)
    figure, axes = plt.subplots(len(models), 3, figsize=size, squeeze=False, width_ratios=[1, 1, 1.2])
    titles = []
    for (over_depth, ordinary, every), model in zip(axes, models, strict=True):
        of_model = later[later["model"] == model].sort_values("block", kind="stable")  # interventions as they come
        as_it_is = of_model[of_model["intervention"] == "none"].set_index("block")
        over_depth.plot(as_it_is["r2"], color="black", marker="o", lw=0.8, label="as it is")
        for (name, label), look in zip(highlighted.items(), _INTERVENED, strict=False):
            shown = of_model[of_model["intervention"] == name]
            if shown.empty:
                continue
            over_depth.plot(shown["block"], shown["r2"], label=label, **look)
            style.draw_intervals(ordinary, shown["block"], shown, "change_ordinary", **_BARS, **look)
        ordinary.axhline(0, color=style.GREY, lw=0.6)
        block = (as_it_is["r2"] - as_it_is["r2_ordinary"]).idxmax()
        of_block = of_model[of_model["block"] == block].reset_index()
        for column, look in (("r2", {"color": "black"}), ("r2_ordinary", {"color": style.GREY, "mfc": "white"})):
            style.draw_intervals(every, of_block.index, of_block, column, **_BARS, marker="o", ls="none", **look)
        every.set_xticks(of_block.index, of_block["intervention"], rotation=90, fontsize=6)
        for ax in (over_depth, ordinary):
            style.number_blocks(ax)
        over_depth.set_ylabel("$R^2_{\\mathrm{lin}}$, all rows")
        ordinary.set_ylabel("change of $R^2$, ordinary rows")
        every.set_ylabel("$R^2$: filled all, open ordinary")
        titles += [model, "ordinary rows", f"block {block}"]
    style.panels(axes.ravel(), titles)
    style.legend(*axes[:, 0], ncols=4, handlelength=2.8)
    return figure


def left_out(curves: pd.DataFrame, resting: pd.DataFrame) -> Figure:
    """Plot R²_lin of the rest as rows or features are left out: thin lines are blocks, thick ones the model's mean."""
    kinds = list(curves["kind"].unique())
    figure, panels = style.panel_grid(kinds, 2.1, "$R^2_{\\mathrm{lin}}$ of the rest", most=2, sharey=True)
    chosen = set(zip(resting["model"], resting["block"], strict=True))  # blocks that are named: they rest on few tokens
    for kind, ax in panels.items():
        _curves(ax, curves[curves["kind"] == kind], chosen)
        ax.set_xlabel("features left out" if "features" in kind else "rows left out")
    style.legend(panels[kinds[0]], ncols=4, handlelength=2.8)
    return figure


def _curves(ax: Axes, table: pd.DataFrame, chosen: set[tuple[str, int]]) -> None:
    column = 4.0  # points from the end of the curves to the numbers, which have a column per model
    end = table["left_out"].max()
    for model, of_model in table.groupby("model", sort=False):
        look = style.look(model)
        by_block = of_model.pivot_table(index="left_out", columns="block", values="r2")
        ends = {}
        for block, curve in by_block.items():
            curve = curve.dropna()  # counts differ: a block's recorded heavy rows are left out until none remains
            line = {"lw": 0.5, "alpha": 0.4}
            if (model, block) in chosen:
                line = {"lw": 1.2, "alpha": 0.9}
                ends[block] = curve.iloc[-1]
            ax.plot(curve, color=look["color"], **line)
        names = _names_at(ends, _R2_APART)
        column += _write_names(ax, names, end, column, look["color"], _COLUMN_APART)
        ax.plot(by_block.dropna().mean(axis=1), **look)
    ax.set_xscale("symlog", base=2, linthresh=1)  # counts double
    ax.xaxis.set_major_locator(SymmetricalLogLocator(base=4 if end <= 256 else 16, linthresh=1))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlim(-0.3, 1.1 * end)


def costs(table: pd.DataFrame, kinds: dict[str, str]) -> Figure:
    """Plot the cost of each way to swap a block, a line per block, on a log scale that is linear near 0 if needed."""
    figure, ax = plt.subplots(figsize=(style.PAGE, 2.8))
    letters = list(kinds)
    for model, of_model in table.groupby("model", sort=False):
        look = style.look(model)
        for _, of_block in of_model.groupby("block"):
            places = [letters.index(letter) for letter in of_block["kind"]]
            face = look["color"] if (of_block["massive_rows"] > 0).any() else "white"
            ax.plot(places, of_block["nats"], **look | {"label": "_", "markerfacecolor": face, "linewidth": 0.8})
        ax.plot([], [], **look)
    if table.empty:
        ax.text(0.5, 0.5, "no model predicts a next token", transform=ax.transAxes, ha="center", color=style.GREY)
    style.label_filled_and_open(ax, "with massive rows", "without")
    lowest, highest = table["nats"].min(), table["nats"].max()
    if lowest <= _LINEAR:
        ax.axhline(0, color=style.GREY, lw=0.6)
        ax.set_yscale("symlog", linthresh=_LINEAR)
    elif highest > _NARROW * lowest:
        ax.set_yscale("log")
    ax.margins(y=0.08)
    _name_ends(ax, table, letters)
    labels = [fill(f"({letter}) {words}", width=20) for letter, words in kinds.items()]
    ax.set_xticks(range(len(letters)), labels)
    ax.set(xlim=(-0.5, len(letters) - 0.5), ylabel="cost, nats per token")
    style.legend(ax, ncols=5, handlelength=2.8)
    return figure


def _name_ends(ax: Axes, table: pd.DataFrame, letters: list[str]) -> None:
    """Write the numbers of blocks beside both ends of their lines, on an axis whose scale is set."""
    ax.get_ylim()  # what is drawn decides the limits, and these the distances between numbers
    height = (ax.transScale + ax.transLimits).transform
    columns = {-1: 6.0, 1: 6.0}  # points from both ends of the lines to the numbers, a column per model
    for model, of_model in table.groupby("model", sort=False):
        for side, letter in ((-1, letters[0]), (1, letters[-1])):
            ends = of_model[of_model["kind"] == letter].set_index("block")["nats"].to_dict()
            names = _names_at(ends, _COSTS_APART, lambda cost: height((0, cost))[1])
            place, beside = letters.index(letter), side * columns[side]
            columns[side] += _write_names(ax, names, place, beside, style.look(model)["color"], 0.5 * _COLUMN_APART)


def _names_at(
    heights: Mapping[int, float], apart: float, on_axis: Callable[[float], float] = float
) -> dict[float, str]:
    """Return height → text: numbers of blocks, written together if they would overlap."""
    groups: list[list[int]] = []
    last = -math.inf
    for block in sorted(heights, key=heights.__getitem__):
        place = on_axis(heights[block])
        if place - last < apart:
            groups[-1].append(block)
        else:
            groups.append([block])
        last = place
    return {heights[group[len(group) // 2]]: ", ".join(map(str, sorted(group))) for group in groups}


def _write_names(ax: Axes, names: Mapping[float, str], x: float, beside: float, color: str, apart: float) -> float:
    """Write names as many points beside x, at their heights; return the width of their column, with what follows it."""
    side = {"ha": "right" if beside < 0 else "left", "va": "center", "textcoords": "offset points"}
    for height, name in names.items():
        ax.annotate(name, (x, height), (beside, 0), color=color, fontsize=6, **side)
    return _LETTER * max(map(len, names.values())) + apart if names else 0.0
