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

import torch
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.protocol.layout import Layout
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.forward import trunk
from howlinear.text.rows import FOLDS, batch_of

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

    def keep(site: Site, _: Tensor, y: Tensor) -> None:
        norms = y.flatten(0, -2).float().norm(dim=1)
        thresholds[site.block] = float(norms.quantile(1 - LOUDEST))

    train = (~layout.rows.test).nonzero()[:, 0]
    with hooked(every_site, keep), torch.no_grad():
        trunk(model, batch_of(model, layout.rows, train[:PILOT]), every_site[-1])
    return thresholds


@torch.no_grad()
def _read(
    model: PreTrainedModel, layout: Layout, some: list[Site], thresholds: Mapping[int, float]
) -> dict[int, Groups]:
    """Run all sequences once; return block → the moments of its groups, without those that have no rows."""
    width = width_of(model)
    moments = {site.block: defaultdict(partial(Moments, width, width)) for site in some}
    seq_len = layout.rows.ids.shape[1]
    for test, fold, step, sequences in _members(layout):
        for batch in sequences.split(BATCH):
            first = torch.arange(len(batch) * seq_len) % seq_len == 0

            def keep(site: Site, x: Tensor, y: Tensor, first=first, test=test, fold=fold, step=step) -> None:
                x = x.flatten(0, -2)
                y = y.flatten(0, -2)
                loud = y.float().norm(dim=1) > thresholds[site.block]
                for is_first, is_loud in product((False, True), repeat=2):
                    inside = (first == is_first) & (loud == is_loud)
                    if inside.any():
                        group = Group(test, fold, step, is_first, is_loud)
                        moments[site.block][group].update(x[inside], y[inside])

            with hooked(some, keep):
                trunk(model, batch_of(model, layout.rows, batch), some[-1])
    return moments


def _members(layout: Layout) -> Iterator[tuple[bool, int, int, Tensor]]:
    """Yield held out or not, fold, step, and the sequences in them."""
    for test in (False, True):
        for fold, members in enumerate(layout.rows.folds(test)):
            steps = layout.step[members]
            for step in steps.unique().tolist():
                yield test, fold, step, members[steps == step]


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
