"""How figures look: one style, one colour per model family through the whole project.

Colours are Okabe & Ito's colour-blind-safe set; a marker and a line style always double the colour. Files are
byte-identical on a re-run.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from string import ascii_lowercase

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

COLUMN = 3.3  # inches: one column of a paper
PAGE = 6.9  # both columns
GREY = "#6b6b6b"
ACCENT = "#E69F00"  # for what is no model

_LOOKS = {  # family → look; the first whose name is part of the model's
    "smollm2": {"color": "#CC79A7", "marker": "D", "linestyle": "-"},
    "minilm": {"color": "#56B4E9", "marker": "v", "linestyle": "--"},
    "gpt2": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "pythia": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "llama": {"color": "#009E73", "marker": "^", "linestyle": "-."},
}
_OTHER = {"color": "#8C6D31", "marker": "P", "linestyle": ":"}

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
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 220,
    "svg.hashsalt": "howlinear",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
}


def use() -> None:
    """Set the style for all figures that follow."""
    sns.set_theme(context="paper", style="whitegrid", rc=_RC)
    mpl.rcParams.update(_RC)


def look(model: str) -> dict[str, str]:
    """Colour, marker and line style of a model, by its family; pass to `plot` or `errorbar`."""
    return next((look for family, look in _LOOKS.items() if family in model.lower()), _OTHER) | {"label": model}


def published(marker: str, label: str = "_") -> dict[str, str | float]:
    """How the paper's own points look behind ours: thin and grey; pass to `plot`.

    Args:
        marker: of the model or corpus that they are about, as of ours.
        label: for a legend; none by default.
    """
    return {"color": GREY, "linewidth": 0.6, "markersize": 2, "marker": marker, "zorder": 1, "label": label}


def panels(axes: Iterable[Axes], titles: Iterable[str] = ()) -> None:
    """Title the panels of a figure `(a) …`, `(b) …` in order, each at its left; without titles, by letters alone."""
    for letter, axis, title in zip_longest(ascii_lowercase, list(axes), list(titles)):
        if axis is None:
            return
        axis.set_title(f"({letter}) {title}" if title else f"({letter})", loc="left")


def error_bars(value: ArrayLike, low: ArrayLike, high: ArrayLike) -> np.ndarray:
    """How far intervals reach below and above their values, shape (2, n), as matplotlib's `errorbar` takes them."""
    value = np.asarray(value, dtype=float)
    return np.stack([value - np.asarray(low, dtype=float), np.asarray(high, dtype=float) - value])
