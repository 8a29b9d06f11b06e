"""How figures look: one style, one colour per model family through the whole project.

Colours are Okabe & Ito's colour-blind-safe set; a marker and a line style always double the colour. Files are
byte-identical on a re-run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from string import ascii_lowercase
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

COLUMN = 3.3  # inches: one column of a paper
PAGE = 6.9  # both columns
GREY = "#6b6b6b"
ACCENT = "#E69F00"  # for what is no model
DEEP = 16  # blocks; beyond it labels at every other one, and points of one block, run into each other

_LOOKS = {  # family → look; the first whose name is part of the model's
    "mpnet": {"color": "#7A0177", "marker": "o", "linestyle": "-"},
    "smollm2": {"color": "#CC79A7", "marker": "D", "linestyle": "-"},
    "minilm": {"color": "#56B4E9", "marker": "v", "linestyle": "--"},
    "gpt2": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "pythia": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "llama": {"color": "#009E73", "marker": "^", "linestyle": "-."},
}
_OTHER = {"color": "#8C6D31", "marker": "P", "linestyle": ":"}
_SPARE = (  # for a second model of a family, or a second of none: from Tol's muted set
    {"color": "#332288", "marker": "X", "linestyle": (0, (5, 1))},
    {"color": "#AA4499", "marker": "*", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#999933", "marker": "h", "linestyle": (0, (1, 1))},
    {"color": "#882255", "marker": "<", "linestyle": (0, (4, 2, 1, 2))},
    {"color": "#44AA99", "marker": "p", "linestyle": (0, (2, 1))},
)
_of_run: dict[str, dict] = {}  # model → look, of the models that `use` was told of

_RC = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "figure.labelsize": 8,
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 220,
    "svg.hashsalt": "howlinear",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
}


def use(models: Iterable[str] = ()) -> None:
    """Set the style for all figures that follow."""
    _of_run.clear()
    _of_run.update(looks(models))
    sns.set_theme(context="paper", style="whitegrid", rc=_RC)
    mpl.rcParams.update(_RC)


def look(model: str) -> dict[str, Any]:
    """Colour, marker and line style of a model, by its family or as `use` was told; pass to `plot` or `errorbar`."""
    return _of_run.get(model, _of_family(model)) | {"label": model}


def looks(models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Model → its `look` beside the others: the first of a family has the family's, others one that nobody has.

    Up to eleven models are told apart by colour and by marker.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for model in dict.fromkeys(models):
        own = _of_run.get(model, _of_family(model))
        taken = [each["color"] for each in chosen.values()]
        free = [each for each in (own, *_SPARE, _OTHER, *_LOOKS.values()) if each["color"] not in taken]
        chosen[model] = (free[0] if free else own) | {"label": model}
    return chosen


def _of_family(model: str) -> dict[str, Any]:
    return next((look for family, look in _LOOKS.items() if family in model.lower()), _OTHER)


def published(marker: str, label: str = "_") -> dict[str, str | float]:
    """How the paper's own points look behind ours: thin and grey; pass to `plot`."""
    return {"color": GREY, "linewidth": 0.6, "markersize": 2, "marker": marker, "zorder": 1, "label": label}


def draw_published(axis: Axes, table: pd.DataFrame | None, across: str, up: str, **more: Any) -> None:
    """Draw two columns of the paper's numbers, a line a model, its marker that of the model's own family."""
    if table is None:
        return
    for model, blocks in table.groupby("model", sort=False):
        thin = published(look(model)["marker"], f"{model}, the paper")
        axis.plot(blocks[across], blocks[up], **thin | more)


def panels(axes: Iterable[Axes], titles: Iterable[str]) -> None:
    """Title the panels of a figure `(a) …`, `(b) …` in order, each at its left; a single one has no letter."""
    axes = list(axes)
    for letter, axis, title in zip_longest(ascii_lowercase, axes, list(titles), fillvalue=""):
        if not axis:
            return
        marked = f"({letter}) {title}".rstrip()
        axis.set_title(marked if len(axes) > 1 else title, loc="left")


