"""Figures of notebook 05: a parabola's two lines, profiles (the paper's figure 5), maps carried to another text."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from howlinear.plots import style

COLOURS = ("0.1", style.ACCENT, style.GREY, "#882255", "#44AA99")
MARKERS = ("o", "s", "^", "D", "v")
LINES = ("-", "--", ":", "-.", "-")
PUBLISHED = {"wikitext": "r2_lin", "moby_dick": "r2_lin_moby_dick", "puzzles": "r2_lin_math_puzzles"}
"""The paper's corpora → the columns of `files.published` with their profiles."""
ROOM = 20  # letters that fit side by side below a matrix
SIDE_BY_SIDE = 0.15  # blocks between two corpora's points, which would overlap otherwise


def look(place: int) -> dict[str, str]:
    """Return colour, marker and line style of a corpus by its place among the corpora, for `errorbar`."""
    place %= len(COLOURS)
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": LINES[place]}


def flanks(
    rows: Mapping[str, pd.DataFrame], lines: Mapping[str, tuple[float, float]], r2: Mapping[tuple[str, str], float]
) -> Figure:
    """Plot a curve that two texts visit in two places: a panel per text, with its own line and the other text's."""
    figure, axes = plt.subplots(1, len(rows), figsize=(style.COLUMN, 2.3))
    style.panels(axes, [f"on the {scored} flank" for scored in rows])
    for axis, (scored, points) in zip(axes, rows.items(), strict=True):
        axis.plot(points["x"], points["y"], "o", color="black", alpha=0.3, markersize=2.5, markeredgewidth=0)
        x = np.array([points["x"].min(), points["x"].max()])
        for fitted, (slope, intercept) in lines.items():
            at_home = fitted == scored
            looks = {"color": style.ACCENT, "linestyle": "-"} if at_home else {"color": style.GREY, "linestyle": "--"}
            score = f"{r2[fitted, scored]:.{2 if at_home else 1}f}".replace("-", "−")
            axis.plot(x, slope * x + intercept, **looks, label=f"{fitted} line: $R^2$ = {score}")
        axis.set_xlabel("input $x$")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), handlelength=1.6)
    axes[0].set_ylabel("output $y$")
    return figure


def profiles(curves: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """R²_lin over depth, a panel per model, a curve per corpus with its intervals."""
    corpora = list(curves["corpus"].unique())
    models = list(curves["model"].unique())
    figure, panels = style.panel_grid(models, 1.9, "$R^2_{\\mathrm{lin}}$, held out", most=None, sharey=True)
    for model, ax in panels.items():
        for place, corpus in enumerate(corpora):
            curve = curves[(curves["model"] == model) & (curves["corpus"] == corpus)]
            _curve(ax, curve, "r2", place, label=style.as_label(corpus))
            if published is not None and corpus in PUBLISHED:
                papers = published[published["model"] == model]
                shape = look(place)
                thin = style.published(shape["marker"], f"{corpus}, the paper")
                ax.plot(papers["block"], papers[PUBLISHED[corpus]], **thin, linestyle=shape["linestyle"])
    first = panels[models[0]]
    first.set_ylim(min(0, curves["r2"].min() - 0.05), 1.02)  # for all panels, which share the axis
    style.legend(first, ncols=4, handlelength=3)
    return figure


def transfer(curves: pd.DataFrame, drops: pd.DataFrame) -> Figure:
    """Above, mean R² of every pair of corpora; below, what the first corpus' map loses elsewhere, block by block."""
    corpora = list(curves["corpus"].unique())
    models = list(curves["model"].unique())
    main, *others = corpora
    shared = {"sharey": "row", "height_ratios": (1.15, 1)}
    figure, axes = plt.subplots(2, len(models), figsize=(style.PAGE, 3.9), squeeze=False, **shared)
    style.panels(axes[0], models)
    for above, below, model in zip(axes[0], axes[1], models, strict=True):
        of_model = drops[drops["model"] == model]
        # R² of the column's own maps, minus the drop of the row's maps there
        own = curves[curves["model"] == model].groupby("corpus", sort=False)["r2"].mean()
        lost = of_model.pivot_table(index="fitted", columns="scored", values="drop")
        image = _matrix(above, own - lost.reindex(index=own.index, columns=own.index).fillna(0.0))
        for corpus in others:
            curve = of_model[(of_model["fitted"] == main) & (of_model["scored"] == corpus)]
            _curve(below, curve, "drop", corpora.index(corpus), label=f"scored on {corpus}")
        below.axhline(0, color=style.GREY, lw=0.6)
        if not others:
            below.text(0.5, 0.6, "a single text: no other to score on", ha="center", transform=below.transAxes)
    axes[0, 0].set_ylabel("fitted on")
    axes[1, 0].set_ylabel(f"drop in $R^2$,\nmap of {main}")
    figure.colorbar(image, ax=axes[0], label="mean $R^2$", shrink=0.8)
    if others:
        style.legend(axes[1, 0], loc="outside lower center", handlelength=3)
    return figure


def _curve(ax: Axes, table: pd.DataFrame, name: str, place: int, label: str) -> None:
    """Draw a column of the table over the blocks, with its intervals; `place` sets its look and its shift."""
    blocks = table["block"] + SIDE_BY_SIDE * (place - 1)
    style.draw_intervals(ax, blocks, table, name, label=label, capsize=1.5, **look(place))
    style.number_blocks(ax)


def _matrix(ax: Axes, means: pd.DataFrame) -> AxesImage:
    """Draw a matrix of means: a row per corpus fitted on, a column per corpus scored on."""
    image = ax.imshow(means, vmin=0, vmax=1, cmap="cividis")
    for (row, column), mean in np.ndenumerate(means):
        ax.text(column, row, f"{mean:.2f}", ha="center", va="center", color="black" if mean > 0.5 else "white")
    ticks = range(len(means))
    crowded = sum(len(corpus) for corpus in means.index) > ROOM
    slanted = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    ax.set_xticks(ticks, means.columns, **slanted)
    ax.set_yticks(ticks, means.index)
    ax.set_xlabel("scored on")
    ax.grid(visible=False)
    return image
