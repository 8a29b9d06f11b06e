"""The exact affine ceiling of a block: the map, R²_lin on held-out rows, and its error bars.

(W, b) = argmin ‖Y − XW − 1b‖²_F on train rows;
R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F on held-out rows, pooled over features
(arXiv 2606.19379, "linear recoverability"). Everything here follows from `Moments` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import t as student_t
from torch import Tensor

from howlinear.errors import InputError
from howlinear.moments import Moments

NULL = 1e-12
"""Eigenvalues of the input correlation below NULL × the largest are null directions: float32 rows cannot
resolve them. A LayerNorm output has one, with rounding noise of about (1e-7)² where its variance would be;
a fit that trusts it learns the noise. Notebook 02 shows what happens without this rule."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class AffineMap:
    """x ↦ x W + b.

    Attributes:
        weight: W, shape (d_in, d_out), float64.
        bias: b, shape (d_out,), float64.
    """

    weight: Float[Tensor, "d_in d_out"]
    bias: Float[Tensor, " d_out"]

    def __call__(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Apply the map in the dtype of `x`."""
        return x @ self.weight.to(x) + self.bias.to(x)

    @classmethod
    def constant(cls, moments: Moments) -> AffineMap:
        """The map to the mean output whatever the input: mean ablation."""
        return cls(torch.zeros_like(moments.sxy), moments.mean_y)


@dataclass(frozen=True)
class Ceiling:
    """What the exact least-squares affine map explains on held-out rows.

    Attributes:
        r2: R²_lin, pooled over features.
        r2_per_feature: the same ratio per output feature, shape (d_out,); NaN where a feature is constant.
        r2_low: lower end of the 95 % jackknife interval; None without document folds.
        r2_high: upper end.
        map: the least-squares map, minimum norm (in column-scaled inputs) off the null directions.
        rank: number of input directions that are not null.
        condition: ratio of the largest to the smallest singular value of the centred inputs, as they come
            (not column-scaled), over the `rank` leading directions; the Gram matrix's is its square.
        rows_train: train rows.
        rows_test: held-out rows.
    """

    r2: float
    r2_per_feature: Float[Tensor, " d_out"]
    r2_low: float | None
    r2_high: float | None
    map: AffineMap
    rank: int
    condition: float
    rows_train: int
    rows_test: int

    @property
    def r2_median(self) -> float:
        """Median of the per-feature R²."""
        return float(self.r2_per_feature.nanquantile(0.5))


def ceiling(
    train: Moments | Sequence[Moments], test: Moments | Sequence[Moments], confidence: float = CONFIDENCE
) -> Ceiling:
    """Fit on train moments, score on test moments.

    Args:
        train: moments of the train rows, or one per document fold.
        test: moments of the held-out rows, or one per document fold; folds on both sides give the interval.
        confidence: of that interval; other than 95 % where it is one of several looks (`sequential`).

    Returns:
        The `Ceiling`.

    Raises:
        InputError: too few rows for the width, constant inputs or constant outputs, a row that was not finite.
    """
    trains, tests = ([side] if isinstance(side, Moments) else list(side) for side in (train, test))
    if not trains or not tests:
        raise InputError("a ceiling needs rows to fit on and held-out rows; one side has none")
    train, test = sum(trains), sum(tests)
    affine, rank = fit(train)
    low, high = (None, None)
    if len(trains) > 1 and len(tests) > 1:
        low, high = _jackknife(trains, tests, affine, confidence)
    return Ceiling(
        r2=r2(affine, test),
        r2_per_feature=r2_per_feature(affine, test),
        r2_low=low,
        r2_high=high,
        map=affine,
        rank=rank,
        condition=condition(train),
        rows_train=train.n,
        rows_test=test.n,
    )


def fit(moments: Moments, null: float = NULL, fewest: int | None = None) -> tuple[AffineMap, int]:
    """The least-squares affine map and the rank of its inputs.

    Columns are scaled to unit variance (Jacobi), the correlation matrix is factorised by `eigh`, and
    directions under `null` are left out.

    Args:
        moments: of the train rows.
        null: the rule's threshold; other values are for showing why there is a rule.
        fewest: rows below which the map is refused; d_in + 2 by default, since on fewer it fits anything exactly.

    Raises:
        InputError: fewer rows than that, no input that varies, or a row that was not finite.
    """
    if moments.n < (moments.d_in + 2 if fewest is None else fewest):
        raise InputError(
            f"{moments.n} train rows for {moments.d_in} inputs: an affine map would fit them exactly; "
            f"use at least {moments.d_in + 2} rows, better ten times as many"
        )
    scale, values, vectors = spectrum(moments, null)
    basis = scale[:, None] * vectors
    weight = basis @ ((basis.T @ moments.sxy) / values[:, None])
    return AffineMap(weight, moments.mean_y - moments.mean_x @ weight), len(values)


def spectrum(
    moments: Moments, null: float = NULL
) -> tuple[Float[Tensor, " d_in"], Float[Tensor, " rank"], Float[Tensor, "d_in rank"]]:
    """Eigenvalues of the inputs' correlation matrix, without the null directions.

    Returns:
        Column scales, shape (d_in,), 0 for a constant input; eigenvalues ascending, (rank,); vectors, (d_in, rank).

    Raises:
        InputError: no input varies, or a row was not finite.
    """
    squares = moments.checked().sxx.diagonal()
    scale = torch.where(_varies(squares, moments.mean_x, moments.n, null), squares, torch.inf).rsqrt()
    if not scale.any():
        raise InputError(f"all {moments.d_in} inputs are constant over {moments.n} rows: there is nothing to fit")
    values, vectors = torch.linalg.eigh(scale[:, None] * moments.sxx * scale)
    kept = values > null * values[-1]
    return scale, values[kept], vectors[:, kept]


def whitening(moments: Moments) -> Float[Tensor, "d_in rank"]:
    """What takes centred inputs to mean square 1 and no correlations; null directions are left out, the quietest first.

    Raises:
        InputError: no input varies.
    """
    scale, values, vectors = spectrum(moments)
    return scale[:, None] * vectors / (values / moments.n).sqrt()


def condition(moments: Moments) -> float:
    """Largest over smallest singular value of the centred inputs as they come, without the null directions.

    Read off a factor of Sxx, not off Sxx itself, whose small eigenvalues squaring would have drowned.
    """
    scale, values, vectors = spectrum(moments)
    varies = scale > 0
    singular = torch.linalg.svdvals(vectors[varies] * values.sqrt() / scale[varies, None])
    return float(singular[0] / singular[-1])


def _varies(squares: Tensor, mean: Tensor, n: int, null: float = NULL) -> Tensor:
    """Whether centred squares Σ(z − z̄)² are more than float32 rounding of the mean."""
    return squares > null * n * mean.square()


def residual(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """Σ (y − xW − b)² per output feature, shape (d_out,), over the rows in `moments`."""
    weight = affine.weight
    offset = moments.mean_y - moments.mean_x @ weight - affine.bias
    explained = (weight * (2 * moments.sxy - moments.sxx @ weight)).sum(0)
    return moments.syy - explained + moments.n * offset.square()


def r2(affine: AffineMap, moments: Moments) -> float:
    """Pooled R² of a map on the rows in `moments`.

    Raises:
        InputError: the outputs are constant, so there is no variance to explain; or a row was not finite.
    """
    varies = _varies(moments.checked().syy, moments.mean_y, moments.n)
    if not varies.any():
        raise InputError(f"the outputs are constant over {moments.n} rows: R² is undefined; use more or other text")
    return float(1 - residual(affine, moments).sum() / moments.syy.sum())


def r2_per_feature(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """R² of each output feature, shape (d_out,); NaN where the feature is constant."""
    varies = _varies(moments.syy, moments.mean_y, moments.n)
    return torch.where(varies, 1 - residual(affine, moments) / moments.syy, torch.nan)


def jackknife(
    estimate: float, *groups: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Interval of an estimate from its delete-one-fold values.

    Args:
        estimate: the value with all folds.
        groups: per independent set of folds (train, test), the values with each fold left out in turn.
        confidence: of the interval.

    Returns:
        Both ends of the interval, by Student's t with as many degrees of freedom as the smallest set
        has (Efron & Stein 1981; Tukey's delete-a-group form, summed over independent sets).
    """
    variance = sum((len(left_out) - 1) * np.var(left_out) for left_out in groups)
    half = student_t.ppf((1 + confidence) / 2, min(map(len, groups)) - 1) * variance**0.5
    return float(estimate - half), float(estimate + half)


def left_out(folds: Sequence[Moments]) -> Iterator[Moments]:
    """Moments of all folds but each in turn, one at a time: what `jackknife` asks an estimate of."""
    for i in range(len(folds)):
        yield sum([*folds[:i], *folds[i + 1 :]])


def _jackknife(trains: list[Moments], tests: list[Moments], affine: AffineMap, level: float) -> tuple[float, float]:
    test = sum(tests)
    refitted = [r2(fit(moments)[0], test) for moments in left_out(trains)]
    rescored = [r2(affine, moments) for moments in left_out(tests)]
    return jackknife(r2(affine, test), refitted, rescored, confidence=level)
