"""The figures of notebook 02: R²_lin over depth, what a swap costs, and which solver to trust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from howlinear.errors import InputError
from howlinear.plots import style
from howlinear.plots.by_hand import draw_cloud

_ONE = 0.01  # R², about the width of a line: two curves that are nowhere further apart are drawn as one
_FEW_BLOCKS = 6  # up to this many, each gets a tick
_NAMELESS = {"color": "0.2", "marker": "o"}
_APART = 0.06  # share of a panel's height: labels of ticks closer than this would touch


class _ShownOnce(Figure):
    """A figure that Jupyter shows once, also as a cell's last line: what is open after that line is shown as well."""

    def _ipython_display_(self) -> None:
        plt.close(self)
        raise NotImplementedError  # Jupyter goes on to show it as any other figure


def profile(frame: Any, ax: Axes | None = None, published: pd.DataFrame | None = None) -> Figure | Axes:
    """Plot R²_lin over depth with its interval, a line per model; and swap costs below it, if the table has them.

    Args:
        frame: a table as `Profile.to_frame` makes it, a `Profile`, or a list of profiles, one line each.
        ax: axes to draw R²_lin alone on; a new figure by default.
        published: the paper's numbers, drawn behind.

    Returns:
        The figure; the axes if they are given, since Jupyter shows their figure already.

    Raises:
        InputError: `frame` is neither a table with `block` and `r2` nor profiles.
    """
    frame = _table_of(frame)
    if ax is None and "dppl" in frame.columns:
        return profile_and_swaps(frame if "model" in frame.columns else frame.assign(model=""), published)
    given = ax
    if ax is None:
        _, ax = plt.subplots(figsize=(style.COLUMN, 2.3), FigureClass=_ShownOnce)
    style.draw_published(ax, published, "block", "r2_lin")
    by_model = _by_model(frame)
    looks = style.looks(model for model, _ in by_model)
    for model, blocks in by_model:
        look = looks[model] if model else _NAMELESS
        bars = None
        if {"r2_low", "r2_high"} <= set(frame.columns) and blocks["r2_low"].notna().any():
            bars = style.error_bars(blocks, "r2")
        ax.errorbar(blocks["block"], blocks["r2"], bars, capsize=1.5, elinewidth=0.7, **look)
        if {"r2_ordinary", "massive_rows"} <= set(frame.columns):
            _draw_ordinary(ax, blocks, look)
        if "r2_untrained" in frame.columns:
            _draw_untrained(ax, blocks, look["color"])
    if "r2_untrained" in frame.columns:
        _explain_untrained(ax, frame)
    # just below 0 or the trained blocks; untrained ones may be cut off
    shown = [column for column in ("r2", "r2_low", "r2_ordinary") if column in frame.columns]
    floor = min(-0.02, frame[shown].astype(float).min(axis=None) - 0.02)
    ax.set(xlabel="block", ylabel=f"$R^2_{{\\mathrm{{lin}}}}${_of_site(frame)}, held out", ylim=(floor, 1.02))
    ax.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = _entries(ax)
    if labels:
        ax.legend(handles, labels)
    return given or ax.figure


def profile_and_swaps(frame: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """The paper's figure 2: R²_lin over depth, and below it what swapping each block for its map costs."""
    size = (style.COLUMN, 4.35)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=size, sharex=True, FigureClass=_ShownOnce)
    profile(frame, top, published)
    style.draw_published(bottom, published, "block", "dppl_linear")
    handles, labels = _entries(top)
    if labels:
        top.get_legend().remove()  # one legend above serves both panels
    top.set_xlabel("")
    swapped = frame.dropna(subset="dppl")
    looks = style.looks(frame["model"])  # as in the upper panel, which may have encoders too
    for model, shift in style.side_by_side(swapped["model"], 0.14).items():
        cost = swapped[swapped["model"] == model]
        look = looks[model] if model else _NAMELESS
        style.draw_intervals(bottom, cost["block"] + shift, cost, "dppl", capsize=1.5, **look)
    bottom.axhline(0, color=style.GREY, linewidth=0.6)
    bottom.set(ylabel="$\\Delta$ perplexity", yscale="symlog")
    if not swapped.empty:
        bottom.set_ylim(bottom=min(-0.5, 1.2 * swapped["dppl_low"].min()))
    _label_costs(bottom)
    style.mark_blocks(bottom, frame["block"], _FEW_BLOCKS)
    if labels:
        narrow = {"handlelength": 2.4, "handletextpad": 0.6, "columnspacing": 0.8}
        figure.legend(handles, labels, loc="outside upper center", ncols=2, **narrow)
    return figure


