"""The rows of a few blocks, each kept as it is, and a text in three parts: to fit gates, to choose, to judge.

A gate decides row by row and its line is fitted anew to the rows that take it, so moments of all rows are not enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import hooked
from howlinear.instrument.massive import MULTIPLE
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.forward import trunk
from howlinear.text.rows import TokenRows

CHOOSING = 4
"""Of the document folds to fit on, one in so many is kept back: a threshold is chosen there."""


@dataclass(frozen=True)
class Part:
    """Some sequences of a text, and the document fold of each.

    Attributes:
        ids: token ids, shape (n, seq_len).
        fold: shape (n,).
    """

    ids: Int64[Tensor, "n seq_len"]
    fold: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Parts:
    """A text in three parts that have no document in common.

    Attributes:
        fitting: lines and scores are fitted here.
        choosing: thresholds are chosen here.
        judging: held out; shares and costs are measured here.
    """

    fitting: Part
    choosing: Part
    judging: Part


def parts(rows: TokenRows, choose_rows: int | None = None, cost_rows: int | None = None) -> Parts:
    """Split a text in three: of the folds to fit on, the last quarter chooses; the held-out side judges.

    Args:
        rows: packed rows.
        choose_rows: tokens that choose, about; None: all of these folds.
        cost_rows: held-out tokens that judge, about; None: all there are.

    Raises:
        InputError: fewer than three document folds to fit on.
    """
    folds = rows.fold[~rows.test].unique()
    if len(folds) < 3:
        raise InputError(
            f"{len(folds)} document folds to fit on: a gate needs three, two to fit it and one to choose its "
            "threshold; use more text"
        )
    kept_back = folds[-max(1, len(folds) // CHOOSING) :]
    chooses = ~rows.test & torch.isin(rows.fold, kept_back)
    fits = ~rows.test & ~chooses
    held_out = rows.with_fewer_held_out(cost_rows)
    return Parts(
        fitting=Part(rows.ids[fits], rows.fold[fits]),
        choosing=_first_of_each_fold(Part(rows.ids[chooses], rows.fold[chooses]), choose_rows),
        judging=Part(held_out.ids[held_out.test], held_out.fold[held_out.test]),
    )


def _first_of_each_fold(part: Part, most: int | None) -> Part:
    """About `most` tokens of a part, the first sequences of every fold."""
    if most is None:
        return part
    folds = part.fold.unique()
    of_each = max(1, most // (len(folds) * part.ids.shape[1]))
    chosen = torch.cat([(part.fold == fold).nonzero()[:of_each, 0] for fold in folds]).sort().values
    return Part(part.ids[chosen], part.fold[chosen])


@dataclass(frozen=True)
class BlockRows:
    """A block's rows on one part of a text, as they were, sequence after sequence.

    Attributes:
        x: FFN inputs, shape (n, d), float32.
        y: FFN outputs, shape (n, d), float32.
        fold: the document fold of each row, shape (n,).
    """

    x: Float[Tensor, "n d"]
    y: Float[Tensor, "n d"]
    fold: Int64[Tensor, " n"]

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
        """Moments of all inputs with one number a row, per document fold, folds in order."""
        by_fold = []
        for number in self.fold.unique():
            inside = self.fold == number
            by_fold.append(Moments(self.x.shape[1], 1).update(self.x[inside], target[inside, None]))
        return by_fold


@torch.no_grad()
def block_rows(model: PreTrainedModel, part: Part, blocks: list[int], batch_size: int = 16) -> dict[int, BlockRows]:
    """The rows of some blocks, by one forward pass without the head.

    Memory: 8 d bytes for each token and block.

    Args:
        model: the model; left as it was.
        part: what it reads.
        blocks: which blocks.
        batch_size: sequences in a pass.

    Raises:
        InputError: a block that the model does not have.
    """
    listened = sites(model, blocks)
    seen: dict[int, list[tuple[Tensor, Tensor]]] = {site.block: [] for site in listened}

    def keep(site: Site, x: Tensor, y: Tensor) -> None:
        seen[site.block].append((x.flatten(0, -2).float().cpu().clone(), y.flatten(0, -2).float().cpu().clone()))

    with hooked(listened, keep):
        for batch in part.ids.split(batch_size):
            trunk(model, batch)
    fold = part.fold.repeat_interleave(part.ids.shape[1])
    found = {}
    for block, batches in seen.items():
        inputs, outputs = zip(*batches, strict=True)
        found[block] = BlockRows(torch.cat(inputs), torch.cat(outputs), fold)
    return found
