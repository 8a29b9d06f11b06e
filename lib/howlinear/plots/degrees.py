"""Figures of notebook 10: of what degree blocks are, and how many products it takes. Tables in, figures out."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from howlinear.plots import style

_MARKERS = "osD^v<"
_KERNELS = {  # marker and line, colour
    "degree 2": ("o-", "#0072B2"),
    "degree 3": ("s--", "#D55E00"),
    "Gaussian": ("^:", "#009E73"),
}


def spectrum(table: pd.DataFrame) -> Figure:
    """Plot the degree spectrum over depth, a panel per model, with Hermite's prediction dashed."""
    models = list(table.model.unique())
    degrees = sorted(table.degree.unique().tolist())
    figure, panels = style.panel_grid(models, 2.2, "held-out $R^2$", sharey=True)
    for model, axis in panels.items():
        of_model = table[table.model == model].sort_values("block")
        for degree in degrees:
            mine = of_model[of_model.degree == degree]
            color = _shade(degree, max(degrees))
            look = {"color": color, "marker": _MARKERS[(degree - 1) % len(_MARKERS)], "lw": 1}
            style.draw_intervals(axis, mine.block, mine, "r2", **look, label=f"degree {degree}")
            label = "Hermite, Gaussian inputs" if degree == degrees[0] else None
            axis.plot(mine.block, mine.hermite, ls=(0, (3, 1.5)), lw=0.8, color=color, label=label)
        style.mark_blocks(axis, of_model.block)
    first = panels[models[0]]
    first.set_ylim(max(-1, min(-0.02, table.r2.min() - 0.02)), 1.02)
    style.legend(first, loc="outside lower center", columnspacing=1.0)
    return figure


def predicted(table: pd.DataFrame) -> Figure:
    """Plot the limit of R²_lin against its prediction by second moments, a panel per model and a point per block."""
    known = table.dropna(subset="r2_limit")
    if known.empty:
        return style.sentence_figure("The rows are too few to say what R²_lin tends to with more, in any block.")
    names = known.model.unique().tolist()
    limit = "$R^2_{\\mathrm{lin}}$, limit of ever more rows"
    figure, panels = style.panel_grid(names, 2.45, limit, sharex=True, sharey=True)
    limits = (max(-0.5, min(0.0, known.r2_limit.min(), known.r2_gaussian.min())), 1.03)
    for model, axis in panels.items():
        of_model = known[known.model == model]
        of_all = of_model[of_model.counted == "all"]
        with_massive = of_all[of_all.massive_share > 0].block
        ordinary = of_model[(of_model.counted == "ordinary") & of_model.block.isin(with_massive)]
        look = style.look(model)
        points = {"color": look["color"], "fmt": look["marker"], "ls": "none", "elinewidth": 0.6}
        for blocks, face in ((of_all, {}), (ordinary, {"mfc": "white"})):
            if len(blocks):
                across, up = style.error_bars(blocks, "r2_gaussian"), style.error_bars(blocks, "r2_limit")
                axis.errorbar(blocks.r2_gaussian, blocks.r2_limit, up, across, **points, **face)
        # a thin line ties the point of a block's ordinary rows, open, to that of all its rows
        both = of_all.merge(ordinary, on="block", suffixes=["", "_ordinary"])
        across = both[["r2_gaussian", "r2_gaussian_ordinary"]].T
        up = both[["r2_limit", "r2_limit_ordinary"]].T
        axis.plot(across, up, color=look["color"], lw=0.4, zorder=1)
        axis.plot(limits, limits, color=style.GREY, lw=0.8, zorder=1)
        axis.set(xlim=limits, ylim=limits, box_aspect=1)
    figure.supxlabel("$R^2_{\\mathrm{lin}}$ if inputs were Gaussian")
    if known.massive_share.any():
        style.label_filled_and_open(panels[names[0]], "all rows", "without massive rows")
        style.legend(panels[names[0]])
    return figure


