"""A model and the text that it is compressed on, and the quantities that compressors share, each computed once.

Many compressors need the same quantities: the second moments of hidden units, the cosines of the residual stream. Each
takes a pass over the text. So one `Calibration` is made and given to all compressors, and functions marked `once` store
their results in it.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
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
    """A model, which is not changed, and the text that it may be compressed on."""

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
        """Take the training side of `rows`, without padding; the held-out side is ignored."""
        packed = without_padding(rows)
        self.model = model
        self.ids = packed.ids[~packed.test]
        self.priced = priced  # sequences on which affine maps are priced, see `signals.price`
        self.progress = progress
        self.blocks = [site.block for site in sites(model, blocks)]  # that may be changed
        self.batch_size = batch_size  # a half or a quarter where a pass keeps hidden units, logits or gradients
        self.multiple = multiple  # own units keep a multiple of this number of hidden units in every block
        self.work: Path | None = None  # for a model on disk, a folder that keeps intermediate results
        self.memory: dict[tuple, Any] = {}  # results of functions marked `once`, by function and arguments

    def allowed(self, share: float) -> int:
        """Return the number of parameters that a copy may hold at a share of all."""
        return round(share * parameters(self.model))

    def take_enough(
        self, share: float, order: Iterable[Name], savings: Mapping[Name, int], every: str, added: int = 0
    ) -> list[Name]:
        """Take items from the front of an order, by the parameters they save, until the copy is small enough.

        `added` parameters come on top; `every` says what is left once all items are taken.
        """
        held = parameters(self.model) + added
        allowed = self.allowed(share)
        gone = []
        for name in order:
            if held <= allowed:
                break
            gone.append(name)
            held -= savings[name]
        if held > allowed:
            raise InputError(f"with {every} {held} parameters are left, {allowed} are allowed: keep a larger share")
        return gone

    def of_blocks(self, kind: type[Found], name: str) -> MutableMapping[int, Found]:
        """Make a mapping from block to result: in memory, or in files if the model's weights stay on disk."""
        if not is_on_disk(self.model):
            return {}
        # in a work folder, the results of an interrupted run are there already
        return InFiles(kind, None if self.work is None else self.work / name)

    def forget(self) -> None:
        """Drop all stored results, which may take gigabytes; they are computed again when needed."""
        self.memory.clear()


class InFiles(UserDict[int, Found]):
    """Mapping from block to results (tensors and numbers) in files, which are read at each access."""

    def __init__(self, kind: type[Found], folder: Path | None = None):
        """Store results of the dataclass `kind`: in a folder, with those already there, or in a temporary one."""
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
        """Write a block's results."""
        file = self.folder / f"{block}.safetensors"
        tensors = {
            name: part if isinstance(part, Tensor) else torch.tensor(part, dtype=torch.float64, device="cpu")
            for name, part in vars(found).items()
        }
        with atomic.written_aside(file) as aside:
            save_file(tensors, aside)
        self.data[block] = file

    def __getitem__(self, block: int) -> Found:
        """Read a block's results."""
        with reading_work(self.data[block]):
            tensors = load_file(self.data[block])
        return self.kind(**{name: tensor if tensor.ndim else tensor.item() for name, tensor in tensors.items()})


def once(compute: Callable[..., Found]) -> Callable[..., Found]:
    """Decorate a function of a calibration and hashable arguments so that it computes each result only once."""

    @wraps(compute)
    def remembered(calibration: Calibration, *args: Any) -> Found:
        key = (compute.__qualname__, *args)
        if key not in calibration.memory:
            calibration.memory[key] = compute(calibration, *args)
        return calibration.memory[key]

    return remembered
