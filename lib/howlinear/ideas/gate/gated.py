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
"""Takes inputs, and returns one number per row; rows of the lowest numbers take the line first."""

FLOOR = 1e-6
"""Squared errors below this share of their mean are raised to it: smaller ones are rounding, which a logarithm would
magnify."""

FINE = 256.0
"""How often a random rank cycles over one unit of a projection of x: too fine for an affine score to follow, and coarse
enough that rounding differences of x between processors change almost no rank."""


def log_error(y: Float[Tensor, "n d"], line: Float[Tensor, "n d"], floor: float) -> Float[Tensor, " n"]:
    """Compute the logarithm of each row's squared error ‖y − line‖², raised to at least `floor`; float64."""
    squared = (y.double() - line.double()).square().sum(1)
    return squared.clamp_min(floor).log()


def affine_score(affine: AffineMap, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Score each row x by an affine function, d + 1 numbers: all that is computed in addition to the line."""
    return affine(x)[:, 0]


@torch.no_grad()
def true_error(ffn: nn.Module, line: AffineMap, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Compute the true squared error of a line at each row: an oracle, since it needs the FFN."""
    error = _as_one_sequence(ffn, x) - line(x)
    return error.square().sum(1)


@dataclass(frozen=True)
class RandomRank:
    """A random number for each row, uniform in [0, 1), and the same for the same row in every call.

    It is the fractional part of a large multiple of a random projection of x, so no smooth function of x predicts it.
    """

    direction: Float[Tensor, " d"]  # of the projection, float64, scaled so that x along it has variance 1

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
    """A line in the place of an FFN for rows of low rank; the FFN is computed for the other rows only."""

    def __init__(self, ffn: nn.Module, line: AffineMap, rank: Rank, threshold: float, share: float = float("nan")):
        super().__init__()
        self.ffn = ffn
        self.line = line
        self.rank = rank
        self.threshold = threshold  # rows of at most this rank take the line
        self.share = share  # of the training rows that does

    def takes(self, x: Float[Tensor, "n d"]) -> Bool[Tensor, " n"]:
        """Which rows take the line, shape (n,)."""
        return self.rank(x) <= self.threshold

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return the line's output for rows that take it, the FFN's for all others."""
        rows = x.flatten(0, -2)
        takes = self.takes(rows)
        y = torch.empty_like(rows)
        y[takes] = self.line(rows[takes])
        y[~takes] = _as_one_sequence(self.ffn, rows[~takes])
        return y.view(x.shape)


def _as_one_sequence(ffn: nn.Module, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Apply a block to rows, as one sequence, since some blocks need an axis of sequences."""
    return ffn(rows[None])[0]
