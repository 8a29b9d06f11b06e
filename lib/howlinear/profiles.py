"""Profiles: which models and texts a run is about and how many rows, read from `profiles/<name>.yaml` and checked.

A profile names folders and files to write to, so nothing in it may lead out of the project.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from howlinear import paths
from howlinear.errors import InputError, SourceError

KINDS = {"models": list, "corpora": list, "rows": int, "seq_len": int, "seed": int, "sample": int}


def settings(name: str) -> dict[str, Any]:
    """A profile's settings.

    Args:
        name: of a file under `profiles/`, without its suffix.

    Returns:
        The keys of `KINDS`, and whatever else the file holds.

    Raises:
        SourceError: no such profile, or not YAML.
        InputError: a key is missing or of the wrong kind; two models share a short name.
    """
    found = _extended(name, ())
    if missing := KINDS.keys() - found.keys():
        raise InputError(f"profile {name} lacks {', '.join(sorted(missing))}")
    for key, kind in KINDS.items():
        if type(found[key]) is not kind:
            wanted = "a list, as in [docs]" if kind is list else "a whole number"
            raise InputError(f"profile {name}: {key} is {found[key]!r}; give {wanted}")
    for key in ("models", "corpora"):
        if not found[key] or not all(isinstance(item, str) and item.strip("/. ") for item in found[key]):
            raise InputError(f"profile {name}: {key} is {found[key]!r}; give names, at least one")
    shorts = [short(source) for source in found["models"]]
    if twice := {one for one in shorts if shorts.count(one) > 1}:
        raise InputError(f"profile {name} has two models called {', '.join(twice)}: results go by that name")
    return found


def short(source: str) -> str:
    """What a model is called in results and file names: the last part of its folder or Hub id."""
    return source.rstrip("/").split("/")[-1]


def located(source: str) -> str:
    """A folder of the project by its full path, wherever the notebook runs; anything else as it is.

    Raises:
        InputError: it begins in the project's folders and leads out of them.
    """
    top, _, rest = source.partition("/")
    return str(paths.inside(paths.ROOT / top, rest)) if top in ("models", "build") and rest else source


def _extended(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """The settings of a file; one that says `extends: other` changes some of another's."""
    path = paths.inside(paths.PROFILES, f"{name}.yaml")
    if name in seen:
        raise InputError(f"profile {name} extends itself: {' → '.join((*seen, name))}")
    if not os.path.isfile(path):
        known = ", ".join(sorted(file.stem for file in paths.PROFILES.glob("*.yaml")))
        raise SourceError(f"no profile {name!r} under {paths.PROFILES}: {known}")
    found = _read(path)
    return _extended(found["extends"], (*seen, name)) | found if "extends" in found else found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SourceError(f"cannot read profile {path}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise SourceError(f"profile {path} holds no keys: write it as profiles/minis.yaml is")
    return found
