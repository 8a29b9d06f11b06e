"""The exact affine ceiling of a block: the map, R²_lin on held-out rows, and its error bars.

(W, b) = argmin ‖Y − XW − 1b‖²_F on train rows;
R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F on held-out rows, pooled over features
(arXiv 2606.19379, "linear recoverability"). Everything here follows from `Moments` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from numbers import Real
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howlinear.core import limits
from howlinear.core.intervals import CONFIDENCE, Estimate, left_out
from howlinear.core.moments import FLOAT32, Folds, Moments, on_cpu, real_tensor
from howlinear.errors import ConstantError, InputError

NULL = 1e-12
"""Eigenvalues of the input correlation below NULL × the largest are null directions: float32 rows cannot
resolve them. A LayerNorm output has one, with rounding noise of about (1e-7)² where its variance would be;
a fit that trusts it learns the noise. Notebook 02 shows what happens without this rule."""

SHARED = 1e-3
"""A direction that keeps less than this of its squares without a fold is nearly that fold's alone (`refits`)."""


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
        """Apply the map in the dtype of `x`, of whole numbers in float64.

        Raises:
            InputError: no real numbers.
        """
        x = real_tensor("x", x)
        x = x if x.is_floating_point() else x.double()
        return x @ self.weight.to(x) + self.bias.to(x)

    @classmethod
    def constant(cls, moments: Moments) -> AffineMap:
        """The map to the mean output whatever the input: mean ablation."""
        return cls(torch.zeros_like(moments.sxy), moments.mean_y)


