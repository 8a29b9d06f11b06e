"""How far one block lies from another, and one profile from another, where every block has an interval.

Intervals leave out document folds. A contrast of blocks takes the worst of both: its lower end uses the lower end of
what is added and the upper end of what is taken off. That is wider than need be, since the blocks share their
documents, and it makes up for having looked for the largest. Blocks are not resampled: they are all that a model has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from jaxtyping import Float


class UntestableError(Exception):
    """These results cannot speak to the claim, by a rule stated here; its text says which."""


@dataclass(frozen=True)
class Reading:
    """A statistic's value.

    Attributes:
        value: in the unit of its claim.
        low: lower end of its 95 % interval.
        high: upper end.
        note: which block or pair it comes from.
    """

    value: float
    low: float
    high: float
    note: str = ""


Curve = Float[np.ndarray, "3 blocks"]  # a profile: values, lower ends, upper ends


def steps(curve: Curve) -> Float[np.ndarray, "3 blocks blocks"]:
    """Block j less block i at [:, i, j]: as measured, at the least, at the most.

    Raises:
        UntestableError: a single block has nothing to differ from.
    """
    if curve.shape[1] < 2:
        raise UntestableError("a model of one block has no profile")
    value, low, high = curve
    return np.stack([value - value[:, None], low - high[:, None], high - low[:, None]])


def distance(one: Curve, other: Float[np.ndarray, "3 others"]) -> Reading:
    """Mean distance of two profiles, over blocks, in R²: the one yardstick for *the same* and for *different*.

    The two intervals of a block add as variances; over blocks they add up as if all erred together, at worst.

    Raises:
        UntestableError: the profiles differ in depth.
    """
    if one.shape != other.shape:
        raise UntestableError(f"{one.shape[1]} blocks and {other.shape[1]} cannot be laid on each other")
    gap = np.abs(one[0] - other[0])
    half = np.hypot(one[2] - one[1], other[2] - other[1]) / 2
    return Reading(float(gap.mean()), float((gap - half).clip(0).mean()), float((gap + half).mean()))


def extreme(found: Sequence[Reading], pick: Callable[..., float]) -> Reading:
    """The largest or smallest of several readings by `np.max` or `np.min`, each end picked by itself."""
    value, low, high = (float(pick([getattr(each, end) for each in found])) for end in ("value", "low", "high"))
    return Reading(value, low, high, next((each.note for each in found if each.value == value), ""))


def pairs(curves: Mapping[str, Curve]) -> list[Reading]:
    """Distance of every two profiles, noted as `a ~ b`."""
    named = combinations(sorted(curves), 2)
    return [replace(distance(curves[a], curves[b]), note=f"{a} ~ {b}") for a, b in named]
