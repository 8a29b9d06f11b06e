"""Whether a compressed model may be written to a folder: asked before any work, so it imports nothing slow."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from howlinear.errors import SourceError, in_one_line
from howlinear.files.paths import check_path

OURS = "---\ntags: [howlinear]\n"
"""How the card begins of a model with fewer hidden units."""


def check_output_folder(folder: Path | str, force: bool = False) -> Path:
    """The folder to write to, if it may be written.

    With `force`, an empty folder or one that holds a compressed model may be replaced; anything else never is.
    """
    folder = check_path("folder", folder)
    try:
        str(folder).encode()  # a tokenizer is written to no other
        folder = folder.resolve()
        folder.exists()
    except (OSError, ValueError) as error:  # a name that no folder can have
        raise SourceError(f"cannot write {folder!a}: {in_one_line(error)}; choose another folder") from error
    if folder.is_dir():
        if not force:
            raise SourceError(f"{folder} exists: choose another folder, or add --force (force=True) to replace it")
        if any(folder.iterdir()) and not _compressed(folder):
            raise SourceError(f"{folder} holds no compressed model, so --force leaves it alone: choose another folder")
    nearest = next(place for place in folder.parents if place.exists())
    if folder.exists() and not folder.is_dir():
        raise SourceError(f"cannot write {folder}: {folder} is a file; choose another folder")
    if not nearest.is_dir():
        raise SourceError(f"cannot write {folder}: {nearest} is a file; choose another folder")
    try:
        with tempfile.TemporaryDirectory(dir=nearest):  # whether one may only a try tells
            pass
    except OSError as error:
        raise SourceError(f"cannot write {folder}: {error.strerror}; choose another folder") from error
    return folder


def _compressed(folder: Path) -> bool:
    """Whether a folder holds a compressed model: its config says so, or its card where blocks keep as many units."""
    with suppress(OSError, ValueError, AttributeError):
        entry = json.loads((folder / "config.json").read_text("utf-8")).get("howlinear", {})
        if entry.get("replaced") or entry.get("units"):
            return True
        return (folder / "README.md").read_text("utf-8").startswith(OURS)
    return False
