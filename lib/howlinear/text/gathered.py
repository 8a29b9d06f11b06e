"""Conversion of whatever holds strings or token ids to a list of strings or to one batch of ids.

`load_corpus` and everything that takes rows start here, so that the same kinds of text are accepted everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from howlinear.errors import InputError
from howlinear.models.checks import PERCEIVES, as_tensor
from howlinear.text.plain import (
    COLUMNS,
    as_list,
    cells_of,
    check_column,
    check_not_splits,
    filled,
    listed,
    names_of,
    usual_column,
)
from howlinear.text.rows import Rows, RowsOnRecord
from howlinear.text.streams import is_stream


def gathered(given: Any, column: str | None = None) -> Any:
    """Gather batches or examples of token ids into one batch and strings into a list; return anything else as it is.

    Batches come from a `DataLoader` or any other iterable; examples from a tokenised data set, a torch data set, or a
    list of a tokenizer's outputs. Shorter sequences are padded on the right, with a mask. Strings may be in dicts, as
    the rows of a data set are, in the column `column` or one with a usual name.
    """
    if given is None or isinstance(given, int | float | bool):
        raise InputError(f"{given!r} is no text: give a name, a path, strings, token ids or a tokenizer's output")
    if isinstance(given, Rows | RowsOnRecord | Tensor | str | Path):
        return given
    if isinstance(getattr(given, "rows", None), Rows | RowsOnRecord):  # such as a profile
        return given.rows
    if hasattr(given, "read"):  # read line by line, it would give other documents than the file
        raise InputError(f"a {type(given).__name__} is an open file: give its path, or [file.read()]")
    if isinstance(given, Mapping):
        check_not_splits(given)
        if _is_ragged(given):
            return _joined([given])
        return _cells(given, column) or given  # rows of a data set come as a dict of its columns
    if is_tokenised(given):
        names = [name for name in IDS_AND_MASKS if name in _columns(given)]
        return _joined(_examples_of({name: cells_of(given, name) for name in names}))
    of_torch = isinstance(given, Dataset) and not is_stream(given)
    if of_torch or isinstance(given, DataLoader | Iterator):
        batches = _examples(given) if of_torch else _batches(given)
        if not batches:
            raise InputError(f"this {type(given).__name__} gives no batch")
        return _texts(batches, column) or _joined(batches)
    if is_table(given):
        names, kinds = names_of(given), getattr(given, "dtypes", [None])
        if len(names) < 2 or any(getattr(kind, "kind", "O") not in "iuf" for kind in kinds):
            return given
        if names == [*range(len(names))]:
            return np.asarray(given)  # token ids, a row a sequence
        raise InputError(
            f"a {type(given).__name__} of numbers in columns {names[0]!r}, …: give token ids without names of columns, "
            "table.to_numpy(), or as lists in one column input_ids"
        )
    if _is_column(given):
        cells = filled(as_list(given))
        if _are_of_different_lengths(cells):
            return _joined(cells)
        return _no_paths(cells) if are_strings(cells) else cells
    if not isinstance(given, Iterable) or isinstance(given, bytes) or hasattr(given, "__array__"):
        return given
    batches = _no_paths(listed(given))
    texts = _texts(batches, column)
    if texts:
        return texts
    nested = [isinstance(item, list | tuple) and any(isinstance(part, str) for part in item) for item in batches]
    if any(isinstance(item, str | bytes) for item in batches) or any(nested):
        place = next(place for place, item in enumerate(batches) if not isinstance(item, str))
        raise InputError(
            f"of these {len(batches)} items place {place} is {batches[place]!r:.40}, no string: give strings"
        )
    if _are_of_different_lengths(batches):
        return _joined(batches)
    if _are_ids_and_mask(batches, axes=2):
        return _named(batches)
    if batches and all(map(_is_batch, batches)) and not isinstance(given, tuple):
        return _joined([_checked(batch) for batch in batches])
    return given


def _is_batch(item: Any) -> bool:
    """Return whether an item of a list is a batch or an example: a dict, a batch's tensor, or a tuple of tensors."""
    first = item[0] if isinstance(item, list | tuple) and len(item) > 0 else None
    return isinstance(item, Mapping) or getattr(item, "ndim", 0) > 1 or getattr(first, "ndim", 0) > 0


IDS_AND_MASKS = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids"),
    *("decoder_input_ids", "decoder_attention_mask"),
)