def beside(frame: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """Plot R²_lin over depth, a panel per model, next to that of the paper's models; open points omit massive rows."""
    panels = [*_by_model(paper.rename(columns={"r2_lin": "r2"})), *_by_model(frame)]
    lowest = min(1.1 * blocks["r2"].min() for _, blocks in panels)
    marks = np.arange(0, 1.25, 0.25) if lowest >= 0 else np.arange(-1, 1.25, 0.5)
    shared = {"sharey": True, "width_ratios": [len(blocks) + 4 for _, blocks in panels]}
    figure, axes = plt.subplots(1, len(panels), figsize=(style.PAGE, 2.1), squeeze=False, **shared)
    for ax, (model, blocks) in zip(axes[0], panels, strict=True):
        ours = "r2_ordinary" in blocks.columns
        look = style.look(model) if ours else {"color": style.GREY, "marker": "o"}
        ax.plot(blocks["block"], blocks["r2"], **look)
        if ours:
            _draw_ordinary(ax, blocks, look)
        # the highest and the lowest block are labelled
        for place, up, va in ((blocks["r2"].idxmax(), 4, "bottom"), (blocks["r2"].idxmin(), -4, "top")):
            where = {"xytext": (0, up), "textcoords": "offset points", "ha": "center", "va": va, "fontsize": 7}
            block, r2 = blocks.loc[place, ["block", "r2"]]
            ax.annotate(f"{r2:.2f}", (block, r2), **where)
        floor = min(0, max(lowest, -1))
        ax.set(xlabel="block", yticks=marks, ylim=(floor, 1.12), xlim=(-0.9, len(blocks) - 0.1))
        ax.set_title(model if ours else f"{model}, the paper", loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes[0, 0].set_ylabel("$R^2_{\\mathrm{lin}}$, held out")
    return figure


def clouds(blocks: Mapping[str, pd.DataFrame], model: str) -> Figure:
    """Plot rows of blocks, a panel each: output against the fitted map's prediction, and the line of equal values."""
    figure, panels = style.panel_grid(list(blocks), 2.1, "what the block puts out", most=None)
    figure.suptitle(model, fontsize=8)
    for place, axis in panels.items():
        draw_cloud(axis, blocks[place], style.look(model)["color"], line="output = prediction")
        axis.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))  # massive rows make long numbers
        axis.set_xlabel("what the fitted map says")
    style.legend(axis, loc="outside lower center")
    return figure


def solvers(errors: pd.Series, rule: pd.DataFrame, null: float) -> Figure:
    """Which solver to trust, and what the rule for null directions does."""
    figure, (left, right) = style.row_of_panels(["solvers", "null directions"], 2.2)
    left.plot(errors.to_numpy(), errors.index, "o", color="0.2")
    left.invert_yaxis()
    left.set(xscale="log", xlabel="error in held-out $R^2$")
    drawn = rule[rule["threshold"] > 0]
    right.plot(drawn["threshold"], drawn["r2"], "o-", color="0.2", label="rows as they are")
    rounded = drawn["r2_rounded"].clip(lower=-0.5)
    hollow = {"color": style.ACCENT, "markerfacecolor": "white", "label": "rounded to bfloat16"}
    right.plot(drawn["threshold"], rounded, "o--", **hollow)
    right.axvline(null, color=style.GREY, linestyle=":", label="our rule")
    right.set(xscale="log", xticks=[1e-16, 1e-12, 1e-8, 1e-4], ylim=(-0.6, 1.05))
    right.set(xlabel="threshold, relative to the largest eigenvalue", ylabel="held-out $R^2$")
    right.legend(loc="lower right")
    return figure


