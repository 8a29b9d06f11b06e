"""A block's linear problem as an optimiser gets it: rows, folds, and the inputs' coordinates.

The optimisers (`training`) and the closed form get the same rows, and are scored on the same held-out moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.core.ceilings import AffineMap, decompose, whitening
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture

SCALINGS = ("raw", "standardised", "whitened")


@dataclass(frozen=True)
class Problem:
    """One block's linear problem: rows to train on, rows to choose the rate by, rows to be judged on."""

    x: Float[Tensor, "n d_in"]  # to train on, float32
    y: Float[Tensor, "n d_out"]
    folds: list[Moments]  # of these rows, per document fold, for the closed form
    validation: Moments  # of the train fold set aside to choose the rate, which the held-out side never does
    test: list[Moments]  # held out, per document fold

    @classmethod
    def of(cls, kept: BlockCapture) -> Problem:
        """Build the problem of a block's sampled train rows; the last train fold becomes the validation side."""
        sample = kept.rows_in_folds()
        moments = sample.moments(test=False)
        training = torch.cat(sample.folds(test=False)[:-1]).sort().values
        return cls(
            x=sample.x[training],
            y=sample.y[training],
            folds=moments[:-1],
            validation=moments[-1],
            test=kept.test,
        )

    @cached_property
    def moments(self) -> Moments:
        """Moments of the rows to train on."""
        return sum(self.folds)

    @cached_property
    def held_out(self) -> Moments:
        """Moments of all held-out rows."""
        return sum(self.test)


@dataclass(frozen=True)
class Coordinates:
    """Inputs as an optimiser sees them, z = (x − origin) mixing."""

    origin: Float[Tensor, " d_in"]
    mixing: Float[Tensor, "d_in k"]  # the new directions, one per column

    @classmethod
    def of(cls, moments: Moments, scaling: str) -> Coordinates:
        """Coordinates that suit the inputs behind `moments`."""
        if scaling == "raw":
            return cls(torch.zeros_like(moments.mean_x), torch.eye(moments.d_in).to(moments.sxx))
        if scaling == "standardised":
            inverse_norm = decompose(moments).scale  # 1 / √Σ(x − x̄)², and 0 for a constant input
            return cls(moments.mean_x, torch.diag(inverse_norm * moments.n**0.5))
        if scaling == "whitened":
            return cls(moments.mean_x, whitening(moments))
        raise InputError(f"no scaling {scaling!r}: one of {', '.join(SCALINGS)}")

    def rows(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n k"]:
        """The rows in these coordinates, float64."""
        return (x.double() - self.origin) @ self.mixing

    def undo(self, weight: Float[Tensor, "k d_out"], bias: Float[Tensor, " d_out"]) -> AffineMap:
        """Convert a map of z to the equal map of x."""
        # z V + c = (x − origin) M V + c, so W = M V and b = c − origin W
        weight = self.mixing @ weight.double()
        return AffineMap(weight, bias.double() - self.origin @ weight)
