"""Figures of notebook 08: whether a profile is learned, whose it is, and what moves it. Tables in, figures out."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from howlinear.plots import style

_LOWEST = -0.5  # of R² in a panel, unless all lie above
_DEEP = 16  # blocks; beyond it labels at every other one run into each other
_R2 = "$R^2_{\\mathrm{lin}}$, held out"
_DISORDER = {"permuted": ("x", "-"), "redrawn": ("+", "--"), "fresh": ("", ":")}  # marker, line


def trained_and_random(controls: pd.DataFrame, random: pd.DataFrame) -> Figure:
    """Trained profiles beside those of random models and of weights in disorder, a panel a model.

    Args:
        controls: a row a `model`, `block` and `control`, with `r2`; `own` has `low` and `high` too.
        random: a row a `model`, `seed` and `block`, with `r2`, held out, and `in_sample`: whole models at random
            initialisations.
    """
    models = list(controls.model.unique())
    figure, axes = plt.subplots(1, len(models), figsize=(style.PAGE, 2.5), sharey=True, squeeze=False)
    style.panels(axes[0], models)
    for axis, model in zip(axes[0], models, strict=True):
        seeds = random[random.model == model].groupby("block")
        lowest, highest = seeds.r2.min(), seeds.in_sample.max()
        axis.fill_between(lowest.index, lowest, highest, color=style.ACCENT, lw=2, label="random models")
        for control, (marker, line) in _DISORDER.items():
            curve = _profile(controls, model, control)
            axis.plot(curve.block, curve.r2, marker=marker, ls=line, color=style.GREY, lw=0.8, label=control)
        own = _profile(controls, model, "own")
        bars = style.error_bars(own.r2, own.low, own.high)
        look = style.look(model) | {"label": "trained", "lw": 1.8}
        axis.errorbar(own.block, own.r2, bars, capsize=1.5, elinewidth=0.7, **look)
        _block_axis(axis, own.block)
    axes[0, 0].set(ylabel=_R2)
    if axes[0, 0].get_ylim()[0] < _LOWEST:  # too few rows, not blocks: the band leaves the panel
        axes[0, 0].set_ylim(_LOWEST, 1.05)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5)
    return figure


def transplants(pairs: pd.DataFrame, controls: pd.DataFrame, closed: pd.DataFrame, effects: pd.DataFrame) -> Figure:
    """Blocks fed with other models' rows, a panel an owner of weights; last, what tells all combinations apart.

    Args:
        pairs: a row a `block`, model whose `inputs` are fed and model of the `weights`, with `r2`.
        controls: a row a `model`, `block` and `control`, with `r2`; `normal` and `turned` are drawn.
        closed: a row a `model` and `block`: `closed`, R² on normal rows by the closed form.
        effects: a row an `effect`, with `share`, `low` and `high`; without any, as where no two models are of one
            width, there is no panel of them.
    """
    models = list(pairs.weights.unique())
    titles = [f"weights of {model}" for model in models]
    if len(effects):
        titles.append("sources")
        figure, axes = plt.subplots(2, len(models) // 2 + 1, figsize=(style.PAGE, 4.4), squeeze=False)
    else:
        figure, axes = plt.subplots(1, len(models), figsize=(style.PAGE, 2.7), squeeze=False)
    panels = axes.ravel()
    style.panels(panels[: len(titles)], titles)
    for axis, owner in zip(panels, models, strict=False):
        for giver in pairs[pairs.weights == owner].inputs.unique():
            curve = pairs[(pairs.weights == owner) & (pairs.inputs == giver)].sort_values("block")
            look = style.look(giver) | {"label": f"rows of {giver}", "lw": 2 if giver == owner else 0.9}
            axis.plot(curve.block, curve.r2, **look)
        normal = _profile(controls, owner, "normal")
        axis.plot(normal.block, normal.r2, color="black", ls=":", label="normal rows")
        turned = _profile(controls, owner, "turned")
        axis.plot(turned.block, turned.r2, color=style.GREY, ls="--", marker="x", label="own rows, turned")
        exact = closed[closed.model == owner]
        axis.plot(exact.block, exact.closed, "o", mfc="none", color="black", label="closed form")
        _block_axis(axis, normal.block)
        axis.set(ylabel=_R2)
    by_label = {}
    for axis in panels[: len(models)]:
        handles, labels = axis.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            by_label.setdefault(label, handle)  # as it looks where it comes first
    figure.legend(by_label.values(), by_label.keys(), loc="outside upper center", ncols=3)
    if not len(effects):
        return figure
    shares = panels[len(models)]
    _draw_shares(shares, effects, color="black")
    shares.set(xlabel="share of the variance between combinations", xlim=(-0.02, 1))
    shares.yaxis.tick_right()
    for unused in panels[len(models) + 1 :]:
        unused.set_axis_off()
    return figure


def twins(profiles: pd.DataFrame, effects: pd.DataFrame, main: str) -> Figure:
    """Profiles of models that differ in one thing only, and what moves them.

    Args:
        profiles: a row a `family`, `text`, `seed`, text `measured_on` and `block`, with `r2`.
        effects: a row a `view` and `effect`, with `share` (beside what a seed does), `low` and `high`; a view is a
            text, a comma, and `as measured` or `shape only`.
        main: the text whose profiles are drawn.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.PAGE, 2.8), width_ratios=[1.2, 1])
    style.panels([left, right], [f"twins, measured on {main}", "what moves the profile"])
    drawn = profiles[profiles.measured_on == main]
    first_seed = drawn.seed.min()
    for (family, text, seed), curve in drawn.groupby(["family", "text", "seed"], sort=False):
        label = f"{family}, trained on {text}" if seed == first_seed else None
        look = style.look(family) | {"linestyle": "-" if text == main else ":", "label": label}
        left.plot(curve.block, curve.r2, **look)
    _block_axis(left, drawn.block)
    left.set(ylabel=_R2)
    left.legend(fontsize=6, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    views = list(effects.view.unique())
    shifts = np.linspace(0.24, -0.24, len(views))
    for view, shift in zip(views, shifts, strict=True):
        color = "black" if view.startswith(main) else style.ACCENT
        face = "white" if "shape" in view else None
        _draw_shares(right, effects[effects.view == view], shift, color=color, mfc=face, label=view)
    right.axvline(0.5, color=style.GREY, lw=0.6)  # as much as a seed
    right.set(xlabel="variance, as a share of its own and the seeds'", xlim=(-0.02, 1))
    right.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))
    return figure


def _profile(controls: pd.DataFrame, model: str, control: str) -> pd.DataFrame:
    return controls[(controls.model == model) & (controls.control == control)].sort_values("block")


def _block_axis(axis: Axes, blocks: pd.Series) -> None:
    axis.set(xlabel="block", xticks=range(0, int(blocks.max()) + 1, 2 if blocks.max() <= _DEEP else 5))


def _draw_shares(axis: Axes, effects: pd.DataFrame, shift: float = 0.0, **look: object) -> None:
    """Shares with their intervals, the first effect on top; `shift` moves them up."""
    places = np.arange(len(effects))[::-1]
    bars = style.error_bars(effects.share, effects.low, effects.high).clip(min=0)
    axis.errorbar(effects.share, places + shift, xerr=bars, fmt="o", capsize=1.5, lw=0.8, **look)
    axis.set_yticks(places, list(effects.effect))
