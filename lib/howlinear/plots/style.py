"""Style of all figures, with one colour per model family.

Colours are Okabe & Ito's colour-blind-safe set; a marker and a line style always repeat what the colour says. Files are
byte-identical on a re-run.
"""

from __future__ import annotations

import re
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
ACCENT = "#E69F00"  # for anything that is not a model
DEEP = 16  # blocks; in deeper models, labels at every other block and points of one block would overlap

_LOOKS = {  # family → look; the first family whose name is in the model's name
    "mpnet": {"color": "#7A0177", "marker": "o", "linestyle": "-"},
    "smollm2": {"color": "#CC79A7", "marker": "D", "linestyle": "-"},
    "minilm": {"color": "#56B4E9", "marker": "v", "linestyle": "--"},
    "gpt2": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "pythia": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "llama": {"color": "#009E73", "marker": "^", "linestyle": "-."},
}
_OTHER = {"color": "#8C6D31", "marker": "P", "linestyle": ":"}
_SPARE = (  # for a second model of a family or of no family: from Tol's muted set
    {"color": "#332288", "marker": "X", "linestyle": (0, (5, 1))},
    {"color": "#AA4499", "marker": "*", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#999933", "marker": "h", "linestyle": (0, (1, 1))},
    {"color": "#882255", "marker": "<", "linestyle": (0, (4, 2, 1, 2))},
    {"color": "#44AA99", "marker": "p", "linestyle": (0, (2, 1))},
)
_of_run: dict[str, dict] = {}  # model → look, as set by `use`

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
    """Set the style, and the looks of a run's models, for all later figures."""
    _of_run.clear()
    _of_run.update(looks(models))
    sns.set_theme(context="paper", style="whitegrid", rc=_RC)
    mpl.rcParams.update(_RC)


def look(model: str) -> dict[str, Any]:
    """Return a model's colour, marker and line style, as set by `use` or by its family, for `plot` or `errorbar`."""
    return _of_run.get(model, _of_family(model)) | {"label": as_label(model)}


def looks(models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return model → `look`: the first model of a family gets the family's, others one that is still free.

    Up to twelve models differ in colour, and in marker too, except that mpnet and gpt2 share one.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for model in dict.fromkeys(models):
        own = _of_run.get(model, _of_family(model))
        taken = [each["color"] for each in chosen.values()]
        free = [each for each in (own, *_SPARE, _OTHER, *_LOOKS.values()) if each["color"] not in taken]
        chosen[model] = (free[0] if free else own) | {"label": as_label(model)}
    return chosen


def as_label(name: str) -> str:
    """Write a name so that matplotlib shows it: a `$` begins a formula, and a first `_` hides an entry of a legend."""
    return re.sub("^_", r"$\\_$", name.replace("$", r"\$"))


def _of_family(model: str) -> dict[str, Any]:
    return next((look for family, look in _LOOKS.items() if family in model.lower()), _OTHER)


def published(marker: str, label: str = "_") -> dict[str, str | float]:
    """Return the look of the paper's own points behind ours, thin and grey, for `plot`."""
    return {"color": GREY, "linewidth": 0.6, "markersize": 2, "marker": marker, "zorder": 1, "label": label}


def draw_published(axis: Axes, table: pd.DataFrame | None, across: str, up: str, **more: Any) -> None:
    """Draw two columns of the paper's numbers, a line per model with its family's marker."""
    if table is None:
        return
    for model, blocks in table.groupby("model", sort=False):
        thin = published(look(model)["marker"], f"{model}, the paper")
        axis.plot(blocks[across], blocks[up], **thin | more)


def panels(axes: Iterable[Axes], titles: Iterable[str]) -> None:
    """Title the panels of a figure `(a) …`, `(b) …` in order, left-aligned; a single panel has no letter."""
    axes = list(axes)
    for letter, axis, title in zip_longest(ascii_lowercase, axes, list(titles), fillvalue=""):
        if not axis:
            return
        marked = f"({letter}) {title}".rstrip()
        axis.set_title(marked if len(axes) > 1 else title, loc="left")


def abreast(panels: int, most: int = 3) -> int:
    """Return how many panels per row make rows as even as possible: four are two by two, not three and one."""
    rows = max(1, -(-panels // most))
    return max(1, -(-panels // rows))


def panel_grid(
    names: Sequence[str], height: float, ylabel: str = "", most: int | None = 3, width: float = PAGE, **shared: Any
) -> tuple[Figure, dict[str, Axes]]:
    """Make a figure with a panel for each name, titled by it, in rows as even as possible; and name → panel.

    `height` is that of a row and `width` that of the figure, in inches; `ylabel` is at the left of each row, which has
    at most `most` panels, or all of them if that is None; `shared` is passed to `subplots`.
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
    """Make a figure as wide as a page, `height` inches high, with a panel per title; `shared` is for `subplots`."""
    figure, axes = plt.subplots(1, len(titles), figsize=(PAGE, height), squeeze=False, **shared)
    panels(axes[0], titles)
    return figure, axes[0]


def legend(*panels: Axes, ncols: int | None = None, loc: str = "outside upper center", **more: Any) -> Legend:
    """Add one legend to a figure, outside its panels, for what the given panels show; each label appears once.

    Entries are in the order of the panels, by default all in one row; `more` is for `Figure.legend`.
    """
    entries: dict[str, Artist] = {}
    for axis in panels:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return panels[0].figure.legend(entries.values(), entries, loc=loc, ncols=ncols or len(entries), **more)


def label_filled_and_open(axis: Axes, filled: str, opened: str) -> None:
    """Add two grey legend entries: what filled points are, and what open ones are."""
    for face, label in ((GREY, filled), ("white", opened)):
        axis.plot([], [], "o", color=GREY, markerfacecolor=face, label=label)


def error_bars(table: pd.DataFrame, column: str) -> np.ndarray:
    """Return how far a column's intervals reach below and above it, shape (2, n), for matplotlib's `errorbar`."""
    value, low, high = (table[f"{column}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    return np.stack([value - low, high - value])


def draw_intervals(axis: Axes, places: ArrayLike, table: pd.DataFrame, column: str, **look: Any) -> None:
    """Draw a table's column with its intervals, from `<column>_low` to `<column>_high`, at the x positions `places`."""
    axis.errorbar(places, table[column], error_bars(table, column), **{"elinewidth": 0.7} | look)


def side_by_side(names: Iterable[str], step: float) -> dict[str, float]:
    """Return name → shift of its points, so that points of several names at one place stand side by side."""
    names = list(dict.fromkeys(names))
    middle = (len(names) - 1) / 2
    return {name: step * (number - middle) for number, name in enumerate(names)}


def number_blocks(axis: Axes) -> None:
    """Label the x axis with whole block numbers, as many as fit."""
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axis.set_xlabel("block")


def mark_blocks(axis: Axes, blocks: pd.Series, few: int = 2) -> None:
    """Set a tick at every other block, in deep models at every fifth, and with few blocks at each."""
    numbers = np.unique(blocks)
    deep = len(numbers) > 0 and numbers[-1] > DEEP
    every = 2 if len(numbers) > few else 1
    axis.set_xticks(np.arange(0, numbers[-1] + 1, 5) if deep else numbers[::every])
    axis.set_xlabel("block")


def sentence_figure(text: str) -> Figure:
    """Make a figure that says in one sentence why there is nothing to draw."""
    figure = plt.figure(figsize=(PAGE, 0.6))
    figure.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
    return figure
