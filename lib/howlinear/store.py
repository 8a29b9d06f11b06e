"""Captures on disk: safetensors, one file per model and corpus, read back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
        blocks: block → `BlockCapture`.
        rows: the token rows.
        about: model, perplexity and the like.
    """

    blocks: dict[int, BlockCapture]
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
    with paths.written_aside(path) as aside:
        save_file(tensors, aside, metadata={"about": json.dumps(dict(about) | {"corpus": rows.corpus})})


def about_capture(path: Path) -> dict[str, Any]:
    """What a capture says of itself, without its tensors.

    Raises:
        SourceError: no such file, or a damaged one.
    """
    return _read(path, names=())[0]


def _read(path: Path, names: Iterable[str] | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            return about, {name: file.get_tensor(name) for name in (file.keys() if names is None else names)}
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise SourceError(f"cannot read capture {path}: {error}; remove it and run again to make it anew") from error


def load_capture(path: Path) -> Stored:
    """Read a capture.

    Raises:
        SourceError: no such file, or a damaged one.
    """
    about, tensors = _read(path)
    rows = TokenRows(*(tensors.pop(f"rows.{part}") for part in ("ids", "test", "fold")), about["corpus"])
    tree: dict[int, dict[str, dict[int, dict[str, Tensor]]]] = {}
    for name, tensor in tensors.items():
        block, part, index, leaf = name.split(".")
        tree.setdefault(int(block), {}).setdefault(part, {}).setdefault(int(index), {})[leaf] = tensor
    return Stored({block: _block(tree[block]) for block in sorted(tree)}, rows, about)


def _block(parts: dict[str, dict[int, dict[str, Tensor]]]) -> BlockCapture:
    folds = {
        side: [Moments.from_tensors(parts[side][fold]) for fold in sorted(parts[side])]
        for side in ("train", "test", "outputs")
    }
    sample = Sample(**parts["sample"][0]) if "sample" in parts else None
    return BlockCapture(folds["train"], folds["test"], folds["outputs"][0], sample)
