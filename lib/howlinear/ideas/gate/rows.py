"""The single rows of a few blocks, and a text in three parts: to fit gates, to choose thresholds, to measure.

A gate decides row by row and its line is refitted to the rows that take it, so moments of all rows are not enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.resample import rows_of_blocks
from howlinear.text.rows import TokenRows

CHOOSING = 4
"""One in this many training folds is set aside to choose thresholds on."""


class Parts(NamedTuple):
    """A text in three parts that have no document in common."""

    fitting: TokenRows  # lines and scores are fitted here
    choosing: TokenRows  # thresholds are chosen here
    judging: TokenRows  # held out; shares and costs are measured here


def split_in_three(rows: TokenRows, choose_rows: int | None = None, cost_rows: int | None = None) -> Parts:
    """Split a text in three, with thresholds chosen on the last quarter of the training folds."""
    folds = rows.fold[~rows.test].unique()
    if len(folds) < 3:
        raise InputError(
            f"{len(folds)} document folds to fit on: a gate needs three, two to fit it and one to choose its "
            "threshold; use more text"
        )
    chosen_folds = folds[-max(1, len(folds) // CHOOSING) :]
    chooses = ~rows.test & torch.isin(rows.fold, chosen_folds)
    fits = ~rows.test & ~chooses
    return Parts(
        fitting=rows.subset(fits.nonzero()[:, 0]),
        choosing=replace(rows, test=chooses).with_fewer_held_out(choose_rows).held_out,
        judging=rows.with_fewer_held_out(cost_rows).held_out,
    )


@dataclass(frozen=True)
class BlockRows:
    """A block's rows on one part of a text, as they were, sequence after sequence; float32."""

    x: Float[Tensor, "n d"]  # FFN inputs
    y: Float[Tensor, "n d"]  # FFN outputs
    fold: Int64[Tensor, " n"]  # the document fold of each row

    @property
    def massive(self) -> Bool[Tensor, " n"]:
        """Which rows write outputs beyond ten times the median norm (`instrument.massive`), shape (n,)."""
        norm = torch.linalg.vector_norm(self.y, dim=1)
        return norm > MULTIPLE * norm.median()

    def moments(self, which: Bool[Tensor, " n"]) -> Moments:
        """Moments of inputs and outputs of some of the rows."""
        width = self.x.shape[1]
        return Moments(width, width).update(self.x[which], self.y[which])

    def moments_with(self, target: Float[Tensor, " n"]) -> list[Moments]:
        """Compute moments of all inputs with one target number per row, for each document fold in order."""
        folds = [self.fold == number for number in self.fold.unique()]
        return [Moments(self.x.shape[1], 1).update(self.x[inside], target[inside, None]) for inside in folds]


def block_rows(model: PreTrainedModel, text: TokenRows, blocks: list[int]) -> dict[int, BlockRows]:
    """Collect the rows of some blocks by one forward pass without the head, in 8 d bytes per token and block."""
    fold = text.fold.repeat_interleave(text.ids.shape[1])
    return {block: BlockRows(x, y, fold) for block, (x, y) in rows_of_blocks(model, text, blocks).items()}
