"""A block's linear problem as training meets it: rows, folds, and the inputs' coordinates.

The optimiser study (`optimisers`) and the closed form get the very same rows; the held-out moments judge both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.capture import BlockCapture
from howlinear.ceilings import AffineMap, spectrum, whitening
from howlinear.errors import InputError
from howlinear.moments import Moments

SCALINGS = ("raw", "standardised", "whitened")


@dataclass(frozen=True)
class Problem:
    """One block's linear problem: rows to train on, rows to choose the rate by, rows to be judged on.

    Attributes:
        x: inputs to train on, shape (n, d_in), float32.
        y: outputs, shape (n, d_out), float32.
        folds: moments of these very rows, per document fold: the closed form's side.
        validation: moments of the train fold set aside; it chooses the rate, never the held-out side.
        test: held-out moments per document fold.
    """

    x: Float[Tensor, "n d_in"]
    y: Float[Tensor, "n d_out"]
    folds: list[Moments]
    validation: Moments
    test: list[Moments]

    @classmethod
    def of(cls, kept: BlockCapture) -> Problem:
        """The problem a block's sampled train rows pose; the last train fold becomes the validation side.

        Raises:
            InputError: no sampled rows, or train rows in fewer than two document folds.
        """
        sample = kept.sample
        numbers = [] if sample is None else sample.fold[~sample.test].unique().tolist()
        if len(numbers) < 2:
            raise InputError(
                f"training needs sampled train rows from two document folds or more, there are {len(numbers)}: "
                "capture with sample=4096 and eight folds"
            )
        sides = [~sample.test & (sample.fold == number) for number in numbers]
        shape = sample.x.shape[1], sample.y.shape[1]
        folds = [Moments(*shape).update(sample.x[side], sample.y[side]) for side in sides]
        mine = ~sample.test & (sample.fold != numbers[-1])
        return cls(sample.x[mine], sample.y[mine], folds[:-1], folds[-1], kept.test)

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
    """Inputs as an optimiser sees them, z = (x − origin) mixing; shapes (d_in,) and (d_in, k)."""

    origin: Float[Tensor, " d_in"]
    mixing: Float[Tensor, "d_in k"]

    @classmethod
    def of(cls, moments: Moments, scaling: str) -> Coordinates:
        """`raw`: as they come; `standardised`: mean 0 and variance 1 per feature; `whitened`: uncorrelated, too.

        Raises:
            InputError: no such scaling, or no input that varies.
        """
        if scaling not in SCALINGS:
            raise InputError(f"no scaling {scaling!r}: one of {', '.join(SCALINGS)}")
        if scaling == "raw":
            return cls(torch.zeros_like(moments.mean_x), torch.eye(moments.d_in).to(moments.sxx))
        if scaling == "whitened":
            return cls(moments.mean_x, whitening(moments))
        return cls(moments.mean_x, spectrum(moments)[0].diag() * moments.n**0.5)

    def rows(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n k"]:
        """The rows in these coordinates, float64."""
        return (x.double() - self.origin) @ self.mixing

    def undo(self, weight: Float[Tensor, "k d_out"], bias: Float[Tensor, " d_out"]) -> AffineMap:
        """The map of x that equals this one of z."""
        weight = self.mixing @ weight.double()
        return AffineMap(weight, bias.double() - self.origin @ weight)
