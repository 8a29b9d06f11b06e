"""One pass over the text: moments of every block in groups of rows, apart wherever a protocol may want them apart.

A protocol leaves out rows (the first of every sequence, the loudest) or takes fewer of them. Moments add, so those of
any selection are a sum over groups, and no activation is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.protocol.layout import Layout
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.forward import trunk
from howlinear.text.rows import FOLDS, batch_of

LOUDEST = 0.01  # share of the rows that count as loud
PILOT = 32  # sequences that say how loud that is
BATCH = 16  # sequences in a forward pass
MEMORY = 1_000_000_000  # bytes of moments held at a time; a wider model takes several passes


@dataclass(frozen=True)
class Group:
    """Which rows some moments are of.

    Attributes:
        test: whether they are held out.
        fold: their fold.
        step: the step at which they join the train rows.
        first: whether they are the first of their sequences.
        loud: whether their outputs are among the loudest.
    """

    test: bool
    fold: int
    step: int
    first: bool
    loud: bool


Groups = Mapping[Group, Moments]


def stream(model: PreTrainedModel, layout: Layout, memory: int = MEMORY) -> Iterator[tuple[int, Groups]]:
    """Moments of every block, group by group.

    Args:
        model: the model; left exactly as it was.
        layout: what it reads.
        memory: bytes of moments to hold at a time; above it blocks take turns, each with a pass over the text.

    Yields:
        A block's number, and its moments.

    Raises:
        InputError: a row that is not finite.
    """
    chosen = sites(model)
    thresholds = loudness(model, layout, chosen)
    width = width_of(model)
    most_groups = FOLDS * (len(layout.factors) + 1) * 4
    per_block = most_groups * 2 * width**2 * 8
    at_a_time = max(1, memory // per_block)
    for start in range(0, len(chosen), at_a_time):
        some = chosen[start : start + at_a_time]
        moments: dict[int, dict[Group, Moments]] = {site.block: {} for site in some}
        _pass(model, layout, some, thresholds, moments)
        for site in some:
            yield site.block, moments.pop(site.block)


def loudness(model: PreTrainedModel, layout: Layout, chosen: list[Site]) -> dict[int, float]:
    """Block → the norm of an output above which it is loud: one in a hundred is, on the first train sequences."""
    norms: dict[int, Tensor] = {}

    def keep(site: Site, _: Tensor, y: Tensor) -> None:
        norms[site.block] = y.flatten(0, -2).float().norm(dim=1)

    train = (~layout.rows.test).nonzero()[:, 0]
    with hooked(chosen, keep), torch.no_grad():
        trunk(model, batch_of(model, layout.rows, train[:PILOT]))
    return {block: float(found.quantile(1 - LOUDEST)) for block, found in norms.items()}


def _pass(
    model: nn.Module,
    layout: Layout,
    chosen: list[Site],
    thresholds: Mapping[int, float],
    moments: dict[int, dict[Group, Moments]],
) -> None:
    """Run all sequences once and add their rows to the moments of their groups."""
    seq_len = layout.rows.ids.shape[1]
    for (test, fold, step), sequences in _members(layout):
        for batch in sequences.split(BATCH):
            first = torch.arange(len(batch) * seq_len) % seq_len == 0

            def keep(site: Site, x: Tensor, y: Tensor, first=first, test=test, fold=fold, step=step) -> None:
                x = x.flatten(0, -2)
                y = y.flatten(0, -2)
                loud = y.float().norm(dim=1) > thresholds[site.block]
                for is_first in (False, True):
                    for is_loud in (False, True):
                        rows = ((first == is_first) & (loud == is_loud)).nonzero()[:, 0]
                        group = Group(test, fold, step, is_first, is_loud)
                        _add(moments[site.block], group, x[rows], y[rows])

            with hooked(chosen, keep), torch.no_grad():
                trunk(model, batch_of(model, layout.rows, batch))


def _members(layout: Layout) -> Iterator[tuple[tuple[bool, int, int], Tensor]]:
    """(held out?, fold, step) → its sequences."""
    for test in (False, True):
        for fold, members in enumerate(layout.rows.folds(test)):
            for step in layout.step[members].unique().tolist():
                yield (test, fold, step), members[layout.step[members] == step]


def _add(moments: dict[Group, Moments], group: Group, x: Tensor, y: Tensor) -> None:
    """Add rows to a group's moments, which begin where there are any."""
    if not len(x):
        return
    if group not in moments:
        moments[group] = Moments(x.shape[1], y.shape[1])
    moments[group].update(x, y)


def select(groups: Groups, test: bool, step: int, position_0: bool = True, loud: bool = True) -> list[Moments]:
    """Moments per fold of one side, of the rows that are asked for.

    Args:
        groups: of a block.
        test: the held-out side, or that of the fit.
        step: the train rows that have joined by then.
        position_0: with the first row of every sequence.
        loud: with the loudest rows.

    Raises:
        InputError: a fold has none of these rows.
    """
    folds: list[Moments | int] = [0] * FOLDS
    for group, moments in groups.items():
        wanted = group.test == test and group.step <= step
        if wanted and (position_0 or not group.first) and (loud or not group.loud):
            folds[group.fold] = folds[group.fold] + moments
    if any(isinstance(fold, int) for fold in folds):
        raise InputError("a fold has no rows left: use more text")
    return folds
