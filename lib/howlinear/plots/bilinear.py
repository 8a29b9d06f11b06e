"""Figures of notebook 03: the gain of products, its rank, the gate, and the paper's recipe and controls."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from howlinear.plots import style

_LEFT = "left by the line, $1 - R^2_{\\mathrm{lin}}$"
_SHIFT = 0.12  # blocks; between the error bars of two models at one block
_CHANGES = ("selection", "rows", "optimiser")  # from the paper's recipe to our probe
_NUMBER = {"textcoords": "offset points", "fontsize": 5.5, "va": "center"}  # of a block's number at the end of its line


# --- Figure 3 of the paper: what products gain


def gain(blocks: pd.DataFrame, rank: int = 16, published: pd.DataFrame | None = None) -> Figure:
    """Plot the gain against what the line leaves, as the paper's figure 3 does, and the share recovered over depth."""
    figure, (cloud, depth) = style.row_of_panels(["gain", "of what is left"], 2.5)
    left = 1 - blocks["r2"]
    low, high = blocks["gain_low"], blocks["gain_high"]
    points = blocks[["gain", "recovered"]].assign(left=left)
    if published is not None and len(published):
        papers = published.assign(left=1 - published["r2_lin"], gain=published["bilinear_gain_r16"])
        papers["recovered"] = papers["gain"] / papers["left"]
        style.draw_published(cloud, papers, "left", "gain", linestyle="")
        style.draw_published(depth, papers, "block", "recovered")
        points = pd.concat([points, papers[points.columns]])
    highest = max(high.max(), points["gain"].max())
    for model, shift in style.side_by_side(blocks["model"], _SHIFT).items():
        of_model = blocks[blocks["model"] == model]
        left_in_blocks = 1 - of_model["r2"]
        look = {"elinewidth": 0.7, "capsize": 1.5} | style.look(model)
        style.draw_intervals(cloud, left_in_blocks, of_model, "gain", **look | {"linestyle": ""})
        bars = style.error_bars(of_model, "gain") / left_in_blocks.to_numpy()  # what the line leaves taken as known
        depth.errorbar(of_model["block"] + shift, of_model["recovered"], bars, **look)

    # on this diagonal a branch would recover all that the line leaves
    edge = 1.08 * points["left"].max()
    cloud.plot([0, edge], [0, edge], color=style.GREY, linewidth=0.8, linestyle="--", label="all of it")
    cloud.set(xlim=(0, edge), ylim=(min(-0.01, 1.1 * low.min()), max(1.2 * highest, 0.02)))
    if highest > edge:  # a bar longer than anything recoverable does not set the scale: it leaves the panel
        _scale_by_points(cloud, points["gain"])
        _scale_by_points(depth, points["recovered"])
    else:
        _scale_by_narrow_bars(depth, points["recovered"], low / left, high / left)
        depth.set_ylim(bottom=min(0, depth.get_ylim()[0]))
    cloud.set(xlabel=_LEFT, ylabel=f"gain of rank {rank}")
    style.mark_blocks(depth, blocks["block"])
    depth.set_ylabel("share recovered")
    style.legend(cloud, ncols=4, handlelength=2.8)
    return figure


def _scale_by_points(ax: Axes, values: pd.Series) -> None:
    """Set a scale that shows every point, whatever its error bar."""
    reach = max(2 * values.abs().max(), 0.02)
    ax.set_ylim(-reach, reach)


def _scale_by_narrow_bars(ax: Axes, shares: pd.Series, low: pd.Series, high: pd.Series) -> None:
    """Set a scale that shows every share, and every error bar that is no wider than 1."""
    narrow = high - low <= 1
    if narrow.all():
        return
    shown = pd.concat([shares, low[narrow], high[narrow]])
    margin = 0.05 * (shown.max() - shown.min())
    ax.set_ylim(shown.min() - margin, shown.max() + margin)


# --- What a rank is worth, and what the probe can see


