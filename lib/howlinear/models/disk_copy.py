"""Changed copies of a model whose weights stay in their files: the copies' weights go to files as well."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from transformers import PreTrainedModel

from howlinear.errors import SourceError
from howlinear.models.load import load_on_disk, tokenizer_of
from howlinear.models.shards import ShardWriter, check_all_in_files


def copy_on_disk(
    model: PreTrainedModel, write: Callable[[ShardWriter], PreTrainedModel], folder: Path | None = None
) -> PreTrainedModel:
    """Write a changed copy of a model to files, part by part, and load it from there.

    `write` writes the parts that differ, and returns the copy's structure, a model without weights. The files stay in
    `folder`, where files that an interrupted run has written are reused; by default they are removed with the copy.
    """
    check_all_in_files(model)
    with ExitStack() as removed:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="howlinear-"))
            removed.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        files = ShardWriter(model, folder)
        files.finish(write(files))
        with suppress(SourceError):  # the model has no tokenizer
            tokenizer_of(model).save_pretrained(folder)
        copied = load_on_disk(folder, model.dtype, device=files.shards.device)
        weakref.finalize(copied, removed.pop_all().close)
    return copied
