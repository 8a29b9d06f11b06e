"""Where a model comes from: a folder, one of the embedded models, or the Hub; and what to say when it does not load."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from howlinear import paths
from howlinear.errors import SourceError
from howlinear.hub import hub, reachable

SEAL = "SHA256SUMS"


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
    _check_seal(folder)
    return str(folder)


def seal(folder: Path) -> None:
    """Write the SHA-256 of a folder's weights to `SHA256SUMS`, as `sha256sum` does.

    From then on they are checked whenever the folder is loaded: safetensors themselves would not notice a flipped bit.
    """
    lines = [f"{_digest(path)}  {path.name}\n" for path in sorted(folder.glob("*.safetensors"))]
    with paths.written_aside(folder / SEAL) as aside:
        aside.write_text("".join(lines), encoding="utf-8")


def _check_seal(folder: Path) -> None:
    """Compare the weights with the folder's seal, if it has one."""
    if not (folder / SEAL).is_file():
        return
    try:
        said = dict(reversed(line.split(maxsplit=1)) for line in (folder / SEAL).read_text("utf-8").splitlines())
        changed = [name for name, digest in said.items() if _digest(folder / name) != digest]
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot check {folder} against its {SEAL}: {error}; copy the folder again") from error
    if changed:
        raise SourceError(
            f"{folder / changed[0]} is damaged: its content is not what {SEAL} says; copy it again, "
            f"or remove {SEAL} if you changed the weights yourself"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
