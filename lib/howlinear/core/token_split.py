"""R²_lin split by token identity: what the affine map explains between token means, and what within tokens.

With t the token of a row, e = y − xW − b the residual of the map, and ȳ_t and ē_t the means over the n_t rows of a
token, both sums of squares split into a part between tokens and a part within,

    Σ ‖y − ȳ‖² = Σ_t n_t ‖ȳ_t − ȳ‖² + Σ ‖y − ȳ_t‖²,        Σ ‖e‖² = Σ_t n_t ‖ē_t‖² + Σ ‖e − ē_t‖².

With s the first part's share of Σ ‖y − ȳ‖², the *token share*, and v its share of Σ ‖e‖²,

    R²_between = 1 − (v / s) (1 − R²),    R²_within = 1 − ((1 − v) / (1 − s)) (1 − R²),
    R² = s R²_between + (1 − s) R²_within.

Computed like this, a token's mean overfits its own rows: with n_t rows it absorbs 1 / n_t of the variation within, and
all of it if the token occurs once. Without that bias, ‖E z | t‖² is the mean of ⟨z_i, z_j⟩ over pairs of different
occurrences i and j. Occurrences in one document share more than their token, so pairs span two document folds:

    ‖E z | t‖² ≈ (‖S_t‖² − Σ_f ‖S_tf‖²) / (n_t² − Σ_f n_tf²),    S_tf = Σ z over the rows of token t in fold f.

Outputs z = y − ȳ are centred on a mean of the same rows. That takes the variance of ȳ away from every pair, and from
Σ ‖z‖² / n, so that it is added to both:

    E ‖ȳ − E y‖² ≈ Σ_f ‖S_f‖² / (n² − Σ_f n_f²),    S_f = Σ (y − ȳ) over the rows of fold f.

Rows whose token occurs in a single fold have no partner. Both shares, s and v, are computed on the rows with a partner,
and the other rows are assumed to split alike, so that the identity above holds exactly for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from howlinear.core.ceilings import AffineMap, PooledR2, output_squares
from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.core.moments import Moments


@dataclass(frozen=True)
class TokenSums:
    """Sums of rows for each token of each document fold, and moments of the rows of each fold.

    Memory is d_in + d_out + 3 numbers for every token of every fold, linear in the vocabulary and at most one entry per
    row, plus two `Moments` per fold.

    Attributes:
        fold: document fold of each sum, shape (k,), ascending.
        token: token of each sum, shape (k,), ascending within a fold.
        count: number of rows in each sum, shape (k,), float64.
        sum_x: Σ x, shape (k, d_in), float64.
        sum_y: Σ y, shape (k, d_out), float64.
        rows: fold → moments of its rows.
        paired: fold → moments of those rows whose token occurs in another fold as well.
    """

    fold: Int64[Tensor, " k"]
    token: Int64[Tensor, " k"]
    count: Float[Tensor, " k"]
    sum_x: Float[Tensor, "k d_in"]
    sum_y: Float[Tensor, "k d_out"]
    rows: Mapping[int, Moments]
    paired: Mapping[int, Moments]

    @classmethod
    def empty(cls, token: Int64[Tensor, " n"], fold: Int64[Tensor, " n"], d_in: int, d_out: int) -> TokenSums:
        """Start from no rows; `token` and `fold` of all rows to come tell beforehand which of them have a partner."""
        pairs = pd.DataFrame({"fold": fold.numpy(), "token": token.numpy()}).drop_duplicates()
        ascending = pairs.sort_values(["fold", "token"]).to_numpy().T.copy()
        fold_of_sum, token_of_sum = torch.from_numpy(ascending)
        count = torch.zeros(len(fold_of_sum), dtype=torch.float64, device="cpu")
        numbers = fold_of_sum.unique().tolist()
        return cls(
            fold_of_sum,
            token_of_sum,
            count,
            count.new_zeros(len(count), d_in),
            count.new_zeros(len(count), d_out),
            {number: Moments(d_in, d_out) for number in numbers},
            {number: Moments(d_in, d_out) for number in numbers},
        )

    def update(self, fold: int, token: Int64[Tensor, " n"], x: Float[Tensor, "n d_in"], y: Float[Tensor, "n d_out"]):
        """Add rows of a document fold in place; their tokens must have been given to `empty`.

        Raises:
            InputError: a value that is not finite.
        """
        inside = (self.fold == fold).nonzero()[:, 0]
        place = inside[torch.searchsorted(self.token[inside], token)]
        self.rows[fold].update(x, y)
        has_partner = self._has_partner[place]
        self.paired[fold].update(x[has_partner], y[has_partner])
        self.count.index_add_(0, place, torch.ones(len(place), dtype=torch.float64, device="cpu"))
        self.sum_x.index_add_(0, place, x.double())
        self.sum_y.index_add_(0, place, y.double())

    def total(self) -> Moments:
        """Add up the moments of all rows."""
        return Moments.total(self.rows.values())

    @cached_property
    def types(self) -> tuple[Int64[Tensor, " types"], Int64[Tensor, " k"]]:
        """Distinct tokens, ascending, shape (types,), and the index of each sum's token among them, shape (k,)."""
        return self.token.unique(return_inverse=True)

    @cached_property
    def _has_partner(self) -> Bool[Tensor, " k"]:
        _, kind = self.types
        return torch.bincount(kind)[kind] > 1

    def without(self, fold: int) -> TokenSums:
        """Return the sums without one fold; `paired` of the other folds stays as it is."""
        stay = self.fold != fold
        return TokenSums(
            self.fold[stay],
            self.token[stay],
            self.count[stay],
            self.sum_x[stay],
            self.sum_y[stay],
            {number: moments for number, moments in self.rows.items() if number != fold},
            {number: moments for number, moments in self.paired.items() if number != fold},
        )

    @classmethod
    def joined(cls, first: TokenSums, second: TokenSums) -> TokenSums:
        """Join the sums of two sets of rows that have no token in common, such as rare and frequent tokens."""
        fold, token = torch.cat([first.fold, second.fold]), torch.cat([first.token, second.token])
        order = (fold * (int(token.max()) + 1) + token).argsort()
        return cls(
            fold[order],
            token[order],
            torch.cat([first.count, second.count])[order],
            torch.cat([first.sum_x, second.sum_x])[order],
            torch.cat([first.sum_y, second.sum_y])[order],
            _joined(first.rows, second.rows),
            _joined(first.paired, second.paired),
        )


