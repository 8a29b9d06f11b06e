"""The figures of notebook 01: how a block is measured, and what its inputs look like."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from howlinear.plots import style

INPUTS = {
    "condition": ("condition number", "ratio of singular values"),
    "effective_rank": ("effective rank", "directions"),
    "dynamic_range": ("dynamic range", "loudest / median spread"),
    "first_position_in": ("norm at position 0", "relative to other positions"),
}
"""Column of the table → title of its panel, label of its axis."""

FAINT = 0.4  # opacity of the inputs at position 0, whose norm normalisation all but fixes: outputs are the point

STREAM = -0.05  # where across the diagram the residual stream runs

FAR = 20  # if outputs at position 0 exceed this many times the others' norm, the axis is logarithmic


def inputs(table: pd.DataFrame) -> Figure:
    """Plot properties of the blocks' inputs over depth: four panels, a line per model."""
    figure, grid = plt.subplots(2, 2, figsize=(style.PAGE, 4.0), sharex=True)
    axes = dict(zip(INPUTS, grid.flat, strict=True))
    for column, (_, label) in INPUTS.items():
        alpha = FAINT if column == "first_position_in" else None
        for model, blocks in table.groupby("model", sort=False):
            axes[column].plot(blocks["block"], blocks[column], **style.look(model), alpha=alpha)
        axes[column].set_ylabel(label)
    axes["condition"].set_yscale("log")
    style.legend(axes["condition"])
    position = axes["first_position_in"]
    for model, blocks in table.groupby("model", sort=False):
        position.plot(blocks["block"], blocks["first_position_out"], **style.look(model))
    if table["first_position_out"].max() > FAR:
        position.set_yscale("log")
    position.axhline(1, color=style.GREY, linewidth=0.6)
    strong, faint = Line2D([], [], color=style.GREY), Line2D([], [], color=style.GREY, alpha=FAINT)
    position.legend([strong, faint], ["output $y$", "input $x$"])
    for axis in grid[-1]:
        axis.set_xlabel("block")
    style.panels(grid.flat, [title for title, _ in INPUTS.values()])
    return figure


def diagram() -> Figure:
    """How a block is measured, the paper's figure 1: a block of the model, two taps, and what becomes of the pairs."""
    figure, axis = plt.subplots(figsize=(style.PAGE, 2.9))
    axis.set(xlim=(-0.25, 10.1), ylim=(0.0, 5.4))
    axis.axis("off")

    # Left: one block of the model from bottom to top, next to the residual stream to which it adds
    _box(axis, 0.91, 0.4, "text, token rows", width=2.08)
    _box(axis, 1.2, 1.5, "attention", face="#f0f0f0")
    _box(axis, 1.2, 2.6, "norm", face="#f0f0f0")
    _box(axis, 1.2, 3.7, "FFN", face="#dbe9f6")
    _arrow(axis, (STREAM, 0.71), (STREAM, 5.4), color="0.6", shrinkA=0, shrinkB=0)
    axis.text(0.12, 5.13, "residual stream", va="center", color="0.3")
    for read, added in ((1.3, 1.7), (2.6, 4.6)):  # heights: of attention, then of norm and FFN
        _arrow(axis, (STREAM, read), (0.39, read), shrinkA=0, shrinkB=0)
        axis.plot([STREAM], [added], "o", color="white", markeredgecolor="0.2", markersize=8, zorder=5)
        axis.plot([STREAM], [added], "+", color="0.2", markersize=5, markeredgewidth=1, zorder=6)
    _arrow(axis, (0.39, 1.7), (STREAM, 1.7), shrinkA=0, shrinkB=5)
    _arrow(axis, (1.2, 2.91), (1.2, 3.39))
    axis.plot([1.2, 1.2], [4.01, 4.6], color="0.2", linewidth=1)
    _arrow(axis, (1.2, 4.6), (STREAM, 4.6), shrinkA=0, shrinkB=5)

    # The two taps, before and after the FFN, and the box of pairs that they fill
    for height, name in ((3.15, "$x$"), (4.25, "$y$")):
        axis.plot([1.2], [height], "o", color=style.ACCENT, markersize=6, zorder=5)
        _arrow(axis, (1.35, height), (4.1, height), color=style.ACCENT)
        axis.text(3.22, height + 0.1, f"{name}, one row per token", ha="center", color="0.15")
    _box(axis, 5.3, 3.7, "pairs $(x, y)$\nsplit by document", width=2.1, height=1.5, face="#fdf3df")

    # Right: the fit, its score on held-out rows, and the swap back into the block
    axis.text(6.5, 4.5, "train", color="0.3")
    axis.text(6.5, 2.68, "held out", color="0.3")
    _arrow(axis, (6.45, 4.0), (7.35, 4.6))
    _arrow(axis, (6.45, 3.4), (7.35, 2.9))
    _box(axis, 8.7, 4.7, "train: exact least squares\n$y \\approx xW + b$", width=2.5, height=0.9)
    _box(axis, 8.7, 2.8, "held out: share explained\n$R^2_{\\mathrm{lin}}$", width=2.5, height=0.9)
    _box(axis, 8.7, 0.9, "swap the map in\n$\\Delta$ perplexity", width=2.5, height=0.9)
    _arrow(axis, (8.7, 4.18), (8.7, 3.32))
    _arrow(axis, (8.7, 2.28), (8.7, 1.42))
    axis.plot([7.3, 2.2, 2.2], [0.9, 0.9, 3.7], "--", color="0.45", linewidth=1)
    _arrow(axis, (2.21, 3.7), (1.98, 3.7), color="0.45")
    axis.text(4.9, 1.02, "the map takes the FFN's place", ha="center", color="0.3")
    return figure


def _box(
    axis: Axes, x: float, y: float, text: str, face: str = "white", width: float = 1.5, height: float = 0.5
) -> None:
    """Draw a box with a text, centred at (x, y)."""
    corner = (x - width / 2, y - height / 2)
    edge = {"boxstyle": "round,pad=0.06", "edgecolor": "0.45", "linewidth": 0.7}
    axis.add_patch(FancyBboxPatch(corner, width, height, facecolor=face, **edge))
    axis.text(x, y, text, ha="center", va="center", fontsize=8)


def _arrow(axis: Axes, start: tuple[float, float], stop: tuple[float, float], color: str = "0.2", **kwargs) -> None:
    """Draw an arrow from one point to another; other arguments are for matplotlib's `FancyArrowPatch`."""
    axis.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=8, linewidth=1, color=color, **kwargs))
