"""How figures look: one style, one colour per model family through the whole project.

Colours are Okabe & Ito's colour-blind-safe set; a marker and a line style always double the colour. Files are
byte-identical on a re-run.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

from howlinear import paths

COLUMN = 3.3  # inches: one column of a paper
PAGE = 6.9  # both columns
GREY = "#6b6b6b"
ACCENT = "#E69F00"  # for what is no model

_LOOKS = {
    "gpt2": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "pythia": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "llama": {"color": "#009E73", "marker": "^", "linestyle": "-."},
}
_OTHER = {"color": "#CC79A7", "marker": "D", "linestyle": ":"}

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


def save(figure: Figure, profile: str, name: str) -> Path:
    """Write `figures/<profile>/<name>.svg` and `.png`, without dates.

    Args:
        figure: the figure.
        profile: name of the profile.
        name: stem of the notebook and what it shows, as in `02_ceilings_profile`.

    Returns:
        Path of the svg.
    """
    target = paths.figures(profile) / f"{name}.svg"
    for path, metadata in ((target, {"Date": None}), (target.with_suffix(".png"), {"Software": None})):
        with paths.written_aside(path) as aside:
            figure.savefig(aside, metadata=metadata, bbox_inches="tight", pad_inches=0.03)
    return target
