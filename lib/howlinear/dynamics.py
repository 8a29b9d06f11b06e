"""When is a profile made? Which blocks leave first, and does R²_lin settle before the loss?

"Learned, not architectural" is the claim of arXiv 2606.19379. The paper shows no training run, so what is asked here of
a `Trajectory` is our own. Times are steps, read on a logarithmic scale: between two measured steps everything is linear
in log(1 + step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import binomtest, rankdata
from scipy.stats import t as student_t

from howlinear.ceilings import CONFIDENCE
from howlinear.errors import InputError
from howlinear.trajectories import Trajectory


@dataclass(frozen=True)
class Passage:
    """When something happened to each curve; infinite where it never did.

    Attributes:
        step: interpolated, shape (curves,).
        after: the last measured step before, shape (curves,).
        by: the first measured step at which it had happened; equal to `after` if it was so from the start.
    """

    step: Float[np.ndarray, " curves"]
    after: Float[np.ndarray, " curves"]
    by: Float[np.ndarray, " curves"]


@dataclass(frozen=True)
class Departures:
    """How the blocks left their initial value.

    Attributes:
        first: when each block left it, to whichever side.
        first_side: 1 if upwards, −1 if downwards, 0 if never; shape (blocks,).
        last: when each block left it for good: it stays on that side to the end.
        last_side: as `first_side`; 0 also where a block came back.
    """

    first: Passage
    first_side: Int[np.ndarray, " blocks"]
    last: Passage
    last_side: Int[np.ndarray, " blocks"]


def departures(trajectory: Trajectory, patience: int = 2) -> Departures:
    """When each block's R²_lin left its initial value.

    A block is away at a step if its interval there and its interval at the first step do not touch: above, or below.
    It has left once it is away on the same side at `patience` measured steps running. All steps read the same rows,
    so their errors are shared and the test is a cautious one.

    Args:
        trajectory: of one run.
        patience: measured steps in a row that make a departure.

    Raises:
        InputError: no patience at all.
    """
    if patience < 1:
        raise InputError(f"a departure takes at least one measured step, not {patience}")
    gaps = {1: trajectory.low - trajectory.high[0], -1: trajectory.low[0] - trajectory.high}
    sides = np.where(gaps[1] > 0, 1, np.where(gaps[-1] > 0, -1, 0)).T
    first = [_begin(side, patience) for side in sides]
    last = [_begin_of_last(side, patience) for side in sides]
    found = []
    for begins in (first, last):
        side = np.array([0 if i is None else block[i] for i, block in zip(begins, sides, strict=True)])
        gap = np.where(side < 0, gaps[-1], gaps[1])
        found += [_passage(trajectory.steps, gap, begins), side]
    return Departures(*found)


def settling(steps: Int[np.ndarray, " n"], values: Float[np.ndarray, "n curves"], share: float = 0.9) -> Passage:
    """When each curve settled: from then on it stays within (1 − share) of its range around its last value.

    The settling time of control theory. The range is highest minus lowest: for a curve that only rises or falls, this
    is when it has gone `share` of its way. For one that turns round, the *net* way may be nothing, and the *total* way
    would count every wobble as progress; the range does neither. A curve that does not move is settled from the start.

    Args:
        steps: measured steps, shape (n,).
        values: shape (n, curves).
        share: of the range, between 0 and 1.

    Raises:
        InputError: a share outside 0 to 1.
    """
    if not 0 < share < 1:
        raise InputError(f"the share must lie between 0 and 1, got {share}")
    band, off = (1 - share) * np.ptp(values, axis=0), values - values[-1]
    outside = [np.flatnonzero(column) for column in (np.abs(off) > band).T]
    begins = [int(where[-1]) + 1 if len(where) else 0 for where in outside]
    side = np.sign([curve[max(i, 1) - 1] for curve, i in zip(off.T, begins, strict=True)])  # from where it comes in
    return _passage(steps, band - side * off, begins)


@dataclass(frozen=True)
class Lag:
    """By how many doublings of the step R²_lin settles later than the loss; negative if earlier.

    Attributes:
        doublings: log2 of the ratio of (1 + step), shape (blocks,); NaN for a block that never left its initial value.
        low: the least that the measured steps on either side allow.
        high: the most.
    """

    doublings: Float[np.ndarray, " blocks"]
    low: Float[np.ndarray, " blocks"]
    high: Float[np.ndarray, " blocks"]


def lag(trajectory: Trajectory, share: float = 0.9) -> Lag:
    """Does R²_lin settle before the loss? Block by block, at the resolution of the measured steps."""
    r2 = settling(trajectory.steps, trajectory.r2, share)
    loss = settling(trajectory.steps, trajectory.loss[:, None], share)
    moved = np.where(departures(trajectory).first_side != 0, 0.0, np.nan)
    pairs = (r2.step, loss.step), (r2.after, loss.by), (r2.by, loss.after)
    return Lag(*(np.log2((1 + late) / (1 + early)) + moved for late, early in pairs))


@dataclass(frozen=True)
class Vote:
    """What several runs say of a difference, one value each.

    Attributes:
        below: runs under 0.
        above: runs over 0.
        p: two-sided sign test; ties are left out.
        mean: over runs.
        low: lower end of its 95 % interval (Student's t).
        high: upper end.
    """

    below: int
    above: int
    p: float
    mean: float
    low: float
    high: float


def vote(values: Sequence[float]) -> Vote:
    """One value a run: blocks of a run are not independent, so they share one vote.

    Raises:
        InputError: fewer than two runs, or a value that is not finite.
    """
    runs = np.array(values, dtype=float)
    if len(runs) < 2 or not np.isfinite(runs).all():
        raise InputError(f"a vote needs two runs or more, each with a finite value, got {runs.tolist()}")
    below, above = int((runs < 0).sum()), int((runs > 0).sum())
    p = binomtest(below, below + above).pvalue if below + above else 1.0
    half = student_t.ppf((1 + CONFIDENCE) / 2, len(runs) - 1) * runs.std(ddof=1) / len(runs) ** 0.5
    return Vote(below, above, float(p), *(float(runs.mean() + shift) for shift in (0, -half, half)))


def summary(trajectory: Trajectory, patience: int = 2) -> dict[str, float]:
    """A run in ten numbers; `peak` is the measured step with the highest mean R²_lin, where blocks are straightest.

    `fall` is the share of its whole fall that the loss has behind it at the peak, `up` the number of blocks whose first
    departure is upwards, `below` the number that have left for good downwards.
    """
    r2, loss, peak = trajectory.r2.mean(1), trajectory.loss, int(trajectory.r2.mean(1).argmax())
    left, sd = departures(trajectory, patience), trajectory.r2.std(1)
    found = {"spread_start": sd[0], "spread_end": sd[-1], "start": r2[0], "peak": r2[peak], "end": r2[-1]}
    found |= {"peak_step": trajectory.steps[peak], "peak_loss": loss[peak], "fall": loss[0] - loss[peak]}
    found["fall"] /= loss[0] - loss[-1] if loss[0] != loss[-1] else np.inf
    found |= {"up": (left.first_side > 0).sum(), "below": (left.last_side < 0).sum()}
    return {key: float(value) for key, value in found.items()}


def spread(trajectory: Trajectory) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Standard deviation of the profile over blocks at each step, and how far errors could move it, shapes (n,).

    The reach is the root mean square of the blocks' half-intervals: by the triangle inequality, errors of that size
    cannot move the standard deviation further, whether blocks share them or not.
    """
    half = (trajectory.high - trajectory.low) / 2
    return trajectory.r2.std(1), np.sqrt(np.square(half).mean(1))


def agreement(orders: Float[np.ndarray, "runs blocks"], draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Do several runs have one order? Mean Spearman correlation of all pairs, and its p-value.

    Never (infinity) ranks last; a run without any order, all blocks at once, agrees with none. The p-value is the share
    of independent shuffles of the blocks that agree as well. One row of depths and one of steps gives the correlation
    of time with depth.

    Args:
        orders: the times of each run's blocks.
        draws: shuffles.
        seed: of the shuffles.

    Raises:
        InputError: fewer than two runs or two blocks.
    """
    if min(orders.shape) < 2:
        raise InputError(f"an agreement takes two runs and two blocks or more, got {orders.shape}")
    ranks = rankdata(orders, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    ranks /= np.linalg.norm(ranks, axis=1, keepdims=True).clip(1e-9)
    own, pairs = np.square(ranks).sum(), len(ranks) * (len(ranks) - 1)
    rho = (np.square(ranks.sum(0)).sum() - own) / pairs
    shuffles = np.random.default_rng(seed).permuted(np.tile(ranks, (draws, 1, 1)), axis=2)
    shuffled = (np.square(shuffles.sum(1)).sum(1) - own) / pairs
    return float(rho), float((1 + (shuffled >= rho - 1e-9).sum()) / (1 + draws))


def _begin(side: Int[np.ndarray, " n"], patience: int) -> int | None:
    """Where the first run of `patience` steps on one side begins."""
    runs = (i for i in range(len(side) - patience + 1) if side[i] and (side[i : i + patience] == side[i]).all())
    return next(runs, None)


def _begin_of_last(side: Int[np.ndarray, " n"], patience: int) -> int | None:
    """Where the run that lasts to the end begins; None if it is too short, or the block is back."""
    start = int(np.flatnonzero(side != side[-1]).max(initial=0)) + 1  # the first step is on no side
    return start if side[-1] and len(side) - start >= patience else None


def _passage(
    steps: Int[np.ndarray, " n"], gaps: Float[np.ndarray, "n curves"], begins: Sequence[int | None]
) -> Passage:
    """Where `gaps`, not positive before each curve's begin and positive at it, cross zero."""
    times, found = np.log1p(steps), []
    for gap, i in zip(gaps.T, begins, strict=True):
        if i is None or i == 0:
            found.append([np.inf if i is None else float(steps[0])] * 3)
            continue
        share = gap[i - 1] / (gap[i - 1] - gap[i])
        step = np.expm1(times[i - 1] + share * (times[i] - times[i - 1]))
        found.append([step, steps[i - 1], steps[i]])
    return Passage(*np.array(found, dtype=float).T)
