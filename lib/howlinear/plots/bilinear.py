"""Notebook 03's figures: what a product of inputs gains, how that goes with rank, and what passes a gate."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from howlinear.plots import style

_LEFT = "left by the line, $1 - R^2_{\\mathrm{lin}}$"
_SHIFT = 0.12  # blocks; between the error bars of two models at one block


def gain(gains: pd.DataFrame, rank: int = 16) -> Figure:
    """The paper's figure 3: gain against what the line leaves, a point per block; and the share recovered over depth.

    Args:
        gains: a row a block: `model`, `block`, `left`, `gain`, `low`, `high`, `recovered`.
        rank: of the branch.

    Returns:
        The figure, two panels. Bars of the second take what is left as given.
    """
    figure, (cloud, depth) = plt.subplots(1, 2, figsize=(style.PAGE, 2.5))
    bars = {"elinewidth": 0.7, "capsize": 1.5}
    models = gains.model.unique()
    for i, model in enumerate(models):
        group, look = gains[gains.model == model], style.look(model)
        reach = style.error_bars(group.gain, group.low, group.high)
        cloud.errorbar(group.left, group.gain, reach, **bars, **look | {"linestyle": ""})
        shift = _SHIFT * (i - (len(models) - 1) / 2)
        relative = reach / group.left.to_numpy()
        depth.errorbar(group.block + shift, group.recovered, relative, **bars, **look)
    edge = 1.08 * gains.left.max()
    cloud.plot([0, edge], [0, edge], color=style.GREY, lw=0.8, ls="--", label="all of it")
    cloud.set(xlabel=_LEFT, ylabel=f"gain of rank {rank}", xlim=(0, edge))
    cloud.set_ylim(min(-0.01, 1.1 * gains.low.min()), max(1.2 * gains.high.max(), 0.02))
    depth.set(xlabel="block", ylabel="share recovered", xticks=np.unique(gains.block)[::2])
    depth.set_ylim(bottom=min(0, depth.get_ylim()[0]))
    style.panels([cloud, depth], ["gain", "of what is left"])
    figure.legend(
        *cloud.get_legend_handles_labels(), loc="outside upper center", ncols=len(models) + 1, handlelength=2.8
    )
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
