"""What a person brings, as what the instrument reads: any model as a `transformers` model, any text as rows.

`measure`, `capture`, `perplexity`, `losses`, `swap_costs`, `compress` and `compress_to` all begin here, so that each
takes the same things and refuses the same mistakes in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.checks import as_ids, as_tensor, unwrapped
from howlinear.models.load import load_model
from howlinear.text.corpus import Corpus, load_corpus
from howlinear.text.rows import FOLDS, ModelInputs, Rows, RowsOnRecord, TokenRows


def model_of(model: Any) -> PreTrainedModel:
    """The model that a name or a path stands for, or that an object is or wraps.

    Raises:
        SourceError: nothing is there by that name.
        InputError: it is no model.
    """
    return load_model(model) if isinstance(model, str | Path) else unwrapped(model)


def is_text(brought: Any) -> bool:
    """Whether something is text, to be cut into rows by a tokenizer: a name, a path, a corpus, strings, a data set."""
    if isinstance(brought, str | Path | Corpus) or _is_table(brought):
        return True
    return isinstance(brought, list | tuple) and len(brought) > 0 and all(isinstance(item, str) for item in brought)


def rows_of(
    brought: Any,
    model: PreTrainedModel,
    rows: int = 20_000,
    seq_len: int = 128,
    seed: int = 0,
    folds: int = FOLDS,
) -> Rows:
    """What a model reads, from whatever a person has at hand.

    Args:
        brought: a text by name or path, strings, a data set (`load_corpus`), or a corpus, all of which are packed into
            rows; rows, which are taken as they are; token ids as a tensor, an array or lists, what a tokenizer or image
            processor returns, or a `DataLoader` of these, of which each sequence is a document of its own.
        model: the model that reads it, and whose tokenizer cuts a text.
        rows: tokens in all to take of a text, or what it has.
        seq_len: tokens in a sequence of a text.
        seed: decides which documents of a text are drawn.
        folds: document folds of a text on each side.

    Raises:
        SourceError: nothing is there by that name.
        InputError: too little text, tensors that do not belong together, or something else altogether.
    """
    if is_text(brought):
        corpus = brought if isinstance(brought, Corpus) else load_corpus(brought, model)
        return corpus.rows(rows, seq_len, seed, folds)
    if isinstance(brought, Rows):
        return brought
    if isinstance(brought, RowsOnRecord):
        raise InputError("these rows are of a profile that was read from a file, which does not keep them: give a text")
    brought = batches_joined(brought)
    return ModelInputs.of(brought) if isinstance(brought, Mapping) else TokenRows.from_ids(brought)


def batches_joined(brought: Any) -> Any:
    """The batches of a `DataLoader` as one, padded on the right to the longest; anything else as it is.

    Raises:
        InputError: batches that are neither token ids nor of one kind.
    """
    if brought is None or isinstance(brought, int | float | bool):
        raise InputError(f"{brought!r} is no text: give a name, a path, strings, token ids or a tokenizer's output")
    if not isinstance(brought, DataLoader):
        return brought
    batches = list(brought)
    if not batches:
        raise InputError("this DataLoader gives no batch")
    if not all(isinstance(batch, Mapping) for batch in batches):
        batches = [{"input_ids": as_ids(batch[0] if isinstance(batch, list | tuple) else batch)} for batch in batches]
    names = [name for name in batches[0] if name != "labels"]
    joined = {name: _padded([as_tensor(batch[name], name) for batch in batches]) for name in names}
    if "input_ids" in joined and "attention_mask" not in joined:
        joined["attention_mask"] = _padded([torch.ones_like(as_tensor(batch["input_ids"], "ids")) for batch in batches])
    return joined


def _padded(parts: list[Tensor]) -> Tensor:
    """Tensors below one another, the second axis of each filled up with 0 to the longest."""
    if parts[0].ndim < 2 or len({part.shape[1] for part in parts}) == 1:
        return torch.cat(parts)
    longest = max(part.shape[1] for part in parts)
    whole = parts[0].new_zeros(sum(map(len, parts)), longest, *parts[0].shape[2:])
    start = 0
    for part in parts:
        whole[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return whole


def _is_table(brought: Any) -> bool:
    """Whether something is a data set or a table with named columns."""
    if isinstance(brought, Mapping | Tensor):
        return False
    return hasattr(brought, "columns") or isinstance(getattr(brought, "column_names", None), list | dict)
