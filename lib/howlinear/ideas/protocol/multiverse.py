"""R²_lin of a block under every protocol, its curve over rows, and what a profile says under each protocol.

Everything follows from moments: a map of the train rows' moments, and per output feature what it leaves of the held-out
ones. A denominator then compares it with the features' own means or with one scalar, and a loud feature is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howlinear.core import limits
from howlinear.core.ceilings import NULL, AffineMap, check_rows, decompose, fit, refits, residual
from howlinear.core.intervals import Estimate, left_out
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.protocol.choices import DENOMINATORS, LIMIT, MOST, NULLS, POSITIONS, Protocol
from howlinear.ideas.protocol.groups import Groups, select

# --- One number


def total_squares(moments: Moments, denominator: str) -> Float[Tensor, " d_out"]:
    """What a map's residual is compared with, per output feature, shape (d_out,).

    Args:
        moments: of the rows that are scored.
        denominator: `feature`, Σ (y − ȳ_j)², or `scalar`, Σ (y − ȳ)² with one mean ȳ of all features and rows.

    Raises:
        InputError: an unknown denominator.
    """
    if denominator == "feature":
        return moments.syy
    if denominator == "scalar":
        # Σ (y_j − ȳ)² = Σ (y_j − ȳ_j)² + n (ȳ_j − ȳ)²
        return moments.syy + moments.n * (moments.mean_y - moments.mean_y.mean()).square()
    raise InputError(f"unknown denominator {denominator!r}: use {' or '.join(DENOMINATORS)}")


def r2(affine: AffineMap, moments: Moments, denominator: str, features: Bool[Tensor, " d_out"] | None = None) -> float:
    """R² of a map on rows, under a denominator.

    Args:
        affine: the map.
        moments: of the rows to score.
        denominator: one of `choices.DENOMINATORS`.
        features: which outputs count, shape (d_out,); all by default.

    Raises:
        InputError: the outputs are constant.
    """
    if features is None:
        features = torch.ones(moments.d_out, dtype=torch.bool)
    kept = _only(moments, features)
    squares = total_squares(kept, denominator).sum()
    if squares <= 0:
        raise InputError(f"the outputs are constant over {moments.n} rows: R² is undefined; use more or other text")
    return float(1 - residual(affine, moments)[features].sum() / squares)


def _only(moments: Moments, features: Bool[Tensor, " d_out"]) -> Moments:
    """Moments of some of the outputs; the inputs' are shared, not copied."""
    tensors = moments.tensors()
    return Moments.from_tensors(
        tensors | {"mean_y": moments.mean_y[features], "sxy": moments.sxy[:, features], "syy": moments.syy[features]}
    )


def without_loudest(moments: Moments) -> Bool[Tensor, " d_out"]:
    """All outputs but the one of largest variance, shape (d_out,)."""
    features = torch.ones(moments.d_out, dtype=torch.bool)
    features[moments.syy.argmax()] = False
    return features


# --- Under every protocol


def block_table(groups: Groups, factors: Sequence[int], compared: Sequence[int] | None = None) -> pd.DataFrame:
    """R²_lin of a block under every combination of choices that these moments hold.

    Args:
        groups: moments of the block's rows, of one split and sequence length.
        factors: train rows over width at every step.
        compared: those of them that are combined with all other choices, besides the last; all by default.

    Returns:
        A row a combination: `rows` (a factor; `most` of all rows; `limit`), `position_0`, `loud`, `null`,
        `denominator`, and `r2`.

    Raises:
        InputError: too few rows for a fit or for the limit.
    """
    table = []
    last = len(factors) - 1
    steps = [step for step, factor in enumerate(factors) if compared is None or factor in compared or step == last]
    for step, position_0, loud_rows in product(steps, POSITIONS, (True, False)):
        train = sum(select(groups, False, step, position_0 == "in", loud_rows))
        test = sum(select(groups, True, step, position_0 == "in", loud_rows))
        every_feature = torch.ones(train.d_out, dtype=torch.bool)
        features = (
            {"in": every_feature, "feature out": without_loudest(train)} if loud_rows else {"rows out": every_feature}
        )
        for null in NULLS:
            affine, _ = fit(train, float(null))
            for (loud, kept), denominator in product(features.items(), DENOMINATORS):
                here = {"position_0": position_0, "loud": loud, "null": null, "denominator": denominator}
                held_out = r2(affine, test, denominator, kept)
                table.append({"rows": MOST if step == last else str(factors[step]), **here, "r2": held_out})
                if step == last:
                    in_sample = r2(affine, train, denominator, kept)
                    limits.check(in_sample, held_out, train.n)
                    table.append({"rows": LIMIT, **here, "r2": limits.limit(in_sample, held_out)})
    return pd.DataFrame(table)


