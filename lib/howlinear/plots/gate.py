"""Figures of notebook 15: how many tokens take the line, block by block, and what each share of them costs."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from howlinear.plots import style

GATE, ORACLE, LOTS = KINDS = ("gate", "oracle", "lots")
"""What decides which tokens take the line, in the order drawn."""

_LINEAR = 1.0  # per cent of perplexity: rises below it are drawn on a linear scale
_TICKS = (-1, 0, 1, 10, 100, 1000)
_ASIDE = 0.22  # of the step from block to block, between the marks of one block


def _look(kind: str, model: str) -> dict:
    """How a kind is drawn: the gate in the model's own look, an oracle hollow, lots grey."""
    own = style.look(model)
    if kind == GATE:
        return {"color": own["color"], "marker": own["marker"], "linestyle": "-", "linewidth": 1.6}
    if kind == ORACLE:
        return {"color": own["color"], "marker": own["marker"], "linestyle": "--", "linewidth": 1.0, "mfc": "white"}
    return {"color": style.GREY, "marker": "x", "linestyle": ":", "linewidth": 1.0}


def shares(table: pd.DataFrame, published: tuple[float, float]) -> Figure:
    """The share of tokens on the line in each block, by gate, oracle and lots; a panel a model.

    Args:
        table: columns model, block, kind, share, share_low and share_high; may be empty.
        published: lowest and highest share that another work reports, drawn as a band.
    """
    models = list(table["model"].unique()) if len(table) else []
    rows = max(1, len(models))
    figure, axes = plt.subplots(rows, 1, figsize=(style.COLUMN, 0.6 + 1.5 * rows), squeeze=False, sharey=True)
    panels = list(axes[:, 0])
    style.panels(panels[: len(models)], models)
    low, high = (100 * end for end in published)
    for ax, model in zip(panels, models, strict=False):
        ax.axhspan(low, high, color=style.ACCENT, alpha=0.2, lw=0, zorder=0)
        of_model = table[table["model"] == model]
        for number, kind in enumerate(KINDS):
            of_kind = of_model[of_model["kind"] == kind].sort_values("block")
            bars = 100 * style.error_bars(of_kind["share"], of_kind["share_low"], of_kind["share_high"])
            marks = _look(kind, model) | {"linestyle": "none", "zorder": 4 - number}
            places = of_kind["block"] + _ASIDE * (number - 1)
            ax.errorbar(places, 100 * of_kind["share"], bars, elinewidth=0.6, **marks)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
        ax.set_ylim(-4, 106)
        ax.set_yticks([0, 25, 50, 75, 100])
    _named(figure, panels[0], bool(models), published)
    panels[-1].set_xlabel("block")
    figure.supylabel("tokens on the line, %", fontsize=plt.rcParams["axes.labelsize"])
    return figure


def curves(table: pd.DataFrame, limit: float) -> Figure:
    """By how much perplexity rises with the share of tokens on the line, in one block of each model.

    Args:
        table: columns model, block, kind, share, rise, rise_low and rise_high; may be empty.
        limit: the rise that is allowed, drawn as a line.
    """
    models = list(table["model"].unique()) if len(table) else []
    rows = max(1, len(models))
    figure, axes = plt.subplots(rows, 1, figsize=(style.COLUMN, 0.6 + 1.6 * rows), squeeze=False, sharex=True)
    panels = list(axes[:, 0])
    blocks: Mapping[str, int] = table.groupby("model", sort=False)["block"].first().to_dict() if models else {}
    style.panels(panels[: len(models)], [f"{model}, block {block}" for model, block in blocks.items()])
    for ax, model in zip(panels, models, strict=False):
        of_model = table[table["model"] == model]
        for kind in reversed(KINDS):
            of_kind = of_model[of_model["kind"] == kind].sort_values("share")
            bars = 100 * style.error_bars(of_kind["rise"], of_kind["rise_low"], of_kind["rise_high"])
            ax.errorbar(100 * of_kind["share"], 100 * of_kind["rise"], bars, elinewidth=0.6, **_look(kind, model))
        ax.axhline(100 * limit, color=style.ACCENT, lw=1, ls="-.", zorder=1)
        ax.set_yscale("symlog", linthresh=_LINEAR, linscale=0.7)
        ax.margins(y=0.1)
        ax.yaxis.set_major_locator(FixedLocator(_TICKS))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
        ax.set_xticks(sorted(100 * of_model["share"].unique()))
    _named(figure, panels[0], bool(models), None, limit)
    panels[-1].set_xlabel("tokens on the line, %")
    figure.supylabel("rise of perplexity, %", fontsize=plt.rcParams["axes.labelsize"])
    return figure


def _named(
    figure: Figure, first: Axes, any_model: bool, published: tuple[float, float] | None, limit: float | None = None
) -> None:
    """A legend in grey, since colours are the models'; or, in the first panel, that there is no model."""
    if not any_model:
        first.text(0.5, 0.5, "no model predicts a next token", transform=first.transAxes, ha="center", color=style.GREY)
        return
    handles = []
    for kind in KINDS:
        marks = _look(kind, "") | {"color": style.GREY, "label": kind}
        marks["marker"] = "x" if kind == LOTS else "o"
        if published is not None:  # marks alone, no lines
            marks["linestyle"] = "none"
        handles += first.plot([], [], **marks)
    if published is not None:
        handles.append(Patch(color=style.ACCENT, alpha=0.2, lw=0, label="arXiv 2603.03459"))
    if limit is not None:
        handles += first.plot([], [], color=style.ACCENT, lw=1, ls="-.", label="limit")
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handlelength=1.8, columnspacing=1.0)
