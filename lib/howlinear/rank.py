"""What carries a high R²_lin: how many output directions, which features, which tokens, which rows.

R²_lin pools squared errors, so what is loud enough decides it alone. The paper (arXiv 2606.19379, figure 4) sets it
against the median R² of single features and the effective rank of the outputs. Entropy rank: Roy & Vetterli (2007,
"The effective rank"); leverage: Hoaglin & Welsch (1978, "The hat matrix in regression and ANOVA").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from howlinear.capture import Sample
from howlinear.ceilings import NULL, AffineMap, fit, jackknife, left_out, residual, whitening
from howlinear.errors import InputError
from howlinear.moments import Moments, effective_rank


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % jackknife interval over document folds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """Over how many directions a covariance is spread.

    Attributes:
        effective_rank: participation ratio (Σλ)² / Σλ².
        entropy_rank: exp(−Σ p log p) with p = λ / Σλ; never below the participation ratio.
        first: share of the variance along the first direction.
    """

    effective_rank: float
    entropy_rank: float
    first: float


def spread(covariance: Float[Tensor, "d d"]) -> Spread:
    """Ranks and first direction of a covariance matrix in any scale; `InputError` if it is zero."""
    values = torch.linalg.eigvalsh(covariance.double()).clamp_min(0)
    if not values.sum() > 0:
        raise InputError(f"{len(values)} features without variance have no rank: use more or other text")
    shares = values / values.sum()
    return Spread(effective_rank(covariance), float(torch.special.entr(shares).sum().exp()), float(shares[-1]))


def rank_estimate(whole: Float[Tensor, "d d"], *groups: Sequence[Float[Tensor, "d d"]]) -> Estimate:
    """Effective rank with its interval, from covariances without each fold; on the log scale, and never below 1."""
    value = effective_rank(whole)
    logs = [np.log([effective_rank(part) for part in group]) for group in groups if group]
    low, high = np.exp(jackknife(np.log(value), *logs))
    return Estimate(value, max(1.0, float(low)), float(high))


def output_rank(outputs: Moments, rows: Sample) -> Estimate:
    """Effective rank of all held-out outputs; its interval, from the fewer sampled `rows`, is on the wide side."""
    folds = rows.fold.unique()
    if len(folds) < 2:
        raise InputError(f"an interval needs held-out rows from two document folds, got {len(folds)}: sample more rows")
    return rank_estimate(outputs.sxx, [Moments(outputs.d_in).update(rows.y[rows.fold != i]).sxx for i in folds])


def maps(train: Sequence[Moments], refit: bool = True) -> list[AffineMap]:
    """The map of all train folds, then with `refit` those without each in turn; errors as in `ceilings.fit`."""
    return [fit(part)[0] for part in (sum(train), *(left_out(train) if refit else []))]


def predicted(affine: AffineMap, rows: Moments) -> Float[Tensor, "d_out d_out"]:
    """WᵀSxxW: centred second moments of a map's predictions."""
    return affine.weight.T @ rows.sxx @ affine.weight


def prediction_rank(found: Sequence[AffineMap], test: Sequence[Moments]) -> Estimate:
    """Effective rank of what `maps` predict on the held-out rows."""
    covariances = [predicted(affine, sum(test)) for affine in found]
    rescored = [predicted(found[0], part) for part in left_out(test)]
    return rank_estimate(covariances[0], covariances[1:], rescored)


@dataclass(frozen=True)
class Score:
    """What a map leaves of some rows, per output feature; scores of disjoint rows add up.

    Attributes:
        n: number of rows.
        mean: of the outputs, shape (d_out,).
        squares: Σ (y − ȳ)², shape (d_out,).
        residual: Σ (y − ŷ)², shape (d_out,).
    """

    n: int
    mean: Float[Tensor, " d_out"]
    squares: Float[Tensor, " d_out"]
    residual: Float[Tensor, " d_out"]

    def __add__(self, other: Score) -> Score:
        """The score of both sets of rows (Chan's update)."""
        n, step = self.n + other.n, other.mean - self.mean
        squares = self.squares + other.squares + self.n * other.n / n * step.square()
        return Score(n, self.mean + other.n / n * step, squares, self.residual + other.residual)

    def r2(self, left_out: Int64[Tensor, " k"] | None = None) -> float:
        """R² pooled over all features but those left out; `InputError` if nothing varies among them."""
        kept = self._varies.index_fill(0, left_out, False) if left_out is not None else self._varies
        if not kept.any():
            raise InputError(f"no feature that is kept varies over {self.n} rows: leave out fewer, or use more rows")
        return float(1 - self.residual[kept].sum() / self.squares[kept].sum())

    def median(self) -> float:
        """Median over features of their own R², without constant features."""
        return float(torch.where(self._varies, 1 - self.residual / self.squares, torch.nan).nanquantile(0.5))

    @property
    def _varies(self) -> Bool[Tensor, " d_out"]:
        return self.squares > NULL * self.n * self.mean.square()


@dataclass(frozen=True)
class Scored:
    """Scores that give any statistic its interval: the whole map's per held-out fold, each refit's over all rows."""

    folds: dict[int, Score]
    refits: list[Score]

    def without(self, fold: int | None = None) -> Score:
        """The score of all held-out rows but those of a fold."""
        zero = torch.zeros_like(next(iter(self.folds.values())).mean)
        return sum((score for i, score in self.folds.items() if i != fold), Score(0, zero, zero, zero))


def scored(found: Sequence[AffineMap], test: Sequence[Moments]) -> Scored:
    """Scores of `maps` on held-out moments, one per document fold."""
    pairs = [(found[0], rows) for rows in test] + [(affine, sum(test)) for affine in found[1:]]
    scores = [Score(rows.n, rows.mean_y, rows.syy, residual(affine, rows)) for affine, rows in pairs]
    return Scored(dict(enumerate(scores[: len(test)])), scores[len(test) :])


