"""Least squares on features that come in nested sets: held-out R² of every set, with error bars, from one factor.

The Cholesky factor of a leading block of a matrix is the leading block of its factor. So features that are ordered, by
degree or by importance, need one factorisation for all their sets (Golub & Van Loan, "Matrix Computations", 4.2).
Notebook 10 asks with it how much each degree adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from howlinear.capture import BlockCapture, Sample
from howlinear.ceilings import NULL, AffineMap, jackknife, left_out, r2
from howlinear.errors import InputError
from howlinear.moments import Moments

RIDGE = 1e-8  # on the correlation matrix of the features: two that coincide share their weight
CHUNK = 1_024  # rows whose features are held at a time


@dataclass(frozen=True)
class Nested:
    """Held-out R² of least squares on the first features, for several numbers of them.

    Attributes:
        sizes: how many features each set has.
        r2: pooled R² per set, shape (sets,).
        low: lower ends of the 95 % jackknife intervals, over document folds of both sides.
        high: upper ends.
    """

    sizes: tuple[int, ...]
    r2: np.ndarray
    low: np.ndarray
    high: np.ndarray


def nested(
    kept: BlockCapture, features: Callable[[Tensor], Tensor], sizes: Sequence[int], ridge: float = RIDGE
) -> Nested:
    """R² of the block's outputs on the first `sizes` features of its inputs.

    Args:
        kept: a captured block; all its sampled rows are used, so capture with `sample` at the number of rows.
        features: rows x, shape (n, d_in), to features, shape (n, p).
        sizes: numbers of features, ascending, the last at most p.
        ridge: relative to unit variance of each feature.

    Raises:
        InputError: no sample, sizes that do not ascend, or too few rows for the features.
    """
    sample = rows_of(kept)
    width = features(sample.x[:2]).shape[1]
    if not sizes or list(sizes) != sorted(set(sizes)) or not 1 <= sizes[0] <= sizes[-1] <= width:
        raise InputError(f"sizes {list(sizes)} of {width} features: give ascending numbers from 1 to {width}")
    train = [_moments(sample, index, features) for index in folds_of(sample, test=False)]
    fewest = sum(part.n for part in train) - max(part.n for part in train)
    if fewest < sizes[-1] + 2:
        raise InputError(
            f"{fewest} train rows, one fold left out, for {sizes[-1]} features: least squares would fit them exactly; "
            f"use at least {sizes[-1] + 2}, better ten times as many, or fewer features"
        )
    held_out = folds_of(sample, test=True)
    found = [torch.cat([features(sample.x[part]) for part in index.split(CHUNK)]) for index in held_out]
    truth = [sample.y[index] for index in held_out]
    test = sum(Moments(width, sample.y.shape[1]).update(*pair) for pair in zip(found, truth, strict=True))
    fitted = prefix_maps(sum(train), sizes, ridge)
    refits = [prefix_maps(moments, sizes, ridge) for moments in left_out(train)]
    values, ends = [], []
    for i, size in enumerate(sizes):
        first = _leading(test, size)
        rescored = left_out_r2(truth, [fitted[i](rows[:, :size].double()) for rows in found])
        values.append(r2(fitted[i], first))
        ends.append(jackknife(values[-1], [r2(maps[i], first) for maps in refits], rescored))
    low, high = np.array(ends).T
    return Nested(tuple(sizes), np.array(values), low, high)


def prefix_maps(moments: Moments, sizes: Sequence[int], ridge: float = RIDGE) -> list[AffineMap]:
    """The least-squares maps on the first `sizes` features.

    Args:
        moments: of (features, outputs) on the rows to fit.
        sizes: numbers of features, ascending.
        ridge: relative to unit variance; a constant feature gets no weight.
    """
    p, diagonal = sizes[-1], moments.sxx.diagonal()[: sizes[-1]]
    varies = diagonal > NULL * moments.n * moments.mean_x[:p].square()
    scale = torch.where(varies, diagonal, torch.inf).rsqrt()
    correlation = scale[:, None] * moments.sxx[:p, :p] * scale
    correlation.diagonal().add_(torch.where(varies, ridge, 1.0))
    factor = torch.linalg.cholesky(correlation)
    forward = torch.linalg.solve_triangular(factor, scale[:, None] * moments.sxy[:p], upper=False)
    maps = []
    for size in sizes:
        weight = torch.linalg.solve_triangular(factor[:size, :size].T, forward[:size], upper=True)
        weight = scale[:size, None] * weight
        maps.append(AffineMap(weight, moments.mean_y - moments.mean_x[:size] @ weight))
    return maps


def rows_of(kept: BlockCapture) -> Sample:
    """The sampled rows.

    Raises:
        InputError: nothing was sampled, or one side of it has fewer than two document folds.
    """
    if kept.sample is None:
        raise InputError("degrees need rows: capture with sample at the number of token rows")
    for test, name in ((True, "held-out"), (False, "train")):
        if len(folds_of(kept.sample, test)) < 2:
            raise InputError(f"the sample's {name} rows need two document folds: sample more rows")
    return kept.sample


def folds_of(sample: Sample, test: bool) -> list[Int64[Tensor, " n"]]:
    """Indices of the rows of each document fold of a side."""
    side = sample.test if test else ~sample.test
    return [(side & (sample.fold == fold)).nonzero()[:, 0] for fold in sample.fold[side].unique()]


def left_out_r2(y: Sequence[Float[Tensor, "_ d_out"]], guess: Sequence[Float[Tensor, "_ d_out"]]) -> list[float]:
    """R² of a guess with each fold of rows left out in turn."""
    scored = []
    for i in range(len(y)):
        truth = torch.cat([part for j, part in enumerate(y) if j != i]).double()
        error = sum((y[j].double() - guess[j]).square().sum() for j in range(len(y)) if j != i)
        scored.append(float(1 - error / (truth - truth.mean(0)).square().sum()))
    return scored


def _moments(sample: Sample, index: Tensor, features: Callable[[Tensor], Tensor]) -> Moments:
    moments = None
    for part in index.split(CHUNK):
        found = features(sample.x[part])
        moments = moments or Moments(found.shape[1], sample.y.shape[1])
        moments.update(found, sample.y[part])
    return moments


def _leading(moments: Moments, p: int) -> Moments:
    """The moments of the first p features, without a copy."""
    named = moments.tensors()
    parts = {"mean_x": named["mean_x"][:p], "sxx": named["sxx"][:p, :p], "sxy": named["sxy"][:p]}
    return Moments.from_tensors(named | parts)