def _examples_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Turn columns into one dict per sequence."""
    columns = {name: column for name, column in columns.items() if name != "labels" and column is not None}
    counts = {
        name: len(column) if isinstance(column, list | tuple) or getattr(column, "ndim", 0) > 0 else None
        for name, column in columns.items()
    }
    if len(set(counts.values())) > 1:
        raise InputError(f"columns of other lengths: {', '.join(f'{name} {count}' for name, count in counts.items())}")
    return [{name: columns[name][place] for name in counts} for place in range(next(iter(counts.values())))]


def _are_of_different_lengths(items: Any) -> bool:
    """Return whether something is a list of number sequences (lists, arrays or tensors) of different lengths."""

    def is_sequence(item: Any) -> bool:
        is_flat = isinstance(item, list | tuple | np.ndarray | Tensor) and getattr(item, "ndim", 1) == 1
        return is_flat and len(item) > 0 and np.ndim(item[0]) == 0

    return isinstance(items, list | tuple) and all(map(is_sequence, items)) and len({*map(len, items)}) > 1


def _is_ragged(batch: Mapping[str, Any]) -> bool:
    """Whether a batch holds token ids as sequences of different lengths."""
    return any(_are_of_different_lengths(batch.get(name)) for name in ("input_ids", "decoder_input_ids"))


def are_strings(items: Any) -> bool:
    """Whether something is a list or tuple of strings, one or more."""
    return isinstance(items, list | tuple) and len(items) > 0 and all(isinstance(item, str) for item in items)


def _holds_strings(part: Any) -> bool:
    return are_strings(part) or (isinstance(part, np.ndarray) and part.dtype.kind == "U")


def _is_column(given: Any) -> bool:
    """Return whether something is a column of a pandas, polars or pyarrow table, or an array that may hold strings."""
    if isinstance(given, np.ndarray):
        return given.dtype.kind in "OUT"
    return hasattr(given, "to_list") or hasattr(given, "to_pylist")


def _no_paths(items: list[Any]) -> list[Any]:
    """Return the items, unless all of them are paths of files instead of texts, which is refused."""
    if items and all(isinstance(item, str | Path) and os.path.isfile(item) for item in items):
        raise InputError(f"{len(items)} paths of files, as {str(items[0])!r}: give their folder, or their texts")
    return items


def _texts(items: list[Any], column: str | None) -> list[str]:
    """Return the strings that the items are or have in their text column, one or several each; else an empty list."""
    texts = []
    for item in items:
        cells = _cells(item, column)
        if cells is None:
            return []
        texts += cells
    return texts


def _cells(item: Any, column: str | None) -> list[str] | None:
    """Return the strings of an item, none for an empty cell; None if the item is not text."""
    if isinstance(item, str):
        return [item]
    if isinstance(item, tuple) and any(isinstance(part, str) or _holds_strings(part) for part in item):
        raise InputError("strings come in tuples with something else: give them alone, as [text for text, _ in data]")
    turn = item[0] if isinstance(item, list | tuple) and item else item
    if isinstance(turn, Mapping) and {"role", "content"} <= turn.keys():
        raise InputError("a chat is no text: give strings, as tokenizer.apply_chat_template(chat, tokenize=False)")
    if not isinstance(item, Mapping) or "input_ids" in item:
        return None
    column = usual_column([*item]) if column is None else column
    if column is None:
        if any(are_strings(cells) or isinstance(cells, str) for cells in item.values()):
            check_column([*map(str, item)], column, "the rows")
        return None
    cells = item.get(column)
    if cells is None:
        return []
    if isinstance(cells, str):
        return [cells]
    cells = filled(as_list(cells)) if isinstance(cells, list | tuple) or _is_column(cells) else None
    return cells if are_strings(cells) else None


def _examples(data: Any, order: Iterable[int] | None = None) -> list[Any]:
    """List the items of a torch data set, in its own order or another; the parts of tuples become arrays."""
    if isinstance(data, IterableDataset):
        items = list(data)
    elif hasattr(data, "__len__"):
        items = [data[place] for place in (range(len(data)) if order is None else order)]
    else:
        kind = type(data).__name__
        raise InputError(f"this {kind} has no length: give it a __len__, or give a generator of its examples")
    return [tuple(map(_as_array, item)) if isinstance(item, tuple) else item for item in items]


def _as_array(part: Any) -> Any:
    return part if hasattr(part, "shape") else np.asarray(part)


def _batches(given: DataLoader | Iterator) -> list[Any]:
    """List the batches of an iterator or a loader, but the examples if the loader has torch's default collate."""
    if isinstance(given, DataLoader) and given.collate_fn is default_collate:
        return [*map(_stacked, _examples(given.dataset, chain.from_iterable(given.batch_sampler)))]
    return [_checked(batch) for batch in given]


def _stacked(example: Any) -> Any:
    """Give an example with an image or a sound its batch axis, as torch's collate does; token ids need none."""
    if not isinstance(example, Mapping) or not example.keys() & {*PERCEIVES} or "input_ids" in example:
        return example
    return {name: as_tensor(part, str(name))[None] for name, part in example.items() if part is not None}


def _are_of_one_axis(parts: Any) -> bool:
    """Return whether something is a list of one-dimensional tensors or arrays of equal length."""
    if not isinstance(parts, list | tuple):
        return False
    shapes = {getattr(part, "shape", None) for part in parts}
    return len(shapes) == 1 and all(shape is not None and len(shape) == 1 for shape in shapes)


