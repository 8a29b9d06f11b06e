"""A table with an entry for every token, alone and together with a line, in closed form.

Both are one ridge regression, with a penalty on the table but not on the line:

    argmin Σ ‖y − xW − b − α_t‖² + λ Σ_t ‖α_t‖²,    α_t = n_t / (n_t + λ) · (ȳ_t − x̄_t W − b).

A token that the fit has not seen has α = 0, so only the line applies. λ makes α_t the best linear predictor of a
token's effect: it is the variance of residuals within tokens over that between them (Robinson 1991, "That BLUP is a
good thing"). It is estimated from pairs of occurrences in different train folds, λ = (1 − v) / v with the share v of
`core.token_split`. Inserting α into the sum leaves, for W, a regression on rows whose token means count less, by
w_t = n_t² / (n_t + λ):

    Σ (x − x̃)(x − x̃)ᵀ − Σ_t w_t (x̄_t − x̃)(x̄_t − x̃)ᵀ,    x̃ = Σ_t c_t x̄_t / Σ_t c_t,    c_t = n_t − w_t,

and likewise for y. Without a penalty it is the regression within tokens, with an infinite one the line alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from howlinear.core.ceilings import AffineMap, PooledR2, fit, output_squares
from howlinear.core.moments import Moments
from howlinear.core.token_split import TokenSums, by_type, residual_sums, split


@dataclass(frozen=True)
class Table:
    """ŷ = xW + b + α_t."""

    line: AffineMap  # x ↦ xW + b; a constant where there is no line
    token: Int64[Tensor, " types"]  # those that have an entry, ascending
    entry: Float[Tensor, "types d_out"]  # α
    penalty: float  # λ

    def r2(self, held_out: TokenSums) -> float:
        """Compute R² on other rows; for a token without an entry, only the line applies."""
        return 1 - sum(self.errors(held_out).values()) / float(output_squares(held_out.total()))

    def errors(self, held_out: TokenSums) -> dict[int, float]:
        """Fold → Σ ‖y − ŷ‖² of its rows."""
        # α of every held-out token, 0 where the fit has not seen it
        place = torch.searchsorted(self.token, held_out.token)
        place = place.clamp_max(len(self.token) - 1)
        seen = self.token[place] == held_out.token
        entry = self.entry[place] * seen[:, None]

        # Σ ‖e − α‖² = Σ ‖e‖² − 2 Σ_t ⟨Σ e, α_t⟩ + Σ_t n_t ‖α_t‖²
        crossed = (residual_sums(self.line, held_out) * entry).sum(1)
        squared = held_out.count * entry.square().sum(1)
        change = squared - 2 * crossed
        line = PooledR2(self.line)
        errors = {}
        for fold, moments in held_out.rows.items():
            of_fold = change[held_out.fold == fold]
            errors[fold] = line.error(moments) + float(of_fold.sum())
        return errors


def penalty(share: float) -> float:
    """Compute λ = (1 − v) / v: infinite if no variance between tokens can be detected."""
    if not share > 0:
        return torch.inf
    return max(1 - share, 1e-4) / share


def table_alone(train: TokenSums, of_table: float | None = None) -> Table:
    """Fit a table without a line: every token's mean, shrunk to that of all rows by a given or estimated penalty."""
    mean = AffineMap.constant(train.total())
    if of_table is None:
        of_table = penalty(split(mean, train).token_share)
    return _with_entries(mean, train, of_table)


def table_and_line(train: TokenSums, of_table: float | None = None) -> Table:
    """Fit a table and a line together, by a given penalty or one estimated from the residuals of the line alone."""
    if of_table is None:
        line, _ = fit(train.total())
        of_table = penalty(split(line, train).error_share)
    without_table = of_table == torch.inf
    rows = train.total() if without_table else _with_lighter_means(train, of_table)
    line, _ = fit(rows)
    return _with_entries(line, train, of_table)


def _with_entries(line: AffineMap, train: TokenSums, of_table: float) -> Table:
    token, _ = train.types
    left, rows = by_type(residual_sums(line, train), train)
    entry = left / (rows + of_table)[:, None]  # α_t = n_t / (n_t + λ) · (ȳ_t − x̄_t W − b)
    return Table(line, token, entry, of_table)


def _with_lighter_means(train: TokenSums, of_table: float) -> Moments:
    """Compute moments of rows whose token means count less by w_t, to which W is fitted given a table's penalty."""
    sum_x, rows = by_type(train.sum_x, train)
    sum_y, _ = by_type(train.sum_y, train)
    mean_x = sum_x / rows[:, None]
    mean_y = sum_y / rows[:, None]
    taken = rows.square() / (rows + of_table)  # w_t
    left = rows / (1 + rows / of_table)  # c_t = n_t − w_t

    # x̃ = Σ_t c_t x̄_t / Σ_t c_t, and ỹ
    centre_x = left @ mean_x / left.sum()
    centre_y = left @ mean_y / left.sum()

    # Moments about x̃ and ỹ …
    moments = train.total()
    n = moments.n
    delta_x = moments.mean_x - centre_x
    delta_y = moments.mean_y - centre_y
    moments.sxx += n * torch.outer(delta_x, delta_x)
    moments.sxy += n * torch.outer(delta_x, delta_y)
    moments.syy += n * delta_y.square()
    moments.mean_x = centre_x
    moments.mean_y = centre_y

    # … less Σ_t w_t (x̄_t − x̃)(x̄_t − x̃)ᵀ, and so on
    off_x = mean_x - centre_x
    off_y = mean_y - centre_y
    weighted = taken[:, None] * off_x
    moments.sxx -= weighted.T @ off_x
    moments.sxy -= weighted.T @ off_y
    moments.syy -= taken @ off_y.square()
    return moments


def of_inputs(side: TokenSums) -> TokenSums:
    """Copy the sums with inputs as outputs too, to ask in the same way what the token decides of x."""
    return replace(
        side,
        sum_y=side.sum_x,
        rows={fold: _inputs_twice(moments) for fold, moments in side.rows.items()},
        paired={fold: _inputs_twice(moments) for fold, moments in side.paired.items()},
    )


def _inputs_twice(moments: Moments) -> Moments:
    outputs = {"mean_y": moments.mean_x, "sxy": moments.sxx, "syy": moments.sxx.diagonal()}
    return Moments.from_tensors(moments.tensors() | outputs)
