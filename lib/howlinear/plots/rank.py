"""Figures of notebook 04: pooled and median R² (the paper's figure 4), what carries a high R², and ranks of maps."""

from __future__ import annotations

from textwrap import fill

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from howlinear.plots import style

FAR_BELOW = 0.25  # planted blocks this far below the diagonal are named next to their point
LEGEND_AREA = 20.0  # points²; area of a model's point in the legend
SIDE_BY_SIDE = 0.16  # blocks between two models' points, which would overlap otherwise


def median(
    blocks: pd.DataFrame,
    planted: pd.DataFrame | None = None,
    high: float = 0.9,
    published: pd.DataFrame | None = None,
) -> Figure:
    """Plot the median feature's R² against pooled R², a point per block whose area grows with its effective rank."""
    planted = blocks.iloc[:0] if planted is None else planted
    figure, ax = plt.subplots(figsize=(style.COLUMN, 3.6))
    medians = pd.concat([blocks["median_r2"], planted["median_r2"]])
    lowest = min(medians.min(), -0.01) - 0.06
    farthest_left = blocks["r2"].min()
    ax.axvspan(high, 1.02, color=style.GREY, alpha=0.12, lw=0)
    ax.plot([lowest, 1.02], [lowest, 1.02], color=style.GREY, lw=0.8, zorder=1)
    if published is not None:
        farthest_left = min(farthest_left, published["r2_lin"].min())
        style.draw_published(ax, published, "r2_lin", "r2_perfeature_median", linestyle="")
    for model, of_model in blocks.groupby("model", sort=False):
        look = style.look(model)
        across, up = of_model["r2"], of_model["median_r2"]
        bars = {"xerr": style.error_bars(of_model, "r2"), "yerr": style.error_bars(of_model, "median_r2")}
        ax.errorbar(across, up, **bars, fmt="none", ecolor=look["color"], elinewidth=0.5, alpha=0.5)
        dots = {key: look[key] for key in ("color", "marker", "label")}
        dots |= {"linewidths": 0.4, "edgecolors": "white", "alpha": 0.85}
        ax.scatter(across, up, _area(of_model["effective_rank"]), **dots)
    for _, row in planted.iterrows():
        diamond = {"color": "white", "marker": "D", "ec": "black", "lw": 0.6}
        ax.scatter(row["r2"], row["median_r2"], _area(row["effective_rank"]), **diamond)
        if row["r2"] - row["median_r2"] >= FAR_BELOW:
            name = fill(f"planted: {row['model']}", width=14)
            ax.text(row["r2"] - 0.03, row["median_r2"], name, ha="right", va="center")
    largest = 100.0 if blocks["effective_rank"].max() > 80 else 40.0
    for rank in (1.0, 10.0, largest):
        ax.scatter([], [], _area(rank), color="none", ec="black", lw=0.5, label=f"rank {rank:.0f}")
    ax.set(xlim=(min(farthest_left - 0.06, 0.3), 1.02), ylim=(lowest, 1.02))
    ax.set(xlabel="pooled $R^2_{\\mathrm{lin}}$, held out", ylabel="median $R^2$ of single features")
    legend = style.legend(ax, ncols=2, columnspacing=1.5)
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        if text.get_text() in set(blocks["model"]):
            handle.set_sizes([LEGEND_AREA])  # else each is as large as the model's first block
    return figure


def axes(outputs: pd.DataFrame, r2: float, model: str, block: int) -> Figure:
    """Plot R² of every single output of one block against its share of the variance, by feature and by direction."""
    titles = [f"along features, block {block} of {model}", "along directions"]
    figure, panels = style.row_of_panels(titles, 2.5, sharex=True, sharey=True)
    for panel, (axis, mine) in zip(panels, outputs.groupby("axis", sort=False), strict=True):
        middle = mine["r2"].median()
        r2_of_each = mine["r2"].clip(lower=-0.2)  # lower ones are drawn there
        panel.scatter(mine["share"], r2_of_each, s=7, color=style.look(model)["color"], lw=0, alpha=0.7)
        panel.axhline(r2, color="black", lw=0.8, label=f"pooled, {r2:.2f}")
        panel.axhline(middle, color=style.ACCENT, lw=1.2, ls="--", label=f"median, {middle:.2f}")
        panel.set(xscale="log", xlabel=f"share of the variance, {axis}")
        panel.legend(loc="lower right")
    panels[0].set(ylabel="$R^2$ of one output, held out", ylim=(-0.24, 1.03))
    return figure


