"""One number from several with intervals: contrasts of blocks, distances of profiles, extremes, correlations.

The intervals in the results come from leaving out document folds. A contrast of two blocks takes the worst of both: its
lower end uses the lower end of the number added and the upper end of the number subtracted. That is wider than
necessary, since the blocks share their documents, and it makes up for the search for the largest step. If a single
block or pair is picked because it is the largest or the smallest, `extreme` widens all intervals first, so that all of
them hold at once. Blocks are not resampled: they are all that a model has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from howlinear.core import profile_statistics
from howlinear.core.correlation import correlation, fisher
from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.errors import InputError
from howlinear.files.tables import with_ends

TOGETHER = "together"
"""Name for numbers that belong to no single model."""

FREEDOM = 7
"""Degrees of freedom of the intervals in the results: eight document folds, less one."""

Intervals = tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]
"""Several numbers: their values, the lower and the upper ends of their intervals."""


class UntestableError(Exception):
    """Results that cannot test the claim; the message states the rule."""


@dataclass(frozen=True)
class Reading:
    """A statistic's value; `inner` and `ordinary` do not affect the verdict."""

    estimate: Estimate  # with its 95 % interval, in the unit of its claim
    note: str = ""  # which block or pair it comes from
    inner: Estimate | None = None  # without the first and the last block, if they can be left out
    ordinary: Estimate | None = None  # from R²_lin on ordinary rows, if the model has massive ones
    one_out: tuple[float, float] | None = None  # lowest and highest value of a correlation with a block left out
    no_power: str = ""  # why a search that finds little says little; empty where it finds what was planted


Readings = dict[str, Reading | str]
"""Model or `TOGETHER` → its statistic, or the rule by which it cannot test the claim."""


def intervals(rows: pd.DataFrame, name: str) -> Intervals:
    """Return each row's number with its interval."""
    value, low, high = rows[with_ends(name)].to_numpy(dtype=float).T
    return value, low, high


def without_intervals(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Set both interval ends to the number itself, if it has none, such as a whole number of directions."""
    return rows.assign(**dict.fromkeys(with_ends(name), rows[name].astype(float)))


def extreme(rows: pd.DataFrame, name: str, pick: Callable[..., float], note: str = "block {block}") -> Reading:
    """Pick the largest or smallest number, by `np.max` or `np.min`, with an interval that accounts for the choice."""
    value, low, high = intervals(rows, name)
    # Of m intervals at 95 % one is often wrong, and the largest value is largest partly by chance. With 1 − 0.05 / m
    # each (Bonferroni; Student's t) all m hold the true values at once in 95 of 100 cases, and then the largest true
    # value lies between the largest lower end and the largest upper end.
    tail = (1 - CONFIDENCE) / 2
    wider = student_t.ppf(1 - tail / len(rows), FREEDOM) / student_t.ppf(1 - tail, FREEDOM)
    picked = Estimate(
        float(pick(value)),
        float(pick(value - wider * (value - low))),
        float(pick(value + wider * (high - value))),
    )
    of_it = rows[value == picked.value].to_dict("records")  # none if a value is NaN
    return Reading(picked, note.format(**of_it[0]) if of_it else "")


def of_profile(blocks: pd.DataFrame, statistic: profile_statistics.Statistic) -> Reading:
    """Take a statistic of R²_lin over depth; also without the end blocks, and without massive rows."""
    ends = intervals(blocks, "r2")
    if len(blocks) == 1:
        raise UntestableError("a model of one block has no profile")
    inner = None
    if len(blocks) > 3:
        inner = profile_statistics.with_interval(statistic, *(end[1:-1] for end in ends))
    ordinary = None
    if "massive_rows" in blocks and blocks["massive_rows"].any():  # unknown for the paper's own numbers
        ordinary = profile_statistics.with_interval(statistic, *intervals(blocks, "r2_ordinary"))
    return Reading(profile_statistics.with_interval(statistic, *ends), inner=inner, ordinary=ordinary)


def distance(first: pd.DataFrame, second: pd.DataFrame) -> Estimate:
    """Return the mean distance of two profiles over blocks, in R²: the yardstick for both *same* and *different*."""
    check_depth(first, second)
    (value, low, high), (other, other_low, other_high) = intervals(first, "r2"), intervals(second, "r2")
    # half the length of the interval of r_b − r'_b: h = √(h_b² + h'_b²)
    half = np.hypot(high - low, other_high - other_low) / 2
    return profile_statistics.mean_distance(value - other, half)


def check_depth(first: pd.DataFrame, second: pd.DataFrame) -> None:
    """Raise `UntestableError` if two profiles differ in depth."""
    if len(first) != len(second):
        raise UntestableError(f"{len(first)} blocks and {len(second)} cannot be laid on each other")


def correlate(x: ArrayLike, y: ArrayLike, order: bool = False) -> Reading:
    """Correlate over blocks, also without the end blocks and with any block left out, as in `core.correlation`."""
    try:
        found = correlation(x, y, order)
    except InputError as error:
        raise UntestableError(str(error)) from error
    inner = fisher(found.inner, len(np.asarray(x)) - 2, order)
    return Reading(found.r, inner=inner, one_out=(found.lowest, found.highest))
