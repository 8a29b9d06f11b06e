"""Where things are: one place that knows the layout of the project."""

import os
from pathlib import Path

from howlinear.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "models"
NOTEBOOKS = ROOT / "notebooks"
PROFILES = ROOT / "profiles"
SNAKEFILE = ROOT / "tools" / "Snakefile"
BUILD = ROOT / "build"
OWN_PROFILES = BUILD / "profiles"  # of whoever tries something; runs on them are never recorded


def results(profile: str) -> Path:
    """Folder of the JSON numbers of a profile."""
    return inside(ROOT / "results", profile)


def figures(profile: str) -> Path:
    """Folder of the figures of a profile."""
    return inside(ROOT / "figures", profile)


def build(profile: str) -> Path:
    """Folder of what can be made again: captures and executed notebooks."""
    return inside(BUILD, profile)


def scratch(profile: str) -> Path:
    """Folder of what a run that is not recorded leaves: its results, figures and executed notebooks."""
    return inside(BUILD / "scratch", profile)


def inside(folder: Path, name: str) -> Path:
    """What `name` means below `folder`.

    Raises:
        InputError: it leads out of the folder, or is the folder itself.
    """
    path = Path(os.path.normpath(folder / name))
    if Path(os.path.normpath(folder)) not in path.parents or "\0" in name:
        raise InputError(f"{name!r} leads out of {folder}: give a name, not a path")
    return path
