"""How several numbers with intervals make one: contrasts of blocks, distances of profiles, extremes, correlations.

The intervals in the results come from leaving out document folds. A contrast of two blocks takes the worst of both: its
lower end uses the lower end of what is added and the upper end of what is taken off. That is wider than need be, since
the blocks share their documents, and it makes up for having looked for the largest step. Where a single block or pair
is picked because it is the largest or the smallest, `extreme` widens all intervals first, so that all of them hold at
once. Blocks are not resampled: they are all that a model has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from howlinear.core.correlation import correlation, fisher
from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.errors import InputError

Column = Sequence[Any] | pd.Series
"""Numbers as results hold them."""

TOGETHER = "together"
"""The name under which a number stands that belongs to no single model."""

INNER = "inner blocks"
"""The name beside a number of what is left of it without the first and the last block."""

FREEDOM = 7
"""Degrees of freedom of the intervals in the results: eight document folds, less one."""


class UntestableError(Exception):
    """These results cannot speak to the claim, by a rule stated here; its text says which."""


@dataclass(frozen=True)
class Reading:
    """A statistic's value.

    Attributes:
        estimate: the value with its 95 % interval, in the unit of its claim.
        note: which block or pair it comes from.
        beside: numbers that stand beside it and decide nothing, by name.
        inner: the same without the first and the last block, where they can be left out; it decides nothing either.
    """

    estimate: Estimate
    note: str = ""
    beside: Mapping[str, float] = field(default_factory=dict)
    inner: Estimate | None = None


@dataclass(frozen=True)
class Silent:
    """A model that cannot speak to the claim, though others may.

    Attributes:
        reason: by which rule.
    """

    reason: str


Readings = dict[str, Reading | Silent]


@dataclass(frozen=True)
class Estimates:
    """Several numbers, each with its interval: one a block (a profile), or one for every two blocks.

    Attributes:
        value: the numbers.
        low: lower ends of their intervals, of the same shape.
        high: upper ends.
    """

    value: Float[np.ndarray, ...]
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]

    @classmethod
    def of(cls, value: Column, low: Column, high: Column) -> Estimates:
        """From lists as results hold them, of numbers if they are sound.

        Raises:
            ValueError: what is there is no number.
        """
        return cls(np.array(value, dtype=float), np.array(low, dtype=float), np.array(high, dtype=float))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many numbers there are, in each dimension."""
        return self.value.shape

    def __getitem__(self, index: Any) -> Estimates:
        """Those that a numpy index picks."""
        return Estimates(self.value[index], self.low[index], self.high[index])

    def reduce(self, by: Callable[[np.ndarray], float]) -> Estimate:
        """One number of all, as by `np.max` or `np.mean`; each end of its interval is reduced by itself."""
        return Estimate(float(by(self.value)), float(by(self.low)), float(by(self.high)))

    def readings(self, note: str = "block {}") -> list[Reading]:
        """One reading a number, of a single row of them, noted by its place."""
        return [
            Reading(Estimate(float(self.value[i]), float(self.low[i]), float(self.high[i])), note.format(i))
            for i in range(len(self.value))
        ]


def steps(profile: Estimates) -> Estimates:
    """Every block less every other: r_j − r_i at [i, j], each with the worst of both intervals.

    Args:
        profile: R²_lin over depth, shape (blocks,).

    Returns:
        Differences, shape (blocks, blocks).

    Raises:
        UntestableError: a single block has nothing to differ from.
    """
    if profile.shape[0] < 2:
        raise UntestableError("a model of one block has no profile")
    return Estimates(
        value=profile.value[None, :] - profile.value[:, None],
        # at the least: low_j − high_i
        low=profile.low[None, :] - profile.high[:, None],
        # at the most: high_j − low_i
        high=profile.high[None, :] - profile.low[:, None],
    )


def distance(first: Estimates, second: Estimates) -> Estimate:
    """Mean distance of two profiles, over blocks, in R²: the one yardstick for *the same* and for *different*.

    The two intervals of a block add as variances; over blocks they add up as if all erred together, at worst.

    Raises:
        UntestableError: the profiles differ in depth.
    """
    _same_depth(first, second)
    # d = mean over blocks of |r_b − r'_b|
    gap = np.abs(first.value - second.value)
    # half the length of the interval of r_b − r'_b: h = √(h_b² + h'_b²)
    half = np.hypot(first.high - first.low, second.high - second.low) / 2
    nearest = (gap - half).clip(min=0)  # no distance is below 0
    farthest = gap + half
    return Estimate(float(gap.mean()), float(nearest.mean()), float(farthest.mean()))


def distances(profiles: Mapping[str, Estimates]) -> list[Reading]:
    """Distance of every two profiles, noted as `a ~ b`."""
    return [
        Reading(distance(profiles[first], profiles[second]), note=f"{first} ~ {second}")
        for first, second in combinations(sorted(profiles), 2)
    ]


def extreme(readings: Sequence[Reading], pick: Callable[..., float], freedom: int = FREEDOM) -> Reading:
    """The largest or smallest of several readings, by `np.max` or `np.min`, with an interval that pays for the choice.

    Of m intervals at 95 % one is often wrong, and the largest value is largest by luck too. So each is widened to
    1 − 0.05 / m first (Bonferroni; Student's t): then all m hold their truth at once in 95 of 100 cases, and with them
    the largest truth lies between the largest lower end and the largest upper end. The note is that of the reading
    whose value was picked.

    Args:
        readings: with intervals at 95 %.
        pick: which of them.
        freedom: degrees of freedom of their intervals.
    """
    tail = (1 - CONFIDENCE) / 2
    wider = student_t.ppf(1 - tail / len(readings), freedom) / student_t.ppf(1 - tail, freedom)
    estimates = Estimates.of(
        value=[reading.estimate.value for reading in readings],
        low=[reading.estimate.value - wider * reading.estimate.error_bars[0] for reading in readings],
        high=[reading.estimate.value + wider * reading.estimate.error_bars[1] for reading in readings],
    )
    picked = estimates.reduce(pick)
    notes = [reading.note for reading in readings if reading.estimate.value == picked.value]
    return Reading(picked, notes[0] if notes else "")  # none if a value is NaN


def correlate(x: ArrayLike, y: ArrayLike, order: bool = False) -> Reading:
    """A correlation over blocks, with what hangs on single ones beside it, as of `core.correlation`.

    Args:
        x: a number a block.
        y: another.
        order: compare the order of blocks alone.

    Raises:
        UntestableError: too few blocks, or one of the two does not vary.
    """
    try:
        found = correlation(x, y, order)
    except InputError as error:
        raise UntestableError(str(error)) from error
    beside = {
        INNER: found.inner,
        "one left out, lowest": found.lowest,
        "one left out, highest": found.highest,
    }
    return Reading(found.r, beside=beside, inner=fisher(found.inner, len(np.asarray(x)) - 2, order))


def _same_depth(first: Estimates, second: Estimates) -> None:
    if first.shape != second.shape:
        raise UntestableError(f"{first.shape[0]} blocks and {second.shape[0]} cannot be laid on each other")
