"""When is a profile made? Which blocks leave first, and does R²_lin settle before the loss?

"Learned, not architectural" is the claim of arXiv 2606.19379. The paper shows no training run, so these questions to a
`Trajectory` are our own. Times are steps on a logarithmic scale: between two measured steps everything is interpolated
linearly in log(1 + step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.errors import InputError
from howlinear.ideas.dynamics.trajectory import Trajectory


class Passage(NamedTuple):
    """When something happened to each curve; infinite where it never did."""

    step: Float[np.ndarray, " curves"]  # interpolated
    after: Float[np.ndarray, " curves"]  # the last measured step before
    by: Float[np.ndarray, " curves"]  # the first measured step at which it had happened; `after` if from the start


@dataclass(frozen=True)
class Departures:
    """How the blocks left their initial value."""

    first: Passage  # when each block left it, to whichever side
    first_side: Int[np.ndarray, " blocks"]  # 1 if upwards, −1 if downwards, 0 if never
    last_side: Int[np.ndarray, " blocks"]  # where each block is at the end; 0 also where it came back


def departures(trajectory: Trajectory, patience: int = 2) -> Departures:
    """Find when each block's R²_lin left its initial value."""
    if patience < 1:
        raise InputError(f"a departure takes at least one measured step, not {patience}")
    # by how much the intervals are apart, shape (n, blocks); negative where they overlap
    above = trajectory.low - trajectory.high[0]
    below = trajectory.low[0] - trajectory.high
    # A block is away at a step if its interval there lies wholly above or below that at the first step. It has left
    # once it is away on the same side at `patience` measured steps in a row. All steps read the same rows, so their
    # errors are shared and the test is conservative.
    sides = np.where(above > 0, 1, np.where(below > 0, -1, 0))

    begins = []
    first_side = []
    for side in sides.T:
        begin = _begin(side, patience)
        begins.append(begin)
        first_side.append(0 if begin is None else side[begin])
    first_side = np.array(first_side)
    gaps = np.where(first_side < 0, below, above)
    first = _passage(trajectory.steps, gaps, begins)

    # away to the end, for long enough: the first step is on no side
    stays = (sides[-patience:] == sides[-1]).all(axis=0)
    return Departures(first, first_side, np.where(stays, sides[-1], 0))


def _begin(side: Int[np.ndarray, " n"], patience: int) -> int | None:
    """Find where the first run of `patience` steps on one side begins; None if there is none."""
    for start in range(len(side) - patience + 1):
        if side[start] != 0 and (side[start : start + patience] == side[start]).all():
            return start
    return None


def settling(steps: Int[np.ndarray, " n"], values: Float[np.ndarray, "n curves"], share: float = 0.9) -> Passage:
    """Find when each curve settled: from then on it stays within (1 − share) of its range around its last value."""
    if not 0 < share < 1:
        raise InputError(f"the share must lie between 0 and 1, got {share}")
    # This is the settling time of control theory. The range is highest minus lowest: for a curve that only rises or
    # falls, it settles after `share` of its way. For a curve that turns, the net change may be zero and the total
    # variation would count every wobble as progress; the range avoids both.
    band = (1 - share) * np.ptp(values, axis=0)
    off = values - values[-1]
    outside = np.abs(off) > band
    begins = []
    for of_curve in outside.T:
        steps_outside = np.flatnonzero(of_curve)
        begins.append(int(steps_outside[-1]) + 1 if len(steps_outside) else 0)
    # the side from which each curve enters its band: that of its last step outside
    before = np.maximum(begins, 1) - 1
    curves = np.arange(off.shape[1])
    side = np.sign(off[before, curves])
    return _passage(steps, band - side * off, begins)


def _passage(
    steps: Int[np.ndarray, " n"], gaps: Float[np.ndarray, "n curves"], begins: Sequence[int | None]
) -> Passage:
    """Interpolate where `gaps` cross zero: not positive before each curve's entry in `begins`, positive at it."""
    times = np.log1p(steps)
    passed = []
    for gap, begin in zip(gaps.T, begins, strict=True):
        if begin is None:
            passed.append((np.inf, np.inf, np.inf))
        elif begin == 0:
            passed.append((steps[0], steps[0], steps[0]))
        else:
            # linear in log(1 + step) between the two measured steps
            share = gap[begin - 1] / (gap[begin - 1] - gap[begin])
            time = times[begin - 1] + share * (times[begin] - times[begin - 1])
            passed.append((np.expm1(time), steps[begin - 1], steps[begin]))
    step, after, by = np.array(passed, dtype=float).T
    return Passage(step, after, by)


