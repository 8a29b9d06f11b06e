"""Where things are: one place that knows the layout of the project."""

import os
from pathlib import Path
from typing import Any

from howlinear.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]


def _root() -> Path:
    """The checkout that the package lies in; of a wheel, which brings `project` in its place, a copy of that.

    The copy, in the user's cache, is laid out as a checkout is, so that all runs in it as in one.
    """
    if not (PACKAGE / "project").is_dir():
        return PACKAGE.parents[1]
    import shutil  # late, as all that only an installed package needs
    from hashlib import sha256
    from importlib.metadata import distribution

    from howlinear.files.cache import made_once

    def unpack(folder: Path) -> None:
        ignored = shutil.ignore_patterns("project", "__pycache__")
        shutil.copytree(PACKAGE / "project", folder, ignore=ignored, dirs_exist_ok=True)
        shutil.copytree(PACKAGE, folder / "lib" / PACKAGE.name, ignore=ignored)

    files = distribution("howlinear").read_text("RECORD") or ""  # their hashes: another wheel has a copy of its own
    return made_once(f"project/{sha256(files.encode()).hexdigest()[:12]}", unpack)


ROOT = _root()
MODELS = ROOT / "models"
NOTEBOOKS = ROOT / "notebooks"
PROFILES = ROOT / "profiles"
SNAKEFILE = ROOT / "tools" / "Snakefile"
BUILD = ROOT / "build"
OWN_PROFILES = BUILD / "profiles"  # of whoever tries something; runs on them are never recorded


def results(profile: str) -> Path:
    """Folder of the tables of a profile, one below it a notebook."""
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
    """What `name` means below `folder`; refused if it leads out of the folder, or is the folder itself."""
    path = Path(os.path.normpath(folder / name))
    if Path(os.path.normpath(folder)) not in path.parents or "\0" in name:
        raise InputError(f"{name!r} leads out of {folder}: give a name, not a path")
    return path


def printable(name: str) -> str:
    r"""The name of a file as tables and terminals take it: bytes of it that are no UTF-8 are spelt, as `\xe9`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_path(name: str, given: Any) -> Path:
    """The path that a user names, as text or as a path."""
    if not isinstance(given, str | Path) or not str(given):
        raise InputError(f"{name}={given!r}: give the path of a file or folder")
    return Path(os.path.expanduser(given))
