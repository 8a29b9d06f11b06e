"""What a profile could owe to something else: other weights, other pairs, few rows.

The paper (arXiv 2606.19379) argues that recoverability is learned; a referee asked what else could make such a
profile. Here: weights in disorder (permuted, or directions drawn anew) or wholly random, the chance floor of shuffled
pairs, and how few rows carry a block. Other inputs are in `inputs`, an analysis of variance in `anova`.
Haar-random directions: Mezzadri (2007, "How to generate random matrices from the classical compact groups"). Error of
least squares on normal rows: Stein (1960, "Multiple regression").
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howlinear.core.ceilings import Ceiling, ceiling
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import Sample

_CHUNK = 2_048  # rows in a forward pass: hidden activations are four times as wide


@torch.no_grad()
def respond(ffn: nn.Module, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_out"]:
    """A block's outputs for rows that need not be its own; `ffn` maps x to y (`ffn_sites.whole`)."""
    weight = next(ffn.parameters())
    return torch.cat([ffn(part.to(weight)[None])[0] for part in x.split(_CHUNK)])


def sample_ceiling(
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
    sides = []
    for test in (False, True):
        folds = sample.folds(test=test)
        if not intervals:
            folds = [torch.cat(folds)]
        sides.append([Moments(x.shape[1], y.shape[1]).update(x[index], y[index]) for index in folds])
    train, held_out = sides
    return ceiling(train, held_out)


def permute(ffn: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with the entries of each weight matrix in random order: same values, no structure. Biases stay."""

    def shuffle(weight: Tensor, generator: torch.Generator) -> Tensor:
        order = torch.randperm(weight.numel(), generator=generator)
        return weight.flatten()[order].view_as(weight)

    return _change_matrices(ffn, shuffle, seed)


def redraw(ffn: nn.Module, seed: int = 0) -> nn.Module:
    """A copy whose weight matrices keep their singular values and get Haar-random directions. Biases stay."""

    def turn(weight: Tensor, generator: torch.Generator) -> Tensor:
        singular = torch.linalg.svdvals(weight.double())
        left = random_directions(weight.shape[0], len(singular), generator)
        right = random_directions(weight.shape[1], len(singular), generator)
        return (left * singular) @ right.T  # U' S V'ᵀ

    return _change_matrices(ffn, turn, seed)


def random_directions(size: int, count: int, generator: torch.Generator) -> Float[Tensor, "size count"]:
    """Haar-random orthonormal columns, at most as many as `size`: QR of normal numbers, signs from R."""
    empty = torch.empty(size, count, dtype=torch.float64)
    return nn.init.orthogonal_(empty, generator=generator)


@torch.no_grad()
def _change_matrices(ffn: nn.Module, change: Callable[[Tensor, torch.Generator], Tensor], seed: int) -> nn.Module:
    matrices = [name for name, parameter in ffn.named_parameters() if parameter.ndim == 2]
    if not matrices:
        raise InputError(f"a {type(ffn).__name__} has no weight matrix to change: pass a block's FFN")
    copy = deepcopy(ffn)
    generator = torch.Generator().manual_seed(seed)
    for name in matrices:
        weight = copy.get_parameter(name)
        weight.copy_(change(weight.cpu(), generator))
    return copy


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
    width = sample.x.shape[1]
    train = (~sample.test).nonzero()[:, 0]
    test = sample.test.nonzero()[:, 0]
    if not width + 3 < rows <= len(train):
        raise InputError(f"a floor at {rows} rows: give from {width + 4} up to the sample's {len(train)} train rows")
    generator = torch.Generator().manual_seed(seed)
    train = train[torch.randperm(len(train), generator=generator)[:rows]]
    shuffled_train = train[torch.randperm(len(train), generator=generator)]
    shuffled_test = test[torch.randperm(len(test), generator=generator)]

    def score(train_outputs: Tensor, test_outputs: Tensor) -> tuple[float, Ceiling]:
        """R² in sample, and the ceiling with its held-out R², of inputs with these rows' outputs."""
        fitted = Moments(width, sample.y.shape[1]).update(sample.x[train], sample.y[train_outputs])
        held_out = Moments(width, sample.y.shape[1]).update(sample.x[test], sample.y[test_outputs])
        return ceiling(fitted, fitted).r2, ceiling(fitted, held_out)

    in_sample, true_pairs = score(train, test)
    shuffled_in_sample, shuffled_pairs = score(shuffled_train, shuffled_test)
    rank = true_pairs.rank
    # Stein (1960): the held-out residual of normal rows, over the variance
    residual = (rows + 1) * (rows - 2) / (rows * (rows - rank - 2))
    return Floor(
        rows=rows,
        in_sample=in_sample,
        held_out=true_pairs.r2,
        shuffled_in_sample=shuffled_in_sample,
        shuffled_held_out=shuffled_pairs.r2,
        expected_in_sample=rank / (rows - 1),
        expected_held_out=1 - residual,
    )


def effective_support(rows: Float[Tensor, "n d"]) -> float:
    """Share of rows that carry the variance: (Σw)² / (n Σw²), with w the squared distance of a row from the mean.

    1 if all rows lie equally far out, 1 / n if one row does alone; d / (d + 2) for a normal ball in d dimensions.

    Raises:
        InputError: the rows are all the same.
    """
    centred = rows.double() - rows.double().mean(0)
    weight = centred.square().sum(1)
    if not weight.sum() > 0:
        raise InputError(f"{len(rows)} rows that are all the same have no support: use more or other text")
    return float(weight.mean().square() / weight.square().mean())
