"""The exact affine ceiling of a block: the map, R²_lin on held-out rows, and its error bars.

(W, b) = argmin ‖Y − XW − 1b‖²_F on train rows;
R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F on held-out rows, pooled over features
(arXiv 2606.19379, "linear recoverability"). Everything here follows from `Moments` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap, zip_longest
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

UNDERFLOW = torch.finfo(torch.float64).tiny / torch.finfo(torch.float64).eps  # smaller squares have lost digits
SHARED = 1e-3
"""Least share of its sum of squares that a direction must keep when a fold is left out (`refits`)."""


@dataclass(frozen=True)
class AffineMap:
    """x ↦ x W + b.

    Attributes:
        weight: W, shape (d_in, d_out), float64: a tensor, an array or lists.
        bias: b, shape (d_out,), float64, likewise.
        site: what it was fitted to, `ffn`, `attention` or `layer`, and stands in for; None if nobody said.

    Raises:
        InputError: no real numbers, or other shapes.
    """

    weight: Float[Tensor, "d_in d_out"]
    bias: Float[Tensor, " d_out"]
    site: str | None = None

    def __post_init__(self) -> None:
        """Keep tensors, and refuse what torch would stretch to fit, as one number for all of `bias`."""
        for name in ("weight", "bias"):
            object.__setattr__(self, name, real_tensor(name, getattr(self, name)))
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[1:]:
            shapes = f"{tuple(self.weight.shape)} and {tuple(self.bias.shape)}"
            raise InputError(f"weight and bias of shapes {shapes}: give (d_in, d_out) and (d_out,)")

    def __call__(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Apply the map in the dtype of `x`, or in float64 if `x` holds integers.

        Raises:
            InputError: `x` does not hold real numbers, or is of another width.
        """
        x = real_tensor("x", x)
        if x.shape[-1:] != self.weight.shape[:1]:
            raise InputError(f"x of shape {tuple(x.shape)}: this map takes (…, {len(self.weight)})")
        x = x if x.is_floating_point() else x.double()
        return x @ self.weight.to(x) + self.bias.to(x)

    def __repr__(self) -> str:
        return f"<AffineMap of {len(self.weight)} to {len(self.bias)} features>"

    def __eq__(self, other: object) -> bool:
        """Whether weight and bias are the same, as those of a map and of its copy in a file are."""
        if not isinstance(other, AffineMap):
            return NotImplemented
        pairs = (self.weight, other.weight), (self.bias, other.bias)
        return all(torch.equal(own.cpu(), its.cpu()) for own, its in pairs)

    def __hash__(self) -> int:
        return hash(self.weight.shape)

    @classmethod
    def constant(cls, moments: Moments) -> AffineMap:
        """Build the map that sends every input to the mean output: mean ablation."""
        return cls(torch.zeros_like(moments.sxy), moments.mean_y)


