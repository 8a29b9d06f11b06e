"""Statistics of a profile, R²_lin over depth: how far it spreads, how it turns, and whether few rows decide it.

Most are differences between blocks, r_j − r_i. With intervals such a difference is at least low_j − high_i and at most
high_j − low_i. So each statistic takes r_j from its first profile and r_i from `above`, by default the same profile;
`with_interval` combines both ends. With a single block a difference is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from howlinear.core.intervals import Estimate

FEW_ROWS_DECIDE = 0.1
"""R²_lin rests on a few massive rows if it is this far from R²_lin of all other rows. The threshold is our choice, and
wider than the intervals of most blocks at 20,000 rows; notebook 12 gives both numbers of every block."""

Profile = Float[np.ndarray, " blocks"]
"""R²_lin over depth, or one end of its intervals."""
Statistic = Callable[..., float]


def spread(r2: Profile, above: Profile | None = None) -> float:
    """Compute the spread, the highest block minus the lowest: max over i ≠ j of r_j − r_i."""
    difference = _differences(r2, above)
    off_diagonal = ~np.eye(len(difference), dtype=bool)
    return _largest(difference[off_diagonal])


def largest_step(r2: Profile, above: Profile | None = None) -> float:
    """Compute the largest step, up or down, between neighbours: max over |i − j| = 1 of r_j − r_i."""
    difference = _differences(r2, above)
    up = difference.diagonal(1)
    down = difference.diagonal(-1)
    return _largest(np.concatenate([up, down]))


def smaller_turn(r2: Profile, above: Profile | None = None) -> float:
    """Compute the smaller of the largest rise and the largest fall with depth: 0 or below for a monotone profile."""
    difference = _differences(r2, above)
    earlier, later = np.triu_indices(len(difference), k=1)
    # rise: max over i < j of r_j − r_i; fall: max over i < j of r_i − r_j
    rise = _largest(difference[earlier, later])
    fall = _largest(difference[later, earlier])
    return min(rise, fall)


def later_less_earlier(r2: Profile, above: Profile | None = None) -> float:
    """Compute the mean of the later half of the blocks minus that of the earlier; a middle block counts as later."""
    middle = len(r2) // 2
    if middle == 0:
        return float("nan")
    earlier = (r2 if above is None else above)[:middle]
    return float(np.mean(r2[middle:]) - np.mean(earlier))


def lowest(r2: Profile, above: Profile | None = None) -> float:
    """Return R²_lin of the least linear block; `above` is not used."""
    return float(np.min(r2))


def with_interval(statistic: Statistic, value: Profile, low: Profile, high: Profile) -> Estimate:
    """Compute a statistic of a profile with its interval, the worst case of the blocks' intervals on either side."""
    return Estimate(statistic(value), statistic(low, above=high), statistic(high, above=low))


def mean_distance(difference: Profile, half: Profile) -> Estimate:
    """Compute the mean distance of two profiles over blocks, in R²: the yardstick for *the same* and *different*.

    The intervals, `half` to either side of each `difference`, add up over blocks as if all blocks erred together, the
    worst case; noise can only increase a distance.
    """
    # d = mean over blocks of |r_b − r'_b|
    gap = np.abs(difference)
    nearest = (gap - half).clip(min=0)  # no distance is below 0
    farthest = gap + half
    return Estimate(float(gap.mean()), float(nearest.mean()), float(farthest.mean()))


def few_rows_decide(
    r2: float | Float[np.ndarray, "*blocks"], r2_ordinary: float | Float[np.ndarray, "*blocks"]
) -> bool | Bool[np.ndarray, "*blocks"]:
    """Return whether R²_lin changes by `FEW_ROWS_DECIDE` or more without the massive rows, per block."""
    return abs(r2 - r2_ordinary) >= FEW_ROWS_DECIDE


def _differences(r2: Profile, above: Profile | None) -> Float[np.ndarray, "blocks blocks"]:
    """r_j − r_i at [i, j]."""
    start = r2 if above is None else above
    return np.asarray(r2)[None, :] - np.asarray(start)[:, None]


def _largest(differences: Float[np.ndarray, " pairs"]) -> float:
    return float(differences.max()) if differences.size else float("nan")
