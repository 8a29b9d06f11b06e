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
from jaxtyping import Bool, Float
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from howlinear.core import limits
from howlinear.core.intervals import CONFIDENCE, Estimate, left_out
from howlinear.core.moments import Moments, add_gram
from howlinear.errors import InputError

NULL = 1e-12
"""Eigenvalues of the input correlation below NULL × the largest are null directions: float32 rows cannot
resolve them. A LayerNorm output has one, with rounding noise of about (1e-7)² where its variance would be;
a fit that trusts it learns the noise. Notebook 02 shows what happens without this rule."""


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
        r2_train: R² of the map on the rows it was fitted on. On n rows of rank d with normal noise the residual is too
            small by the factor 1 − d / n here and too large by about 1 + d / n on other rows (Stein 1960, "Multiple
            regression"), so on average the R² of infinitely many rows lies halfway between `r2_train` and `r2`; with
            heavy tails, which push `r2` down further, in the upper half.
        interval: R²_lin with its jackknife interval, for R²_lin at this number of rows (`r2_intervals`); None without
            document folds.
        limit: what the two tend to with ever more rows (`core.limits`), with its jackknife interval; None without
            document folds, and where rows are too few to say.
        r2_per_feature: the same ratio per output feature, shape (d_out,); NaN where a feature is constant.
        map: the least-squares map, minimum norm (in column-scaled inputs) off the null directions.
        rank: number of input directions that are not null.
        condition: ratio of the largest to the smallest singular value of the centred inputs, as they come
            (not column-scaled), over the `rank` leading directions; the Gram matrix's is its square.
        rows_train: train rows.
        rows_test: held-out rows.
    """

    r2: float
    r2_train: float
    interval: Estimate | None
    limit: Estimate | None
    r2_per_feature: Float[Tensor, " d_out"]
    map: AffineMap
    rank: int
    condition: float
    rows_train: int
    rows_test: int

    @property
    def r2_low(self) -> float | None:
        """Lower end of the interval; None without document folds."""
        return None if self.interval is None else self.interval.low

    @property
    def r2_high(self) -> float | None:
        """Upper end of the interval; None without document folds."""
        return None if self.interval is None else self.interval.high

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
        confidence: of that interval; other than 95 % where it is one of several looks (`instrument.stopping`).

    Returns:
        The `Ceiling`.

    Raises:
        InputError: too few rows for the width, constant inputs or constant outputs, a row that was not finite.
    """
    train_folds = [train] if isinstance(train, Moments) else list(train)
    test_folds = [test] if isinstance(test, Moments) else list(test)
    if not train_folds or not test_folds:
        raise InputError("a ceiling needs rows to fit on and held-out rows; one side has none")
    train_rows = Moments.total(train_folds)
    test_rows = Moments.total(test_folds)

    check_rows(train_rows)
    inputs = taken_apart(train_rows)
    affine = inputs.solution(train_rows)
    score = PooledR2(affine)
    r2_here = score(test_rows)
    in_sample = score(train_rows)
    interval = None
    limit = None
    if len(train_folds) > 1 and len(test_folds) > 1:
        refitted = refitted_r2(inputs.null_directions, train_folds, test_rows)
        rescored = rescored_r2(score, test_folds)
        interval, limit = r2_intervals(r2_here, in_sample, refitted, rescored, confidence)
    return Ceiling(
        r2=r2_here,
        r2_train=in_sample,
        interval=interval,
        limit=limit,
        r2_per_feature=r2_per_feature(affine, test_rows),
        map=affine,
        rank=inputs.rank,
        condition=inputs.condition,
        rows_train=train_rows.n,
        rows_test=test_rows.n,
    )


# --- The map: (W, b) = argmin ‖Y − XW − 1b‖²_F


def fit(moments: Moments, null: float = NULL, fewest: int | None = None) -> tuple[AffineMap, int]:
    """The least-squares affine map and the rank of its inputs.

    Columns are scaled to unit variance (Jacobi), and directions under `null` of the correlation matrix are left out.

    Args:
        moments: of the train rows.
        null: the rule's threshold; other values are for showing why there is a rule.
        fewest: rows below which the map is refused; d_in + 2 by default, since on fewer it fits anything exactly.

    Raises:
        InputError: fewer rows than that, no input that varies, or a row that was not finite.
    """
    check_rows(moments, fewest)
    inputs = taken_apart(moments) if null == NULL else decompose(moments, null)
    return inputs.solution(moments), inputs.rank


def fits(moments: Moments, nulls: Sequence[float]) -> list[AffineMap]:
    """The map that `fit` finds by each of several rules, the inputs decomposed once.

    Args:
        moments: of the train rows.
        nulls: the rules' thresholds.

    Raises:
        InputError: as for `fit`.
    """
    check_rows(moments)
    least = decompose(moments, min(nulls))
    maps = []
    for null in nulls:
        # a rule may also find more inputs constant, and scales them by 0
        alike = torch.equal(_column_scale(moments, null), least.scale)
        inputs = least.narrowed(null) if alike else decompose(moments, null)
        maps.append(inputs.solution(moments))
    return maps


def check_rows(moments: Moments, fewest: int | None = None) -> None:
    """Refuse to fit a map to fewer rows than `fewest`, d_in + 2 by default."""
    needed = moments.d_in + 2
    if moments.n < (needed if fewest is None else fewest):
        raise InputError(
            f"{moments.n} train rows for {moments.d_in} inputs: an affine map would fit them exactly; "
            f"use at least {needed} rows, better ten times as many"
        )


def _with_bias(weight: Float[Tensor, "d_in d_out"], moments: Moments) -> AffineMap:
    """The affine map of this slope whose residuals have mean 0: b = ȳ − x̄ W."""
    return AffineMap(weight, moments.mean_y - moments.mean_x @ weight)


@dataclass(frozen=True)
class Spectrum:
    """The inputs' correlation matrix, D Sxx D = V Λ Vᵀ, with D the column scales: one over the root of Sxx's diagonal.

    Attributes:
        scale: D's diagonal, shape (d_in,), 0 for a constant input.
        values: Λ's, without those of null directions, ascending, shape (rank,).
        vectors: V, shape (d_in, rank).
        null_vectors: the eigenvectors of the null directions, shape (d_in, d_in − rank).
    """

    scale: Float[Tensor, " d_in"]
    values: Float[Tensor, " rank"]
    vectors: Float[Tensor, "d_in rank"]
    null_vectors: Float[Tensor, "d_in nulls"]

    @property
    def rank(self) -> int:
        """Directions that are not null."""
        return len(self.values)

    @property
    def null_directions(self) -> Float[Tensor, "d_in nulls"]:
        """Directions n of the inputs as they come, in which x · n is the same for every row."""
        return self.null_vectors * _or_one(self.scale)[:, None]

    @property
    def condition(self) -> float:
        """Largest over smallest singular value of the centred inputs as they come, without the null directions."""
        return _condition(self.scale, self.vectors * self.values.sqrt(), self.rank)

    def narrowed(self, null: float) -> Spectrum:
        """The same by a rule whose threshold is higher, so that more directions are null."""
        resolved = self.values > null * self.values[-1]
        nulls = torch.cat([self.null_vectors, self.vectors[:, ~resolved]], dim=1)
        return Spectrum(self.scale, self.values[resolved], self.vectors[:, resolved], nulls)

    def solution(self, moments: Moments) -> AffineMap:
        """The least-squares map of the rows that were decomposed."""
        # W = Sxx⁺ Sxy, with Sxx⁺ = (D V) Λ⁻¹ (D V)ᵀ
        basis = self.scale[:, None] * self.vectors
        return _with_bias(basis @ ((basis.T @ moments.sxy) / self.values[:, None]), moments)


def decompose(moments: Moments, null: float = NULL) -> Spectrum:
    """Eigenvalues and eigenvectors of the inputs' correlation matrix, null directions apart.

    Raises:
        InputError: no input varies, or a row was not finite.
    """
    scale = _column_scale(moments, null)
    values, vectors = torch.linalg.eigh(_correlation(moments, scale))
    resolved = values > null * values[-1]
    return Spectrum(scale, values[resolved], vectors[:, resolved], vectors[:, ~resolved])


def _column_scale(moments: Moments, null: float = NULL) -> Float[Tensor, " d_in"]:
    """One over the root of Sxx's diagonal, shape (d_in,); 0 for a constant input."""
    squares = moments.checked().sxx.diagonal()
    varying = varies(squares, moments.mean_x, moments.n, null)
    if not varying.any():
        raise InputError(f"all {moments.d_in} inputs are constant over {moments.n} rows: there is nothing to fit")
    return torch.where(varying, squares, torch.inf).rsqrt()


def _correlation(moments: Moments, scale: Float[Tensor, " d_in"]) -> Float[Tensor, "d_in d_in"]:
    return scale[:, None] * moments.sxx * scale


def _condition(scale: Float[Tensor, " d_in"], factor: Float[Tensor, "d_in columns"], rank: int) -> float:
    """Largest over smallest singular value of the centred inputs as they come.

    Read off a factor of Sxx, not off Sxx itself, whose small eigenvalues squaring would have drowned.

    Args:
        scale: D's diagonal.
        factor: F, with F Fᵀ = D Sxx D.
        rank: of F, as it would be without rounding.
    """
    varying = scale > 0
    # Sxx = (D⁻¹ F) (D⁻¹ F)ᵀ: the singular values of D⁻¹ F are those of the centred inputs
    singular = torch.linalg.svdvals(factor[varying] / scale[varying, None])
    return float(singular[0] / singular[rank - 1])


def _or_one(scale: Float[Tensor, " d_in"]) -> Float[Tensor, " d_in"]:
    """Column scales with 1 for a constant input, so that one can divide by them."""
    return torch.where(scale > 0, scale, 1.0)


def whitening(moments: Moments) -> Float[Tensor, "d_in rank"]:
    """What takes centred inputs to mean square 1 and no correlations; null directions are left out, the quietest first.

    Raises:
        InputError: no input varies.
    """
    inputs = decompose(moments)
    return inputs.scale[:, None] * inputs.vectors / (inputs.values / moments.n).sqrt()


def leverage(train: Moments, inputs: Float[Tensor, "n d_in"]) -> Float[Tensor, " n"]:
    """How far a row's own output moves the map's prediction there; over the train rows it adds up to their rank + 1.

    It is (x − x̄)ᵀ Sxx⁺ (x − x̄) + 1/n, with x̄, Sxx and n of the train rows, and without null directions (Hoaglin &
    Welsch 1978, "The hat matrix in regression and ANOVA").

    Args:
        train: moments of the train rows.
        inputs: rows, train or held out.
    """
    # ‖Z‖² with Z = (x − x̄) V √(n/λ) is n (x − x̄)ᵀ Sxx⁺ (x − x̄)
    whitened = (inputs.double() - train.mean_x) @ whitening(train)
    return (whitened.square().sum(1) + 1) / train.n


# --- The same by a Cholesky factor, at a tenth of the price, where it is surely the same


SAFE = 1_000
"""A Cholesky factor is used where every direction that is kept has this many times the variance of a null one. That is
estimated, and the estimate of LAPACK's `pocon` is at most ten times off (Higham 1988, "FORTRAN codes for estimating the
one-norm")."""

STEPS = 4  # of inverse iteration; each leaves a thousandth of what is not null, or less where a factor is safe


@dataclass(frozen=True)
class Factor:
    """The inputs' correlation matrix R = D Sxx D by its Cholesky factor, R + N Nᵀ = L Lᵀ, N the null directions.

    Attributes:
        scale: D's diagonal, shape (d_in,), 0 for a constant input.
        null_vectors: N, orthonormal, shape (d_in, nulls).
        lower: L, shape (d_in, d_in).
    """

    scale: Float[Tensor, " d_in"]
    null_vectors: Float[Tensor, "d_in nulls"]
    lower: Float[Tensor, "d_in d_in"]

    @property
    def rank(self) -> int:
        """Directions that are not null."""
        return len(self.scale) - self.null_vectors.shape[1]

    @property
    def null_directions(self) -> Float[Tensor, "d_in nulls"]:
        """Directions n of the inputs as they come, in which x · n is the same for every row."""
        return self.null_vectors * _or_one(self.scale)[:, None]

    @property
    def condition(self) -> float:
        """Largest over smallest singular value of the centred inputs as they come, without the null directions."""
        # R is (L − N Nᵀ L) (L − N Nᵀ L)ᵀ
        return _condition(self.scale, self._without_nulls(self.lower), self.rank)

    def solution(self, moments: Moments) -> AffineMap:
        """The least-squares map of the rows that were factorised."""
        # W = D (L Lᵀ)⁻¹ D Sxy, without what it has in null directions
        covariance = self._without_nulls(self.scale[:, None] * moments.sxy)
        slope = self._without_nulls(self._solved(covariance))
        return _with_bias(self.scale[:, None] * slope, moments)

    def _solved(self, columns: Float[Tensor, "d_in k"]) -> Float[Tensor, "d_in k"]:
        """(L Lᵀ)⁻¹ of each column."""
        # As Cᵀ L⁻ᵀ L⁻¹: so nothing is copied, since LAPACK counts along columns, and the result lies row by row
        half = torch.linalg.solve_triangular(self.lower.T, columns.T, upper=True, left=False)
        return torch.linalg.solve_triangular(self.lower, half, upper=False, left=False).T

    def _without_nulls(self, columns: Float[Tensor, "d_in k"]) -> Float[Tensor, "d_in k"]:
        """The part of each column that is orthogonal to N."""
        if not self.null_vectors.shape[1]:
            return columns
        return columns.addmm(self.null_vectors, self.null_vectors.T @ columns, alpha=-1)


def taken_apart(moments: Moments) -> Factor | Spectrum:
    """The inputs by a Cholesky factor where that is surely the same, by eigenvalues elsewhere.

    Raises:
        InputError: no input varies, or a row was not finite.
    """
    return factorise(moments) or decompose(moments)


def factorise(moments: Moments) -> Factor | None:
    """The inputs by a Cholesky factor, if surely no direction is null but constant inputs and at most one more.

    That one is what a LayerNorm leaves.

    Raises:
        InputError: no input varies, or a row was not finite.
    """
    scale = _column_scale(moments)
    correlation = _correlation(moments, scale)
    constant = torch.eye(len(scale)).to(scale)[:, scale == 0]
    factor = _safe_factor(scale, correlation, constant)
    if factor is not None:
        return factor
    return _safe_factor(scale, correlation, torch.cat([constant, _quietest(correlation, constant)], 1))


def _quietest(correlation: Float[Tensor, "d_in d_in"], nulls: Float[Tensor, "d_in nulls"]) -> Float[Tensor, "d_in 1"]:
    """The direction of least variance but for `nulls`, by inverse iteration; any direction if that is not to be had."""
    direction = torch.randn(len(correlation), 1, generator=torch.Generator().manual_seed(0)).to(correlation)
    shift = NULL * torch.eye(len(correlation)).to(correlation)  # else rounding may make the least eigenvalue negative
    lower, failed = torch.linalg.cholesky_ex(correlation + shift + nulls @ nulls.T)
    for _ in range(0 if failed else STEPS):
        direction = torch.cholesky_solve(direction, lower)
        direction /= torch.linalg.vector_norm(direction)
    return torch.linalg.qr(direction - nulls @ (nulls.T @ direction)).Q


def _safe_factor(
    scale: Float[Tensor, " d_in"], correlation: Float[Tensor, "d_in d_in"], nulls: Float[Tensor, "d_in nulls"]
) -> Factor | None:
    """The `Factor` with these null directions, if the rows surely have them and no others; else None.

    Args:
        scale: D's diagonal.
        correlation: R.
        nulls: N, orthonormal.
    """
    # No column of R is longer than its largest eigenvalue, and its Frobenius norm is no smaller
    largest_at_least = torch.linalg.vector_norm(correlation, dim=0).max()
    largest_at_most = torch.linalg.vector_norm(correlation)
    # R has at least as many null directions as N: so many of its eigenvalues are at most Nᵀ R N's largest
    if nulls.shape[1] and torch.linalg.eigvalsh(nulls.T @ correlation @ nulls)[-1] > NULL * largest_at_least:
        return None
    # And no more: all others are at least the smallest of R + N Nᵀ (Weyl), and that is at least 1 / ‖(R + N Nᵀ)⁻¹‖₁
    lower, failed = torch.linalg.cholesky_ex(correlation + nulls @ nulls.T)
    if failed:
        return None
    (pocon,) = get_lapack_funcs(("pocon",), dtype=np.float64)
    smallest, _ = pocon(lower.cpu().numpy().T, 1.0, uplo="U")
    if smallest <= SAFE * NULL * largest_at_most:
        return None
    return Factor(scale, nulls, lower)


# --- The map without a document fold


def refits(
    train: Sequence[Moments], null_directions: Float[Tensor, "d_in nulls"]
) -> Iterator[tuple[AffineMap, Moments]]:
    """The maps that `fit` finds without each fold in turn, and the moments of the rows that they are fitted to.

    All rows but a fold's have, as a rule, the null directions of all rows and no others.

    Args:
        train: moments per document fold.
        null_directions: of all of them together, of the inputs as they come.

    Raises:
        InputError: as in `fit`.
    """
    for moments in left_out(train):
        check_rows(moments)
        scale = _column_scale(moments)
        # In scaled inputs n becomes D⁻¹ n
        nulls = torch.linalg.qr(null_directions / _or_one(scale)[:, None]).Q
        factor = _safe_factor(scale, _correlation(moments, scale), nulls)
        yield (factor or decompose(moments)).solution(moments), moments


# --- The score: R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F


def r2(affine: AffineMap, moments: Moments) -> float:
    """Pooled R² of a map on the rows in `moments`.

    Raises:
        InputError: the outputs are constant, so there is no variance to explain; or a row was not finite.
    """
    return float(1 - residual(affine, moments).sum() / _total(moments))


class PooledR2:
    """Pooled R² of one map on rows of many kinds: `r2` for the price of d² numbers each, where that takes d³ steps."""

    def __init__(self, affine: AffineMap):
        """Multiply the map by itself, once."""
        self.affine = affine
        self.square = torch.zeros(2 * affine.weight.shape[:1], dtype=torch.float64, device=affine.weight.device)
        add_gram(self.square, affine.weight.T)  # W Wᵀ

    def __call__(self, moments: Moments) -> float:
        """`r2` of the map on the rows in `moments`, and its errors."""
        total = _total(moments)
        return float(1 - self.residual(moments) / total)

    def residual(self, moments: Moments) -> float:
        """Σ (y − xW − b)² over features and rows."""
        weight = self.affine.weight
        # = Σ Syy − 2 ⟨W, Sxy⟩ + ⟨W Wᵀ, Sxx⟩ + n ‖ȳ − x̄ W − b‖²
        explained = 2 * (weight * moments.sxy).sum() - (self.square * moments.sxx).sum()
        offset = moments.mean_y - moments.mean_x @ weight - self.affine.bias
        return float(moments.syy.sum() - explained + moments.n * offset.square().sum())


def _total(moments: Moments) -> Float[Tensor, ""]:
    """Σ (y − ȳ)² over features and rows, where there is any."""
    varying = varies(moments.checked().syy, moments.mean_y, moments.n)
    if not varying.any():
        raise InputError(f"the outputs are constant over {moments.n} rows: R² is undefined; use more or other text")
    return moments.syy.sum()


def r2_per_feature(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """R² of each output feature, shape (d_out,); NaN where the feature is constant."""
    varying = varies(moments.syy, moments.mean_y, moments.n)
    return torch.where(varying, 1 - residual(affine, moments) / moments.syy, torch.nan)


def residual(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """Σ (y − xW − b)² per output feature, shape (d_out,), over the rows in `moments`."""
    weight = affine.weight
    # Σ (y − xW − b)² = Syy − diag(Wᵀ (2 Sxy − Sxx W)) + n (ȳ − x̄ W − b)²
    explained = (weight * (2 * moments.sxy - moments.sxx @ weight)).sum(0)
    offset = moments.mean_y - moments.mean_x @ weight - affine.bias
    return moments.syy - explained + moments.n * offset.square()


def varies(squares: Float[Tensor, " d"], mean: Float[Tensor, " d"], n: int, null: float = NULL) -> Bool[Tensor, " d"]:
    """Whether each feature varies over n rows: its Σ(z − z̄)² is more than float32 rounding of its mean.

    Args:
        squares: Σ(z − z̄)², shape (d,).
        mean: z̄, shape (d,).
        n: number of rows.
        null: the rule's threshold.
    """
    return squares > null * n * mean.square()


# --- The error bars


def r2_intervals(
    r2_here: float,
    in_sample: float,
    refitted: Sequence[tuple[float, float]],
    rescored: Sequence[float],
    confidence: float = CONFIDENCE,
) -> tuple[Estimate, Estimate | None]:
    """R²_lin and its limit, with intervals: train folds left out of the fit in turn, then held-out ones of the score.

    The interval is for R²_lin at this number of rows, and about which documents were drawn: it holds what R²_lin comes
    to on average in 93 to 98 of 100 simulated measurements, also with correlated documents, heavy tails, or one massive
    row a document (`benchmarks/coverage.py`; 8 + 8 folds). It is not for the R² of infinitely many rows, which lies
    higher by about (1 − R²) d / n. That it holds too where this is small beside the interval; else see
    `Ceiling.r2_train`, which is its other end.

    Args:
        r2_here: R²_lin.
        in_sample: R² of the rows of the fit.
        refitted: both without each train fold, R²_lin first, see `refitted_r2`.
        rescored: R²_lin without each held-out fold, see `rescored_r2`.
        confidence: of the intervals.

    Returns:
        R²_lin at these rows, and what it tends to; no limit where rows are too few to say.
    """
    here = Estimate.jackknife(r2_here, [held_out for held_out, _ in refitted], rescored, confidence=confidence)
    if not limits.enough(in_sample, r2_here):
        return here, None
    # R²_∞ from both sides
    limit = limits.limit(in_sample, r2_here)
    refitted_limits = [limits.limit(followed, held_out) for held_out, followed in refitted]
    rescored_limits = [limits.limit(in_sample, held_out) for held_out in rescored]
    return here, Estimate.jackknife(limit, refitted_limits, rescored_limits, confidence=confidence)


def refitted_r2(
    null_directions: Float[Tensor, "d_in nulls"], train: Sequence[Moments], test: Moments
) -> list[tuple[float, float]]:
    """R² of held-out rows, and of the rows of the fit, with each train fold left out of the fit in turn.

    Args:
        null_directions: of the inputs of all train folds (`Spectrum.null_directions`).
        train: moments per document fold to fit on.
        test: moments of all held-out rows.

    Raises:
        InputError: without one of the folds there are too few rows for a map.
    """
    both = []
    for affine, followed in refits(train, null_directions):
        score = PooledR2(affine)
        both.append((score(test), score(followed)))
    return both


def rescored_r2(score: PooledR2, test: Sequence[Moments]) -> list[float]:
    """R² of held-out rows with each of their folds left out of the score in turn."""
    return r2_without_each([score.residual(fold) for fold in test], [fold.outputs_alone() for fold in test])


def r2_without_each(residuals: Sequence[float], outputs: Sequence[Moments]) -> list[float]:
    """R² with each fold of rows left out of the score in turn.

    Squared errors of one map add up over folds, so only the outputs' variance has to be that of the folds together.

    Args:
        residuals: squared errors of each fold, summed over its rows and features.
        outputs: moments of each fold's outputs.
    """
    values = []
    for i, others in enumerate(left_out(outputs)):
        error = sum(residuals[:i]) + sum(residuals[i + 1 :])
        values.append(float(1 - error / _total(others)))
    return values