@dataclass(frozen=True)
class Ceiling:
    """The exact least-squares affine map and what it explains on held-out rows.

    Attributes:
        r2: R²_lin, pooled over features; NaN if the block's outputs are constant (`ceiling_or_nan`).
        r2_train: R² of the map on the rows it was fitted on. On n rows of rank d with normal noise the residual is too
            small by the factor 1 − d / n here and too large by about 1 + d / n on other rows (Stein 1960, "Multiple
            regression"), so on average the R² of infinitely many rows lies halfway between `r2_train` and `r2`; with
            heavy tails, which push `r2` down further, in the upper half.
        interval: R²_lin with its jackknife interval, for R²_lin at this number of rows (`r2_intervals`); None without
            document folds.
        limit: common limit of `r2_train` and `r2` for ever more rows (`core.limits`), with its jackknife interval; None
            without document folds or with too few rows.
        r2_median: median of the per-feature R².
        r2_per_feature: R² of each output feature, shape (d_out,); NaN where a feature is constant. None if the ceiling
            was read from a file that holds only numbers.
        map: the least-squares map, of minimum norm (in column-scaled inputs) off the null directions; None as above.
        inputs: input width of the block, d_in.
        rank: number of input directions that are not null.
        condition: ratio of the largest to the smallest singular value of the centred inputs, not column-scaled, over
            the `rank` leading directions; the Gram matrix has the square of this condition number.
        rows_train: number of train rows.
        rows_test: number of held-out rows.
    """

    r2: float
    r2_train: float
    interval: Estimate | None
    limit: Estimate | None
    r2_median: float
    r2_per_feature: Float[Tensor, " d_out"] | None = field(compare=False)  # a tensor, which has no single truth value
    map: AffineMap | None
    inputs: int
    rank: int
    condition: float
    rows_train: int
    rows_test: int

    def __repr__(self) -> str:
        interval = "" if self.interval is None else f" [{self.r2_low:.3f}, {self.r2_high:.3f}]"
        rows = f"{self.rows_train:,} train and {self.rows_test:,} held-out rows"
        return f"<Ceiling of {rows}: R²_lin {self.r2:.3f}{interval}>"

    def cpu(self) -> Ceiling:
        """Copy the ceiling with its map and per-feature R² in main memory."""
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
        *sides: moments of the train rows and of the held-out rows, each as one `Moments` or as one per document fold;
            folds on both sides give the interval. Or the rows themselves, arrays or tensors of shapes (n, d_in) and
            (n, d_out), without folds.
        confidence: confidence of the interval; not 95 % if it is one of several looks (`instrument.stopping`).

    Returns:
        The `Ceiling`.

    Raises:
        InputError: too few rows for the width, constant inputs or constant outputs, a row that is not finite, arguments
            that are neither moments nor rows, tables of other columns, or a confidence outside (0, 1).
    """
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise InputError(f"confidence={confidence!r}: give a share between 0 and 1, as 0.95")
    if len(sides) == 4:
        x_train, y_train, x_test, y_test = sides
        _check_columns("X", x_train, x_test)
        _check_columns("Y", y_train, y_test)
        sides = (moments_of(x_train, y_train), moments_of(x_test, y_test))
    if len(sides) != 2 or not all(_are_moments(side) for side in sides):
        kinds = ", ".join(type(side).__name__ for side in sides) or "nothing"
        raise InputError(f"ceiling of {kinds}: give (train, test) moments, or (X_train, Y_train, X_test, Y_test) rows")
    train_folds, test_folds = ([side] if isinstance(side, Moments) else side for side in sides)
    if not train_folds or not test_folds:
        raise InputError("a ceiling needs rows to fit on and held-out rows; one side has none")
    train_rows = Moments.total(train_folds)
    test_rows = Moments.total(test_folds)

    affine, inputs = fit(train_rows)
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
    """Compute the `ceiling` of a block; if its outputs are constant, it has map and rank, but every R² is NaN.

    The same holds if the outputs vary in a single document fold, as there is no R²_lin without that fold.

    Raises:
        InputError: as in `ceiling`, except for constant outputs.
    """
    try:
        return ceiling(train, test, confidence=confidence)
    except ConstantError:
        rows = Moments.total(train)
        affine, inputs = fit(rows)
        return Ceiling(
            **dict.fromkeys(("r2", "r2_train", "r2_median"), float("nan")),
            interval=None,
            limit=None,
            r2_per_feature=torch.full_like(rows.mean_y, torch.nan),
            map=affine,
            inputs=rows.d_in,
            rank=inputs.rank,
            condition=inputs.condition,
            rows_train=rows.n,
            rows_test=Moments.total(test).n,
        )


def moments_of(x: Any, y: Any) -> Moments:
    """Compute the moments of arrays, tensors or lists of rows: inputs (n, d_in), outputs (n, d_out) or (n,).

    Raises:
        InputError: the rows are not numeric, have other shapes or different lengths, or are not finite.
    """
    rows = []
    for name, given in (("X", x), ("Y", y)):
        tensor = real_tensor(name, given).detach()
        if tensor.is_meta:
            raise InputError(f"{name} is on the meta device, which holds no numbers: give a tensor that has them")
        tensor = tensor.cpu().to_dense()
        if name == "Y" and tensor.ndim == 1:
            tensor = tensor[:, None]
        if tensor.ndim != 2:
            raise InputError(f"{name} of shape {tuple(tensor.shape)}: give rows, (n, features)")
        rows.append(tensor if tensor.is_floating_point() else tensor.double())
    if len(rows[0]) != len(rows[1]):
        raise InputError(f"{len(rows[0])} rows of X and {len(rows[1])} of Y: a row of each belongs together")
    return Moments(rows[0].shape[1], rows[1].shape[1]).update(*rows)


def _check_columns(name: str, train: Any, test: Any) -> None:
    """Refuse tables of other columns, or of the same in another order: a map knows features by their place alone."""
    columns = [list(getattr(side, "column_names", getattr(side, "columns", []))) for side in (train, test)]
    for place, (one, other) in enumerate(zip_longest(*columns) if all(columns) else []):
        if str(one) != str(other):
            raise InputError(
                f"column {place} of {name} is {one!r} in train rows and {other!r} in held-out rows: give the same "
                "columns in one order"
            )


def _are_moments(side: Any) -> bool:
    if isinstance(side, list | tuple):
        return all(isinstance(fold, Moments) for fold in side)
    return isinstance(side, Moments | Folds)


# --- The map: (W, b) = argmin ‖Y − XW − 1b‖²_F


def fit(moments: Moments, null: float = NULL) -> tuple[AffineMap, Spectrum]:
    """Fit the least-squares affine map; return it and the decomposition of its inputs, with their rank.

    Columns are scaled to unit variance (Jacobi), and directions of the correlation matrix below `null` are left out;
    values other than `NULL` serve to show why the rule is needed.

    Raises:
        InputError: fewer than d_in + 2 rows, no input that varies, or a row that was not finite.
    """
    check_rows(moments)
    inputs = decompose(moments, null)
    return inputs.solution(moments), inputs


def check_rows(moments: Moments) -> None:
    """Refuse fewer than d_in + 2 rows, which an affine map fits exactly."""
    needed = moments.d_in + 2
    if moments.n < needed:
        raise InputError(
            f"{moments.n} train rows for {moments.d_in} inputs: an affine map would fit them exactly; "
            f"use at least {needed} rows, better ten times as many"
        )


def _with_bias(weight: Float[Tensor, "d_in d_out"], moments: Moments) -> AffineMap:
    """Complete a slope to the affine map whose residuals have mean 0: b = ȳ − x̄ W."""
    return AffineMap(weight, moments.mean_y - moments.mean_x @ weight)


@dataclass(frozen=True)
class Spectrum:
    """Eigendecomposition of the inputs' correlation, D Sxx D = V Λ Vᵀ, with D one over the root of Sxx's diagonal.

    Attributes:
        scale: diagonal of D, shape (d_in,), 0 for a constant input.
        values: diagonal of Λ without null directions, ascending, shape (rank,).
        vectors: V, shape (d_in, rank).
    """

    scale: Float[Tensor, " d_in"]
    values: Float[Tensor, " rank"]
    vectors: Float[Tensor, "d_in rank"]

    @property
    def rank(self) -> int:
        """Number of directions that are not null."""
        return len(self.values)

    @property
    def condition(self) -> float:
        """Ratio of largest to smallest singular value of the centred, unscaled inputs, null directions excluded."""
        # Sxx = F Fᵀ with F = D⁻¹ V √Λ, whose singular values are those of the centred inputs; in Sxx itself, small
        # eigenvalues would be lost to the squaring
        varying = self.scale > 0
        factor = self.vectors[varying] * self.values.sqrt() / self.scale[varying, None]
        if on_cpu(factor):
            singular = torch.linalg.svdvals(factor)
            return float(singular[0] / singular[self.rank - 1])
        # On a GPU, singular values take many times as long as products. Those of F = Q R are R's, and the smallest of R
        # is one over the largest of R⁻¹. Both are roots of largest eigenvalues, of R Rᵀ and R⁻¹ R⁻ᵀ, and lose nothing.
        return condition_of_triangle(torch.linalg.qr(factor, mode="r").R)

    def solution(self, moments: Moments) -> AffineMap:
        """Solve for the least-squares map of the rows that were decomposed."""
        # W = Sxx⁺ Sxy, with Sxx⁺ = (D V) Λ⁻¹ (D V)ᵀ
        basis = self.scale[:, None] * self.vectors
        components = basis.T @ moments.sxy
        return _with_bias(basis @ (components / self.values[:, None]), moments)


def condition_of_triangle(triangle: Float[Tensor, "rank rank"]) -> float:
    """Compute the condition number of an upper triangular matrix from products and two eigenvalues, without an SVD."""
    identity = torch.eye(len(triangle), dtype=triangle.dtype, device=triangle.device)
    inverse = torch.linalg.solve_triangular(triangle, identity, upper=True)
    largest = [torch.linalg.eigvalsh(matrix @ matrix.T)[-1] for matrix in (triangle, inverse)]
    return float((largest[0] * largest[1]).sqrt())


def decompose(moments: Moments, null: float = NULL) -> Spectrum:
    """Decompose the inputs' correlation matrix into eigenvalues and eigenvectors, without null directions.

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
    """Compute the matrix that whitens centred inputs, without null directions, the quietest direction first.

    Returns:
        B, shape (d_in, rank): (x − x̄) B has mean square 1 in every column, and no two columns correlate.

    Raises:
        InputError: no input varies.
    """
    inputs = decompose(moments)
    return inputs.scale[:, None] * inputs.vectors / (inputs.values / moments.n).sqrt()


