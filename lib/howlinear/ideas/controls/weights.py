"""What else could explain a profile: other weights, other pairs, few rows.

The paper (arXiv 2606.19379) argues that recoverability is learned; a referee asked what else could make such a
profile. Here: scrambled weights (permuted, or with redrawn directions), the chance floor of shuffled pairs, and how few
rows carry a block. Other inputs are in `inputs`, an analysis of variance in `anova`.
Haar-random directions: Mezzadri (2007, "How to generate random matrices from the classical compact groups"). Error of
least squares on normal rows: Stein (1960, "Multiple regression").
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

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
    """Compute a block's outputs for rows that need not be its own; `ffn` maps x to y (`pairs.ffn_module`)."""
    weight = next(ffn.parameters())
    return torch.cat([ffn(part.to(weight)[None])[0] for part in x.split(_CHUNK)])


def sample_ceiling(
    x: Float[Tensor, "n d_in"], y: Float[Tensor, "n d_out"], sample: Sample, intervals: bool = True
) -> Ceiling:
    """Measure R²_lin of rows made from a sample's, with the same train and held-out tokens and document folds."""
    made = replace(sample, x=x, y=y)
    train = made.moments(test=False)
    held_out = made.moments(test=True)
    if not intervals:
        return ceiling(sum(train), sum(held_out))
    return ceiling(train, held_out)


def permute(ffn: nn.Module) -> nn.Module:
    """Copy an FFN with the entries of each weight matrix in random order: same values, no structure. Biases stay."""

    def shuffle(weight: Tensor, generator: torch.Generator) -> Tensor:
        order = torch.randperm(weight.numel(), generator=generator)
        return weight.flatten()[order].view_as(weight)

    return _change_matrices(ffn, shuffle)


def redraw(ffn: nn.Module) -> nn.Module:
    """Copy an FFN; weight matrices keep their singular values and get Haar-random directions. Biases stay."""

    def turn(weight: Tensor, generator: torch.Generator) -> Tensor:
        singular = torch.linalg.svdvals(weight.double())
        left = random_directions(weight.shape[0], len(singular), generator)
        right = random_directions(weight.shape[1], len(singular), generator)
        return (left * singular) @ right.T  # U' S V'ᵀ

    return _change_matrices(ffn, turn)


def random_directions(size: int, count: int, generator: torch.Generator) -> Float[Tensor, "size count"]:
    """Draw Haar-random orthonormal columns, at most as many as `size`: QR of normal numbers, signs from R."""
    empty = torch.empty(size, count, dtype=torch.float64)
    return nn.init.orthogonal_(empty, generator=generator)


@torch.no_grad()
def _change_matrices(ffn: nn.Module, change: Callable[[Tensor, torch.Generator], Tensor]) -> nn.Module:
    matrices = [name for name, parameter in ffn.named_parameters() if parameter.ndim == 2]
    if not matrices:
        raise InputError(f"a {type(ffn).__name__} has no weight matrix to change: pass a block's FFN")
    copy = deepcopy(ffn)
    generator = torch.Generator().manual_seed(0)
    for name in matrices:
        weight = copy.get_parameter(name)
        weight.copy_(change(weight.cpu(), generator))
    return copy


def chance_floor(sample: Sample, rows: int, seed: int = 0) -> dict[str, int | float]:
    """Return a row of table `floors`: least squares on some of a sample's rows, with true and with shuffled pairs."""
    width, width_out = sample.x.shape[1], sample.y.shape[1]
    train = (~sample.test).nonzero()[:, 0]
    test = sample.test.nonzero()[:, 0]
    if not width + 3 < rows <= len(train):
        raise InputError(f"a floor at {rows} rows: give from {width + 4} up to the sample's {len(train)} train rows")
    generator = torch.Generator().manual_seed(seed)
    train = train[torch.randperm(len(train), generator=generator)[:rows]]
    shuffled_train = train[torch.randperm(len(train), generator=generator)]
    shuffled_test = test[torch.randperm(len(test), generator=generator)]

    def fit_pairs(train_outputs: Tensor, test_outputs: Tensor) -> Ceiling:
        """Fit and score the inputs with these rows' outputs."""
        fitted = Moments(width, width_out).update(sample.x[train], sample.y[train_outputs])
        held_out = Moments(width, width_out).update(sample.x[test], sample.y[test_outputs])
        return ceiling(fitted, held_out)

    true_pairs = fit_pairs(train, test)
    shuffled = fit_pairs(shuffled_train, shuffled_test)
    n, rank = rows, true_pairs.rank
    return {
        "rows": rows,
        "in_sample": true_pairs.r2_train,
        "held_out": true_pairs.r2,
        "shuffled_in_sample": shuffled.r2_train,
        "shuffled_held_out": shuffled.r2,
        "expected_in_sample": rank / (n - 1),
        # Stein (1960): the held-out residual of normal rows, over the variance
        "expected_held_out": 1 - (n + 1) * (n - 2) / (n * (n - rank - 2)),
    }


def effective_support(rows: Float[Tensor, "n d"]) -> float:
    """Share of rows that carry the variance: (Σw)² / (n Σw²), with w the squared distance of a row from the mean."""
    centred = rows.double() - rows.double().mean(0)
    weight = centred.square().sum(1)
    # 1 if all rows are equally far out, 1 / n if one row carries it all; d / (d + 2) for a normal ball in d dimensions
    return float(weight.mean().square() / weight.square().mean())