def _joined(first: Mapping[int, Moments], second: Mapping[int, Moments]) -> dict[int, Moments]:
    """Add the moments of both, fold by fold."""
    numbers = sorted({*first, *second})
    return {number: Moments.total([side[number] for side in (first, second) if number in side]) for number in numbers}


ALL = 1e-9
"""If the token share is nearer to 1 than this, the token decides everything, and variation within is rounding."""


class Split(NamedTuple):
    """R² of an affine map, split by the token.

    Attributes:
        r2: R² on all rows.
        token_share: s, the share of the outputs' variance that lies between tokens; NaN if no row has a partner.
        error_share: v, the share of the squared residuals that lies between tokens.
    """

    r2: float
    token_share: float
    error_share: float

    @property
    def r2_between(self) -> float:
        """R² of the line on the outputs' token means; NaN where tokens do not differ."""
        return 1 - self.error_share / self.token_share * (1 - self.r2) if self.token_share else torch.nan

    @property
    def r2_within(self) -> float:
        """R² of the line on what varies within tokens; NaN where the token decides all, as it may in a first block."""
        rest = 1 - self.token_share
        return 1 - (1 - self.error_share) / rest * (1 - self.r2) if abs(rest) > ALL else torch.nan


def split(affine: AffineMap, held_out: TokenSums, counted: bool = False) -> Split:
    """Split R² of a map on held-out rows into what it explains between token means and what within tokens.

    With `counted`, the shares come from each token's own mean, which is biased, and not from pairs of occurrences.

    Raises:
        InputError: the outputs are constant.
    """
    return _split(_Errors.of(affine, held_out), held_out, counted)


