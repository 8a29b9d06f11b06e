"""Other inputs for the same weights: another model's, normal ones, standardised ones.

A referee of arXiv 2606.19379 asked whether a profile comes from a block's weights or from its inputs. Here rows of one
model are given another's mean and covariance, or drawn from the normal distribution that has both. On normal rows
`core.gaussian.predict_spectrum` gives the answer without a fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.core.ceilings import decompose, whitening
from howlinear.core.moments import Moments


@dataclass(frozen=True)
class Colour:
    """Mean and covariance of rows, factorised: x = mean + (white coordinates) · `root`."""

    mean: Float[Tensor, " d"]
    vectors: Float[Tensor, "d rank"]  # eigenvectors of the correlation matrix without null directions
    unroot: Float[Tensor, "d rank"]  # whitens centred rows
    root: Float[Tensor, "rank d"]  # the way back

    @classmethod
    def of(cls, moments: Moments) -> Colour:
        """The colour of the rows in `moments`; `InputError` if no input varies."""
        inputs = decompose(moments)
        # Λ^½ Vᵀ D⁻¹, whose square is the covariance
        spread = torch.where(inputs.scale > 0, 1 / inputs.scale, 0)
        loudness = (inputs.values / moments.n).sqrt()
        root = loudness[:, None] * inputs.vectors.T * spread
        return cls(moments.mean_x, inputs.vectors, whitening(moments), root)

    def white(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n rank"]:
        """Whiten rows of this colour to mean 0 and covariance 1, float64."""
        return (x.double() - self.mean) @ self.unroot


def recolour(x: Float[Tensor, "n d"], source: Colour, target: Colour, turn: int | None = None) -> Float[Tensor, "n d"]:
    """Recolour rows: whiten them, then give them the target's mean and covariance."""
    width = len(source.mean)
    directions = source.vectors.T
    if turn is not None:
        generator = torch.Generator().manual_seed(turn)
        random = torch.randn(width, width, generator=generator, dtype=torch.float64)
        directions = directions @ torch.linalg.qr(random).Q
    # Covariances do not determine how to rotate white rows. They are rotated as little as the two sets of null
    # directions allow, in coordinates scaled to unit variance. Null directions of the target stay null; if the source
    # has fewer directions, some of the target's stay empty.
    # Q, the rotation nearest to (source directions)ᵀ (target directions): its polar factor
    left, _, right = torch.linalg.svd(directions @ target.vectors, full_matrices=False)
    rotated_root = left @ (right @ target.root)
    coloured = target.mean + source.white(x) @ rotated_root
    return coloured.to(x.dtype)


def gaussian(colour: Colour, n: int, seed: int = 0) -> Float[Tensor, "n d"]:
    """Draw normal rows with a colour's mean and covariance, shape (n, d), float32."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(n, len(colour.mean), generator=generator, dtype=torch.float64)
    symmetric_root = colour.vectors @ colour.root
    rows = colour.mean + white @ symmetric_root
    return rows.float()


def standardise(x: Float[Tensor, "n d"], moments: Moments) -> Float[Tensor, "n d"]:
    """Scale every feature of rows to mean 0 and variance 1 (constant ones to 0), by the train rows' moments."""
    # one over each feature's standard deviation, 0 for a constant one
    scale = decompose(moments).scale * moments.n**0.5
    centred = x.double() - moments.mean_x
    return (centred * scale).to(x.dtype)
