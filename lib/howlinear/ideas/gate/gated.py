"""A line for some tokens and the FFN for the others: the module, and three ways to rank the tokens.

A rank is a function of a row's input x. Rows of low rank take the line; a threshold says how low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howlinear.core.ceilings import AffineMap

Rank = Callable[[Float[Tensor, "n d"]], Float[Tensor, " n"]]
"""From inputs to one number a row; the lowest take the line first."""

FLOOR = 1e-6
"""Squared errors below this share of their mean count as that share: beyond it they are rounding, and a logarithm would
make much of it."""

FINE = 256.0
"""How many times a random rank is drawn anew over one unit of a projection of x: too fine for an affine score to know,
and so coarse that what processors round differently in x moves next to none."""


def log_error(y: Float[Tensor, "n d"], line: Float[Tensor, "n d"], floor: float) -> Float[Tensor, " n"]:
    """The logarithm of each row's squared error ‖y − line‖², which counts as no smaller than a floor; float64."""
    squared = (y.double() - line.double()).square().sum(1)
    return squared.clamp_min(floor).log()


def affine_score(affine: AffineMap, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """What is left of the FFN's cost where the line is taken: an affine function of each row x, d + 1 numbers."""
    return affine(x)[:, 0]


@torch.no_grad()
def true_error(ffn: nn.Module, line: AffineMap, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The true squared error of a line at each row: an oracle, for the FFN is computed."""
    error = _as_one_sequence(ffn, x) - line(x)
    return error.square().sum(1)


@dataclass(frozen=True)
class RandomRank:
    """A random number for each row, uniform in [0, 1): the same row draws the same wherever it is asked.

    It is the fractional part of a large multiple of a random projection of x, so that no smooth function of x knows it.

    Attributes:
        direction: of the projection, shape (d,), float64, scaled so that x along it has variance 1.
    """

    direction: Float[Tensor, " d"]

    @classmethod
    def of(cls, x: Float[Tensor, "n d"], seed: int = 0) -> RandomRank:
        """Draw a direction for rows like these."""
        direction = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(seed)).double()
        spread = (x.cpu().double() @ direction).std()
        return cls(direction / spread)

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The random number of each row."""
        along = x.double() @ self.direction.to(x.device)
        return (FINE * along).remainder(1.0).to(x)


class Gated(nn.Module):
    """A line in the place of an FFN for rows of low rank; the FFN is computed for all others, and for no more.

    Attributes:
        ffn: the block.
        line: the line.
        rank: which rows take the line first.
        threshold: rows of this rank or a lower one take it.
        share: of the rows that the gate was fitted to, how many that is.
    """

    def __init__(self, ffn: nn.Module, line: AffineMap, rank: Rank, threshold: float, share: float = float("nan")):
        super().__init__()
        self.ffn = ffn
        self.line = line
        self.rank = rank
        self.threshold = threshold
        self.share = share

    def takes(self, x: Float[Tensor, "n d"]) -> Bool[Tensor, " n"]:
        """Which rows take the line, shape (n,)."""
        return self.rank(x) <= self.threshold

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The line's output where it is taken, the FFN's elsewhere."""
        rows = x.flatten(0, -2)
        takes = self.takes(rows)
        y = torch.empty_like(rows)
        y[takes] = self.line(rows[takes])
        y[~takes] = _as_one_sequence(self.ffn, rows[~takes])
        return y.view(x.shape)


def _as_one_sequence(ffn: nn.Module, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """What a block makes of rows; some blocks ask for an axis of sequences."""
    return ffn(rows[None])[0]
