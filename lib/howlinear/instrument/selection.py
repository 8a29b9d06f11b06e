"""Which blocks of a model are looked at, where all would be too dear: listed ones, or some spread over the depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture

Blocks = Mapping[int, BlockCapture]


def spaced(blocks: Iterable[int], count: int) -> list[int]:
    """`count` of the blocks, evenly spaced, the first and the last among them; all if there are no more than that."""
    numbers = list(blocks)
    # halves go up, so that of three the middle one is block `depth // 2`, as everywhere in the project
    places = np.floor(np.linspace(0, len(numbers) - 1, count) + 0.5).astype(int)
    return [numbers[place] for place in np.unique(places)]


def selected(models: Mapping[str, Blocks], blocks: Sequence[int] | None) -> dict[str, Blocks]:
    """The listed blocks of every model; a model that has not all of them is taken whole, and every model for None.

    Args:
        models: model → all its blocks.
        blocks: those that are looked at.

    Returns:
        Model → its blocks in order of depth, still read one at a time.

    Raises:
        InputError: no model has all of them.
    """
    if blocks is None:
        return dict(models)
    have_all = {name for name, of_model in models.items() if set(blocks) <= set(of_model)}
    if not have_all or not blocks:
        depths = ", ".join(f"{name} {len(of_model)}" for name, of_model in models.items())
        raise InputError(f"no model has all of blocks {list(blocks)}: give blocks of one; they have {depths}")
    return {name: _Selected(of_model, blocks) if name in have_all else of_model for name, of_model in models.items()}


class _Selected(Mapping[int, BlockCapture]):
    """Some blocks of a model, read when they are asked for."""

    def __init__(self, blocks: Blocks, numbers: Sequence[int]):
        self._blocks = blocks
        self._numbers = sorted(set(numbers))

    def __getitem__(self, block: int) -> BlockCapture:
        if block not in self._numbers:
            raise KeyError(block)
        return self._blocks[block]

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
