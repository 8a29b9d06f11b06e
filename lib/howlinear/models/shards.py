"""Weights that stay in their safetensors files until a part of the model runs: for models larger than memory.

`load.load_on_disk` builds such a model. All its parameters lie on the meta device, which holds shapes and no numbers,
and `read` brings some of them for as long as they are needed.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

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
"""Bytes that are read and widened at a time. What was read stays in memory as long as its file is open, so an embedding
read in one go would be there twice: as it was saved, and as it is used."""


class Shards:
    """Where each weight of a model lies.

    Attributes:
        source: the folder, or the id on the Hub.
        device: where weights are brought to.
        files: the safetensors files, in order.
    """

    def __init__(self, source: str, revision: str, device: str = "cpu"):
        """List what the files hold."""
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
        """Find a model's weights, saved with or without the prefix of its body: names that no file or no model has."""
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
        """One weight by its name in the model, of the shape and in the precision of `like`."""
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
        """Rows of a weight by their numbers, ascending, in the precision of `like`."""
        numbers = torch.as_tensor(rows)
        breaks = torch.nonzero(numbers.diff() != 1).flatten() + 1
        key = self._key[name]
        with reading(self.source), safe_open(self._file[key], framework="pt") as shard:
            saved = shard.get_slice(key)
            runs = [saved[int(run[0]) : int(run[-1]) + 1] for run in numbers.tensor_split(breaks)]
            return torch.cat(runs).to(self.device).to(like.dtype)  # widened where it is to be

    def copy(self, folder: Path) -> None:
        """Copy the files, and the list of what lies in which, to another folder."""
        for file in self.files:
            shutil.copy(file, folder)
        index = self.files[0].with_name(SAFE_WEIGHTS_INDEX_NAME)
        if index.is_file():
            shutil.copy(index, folder)


class ShardWriter:
    """Writes a model like another one, whose weights stay in `shards`: part by part, and at last what lies beside."""

    def __init__(self, model: PreTrainedModel, folder: Path):
        """Begin in a folder that is there, empty or with parts that an ended run has written, in the same order."""
        self.shards: Shards = model.howlinear_shards
        self._folder = folder
        tied = getattr(model, "all_tied_weights_keys", {})
        self._unwritten = {name: like for name, like in model.state_dict().items() if name not in tied}
        self._file_of: dict[str, str] = {}

    def write(self, part: str, modules: Mapping[str, nn.Module]) -> None:
        """Write a part's weights, by its path, into a file, unless that is there; `modules` in it have others."""
        names = [name for name in self._unwritten if name == part or name.startswith(f"{part}.")]
        likes = {name: self._unwritten.pop(name) for name in names}
        file = self._folder / f"model-{len(set(self._file_of.values())) + 1:05}.safetensors"
        if not file.is_file():
            gone = tuple(f"{path}." for path in modules)
            weights = {name: self.shards.read(name, like) for name, like in likes.items() if not name.startswith(gone)}
            for path, module in modules.items():
                weights |= {f"{path}.{name}": tensor.contiguous() for name, tensor in module.state_dict().items()}
            with atomic.written_aside(file) as aside:
                save_file(weights, aside, metadata={"format": "pt"})  # as transformers wants to be told
        with reading(file), safe_open(file, framework="pt") as written:
            self._file_of |= dict.fromkeys(written.keys(), file.name)

    def finish(self, model: PreTrainedModel) -> None:
        """Write all other weights, a file each, the list of what lies in which, and the config of the new model."""
        for name in list(self._unwritten):
            self.write(name, {})
        index = {"metadata": {}, "weight_map": self._file_of}
        atomic.write_text(self._folder / SAFE_WEIGHTS_INDEX_NAME, json.dumps(index, indent=2))
        save_config(model, self._folder)


def save_config(model: PreTrainedModel, folder: Path) -> None:
    """Write what a model is built from, and what it generates by."""
    model.config.dtype = model.dtype
    model.config.architectures = [type(model).__name__]
    if model._auto_class is not None:  # of a class of its own the code goes with it
        custom_object_save(model, folder, config=model.config)
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def chunks(like: Tensor) -> Iterator[range]:
    """The rows of a weight in parts of equal size (`CHUNK`)."""
    rows = max(1, CHUNK // max(1, like.element_size() * math.prod(like.shape[1:])))
    for start in range(0, len(like), rows):
        yield range(start, min(start + rows, len(like)))


def _files_of(source: str, revision: str) -> list[Path]:
    """The safetensors files of a folder or of a model on the Hub, which are fetched."""
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
    """Whether so many bytes are more than half of what is free: then they are held in parts, each read anew."""
    return 2 * needed > psutil.virtual_memory().available


def is_on_disk(model: PreTrainedModel) -> bool:
    """Whether the weights of a model stay in their files."""
    return hasattr(model, "howlinear_shards")


def check_all_in_files(model: PreTrainedModel) -> None:
    """Refuse a model on disk of which somebody has changed a part since."""
    if not (model.howlinear_shards.files and all(weight.is_meta for weight in model.parameters())):
        raise InputError("some weights of this model are others than its files hold: load it whole, hl.load_model(…)")


@contextmanager
def read(model: PreTrainedModel, names: Iterable[str]) -> Iterator[None]:
    """While it lasts, some weights of a model are there, by their names in its state dict; of one in memory all are."""
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
    """While it lasts, a weight of a model on disk has some of its rows, by ascending numbers, and no others."""
    path, _, leaf = name.rpartition(".")
    part = model.get_submodule(path)
    rests = getattr(part, leaf)
    try:
        setattr(part, leaf, nn.Parameter(model.howlinear_shards.read_rows(name, rows, rests), requires_grad=False))
        yield
    finally:
        setattr(part, leaf, rests)
