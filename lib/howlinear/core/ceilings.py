"""The exact affine ceiling of a block: the map, R²_lin on held-out rows, and its error bars.

(W, b) = argmin ‖Y − XW − 1b‖²_F on train rows;
R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F on held-out rows, pooled over features
(arXiv 2606.19379, "linear recoverability"). Everything here follows from `Moments` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howlinear.core import limits
from howlinear.core.intervals import CONFIDENCE, Estimate, left_out
from howlinear.core.moments import Moments
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
    train_rows = sum(train_folds)
    test_rows = sum(test_folds)

    affine, rank = fit(train_rows)
    interval = None
    limit = None
    if len(train_folds) > 1 and len(test_folds) > 1:
        interval, limit = r2_intervals(affine, train_folds, test_folds, confidence)
    return Ceiling(
        r2=r2(affine, test_rows),
        r2_train=r2(affine, train_rows),
        interval=interval,
        limit=limit,
        r2_per_feature=r2_per_feature(affine, test_rows),
        map=affine,
        rank=rank,
        condition=condition(train_rows),
        rows_train=train_rows.n,
        rows_test=test_rows.n,
    )


# --- The map: (W, b) = argmin ‖Y − XW − 1b‖²_F


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
    needed = moments.d_in + 2
    if fewest is None:
        fewest = needed
    if moments.n < fewest:
        raise InputError(
            f"{moments.n} train rows for {moments.d_in} inputs: an affine map would fit them exactly; "
            f"use at least {needed} rows, better ten times as many"
        )
    scale, values, vectors = spectrum(moments, null)
    # W = Sxx⁺ Sxy, with Sxx⁺ = (D V) Λ⁻¹ (D V)ᵀ of what `spectrum` keeps
    basis = scale[:, None] * vectors
    weight = basis @ ((basis.T @ moments.sxy) / values[:, None])
    # b = ȳ − x̄ W
    bias = moments.mean_y - moments.mean_x @ weight
    return AffineMap(weight, bias), len(values)


def spectrum(
    moments: Moments, null: float = NULL
) -> tuple[Float[Tensor, " d_in"], Float[Tensor, " rank"], Float[Tensor, "d_in rank"]]:
    """Eigenvalues of the inputs' correlation matrix, without the null directions.

    D Sxx D = V Λ Vᵀ, with D the column scales: one over the root of Sxx's diagonal.

    Returns:
        D's diagonal, shape (d_in,), 0 for a constant input; Λ's ascending, (rank,); V, (d_in, rank).

    Raises:
        InputError: no input varies, or a row was not finite.
    """
    squares = moments.checked().sxx.diagonal()
    varying = varies(squares, moments.mean_x, moments.n, null)
    if not varying.any():
        raise InputError(f"all {moments.d_in} inputs are constant over {moments.n} rows: there is nothing to fit")
    scale = torch.where(varying, squares, torch.inf).rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * moments.sxx * scale)
    resolved = values > null * values[-1]
    return scale, values[resolved], vectors[:, resolved]


def whitening(moments: Moments) -> Float[Tensor, "d_in rank"]:
    """What takes centred inputs to mean square 1 and no correlations; null directions are left out, the quietest first.

    Raises:
        InputError: no input varies.
    """
    scale, values, vectors = spectrum(moments)
    return scale[:, None] * vectors / (values / moments.n).sqrt()


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


def condition(moments: Moments) -> float:
    """Largest over smallest singular value of the centred inputs as they come, without the null directions.

    Read off a factor of Sxx, not off Sxx itself, whose small eigenvalues squaring would have drowned.
    """
    scale, values, vectors = spectrum(moments)
    varying = scale > 0
    # Sxx = F Fᵀ with F = D⁻¹ V Λ^½: its singular values are those of the centred inputs
    factor = vectors[varying] * values.sqrt() / scale[varying, None]
    singular = torch.linalg.svdvals(factor)
    return float(singular[0] / singular[-1])


# --- The score: R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F


def r2(affine: AffineMap, moments: Moments) -> float:
    """Pooled R² of a map on the rows in `moments`.

    Raises:
        InputError: the outputs are constant, so there is no variance to explain; or a row was not finite.
    """
    varying = varies(moments.checked().syy, moments.mean_y, moments.n)
    if not varying.any():
        raise InputError(f"the outputs are constant over {moments.n} rows: R² is undefined; use more or other text")
    return float(1 - residual(affine, moments).sum() / moments.syy.sum())


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
    affine: AffineMap, train: Sequence[Moments], test: Sequence[Moments], confidence: float = CONFIDENCE
) -> tuple[Estimate, Estimate | None]:
    """R²_lin and its limit, with intervals: train folds left out of the fit in turn, then held-out ones of the score.

    The interval is for R²_lin at this number of rows, and about which documents were drawn: it holds what R²_lin comes
    to on average in 93 to 98 of 100 simulated measurements, also with correlated documents, heavy tails, or one massive
    row a document (`benchmarks/coverage.py`; 8 + 8 folds). It is not for the R² of infinitely many rows, which lies
    higher by about (1 − R²) d / n. That it holds too where this is small beside the interval; else see
    `Ceiling.r2_train`, which is its other end.

    Args:
        affine: the map fitted on all train folds.
        train: moments per document fold to fit on.
        test: moments per held-out document fold.
        confidence: of the intervals.

    Returns:
        R²_lin at these rows, and what it tends to; no limit where rows are too few to say.

    Raises:
        InputError: without one of the folds there are too few rows for a map.
    """
    followed = sum(train)
    held_out = sum(test)
    r2_here = r2(affine, held_out)
    in_sample = r2(affine, followed)

    # Each train fold left out of the fit: R² of held-out rows, and R²_∞ from both sides
    refitted = []
    refitted_limits = []
    for moments in left_out(train):
        refit, _ = fit(moments)
        score = r2(refit, held_out)
        refitted.append(score)
        refitted_limits.append(limits.limit(r2(refit, moments), score))

    # Each held-out fold left out of the score
    rescored = [r2(affine, moments) for moments in left_out(test)]
    rescored_limits = [limits.limit(in_sample, score) for score in rescored]

    here = Estimate.jackknife(r2_here, refitted, rescored, confidence=confidence)
    if not limits.enough(in_sample, r2_here):
        return here, None
    limit = limits.limit(in_sample, r2_here)
    return here, Estimate.jackknife(limit, refitted_limits, rescored_limits, confidence=confidence)