def leverage(train: Moments, inputs: Float[Tensor, "n d_in"]) -> Float[Tensor, " n"]:
    """Compute the leverage of any rows: how far a row's own output moves the map's prediction there.

    It is (x − x̄)ᵀ Sxx⁺ (x − x̄) + 1/n with x̄, Sxx and n of the train rows and no null directions; over the train rows
    it adds up to their rank + 1 (Hoaglin & Welsch 1978, "The hat matrix in regression and ANOVA").

    Raises:
        InputError: no input varies.
    """
    # ‖Z‖² with Z = (x − x̄) V √(n/λ) is n (x − x̄)ᵀ Sxx⁺ (x − x̄)
    whitened = (inputs.double() - train.mean_x) @ whitening(train)
    return (whitened.square().sum(1) + 1) / train.n


# --- The map without a document fold


def refits(train: Sequence[Moments], inputs: Spectrum) -> Iterator[tuple[AffineMap, Moments]]:
    """Yield the least-squares map without each fold in turn, and the moments of the rows it is fitted to.

    Null directions are those of all rows (`inputs`, from `decompose`); off them a map has minimum norm in inputs scaled
    as for all rows. Only if a direction belongs almost to one fold alone (`SHARED`) are the other folds decomposed
    anew, as in `fit`. The same rows are refused as in `fit`.
    """
    # B = D V Λ^(−1/2): in its coordinates Sxx of all rows is the identity, and Sxx without a fold is close to it
    basis = inputs.scale[:, None] * inputs.vectors / inputs.values.sqrt()
    for moments in left_out(train):
        check_rows(moments)
        yield _refitted(moments, basis), moments
        del moments  # to free their memory before the next ones