def abreast(panels: int, most: int = 3) -> int:
    """How many panels stand in a row so that rows are as even as can be: four are two by two, not three and one."""
    rows = max(1, -(-panels // most))
    return max(1, -(-panels // rows))


def panel_grid(
    names: Sequence[str], height: float, ylabel: str = "", most: int | None = 3, width: float = PAGE, **shared: Any
) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a panel for each name, titled by it, in rows as even as can be; and name → panel.

    `height` is that of a row and `width` that of the figure, in inches; `ylabel` stands at the left of each row, which
    has `most` panels at most, or all of them if that is None; `shared` is whatever else `subplots` takes.
    """
    columns = abreast(len(names), most or len(names))
    rows = max(1, -(-len(names) // columns))
    size = (width, height * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **shared)
    for unused in axes.flat[len(names) :]:
        unused.set_axis_off()
    for leftmost in axes[:, 0]:
        leftmost.set_ylabel(ylabel)
    panels(axes.flat[: len(names)], names)
    return figure, dict(zip(names, axes.flat, strict=False))


def row_of_panels(titles: Sequence[str], height: float, **shared: Any) -> tuple[Figure, np.ndarray]:
    """A figure as wide as a page, so many inches high, with a panel for each title; `shared` is for `subplots`."""
    figure, axes = plt.subplots(1, len(titles), figsize=(PAGE, height), squeeze=False, **shared)
    panels(axes[0], titles)
    return figure, axes[0]


def legend(*panels: Axes, ncols: int | None = None, loc: str = "outside upper center", **more: Any) -> Legend:
    """One legend for a figure, outside its panels, of what some of them show; a label that several have stands once.

    Entries stand in the order of the panels, by default all in one row; `more` is for `Figure.legend`.
    """
    entries: dict[str, Artist] = {}
    for axis in panels:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return panels[0].figure.legend(entries.values(), entries, loc=loc, ncols=ncols or len(entries), **more)


def label_filled_and_open(axis: Axes, filled: str, opened: str) -> None:
    """Two entries of a legend, in no model's colour: what filled points are, and what open ones are."""
    for face, label in ((GREY, filled), ("white", opened)):
        axis.plot([], [], "o", color=GREY, markerfacecolor=face, label=label)


def error_bars(table: pd.DataFrame, column: str) -> np.ndarray:
    """How far a column's intervals reach below and above it, shape (2, n), as matplotlib's `errorbar` takes them."""
    value, low, high = (table[f"{column}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    return np.stack([value - low, high - value])


def draw_intervals(axis: Axes, places: ArrayLike, table: pd.DataFrame, column: str, **look: Any) -> None:
    """Draw a column of a table with its intervals, from `<column>_low` to `<column>_high`, at these places across."""
    axis.errorbar(places, table[column], error_bars(table, column), **{"elinewidth": 0.7} | look)


def side_by_side(names: Iterable[str], step: float) -> dict[str, float]:
    """Name → how far its points are moved, so that those of several at one place stand beside one another."""
    names = list(dict.fromkeys(names))
    middle = (len(names) - 1) / 2
    return {name: step * (number - middle) for number, name in enumerate(names)}


def number_blocks(axis: Axes) -> None:
    """Whole block numbers below a panel, as many as have room."""
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axis.set_xlabel("block")


def mark_blocks(axis: Axes, blocks: pd.Series, few: int = 2) -> None:
    """A tick at every other block, in deep models at every fifth, of few blocks at each."""
    numbers = np.unique(blocks)
    deep = len(numbers) > 0 and numbers[-1] > DEEP
    axis.set_xticks(np.arange(0, numbers[-1] + 1, 5) if deep else numbers[:: 1 + (len(numbers) > few)])
    axis.set_xlabel("block")


def sentence_figure(text: str) -> Figure:
    """A figure that says in one sentence why there is nothing to draw."""
    figure = plt.figure(figsize=(PAGE, 0.6))
    figure.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
    return figure