# --- With intervals


@dataclass(frozen=True)
class Scores:
    """A number, and the same with each document fold left out: what a jackknife is made of.

    Attributes:
        value: the number, shape (...).
        refitted: without each train fold, shape (folds, ...).
        rescored: without each held-out fold, shape (folds, ...).
    """

    value: Float[np.ndarray, ...]
    refitted: Float[np.ndarray, ...]
    rescored: Float[np.ndarray, ...]

    @classmethod
    def stack(cls, scores: Sequence[Scores]) -> Scores:
        """Several blocks' scores as those of a profile."""
        return cls(
            np.stack([block.value for block in scores], axis=-1),
            np.stack([block.refitted for block in scores], axis=-1),
            np.stack([block.rescored for block in scores], axis=-1),
        )

    def estimate(self, statistic=float) -> Estimate:
        """A statistic of the number or profile with its jackknife interval.

        Args:
            statistic: profile → number.
        """
        refitted = [statistic(values) for values in self.refitted]
        rescored = [statistic(values) for values in self.rescored]
        return Estimate.jackknife(statistic(self.value), refitted, rescored)


@dataclass(frozen=True)
class Point:
    """R² of one map on both sides, and what they tend to.

    Attributes:
        in_sample: on the rows of the fit.
        held_out: on others.
        limit: of both.
    """

    in_sample: Scores
    held_out: Scores
    limit: Scores


def point(
    train: Sequence[Moments],
    test: Sequence[Moments],
    denominator: str = "feature",
    null: float = NULL,
    features: Bool[Tensor, " d_out"] | None = None,
) -> Point:
    """R² on both sides and in the limit, with every fold left out in turn.

    Args:
        train: moments per fold to fit on.
        test: moments per held-out fold.
        denominator: one of `choices.DENOMINATORS`.
        null: of the fit.
        features: which outputs count, shape (d_out,); all by default.

    Raises:
        InputError: too few rows for a fit, or to say what R² tends to.
    """

    def sides(fitted: AffineMap, followed: Moments, others: Moments) -> tuple[float, float, float]:
        in_sample = r2(fitted, followed, denominator, features)
        held_out = r2(fitted, others, denominator, features)
        return in_sample, held_out, limits.limit(in_sample, held_out)

    train_rows, test_rows = sum(train), sum(test)
    affine, without_each = _maps(train, train_rows, null)
    value = sides(affine, train_rows, test_rows)
    limits.check(value[0], value[1], train_rows.n)
    refitted = [sides(refit, others, test_rows) for refit, others in without_each]
    rescored = [sides(affine, train_rows, others) for others in left_out(test)]
    of_each = zip(np.array(value), np.array(refitted).T, np.array(rescored).T, strict=True)
    return Point(*[Scores(*parts) for parts in of_each])


def _maps(
    train: Sequence[Moments], train_rows: Moments, null: float
) -> tuple[AffineMap, Iterator[tuple[AffineMap, Moments]]]:
    """The map of all train rows, and those without each fold with the moments that they are fitted to."""
    check_rows(train_rows)
    if null != NULL:
        affine, _ = fit(train_rows, null)
        return affine, ((fit(others, null)[0], others) for others in left_out(train))
    inputs = decompose(train_rows)
    return inputs.solution(train_rows), refits(train, inputs)


def scores(groups: Groups, protocol: Protocol, factors: Sequence[int]) -> Scores:
    """R²_lin of a block under one protocol, with every fold left out in turn.

    Args:
        groups: moments of the block's rows, of the protocol's split and sequence length.
        protocol: which.
        factors: train rows over width at every step.

    Raises:
        InputError: too few rows, or no step of so many.
    """
    step = step_of(protocol.rows, factors)
    selected = {"position_0": protocol.position_0 == "in", "loud": protocol.loud != "rows out"}
    train = select(groups, False, step, **selected)
    test = select(groups, True, step, **selected)
    features = without_loudest(sum(train)) if protocol.loud == "feature out" else None
    measured = point(train, test, protocol.denominator, float(protocol.null), features)
    return measured.limit if protocol.rows == LIMIT else measured.held_out


def step_of(rows: str, factors: Sequence[int]) -> int:
    """The step at which there are so many train rows.

    Args:
        rows: a factor, `most` or `limit`.
        factors: train rows over width at every step.

    Raises:
        InputError: there is no such step.
    """
    if rows in (MOST, LIMIT):
        return len(factors) - 1
    known = [str(factor) for factor in factors]
    if rows not in known:
        raise InputError(f"no {rows} train rows an input were measured: there are {', '.join(known)}; use more text")
    return known.index(rows)