def scored_rows(
    found: Sequence[AffineMap], rows: Sample, basis: Float[Tensor, "d_out directions"] | None = None
) -> Scored:
    """Scores of `maps` on single rows, along the output features or the columns of an orthonormal `basis`."""
    x, y = rows.x.double(), rows.y.double()

    def score(affine: AffineMap, part: Tensor) -> Score:
        out, left = y[part], y[part] - affine(x[part])
        out, left = (out, left) if basis is None else (out @ basis, left @ basis)
        return Score(len(out), out.mean(0), (out - out.mean(0)).square().sum(0), left.square().sum(0))

    folds = {int(i): score(found[0], rows.fold == i) for i in rows.fold.unique()}
    return Scored(folds, [score(affine, rows.fold >= 0) for affine in found[1:]])


def estimate(statistic: Callable[..., float], *sides: Scored) -> Estimate:
    """A statistic of scores, and its interval from leaving out each held-out fold and, by the refits, each train fold.

    Args:
        statistic: takes one `Score` per side: `Score.r2`, `Score.median`, `share_of_error`, or a function of yours.
        sides: sets of rows over the same document folds, so that what they share cancels.

    Raises:
        InputError: held-out rows from fewer than two folds.
    """
    folds = sorted({fold for side in sides for fold in side.folds})
    if len(folds) < 2:
        raise InputError(f"an interval needs held-out rows from two document folds, got {len(folds)}: use more rows")
    value = statistic(*(side.without(None) for side in sides))
    refitted = [statistic(*scores) for scores in zip(*(side.refits for side in sides), strict=True)]
    rescored = [statistic(*(side.without(fold) for side in sides)) for fold in folds]
    return Estimate(value, *jackknife(value, *filter(None, (refitted, rescored))))


def share_of_variance(part: Score, whole: Score) -> float:
    """Share of Σ‖y − ȳ‖² that some of the rows carry, ȳ being the mean of all."""
    return float((part.squares + part.n * (part.mean - whole.mean).square()).sum() / whole.squares.sum())


def share_of_error(part: Score, whole: Score) -> float:
    """Share of Σ‖y − ŷ‖² that some of the rows carry."""
    return float(part.residual.sum() / whole.residual.sum())


def loudest(train: Sequence[Moments]) -> Int64[Tensor, " d_out"]:
    """Output features by variance on the train rows, loudest first: held-out rows have no say."""
    return sum(part.syy for part in train).argsort(descending=True, stable=True)


def without_loudest(rows: Scored, order: Int64[Tensor, " d_out"], counts: Sequence[int]) -> list[Estimate]:
    """R² after leaving out the first k features in `order`, loudest first, for every k in `counts`."""
    if odd := [k for k in counts if not 0 <= k < len(order)]:
        raise InputError(f"cannot leave out {odd[0]} of {len(order)} features: k runs from 0 to {len(order) - 1}")
    return [estimate(lambda score, k=k: score.r2(order[:k]), rows) for k in counts]


def directions(y: Float[Tensor, "n d_out"]) -> Float[Tensor, "d_out d_out"]:
    """Orthonormal directions of the rows' covariance as columns, loudest first; give it train rows."""
    return torch.linalg.eigh(Moments(y.shape[1]).update(y).sxx).eigenvectors.flip(1)


def pick(sample: Sample | None, mask: Callable[[Sample], Bool[Tensor, " rows"]]) -> Sample:
    """The rows of a sample for which `mask(sample)` holds; `InputError` if nothing was sampled, or none does."""
    if sample is None or not (kept := mask(sample)).any():
        raise InputError("single rows are asked for, and the sample has none of them: capture with sample=4096 or more")
    return Sample(**{name: rows[kept] for name, rows in vars(sample).items()})


def frequency_bands(ids: Int64[Tensor, "*shape"], tokens: Int64[Tensor, " n"], bands: int = 4) -> Int64[Tensor, " n"]:
    """Band of each token by its frequency among `ids`: 0 the most frequent, bands − 1 the rarest and the unseen.

    Tokens, by falling count, are cut where each band holds about as many of the `ids`.
    """
    if bands < 2 or not ids.numel():
        raise InputError(f"cannot cut {ids.numel()} token ids into {bands} bands: give train ids and two bands or more")
    counts = ids.flatten().bincount(minlength=int(tokens.max()) + 1)
    order = counts.argsort(descending=True, stable=True)
    middle = counts[order].cumsum(0) - counts[order] / 2  # of each token's own stretch of the ids
    band = torch.empty_like(counts).index_copy(0, order, (bands * middle / ids.numel()).long())
    return band.clamp_max(bands - 1)[tokens]


def leverage(train: Moments, x: Float[Tensor, "n d_in"]) -> Float[Tensor, " n"]:
    """(x − x̄)ᵀ Sxx⁺ (x − x̄) + 1/n without null directions; over the train rows it adds up to their rank + 1."""
    return (((x.double() - train.mean_x) @ whitening(train)).square().sum(1) + 1) / train.n


def regime(r2: float, median: float, rank: float, high: float = 0.9, few: float = 2.0, gap: float = 0.25) -> str:
    """Which of the paper's two regimes a block is in; the thresholds are our choice.

    Returns:
        "below" for R² under `high`, else "broad", "concentrated" (effective rank of outputs up to `few`, and the median
        R² of features at least `gap` below the pooled one), or "mixed" where these two signs disagree.
    """
    signs = (rank <= few) + (r2 - median >= gap)
    return ("broad", "mixed", "concentrated")[signs] if r2 >= high else "below"
