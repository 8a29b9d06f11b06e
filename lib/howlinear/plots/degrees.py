"""Figures of notebook 10: of what degree blocks are, and how many products it takes. Tables in, figures out."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from howlinear.plots import style

_MARKERS = "osD^v<"
_DEEP = 16  # blocks; beyond it labels at every other one run into each other
_KERNELS = {  # marker and line, colour
    "degree 2": ("o-", "#0072B2"),
    "degree 3": ("s--", "#D55E00"),
    "Gaussian": ("^:", "#009E73"),
}


def spectrum(table: pd.DataFrame) -> Figure:
    """The degree spectrum over depth, a panel a model, with Hermite's prediction dashed."""
    models = list(table.model.unique())
    degrees = sorted(table.degree.unique().tolist())
    figure, axes = _model_panels(len(models))
    style.panels(axes, models)
    for axis, model in zip(axes, models, strict=True):
        for degree in degrees:
            mine = table[(table.model == model) & (table.degree == degree)].sort_values("block")
            color = _shade(degree, max(degrees))
            bars = style.error_bars(mine.r2, mine.r2_low, mine.r2_high)
            marker = _MARKERS[(degree - 1) % len(_MARKERS)]
            look = {"lw": 1, "elinewidth": 0.7, "color": color, "marker": marker}
            axis.errorbar(mine.block, mine.r2, bars, label=f"degree {degree}", **look)
            label = "Hermite, Gaussian inputs" if degree == degrees[0] else None
            axis.plot(mine.block, mine.hermite, ls=(0, (3, 1.5)), lw=0.8, color=color, label=label)
        blocks = table[table.model == model].block
        axis.set(xlabel="block", xticks=range(0, blocks.max() + 1, 2 if blocks.max() <= _DEEP else 5))
    lowest = min(-0.02, table.r2.min() - 0.02)
    axes[0].set(ylabel="held-out $R^2$", ylim=(max(-1, lowest), 1.02))
    _legend_below(figure, axes[0], len(degrees) + 1)
    return figure


def foretold(table: pd.DataFrame) -> Figure:
    """What R²_lin tends to against what second moments say, a point a block; open: ordinary rows, linked to all."""
    known = table.dropna(subset="r2_limit")
    if known.empty:
        return style.sentence_figure("The rows are too few to say what R²_lin tends to with more, in any block.")
    figure, axis = plt.subplots(figsize=(style.COLUMN, 3.0))
    lowest = min(0.0, known.r2_limit.min(), known.r2_gaussian.min())
    axis.plot([lowest, 1], [lowest, 1], color=style.GREY, lw=0.8, zorder=1)
    for model, of_model in known.groupby("model", sort=False):
        look = style.look(model)
        of_all = of_model[of_model.counted == "all"]
        other = of_model[(of_model.counted == "ordinary") & of_model.block.isin(of_all[of_all.massive_share > 0].block)]
        points = {"color": look["color"], "fmt": look["marker"], "ls": "none", "elinewidth": 0.6}
        for mine, hollow in ((of_all, False), (other, True)):
            across = style.error_bars(mine.r2_gaussian, mine.r2_gaussian_low, mine.r2_gaussian_high)
            up = style.error_bars(mine.r2_limit, mine.r2_limit_low, mine.r2_limit_high)
            face = {"mfc": "white", "label": f"{model}, ordinary rows"} if hollow else {"label": model}
            if len(mine):
                axis.errorbar(mine.r2_gaussian, mine.r2_limit, up, across, **points, **face)
        both = of_all.merge(other, on="block", suffixes=["", "_ordinary"])
        moved = both[["r2_gaussian", "r2_gaussian_ordinary"]].T, both[["r2_limit", "r2_limit_ordinary"]].T
        axis.plot(*moved, color=look["color"], lw=0.4, zorder=1)
    axis.set_xlabel("$R^2_{\\mathrm{lin}}$ if inputs were Gaussian")
    axis.set_ylabel("$R^2_{\\mathrm{lin}}$, limit of ever more rows")
    axis.set(xlim=(max(-0.5, lowest), 1.02), ylim=(max(-0.5, lowest), 1.02), aspect="equal")
    axis.legend(loc="upper left")
    return figure


