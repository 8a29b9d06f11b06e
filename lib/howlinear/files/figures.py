"""Figures on disk: SVG and PNG side by side, the same bytes whenever the same figure is drawn."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from howlinear.files import atomic, paths


def save(figure: Figure, profile: str, name: str) -> Path:
    """Write `figures/<profile>/<name>.svg` and `.png`, without dates.

    Args:
        figure: the figure.
        profile: name of the run profile.
        name: stem of the notebook and what it shows, as in `02_ceilings_profile`.

    Returns:
        Path of the svg.

    Raises:
        SourceError: a file cannot be written.
    """
    folder = paths.figures(profile)
    svg = folder / f"{name}.svg"
    png = folder / f"{name}.png"
    without_date = {svg: {"Date": None}, png: {"Software": None}}
    for path, metadata in without_date.items():
        with atomic.written_aside(path) as aside:
            figure.savefig(aside, metadata=metadata, bbox_inches="tight", pad_inches=0.03)
    return svg
