"""Texts that are read only as far as needed: data sets on the Hub, given by id, and any `IterableDataset`.

A data set on the Hub is named `owner/name`, `owner/name:configuration` or `owner/name:configuration:split`; the default
split is `train`. A seed decides the order of its rows: its files are shuffled, and their rows in a buffer of `AHEAD`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from howlinear.errors import HowlinearError, SourceError, first_line
from howlinear.models.sources import UNLOADABLE, hub
from howlinear.text import plain

if TYPE_CHECKING:
    from datasets import IterableDataset

AHEAD = 1_000
"""Rows read ahead of those in use, to be shuffled with them."""

HUB_ID = re.compile(r"(\w[\w.-]*/[\w.-]+)(?::([^:]*))?(?::([^:]+))?")
FILE = re.compile(r".*\.[A-Za-z]\w{0,7}")  # versions end in digits, as in `the-stack-v1.2`


def is_hub_id(name: str) -> bool:
    """Return whether a name may be that of a data set on the Hub, and not a mistyped file path."""
    return bool(HUB_ID.fullmatch(name)) and not FILE.fullmatch(name)


def is_stream(given: Any) -> bool:
    """Return whether something is a data set that is read row by row."""
    return "datasets" in sys.modules and isinstance(given, sys.modules["datasets"].IterableDataset)


@cache  # a caller that checks whether it exists goes on to read it
def open_hub(name: str) -> IterableDataset:
    """Open a data set of the Hub, or of the local cache, without reading any of it yet."""
    from datasets import load_dataset  # slow to import, and needless for other texts

    repository, configuration, split = HUB_ID.fullmatch(name).groups()
    try:
        with hub():
            return load_dataset(repository, configuration or None, split=split or "train", streaming=True)
    except UNLOADABLE as error:
        raise SourceError(
            f"cannot read {name}: no such file or folder here, and as a data set of the Hub: "
            f"{first_line(error).rstrip('.')}; without a network give a text of yours, or docs, code or cpp"
        ) from error


def texts_of(stream: IterableDataset, column: str | None, name: str) -> Iterator[str]:
    """Yield the texts in a column of a stream, row by row, without empty cells."""
    try:
        for place, row in enumerate(stream.with_format(None)):  # rows as dicts, whatever format the caller has set
            if place == 0:
                column = plain.check_column(list(row), column, name)
            text = row.get(column)
            if text is not None:
                plain.check_strings([text], f"column {column!r} of {name}", place)
                yield text
    except HowlinearError:
        raise
    except UNLOADABLE as error:
        raise SourceError(
            f"{name} broke off: {first_line(error).rstrip('.')}; try again, or save what you need as a file"
        ) from error


def documents_of(stream: IterableDataset, column: str | None, name: str, way: str, seed: int) -> Iterator[str]:
    """Yield the documents of a stream, in an order that the seed decides."""
    shuffled = stream.shuffle(seed=seed, buffer_size=AHEAD)
    for text in texts_of(shuffled, column, name):
        yield from plain.WAYS[way](text)