def kernel_curves(
    kernels: pd.DataFrame, spectra: pd.DataFrame, neurons: pd.DataFrame, streamed: pd.DataFrame
) -> Figure:
    """Learning curves of all products against what the neurons' degree 2 reaches on all train rows, a panel a model."""
    models = list(kernels.model.unique())
    figure, axes = _model_panels(len(models), sharex=True)
    style.panels(axes, [f"{model}, block {kernels[kernels.model == model].block.iloc[0]}" for model in models])
    ends = [int(kernels.rows.min()), int(kernels.rows.max()), *streamed.rows.tail(1).tolist()]
    for axis, model in zip(axes, models, strict=True):
        mine = kernels[kernels.model == model]
        for kernel, (marker_and_line, color) in _KERNELS.items():
            curve = mine[mine.kernel == kernel].sort_values("rows")
            bars = style.error_bars(curve.r2, curve.r2_low, curve.r2_high)
            look = {"fmt": marker_and_line, "color": color, "elinewidth": 0.7}
            axis.errorbar(curve.rows, curve.r2, bars, label=f"{kernel} kernel", **look)
        (pooled,) = spectra[(spectra.model == model) & (spectra.degree == 2)].r2
        free = neurons[neurons.model == model].sort_values("neurons").r2.iloc[-1]
        axis.axhline(pooled, color=style.GREY, ls="--", lw=0.9, label="neurons, degree 2")
        axis.axhline(free, color="black", ls=":", lw=1, label="neurons' squares, each free")
        stars = streamed[streamed.model == model].sort_values("rows")
        if not stars.empty:
            axis.plot(stars.rows, stars.r2, "k*-", label="degree 2, streamed")
        axis.set(xlabel="train rows", xscale="log")
        _mark_ends(axis, ends)
    axes[0].set_ylabel("held-out $R^2$")
    _legend_below(figure, axes[0], 3)
    return figure


def products_needed(neurons: pd.DataFrame, probes: pd.DataFrame) -> Figure:
    """What share of the quadratic step some products reach: the loudest neurons' squares, and probes of that rank."""
    figure, axis = plt.subplots(figsize=(style.COLUMN, 2.4))
    for model in neurons.model.unique():
        squares = neurons[(neurons.model == model) & (neurons.neurons > 0)].sort_values("neurons")
        probe = probes[probes.model == model].sort_values("rank")
        look = style.look(model)
        axis.plot(squares.neurons, squares.share, **look)
        axis.plot(probe["rank"], probe.share, color=look["color"], ls=":", lw=0.8, **_STAR)
    axis.plot([], [], color="white", ls="none", label="probes of notebook 03", **_STAR)
    most = max(neurons.neurons.max(), probes["rank"].max() if len(probes) else 1)
    ticks = 4 ** np.arange(np.ceil(np.log(most) / np.log(4)) + 1).astype(int)
    ticks = ticks[ticks <= most]
    axis.set(xscale="log", xlabel="products", ylabel="share of the quadratic step", ylim=(0, 1.05))
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.legend()
    return figure


def training(table: pd.DataFrame) -> Figure:
    """The spectrum of a block on the way through training, and the spread of its pre-activations."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.PAGE, 2.4))
    style.panels([left, right], ["spectrum", "pre-activations"])
    degrees = sorted(table.degree.unique().tolist())
    for family, line in zip(table.family.unique(), ("-", "--", ":", "-."), strict=False):
        mine = table[table.family == family]
        for degree in degrees:
            curve = mine[mine.degree == degree]
            label = f"{family}, degree {degree}"
            left.plot(curve.step, curve.r2, ls=line, color=_shade(degree, max(degrees)), label=label)
        curve = mine[mine.degree == degrees[0]]
        right.plot(curve.step, curve.spread, ls=line, color="black", label=family)
    for axis in (left, right):
        axis.set(xscale="symlog", xlim=(0, None), xlabel="training step")
    # a shade is named once, by the first family; the right panel names the lines of families
    named = [f"degree {degree}" for degree in degrees]
    figure.legend(left.lines[: len(degrees)], named, loc="outside lower center", ncols=len(degrees))
    right.legend()
    left.set(ylabel="held-out $R^2$")
    right.set(ylabel="spread of pre-activations", ylim=(0, None))
    return figure


_STAR = {"marker": "*", "markersize": 8, "markeredgecolor": "black", "markeredgewidth": 0.5}


def _model_panels(count: int, sharex: bool = False) -> tuple[Figure, np.ndarray]:
    figure, axes = plt.subplots(1, count, figsize=(style.PAGE, 2.6), sharex=sharex, sharey=True, squeeze=False)
    return figure, axes[0]


def _shade(degree: int, highest: int) -> tuple[float, ...]:
    """Dark for the line, lighter with every degree."""
    return plt.get_cmap("viridis")(0.9 * (degree - 1) / max(highest - 1, 1))


def _mark_ends(axis: Axes, rows: Sequence[int]) -> None:
    """Ticks at these numbers of rows, and nowhere else."""
    axis.set_xticks(rows)
    axis.set_xticklabels([f"{count:,}" for count in rows])
    axis.minorticks_off()


def _legend_below(figure: Figure, axis: Axes, columns: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.0)