def _area(rank: float | pd.Series) -> float | pd.Series:
    """Return the area of a point for a rank, in square points; rank 1 is still visible."""
    return 3 + 1.5 * rank


def reduced(blocks: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """The rank that a map needs for 90 and 95 % of its R²: against R²_lin, and against the outputs' effective rank."""
    figure, (by_r2, by_rank) = style.row_of_panels(["R² and rank", "two measures of rank"], 2.6, sharey=True)
    style.draw_published(by_r2, published, "r2_lin", "rrr_rank90", linestyle="")
    needed = blocks.dropna(subset=["rank_90", "rank_95"]).astype({"rank_90": float, "rank_95": float})
    for model, of_model in needed.groupby("model", sort=False):
        look = style.look(model)
        dots = {"color": look["color"], "marker": look["marker"], "ls": "none"}
        for ax, across in ((by_r2, "r2"), (by_rank, "effective_rank")):
            ax.vlines(of_model[across], of_model["rank_90"], of_model["rank_95"], color=look["color"], lw=0.5)
            ax.plot(of_model[across], of_model["rank_90"], label=look["label"], **dots)
            ax.plot(of_model[across], of_model["rank_95"], mfc="white", **dots)
    style.label_filled_and_open(by_r2, "for 90 %", "for 95 %")
    by_r2.set_yscale("log")
    by_r2.yaxis.set_major_formatter(LogFormatter())
    by_r2.yaxis.set_minor_formatter(LogFormatter())
    by_r2.set(xlabel="$R^2_{\\mathrm{lin}}$, held out", ylabel="least rank of the map")
    by_rank.set_xlabel("effective rank of the outputs")
    style.legend(by_r2, ncols=5, columnspacing=1.5)
    return figure


def carried(
    loudest: pd.DataFrame,
    bands: pd.DataFrame,
    blocks: pd.DataFrame,
    planted: pd.DataFrame | None = None,
    heavy: float = 0.01,
) -> Figure:
    """R² without the loudest features and directions, on bands of tokens, and its rise without some rows."""
    figure, axes = plt.subplots(2, 2, figsize=(style.PAGE, 4.6))
    style.panels(axes.flat, ["features", "directions", "tokens", "rows"])
    for ax, kind in zip(axes[0], ("features", "directions"), strict=True):
        _curves(ax, loudest[loudest["axis"] == kind], "left_out")
        if planted is not None:
            curve = planted[planted["axis"] == kind]
            ax.plot(range(len(curve)), curve["r2"], color=style.GREY, ls=":", label="planted")
        ax.set(xlabel=f"loudest {kind} left out", ylabel="$R^2$ of the rest")

    _curves(axes[1, 0], bands, "band")
    ticks = [str(number) for number in sorted(bands["band"].unique())]
    axes[1, 0].set_xticks(range(len(ticks)), ["frequent", *ticks[1:-1], "rare"])
    axes[1, 0].set(xlabel="band of token frequency", ylabel="$R^2$ within the band")

    # filled points with intervals are without the heaviest rows, open ones without position 0
    rises = axes[1, 1]
    for model, aside in style.side_by_side(blocks["model"], SIDE_BY_SIDE).items():
        look = style.look(model)
        dots = {"color": look["color"], "marker": look["marker"], "ls": "none"}
        of_model = blocks[blocks["model"] == model]
        places = of_model["block"] + aside
        style.draw_intervals(rises, places, of_model, "rise_without_heaviest", elinewidth=0.5, **dots)
        rises.plot(places, of_model["rise_without_first"], mfc="white", **dots)
    rises.axhline(0, color=style.GREY, lw=0.6)
    style.label_filled_and_open(rises, f"heaviest {heavy:.0%}", "position 0")
    style.number_blocks(rises)
    rises.set_ylabel("rise of $R^2$ without them")
    rises.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, ncols=2)  # beside the title, off the bars
    style.legend(axes[0, 0], ncols=4, handlelength=2.8)
    return figure


def _curves(ax: Axes, table: pd.DataFrame, across: str) -> None:
    """Draw R² against a column, evenly spaced: a thin line per block, a thick one for the model's mean."""
    for model, of_model in table.groupby("model", sort=False):
        look = style.look(model)
        by_block = of_model.pivot_table(index=across, columns="block", values="r2")
        places = range(len(by_block))
        ax.plot(places, by_block.to_numpy(), color=look["color"], lw=0.5, alpha=0.5)
        ax.plot(places, by_block.mean(axis=1), **look)
        ax.set_xticks(places, [str(value) for value in by_block.index])