def _table_of(given: Any) -> pd.DataFrame:
    """Make one table of a table, a profile or several; `model` becomes a label that differs between profiles."""
    if isinstance(given, pd.DataFrame):
        missing = [name for name in ("block", "r2") if name not in given.columns]
        if missing:
            raise InputError(f"a table without {', '.join(missing)}: give one as profile.to_frame() makes it")
        keys = [name for name in ("model", "corpus", "site") if name in given.columns]
        if keys[:1] != ["model"] or not given.duplicated(["model", "block"]).any():
            return given
        # a model on several texts, or several of its parts
        frames = [frame.copy() for _, frame in given.groupby(keys, sort=False, dropna=False)]
    else:
        profiles = list(given) if isinstance(given, list | tuple) else [given]
        if not profiles or not all(hasattr(each, "to_frame") for each in profiles):
            held = ", ".join({type(each).__name__: None for each in profiles}) or "nothing"
            raise InputError(f"profile takes a profile, a list of them or a table, and was given {held}")
        keys, frames = ["model", "corpus", "site"], [each.to_frame() for each in profiles]
    # a label has text and site if profiles differ in these, and a number if labels still coincide
    differing = [name for name in keys[1:] if len({frame[name].iloc[0] for frame in frames}) > 1]
    times: Counter[str] = Counter()
    for frame in frames:
        first = frame.iloc[0]
        label = ", ".join([Path(first["model"]).name, *first[differing]])
        times[label] += 1
        frame["model"] = label if times[label] == 1 else f"{label} ({times[label]})"
    return pd.concat(frames, ignore_index=True)


def _of_site(frame: pd.DataFrame) -> str:
    """Name the site on an axis; nothing for feed-forward blocks, or if lines are of several sites."""
    sites = list(frame["site"].unique()) if "site" in frame.columns else []
    if sites == ["attention"]:
        return " of attention"
    return " of whole layers" if sites == ["layer"] else ""


def _draw_ordinary(ax: Axes, blocks: pd.DataFrame, look: dict[str, Any]) -> None:
    """Draw blocks that a few massive rows move, without these rows: open points, each tied to its filled one."""
    moved = blocks[(blocks["massive_rows"] > 0) & ((blocks["r2"] - blocks["r2_ordinary"]).abs() >= 0.02)]
    ax.vlines(moved["block"], moved["r2_ordinary"], moved["r2"], color=look["color"], linewidth=0.7, linestyle=":")
    open_points = {"color": look["color"], "marker": look["marker"], "markerfacecolor": "white", "linestyle": "none"}
    ax.plot(moved["block"], moved["r2_ordinary"], **open_points)


def _draw_untrained(ax: Axes, blocks: pd.DataFrame, color: str) -> None:
    """Draw an untrained model, dotted: held out, in sample and shaded between; held out alone if they coincide."""
    low, high = blocks["r2_untrained"], blocks["r2_untrained_in_sample"]
    dotted = {"color": color, "linestyle": ":", "linewidth": 1}
    ax.plot(blocks["block"], low, **dotted)
    if _width(blocks) >= _ONE:
        ax.fill_between(blocks["block"], low, high, color=color, alpha=0.15, linewidth=0)
        ax.plot(blocks["block"], high, **dotted)


def _explain_untrained(ax: Axes, frame: pd.DataFrame) -> None:
    """Add grey legend entries for what `_draw_untrained` drew."""
    widths = [_width(blocks) for _, blocks in _by_model(frame)]
    if any(width >= _ONE for width in widths):
        label = "untrained, in sample above"
        ax.fill([], [], facecolor=to_rgba(style.GREY, 0.15), edgecolor=style.GREY, linestyle=":", label=label)
    if any(width < _ONE for width in widths):
        ax.plot([], [], color=style.GREY, linestyle=":", label=f"untrained, both within {_ONE}")


def _width(blocks: pd.DataFrame) -> float:
    """Return the largest gap between an untrained model's in-sample and held-out R²; NaN if there are none."""
    return float((blocks["r2_untrained_in_sample"] - blocks["r2_untrained"]).abs().max())


def _entries(ax: Axes) -> tuple[list[Any], list[str]]:
    """Return the legend entries of `profile`, models first."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: labels[place].startswith("untrained"))
    return [handles[place] for place in order], [labels[place] for place in order]


def _label_costs(ax: Axes) -> None:
    """Set ticks of costs at 0, powers of ten and three times these, in plain numbers, without labels that touch."""
    powers = 10.0 ** np.arange(10)
    low, high = ax.get_ylim()
    wanted = [tick for tick in (0.0, *powers, *-powers, *3 * powers, *-3 * powers, 0.3) if low <= tick <= high]
    bottom, top, *heights = ax.yaxis.get_transform().transform(np.array([low, high, *wanted]))
    shown: dict[float, float] = {}
    for tick, height in zip(wanted, heights, strict=True):
        if all(abs(height - other) > _APART * (top - bottom) for other in shown.values()):
            shown[tick] = height
    ax.set_yticks(list(shown), [f"{tick:,.12g}".replace("-", "\u2212") for tick in shown])


def _by_model(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split a table by model, in its order; without a column `model`, all rows go under an empty name."""
    if "model" not in frame.columns:
        return [("", frame)]
    return list(frame.groupby("model", sort=False))