@dataclass(frozen=True)
class Ceiling:
    """What the exact least-squares affine map explains on held-out rows.

    Attributes:
        r2: R²_lin, pooled over features; NaN of a block among others whose outputs are constant.
        r2_train: R² of the map on the rows it was fitted on. On n rows of rank d with normal noise the residual is too
            small by the factor 1 − d / n here and too large by about 1 + d / n on other rows (Stein 1960, "Multiple
            regression"), so on average the R² of infinitely many rows lies halfway between `r2_train` and `r2`; with
            heavy tails, which push `r2` down further, in the upper half.
        interval: R²_lin with its jackknife interval, for R²_lin at this number of rows (`r2_intervals`); None without
            document folds.
        limit: what the two tend to with ever more rows (`core.limits`), with its jackknife interval; None without
            document folds, and where rows are too few to say.
        r2_median: median of the per-feature R².
        r2_per_feature: the same ratio per output feature, shape (d_out,); NaN where a feature is constant. None where
            the ceiling was read from a file of numbers alone.
        map: the least-squares map, minimum norm (in column-scaled inputs) off the null directions; None likewise.
        inputs: of the block, d_in.
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
    r2_median: float
    r2_per_feature: Float[Tensor, " d_out"] | None
    map: AffineMap | None
    inputs: int
    rank: int
    condition: float
    rows_train: int
    rows_test: int

    def cpu(self) -> Ceiling:
        """The same, its map and R² per feature in main memory."""
        return replace(
            self,
            map=AffineMap(self.map.weight.cpu(), self.map.bias.cpu()),
            r2_per_feature=self.r2_per_feature.cpu(),
        )

    @property
    def r2_low(self) -> float | None:
        """Lower end of the interval; None without document folds."""
        return None if self.interval is None else self.interval.low

    @property
    def r2_high(self) -> float | None:
        """Upper end of the interval; None without document folds."""
        return None if self.interval is None else self.interval.high


def ceiling(*sides: Any, confidence: float = CONFIDENCE) -> Ceiling:
    """Fit on train rows, score on held-out rows: `ceiling(train, test)`, `ceiling(X_train, Y_train, X_test, Y_test)`.

    Args:
        *sides: moments of the train rows, or one per document fold, and the same of the held-out rows; folds on both
            sides give the interval. Or rows themselves, arrays or tensors of shapes (n, d_in) and (n, d_out), which
            have no folds.
        confidence: of that interval; other than 95 % where it is one of several looks (`instrument.stopping`).

    Returns:
        The `Ceiling`.

    Raises:
        InputError: too few rows for the width, constant inputs or constant outputs, a row that is not finite, something
            else than moments and rows, or a confidence that is no share.
    """
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise InputError(f"confidence={confidence!r}: give a share between 0 and 1, as 0.95")
    if len(sides) == 4:
        x_train, y_train, x_test, y_test = sides
        sides = (moments_of(x_train, y_train), moments_of(x_test, y_test))
    if len(sides) != 2 or not all(_are_moments(side) for side in sides):
        kinds = ", ".join(type(side).__name__ for side in sides) or "nothing"
        raise InputError(f"ceiling of {kinds}: give (train, test) moments, or (X_train, Y_train, X_test, Y_test) rows")
    train_folds, test_folds = ([side] if isinstance(side, Moments) else side for side in sides)
    if not train_folds or not test_folds:
        raise InputError("a ceiling needs rows to fit on and held-out rows; one side has none")
    train_rows = Moments.total(train_folds)
    test_rows = Moments.total(test_folds)

    check_rows(train_rows)
    inputs = decompose(train_rows)
    affine = inputs.solution(train_rows)
    score = PooledR2(affine)
    r2_test = score(test_rows)
    r2_train = score(train_rows)
    interval, limit = None, None
    if len(train_folds) > 1 and len(test_folds) > 1:

        def scores(refit: AffineMap, others: Moments) -> tuple[float, float]:
            score_refit = PooledR2(refit)
            return score_refit(test_rows), score_refit(others)

        refitted = list(starmap(scores, refits(train_folds, inputs)))
        rescored = [score(others) for others in left_out(test_folds)]
        interval, limit = r2_intervals(r2_test, r2_train, refitted, rescored, confidence)
    per_feature = r2_per_feature(affine, test_rows)
    return Ceiling(
        r2=r2_test,
        r2_train=r2_train,
        interval=interval,
        limit=limit,
        r2_median=float(per_feature.nanquantile(0.5)),
        r2_per_feature=per_feature,
        map=affine,
        inputs=len(affine.weight),
        rank=inputs.rank,
        condition=inputs.condition,
        rows_train=train_rows.n,
        rows_test=test_rows.n,
    )


def ceiling_or_nan(train: Sequence[Moments], test: Sequence[Moments], confidence: float = CONFIDENCE) -> Ceiling:
    """The `ceiling` of one block among others: where its outputs are constant, its map and rank, and every R² NaN.

    So it is where they vary in one document fold alone, without which there is no R²_lin.

    Raises:
        InputError: as `ceiling`, but for constant outputs.
    """
    try:
        return ceiling(train, test, confidence=confidence)
    except ConstantError:
        rows, held_out = Moments.total(train), Moments.total(test)
        inputs = decompose(rows)
        return Ceiling(
            **dict.fromkeys(("r2", "r2_train", "r2_median"), float("nan")),
            interval=None,
            limit=None,
            r2_per_feature=torch.full_like(rows.mean_y, torch.nan),
            map=inputs.solution(rows),
            inputs=rows.d_in,
            rank=inputs.rank,
            condition=inputs.condition,
            rows_train=rows.n,
            rows_test=held_out.n,
        )


def moments_of(x: Any, y: Any) -> Moments:
    """Moments of rows at hand, as arrays, tensors or lists: inputs (n, d_in), outputs (n, d_out), or (n,) of one.

    Raises:
        InputError: they are no numbers, of other shapes, of different lengths, or not finite.
    """
    rows = []
    for name, given in (("X", x), ("Y", y)):
        tensor = real_tensor(name, given).detach().cpu().to_dense()
        if name == "Y" and tensor.ndim == 1:
            tensor = tensor[:, None]
        if tensor.ndim != 2:
            raise InputError(f"{name} of shape {tuple(tensor.shape)}: give rows, (n, features)")
        rows.append(tensor if tensor.is_floating_point() else tensor.double())
    if len(rows[0]) != len(rows[1]):
        raise InputError(f"{len(rows[0])} rows of X and {len(rows[1])} of Y: a row of each belongs together")
    return Moments(rows[0].shape[1], rows[1].shape[1]).update(*rows)


def _are_moments(side: Any) -> bool:
    """Whether one side is moments, or a list of them."""
    if isinstance(side, list | tuple):
        return all(isinstance(fold, Moments) for fold in side)
    return isinstance(side, Moments | Folds)


# --- The map: (W, b) = argmin ‖Y − XW − 1b‖²_F


def fit(moments: Moments, null: float = NULL) -> tuple[AffineMap, int]:
    """The least-squares affine map and the rank of its inputs.

    Columns are scaled to unit variance (Jacobi), and directions under `null` of the correlation matrix are left out;
    other values than `NULL` are for showing why there is a rule.

    Raises:
        InputError: fewer than d_in + 2 rows, no input that varies, or a row that was not finite.
    """
    check_rows(moments)
    inputs = decompose(moments, null)
    return inputs.solution(moments), inputs.rank


def check_rows(moments: Moments) -> None:
    """Refuse to fit a map to fewer than d_in + 2 rows, on which it fits anything exactly."""
    needed = moments.d_in + 2
    if moments.n < needed:
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
    """

    scale: Float[Tensor, " d_in"]
    values: Float[Tensor, " rank"]
    vectors: Float[Tensor, "d_in rank"]

    @property
    def rank(self) -> int:
        """Directions that are not null."""
        return len(self.values)

    @property
    def condition(self) -> float:
        """Largest over smallest singular value of the centred inputs as they come, without the null directions."""
        # Sxx = F Fᵀ with F = D⁻¹ V √Λ, whose singular values are those of the centred inputs; Sxx's own small
        # eigenvalues would have drowned in squaring
        varying = self.scale > 0
        factor = self.vectors[varying] * self.values.sqrt() / self.scale[varying, None]
        if on_cpu(factor):
            singular = torch.linalg.svdvals(factor)
            return float(singular[0] / singular[self.rank - 1])
        # On a GPU singular values take many times as long as products. F = Q R, so those of F are R's, and the smallest
        # of R is one over the largest of R⁻¹: roots of the largest eigenvalues of R Rᵀ and R⁻¹ R⁻ᵀ, which lose nothing.
        return condition_of_triangle(torch.linalg.qr(factor, mode="r").R)

    def solution(self, moments: Moments) -> AffineMap:
        """The least-squares map of the rows that were decomposed."""
        # W = Sxx⁺ Sxy, with Sxx⁺ = (D V) Λ⁻¹ (D V)ᵀ
        basis = self.scale[:, None] * self.vectors
        components = basis.T @ moments.sxy
        return _with_bias(basis @ (components / self.values[:, None]), moments)