def _refitted(moments: Moments, basis: Float[Tensor, "d_in rank"]) -> AffineMap:
    """Fit the map of most of the rows, in coordinates in which Sxx of all rows is the identity."""
    # Bᵀ Sxx B = L Lᵀ, in a tenth of the time that eigenvalues take
    lower, failed = torch.linalg.cholesky_ex(basis.T @ moments.sxx @ basis)
    if failed or lower.diagonal().square().min() < SHARED:
        return decompose(moments).solution(moments)
    # A = L⁻¹ Bᵀ, and W = Aᵀ A Sxy, since Aᵀ A = Sxx⁺
    whitened = torch.linalg.solve_triangular(lower, basis.T, upper=False)
    return _with_bias(whitened.T @ (whitened @ moments.sxy), moments)


# --- The score: R²_lin = 1 − ‖Y' − X'W − 1b‖²_F / ‖Y' − mean(Y')‖²_F


def r2(affine: AffineMap, moments: Moments) -> float:
    """Compute the pooled R² of a map on the rows in `moments`.

    Raises:
        InputError: the outputs are constant, so there is no variance to explain; or a row was not finite.
    """
    return float(1 - residual(affine, moments).sum() / output_squares(moments))


class PooledR2:
    """Pooled R² of one map on many sets of rows: `r2` in d² steps each, after d³ once.

    Attributes:
        affine: the map.
        square: W Wᵀ, shape (d_in, d_in).
    """

    def __init__(self, affine: AffineMap):
        self.affine = affine
        self.square = affine.weight @ affine.weight.T

    def __call__(self, moments: Moments) -> float:
        """Compute `r2` of the map on the rows in `moments`, raising the same errors."""
        return float(1 - self.error(moments) / output_squares(moments))

    def error(self, moments: Moments) -> float:
        """Compute Σ ‖y − xW − b‖² over the rows in `moments`."""
        _check_widths(self.affine, moments)
        weight = self.affine.weight
        # Σ (y − xW − b)² = Σ Syy − 2 ⟨W, Sxy⟩ + ⟨W Wᵀ, Sxx⟩ + n ‖ȳ − x̄ W − b‖²
        explained = 2 * (weight * moments.sxy).sum() - (self.square * moments.sxx).sum()
        offset = moments.mean_y - moments.mean_x @ weight - self.affine.bias
        return float(moments.syy.sum() - explained + moments.n * offset.square().sum())


