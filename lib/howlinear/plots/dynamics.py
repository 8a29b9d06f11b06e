"""Figures of notebook 09: the films of training runs, and when their blocks leave and settle."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from howlinear.plots import style

_LIGHTEST = 0.92  # of viridis: its yellow end is hard to see on white


def film(axis: Axes, table: pd.DataFrame) -> None:
    """Draw R²_lin of every block of a run against the step, from dark (first block) to light (last block)."""
    _curves(axis, table, "r2")
    axis.set_ylabel("$R^2_{\\mathrm{lin}}$, held out")


def _curves(axis: Axes, table: pd.DataFrame, column: str) -> None:
    """Draw a column of every block with its interval against the step."""
    blocks = sorted(table["block"].unique())
    shades = plt.get_cmap("viridis")(np.linspace(0, _LIGHTEST, len(blocks)))
    for block, shade in zip(blocks, shades, strict=True):
        rows = table[table["block"] == block]
        axis.fill_between(rows["step"], rows[f"{column}_low"], rows[f"{column}_high"], color=shade, alpha=0.2, lw=0)
        axis.plot(rows["step"], rows[column], color=shade, lw=0.9)
    _steps(axis, float(table["step"].max()))


def _steps(axis: Axes, last: float) -> None:
    """Make the axis of steps logarithmic, with a linear part for step 0."""
    axis.set_xscale("symlog", linthresh=1)
    axis.set_xlim(0, last)


def live(table: pd.DataFrame, course: pd.DataFrame, unigram: float) -> Figure:
    """Plot the model that is trained live: its blocks on the left, what it learns on the right."""
    figure, (left, right) = style.row_of_panels(["live", "what it learns meanwhile"], 2.3)
    film(left, table)
    left.set_xlabel("step")
    right.plot(course["step"], course["loss"], "o-", color="black", label="held-out loss")
    right.axhline(unigram, color=style.GREY, ls=":", label="unigram loss")
    right.plot([], [], "s--", color=style.ACCENT, label="effective rank")  # for the legend
    _steps(right, float(course["step"].max()))
    right.set(xlabel="step", ylabel="nats per token")
    right.legend(loc="center left")
    ranks = right.twinx()
    ranks.plot(course["step"], course["rank"], "s--", color=style.ACCENT)
    ranks.set(ylabel="effective rank of the outputs", ylim=(0, None))
    ranks.grid(visible=False)
    return figure


def live_tokens(table: pd.DataFrame) -> Figure:
    """The same model split by the token: what the token decides on the left, what the line misses on the right."""
    figure, (left, right) = style.row_of_panels(["what the token decides", "what no line explains"], 2.3)
    _curves(left, table, "token_share")
    left.set(xlabel="step", ylabel="share that the token decides", ylim=(0, 1.02))
    means = table.groupby("step")[["r2_between", "r2_within"]].mean()
    for part, look in (("between", {}), ("within", {"markerfacecolor": "white", "ls": ":"})):
        missed = 1 - means[f"r2_{part}"]
        right.plot(means.index, missed, color=style.ACCENT, marker="o", label=f"{part} tokens", **look)
    _steps(right, float(table["step"].max()))
    right.set(xlabel="step", ylabel="what the line misses, $1 - R^2$", yscale="log")
    right.legend(loc="best")
    return figure


def films(tables: pd.DataFrame, spreads: pd.DataFrame, summary: pd.DataFrame) -> Figure:
    """Recorded runs: a column per run, its blocks above, their spread and the loss below."""
    runs = list(tables["run"].drop_duplicates())
    peaks = summary.set_index("run")["peak_step"]
    figure, axes = plt.subplots(2, len(runs), figsize=(style.PAGE, 3.9), sharex="col", squeeze=False)
    for (top, bottom), run in zip(axes.T, runs, strict=True):
        film(top, tables[tables["run"] == run])
        top.axvline(peaks[run], color=style.GREY, lw=0.6)
        rows = spreads[spreads["run"] == run]
        look = style.look(run)
        least, most = rows["spread"] - rows["reach"], rows["spread"] + rows["reach"]
        bottom.fill_between(rows["step"], least, most, color=look["color"], alpha=0.2, lw=0)
        bottom.plot(rows["step"], rows["spread"], **look)
        bottom.set(xlabel="step", ylim=(0, 1.3 * rows["spread"].max()))
        losses = bottom.twinx()
        losses.plot(rows["step"], rows["loss"], color="black", ls=":", lw=1)
        losses.grid(visible=False)
    losses.set_ylabel("loss, nats")  # once, at the right end
    for top in axes[0, 1:]:
        top.set_ylabel("")
    axes[1, 0].set_ylabel("spread over blocks")
    style.panels(axes[0], runs)
    shades = ScalarMappable(Normalize(0, 1 / _LIGHTEST), "viridis")  # as in `film`
    bar = figure.colorbar(shades, ax=axes[0], ticks=[0, 1], aspect=14)
    bar.ax.set(ylim=(0, 1), yticklabels=["first\nblock", "last"])
    shown = [  # in grey, for what has the run's colour
        Line2D([], [], color=style.GREY, marker="o", label="spread"),
        Patch(facecolor=style.GREY, alpha=0.2, linewidth=0, label="as far as errors could move it"),
        Line2D([], [], color="black", ls=":", lw=1, label="held-out loss, right axis"),
    ]
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown))
    return figure


def sink(table: pd.DataFrame, block: int, multiple: float) -> Figure:
    """Plot how a block looks linear because a sink forms in it; beyond `multiple` median norms outputs are massive."""
    figure, (left, right) = style.row_of_panels(["how linear it looks", "what it writes"], 2.5)
    for _, rows in table[table["block"] != block].groupby("block"):
        left.plot(rows["step"], rows["r2_ordinary"], color="0.8", lw=0.8)
    left.plot([], [], color="0.8", lw=0.8, label="other blocks")
    rows = table[table["block"] == block]
    left.plot(rows["step"], rows["r2"], "o-", color=style.ACCENT, label=f"block {block}, all rows")
    hollow = {"color": style.ACCENT, "markerfacecolor": "white", "label": f"block {block}, ordinary rows"}
    left.plot(rows["step"], rows["r2_ordinary"], "o:", **hollow)
    left.set(xlabel="step", ylabel="$R^2_{\\mathrm{lin}}$, held out", ylim=(0, 1.02))
    right.plot(rows["step"], rows["heaviest"], "D-", color=style.ACCENT, label="heaviest output, median norms")
    right.axhline(multiple, color=style.GREY, ls=":", lw=1)
    right.plot([], [], "s--", color="black", label="attention on position 0")  # for the legend
    right.set(xlabel="step", ylabel="median norms", yscale="log")
    attention = right.twinx()
    attention.plot(table.groupby("step")["attention"].max(), "s--", color="black")
    attention.set(ylabel="attention", ylim=(0, None))
    attention.grid(visible=False)
    for axis in (left, right):
        _steps(axis, float(table["step"].max()))
    style.legend(left, right, ncols=3, loc="outside lower center")
    return figure


def settling(passages: pd.DataFrame, summary: pd.DataFrame, drawn: Sequence[str]) -> Figure:
    """Plot when blocks leave and settle, between two measured steps each, and how long after the loss they settle."""
    figure, (leaves, settles, lagging) = style.row_of_panels(["leaves", "settles", "lag"], 2.6)
    losses = summary.set_index("run")["loss_settles"]
    for run in drawn:
        look = style.look(run)
        settles.axhline(losses[run], color=look["color"], ls=look["linestyle"], lw=1)
        rows = passages[passages["run"] == run]
        for axis, event in ((leaves, "leaves"), (settles, "settles")):
            happened = rows.dropna(subset=[event])
            style.draw_intervals(axis, happened["block"], happened, event, elinewidth=0.6, capsize=1.5, **look)
            style.mark_blocks(axis, rows["block"])
            axis.set(ylabel="step", yscale="log")
    # a row per run, the first on top: a dot per block, a diamond for the median
    for run in reversed(passages["run"].unique()):
        doublings, colour = passages.loc[passages["run"] == run, "lag"], style.look(run)["color"]
        lagging.plot(doublings, [run] * len(doublings), "o", color=colour, ms=2.5, alpha=0.6)
        lagging.plot(doublings.median(), run, "D", color=colour, mec="black", ms=5)
    lagging.axvline(0, color=style.GREY, lw=0.8)
    lagging.set_xlabel("doublings after the loss")
    style.legend(leaves, ncols=4)
    return figure
