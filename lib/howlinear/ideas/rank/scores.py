"""What a map leaves unexplained, feature by feature, and statistics of it with their intervals.

R²_lin pools squared errors over features, so a loud enough feature decides it alone. A `Score` keeps features apart, so
that the median can be taken (arXiv 2606.19379, figure 4), or the loudest features, directions or rows left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from howlinear.core.ceilings import AffineMap, residual, varies
from howlinear.core.fold_maps import FoldMaps, over_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import Sample


@dataclass(frozen=True)
class Score:
    """What a map leaves unexplained of some rows, per output feature."""

    n: int  # rows
    mean: Float[Tensor, " d_out"]  # ȳ
    squares: Float[Tensor, " d_out"]  # Σ (y − ȳ)²
    residual: Float[Tensor, " d_out"]  # Σ (y − ŷ)²

    @classmethod
    def of_moments(cls, affine: AffineMap, rows: Moments) -> Score:
        """Score of a map on the rows in `rows`."""
        return cls(rows.n, rows.mean_y, rows.syy, residual(affine, rows))

    @classmethod
    def of_rows(cls, outputs: Float[Tensor, "n d_out"], errors: Float[Tensor, "n d_out"]) -> Score:
        """Score of single rows from their outputs y and what a map leaves of them, y − ŷ; of no rows all is 0."""
        n = len(outputs)
        mean = outputs.sum(0) / max(n, 1)
        return cls(n, mean, (outputs - mean).square().sum(0), errors.square().sum(0))

    def r2(self, without: Int64[Tensor, " k"] | None = None) -> float:
        """R² pooled over all features but those in `without`."""
        pooled = torch.ones_like(self._varies)
        if without is not None:
            pooled = pooled.index_fill(0, without, False)
        if not (pooled & self._varies).any():
            raise InputError(f"no feature that is kept varies over {self.n} rows: leave out fewer, or use more rows")
        return float(1 - self.residual[pooled].sum() / self.squares[pooled].sum())

    def median(self) -> float:
        """Median over features of their own R², without constant features."""
        return float(self.per_feature.nanquantile(0.5))

    @property
    def per_feature(self) -> Float[Tensor, " d_out"]:
        """R² of each feature, shape (d_out,); NaN where it is constant."""
        return torch.where(self._varies, 1 - self.residual / self.squares, torch.nan)

    @property
    def _varies(self) -> Bool[Tensor, " d_out"]:
        return varies(self.squares, self.mean, self.n)


@dataclass(frozen=True)
class Scored:
    """The scores of one set of held-out rows that give any statistic its interval."""

    whole: Score  # of the map of all train folds on all of the rows
    refitted: list[Score]  # on all of the rows, of the maps without each train fold in turn
    rescored: dict[int, Score]  # fold → of the map of all train folds on the rows without that held-out fold

    def without(self, fold: int) -> Score:
        """Return the score without a held-out fold, or that of all rows if none of them is in that fold."""
        return self.rescored.get(fold, self.whole)


def score_moments(maps: FoldMaps, test: Sequence[Moments]) -> Scored:
    """Score maps on held-out moments, one per document fold."""
    whole, refitted, rescored = over_folds(Score.of_moments, maps, test)
    return Scored(whole, refitted, dict(enumerate(rescored)))


def score_rows(maps: FoldMaps, rows: Sample, basis: Float[Tensor, "d_out directions"] | None = None) -> Scored:
    """Score maps on single rows, along the output features or the columns of an orthonormal `basis`."""
    inputs = rows.x.double()
    outputs = rows.y.double()
    if basis is not None:
        outputs = outputs @ basis

    def errors(affine: AffineMap) -> Float[Tensor, "n directions"]:
        predictions = affine(inputs)
        if basis is not None:
            predictions = predictions @ basis
        return outputs - predictions

    left = errors(maps.whole)
    refitted = [Score.of_rows(outputs, errors(affine)) for affine in maps.refits]
    rescored = {}
    for fold in rows.fold.unique().tolist():
        others = rows.fold != fold
        rescored[fold] = Score.of_rows(outputs[others], left[others])
    return Scored(Score.of_rows(outputs, left), refitted, rescored)


def estimate(statistic: Callable[..., float], *sides: Scored) -> Estimate:
    """A statistic of scores; its interval leaves out each held-out fold and, by the refits, each train fold."""
    folds = sorted({fold for side in sides for fold in side.rescored})
    if len(folds) < 2:
        raise InputError(f"an interval needs held-out rows from two document folds, got {len(folds)}: use more rows")
    value = statistic(*[side.whole for side in sides])
    refitted = [statistic(*scores) for scores in zip(*[side.refitted for side in sides], strict=True)]
    rescored = [statistic(*[side.without(fold) for side in sides]) for fold in folds]
    groups = [refitted, rescored] if refitted else [rescored]
    return Estimate.jackknife(value, *groups)


def share_of_variance(part: Score, whole: Score) -> float:
    """Share of Σ‖y − ȳ‖² that some of the rows carry, ȳ being the mean of all."""
    # Σ over the part of (y − ȳ)² = Σ (y − ȳ_part)² + n_part (ȳ_part − ȳ)²
    about_common_mean = part.squares + part.n * (part.mean - whole.mean).square()
    return float(about_common_mean.sum() / whole.squares.sum())


def share_of_error(part: Score, whole: Score) -> float:
    """Share of Σ‖y − ŷ‖² that some of the rows carry."""
    return float(part.residual.sum() / whole.residual.sum())


def rise(part: Score, whole: Score) -> float:
    """Compute by how much R² of `part` lies above R² of `whole`."""
    return part.r2() - whole.r2()


def loudest(train: Sequence[Moments]) -> Int64[Tensor, " d_out"]:
    """Order output features by their variance on the train rows, loudest first; held-out rows are not used."""
    squares = sum(moments.syy for moments in train)
    return squares.argsort(descending=True, stable=True)


def without_loudest(rows: Scored, order: Int64[Tensor, " d_out"], counts: Sequence[int]) -> list[Estimate]:
    """R² after leaving out the first k features in `order`, loudest first, for every k in `counts`."""
    for count in counts:
        if not 0 <= count < len(order):
            raise InputError(f"cannot leave out {count} of {len(order)} features: k runs from 0 to {len(order) - 1}")
    return [estimate(lambda score, count=count: score.r2(order[:count]), rows) for count in counts]


def directions(outputs: Float[Tensor, "n d_out"]) -> Float[Tensor, "d_out d_out"]:
    """Orthonormal directions of the rows' covariance as columns, loudest first; give it train rows."""
    covariance = Moments(outputs.shape[1]).update(outputs).sxx
    eigenvectors = torch.linalg.eigh(covariance).eigenvectors  # quietest first
    return eigenvectors.flip(1)