def condition_of_triangle(triangle: Float[Tensor, "rank rank"]) -> float:
    """Largest over smallest singular value of an upper triangular matrix, by products alone but for two eigenvalues."""
    identity = torch.eye(len(triangle), dtype=triangle.dtype, device=triangle.device)
    inverse = torch.linalg.solve_triangular(triangle, identity, upper=True)
    largest = [torch.linalg.eigvalsh(matrix @ matrix.T)[-1] for matrix in (triangle, inverse)]
    return float((largest[0] * largest[1]).sqrt())


def decompose(moments: Moments, null: float = NULL) -> Spectrum:
    """Eigenvalues and eigenvectors of the inputs' correlation matrix, without null directions.

    Raises:
        InputError: no input varies, or a row was not finite.
    """
    squares = moments.checked().sxx.diagonal()
    varying = varies(squares, moments.mean_x, moments.n, null, moments.eps_x)
    if not varying.any():
        raise InputError(
            f"all {moments.d_in} inputs are constant over {moments.n} rows, but for rounding of their means: there is "
            "nothing to fit (a large offset is better subtracted before rows are rounded to float32)"
        )
    scale = torch.where(varying, squares, torch.inf).rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * moments.sxx * scale)
    resolved = values > null * values[-1]
    return Spectrum(scale, values[resolved], vectors[:, resolved])


