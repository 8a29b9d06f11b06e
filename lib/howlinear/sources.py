"""Where a model comes from: a folder, one of the embedded models, or the Hub; and what to say when it does not load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from howlinear import paths
from howlinear.errors import SourceError
from howlinear.hub import hub, reachable


def located(name: str) -> str:
    """The folder that `name` means, or `name` itself if it may be a Hub id.

    Raises:
        SourceError: neither, or a folder that holds no model in safetensors.
    """
    for folder in (Path(name), paths.MODELS / name):
        if folder.is_dir():
            return _checked_folder(folder)
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
        raise SourceError(f"no model folder {name}; {embedded()}")
    return name


def _checked_folder(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise SourceError(f"{folder} is no model folder: it has no config.json; {embedded()}")
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
        found = f"only {', '.join(pickles)}, which can run code when opened" if pickles else "no weights"
        raise SourceError(f"{folder} holds {found}: save the model as safetensors (save_pretrained does) and use that")
    return str(folder)


def embedded() -> str:
    """What can be loaded without a network, for error messages."""
    found = sorted(path.parent.name for path in paths.MODELS.glob("*/config.json"))
    return f"offline there are {', '.join(found) or 'no embedded models (run make minis)'}, or any local folder"


@contextmanager
def loading(source: str) -> Iterator[None]:
    """While it lasts, whatever keeps `source` from loading becomes a `SourceError` that says where and what to do."""
    try:
        with hub():
            yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        if Path(source).is_dir():
            where = f"folder {source}"
        elif not reachable():
            where = f"{source}: no such folder here, not in the local cache, and the Hub cannot be reached"
        else:
            where = f"{source}: no such folder here, and the Hub has nothing to load by that name"
        raise SourceError(f"cannot load {where} ({reason}); {embedded()}") from error