def _are_ids_and_mask(parts: Any, axes: int) -> bool:
    """Return whether something is token ids with `axes` axes, their mask and perhaps labels."""
    few = isinstance(parts, list | tuple) and 1 < len(parts) <= 3
    return few and getattr(parts[0], "ndim", 0) == axes and "attention_mask" in _named(parts)


def _checked(batch: Any) -> Any:
    """Return a batch as it is; refuse a list of tensors that may be one per sequence or one per place."""
    if _are_ids_and_mask(batch, axes=1):
        return batch
    for part in batch.values() if isinstance(batch, Mapping) else [batch]:
        if _are_of_one_axis(part) and len(part) > 1:
            raise InputError(
                f"a batch holds a list of {len(part)} tensors of shape {tuple(part[0].shape)}, and each may be a "
                "sequence or, as torch's default collate has it, a place of all: give tensors (n_sequences, seq_len)"
            )
    return batch


def _joined(batches: list[Any]) -> dict[str, Tensor]:
    """Concatenate batches or examples along the axis of sequences."""
    if not batches:
        raise InputError("a data set of 0 sequences: give one that holds token ids")
    given = [batch if isinstance(batch, Mapping) else _named(batch) for batch in batches]
    if any(map(_is_ragged, given)):  # as Dataset.iter gives them
        given = [example for batch in given for example in _examples_of(batch)]
    names = [name for name in given[0] if name != "labels"]
    if not names or any(set(names) != set(batch) - {"labels"} for batch in given):
        raise InputError(f"batches of other keywords than the first, which has {', '.join(map(str, names)) or 'none'}")
    parts = {name: [as_tensor(batch[name], str(name)) for batch in given] for name in names}
    if any(part.ndim == 0 for part in parts.get("input_ids", [])):
        raise InputError("input_ids of single numbers, a tuple's first part or a dict's: give sequences of token ids")
    if "input_ids" in parts and all(part.ndim == 1 for part in parts["input_ids"]):  # one example each
        parts = {name: [part[None] for part in of_name] for name, of_name in parts.items() if of_name[0].ndim}
    for prefix in ("", "decoder_"):
        ids = parts.get(f"{prefix}input_ids")
        if ids is not None:
            masks = parts.setdefault(f"{prefix}attention_mask", [torch.ones_like(part) for part in ids])
            for part, mask in zip(ids, masks, strict=True):
                if mask.shape != part.shape:
                    shapes = f"{tuple(mask.shape)} for {prefix}input_ids of shape {tuple(part.shape)}"
                    raise InputError(f"{prefix}attention_mask of shape {shapes}: give a place for each token")
    return {name: _padded(of_name, str(name)) for name, of_name in parts.items()}


def _named(batch: Any) -> dict[str, Any]:
    """Name the parts of a batch of token ids; a tuple gives its first tensor, and the second if it looks like a mask.

    Raises:
        InputError: the second holds 0 and 1, but not at one end as padding does: labels of tokens look like that.
    """
    if not isinstance(batch, list | tuple) or not len(batch) or not hasattr(batch[0], "shape"):
        return {"input_ids": batch}
    ids, *others = batch
    if others and getattr(others[0], "shape", None) == ids.shape:
        mask = as_tensor(others[0], "attention_mask")
        if ((mask == 0) | (mask == 1)).all():
            changes = mask.int().diff(dim=-1) != 0
            if (changes.sum(-1) > 1).any():
                raise InputError(
                    "beside token ids stands a tensor of 0 and 1 that is not padding at one end: leave labels out, or "
                    "name a mask in a dict, {'input_ids': ids, 'attention_mask': mask}"
                )
            return {"input_ids": ids, "attention_mask": mask}
    return {"input_ids": ids}


def _padded(parts: list[Tensor], name: str) -> Tensor:
    """Concatenate tensors along the first axis, the second axis padded with 0 to the longest."""
    if len({(part.ndim, part.shape[2:]) for part in parts}) > 1:
        raise InputError(f"{name} of shapes {', '.join(sorted({str(tuple(part.shape)) for part in parts}))} in batches")
    if parts[0].ndim < 2 or len({part.shape[1] for part in parts}) == 1:
        return torch.cat(parts)
    return pad_sequence([row for part in parts for row in part], batch_first=True)


def _columns(given: Any) -> list[str]:
    """Return the names of the columns of a data set or a table."""
    names = names_of(given)
    if not names and is_stream(given):
        names = next(iter(given), ())  # of its first row
    return [str(name) for name in names]


def is_table(given: Any) -> bool:
    """Whether something is a data set or a table with named columns."""
    names = getattr(given, "column_names", None)
    if isinstance(given, Mapping | Tensor) and not isinstance(names, dict):
        return False
    return hasattr(given, "columns") or is_stream(given) or isinstance(names, list | dict)


def is_tokenised(given: Any) -> bool:
    """Return whether something is a data set of token ids without the text that they were made from."""
    return is_table(given) and "input_ids" in _columns(given) and not {*_columns(given)} & {*COLUMNS}