def _check_widths(affine: AffineMap, moments: Moments) -> None:
    """Refuse rows whose widths are not the map's: they would be broadcast."""
    d_in, d_out = affine.weight.shape
    if (d_in, d_out) != (moments.d_in, moments.d_out):
        raise InputError(
            f"a map of {d_in} inputs to {d_out} outputs, and rows of {moments.d_in} and {moments.d_out}: score it on "
            "the features that it was fitted to"
        )


def output_squares(moments: Moments) -> Float[Tensor, ""]:
    """Compute Σ (y − ȳ)² over features and rows, the denominator of R².

    Raises:
        ConstantError: the outputs are constant.
        InputError: a row was not finite.
    """
    if not outputs_vary(moments.checked()):
        raise ConstantError(f"the outputs are constant over {moments.n} rows: R² is undefined; use more or other text")
    return moments.syy.sum()


def outputs_vary(moments: Moments) -> bool:
    """Return whether any output feature varies (`varies`); if none does, as with a bias alone, R² is undefined."""
    return bool(varies(moments.syy, moments.mean_y, moments.n, eps=moments.eps_y).any())


def r2_about_scalar(affine: AffineMap, moments: Moments) -> float:
    """Compute the pooled R² of a map about one scalar, the mean of all outputs: R²_lin in arXiv 2606.19379.

    It is never below `r2`, since differences between the features' means count as explained.
    """
    output_squares(moments)  # refuses outputs that are constant
    squares = about_scalar(moments.syy, moments.mean_y, moments.n)
    return float(1 - residual(affine, moments).sum() / squares.sum())


def about_scalar(
    squares: Float[Tensor, " features"], means: Float[Tensor, " features"], n: int
) -> Float[Tensor, " features"]:
    """Compute Σ (y − m)² of each feature about one scalar m, the mean of all `means`, from `squares`, Σ (y − ȳ)²."""
    # Σ (y_j − m)² = Σ (y_j − ȳ_j)² + n (ȳ_j − m)²
    return squares + n * (means - means.mean()).square()