def whitening(moments: Moments) -> Float[Tensor, "d_in rank"]:
    """What takes centred inputs to mean square 1 and no correlations; null directions are left out, the quietest first.

    Returns:
        B, shape (d_in, rank): (x − x̄) B has mean square 1 in every column, and no two columns correlate.

    Raises:
        InputError: no input varies.
    """
    inputs = decompose(moments)
    return inputs.scale[:, None] * inputs.vectors / (inputs.values / moments.n).sqrt()


def leverage(train: Moments, inputs: Float[Tensor, "n d_in"]) -> Float[Tensor, " n"]:
    """How far a row's own output moves the map's prediction there; over the train rows it adds up to their rank + 1.

    It is (x − x̄)ᵀ Sxx⁺ (x − x̄) + 1/n, of any rows, with x̄, Sxx and n of the train rows and without null directions
    (Hoaglin & Welsch 1978, "The hat matrix in regression and ANOVA").

    Raises:
        InputError: no input varies.
    """
    # ‖Z‖² with Z = (x − x̄) V √(n/λ) is n (x − x̄)ᵀ Sxx⁺ (x − x̄)
    whitened = (inputs.double() - train.mean_x) @ whitening(train)
    return (whitened.square().sum(1) + 1) / train.n


# --- The map without a document fold


def refits(train: Sequence[Moments], inputs: Spectrum) -> Iterator[tuple[AffineMap, Moments]]:
    """The least-squares maps without each fold in turn, and the moments of the rows that they are fitted to.

    Null directions are those of all rows (`inputs`, by `decompose`), and off them a map has minimum norm in inputs
    scaled as for all rows. Only where some direction is nearly one fold's alone are the others decomposed anew, as by
    `fit`, which refuses what this does.
    """
    # B = D V Λ^(−1/2): in its coordinates Sxx of all rows is the identity, and that of all but a fold's not far from it
    basis = inputs.scale[:, None] * inputs.vectors / inputs.values.sqrt()
    for moments in left_out(train):
        check_rows(moments)
        yield _refitted(moments, basis), moments
        del moments  # which take as much as the next ones


def _refitted(moments: Moments, basis: Float[Tensor, "d_in rank"]) -> AffineMap:
    """The map of most of the rows, in coordinates in which all of them together have the identity for Sxx."""
    # Bᵀ Sxx B = L Lᵀ, in a tenth of the time that eigenvalues take
    lower, failed = torch.linalg.cholesky_ex(basis.T @ moments.sxx @ basis)
    if failed or lower.diagonal().square().min() < SHARED:
        return decompose(moments).solution(moments)
    # A = L⁻¹ Bᵀ, and W = Aᵀ A Sxy, since Aᵀ A = Sxx⁺
    whitened = torch.linalg.solve_triangular(lower, basis.T, upper=False)
    return _with_bias(whitened.T @ (whitened @ moments.sxy), moments)


# --- The score: R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F


def r2(affine: AffineMap, moments: Moments) -> float:
    """Pooled R² of a map on the rows in `moments`.

    Raises:
        InputError: the outputs are constant, so there is no variance to explain; or a row was not finite.
    """
    return float(1 - residual(affine, moments).sum() / output_squares(moments))


class PooledR2:
    """Pooled R² of one map on rows of many kinds: `r2` in d² steps each, after d³ once.

    Attributes:
        affine: the map.
        square: W Wᵀ, shape (d_in, d_in).
    """

    def __init__(self, affine: AffineMap):
        """Multiply the map by itself, once."""
        self.affine = affine
        self.square = affine.weight @ affine.weight.T

    def __call__(self, moments: Moments) -> float:
        """`r2` of the map on the rows in `moments`, and its errors."""
        return float(1 - self.error(moments) / output_squares(moments))

    def error(self, moments: Moments) -> float:
        """Σ ‖y − xW − b‖² over the rows in `moments`."""
        _check_widths(self.affine, moments)
        weight = self.affine.weight
        # Σ (y − xW − b)² = Σ Syy − 2 ⟨W, Sxy⟩ + ⟨W Wᵀ, Sxx⟩ + n ‖ȳ − x̄ W − b‖²
        explained = 2 * (weight * moments.sxy).sum() - (self.square * moments.sxx).sum()
        offset = moments.mean_y - moments.mean_x @ weight - self.affine.bias
        return float(moments.syy.sum() - explained + moments.n * offset.square().sum())