def rank(ranks: pd.DataFrame, power: pd.DataFrame, blocks: pd.DataFrame, probe_rank: int = 16) -> Figure:
    """Plot the share recovered against rank; and what the probe recovers of known teachers and of real residuals."""
    figure, (growth, sight) = style.row_of_panels(["rank", f"power at rank {probe_rank}"], 2.5)
    teachers = [column for column in power.columns if column not in ("model", "block")]
    for model, shift in style.side_by_side(ranks["model"], -0.18).items():  # rows count downwards, and so do models
        look = style.look(model)
        # a thin line per block, and their median
        by_block = ranks[ranks["model"] == model].pivot_table(index="rank", columns="block", values="recovered")
        growth.plot(by_block.index, by_block, color=look["color"], linewidth=0.5, alpha=0.6)
        growth.plot(by_block.index, by_block.median(axis=1), **look)
        seen = power[power["model"] == model]
        shares = [blocks.loc[blocks["model"] == model, "recovered"], *(seen[teacher] for teacher in teachers)]
        dots = {"color": look["color"], "marker": look["marker"], "linestyle": "", "alpha": 0.7}
        for row, values in enumerate(shares):
            sight.plot(values, np.full(len(values), shift - row), **dots)

    tried = sorted(ranks["rank"].unique())
    growth.axvline(probe_rank, color=style.GREY, linestyle=":")
    growth.set_xscale("log")
    growth.set_xticks(tried, tried)
    growth.minorticks_off()
    growth.set(xlabel="rank of the branch", ylabel="share recovered")
    sight.set_yticks(-np.arange(len(teachers) + 1), ["real", *teachers])
    sight.set_xlabel("share recovered")
    style.legend(growth, handlelength=2.8)
    return figure


# --- What passes a gate


def gate(gates: pd.DataFrame, blocks: pd.DataFrame) -> Figure:
    """The gate of a branch trained end to end, and what passes it, against what the line leaves, a point per block."""
    figure, (closing, passing) = style.row_of_panels(["the gate", "what passes it"], 2.7)
    gates = gates.merge(blocks[["model", "block", "r2"]], on=["model", "block"])
    for (rate, model), trained in gates.groupby(["rate", "model"], sort=False):
        look = style.look(model) | {"linestyle": "", "label": f"{model}, rate {rate:g}"}
        if rate < gates["rate"].max():
            look["markerfacecolor"] = "white"
        closing.plot(1 - trained["r2"], trained["gate"], **look)
        passing.plot(1 - trained["r2"], trained["share"], **look)

    closing.axhline(1, color=style.GREY, linestyle=":")  # where the gate begins
    closing.set(xlim=(0, None), ylim=(0, None), xlabel=_LEFT, ylabel="gate $g$")
    passing.set(xlim=(0, None), xlabel=_LEFT, ylabel="branch's share of variance")
    style.legend(closing, ncols=gates["rate"].nunique(), handletextpad=0.2)
    return figure


# --- The paper's recipe and our probe


def recipe(recipes: pd.DataFrame) -> Figure:
    """Plot the gain by the paper's recipe and by our probe over depth; and what each change between them is worth."""
    figure, (depth, parts) = style.row_of_panels(["two probes", "from the recipe to ours"], 2.7)
    for model, shift in style.side_by_side(recipes["model"], 0.24).items():
        blocks = recipes[recipes["model"] == model]
        look = style.look(model)
        open_points = look | {"markerfacecolor": "white", "linewidth": 0.6, "label": "_"}
        depth.plot(blocks["block"], blocks["ours"], **look)
        depth.plot(blocks["block"], blocks["gain"], **open_points)
        small_dots = {"color": look["color"], "marker": look["marker"], "markersize": 2.2, "linestyle": ""}
        for place, change in enumerate(_CHANGES):  # a point is a block, the bar their mean
            parts.bar(place + shift, blocks[change].mean(), 0.2, color=look["color"], alpha=0.35)
            parts.plot(np.full(len(blocks), place + shift), blocks[change], **small_dots)

    style.label_filled_and_open(depth, "our probe", "the paper's recipe")
    style.mark_blocks(depth, recipes["block"])
    depth.set_ylim(min(0, 1.1 * recipes[["gain", "ours"]].min().min()))
    depth.set_ylabel("gain")
    parts.axhline(0, color=style.GREY, linewidth=0.6)
    parts.set_xticks(range(len(_CHANGES)), _CHANGES)
    parts.set_ylabel("change of the gain")
    style.legend(depth, handlelength=2.2, columnspacing=1.2)
    return figure


