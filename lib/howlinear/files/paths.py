"""Paths of the project: the one place that knows its layout."""

import os
from pathlib import Path
from typing import Any

from howlinear.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]


def _root() -> Path:
    """Return the checkout that holds the package, or for an installed wheel a copy of the `project` folder it ships.

    The copy lies in the user's cache and is laid out as a checkout, so everything runs there as in a checkout.
    """
    if not (PACKAGE / "project").is_dir():
        return PACKAGE.parents[1]
    import shutil  # imported late, as only an installed package needs these
    from hashlib import sha256
    from importlib.metadata import distribution

    from howlinear.files.cache import made_once

    def unpack(folder: Path) -> None:
        ignored = shutil.ignore_patterns("project", "__pycache__")
        shutil.copytree(PACKAGE / "project", folder, ignore=ignored, dirs_exist_ok=True)
        shutil.copytree(PACKAGE, folder / "lib" / PACKAGE.name, ignore=ignored)

    files = distribution("howlinear").read_text("RECORD") or ""  # with hashes, so that each wheel has its own copy
    return made_once(f"project/{sha256(files.encode()).hexdigest()[:12]}", unpack)


ROOT = _root()
MODELS = ROOT / "models"
NOTEBOOKS = ROOT / "notebooks"
PROFILES = ROOT / "profiles"
SNAKEFILE = ROOT / "tools" / "Snakefile"
BUILD = ROOT / "build"
OWN_PROFILES = BUILD / "profiles"  # the user's own run profiles; runs on them are never recorded


def results(profile: str) -> Path:
    """Return the folder of a profile's tables, which has a subfolder per notebook."""
    return inside(ROOT / "results", profile)


def figures(profile: str) -> Path:
    """Return the folder of a profile's figures."""
    return inside(ROOT / "figures", profile)


def build(profile: str) -> Path:
    """Return the folder of reproducible files: captures and executed notebooks."""
    return inside(BUILD, profile)


def scratch(profile: str) -> Path:
    """Return the folder for the results, figures and executed notebooks of runs that are not recorded."""
    return inside(BUILD / "scratch", profile)


def inside(folder: Path, name: str) -> Path:
    """Resolve `name` below `folder`; refuse it if it leads out of the folder or is the folder itself."""
    path = Path(os.path.normpath(folder / name))
    if Path(os.path.normpath(folder)) not in path.parents or "\0" in name:
        raise InputError(f"{name!r} leads out of {folder}: give a name, not a path")
    return path


def printable(name: str) -> str:
    r"""Make a file name printable in tables and terminals: bytes that are not UTF-8 are escaped, as in `\xe9`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_path(name: str, given: Any) -> Path:
    """Check a path that a user gives as a string or `Path`, and expand `~`."""
    if not isinstance(given, str | Path) or not str(given):
        raise InputError(f"{name}={given!r}: give the path of a file or folder")
    return Path(os.path.expanduser(given))
