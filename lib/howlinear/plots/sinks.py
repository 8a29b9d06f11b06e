"""Figures of notebook 12: how heavy rows are, R²_lin with and without them, what is left out, what maps cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from textwrap import fill

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

from howlinear.plots import style

_FLOOR = -0.1  # R² below this is drawn as an arrow at the edge: a map that serves the sinks may reach −100 elsewhere
_ABREAST = 3  # panels in a row
_R2_APART = 0.06  # R²; numbers of blocks that are closer are written together
_COSTS_APART = 0.12  # decades; likewise
_COLUMN_APART = 8  # points; between the numbers of two models
_LETTER = 3.0  # points; the width of one, of numbers with commas between them
_LINEAR = 0.01  # nats per token: costs below it are drawn on a linear scale


def massive(blocks: pd.DataFrame, flow: pd.DataFrame, multiple: float = 10.0) -> Figure:
    """The heaviest output of every block in medians, and which way massive outputs point."""
    figure, (size, direction) = plt.subplots(1, 2, figsize=(style.PAGE, 2.6))
    style.panels([size, direction], ["size", "direction"])
    for model, of_model in blocks.groupby("model", sort=False):
        size.plot(of_model["block"], of_model["heaviest"], **style.look(model))
        of_model_flow = flow[flow["model"] == model]
        dots = style.look(model) | {"linestyle": "none"}
        direction.plot(of_model_flow["block"], of_model_flow["cosine"].astype(float), **dots)
    size.axhline(multiple, color=style.GREY, ls=":", lw=1)
    size.set_yscale("log")
    size.yaxis.set_major_formatter(LogFormatter())
    size.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    size.set(ylabel="heaviest output, in median norms")
    direction.axhline(0, color=style.GREY, lw=0.6)
    direction.set(ylabel="cosine with its writer,\na block before it", ylim=(-1.1, 1.1))
    direction.set_xlim(size.get_xlim())
    if flow.empty:
        direction.text(0.5, 0.75, "no massive row", transform=direction.transAxes, ha="center", color=style.GREY)
    for ax in (size, direction):
        _block_axis(ax)
    figure.legend(*size.get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=2.8)
    return figure


def with_and_without(blocks: pd.DataFrame) -> Figure:
    """R²_lin over depth of all rows, of ordinary ones, and of the map of all rows on ordinary ones; a panel a model."""
    models = list(blocks["model"].unique())
    abreast = min(_ABREAST, len(models))
    rows = -(-len(models) // abreast)
    size = (style.PAGE, 2.3 * rows + 0.4)
    figure, axes = plt.subplots(rows, abreast, figsize=size, sharey=True, squeeze=False)
    panels = axes.ravel()
    style.panels(panels[: len(models)], models)
    for ax, model in zip(panels, models, strict=False):
        _profiles(ax, blocks[blocks["model"] == model], model)
    for unused in panels[len(models) :]:
        unused.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("$R^2_{\\mathrm{lin}}$, held out")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, handlelength=2.8)
    return figure


def _profiles(ax: Axes, of_model: pd.DataFrame, model: str) -> None:
    look = style.look(model)
    of_model = of_model.sort_values("block")
    for column, face, label in (("r2", look["color"], "all rows"), ("r2_ordinary", "white", "ordinary rows")):
        bars = style.error_bars(of_model[column], of_model[f"{column}_low"], of_model[f"{column}_high"])
        shape = look | {"label": label, "markerfacecolor": face}
        if column == "r2_ordinary":
            shape |= {"linestyle": "none"}
        ax.errorbar(of_model["block"], of_model[column], bars, elinewidth=0.5, **shape)
    # below the floor an arrow, within it a cross
    low = of_model[of_model["of_all"] < _FLOOR]
    within = of_model[of_model["of_all"] >= _FLOOR]
    ax.plot(within["block"], within["of_all"], "x", color=style.GREY, label="map of all rows on ordinary ones")
    ax.plot(low["block"], [_FLOOR] * len(low), marker=r"$\downarrow$", ms=6, ls="none", color=style.GREY)
    ax.set_ylim(_FLOOR - 0.06, 1.03)
    _block_axis(ax)


def left_out(curves: pd.DataFrame, resting: pd.DataFrame | None = None) -> Figure:
    """R²_lin of the rest as rows or features are left out: thin lines are blocks, thick ones their mean by model."""
    kinds = list(curves["kind"].unique())
    abreast = 2
    rows = -(-len(kinds) // abreast)
    figure, axes = plt.subplots(rows, abreast, figsize=(style.PAGE, 2.1 * rows + 0.4), sharey=True, squeeze=False)
    panels = axes.ravel()
    style.panels(panels[: len(kinds)], kinds)
    chosen = set() if resting is None else set(zip(resting["model"], resting["block"], strict=True))
    for ax, kind in zip(panels, kinds, strict=False):
        _curves(ax, curves[curves["kind"] == kind], chosen)
        ax.set_xlabel("features left out" if "features" in kind else "rows left out")
    for unused in panels[len(kinds) :]:
        unused.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("$R^2_{\\mathrm{lin}}$ of the rest")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=2.8)
    return figure


def _curves(ax: Axes, table: pd.DataFrame, chosen: set[tuple[str, int]]) -> None:
    column = 4.0  # points from where curves end; numbers are there, each model's in a column of its own
    for model, of_model in table.groupby("model", sort=False):
        look = style.look(model)
        by_block = of_model.pivot_table(index="left_out", columns="block", values="r2")
        places = range(len(by_block))  # counts double: evenly spaced
        ends = {}
        for block, curve in by_block.items():
            width = 0.5
            alpha = 0.4
            if (model, block) in chosen:
                width = 1.2
                alpha = 0.9
                ends[block] = curve.iloc[-1]
            ax.plot(places, curve.to_numpy(), color=look["color"], lw=width, alpha=alpha)
        names = _names_at(ends, _R2_APART)
        beside = {"xytext": (column, 0), "textcoords": "offset points", "ha": "left"}
        for height, name in names.items():
            ax.annotate(name, (places[-1], height), color=look["color"], fontsize=6, va="center", **beside)
        if names:
            column += _LETTER * max(len(name) for name in names.values()) + _COLUMN_APART
        ax.plot(places, by_block.mean(axis=1), **look)
        ax.set_xticks(places, [str(count) for count in by_block.index])


def costs(table: pd.DataFrame, kinds: dict[str, str]) -> Figure:
    """What each way to swap a block costs, a line a block, on a logarithmic scale that is linear about 0."""
    figure, ax = plt.subplots(figsize=(style.PAGE, 2.8))
    letters = list(kinds)
    for model, of_model in table.groupby("model", sort=False):
        look = style.look(model)
        for _, of_block in of_model.groupby("block"):
            has_massive = (of_block["massive_rows"] > 0).any()
            places = [letters.index(letter) for letter in of_block["kind"]]
            face = look["color"] if has_massive else "white"
            ax.plot(places, of_block["nats"], **look | {"label": "_", "markerfacecolor": face, "linewidth": 0.8})
        starts = of_model[of_model["kind"] == letters[0]].set_index("block")["nats"].to_dict()
        beside = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
        for height, name in _names_at(starts, _COSTS_APART, _on_axis).items():
            ax.annotate(name, (0, height), color=look["color"], fontsize=7, **beside)
        ax.plot([], [], **look)
    if table.empty:
        ax.text(0.5, 0.5, "no model predicts a next token", transform=ax.transAxes, ha="center", color=style.GREY)
    for face, label in ((style.GREY, "with massive rows"), ("white", "without")):
        ax.plot([], [], "o", color=style.GREY, mfc=face, label=label)
    ax.axhline(0, color=style.GREY, lw=0.6)
    ax.set_yscale("symlog", linthresh=_LINEAR)
    ax.margins(y=0.08)
    ax.set_xlim(-0.35, len(letters) - 0.65)
    labels = [fill(f"({letter}) {words}", width=20) for letter, words in kinds.items()]
    ax.set_xticks(range(len(letters)), labels)
    ax.set(xlabel="", ylabel="cost, nats per token")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=5, handlelength=2.8)
    return figure


def _names_at(
    heights: Mapping[int, float], apart: float, on_axis: Callable[[float], float] = float
) -> dict[float, str]:
    """Height → what is written there: the numbers of the blocks, those together that would lie on one another."""
    groups: list[list[int]] = []
    for block in sorted(heights, key=heights.__getitem__):
        last = groups[-1][-1] if groups else None
        if last is not None and on_axis(heights[block]) - on_axis(heights[last]) < apart:
            groups[-1].append(block)
        else:
            groups.append([block])
    names = {}
    for group in groups:
        middle = heights[group[len(group) // 2]]
        names[middle] = ", ".join(str(block) for block in sorted(group))
    return names


def _on_axis(cost: float) -> float:
    """Where a cost is on an axis that is linear about 0 and logarithmic beyond, in decades."""
    return math.copysign(math.log10(1 + abs(cost) / _LINEAR), cost)


def _block_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    ax.set_xlabel("block")