# --- Whole layers in a block's place


def layers(
    blocks: pd.DataFrame, controls: pd.DataFrame, layers: pd.DataFrame, published: pd.DataFrame | None = None
) -> Figure:
    """Plot R² of possible replacements of a block; and the cost of the line in its place, alone and with products."""
    figure, (depth, cost) = style.row_of_panels(["what depth is worth", "what products are worth"], 2.7)
    # R² of the line, of the line with products, and of each control, a row per block that has controls
    keys = ["model", "block"]
    of_controls = controls.pivot_table(index=keys, columns="control", values="r2", sort=False)
    of_controls.columns = [control.replace("2x", " 2×") for control in of_controls.columns]
    of_probe = blocks.set_index(keys)[["r2", "r2_poly"]].set_axis(["line", "+ products"], axis=1)
    fits = of_probe.join(of_controls, how="right")
    names = list(fits.columns)
    has_papers = published is not None and len(published) > 0
    if has_papers:
        hidden = {"linestyle": "", "label": "_"}
        style.draw_published(cost, published, "block", "dppl_linear", **hidden)
        style.draw_published(cost, published, "block", "dppl_poly", **hidden, markerfacecolor="white")
    # deep models get a wider step, so that their points look as far apart as those of a model of twelve blocks
    deepest = layers["block"].max() if len(layers) else 0
    step = _SHIFT * (deepest / 12 if deepest > style.DEEP else 1.0)
    shifts = style.side_by_side(layers["model"], 2 * step)
    for model, shift in shifts.items():
        look = style.look(model)
        thin_line = look | {"linewidth": 0.7}
        right = 5 + 9 * list(shifts).index(model)  # in points from the end: a column of numbers per model
        for block, r2 in fits.loc[model].iterrows():
            depth.plot(range(len(names)), r2, **thin_line)
            end = (len(names) - 1, r2.iloc[-1])
            depth.annotate(str(block), end, (right, 0), **_NUMBER, color=look["color"])
        costs = layers[layers["model"] == model]
        for column, face, aside in (("dppl", look["color"], -step / 2), ("dppl_poly", "white", step / 2)):
            label = look["label"] if column == "dppl" else "_"  # a model is named once
            dots = look | {"markerfacecolor": face, "linestyle": "", "elinewidth": 0.5, "label": label}
            style.draw_intervals(cost, costs["block"] + shift + aside, costs, column, **dots)

    depth.set_xticks(range(len(names)), names)
    depth.set_xlim(right=len(names) - 0.8 + 0.2 * len(shifts))  # room for the numbers
    depth.set_ylabel("$R^2$, held out")
    style.label_filled_and_open(cost, "line", "line and products")
    if has_papers:
        cost.plot([], [], **style.published("o", "the paper"), linestyle="")
    cost.set_yscale("symlog", linthresh=1)
    cost.yaxis.set_major_formatter(ScalarFormatter())
    cost.axhline(0, color=style.GREY, linewidth=0.6)
    style.mark_blocks(cost, layers["block"])
    cost.set_ylabel("ΔPPL")

    # models first, then what filled and open points are
    handles, labels = cost.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    order = [*map(style.as_label, shifts), "line", "line and products"]
    if has_papers:
        order.append("the paper")
    ordered = [by_label[label] for label in order]
    figure.legend(ordered, order, loc="outside upper center", ncols=len(order), columnspacing=1.2)
    return figure
