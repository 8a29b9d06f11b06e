"""A number with its interval, and the jackknife over document folds that the interval comes from.

Rows of one document resemble each other, so whole document folds are left out, one at a time (Tukey's delete-a-group
jackknife; Efron & Stein 1981, "The jackknife estimate of variance").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.stats import binomtest, norm
from scipy.stats import t as student_t

from howlinear.core.moments import Moments
from howlinear.errors import InputError

CONFIDENCE = 0.95


def half_width(variance: float, degrees: int | float, confidence: float = CONFIDENCE) -> float:
    """Compute the half-width of Student's interval, t · √variance, for a variance with `degrees` degrees of freedom."""
    return float(student_t.ppf((1 + confidence) / 2, degrees) * variance**0.5)


def left_out(folds: Sequence[Moments], outside: Sequence[Moments] = ()) -> Iterator[Moments]:
    """Yield the moments of all folds but one, for each fold in turn, as `Estimate.jackknife` needs them.

    Folds are halved recursively, so that n folds take n log₂ n additions and not n²: the folds `outside` a half, which
    belong to every sum that leaves out one fold of it, are added up once.
    """
    if len(folds) == 1:
        yield from outside
        return
    half = len(folds) // 2
    first, second = folds[:half], folds[half:]
    yield from left_out(first, [Moments.total(chain(outside, second))])
    yield from left_out(second, [Moments.total(chain(outside, first))])


def fold_means(values: Float[np.ndarray, " n"], fold: Int64[np.ndarray, " n"]) -> Float[np.ndarray, " folds"]:
    """Compute the mean of all values (one per sequence) without each document fold in turn, folds in order.

    Raises:
        InputError: fewer than two folds, or not one fold number per value.
    """
    numbers, place, counts = np.unique(fold, return_inverse=True, return_counts=True)
    if len(fold) != len(values) or len(numbers) < 2:
        raise InputError(
            f"an interval leaves out document folds, at least two: got {len(numbers)}, of {len(fold)} places for "
            f"{len(values)} values"
        )
    sums = np.bincount(place, weights=values)
    return (values.sum() - sums) / (len(values) - counts)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: the number.
        low: lower end of its 95 % interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def jackknife(cls, value: float, *groups: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Estimate:
        """Build an estimate whose interval follows from delete-one-fold values.

        Args:
            value: the value with all folds.
            groups: per independent set of folds (train, test), the values with each fold left out in turn.
            confidence: confidence of the interval.

        Returns:
            The value and both ends of its interval, by Student's t with the degrees of freedom of the smallest set
            (Efron & Stein 1981; Tukey's delete-a-group form, summed over independent sets).
        """
        # Of n values: (n − 1) / n · Σ (value − mean)²
        variance = sum((len(values) - 1) * np.var(values) for values in groups)
        fewest = min(len(values) for values in groups)
        half = half_width(variance, fewest - 1, confidence)
        return cls(value, float(value - half), float(value + half))

    @classmethod
    def exact(cls, value: float) -> Estimate:
        """Wrap a number that has no interval: both ends equal it."""
        return cls(float(value), float(value), float(value))

    @classmethod
    def of_mean(cls, values: Float[np.ndarray, " n"], fold: Int64[np.ndarray, " n"]) -> Estimate:
        """Estimate the mean of one number per sequence, with the jackknife over document folds."""
        return cls.jackknife(float(values.mean()), fold_means(values, fold))

    @classmethod
    def of_share(cls, hits: Bool[np.ndarray, " n"]) -> Estimate:
        """Estimate the share of hits among independent cases, with the score interval of Wilson (1927)."""
        interval = binomtest(int(hits.sum()), len(hits)).proportion_ci(CONFIDENCE, method="wilson")
        return cls(float(hits.mean()), float(interval.low), float(interval.high))

    @classmethod
    def of_paired_shares(cls, before: Bool[np.ndarray, " n"], after: Bool[np.ndarray, " n"]) -> Estimate:
        """Estimate the share of hits after minus the share before, on the same independent cases.

        The interval is the adjusted Wald interval of Bonett & Price (2012), whose width is not 0 if no case changes.
        """
        n = len(before) + 2
        # p₊ and p₋ with one gained and one lost case added; variance (p₊ + p₋ − (p₊ − p₋)²) / (n + 2)
        gained, lost = ((after & ~before).sum() + 1) / n, ((before & ~after).sum() + 1) / n
        middle = gained - lost
        half = norm.ppf((1 + CONFIDENCE) / 2) * ((gained + lost - middle**2) / n) ** 0.5
        value = float(after.mean() - before.mean())
        return cls(value, float(max(middle - half, -1)), float(min(middle + half, 1)))

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    def columns(self, name: str) -> dict[str, float]:
        """Return the value and its interval as cells of a table: `name`, `name_low` and `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def excludes(self, number: float) -> bool:
        """Whether a number lies outside the interval."""
        return number < self.low or self.high < number

    def __str__(self) -> str:
        """Format as in `0.36 [0.32, 0.40]`."""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"
