"""The progress of work on a model larger than memory, kept in a folder so that interrupted work can be resumed.

The folder records which work it holds, and any other work refuses it. For a text that moves through the model layer by
layer, it keeps the residual streams after the last completed layer; for a search, the results of its steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError, readable
from howlinear.files import atomic
from howlinear.files.paths import check_path
from howlinear.models.shards import is_on_disk


def open_work(folder: Path | str, model: PreTrainedModel, about: Mapping[str, Any]) -> Path:
    """Create a folder for work on a model, or reopen one that holds the same work, which `about` identifies.

    A model in memory is refused: on resuming, nothing would tell whether it is still the same.
    """
    if not is_on_disk(model):
        raise InputError("a folder of work is for models by name, as in hl.measure('gpt2', …, work='folder')")
    stats = {file.name: file.stat() for file in model.howlinear_shards.files}
    files = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    about = {"model": model.name_or_path, "weights": files, "dtype": str(model.dtype), **about}
    folder = check_path("work", folder).absolute()
    note = folder / "work.json"
    if note.is_file():
        with reading_work(note):
            before = json.loads(note.read_text("utf-8"))
        differing = [name for name in before | about if before.get(name) != about.get(name)]
        if differing:
            raise InputError(f"{folder} holds the work on something else ({', '.join(differing)}): name another")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there and holds no work of howlinear: name another folder")
    else:
        with atomic.written_aside(note) as aside:
            aside.write_text(json.dumps(about), encoding="utf-8")
    return folder


def reading_work(file: Path) -> AbstractContextManager[None]:
    """Turn any error in reading a file of the work into a `SourceError`."""
    return readable(str(file), "remove the folder and begin anew")


class StreamFiles:
    """Residual streams after layers of a model, one file per layer."""

    def __init__(self, folder: Path | None):
        """Use a folder and the files in it; with None, nothing is kept."""
        self.folder = folder

    def passed(self) -> set[int]:
        """Return the numbers of layers after which streams are saved, also those left by an interrupted run."""
        files = () if self.folder is None else self.folder.glob("streams-*.safetensors")
        return {int(file.stem.partition("-")[2]) for file in files}

    def load(self, passed: int, device: torch.device) -> list[Tensor]:
        """Read the streams after `passed` layers."""
        with reading_work(self._file(passed)):
            streams = load_file(self._file(passed), device=str(device))
            return [streams[str(place)] for place in range(len(streams))]

    def save(self, passed: int, streams: Sequence[Tensor]) -> None:
        """Write the streams after `passed` layers, and keep the others."""
        with atomic.written_aside(self._file(passed)) as aside:
            save_file({str(place): stream.contiguous() for place, stream in enumerate(streams)}, aside)

    def replace(self, passed: int, streams: Sequence[Tensor]) -> None:
        """Write the streams after `passed` layers, if there is a folder, and remove all others."""
        if self.folder is not None:
            self.save(passed, streams)
            self.remove_but(passed)

    def remove_but(self, passed: int) -> None:
        """Remove all streams but those after `passed` layers."""
        for other in self.passed() - {passed}:
            self._file(other).unlink(missing_ok=True)

    def _file(self, passed: int) -> Path:
        return self.folder / f"streams-{passed}.safetensors"


class StepFiles:
    """Tensors that the steps of a computation end with, one file per step, named after it."""

    def __init__(self, folder: Path | None):
        """Use a folder and the files in it; with None, nothing is kept."""
        self.folder = folder

    def read_or(self, step: str, compute: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """Read the tensors of a step that an interrupted run has done, or compute and keep them."""
        if self.folder is None:
            return compute()
        file = self.folder / f"{step}.safetensors"
        if file.exists():
            with reading_work(file):
                return load_file(file)
        found = compute()
        with atomic.written_aside(file) as aside:
            save_file({name: tensor.contiguous() for name, tensor in found.items()}, aside)
        return found