def kernel_curves(
    kernels: pd.DataFrame, spectra: pd.DataFrame, neurons: pd.DataFrame, streamed: pd.DataFrame
) -> Figure:
    """Plot learning curves of all products, and what the neurons' degree 2 reaches on all rows, a panel per model."""
    block_of = kernels.groupby("model", sort=False).block.first()
    titles = [f"{model}, block {block}" for model, block in block_of.items()]
    figure, panels = style.panel_grid(titles, 2.2, "held-out $R^2$", sharex=True, sharey=True)
    ends = [int(kernels.rows.min()), int(kernels.rows.max()), *streamed.rows.tail(1).tolist()]
    for model, axis in zip(block_of.index, panels.values(), strict=True):
        of_model = kernels[kernels.model == model].sort_values("rows")
        for kernel, (marker_and_line, color) in _KERNELS.items():
            curve = of_model[of_model.kernel == kernel]
            look = {"fmt": marker_and_line, "color": color, "label": f"{kernel} kernel"}
            style.draw_intervals(axis, curve.rows, curve, "r2", **look)
        pooled = spectra[(spectra.model == model) & (spectra.degree == 2)].r2.item()
        free = neurons[neurons.model == model].sort_values("neurons").r2.iloc[-1]
        axis.axhline(pooled, color=style.GREY, ls="--", lw=0.9, label="neurons, degree 2")
        axis.axhline(free, color="black", ls=":", lw=1, label="neurons' squares, each free")
        stars = streamed[streamed.model == model].sort_values("rows")
        if not stars.empty:
            axis.plot(stars.rows, stars.r2, "k*-", label="degree 2, streamed")
        axis.set(xlabel="train rows", xscale="log")
        axis.set_xticks(ends, [f"{count:,}" for count in ends])
        axis.minorticks_off()
    style.legend(panels[titles[0]], ncols=3, loc="outside lower center", columnspacing=1.0)
    return figure


def products_needed(neurons: pd.DataFrame, probes: pd.DataFrame) -> Figure:
    """Plot the share of the quadratic step that products reach: the loudest neurons' squares, and probes by rank."""
    figure, axis = plt.subplots(figsize=(style.COLUMN, 2.4))
    for model in neurons.model.unique():
        squares = neurons[(neurons.model == model) & (neurons.neurons > 0)].sort_values("neurons")
        probe = probes[probes.model == model].sort_values("rank")
        look = style.look(model)
        axis.plot(squares.neurons, squares.share, **look)
        axis.plot(probe["rank"], probe.share, color=look["color"], ls=":", lw=0.8, **_STAR)
    axis.plot([], [], color="white", ls="none", label="probes of notebook 03", **_STAR)
    axis.set(xscale="log", xlabel="products", ylabel="share of the quadratic step", ylim=(0, 1.05))
    # powers of four up to the most products that are drawn
    most = int(max([*neurons.neurons, *probes["rank"], 1]))
    ticks = [4**power for power in range(most.bit_length()) if 4**power <= most]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.legend()
    return figure


def training(table: pd.DataFrame) -> Figure:
    """Plot a block's spectrum during training, and the spread of its pre-activations."""
    figure, (left, right) = style.row_of_panels(["spectrum", "pre-activations"], 2.4)
    degrees = sorted(table.degree.unique().tolist())
    for family, line in zip(table.family.unique(), ("-", "--", ":", "-."), strict=False):
        mine = table[table.family == family]
        for degree in degrees:
            curve = mine[mine.degree == degree]
            color = _shade(degree, max(degrees))
            left.plot(curve.step, curve.r2, ls=line, color=color, label=f"{family}, degree {degree}")
        once = mine[mine.degree == degrees[0]]
        right.plot(once.step, once.spread, ls=line, color="black", label=family)
    for axis in (left, right):
        axis.set(xscale="symlog", xlim=(0, None), xlabel="training step")
    left.set_ylabel("held-out $R^2$")
    right.set(ylabel="spread of pre-activations", ylim=(0, None))
    # a shade is named once, by the first family; the right panel names the lines of families
    named = [f"degree {degree}" for degree in degrees]
    figure.legend(left.lines[: len(degrees)], named, loc="outside lower center", ncols=len(degrees))
    right.legend()
    return figure


_STAR = {"marker": "*", "markersize": 8, "markeredgecolor": "black", "markeredgewidth": 0.5}


def _shade(degree: int, highest: int) -> tuple[float, ...]:
    """Dark for the line, lighter with every degree."""
    return plt.get_cmap("viridis")(0.9 * (degree - 1) / max(highest - 1, 1))
