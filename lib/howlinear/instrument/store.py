"""Captures on disk: safetensors, one file per model and corpus, read back exactly as written or refused.

The file's metadata holds a SHA-256 of every block's tensors, compared when the block is read: disks err, and a flipped
bit would otherwise just change a number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from howlinear.core.moments import Moments
from howlinear.errors import readable
from howlinear.files import atomic
from howlinear.instrument.capture import BlockCapture, LazyBlocks, Sample
from howlinear.instrument.massive import HeavyRows
from howlinear.models.shards import disjoint
from howlinear.text.rows import TokenRows


@dataclass(frozen=True)
class Stored:
    """A capture and what it was made from.

    Attributes:
        blocks: block → `BlockCapture`, read from disk when asked for.
        rows: the token rows.
        about: model, perplexity and the like; under `text`, what the rows were read from, with its hash.
    """

    blocks: Mapping[int, BlockCapture]
    rows: TokenRows
    about: dict[str, Any]


def save_capture(path: Path, blocks: Mapping[int, BlockCapture], rows: TokenRows, about: Mapping[str, Any]) -> None:
    """Write a capture, the rows it was made from, and more information `about` it for JSON; the file in one step."""
    parts = {"rows": {"ids": rows.ids, "test": rows.test, "fold": rows.fold}}
    if rows.spans is not None:
        parts["rows"]["spans"] = rows.spans
    parts |= {str(number): block_tensors(block) for number, block in blocks.items()}
    tensors = disjoint({f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()})
    digests = {part: _digest(part, {name: tensors[f"{part}.{name}"] for name in parts[part]}) for part in parts}
    # One entry for all information: several would be written in any order.
    said = {**about, "corpus": rows.corpus, "sha256": digests}
    if rows.note:
        said["text"] = rows.note
    with atomic.written_aside(path) as aside:
        save_file(tensors, aside, metadata={"about": json.dumps(said, sort_keys=True)})


def block_tensors(block: BlockCapture) -> dict[str, Tensor]:
    """Name a block's tensors `side.fold.tensor`; sample, heavy rows and outputs are fold 0 of sides of their own."""
    sides = {"train": block.train, "test": block.test, "outputs": [block.outputs]}
    tensors = {}
    for side, folds in sides.items():
        for fold, moments in enumerate(folds):
            for name, tensor in moments.tensors().items():
                tensors[f"{side}.{fold}.{name}"] = tensor
    if block.sample is not None:
        for field in fields(Sample):
            tensors[f"sample.0.{field.name}"] = getattr(block.sample, field.name)
    if block.heavy is not None:
        tensors |= {f"heavy.0.{name}": tensor for name, tensor in block.heavy.tensors().items()}
    return tensors


def _digest(part: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the tensors of `rows` or a block: of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{part}.{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def about_capture(path: Path) -> dict[str, Any]:
    """Read the information about a capture, without its tensors."""
    with _opened(path) as file:
        said = json.loads(file.metadata()["about"])
    return {key: value for key, value in said.items() if key != "sha256"}


def load_capture(path: Path) -> Stored:
    """Open a capture; a block's tensors are read when it is asked for."""
    about = about_capture(path)
    with _opened(path) as file:
        rows = TokenRows(**_checked(file, "rows"), corpus=about["corpus"], note=about.get("text", ""))
        blocks = {name.partition(".")[0] for name in file.keys()} - {"rows"}  # noqa: SIM118 (it is no mapping)
    return Stored(LazyBlocks({int(block): partial(_read_block, path, block) for block in blocks}), rows, about)


def _read_block(path: Path, block: str) -> BlockCapture:
    with _opened(path) as file:
        return block_from(_checked(file, block))


def block_from(tensors: Mapping[str, Tensor]) -> BlockCapture:
    """Rebuild a block from its `block_tensors`."""
    sides: dict[str, dict[int, dict[str, Tensor]]] = {}  # side → fold → name → tensor
    for name, tensor in tensors.items():
        side, fold, leaf = name.split(".")
        sides.setdefault(side, {}).setdefault(int(fold), {})[leaf] = tensor
    train = [Moments.from_tensors(named) for _, named in sorted(sides["train"].items())]
    test = [Moments.from_tensors(named) for _, named in sorted(sides["test"].items())]
    outputs = Moments.from_tensors(sides["outputs"][0])
    sample = Sample(**sides["sample"][0]) if "sample" in sides else None
    heavy = HeavyRows.from_tensors(sides["heavy"][0]) if "heavy" in sides else None
    return BlockCapture(train, test, outputs, sample, heavy)


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    remedy = "remove it and run again to make it anew"
    with readable(f"capture {path}", remedy), safe_open(path, framework="pt") as file:
        yield file


def _checked(file: safe_open, part: str) -> dict[str, Tensor]:
    """Read the tensors of a block, or of `rows`, and refuse them if they are not what was written."""
    tensors = tensors_below(file, f"{part}.")
    digests = json.loads(file.metadata()["about"]).get("sha256")
    if digests is None:
        raise ValueError("it holds no checksums, so an older version made it")
    if _digest(part, tensors) != digests[part]:
        raise ValueError(f"its part {part!r} is not what was written")
    return tensors


def tensors_below(file: safe_open, start: str) -> dict[str, Tensor]:
    """Read the tensors whose names begin like this, by the rest of their names."""
    names = [name for name in file.keys() if name.startswith(start)]  # noqa: SIM118 (it is no mapping)
    return {name.removeprefix(start): file.get_tensor(name) for name in names}
