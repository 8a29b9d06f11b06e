"""A model and the text that it is compressed on, and what compressors ask of them, each computed once.

Many compressors ask for the same: the second moments of hidden units, the cosines of the residual stream. Each of these
is a pass over the text, so that a `Calibration` is made once and given to all, and a function marked `once` keeps what
it found in it.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.files import atomic
from howlinear.models.ffn_sites import sites
from howlinear.models.layers import parameters
from howlinear.models.shards import is_on_disk
from howlinear.models.work import reading_work
from howlinear.text.rows import Rows
from howlinear.text.unpad import without_padding

Found = TypeVar("Found")
Name = TypeVar("Name", bound=Hashable)


class Calibration:
    """A model, and the text that it may be compressed on.

    Attributes:
        model: the model; left as it was.
        ids: token ids of the rows to fit on, shape (n, seq_len).
        blocks: the blocks that may be changed.
        priced: how many sequences the prices of lines are taken on, see `signals.price`.
        progress: show bars where hidden units are eliminated.
        batch_size: sequences in a forward pass, of one that keeps hidden units or logits half as many, and with
            gradients a quarter.
        multiple: what numbers of hidden units that blocks keep are multiples of, where each keeps its own.
        work: of a model whose weights stay in their files, a folder that keeps what is found, or None.
        memory: what functions marked `once` have found, by function and arguments.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Rows,
        priced: int = 96,
        progress: bool = False,
        blocks: int | Iterable[int] | None = None,
        batch_size: int = 16,
        multiple: int = 1,
    ):
        """Take the side of `rows` to fit on, without padding; the other side is not looked at."""
        packed = without_padding(rows)
        self.model = model
        self.ids = packed.ids[~packed.test]
        self.priced = priced
        self.progress = progress
        self.blocks = [site.block for site in sites(model, blocks)]
        self.batch_size = batch_size
        self.multiple = multiple
        self.work: Path | None = None
        self.memory: dict[tuple, Any] = {}

    def allowed(self, share: float) -> int:
        """How many parameters a copy may hold that keeps a share of all."""
        if not 0 < share <= 1:
            raise InputError(f"a share of {share} of the parameters to keep: give more than 0, at most 1")
        return round(share * parameters(self.model))

    def take_enough(self, share: float, order: Iterable[Name], savings: Mapping[Name, int], every: str) -> list[Name]:
        """What goes first in an order, as few as make a copy small enough, by how many parameters each saves."""
        held = parameters(self.model)
        allowed = self.allowed(share)
        gone = []
        for name in order:
            if held <= allowed:
                break
            gone.append(name)
            held -= savings[name]
        if held > allowed:
            raise InputError(f"with {every} {held} parameters are left, {allowed} are allowed")
        return gone

    def of_blocks(self, kind: type[Found], name: str) -> MutableMapping[int, Found]:
        """What is to be found of each block: in memory, or in files where the model's weights are.

        In a folder of work there may be some already, which go by a name of their own.
        """
        if not is_on_disk(self.model):
            return {}
        return InFiles(kind, None if self.work is None else self.work / name)

    def forget(self) -> None:
        """Let go of all that was found, which is gigabytes; what is asked for later is computed again."""
        self.memory.clear()


class InFiles(UserDict[int, Found]):
    """Block → what was found of it, tensors and numbers, in files that are read at each use and go with it."""

    def __init__(self, kind: type[Found], folder: Path | None = None):
        """Begin with none of a dataclass, or with those that lie in a folder, which stays."""
        super().__init__()
        self.kind = kind
        if folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="howlinear-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        else:
            self.folder = folder
            folder.mkdir(exist_ok=True)
        self.data = dict(sorted((int(file.stem), file) for file in self.folder.glob("*.safetensors")))

    def __setitem__(self, block: int, found: Found) -> None:
        """Write what was found of a block."""
        file = self.folder / f"{block}.safetensors"
        parts = {field.name: getattr(found, field.name) for field in fields(self.kind)}
        tensors = {
            name: part if isinstance(part, Tensor) else torch.tensor(part, dtype=torch.float64)
            for name, part in parts.items()
        }
        with atomic.written_aside(file) as aside:
            save_file(tensors, aside)
        self.data[block] = file

    def __getitem__(self, block: int) -> Found:
        """Read it."""
        with reading_work(self.data[block]):
            tensors = load_file(self.data[block])
        return self.kind(**{name: tensor if tensor.ndim else tensor.item() for name, tensor in tensors.items()})


def once(compute: Callable[..., Found]) -> Callable[..., Found]:
    """Have a function of a calibration, and of hashable arguments, compute when first asked, and then remember."""

    @wraps(compute)
    def remembered(calibration: Calibration, *args: Any) -> Found:
        key = (compute.__qualname__, *args)
        if key not in calibration.memory:
            calibration.memory[key] = compute(calibration, *args)
        return calibration.memory[key]

    return remembered
