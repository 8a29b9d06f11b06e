"""Least-squares maps of a block and their R², with all document folds and without each, for paired intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from howlinear.core.ceilings import AffineMap, fit, outputs_vary, r2, refits
from howlinear.core.intervals import Estimate, left_out
from howlinear.core.moments import Moments


@dataclass(frozen=True)
class FoldMaps:
    """Least-squares maps of a block.

    Attributes:
        whole: fitted on all train folds.
        refits: fitted without each train fold in turn; empty if the map is not refitted.
    """

    whole: AffineMap
    refits: list[AffineMap]


def fit_folds(train: Sequence[Moments], refit: bool = True) -> FoldMaps:
    """Fit the map of all train folds and, with `refit`, the maps without each fold; errors as in `ceilings.fit`."""
    whole, inputs = fit(sum(train))
    without_each = refits(train, inputs) if refit else []
    return FoldMaps(whole, [affine for affine, _ in without_each])


@dataclass(frozen=True)
class Scores:
    """R² of one map, with all document folds and without each.

    Attributes:
        whole: R² with all document folds.
        refitted: R² of the map fitted without each train fold.
        rescored: R² scored without each held-out fold.
    """

    whole: float
    refitted: Float[np.ndarray, " train_folds"]
    rescored: Float[np.ndarray, " test_folds"]

    @property
    def estimate(self) -> Estimate:
        """R² with its jackknife interval."""
        return Estimate.jackknife(self.whole, self.refitted, self.rescored)

    def __sub__(self, other: Scores) -> Scores:
        """Subtract fold by fold: the difference is paired, and what both share cancels."""
        return Scores(self.whole - other.whole, self.refitted - other.refitted, self.rescored - other.rescored)

    @classmethod
    def mean(cls, scores: Sequence[Scores]) -> Scores:
        """Average over several blocks, fold by fold."""
        return cls(
            float(np.mean([each.whole for each in scores])),
            np.mean([each.refitted for each in scores], axis=0),
            np.mean([each.rescored for each in scores], axis=0),
        )


def score_folds(maps: FoldMaps, test: Sequence[Moments]) -> Scores:
    """Score the maps on held-out rows."""
    whole, refitted, rescored = over_folds(r2, maps, test)
    return Scores(whole, np.array(refitted), np.array(rescored))


def over_folds(
    measure: Callable[[AffineMap, Moments], Any], maps: FoldMaps, test: Sequence[Moments]
) -> tuple[Any, list[Any], list[Any]]:
    """Measure maps on held-out rows: that of all train folds, each refit, and the first without each held-out fold."""
    held_out = sum(test)
    refitted = [measure(affine, held_out) for affine in maps.refits]
    rescored = [measure(maps.whole, others) for others in left_out(test)]
    return measure(maps.whole, held_out), refitted, rescored


def fold_spread(folds: Sequence[Moments]) -> float:
    """Compute the standard deviation (n − 1) over folds of R²_lin, each fold scored by the map fitted on all others.

    The paper (arXiv 2606.19379, section 5.7) gives it over five folds of consecutive text. Ours are the document folds
    of the moments: whole documents too, but eight folds dealt at random, so each is smaller and scatters a little more
    by its size, and a little less by its topic. A fold whose outputs are constant has no R²_lin and is left out.
    """
    maps = fit_folds(folds).refits
    scores = [r2(affine, fold) for affine, fold in zip(maps, folds, strict=True) if outputs_vary(fold)]
    return float(np.std(scores, ddof=1))
