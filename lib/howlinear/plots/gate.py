"""Figures of notebook 15: how many tokens take the line, block by block, and what each share of them costs."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter

from howlinear.plots import style

GATE, ORACLE, RANDOM = KINDS = ("gate", "oracle", "random")
"""What decides which tokens take the line, in the order drawn."""

FIRST = "gate, first line"
"""The gate without the second fit of its line."""

_LINEAR = 1.0  # per cent of perplexity: rises below it are drawn on a linear scale
_TICKS = (-1, 0, 1, 3, 10, 30, 100, 300, 1000)
_APART = 0.7  # per cent of the tokens, between the marks of one share
_ASIDE = 0.22  # between the marks of one block, as a share of the step from block to block
_MOST_NAMED = 8  # up to this many blocks, all are labelled; of more, every other one; of many, fewer
_NO_LOSS = "No model of this run predicts a next token, so no line in a block's place has a cost in perplexity."


def _look(kind: str, model: str) -> dict:
    """Return the look of a kind: gates in the model's own look, an oracle hollow, random grey."""
    own = style.look(model)
    mine = {"color": own["color"], "marker": own["marker"], "linewidth": 1.0}
    return {
        GATE: mine | {"linestyle": "-", "linewidth": 1.6},
        FIRST: mine | {"marker": "+", "linestyle": (0, (1, 1)), "markersize": 5},
        ORACLE: mine | {"linestyle": "--", "mfc": "white"},
        RANDOM: {"color": style.GREY, "marker": "x", "linestyle": ":", "linewidth": 1.0},
    }[kind]


def shares(table: pd.DataFrame, published: tuple[float, float]) -> Figure:
    """Plot the share of tokens on the line in each block, by gate, oracle and at random; a panel per model."""
    if table.empty:
        return style.sentence_figure(_NO_LOSS)
    models = list(table["model"].unique())
    size = (style.COLUMN, 0.6 + 1.5 * len(models))
    figure, axes = plt.subplots(len(models), 1, figsize=size, squeeze=False, sharey=True)
    panels = axes[:, 0]
    style.panels(panels, models)
    low, high = (100 * end for end in published)
    for ax, model in zip(panels, models, strict=True):
        ax.axhspan(low, high, color=style.ACCENT, alpha=0.2, lw=0, zorder=0)
        of_model = table[table["model"] == model]
        blocks = sorted(of_model["block"].unique())
        for number, (kind, shift) in enumerate(style.side_by_side(KINDS, _ASIDE).items()):
            of_kind = of_model[of_model["kind"] == kind].sort_values("block")
            percent = 100 * of_kind[["share", "share_low", "share_high"]]
            marks = _look(kind, model) | {"linestyle": "none", "zorder": 4 - number, "elinewidth": 0.6}
            style.draw_intervals(ax, of_kind["block"].map(blocks.index) + shift, percent, "share", **marks)
        named = range(0, len(blocks), 1 if len(blocks) <= _MOST_NAMED else max(2, len(blocks) // 12))
        ax.set_xticks(named, [str(blocks[place]) for place in named])
        ax.set(ylim=(-4, 106), yticks=[0, 25, 50, 75, 100])
    band = Patch(color=style.ACCENT, alpha=0.2, lw=0, label="arXiv 2603.03459")
    _add_legend(figure, KINDS, "none", band)
    panels[-1].set_xlabel("block")
    figure.supylabel("tokens on the line, %")
    return figure


def curves(table: pd.DataFrame, limit: float) -> Figure:
    """Plot the rise of perplexity over the share of tokens on the line, in one block of each model."""
    if table.empty:
        return style.sentence_figure(_NO_LOSS)
    blocks = table.groupby("model", sort=False)["block"].first()
    size = (style.COLUMN, 0.6 + 1.6 * len(blocks))
    figure, axes = plt.subplots(len(blocks), 1, figsize=size, squeeze=False, sharex=True)
    panels = axes[:, 0]
    style.panels(panels, [f"{model}, block {block}" for model, block in blocks.items()])
    for ax, model in zip(panels, blocks.index, strict=True):
        of_model = table[table["model"] == model]
        for kind, shift in style.side_by_side((RANDOM, FIRST, GATE, ORACLE), _APART).items():
            of_kind = of_model[of_model["kind"] == kind].sort_values("share")
            percent = 100 * of_kind[["share", "rise", "rise_low", "rise_high"]]
            style.draw_intervals(ax, percent["share"] + shift, percent, "rise", elinewidth=0.6, **_look(kind, model))
        ax.axhline(100 * limit, color=style.ACCENT, lw=1, ls="-.", zorder=1)
        ax.set_yscale("symlog", linthresh=_LINEAR, linscale=0.7)
        ax.margins(y=0.1)
        ax.yaxis.set_major_locator(FixedLocator(_TICKS))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
        ax.set_xticks(sorted(100 * of_model["share"].unique()))
    spent = Line2D([], [], color=style.ACCENT, lw=1, ls="-.", label="limit")
    _add_legend(figure, (GATE, FIRST, ORACLE, RANDOM), None, spent)
    panels[-1].set_xlabel("tokens on the line, %")
    figure.supylabel("rise of perplexity, %")
    return figure


def _add_legend(figure: Figure, kinds: Sequence[str], linestyle: str | None, other: Artist) -> None:
    """Add a legend of the kinds in grey, since colours are the models'; `linestyle` None keeps each kind's own."""
    handles: list[Artist] = []
    for kind in kinds:
        look = _look(kind, "") | {"color": style.GREY, "label": kind}
        if look["marker"] not in ("x", "+"):
            look["marker"] = "o"
        if linestyle is not None:
            look["linestyle"] = linestyle
        handles.append(Line2D([], [], **look))
    spread = {"loc": "outside upper center", "ncols": 4 if len(kinds) < 4 else 3}
    figure.legend(handles=[*handles, other], **spread, handlelength=2.2, columnspacing=1.0)