def residual_sums(affine: AffineMap, side: TokenSums) -> Float[Tensor, "k d_out"]:
    """Compute Σ (y − xW − b) for each token of each fold, shape (k, d_out)."""
    return side.sum_y - side.sum_x @ affine.weight - side.count[:, None] * affine.bias


class _Errors(NamedTuple):
    """Residuals of a map.

    Attributes:
        sums: Σ e for each token of each fold, shape (k, d_out).
        rows: fold → Σ ‖e‖² of its rows.
        paired: fold → Σ ‖e‖² of its rows with a partner.
    """

    sums: Float[Tensor, "k d_out"]
    rows: Mapping[int, float]
    paired: Mapping[int, float]

    @classmethod
    def of(cls, affine: AffineMap, side: TokenSums) -> _Errors:
        score = PooledR2(affine)
        return cls(
            residual_sums(affine, side),
            {number: score.error(moments) for number, moments in side.rows.items()},
            {number: score.error(moments) for number, moments in side.paired.items()},
        )

    def without(self, fold: int, side: TokenSums) -> _Errors:
        """Return the residuals in all folds of `side` but one."""
        return _Errors(
            self.sums[side.fold != fold],
            {number: error for number, error in self.rows.items() if number != fold},
            {number: error for number, error in self.paired.items() if number != fold},
        )


def _split(errors: _Errors, side: TokenSums, counted: bool = False) -> Split:
    rows = side.total()
    r2 = 1 - sum(errors.rows.values()) / float(output_squares(rows))
    about_mean = side.sum_y - side.count[:, None] * rows.mean_y
    # Σ ‖y − ȳ‖² over the rows of a fold, about the mean ȳ of all: Syy + n ‖ȳ_f − ȳ‖²
    folds = (side.rows if counted else side.paired).values()
    squares = float(sum(each.syy.sum() + each.n * (each.mean_y - rows.mean_y).square().sum() for each in folds))
    left = sum((errors.rows if counted else errors.paired).values())
    if counted:
        return Split(r2, counted_share(about_mean, squares, side), counted_share(errors.sums, left, side))
    taken = variance_of_mean(list(side.rows.values()))
    return Split(r2, between_share(about_mean, squares, side, taken), between_share(errors.sums, left, side))


def variance_of_mean(folds: Sequence[Moments]) -> float:
    """Estimate E ‖ȳ − E y‖², the variance of the mean of all rows, from the means of folds; NaN of a single fold."""
    total = Moments.total(folds)
    squares = sum(each.n**2 * float((each.mean_y - total.mean_y).square().sum()) for each in folds)
    pairs = total.n**2 - sum(each.n**2 for each in folds)  # of rows in different folds
    return squares / pairs if pairs else torch.nan


def between_share(sums: Float[Tensor, "k d"], squares: float, side: TokenSums, taken: float = 0.0) -> float:
    """Estimate the share of Σ ‖z‖² between tokens, from pairs of occurrences in different document folds.

    `sums` are Σ z for each token of each fold of `side`, `squares` Σ ‖z‖² of its rows with a partner, and `taken` what
    centring z on a mean of these rows takes away from ⟨z_i, z_j⟩ and from ‖z‖², on average.

    Returns:
        The unbiased share, which noise may take below 0 or above 1. NaN if no row has a partner.
    """
    of_type, rows = by_type(sums, side)
    _, kind = side.types
    # Σ over pairs in different folds of ⟨z_i, z_j⟩ = ‖S_t‖² − Σ_f ‖S_tf‖², and the number of such pairs
    products = of_type.square().sum(1).index_add(0, kind, sums.square().sum(1), alpha=-1)
    pairs = rows.square().index_add(0, kind, side.count.square(), alpha=-1)
    has_pairs = pairs > 0
    paired_rows = sum(moments.n for moments in side.paired.values())
    if not has_pairs.any() or not paired_rows or squares <= 0:
        return torch.nan
    # E ‖E z | t‖² over rows, over E ‖z‖²
    weights = rows[has_pairs] / rows[has_pairs].sum()
    between = (weights * products[has_pairs] / pairs[has_pairs]).sum()
    return float((between + taken) / (squares / paired_rows + taken))


