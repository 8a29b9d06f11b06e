"""Least squares on nested sets of features: held-out R² of every set, with error bars, from one factorisation.

The Cholesky factor of a leading block of a matrix is the leading block of its factor. So features that are ordered, by
degree or by importance, need one factorisation for all their sets (Golub & Van Loan, "Matrix Computations", 4.2).
Notebook 10 uses this to ask how much each degree adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from howlinear.core.ceilings import NULL, AffineMap, output_squares, r2, varies
from howlinear.core.intervals import Estimate, left_out
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, Sample

RIDGE = 1e-8  # on the correlation matrix of the features: two that coincide share their weight
CHUNK = 1_024  # rows whose features are held at a time

Features = Callable[[Tensor], Tensor]
"""Rows x, shape (n, d_in), to features, shape (n, p)."""


def nested(captured: BlockCapture, features: Features, sizes: Sequence[int]) -> pd.DataFrame:
    """Fit a block's outputs on the first `sizes` features of its inputs; tabulate held-out pooled `r2`, a row per size.

    Intervals are jackknifed over document folds of both sides, and contain the truth in 92 to 96 of 100 simulated
    measurements (`benchmarks/coverage.py`).
    """
    sample = captured.rows_in_folds()
    width = features(sample.x[:2]).shape[1]
    d_out = sample.y.shape[1]
    train = [add_features(Moments(width, d_out), sample, index, features) for index in sample.folds(test=False)]
    _check_rows(train, sizes[-1])

    test_features = []
    truth = []
    test = Moments(width, d_out)
    for index in sample.folds(test=True):
        x = torch.cat([features(sample.x[part]) for part in index.split(CHUNK)])
        test.update(x, sample.y[index])
        test_features.append(x)
        truth.append(sample.y[index])

    # Jackknife: maps refitted without each train fold, and one map scored without each held-out fold
    maps = prefix_maps(sum(train), sizes)
    maps_without_fold = [prefix_maps(moments, sizes) for moments in left_out(train)]
    rows = []
    for i, size in enumerate(sizes):
        test_prefix = _prefix(test, size)
        value = r2(maps[i], test_prefix)
        refitted = [r2(fold_maps[i], test_prefix) for fold_maps in maps_without_fold]
        guess = [maps[i](x[:, :size].double()) for x in test_features]
        rows.append(Estimate.jackknife(value, refitted, left_out_r2(truth, guess)).columns("r2"))
    return pd.DataFrame(rows)


def prefix_maps(moments: Moments, sizes: Sequence[int], ridge: float = RIDGE, null: float = NULL) -> list[AffineMap]:
    """The least-squares maps on the first `sizes` features."""
    p = sizes[-1]
    variance = moments.sxx.diagonal()[:p]
    varying = varies(variance, moments.mean_x[:p], moments.n, null)
    scale = torch.where(varying, variance, torch.inf).rsqrt()
    # C = D Sxx D + λI; a constant feature has a row and column of zeros, and 1 on the diagonal
    correlation = moments.sxx[:p, :p] * scale
    correlation *= scale[:, None]
    correlation.diagonal().add_(torch.where(varying, ridge, 1.0))
    try:
        factor = torch.linalg.cholesky(correlation)  # C = L Lᵀ
    except torch.linalg.LinAlgError:
        raise InputError(
            f"on {moments.n} rows some features all but coincide, and a ridge of {ridge} is too small: raise it"
        ) from None
    # Every set shares the leading part of L⁻¹ D Sxy, so only the back substitution is done set by set
    forward = torch.linalg.solve_triangular(factor, scale[:, None] * moments.sxy[:p], upper=False)
    maps = []
    for size in sizes:
        backward = torch.linalg.solve_triangular(factor[:size, :size].T, forward[:size], upper=True)
        weight = scale[:size, None] * backward
        maps.append(AffineMap(weight, moments.mean_y - moments.mean_x[:size] @ weight))
    return maps


def add_features(
    moments: Moments, sample: Sample, index: Int64[Tensor, " n"], features: Features, chunk: int | None = None
) -> Moments:
    """Add (features, outputs) of some rows of a sample to these moments, a chunk of rows at a time."""
    for part in index.split(chunk or CHUNK):
        moments.update(features(sample.x[part]), sample.y[part])
    return moments


def left_out_r2(truth: Sequence[Float[Tensor, "_ d_out"]], guess: Sequence[Float[Tensor, "_ d_out"]]) -> list[float]:
    """R² of a guess with each fold of rows left out in turn."""
    pairs = zip(truth, guess, strict=True)
    residuals = [float((y.double() - fold).square().sum()) for y, fold in pairs]
    outputs = [Moments(1, y.shape[1]).update(y.new_zeros(len(y), 1), y) for y in truth]
    values = []
    for i, others in enumerate(left_out(outputs)):
        error = sum(residuals[:i]) + sum(residuals[i + 1 :])
        values.append(1 - error / float(output_squares(others)))
    return values


def ascends(numbers: Sequence[int], lowest: int, highest: int) -> bool:
    """Whether there are numbers, and all of them ascend within these bounds."""
    in_order = list(numbers) == sorted(set(numbers))
    return bool(numbers) and in_order and lowest <= numbers[0] and numbers[-1] <= highest


def _check_rows(train: Sequence[Moments], features: int) -> None:
    """Check that least squares has enough rows even without the largest fold."""
    counts = [moments.n for moments in train]
    fewest = sum(counts) - max(counts)
    if fewest < features + 2:
        raise InputError(
            f"{fewest} train rows, one fold left out, for {features} features: least squares would fit them exactly; "
            f"use at least {features + 2}, better ten times as many, or fewer features"
        )


def _prefix(moments: Moments, p: int) -> Moments:
    """The moments of the first p features, without a copy."""
    tensors = moments.tensors()
    tensors["mean_x"] = tensors["mean_x"][:p]
    tensors["sxx"] = tensors["sxx"][:p, :p]
    tensors["sxy"] = tensors["sxy"][:p]
    return Moments.from_tensors(tensors)
