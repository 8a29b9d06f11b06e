"""Fit a gate in closed form: a line, a score of d + 1 numbers, and the line once more on the rows that take it.

arXiv 2603.03459 trains a gate of as many numbers. Here nothing is trained by gradient. In this order:

1. massive rows (`instrument.massive`) are left to the FFN: no line is fitted to them;
2. the first line is the least-squares line of the ordinary rows;
3. the score is the least-squares affine function from x to the logarithm of the first line's squared error, fitted to
   all rows. The logarithm is used because errors range over decades and only their order counts; all rows are used
   because a massive row must be recognised by its x alone;
4. rows of low score take the line, which is then refitted to the ordinary rows among them.

Errors are weighted alike in all directions. We also tried to weight them by what they cost in the loss, by the metric
of notebook 06's prices, and to fit the squared error or its root instead of the logarithm: with half of the tokens on
the line, in three blocks each of mini-llama and mini-gpt2, nothing improved by more than the intervals resolve, and the
first variant needs a backward pass.

The same steps with the true error instead of the score make an oracle, and with random numbers instead of the score
they show what an uninformed gate achieves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howlinear.core.ceilings import AffineMap, Ceiling, ceiling, fit
from howlinear.errors import InputError
from howlinear.ideas.gate.gated import FLOOR, Gated, RandomRank, Rank, affine_score, log_error, true_error
from howlinear.ideas.gate.rows import BlockRows

GATE, ORACLE, RANDOM = "gate", "oracle", "random"

FEWEST = 2
"""Rows per input below which the line is not refitted: on fewer, the new line's estimation error, a share of about
d / n more, is as large as the gain."""


@dataclass(frozen=True)
class BlockGate:
    """A block with its fitted gate; a threshold turns it into a module."""

    ffn: nn.Module
    rows: BlockRows  # its training rows
    ordinary: Bool[Tensor, " n"]  # which of them are not massive
    line: AffineMap  # the first line
    error_score_fit: Ceiling  # of the score to the log error, held out; its `map` is the score
    ranks: Mapping[str, Rank]  # kind → the rank by which rows take the line
    ranked: Mapping[str, Float[Tensor, " n"]]  # kind → the rank of each training row

    def threshold(self, kind: str, share: float) -> float:
        """Find the rank that a share of the training rows does not exceed; infinite if all or none take the line."""
        if not 0 <= share <= 1:
            raise InputError(f"a share of {share} of the tokens on the line: give a number from 0 to 1")
        if share == 1:
            return float("inf")
        count = round(share * len(self.ordinary))
        if count == 0:
            return float("-inf")
        return float(self.ranked[kind].kthvalue(count).values)

    def refitted(self, kind: str, threshold: float) -> AffineMap:
        """Refit the line to the ordinary rows of at most this rank; return the first line if these are too few."""
        takes = self.ordinary & (self.ranked[kind] <= threshold)
        if int(takes.sum()) < FEWEST * (self.rows.x.shape[1] + 2):
            return self.line
        affine, _ = fit(self.rows.moments(takes))
        return affine

    def gated(self, kind: str, share: float, anew: bool = True) -> Gated:
        """Build the module for the block's place, with the line refitted to the rows that take it, or the first line.

        This share of the training rows takes the line; on other text the share will be about the same.
        """
        threshold = self.threshold(kind, share)
        line = self.refitted(kind, threshold) if anew else self.line
        return Gated(self.ffn, line, self.ranks[kind], threshold, share)


@torch.no_grad()
def fit_gate(ffn: nn.Module, rows: BlockRows, held_out: BlockRows, seed: int = 0) -> BlockGate:
    """Fit a block's gate, and see how much of the error its score explains on held-out rows."""
    # the first line, of ordinary rows: min ‖y − x W − b‖²
    ordinary = ~rows.massive
    line, _ = fit(rows.moments(ordinary))
    predicted = line(rows.x.double())
    squared = (rows.y.double() - predicted).square().sum(1)

    # the score, of all rows: the affine function of x nearest to log ‖y − x W − b‖²
    floor = FLOOR * float(squared.mean())
    of_fit = log_error(rows.y, predicted, floor)
    of_others = log_error(held_out.y, line(held_out.x.double()), floor)
    error_score_fit = ceiling(rows.moments_with(of_fit), held_out.moments_with(of_others))

    ranks = {
        GATE: partial(affine_score, error_score_fit.map),
        ORACLE: partial(true_error, ffn, line),
        RANDOM: RandomRank.of(rows.x, seed),
    }
    ranked = {
        GATE: ranks[GATE](rows.x),
        # needs no call of the block, since the outputs of training rows are stored
        ORACLE: squared.to(rows.x),
        RANDOM: ranks[RANDOM](rows.x),
    }
    return BlockGate(ffn, rows, ordinary, line, error_score_fit, ranks, ranked)
