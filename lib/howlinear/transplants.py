"""Other inputs for the same weights: another model's, normal ones, standardised ones.

A referee of arXiv 2606.19379 asked whether a profile comes from a block's weights or from what the block is fed. Here
rows of one model are dressed in another's mean and covariance, or drawn from the normal distribution that has both.
On normal rows `hermite.predicted` knows the answer without a fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from howlinear.capture import BlockCapture
from howlinear.ceilings import spectrum, whitening
from howlinear.controls import recovered, respond
from howlinear.errors import InputError
from howlinear.moments import Moments


@dataclass(frozen=True)
class Colour:
    """Mean and covariance of rows, factorised: x = mean + (white coordinates) · `root`.

    Attributes:
        mean: shape (d,).
        vectors: eigenvectors of the correlation matrix without null directions, shape (d, rank).
        unroot: whitens centred rows, shape (d, rank).
        root: the way back, shape (rank, d).
    """

    mean: Float[Tensor, " d"]
    vectors: Float[Tensor, "d rank"]
    unroot: Float[Tensor, "d rank"]
    root: Float[Tensor, "rank d"]

    @classmethod
    def of(cls, moments: Moments) -> Colour:
        """The colour of the rows in `moments`; `InputError` if no input varies."""
        scale, values, vectors = spectrum(moments)
        root = (values / moments.n).sqrt()[:, None] * vectors.T * torch.where(scale > 0, 1 / scale, 0)
        return cls(moments.mean_x, vectors, whitening(moments), root)

    def white(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n rank"]:
        """Rows of this colour to rows of mean 0 and covariance 1, float64."""
        return (x.double() - self.mean) @ self.unroot


def recoloured(
    x: Float[Tensor, "n d"], source: Colour, target: Colour, turn: int | None = None
) -> Float[Tensor, "n d"]:
    """Rows of one colour in another: whitened, then given the target's mean and covariance.

    Covariances say nothing of how white rows are to be turned. By default they are turned as little as the two sets of
    null directions allow (the polar factor; without null directions, not at all), in coordinates scaled to unit
    variance. Null directions of the target stay null; where the source has fewer directions, some of the target's stay
    empty.

    Args:
        x: rows, shape (n, d).
        source: their colour.
        target: the colour to give them.
        turn: a seed to turn white rows at random first: then no direction keeps its meaning, only the shape stays.

    Raises:
        InputError: widths differ.
    """
    width, other = len(source.mean), len(target.mean)
    if not x.shape[1] == width == other:
        raise InputError(f"rows of width {x.shape[1]} from a model of {width} to one of {other}: widths must agree")
    turned = source.vectors.T
    if turn is not None:
        generator = torch.Generator().manual_seed(turn)
        turned = turned @ torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
    left, _, right = torch.linalg.svd(turned @ target.vectors, full_matrices=False)
    return (target.mean + source.white(x) @ (left @ (right @ target.root))).to(x.dtype)


def transplants(
    kept: Sequence[BlockCapture], ffns: Sequence[nn.Module], all_three: bool = True
) -> Float[np.ndarray, "shapes colours weights"]:
    """R²_lin of one block of several models on one another's rows.

    Args:
        kept: each model's rows at this block.
        ffns: each model's FFN there.
        all_three: False: only where weights and colour are of one model (what the referee asked for); the rest is NaN.

    Returns:
        R² on held-out rows, by whose rows, whose mean and covariance, and whose weights.

    Raises:
        InputError: no rows were sampled, a block for each is not there, or widths differ.
    """
    samples = [block.sample for block in kept if block.sample is not None]
    if not len(samples) == len(kept) == len(ffns):
        raise InputError(f"{len(samples)} samples of {len(kept)} blocks for {len(ffns)} FFNs: give each model's")
    colours = [Colour.of(sum(block.train)) for block in kept]
    r2 = np.full([len(samples)] * 3, np.nan)
    for i, sample in enumerate(samples):
        for j, target in enumerate(colours):
            x = recoloured(sample.x, colours[i], target)
            for k in range(len(ffns)) if all_three else [j]:
                r2[i, j, k] = recovered(x, respond(ffns[k], x), sample, intervals=False).r2
    return r2


def gaussian(colour: Colour, n: int, seed: int = 0) -> Float[Tensor, "n d"]:
    """Normal rows of a colour: its mean, its covariance and nothing else, shape (n, d), float32."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(n, len(colour.mean), generator=generator, dtype=torch.float64)
    return (colour.mean + white @ (colour.vectors @ colour.root)).float()


def standardised(x: Float[Tensor, "n d"], moments: Moments) -> Float[Tensor, "n d"]:
    """Rows with every feature at mean 0 and variance 1 (constant ones at 0), by the train rows' moments."""
    scale, _, _ = spectrum(moments)
    return ((x.double() - moments.mean_x) * scale * moments.n**0.5).to(x.dtype)
