"""What a profile could owe to something else: other weights, other pairs, few rows.

The paper (arXiv 2606.19379) argues that recoverability is learned; a referee asked what else could make such a
profile. Here: weights in disorder (permuted, or directions drawn anew) or wholly random, the chance floor of shuffled
pairs, and how few rows carry a block. Other inputs are in `transplants`, an analysis of variance in `variance`.
Haar-random directions: Mezzadri (2007, "How to generate random matrices from the classical compact groups"). Error of
least squares on normal rows: Stein (1960, "Multiple regression").
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.capture import Sample, capture
from howlinear.ceilings import Ceiling, ceiling
from howlinear.corpora import TokenRows
from howlinear.errors import InputError
from howlinear.models import untrained
from howlinear.moments import Moments

_CHUNK = 2_048  # rows in a forward pass: hidden activations are four times as wide


@torch.no_grad()
def respond(ffn: nn.Module, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_out"]:
    """A block's outputs for rows that need not be its own; `ffn` is the `output` of a `Site`."""
    weight = next(ffn.parameters())
    return torch.cat([ffn(part.to(weight)[None])[0] for part in x.split(_CHUNK)])


def recovered(
    x: Float[Tensor, "n d_in"], y: Float[Tensor, "n d_out"], sample: Sample, intervals: bool = True
) -> Ceiling:
    """R²_lin of rows made from a sample's: the same tokens to fit on, the same held out, the same document folds.

    Args:
        x: inputs, shape (n, d_in), a row for each of the sample's.
        y: outputs, shape (n, d_out).
        sample: says which rows are held out, and the fold of each.
        intervals: jackknife over folds; without, it takes a tenth of the time.

    Raises:
        InputError: rows do not match the sample, or as `ceiling`.
    """
    if not len(x) == len(y) == len(sample.test):
        raise InputError(f"{len(x)} inputs and {len(y)} outputs for a sample of {len(sample.test)} rows: give each one")
    fold = sample.fold if intervals else torch.zeros_like(sample.fold)
    sides: list[list[Moments]] = [[], []]
    for test in (False, True):
        for number in fold[sample.test == test].unique():
            rows = (sample.test == test) & (fold == number)
            sides[test].append(Moments(x.shape[1], y.shape[1]).update(x[rows], y[rows]))
    return ceiling(*sides)


def permuted(ffn: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with the entries of each weight matrix in random order: same values, no structure. Biases stay."""

    def shuffle(weight: Tensor, generator: torch.Generator) -> Tensor:
        return weight.flatten()[torch.randperm(weight.numel(), generator=generator)].view_as(weight)

    return _reweighted(ffn, shuffle, seed)


def redrawn(ffn: nn.Module, seed: int = 0) -> nn.Module:
    """A copy whose weight matrices keep their singular values and get Haar-random directions. Biases stay."""

    def redraw(weight: Tensor, generator: torch.Generator) -> Tensor:
        values = torch.linalg.svdvals(weight.double())
        left, right = (_directions(size, len(values), generator) for size in weight.shape)
        return (left * values) @ right.T

    return _reweighted(ffn, redraw, seed)


def _directions(size: int, count: int, generator: torch.Generator) -> Float[Tensor, "size count"]:
    """Haar-random orthonormal columns: QR of normal numbers, signs from R."""
    q, r = torch.linalg.qr(torch.randn(size, count, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


@torch.no_grad()
def _reweighted(ffn: nn.Module, change: Callable[[Tensor, torch.Generator], Tensor], seed: int) -> nn.Module:
    matrices = [name for name, parameter in ffn.named_parameters() if parameter.ndim == 2]
    if not matrices:
        raise InputError(f"a {type(ffn).__name__} has no weight matrix to change: pass a site's `output` module")
    copy, generator = deepcopy(ffn), torch.Generator().manual_seed(seed)
    for name in matrices:
        weight = copy.get_parameter(name)
        weight.copy_(change(weight.cpu(), generator))
    return copy


def random_profiles(
    model: PreTrainedModel, rows: TokenRows, seeds: int, every: int = 1
) -> Float[np.ndarray, "seeds b"]:
    """R²_lin of a whole model with fresh weights, held out, a row for each seed; random blocks feed one another.

    Args:
        model: only its configuration counts.
        rows: token rows.
        seeds: how many random models, from seed 0.
        every: take only every so manieth sequence of each side, for time.
    """
    some = torch.cat([(rows.test == side).nonzero()[::every, 0] for side in (False, True)])
    rows = TokenRows(rows.ids[some], rows.test[some], 0 * rows.fold[some], rows.corpus)
    found = (capture(untrained(model, seed), rows).values() for seed in range(seeds))
    return np.array([[ceiling(block.train, block.test).r2 for block in blocks] for blocks in found])


@dataclass(frozen=True)
class Floor:
    """What least squares scores by chance on few rows.

    Attributes:
        rows: train rows.
        in_sample: R² on the train rows themselves, true pairs.
        held_out: on held-out rows, true pairs.
        shuffled_in_sample: R² on the train rows, with y dealt at random to x.
        shuffled_held_out: the same on held-out rows.
        expected_in_sample: rank / (rows − 1), for any x and exchangeable y.
        expected_held_out: 1 − (n + 1)(n − 2) / (n (n − rank − 2)), for normal x and independent y.
    """

    rows: int
    in_sample: float
    held_out: float
    shuffled_in_sample: float
    shuffled_held_out: float
    expected_in_sample: float
    expected_held_out: float


def chance_floor(sample: Sample, rows: int, seed: int = 0) -> Floor:
    """Fit true and shuffled pairs on `rows` of a sample's train rows; score on the same and on its held-out rows.

    Raises:
        InputError: the sample has too few train rows, or `rows` are too few for its width.
    """
    train, test = (~sample.test).nonzero()[:, 0], sample.test.nonzero()[:, 0]
    if not sample.x.shape[1] + 3 < rows <= len(train):
        raise InputError(
            f"a floor at {rows} rows: give from {sample.x.shape[1] + 4} up to the sample's {len(train)} train rows"
        )
    generator = torch.Generator().manual_seed(seed)
    train = train[torch.randperm(len(train), generator=generator)[:rows]]
    dealt = [side[torch.randperm(len(side), generator=generator)] for side in (train, test)]
    scores = []
    for outputs in ((train, test), dealt):
        fitted, held = (
            Moments(sample.x.shape[1], sample.y.shape[1]).update(sample.x[x], sample.y[y])
            for x, y in zip((train, test), outputs, strict=True)
        )
        found = ceiling(fitted, held)
        scores += [ceiling(fitted, fitted).r2, found.r2]
    above = (rows + 1) * (rows - 2) / (rows * (rows - found.rank - 2))
    return Floor(rows, *scores, expected_in_sample=found.rank / (rows - 1), expected_held_out=1 - above)


def effective_support(rows: Float[Tensor, "n d"]) -> float:
    """Share of rows that carry the variance: (Σw)² / (n Σw²), with w the squared distance of a row from the mean.

    1 if all rows lie equally far out, 1 / n if one row does alone; d / (d + 2) for a normal ball in d dimensions.

    Raises:
        InputError: the rows are all the same.
    """
    weight = (rows.double() - rows.double().mean(0)).square().sum(1)
    if not weight.sum() > 0:
        raise InputError(f"{len(rows)} rows that are all the same have no support: use more or other text")
    return float(weight.mean().square() / weight.square().mean())