def r2_per_feature(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """Compute R² of each output feature, shape (d_out,); NaN where the feature is constant."""
    varying = varies(moments.syy, moments.mean_y, moments.n, eps=moments.eps_y)
    return torch.where(varying, 1 - residual(affine, moments) / moments.syy, torch.nan)


def residual(affine: AffineMap, moments: Moments) -> Float[Tensor, " d_out"]:
    """Compute Σ (y − xW − b)² per output feature, shape (d_out,), over the rows in `moments`."""
    _check_widths(affine, moments)
    weight = affine.weight
    # Σ (y − xW − b)² = Syy − diag(Wᵀ (2 Sxy − Sxx W)) + n (ȳ − x̄ W − b)²
    explained = (weight * (2 * moments.sxy - moments.sxx @ weight)).sum(0)
    offset = moments.mean_y - moments.mean_x @ weight - affine.bias
    return moments.syy - explained + moments.n * offset.square()


def varies(
    squares: Float[Tensor, " d"], mean: Float[Tensor, " d"], n: int, null: float = NULL, eps: float = FLOAT32
) -> Bool[Tensor, " d"]:
    """Return whether each feature varies over n rows, by a standard deviation above the rounding of its mean.

    The threshold is 1e-6 of the mean for float32 rows, some eight roundings, and 1e-14 for float64 rows, some 45, since
    their means and sums are rounded as coarsely as the rows: a constant varies by about four roundings. Narrower rows
    follow the rule for float32: the steps of a bfloat16 feature are wide, but real.

    With z a feature, `squares` are Σ(z − z̄)² and `mean` is z̄; `null` is the threshold on the variance over the squared
    mean for float32 rows, and 1e-16 of it for float64 rows; `eps` is the machine epsilon of the rows (`Moments.eps_x`),
    float32's if features were computed from float32 rows. Squares that float64 holds no longer in full, of features
    below some 1e-146, are no variance.
    """
    threshold = null if eps >= FLOAT32 else 1e-16 * null
    return squares > threshold * n * mean.square() + UNDERFLOW


# --- The error bars


def r2_intervals(
    r2_here: float,
    in_sample: float,
    refitted: Sequence[tuple[float, float]],
    rescored: Sequence[float],
    confidence: float = CONFIDENCE,
) -> tuple[Estimate, Estimate | None]:
    """Compute R²_lin and its limit with intervals, leaving train folds out of the fit and held-out folds of the score.

    The interval of R²_lin is for this number of rows and reflects which documents were drawn: it contains the average
    R²_lin in 93 to 98 of 100 simulated measurements, also with correlated documents, heavy tails, or one massive row
    per document (`benchmarks/coverage.py`; 8 + 8 folds). It is not an interval of the R² of infinitely many rows, which
    is higher by about (1 − R²) d / n. It contains that R² too if this difference is small next to the interval;
    otherwise that R² lies between R²_lin and `Ceiling.r2_train`.

    Args:
        r2_here: R²_lin at this number of rows.
        in_sample: R² on the train rows.
        refitted: (R²_lin, R² on the train rows) without each train fold (`refits`).
        rescored: R²_lin without each held-out fold.
        confidence: confidence of the intervals.

    Returns:
        R²_lin at this number of rows, and its limit; None for the limit if there are too few rows.
    """
    here = Estimate.jackknife(r2_here, [held_out for held_out, _ in refitted], rescored, confidence=confidence)
    if not limits.enough(in_sample, r2_here):
        return here, None
    # R²_∞ from both sides
    limit = limits.limit(in_sample, r2_here)
    refitted_limits = [limits.limit(followed, held_out) for held_out, followed in refitted]
    rescored_limits = [limits.limit(in_sample, held_out) for held_out in rescored]
    return here, Estimate.jackknife(limit, refitted_limits, rescored_limits, confidence=confidence)