def counted_share(sums: Float[Tensor, "k d"], squares: float, side: TokenSums) -> float:
    """Compute the share of Σ ‖z‖² between tokens from each token's own mean: Σ_t ‖S_t‖² / n_t / Σ ‖z‖².

    `sums` are as in `between_share`, and `squares` is Σ ‖z‖² of all rows.
    """
    of_type, rows = by_type(sums, side)
    return float((of_type.square().sum(1) / rows).sum() / squares)


def by_type(sums: Float[Tensor, "k d"], side: TokenSums) -> tuple[Float[Tensor, "types d"], Float[Tensor, " types"]]:
    """Add up each token's sums over all folds, shape (types, d), and its number of rows, shape (types,)."""
    types, kind = side.types
    of_type = sums.new_zeros(len(types), sums.shape[1]).index_add_(0, kind, sums)
    return of_type, side.count.new_zeros(len(types)).index_add_(0, kind, side.count)


@dataclass(frozen=True)
class TokenSplit:
    """R²_lin of a block, split by the token: `token_share` r2_between + (1 − `token_share`) r2_within is R²_lin.

    Attributes:
        token_share: the share of the outputs' variance that the token's identity decides, with its 95 % interval.
        r2_between: R² of the line on the outputs' token means; NaN if the interval of `token_share` reaches 0, since
            nothing is known of means that may all be equal.
        r2_within: R² of the line on what varies within tokens; NaN if that interval reaches 1.
    """

    token_share: Estimate
    r2_between: Estimate
    r2_within: Estimate

    def columns(self) -> dict[str, float]:
        """Return all three with their intervals as cells of a table."""
        return {
            **self.token_share.columns("token_share"),
            **self.r2_between.columns("r2_between"),
            **self.r2_within.columns("r2_within"),
        }


def token_split(
    affine: AffineMap, refitted: Iterable[AffineMap], held_out: TokenSums, confidence: float = CONFIDENCE
) -> TokenSplit:
    """Split R²_lin of a block's map by the token, with intervals over document folds.

    `refitted` are its maps without each train fold in turn; none of them was fitted to the held-out rows. With two
    held-out folds all ends are NaN: without one of them no token has a partner.

    Raises:
        InputError: the outputs are constant.
    """
    errors = _Errors.of(affine, held_out)
    here = _split(errors, held_out)
    refits = [split(map_without, held_out) for map_without in refitted]
    rescored = [_split(errors.without(fold, held_out), held_out.without(fold)) for fold in held_out.rows]
    share = _estimate(here.token_share, [[part.token_share for part in rescored]], confidence)
    between = [[part.r2_between for part in parts] for parts in (refits, rescored)]
    within = [[part.r2_within for part in parts] for parts in (refits, rescored)]
    unknown = Estimate(torch.nan, torch.nan, torch.nan)
    return TokenSplit(
        share,
        unknown if share.low <= 0 else _estimate(here.r2_between, between, confidence),
        unknown if share.high >= 1 else _estimate(here.r2_within, within, confidence),
    )


def _estimate(value: float, groups: Sequence[Sequence[float]], confidence: float) -> Estimate:
    """Build an estimate with its interval over folds; the ends are NaN if a side has a single fold."""
    if min(map(len, groups)) < 2:
        return Estimate(value, torch.nan, torch.nan)
    return Estimate.jackknife(value, *groups, confidence=confidence)
