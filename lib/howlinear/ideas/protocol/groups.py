"""One pass over the text: moments of every block in groups of rows, separate wherever a protocol may separate them.

A protocol leaves out rows (the first of every sequence, the loudest) or takes fewer of them. Moments add, so the
moments of any selection are a sum over groups, and no activation is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.protocol.layout import Layout
from howlinear.instrument.capture import read_tokens
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.text.rows import FOLDS, fold_of

LOUDEST = 0.01  # share of the rows that count as loud
PILOT = 32  # sequences on which the threshold of loudness is measured
BATCH = 16  # sequences in a forward pass
MEMORY = 1_000_000_000  # bytes of moments held at a time; a wider model takes several passes


class Group(NamedTuple):
    """The rows that some moments are computed over."""

    test: bool  # held out
    fold: int
    step: int  # at which they join the train rows
    first: bool  # of their sequences
    loud: bool  # their outputs are among the loudest


Groups = Mapping[Group, Moments]


def stream_groups(
    model: PreTrainedModel, layout: Layout, memory: int = MEMORY, blocks: Iterable[int] | None = None
) -> Iterator[tuple[int, Groups]]:
    """Yield each block with the moments of its groups, in several passes if these exceed `memory` bytes."""
    every_site = sites(model, blocks)
    thresholds = measure_loudness(model, layout, every_site)
    most_groups = FOLDS * (len(layout.factors) + 1) * 4
    bytes_per_block = most_groups * 2 * width_of(model) ** 2 * 8
    at_a_time = max(1, memory // bytes_per_block)
    for start in range(0, len(every_site), at_a_time):
        some = every_site[start : start + at_a_time]
        moments = _read(model, layout, some, thresholds)
        for site in some:
            yield site.block, moments.pop(site.block)


def measure_loudness(model: PreTrainedModel, layout: Layout, every_site: list[Site]) -> dict[int, float]:
    """Block → the output norm above which a row is loud, as one in a hundred is on the first train sequences."""
    thresholds = {}

    def keep(site: Site, _: Tensor, y: Tensor, *__: Tensor) -> None:
        thresholds[site.block] = float(y.float().norm(dim=1).quantile(1 - LOUDEST))

    train = (~layout.rows.test).nonzero()[:, 0]
    read_tokens(model, layout.rows, every_site, [train[:PILOT]], keep)
    return thresholds


def _read(
    model: PreTrainedModel, layout: Layout, some: list[Site], thresholds: Mapping[int, float]
) -> dict[int, Groups]:
    """Run all sequences once; return block → the moments of its groups, without those that have no rows."""
    width = width_of(model)
    moments = {site.block: defaultdict(partial(Moments, width, width)) for site in some}

    def keep(site: Site, x: Tensor, y: Tensor, sequence: Tensor, position: Tensor) -> None:
        test, fold = fold_of(layout.rows, sequence)
        first = position == 0
        loud = y.float().norm(dim=1) > thresholds[site.block]
        for is_first, is_loud in product((False, True), repeat=2):
            inside = (first == is_first) & (loud == is_loud)
            if inside.any():
                group = Group(test, fold, int(layout.step[sequence[0]]), is_first, is_loud)
                moments[site.block][group].update(x[inside], y[inside])

    read_tokens(model, layout.rows, some, _batches(layout), keep)
    return moments


def _batches(layout: Layout) -> Iterator[Tensor]:
    """Yield batches of sequences that are of one side, fold and step."""
    for test in (False, True):
        for members in layout.rows.folds(test):
            steps = layout.step[members]
            for step in steps.unique():
                yield from members[steps == step].split(BATCH)


def select(groups: Groups, test: bool, step: int, position_0: bool = True, loud: bool = True) -> list[Moments]:
    """Sum a block's moments per fold of one side, over the rows that have joined by a step.

    `position_0` and `loud` say whether the first rows of sequences and the loudest rows are included.
    """
    folds: list[list[Moments]] = [[] for _ in range(FOLDS)]
    for group, moments in groups.items():
        joined = group.test == test and group.step <= step
        if joined and (position_0 or not group.first) and (loud or not group.loud):
            folds[group.fold].append(moments)
    if not all(folds):
        raise InputError("a fold has no rows left: use more text")
    return [Moments.total(parts) for parts in folds]