def _check_widths(affine: AffineMap, moments: Moments) -> None:
    """Refuse to score a map on rows of other features, which would be broadcast."""
    d_in, d_out = affine.weight.shape
    if (d_in, d_out) != (moments.d_in, moments.d_out):
        raise InputError(
            f"a map of {d_in} inputs to {d_out} outputs, and rows of {moments.d_in} and {moments.d_out}: score it on "
            "the features that it was fitted to"
        )


def output_squares(moments: Moments) -> Float[Tensor, ""]:
    """Σ (y − ȳ)² over features and rows, what R² is a share of.

    Raises:
        ConstantError: the outputs are constant.
        InputError: a row was not finite.
    """
    if not outputs_vary(moments.checked()):
        raise ConstantError(f"the outputs are constant over {moments.n} rows: R² is undefined; use more or other text")
    return moments.syy.sum()


def outputs_vary(moments: Moments) -> bool:
    """Whether any output feature varies (`varies`); where none does, as where a bias is all, R² is undefined."""
    return bool(varies(moments.syy, moments.mean_y, moments.n, eps=moments.eps_y).any())


def r2_about_scalar(affine: AffineMap, moments: Moments) -> float:
    """Pooled R² of a map about one scalar, the mean of all outputs: what arXiv 2606.19379 calls R²_lin.

    Never below `r2`: differences between the features' means count as explained.
    """
    output_squares(moments)  # refuses outputs that are constant
    squares = about_scalar(moments.syy, moments.mean_y, moments.n)
    return float(1 - residual(affine, moments).sum() / squares.sum())


def about_scalar(
    squares: Float[Tensor, " features"], means: Float[Tensor, " features"], n: int
) -> Float[Tensor, " features"]:
    """Σ (y − m)² of each feature about one scalar m, the mean of all `means`, from `squares`, Σ (y − ȳ)²."""
    # Σ (y_j − m)² = Σ (y_j − ȳ_j)² + n (ȳ_j − m)²
    return squares + n * (means - means.mean()).square()


def r2_per_feature(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """R² of each output feature, shape (d_out,); NaN where the feature is constant."""
    varying = varies(moments.syy, moments.mean_y, moments.n, eps=moments.eps_y)
    return torch.where(varying, 1 - residual(affine, moments) / moments.syy, torch.nan)


def residual(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """Σ (y − xW − b)² per output feature, shape (d_out,), over the rows in `moments`."""
    _check_widths(affine, moments)
    weight = affine.weight
    # Σ (y − xW − b)² = Syy − diag(Wᵀ (2 Sxy − Sxx W)) + n (ȳ − x̄ W − b)²
    explained = (weight * (2 * moments.sxy - moments.sxx @ weight)).sum(0)
    offset = moments.mean_y - moments.mean_x @ weight - affine.bias
    return moments.syy - explained + moments.n * offset.square()


def varies(
    squares: Float[Tensor, " d"], mean: Float[Tensor, " d"], n: int, null: float = NULL, eps: float = FLOAT32
) -> Bool[Tensor, " d"]:
    """Whether each feature varies over n rows: its standard deviation is more than rounding of its mean.

    That is 1e-6 of the mean for float32 rows, some eight roundings, and 1e-12 for float64 rows, whose means and sums
    are rounded as coarsely as they are. Rows narrower than float32 have its rule: steps of a bfloat16 feature are wide,
    and real.

    Args:
        squares: Σ(z − z̄)², shape (d,).
        mean: z̄, shape (d,).
        n: number of rows.
        null: the rule's threshold for float32 rows, of the variance over the squared mean; its square for float64 rows.
        eps: machine epsilon of the rows (`Moments.eps_x`); float32's where features were computed from such rows.
    """
    threshold = null if eps >= FLOAT32 else null**2
    return squares > threshold * n * mean.square()


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
        refitted: both without each train fold (`refits`), R²_lin first.
        rescored: R²_lin without each held-out fold.
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