def lag(trajectory: Trajectory, share: float = 0.9, patience: int = 2) -> Float[np.ndarray, "3 blocks"]:
    """Compute how many doublings of the step R²_lin settles after the loss, and the least and greatest this may be."""
    r2 = settling(trajectory.steps, trajectory.r2, share)
    loss = settling(trajectory.steps, trajectory.loss[:, None], share)
    doublings = np.log2(
        [
            (1 + r2.step) / (1 + loss.step),
            (1 + r2.after) / (1 + loss.by),
            (1 + r2.by) / (1 + loss.after),
        ]
    )
    # NaN for a block that never left its initial value
    never_left = departures(trajectory, patience).first_side == 0
    return np.where(never_left, np.nan, doublings)


def vote(values: Sequence[float]) -> tuple[int, int, float, Estimate]:
    """Test a difference over several runs, one value each, since the blocks of a run are not independent.

    Returns:
        The numbers of runs below 0 and above 0; p of the two-sided sign test, ties left out; and the mean over runs
        with its 95 % interval (Student's t), which assumes independent runs: it contains the truth in 95 of 100
        simulated votes if they are, and in 91 if pairs of runs share their text (`benchmarks/coverage.py`).
    """
    runs = np.array(values, dtype=float)
    if len(runs) < 2 or not np.isfinite(runs).all():
        raise InputError(f"a vote needs two runs or more, each with a finite value, got {runs.tolist()}")
    below = int((runs < 0).sum())
    above = int((runs > 0).sum())
    decided = below + above
    p = float(stats.binomtest(below, decided).pvalue) if decided else 1.0
    mean = float(runs.mean())
    low, high = mean, mean
    if np.ptp(runs) > 0:  # else the interval is a point, and scipy warns of values that are all the same
        interval = stats.ttest_1samp(runs, 0).confidence_interval(CONFIDENCE)
        low, high = float(interval.low), float(interval.high)
    return below, above, p, Estimate(mean, low, high)


def spread(trajectory: Trajectory) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Compute the profile's standard deviation over blocks at each step, and how far errors could move it."""
    # the reach is their root mean square: by the triangle inequality, errors of that size cannot move the standard
    # deviation further, whether blocks share them or not
    half = (trajectory.high - trajectory.low) / 2
    reach = np.sqrt(np.square(half).mean(1))
    return trajectory.r2.std(1), reach


def correlation(orders: Float[np.ndarray, "runs blocks"]) -> float:
    """Compute the mean Spearman correlation of every two orders; never (infinity) ranks last."""
    # For m orders without ties it is (mW − 1) / (m − 1), with W Kendall's coefficient of concordance. An order in which
    # all blocks are tied has correlation 0 with every other.
    return float(_mean_correlation(*stats.rankdata(orders, axis=1)))


def agreement(orders: Float[np.ndarray, "runs blocks"], draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Test whether two or more runs have one order: their `correlation`, and its p-value."""
    # p is the share of independent shuffles of the blocks that agree at least as well
    tested = stats.permutation_test(
        stats.rankdata(orders, axis=1),
        _mean_correlation,
        permutation_type="pairings",
        alternative="greater",
        vectorized=True,
        n_resamples=draws,
        rng=np.random.default_rng(seed),
    )
    return float(tested.statistic), float(tested.pvalue)


def _mean_correlation(*ranks: np.ndarray, axis: int = -1) -> np.ndarray | np.floating:
    """Average the Pearson correlation over all pairs of runs; a run of equal ranks correlates with none."""
    total = 0.0  # Σ z
    own = 0.0  # Σ ‖z‖²
    for run in ranks:
        centred = run - run.mean(axis, keepdims=True)
        length = np.linalg.norm(centred, axis=axis, keepdims=True)
        z = centred / length.clip(1e-9)
        total = total + z
        own = own + np.square(z).sum(axis)
    # ‖Σ z‖² holds every pair twice, and each run with itself
    pairs = len(ranks) * (len(ranks) - 1)
    return (np.square(total).sum(axis) - own) / pairs
