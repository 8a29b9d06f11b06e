"""Whether a compressed model may be written to a folder: asked before any work, so it imports nothing slow."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from howlinear.errors import SourceError, in_one_line
from howlinear.files.paths import check_path

OURS = "---\ntags: [howlinear]\n"
"""The beginning of a compressed model's card."""


def check_output_folder(folder: Path | str, force: bool = False) -> Path:
    """Check that a folder may be written and resolve it; with `force` an empty or compressed one may be replaced."""
    folder = check_path("folder", folder)
    try:
        str(folder).encode()  # a tokenizer cannot be saved under other names
        folder = folder.resolve()
        folder.exists()
    except (OSError, ValueError) as error:  # a name that no folder can have
        raise SourceError(f"cannot write {folder!a}: {in_one_line(error)}; choose another folder") from error
    if folder.is_dir():
        if not force:
            raise SourceError(f"{folder} exists: choose another folder, or add --force (force=True) to replace it")
        if any(folder.iterdir()) and not _compressed(folder):
            raise SourceError(f"{folder} holds no compressed model, so --force leaves it alone: choose another folder")
    there = [place for place in (folder, *folder.parents) if place.exists()]
    if not there[0].is_dir():
        raise SourceError(f"cannot write {folder}: {there[0]} is a file; choose another folder")
    nearest = next(place for place in there if place != folder)
    try:
        with tempfile.TemporaryDirectory(dir=nearest):  # only trying shows whether this is permitted
            pass
    except OSError as error:
        raise SourceError(f"cannot write {folder}: {error.strerror}; choose another folder") from error
    return folder


def _compressed(folder: Path) -> bool:
    """Whether a folder holds a compressed model, by its config or, if all blocks keep as many units, by its card."""
    with suppress(OSError, ValueError, AttributeError):
        entry = json.loads((folder / "config.json").read_text("utf-8")).get("howlinear", {})
        if entry.get("replaced") or entry.get("units"):
            return True
        return (folder / "README.md").read_text("utf-8").startswith(OURS)
    return False
