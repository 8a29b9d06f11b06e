"""Figures on disk: SVG and PNG side by side, the same bytes whenever the same figure is drawn."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from howlinear.files import atomic


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write `<folder>/<name>.svg`, whose path is returned, and `.png`, without dates."""
    svg = folder / f"{name}.svg"
    png = folder / f"{name}.png"
    without_date = {svg: {"Date": None}, png: {"Software": None}}
    for path, metadata in without_date.items():
        with atomic.written_aside(path) as aside:
            figure.savefig(aside, metadata=metadata, bbox_inches="tight", pad_inches=0.03)
    return svg
