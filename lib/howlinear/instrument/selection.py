"""The choice of a model's blocks to measure if all would be too costly: listed ones, or some spread over the depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, LazyBlocks

Blocks = Mapping[int, BlockCapture]


def spaced(blocks: Iterable[int], count: int) -> list[int]:
    """`count` of the blocks, evenly spaced, the first and the last among them; all if there are no more than that."""
    numbers = list(blocks)
    # halves go up, so that of three the middle one is block `depth // 2`, as everywhere in the project
    places = np.floor(np.linspace(0, len(numbers) - 1, count) + 0.5).astype(int)
    return [numbers[place] for place in np.unique(places)]


def each_block(models: Mapping[str, Blocks], count: int | None = None) -> Iterator[tuple[str, int, BlockCapture]]:
    """Yield model, block and capture of every block, or of `count` blocks of each model, spread over the depth."""
    for model, blocks in models.items():
        for block in blocks if count is None else spaced(blocks, count):
            yield model, block, blocks[block]


def choose_blocks(rule: str | Sequence[int] | None, blocks: Iterable[int]) -> list[int]:
    """Pick blocks of a model by a rule, whatever its depth.

    Args:
        rule: `all` (the same as None); `ends`, the first and the last; `spaced 4`, this many spread evenly over the
            depth, ends included; `depth 0.25 0.5`, those at these shares of the depth; or block numbers. Numbers that
            the model does not have are printed and left out.
        blocks: the model's blocks, in order of depth.

    Returns:
        Block numbers in order of depth; none if the rule finds none.
    """
    numbers = list(blocks)
    if rule is None or not numbers:
        return numbers
    if not isinstance(rule, str):
        absent = sorted(set(rule) - set(numbers))
        if absent:
            print(f"left out, since the model has blocks {numbers[0]} to {numbers[-1]}:", *absent)
        return sorted(set(rule) & set(numbers))
    match rule.split():
        case ["all"]:
            return numbers
        case ["ends"]:
            return spaced(numbers, 2)
        case ["spaced", count] if count.isdecimal():
            return spaced(numbers, int(count))
        case ["depth", *shares] if shares and all(_is_share(share) for share in shares):
            places = {int(float(share) * (len(numbers) - 1) + 0.5) for share in shares}
            return [numbers[place] for place in sorted(places)]
    raise InputError(f"no rule {rule!r} for blocks: give all, ends, spaced 4, depth 0.25 0.5, or a list of numbers")


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def selected(
    models: Mapping[str, Blocks], rule: str | Sequence[int] | Mapping[str, Sequence[int] | str] | None
) -> dict[str, Blocks]:
    """Pick blocks of every model by a rule; a model without any is left out.

    The rule is as in `choose_blocks`; or model → its own rule, and a model that is not named keeps all its blocks.

    Returns:
        Model → its blocks in order of depth, still read one at a time.
    """
    some = {}
    for name, blocks in models.items():
        of_model = rule.get(name) if isinstance(rule, Mapping) else rule
        chosen = choose_blocks(of_model, blocks)
        if chosen:
            some[name] = LazyBlocks({number: partial(blocks.__getitem__, number) for number in chosen})
    if not some:
        depths = ", ".join(f"{name} {len(blocks)}" for name, blocks in models.items())
        raise InputError(f"blocks {rule!r} are none of any model; they have {depths}")
    return some
