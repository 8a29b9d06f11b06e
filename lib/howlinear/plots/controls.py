"""Figures of notebook 08: whether a profile is learned, whose it is, and what moves it. Tables in, figures out."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from howlinear.plots import style

_LOWEST = -0.5  # lower end of R² in a panel, unless all values lie above
_SHALLOW = 4  # up to this many blocks, each has a label
_R2 = "$R^2_{\\mathrm{lin}}$, held out"
_DISORDER = {"permuted": ("x", "-"), "redrawn": ("+", "--"), "fresh": ("", ":")}  # marker, line


def trained_and_random(controls: pd.DataFrame, random: pd.DataFrame) -> Figure:
    """Plot trained profiles with those of random models and of scrambled weights, a panel per model."""
    models = list(controls.model.unique())
    figure, panels = style.panel_grid(models, 2.1, _R2, most=None, sharey=True)
    for model, axis in panels.items():
        # where random initialisations lie: from the lowest held-out to the highest in-sample R²
        by_block = random[random.model == model].groupby("block")
        lowest, highest = by_block.r2.min(), by_block.r2_in_sample.max()
        axis.fill_between(lowest.index, lowest, highest, color=style.ACCENT, lw=2, label="random models")
        for control, (marker, line) in _DISORDER.items():
            curve = _profile(controls, model, control)
            axis.plot(curve.block, curve.r2, marker=marker, ls=line, color=style.GREY, lw=0.8, label=control)
        own = _profile(controls, model, "own")
        look = style.look(model) | {"label": "trained", "lw": 1.8, "capsize": 1.5}
        style.draw_intervals(axis, own.block, own, "r2", **look)
        style.mark_blocks(axis, own.block, _SHALLOW)
    first = panels[models[0]]
    if first.get_ylim()[0] < _LOWEST:  # for want of rows, not due to blocks: cut the band off in all panels
        first.set_ylim(_LOWEST, 1.05)
    style.legend(first)
    return figure


def transplants(pairs: pd.DataFrame, controls: pd.DataFrame, closed: pd.DataFrame, effects: pd.DataFrame) -> Figure:
    """Plot blocks fed with other models' rows, a panel per owner of weights; last, what tells combinations apart."""
    if pairs.empty:
        own = controls[controls["control"] == "own"]
        pairs = own[["block", "r2"]].assign(inputs=own["model"], weights=own["model"])
    models = list(pairs.weights.unique())
    titles = [f"weights of {model}" for model in models]
    rows, columns, height = 1, len(models), 2.7
    if len(effects):
        titles.append("sources")
        rows, columns, height = 2, len(models) // 2 + 1, 4.4
    figure, axes = plt.subplots(rows, columns, figsize=(style.PAGE, height), squeeze=False)
    panels = axes.ravel()
    style.panels(panels[: len(titles)], titles)
    of_models = panels[: len(models)]
    for axis in of_models[1:]:
        axis.sharey(of_models[0])
    for axis, owner in zip(of_models, models, strict=True):
        of_owner = pairs[pairs.weights == owner]
        for giver in of_owner.inputs.unique():
            curve = of_owner[of_owner.inputs == giver].sort_values("block")
            weight = 2 if giver == owner else 0.9  # the owner's own rows are the heavy line
            look = style.look(giver) | {"label": f"rows of {giver}", "lw": weight}
            axis.plot(curve.block, curve.r2, **look)
        normal = _profile(controls, owner, "normal")
        axis.plot(normal.block, normal.r2, color="black", ls=":", label="normal rows")
        turned = _profile(controls, owner, "turned")
        axis.plot(turned.block, turned.r2, color=style.GREY, ls="--", marker="x", label="own rows, turned")
        exact = closed[closed.model == owner]
        axis.plot(exact.block, exact.closed, "o", mfc="none", color="black", label="closed form")
        style.mark_blocks(axis, normal.block, _SHALLOW)
        axis.set(ylabel=_R2)
    style.legend(*of_models, ncols=3)
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
    """Profiles of models that differ in one thing only, and what moves them, on each text and by the shape alone."""
    titles = [f"twins, measured on {main}", "what moves the profile"]
    figure, (left, right) = style.row_of_panels(titles, 2.8, width_ratios=[1.2, 1])
    # a line per twin: colour for the family, full or dotted for the text; seeds look alike
    profiles = profiles[profiles.measured_on == main]
    for (family, text, seed), curve in profiles.groupby(["family", "text", "seed"], sort=False):
        label = f"{family}, trained on {text}" if seed == profiles.seed.min() else None
        look = style.look(family) | {"linestyle": "-" if text == main else ":", "label": label}
        left.plot(curve.block, curve.r2, **look)
    style.mark_blocks(left, profiles.block, _SHALLOW)
    left.set(ylabel=_R2)
    left.legend(fontsize=6, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))

    # black for the main text, open for the shape alone
    views = effects.groupby(["measured_on", "view"], sort=False)
    shifts = np.linspace(0.24, -0.24, len(views))
    for ((text, view), of_view), shift in zip(views, shifts, strict=True):
        color = "black" if text == main else style.ACCENT
        face = "white" if view == "shape only" else None
        _draw_shares(right, of_view, shift, color=color, mfc=face, label=f"{text}, {view}")
    right.axvline(0.5, color=style.GREY, lw=0.6)  # as much as a seed
    right.set(xlabel="variance, as a share of its own and the seeds'", xlim=(-0.02, 1))
    right.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))
    return figure


def _profile(controls: pd.DataFrame, model: str, control: str) -> pd.DataFrame:
    """One control's profile of one model, block by block."""
    wanted = (controls.model == model) & (controls.control == control)
    return controls[wanted].sort_values("block")


def _draw_shares(axis: Axes, effects: pd.DataFrame, shift: float = 0.0, **look: object) -> None:
    """Shares with their intervals, the first effect on top; `shift` moves them up."""
    places = np.arange(len(effects))[::-1]
    bars = style.error_bars(effects, "share").clip(min=0)
    axis.errorbar(effects.share, places + shift, xerr=bars, fmt="o", capsize=1.5, lw=0.8, **look)
    axis.set_yticks(places, list(effects.effect))
