"""Captures on disk: safetensors, one file per model and corpus, read back as they were or not at all.

The file's metadata holds a SHA-256 of every block's tensors, compared when the block is read: disks err, and a
flipped bit would only change a number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from howlinear import paths
from howlinear.capture import BlockCapture, Sample
from howlinear.corpora import TokenRows
from howlinear.errors import SourceError
from howlinear.moments import Moments


@dataclass(frozen=True)
class Stored:
    """A capture and what it was made from.

    Attributes:
        blocks: block → `BlockCapture`, read from disk when asked for.
        rows: the token rows.
        about: model, perplexity and the like.
    """

    blocks: Mapping[int, BlockCapture]
    rows: TokenRows
    about: dict[str, Any]


def save_capture(path: Path, blocks: Mapping[int, BlockCapture], rows: TokenRows, about: Mapping[str, Any]) -> None:
    """Write a capture, replacing the file in one step.

    Raises:
        SourceError: the file cannot be written.
    """
    tensors: dict[str, Tensor] = {"rows.ids": rows.ids, "rows.test": rows.test, "rows.fold": rows.fold}
    for block, kept in blocks.items():
        for side in ("train", "test"):
            for fold, moments in enumerate(getattr(kept, side)):
                tensors |= {f"{block}.{side}.{fold}.{name}": tensor for name, tensor in moments.tensors().items()}
        tensors |= {f"{block}.outputs.0.{name}": tensor for name, tensor in kept.outputs.tensors().items()}
        if kept.sample is not None:
            tensors |= {f"{block}.sample.0.{f.name}": getattr(kept.sample, f.name) for f in fields(Sample)}
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}  # none may share memory
    owners = {name.split(".")[0] for name in tensors}
    digests = {owner: _digest((n, t) for n, t in tensors.items() if n.split(".")[0] == owner) for owner in owners}
    said = dict(about) | {
        "corpus": rows.corpus,
        "sha256": digests,
    }  # one entry: several have no order
    with paths.written_aside(path) as aside:
        save_file(tensors, aside, metadata={"about": json.dumps(said, sort_keys=True)})


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def about_capture(path: Path) -> dict[str, Any]:
    """What a capture says of itself, without its tensors.

    Raises:
        SourceError: no such file, or a damaged one.
    """
    with _opened(path) as file:
        said = json.loads(file.metadata()["about"])
    return {key: value for key, value in said.items() if key != "sha256"}


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise SourceError(f"cannot read capture {path}: {error}; remove it and run again to make it anew") from error


def _checked(file: safe_open, owner: str, names: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of a block, or of `rows`, if they are what was written."""
    tensors = {name: file.get_tensor(name) for name in names}
    digests = json.loads(file.metadata()["about"]).get("sha256")
    if digests is None:
        raise ValueError("it holds no checksums, so an older version made it")
    if _digest(tensors.items()) != digests[owner]:
        raise ValueError(f"its part {owner!r} is not what was written")
    return tensors


def load_capture(path: Path) -> Stored:
    """Open a capture; a block's tensors are read when it is asked for.

    Raises:
        SourceError: no such file, or a damaged one.
    """
    about = about_capture(path)
    with _opened(path) as file:
        names = [f"rows.{part}" for part in ("ids", "test", "fold")]
        kept = _checked(file, "rows", names)
        rows = TokenRows(*(kept[name] for name in names), about["corpus"])
    return Stored(StoredBlocks(path), rows, about)


class StoredBlocks(Mapping[int, BlockCapture]):
    """The blocks of a capture on disk, read one at a time and not kept: memory holds what you hold."""

    def __init__(self, path: Path):
        """List what the file holds."""
        self.path = path
        self._names: dict[int, list[str]] = {}
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                if not name.startswith("rows."):
                    self._names.setdefault(int(name.split(".")[0]), []).append(name)

    def __getitem__(self, block: int) -> BlockCapture:
        """Read one block."""
        parts: dict[str, dict[int, dict[str, Tensor]]] = {}
        names = self._names[block]
        with _opened(self.path) as file:
            for name, tensor in _checked(file, str(block), names).items():
                _, part, index, leaf = name.split(".")
                parts.setdefault(part, {}).setdefault(int(index), {})[leaf] = tensor
            folds = {
                side: [Moments.from_tensors(parts[side][fold]) for fold in sorted(parts[side])]
                for side in ("train", "test", "outputs")
            }
        sample = Sample(**parts["sample"][0]) if "sample" in parts else None
        return BlockCapture(folds["train"], folds["test"], folds["outputs"][0], sample)

    def __iter__(self) -> Iterator[int]:
        """Blocks in order of depth."""
        return iter(sorted(self._names))

    def __len__(self) -> int:
        """How many blocks."""
        return len(self._names)
