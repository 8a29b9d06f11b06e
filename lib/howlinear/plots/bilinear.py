"""Notebook 03's figures: what products gain, with what rank, what passes a gate, and what the paper lays beside."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from howlinear.plots import style

_LEFT = "left by the line, $1 - R^2_{\\mathrm{lin}}$"
_SHIFT = 0.12  # blocks; between the error bars of two models at one block


def gain(gains: pd.DataFrame, rank: int = 16, published: pd.DataFrame | None = None) -> Figure:
    """The paper's figure 3: gain against what the line leaves, a point per block; and the share recovered over depth.

    Args:
        gains: a row a block: `model`, `block`, `left`, `gain`, `low`, `high`, `recovered`.
        rank: of the branch.
        published: what the paper gives of its models, a row a block: `model`, `block`, `r2_lin`, `bilinear_gain_r16`;
            as of `files.published`. It is drawn behind, thin and grey, with the model's own marker.

    Returns:
        The figure, two panels. Bars of the second take what is left as given.
    """
    papers = pd.DataFrame(columns=["model", "block", "r2_lin", "bilinear_gain_r16"]) if published is None else published
    papers = papers.assign(left=1 - papers["r2_lin"])
    figure, (cloud, depth) = plt.subplots(1, 2, figsize=(style.PAGE, 2.5))
    bars = {"elinewidth": 0.7, "capsize": 1.5}
    models = gains.model.unique()
    for model, blocks in papers.groupby("model", sort=False):
        thin = style.published(style.look(model)["marker"], f"{model}, the paper")
        cloud.plot(blocks["left"], blocks["bilinear_gain_r16"], **thin, linestyle="")
        depth.plot(blocks["block"], blocks["bilinear_gain_r16"] / blocks["left"], **thin)
    for i, model in enumerate(models):
        group, look = gains[gains.model == model], style.look(model)
        reach = style.error_bars(group.gain, group.low, group.high)
        cloud.errorbar(group.left, group.gain, reach, **bars, **look | {"linestyle": ""})
        shift = _SHIFT * (i - (len(models) - 1) / 2)
        relative = reach / group.left.to_numpy()
        depth.errorbar(group.block + shift, group.recovered, relative, **bars, **look)
    edge = 1.08 * max([*gains.left, *papers["left"]])
    highest = max([*gains.high, *papers["bilinear_gain_r16"]])
    cloud.plot([0, edge], [0, edge], color=style.GREY, lw=0.8, ls="--", label="all of it")
    cloud.set(xlabel=_LEFT, ylabel=f"gain of rank {rank}", xlim=(0, edge))
    cloud.set_ylim(min(-0.01, 1.1 * gains.low.min()), max(1.2 * highest, 0.02))
    depth.set(xlabel="block", ylabel="share recovered", xticks=np.unique(gains.block)[::2])
    depth.set_ylim(bottom=min(0, depth.get_ylim()[0]))
    style.panels([cloud, depth], ["gain", "of what is left"])
    handles, labels = cloud.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4), handlelength=2.8)
    return figure


def rank(sweep: pd.DataFrame, powers: pd.DataFrame, gains: pd.DataFrame, probe_rank: int = 16) -> Figure:
    """Share recovered against rank; and what the probe recovers of teachers that are known, beside the real residuals.

    Args:
        sweep: a row a rank of a block: `model`, `block`, `rank`, `recovered`.
        powers: a row a block: `model`, `block`, then a column of shares per kind of teacher.
        gains: a row a block: `model`, `recovered`, of the real residuals.
        probe_rank: rank of the probe in `powers` and `gains`.

    Returns:
        The figure, two panels.
    """
    figure, (growth, sight) = plt.subplots(1, 2, figsize=(style.PAGE, 2.5))
    ranks = sorted(sweep["rank"].unique())
    teachers = [column for column in powers.columns if column not in ("model", "block")]
    models = sweep.model.unique()
    for i, model in enumerate(models):
        look = style.look(model)
        blocks = sweep[sweep.model == model].pivot_table(index="rank", columns="block", values="recovered")
        growth.plot(blocks.index, blocks, color=look["color"], lw=0.5, alpha=0.6)
        growth.plot(blocks.index, blocks.median(axis=1), **look)
        shift = 0.18 * ((len(models) - 1) / 2 - i)
        dots = {"color": look["color"], "marker": look["marker"], "ls": "", "alpha": 0.7}
        shares = [gains[gains.model == model].recovered]
        shares += [powers[powers.model == model][teacher] for teacher in teachers]
        for row, values in enumerate(shares):
            sight.plot(values, np.full(len(values), shift - row), **dots)
    growth.axvline(probe_rank, color=style.GREY, ls=":")
    growth.set(xscale="log", xlabel="rank of the branch", ylabel="share recovered", xticks=ranks, xticklabels=ranks)
    growth.minorticks_off()
    sight.set(xlabel="share recovered", yticks=-np.arange(len(teachers) + 1), yticklabels=["real", *teachers])
    style.panels([growth, sight], ["rank", f"power at rank {probe_rank}"])
    figure.legend(*growth.get_legend_handles_labels(), loc="outside upper center", ncols=len(models), handlelength=2.8)
    return figure


def gate(gates: pd.DataFrame) -> Figure:
    """The gate of a branch trained end to end, and what passes it, against what the line leaves, a point per block.

    Args:
        gates: a row a block at a learning rate: `rate`, `model`, `left`, `gate`, `share`. Points of the highest rate
            are filled, the others open.

    Returns:
        The figure, two panels.
    """
    figure, (closing, passing) = plt.subplots(1, 2, figsize=(style.PAGE, 2.7))
    for (rate, model), group in gates.groupby(["rate", "model"], sort=False):
        look = style.look(model) | {"linestyle": "", "label": f"{model}, rate {rate:g}"}
        if rate < gates.rate.max():
            look["markerfacecolor"] = "white"
        closing.plot(group.left, group.gate, **look)
        passing.plot(group.left, group.share, **look)
    closing.axhline(1, color=style.GREY, ls=":")
    closing.set(xlabel=_LEFT, ylabel="gate $g$", xlim=0, ylim=0)
    passing.set(xlabel=_LEFT, ylabel="branch's share of variance", xlim=0)
    style.panels([closing, passing], ["the gate", "what passes it"])
    figure.legend(
        *closing.get_legend_handles_labels(),
        loc="outside upper center",
        ncols=gates.rate.nunique(),
        handletextpad=0.2,
    )
    return figure


def recipe(recipes: pd.DataFrame, changes: tuple[str, ...] = ("selection", "rows", "optimiser")) -> Figure:
    """The paper's recipe beside our probe, over depth; and what each change from one to the other is worth.

    Args:
        recipes: a row a block: `model`, `block`, `gain` (the recipe's), `ours`, and a column per change.
        changes: in the order in which they are made.

    Returns:
        The figure, two panels. In the second a point is a block, a bar the mean over a model's blocks.
    """
    figure, (depth, parts) = plt.subplots(1, 2, figsize=(style.PAGE, 2.7))
    models = recipes.model.unique()
    for i, model in enumerate(models):
        group, look = recipes[recipes.model == model], style.look(model)
        depth.plot(group.block, group.ours, **look)
        depth.plot(group.block, group.gain, **look | {"markerfacecolor": "white", "linewidth": 0.6, "label": "_"})
        for place, change in enumerate(changes):
            at = place + 0.24 * (i - (len(models) - 1) / 2)
            parts.bar(at, group[change].mean(), 0.2, color=look["color"], alpha=0.35)
            dots = {"color": look["color"], "marker": look["marker"], "ms": 2.2, "ls": ""}
            parts.plot(np.full(len(group), at), group[change], **dots)
    for face, label in ((style.GREY, "our probe"), ("white", "the paper's recipe")):
        depth.plot([], [], "o", color=style.GREY, mfc=face, label=label)
    depth.set(xlabel="block", ylabel="gain", xticks=np.unique(recipes.block)[::2], ylim=0)
    parts.axhline(0, color=style.GREY, lw=0.6)
    parts.set(xticks=range(len(changes)), xticklabels=changes, ylabel="change of the gain")
    style.panels([depth, parts], ["two probes", "from the recipe to ours"])
    handles, labels = depth.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), handlelength=2.2, columnspacing=1.2)
    return figure


def layers(fits: pd.DataFrame, swaps: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """R² of what may stand in a block's place; and what it costs to put the line there, alone and with products.

    Args:
        fits: a row a layer of a block: `model`, `block`, `layer`, `r2`, layers in the order to be drawn.
        swaps: a row a block: `model`, `block`, `linear`, `poly` and their ends, as in `linear_low`, `linear_high`.
        published: what the paper gives of its models, a row a block: `model`, `block`, `dppl_linear`, `dppl_poly`; as
            of `files.published`. It is drawn behind, thin and grey, with the model's own marker.

    Returns:
        The figure, two panels: a line per block in the first; in the second filled for the line, open with products.
    """
    figure, (depth, cost) = plt.subplots(1, 2, figsize=(style.PAGE, 2.7))
    names = list(fits.layer.unique())
    models = swaps.model.unique()
    papers = swaps.iloc[:0] if published is None else published
    for model, blocks in papers.groupby("model", sort=False):
        thin = style.published(style.look(model)["marker"])
        cost.plot(blocks["block"], blocks["dppl_linear"], **thin, linestyle="")
        cost.plot(blocks["block"], blocks["dppl_poly"], **thin, linestyle="", markerfacecolor="white")
    for i, model in enumerate(models):
        look = style.look(model)
        for _, of_block in fits[fits.model == model].groupby("block"):
            depth.plot([names.index(name) for name in of_block.layer], of_block.r2, **look | {"linewidth": 0.7})
        group = swaps[swaps.model == model]
        for kind, face in (("linear", look["color"]), ("poly", "white")):
            reach = style.error_bars(group[kind], group[f"{kind}_low"], group[f"{kind}_high"])
            at = group.block + _SHIFT * (2 * i - len(models) + 1 + (0.5 if kind == "poly" else -0.5))
            dots = {"color": look["color"], "marker": look["marker"], "markerfacecolor": face, "linestyle": ""}
            cost.errorbar(at, group[kind], reach, elinewidth=0.5, label=model if kind == "linear" else "_", **dots)
    depth.set(xticks=range(len(names)), xticklabels=names, ylabel="$R^2$, held out")
    for face, label in ((style.GREY, "line"), ("white", "line and products")):
        cost.plot([], [], "o", color=style.GREY, mfc=face, label=label)
    if len(papers):
        cost.plot([], [], **style.published("o", "the paper"), linestyle="")
    cost.set_yscale("symlog", linthresh=1)
    cost.yaxis.set_major_formatter(ScalarFormatter())
    cost.axhline(0, color=style.GREY, lw=0.6)
    cost.set(xlabel="block", ylabel="ΔPPL", xticks=np.unique(swaps.block)[::2])
    style.panels([depth, cost], ["what depth is worth", "what products are worth"])
    handles, labels = cost.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    order = [*models, "line", "line and products", *(["the paper"] if len(papers) else [])]
    handles = [by_label[label] for label in order]
    figure.legend(handles, order, loc="outside upper center", ncols=len(order), columnspacing=1.2)
    return figure
