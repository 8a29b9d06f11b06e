"""Weights that stay in their safetensors files until a part of the model runs: for models larger than memory.

`load.load_on_disk` builds such a model. All its parameters are on the meta device, which holds shapes and no numbers,
and `read` loads some of them for as long as they are needed.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic
from howlinear.models.sources import loading, reading

CHUNK = 2**26
"""Bytes that are read and converted at a time. What was read stays in memory while its file is open, so an embedding
read in one go would be there twice: in the saved precision and in the one used."""


class Shards:
    """The safetensors files of a model, and which weight lies where.

    Attributes:
        source: the folder, or the id on the Hub.
        device: where weights are read to.
        files: the safetensors files, in order.
    """

    def __init__(self, source: str, revision: str, device: str = "cpu"):
        self.source = source
        self.device = device
        self.files = _files_of(source, revision)
        self._file: dict[str, Path] = {}  # name in the file → the file
        self._key: dict[str, str] = {}  # name in the model → name in the file
        for file in self.files:
            if not file.is_file():
                raise SourceError(f"{source} lacks {file.name}, a part of its weights: copy it again")
            with reading(source, revision), safe_open(file, framework="pt") as shard:
                self._file |= dict.fromkeys(shard.keys(), file)

    def locate(self, model: PreTrainedModel) -> tuple[list[str], list[str]]:
        """Find a model's weights, with or without its body's prefix; return the missing and the unexpected names."""
        prefix = f"{model.base_model_prefix}."
        tied = getattr(model, "all_tied_weights_keys", {})
        names = list(model.state_dict())
        for name in names:
            keys = (name, prefix + name, name.removeprefix(prefix), name.replace("lm_head.", "embed_out."))  # GPT-NeoX
            found = [key for key in keys if key in self._file]
            if found:
                self._key[name] = found[0]
        for name, other in tied.items():
            if name not in self._key and other in self._key:
                self._key[name] = self._key[other]
        missing = [name for name in names if name not in self._key]
        unexpected = sorted(self._file.keys() - set(self._key.values()))
        return missing, unexpected

    def read(self, name: str, like: Tensor) -> Tensor:
        """Read a weight, given by its name in the model, with the shape and precision of `like`."""
        key = self._key[name]
        file = self._file[key]
        with reading(self.source), safe_open(file, framework="pt") as shard:
            shape = tuple(shard.get_slice(key).get_shape())
            if shape != tuple(like.shape):
                raise SourceError(f"{key} in {file} has shape {shape}, and the model's has {tuple(like.shape)}")
            if not shape:
                return shard.get_tensor(key).to(self.device, like.dtype)
        whole = torch.empty(shape, dtype=like.dtype, device=self.device)
        for chunk in chunks(like):
            whole[chunk.start : chunk.stop] = self.read_rows(name, chunk, like)
        return whole

    def read_rows(self, name: str, rows: Sequence[int], like: Tensor) -> Tensor:
        """Read rows of a weight, given by ascending numbers, in the precision of `like`."""
        numbers = torch.as_tensor(rows, device="cpu")
        breaks = torch.nonzero(numbers.diff() != 1).flatten() + 1
        key = self._key[name]
        with reading(self.source), torch.device("cpu"), safe_open(self._file[key], framework="pt") as shard:
            saved = shard.get_slice(key)
            runs = [saved[int(run[0]) : int(run[-1]) + 1] for run in numbers.tensor_split(breaks)]
            return torch.cat(runs).to(self.device).to(like.dtype)  # converted on the target device

    def copy(self, folder: Path) -> None:
        """Copy the files, and the index of which weight lies in which, to another folder."""
        for file in self.files:
            shutil.copy(file, folder)
        index = self.files[0].with_name(SAFE_WEIGHTS_INDEX_NAME)
        if index.is_file():
            shutil.copy(index, folder)


class ShardWriter:
    """A writer of a changed copy of a model on disk: part by part, then the remaining weights, index and config."""

    def __init__(self, model: PreTrainedModel, folder: Path):
        """Begin in an existing folder, empty or with parts that an interrupted run has written, in the same order."""
        self.shards: Shards = model.howlinear_shards
        self._folder = folder
        tied = getattr(model, "all_tied_weights_keys", {})
        self._unwritten = {name: like for name, like in model.state_dict().items() if name not in tied}
        self._file_of: dict[str, str] = {}

    def write(self, part: str, modules: Mapping[str, nn.Module]) -> None:
        """Write the part at a path to a file, unless it exists, with `modules` (path → module) in place of its own."""
        names = [name for name in self._unwritten if name == part or name.startswith(f"{part}.")]
        likes = {name: self._unwritten.pop(name) for name in names}
        file = self._folder / f"model-{len(set(self._file_of.values())) + 1:05}.safetensors"
        if not file.is_file():
            gone = tuple(f"{path}." for path in modules)
            weights = {name: self.shards.read(name, like) for name, like in likes.items() if not name.startswith(gone)}
            for path, module in modules.items():
                weights |= {f"{path}.{name}": tensor.contiguous() for name, tensor in module.state_dict().items()}
            with atomic.written_aside(file) as aside:
                save_file(weights, aside, metadata={"format": "pt"})  # which transformers asks for
        with reading(file), safe_open(file, framework="pt") as written:
            self._file_of |= dict.fromkeys(written.keys(), file.name)

    def finish(self, model: PreTrainedModel) -> None:
        """Write all other weights, one file each, the index of which lies in which, and the config of the new model."""
        for name in list(self._unwritten):
            self.write(name, {})
        index = {"metadata": {}, "weight_map": self._file_of}
        atomic.write_text(self._folder / SAFE_WEIGHTS_INDEX_NAME, json.dumps(index, indent=2))
        save_config(model, self._folder)


def save_config(model: PreTrainedModel, folder: Path) -> None:
    """Write a model's config and its generation config."""
    model.config.dtype = model.dtype
    model.config.architectures = [type(model).__name__]
    if model._auto_class is not None:  # the code of a custom class is saved too
        custom_object_save(model, folder, config=model.config)
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def chunks(like: Tensor) -> Iterator[range]:
    """Yield the rows of a weight in parts of about `CHUNK` bytes."""
    rows = max(1, CHUNK // max(1, like.element_size() * math.prod(like.shape[1:])))
    for start in range(0, len(like), rows):
        yield range(start, min(start + rows, len(like)))


def _files_of(source: str, revision: str) -> list[Path]:
    with loading(source, revision):
        options = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
        single = cached_file(source, SAFE_WEIGHTS_NAME, **options)
        if single is not None:
            return [Path(single)]
        index = cached_file(source, SAFE_WEIGHTS_INDEX_NAME, **options)
        if index is None:
            raise SourceError(f"{source} holds neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}")
        return [Path(file) for file in get_checkpoint_shard_files(source, index, revision=revision)[0]]


def fills_memory(needed: int) -> bool:
    """Whether `needed` bytes are more than half of what is free: such data are held in parts, each read anew."""
    return 2 * needed > psutil.virtual_memory().available


def is_on_disk(model: PreTrainedModel) -> bool:
    """Whether the weights of a model stay in their files."""
    return hasattr(model, "howlinear_shards")


def disjoint(tensors: Mapping[str, Any], tied: Collection[str] = ()) -> dict[str, Any]:
    """Return tensors by name, with a copy of each, unless `tied`, that shares memory: safetensors refuses these.

    The others are not copied, since the moments of many blocks take gigabytes.
    """
    taken: set[tuple[torch.device, int]] = set()
    apart = {}
    for name, tensor in tensors.items():
        apart[name] = tensor
        if not isinstance(tensor, Tensor) or tensor.is_meta or not tensor.numel():
            continue  # a quantised layer keeps other things as well
        memory = (tensor.device, tensor.untyped_storage().data_ptr())
        if name not in tied and (memory in taken or not tensor.is_contiguous()):
            apart[name] = tensor.clone(memory_format=torch.contiguous_format)
        taken.add(memory)
    return apart


def check_all_in_files(model: PreTrainedModel) -> None:
    """Refuse a model on disk that has no files, or a part of which has been changed since loading."""
    if not (model.howlinear_shards.files and all(weight.is_meta for weight in model.parameters())):
        raise InputError("some weights of this model are others than its files hold: load it whole, hl.load_model(…)")


@contextmanager
def read(model: PreTrainedModel, names: Iterable[str]) -> Iterator[None]:
    """Load weights, by state-dict name, for the duration of the context; a model in memory has them already."""
    resting: dict[str, Tensor] = {}
    try:
        for name in names if is_on_disk(model) else ():
            path, _, leaf = name.rpartition(".")
            part = model.get_submodule(path)
            rests = getattr(part, leaf)
            if isinstance(rests, nn.Parameter) and not rests.is_meta:
                continue  # it is there already
            part.load_state_dict({leaf: model.howlinear_shards.read(name, rests)}, strict=False, assign=True)
            resting[name] = rests
        yield
    finally:
        for name, rests in resting.items():
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path).load_state_dict({leaf: rests}, strict=False, assign=True)


@contextmanager
def read_rows(model: PreTrainedModel, name: str, rows: Sequence[int]) -> Iterator[None]:
    """Load some rows only, by ascending numbers, of a weight of a model on disk, for the duration of the context."""
    path, _, leaf = name.rpartition(".")
    part = model.get_submodule(path)
    rests = getattr(part, leaf)
    try:
        setattr(part, leaf, nn.Parameter(model.howlinear_shards.read_rows(name, rows, rests), requires_grad=False))
        yield
    finally:
        setattr(part, leaf, rests)
