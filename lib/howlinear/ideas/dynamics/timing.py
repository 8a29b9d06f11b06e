"""When is a profile made? Which blocks leave first, and does R²_lin settle before the loss?

"Learned, not architectural" is the claim of arXiv 2606.19379. The paper shows no training run, so what is asked here of
a `Trajectory` is our own. Times are steps, read on a logarithmic scale: between two measured steps everything is linear
in log(1 + step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy import stats

from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.errors import InputError
from howlinear.ideas.dynamics.trajectory import Trajectory


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
    # by how much the intervals are apart, shape (n, blocks); negative where they overlap
    above = trajectory.low - trajectory.high[0]
    below = trajectory.low[0] - trajectory.high
    sides = np.where(above > 0, 1, np.where(below > 0, -1, 0))
    begins_first = [_begin(side, patience) for side in sides.T]
    begins_last = [_begin_of_last(side, patience) for side in sides.T]
    first, first_side = _departed(trajectory.steps, above, below, sides, begins_first)
    last, last_side = _departed(trajectory.steps, above, below, sides, begins_last)
    return Departures(first, first_side, last, last_side)


def _begin(side: Int[np.ndarray, " n"], patience: int) -> int | None:
    """Where the first run of `patience` steps on one side begins; None if there is none."""
    for start in range(len(side) - patience + 1):
        run = side[start : start + patience]
        if side[start] != 0 and (run == side[start]).all():
            return start
    return None


def _begin_of_last(side: Int[np.ndarray, " n"], patience: int) -> int | None:
    """Where the run that lasts to the end begins; None if it is too short, or the block is back."""
    if side[-1] == 0:
        return None
    elsewhere = np.flatnonzero(side != side[-1])  # never empty: the first step is on no side
    start = int(elsewhere[-1]) + 1
    return start if len(side) - start >= patience else None


def _departed(
    steps: Int[np.ndarray, " n"],
    above: Float[np.ndarray, "n blocks"],
    below: Float[np.ndarray, "n blocks"],
    sides: Int[np.ndarray, "n blocks"],
    begins: Sequence[int | None],
) -> tuple[Passage, Int[np.ndarray, " blocks"]]:
    """When each block passed to the side on which it is at its begin, and which side that is."""
    side = np.array([0 if begin is None else sides[begin, block] for block, begin in enumerate(begins)])
    gaps = np.where(side < 0, below, above)
    return _passage(steps, gaps, begins), side


def _passage(
    steps: Int[np.ndarray, " n"], gaps: Float[np.ndarray, "n curves"], begins: Sequence[int | None]
) -> Passage:
    """Where `gaps`, not positive before each curve's begin and positive at it, cross zero."""
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
    band = (1 - share) * np.ptp(values, axis=0)
    off = values - values[-1]
    begins = []
    for outside in (np.abs(off) > band).T:
        steps_outside = np.flatnonzero(outside)
        begins.append(int(steps_outside[-1]) + 1 if len(steps_outside) else 0)
    # the side from which each curve comes in: that of its last step outside
    before = np.maximum(begins, 1) - 1
    side = np.sign(off[before, np.arange(off.shape[1])])
    return _passage(steps, band - side * off, begins)


def settled_loss(trajectory: Trajectory, share: float = 0.9) -> Estimate:
    """The step at which the held-out loss settled; the interval's ends are the measured steps before and after."""
    loss = settling(trajectory.steps, trajectory.loss[:, None], share)
    return Estimate(float(loss.step[0]), float(loss.after[0]), float(loss.by[0]))


def lag(trajectory: Trajectory, share: float = 0.9) -> list[Estimate]:
    """By how many doublings of the step does R²_lin settle later than the loss? Negative if earlier.

    Args:
        trajectory: of one run.
        share: of its range that a curve has covered when it counts as settled, see `settling`.

    Returns:
        Per block log2 of the ratio of (1 + step). No confidence interval: its ends are the least and the most that the
        measured steps on either side allow. NaN for a block that never left its initial value.
    """
    r2 = settling(trajectory.steps, trajectory.r2, share)
    loss = settled_loss(trajectory, share)
    never_left = departures(trajectory).first_side == 0
    lags = []
    for block in range(trajectory.r2.shape[1]):
        if never_left[block]:
            lags.append(Estimate(np.nan, np.nan, np.nan))
            continue
        value = _doublings(loss.value, r2.step[block])
        low = _doublings(loss.high, r2.after[block])
        high = _doublings(loss.low, r2.by[block])
        lags.append(Estimate(value, low, high))
    return lags


def _doublings(early: float, late: float) -> float:
    return float(np.log2((1 + late) / (1 + early)))


def typical_lag(trajectory: Trajectory, share: float = 0.9) -> float:
    """The `lag` of a run's median block, blocks that never left aside."""
    return float(np.nanmedian([gap.value for gap in lag(trajectory, share)]))


@dataclass(frozen=True)
class Vote:
    """What several runs say of a difference, one value each.

    Attributes:
        below: runs under 0.
        above: runs over 0.
        p: two-sided sign test; ties are left out.
        mean: over runs, with its 95 % interval (Student's t), which takes runs as independent: it holds the truth in 95
            of 100 simulated votes where they are, and in 91 where they share their text in pairs
            (`benchmarks/coverage.py`).
    """

    below: int
    above: int
    p: float
    mean: Estimate


def vote(values: Sequence[float]) -> Vote:
    """One value a run: blocks of a run are not independent, so they share one vote.

    Raises:
        InputError: fewer than two runs, or a value that is not finite.
    """
    runs = np.array(values, dtype=float)
    if len(runs) < 2 or not np.isfinite(runs).all():
        raise InputError(f"a vote needs two runs or more, each with a finite value, got {runs.tolist()}")
    below = int((runs < 0).sum())
    above = int((runs > 0).sum())
    p = stats.binomtest(below, below + above).pvalue if below + above else 1.0
    mean = float(runs.mean())
    if np.ptp(runs) == 0:  # scipy warns of values that are all the same, whose interval is a point
        return Vote(below, above, float(p), Estimate(mean, mean, mean))
    interval = stats.ttest_1samp(runs, 0).confidence_interval(CONFIDENCE)
    return Vote(below, above, float(p), Estimate(mean, float(interval.low), float(interval.high)))


def summary(trajectory: Trajectory, patience: int = 2) -> dict[str, float]:
    """A run in ten numbers.

    Returns:
        `start`, `peak` and `end`: mean R²_lin over blocks at the first step, where it is highest, and at the last;
        `peak_step` and `peak_loss`: the measured step of the peak, and the loss there; `fall`: the share of its whole
        fall that the loss has behind it at the peak; `spread_start` and `spread_end`: standard deviation over blocks;
        `up`: how many blocks first leave upwards; `below`: how many have left for good downwards.
    """
    mean = trajectory.r2.mean(1)
    spread = trajectory.r2.std(1)
    loss = trajectory.loss
    peak = int(mean.argmax())
    left = departures(trajectory, patience)
    whole_fall = loss[0] - loss[-1]
    # a loss that ends where it began has no fall to take a share of
    fall = (loss[0] - loss[peak]) / whole_fall if whole_fall != 0 else 0.0
    return {
        "spread_start": float(spread[0]),
        "spread_end": float(spread[-1]),
        "start": float(mean[0]),
        "peak": float(mean[peak]),
        "end": float(mean[-1]),
        "peak_step": float(trajectory.steps[peak]),
        "peak_loss": float(loss[peak]),
        "fall": float(fall),
        "up": float((left.first_side > 0).sum()),
        "below": float((left.last_side < 0).sum()),
    }


def spread(trajectory: Trajectory) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Standard deviation of the profile over blocks at each step, and how far errors could move it, shapes (n,).

    The reach is the root mean square of the blocks' half-intervals: by the triangle inequality, errors of that size
    cannot move the standard deviation further, whether blocks share them or not.
    """
    half = (trajectory.high - trajectory.low) / 2
    reach = np.sqrt(np.square(half).mean(1))
    return trajectory.r2.std(1), reach


def agreement(orders: Float[np.ndarray, "runs blocks"], draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Do several runs have one order? Mean Spearman correlation of all pairs, and its p-value.

    Of m runs without ties the mean is (mW − 1) / (m − 1), with W Kendall's coefficient of concordance. Never (infinity)
    ranks last; a run without any order, all blocks at once, agrees with none. The p-value is the share of independent
    shuffles of the blocks that agree as well. One row of depths and one of steps gives the correlation of time with
    depth.

    Args:
        orders: the times of each run's blocks.
        draws: shuffles; all of them are counted instead where there are no more.
        seed: of the shuffles.

    Raises:
        InputError: fewer than two runs or two blocks.
    """
    if min(orders.shape) < 2:
        raise InputError(f"an agreement takes two runs and two blocks or more, got {orders.shape}")
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
    """Mean Pearson correlation of all pairs of runs; a run whose ranks are all the same correlates with none."""
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


# --- tables of several runs


def summaries(runs: Mapping[str, Trajectory], patience: int = 2) -> pd.DataFrame:
    """A row per run, with the columns of `summary`."""
    return pd.DataFrame.from_dict({name: summary(run, patience) for name, run in runs.items()}, orient="index")


def spreads(runs: Mapping[str, Trajectory]) -> pd.DataFrame:
    """A row per run and measured step: `run`, `step`, the held-out `loss`, and `spread` with its `reach`."""
    tables = []
    for name, run in runs.items():
        deviation, reach = spread(run)
        columns = {"run": name, "step": run.steps, "loss": run.loss, "spread": deviation, "reach": reach}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def passages(runs: Mapping[str, Trajectory], share: float = 0.9, patience: int = 2) -> pd.DataFrame:
    """When each block of each run leaves its initial value, and when it settles.

    Returns:
        A row per event, run and block: `what` (leaves or settles), `run`, `block`, the interpolated `step`, and the
        measured steps `after` and `by` which it happened; infinite where it never did.
    """
    tables = []
    for name, run in runs.items():
        events = {"leaves": departures(run, patience).first, "settles": settling(run.steps, run.r2, share)}
        for what, passage in events.items():
            columns = {"step": passage.step, "after": passage.after, "by": passage.by}
            tables.append(pd.DataFrame({"what": what, "run": name, "block": range(run.r2.shape[1])} | columns))
    return pd.concat(tables, ignore_index=True)


def lags(runs: Mapping[str, Trajectory], share: float = 0.9) -> pd.DataFrame:
    """The `lag` of every block: a row per run and block, with `doublings`, `low` and `high`."""
    rows = []
    for name, run in runs.items():
        for block, gap in enumerate(lag(run, share)):
            rows.append({"run": name, "block": block, "doublings": gap.value, "low": gap.low, "high": gap.high})
    return pd.DataFrame(rows)


def with_depth(times: pd.DataFrame) -> pd.DataFrame:
    """Spearman correlation of time with depth: a row per run, a column per event of `passages`.

    Positive: the first blocks come first; negative: the last.
    """
    correlations = {}
    for (what, name), rows in times.groupby(["what", "run"], sort=False):
        orders = np.stack([rows["block"].to_numpy(dtype=float), rows["step"].to_numpy()])
        rho, _ = agreement(orders)
        correlations.setdefault(what, {})[name] = rho
    return pd.DataFrame(correlations)


def alike(times: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Do the runs of a group have one order? A row per event and group: `what`, `group`, `rho` and `p` of `agreement`.

    Args:
        times: from `passages`.
        groups: group → its runs, of one depth.
    """
    rows = []
    for what in times["what"].unique():
        for group, names in groups.items():
            steps = times[times["what"] == what].set_index("run")["step"]
            rho, p = agreement(np.stack([steps[name].to_numpy() for name in names]))
            rows.append({"what": what, "group": group, "rho": rho, "p": p})
    return pd.DataFrame(rows)


def cuts(runs: Mapping[str, Trajectory]) -> dict[str, dict[str, Trajectory]]:
    """The same runs whole, as if each had ended at half its length, and as if each had begun at its straightest step.

    "Settled" is relative to where a recording begins and ends; what holds of all three does not hang on that.
    """
    halves, from_peak = {}, {}
    for name, run in runs.items():
        halves[name] = run.part(last=int(run.steps[-1]) // 2)
        peak = run.r2.mean(1).argmax()
        from_peak[name] = run.part(first=int(run.steps[peak]))
    return {"whole run": dict(runs), "first half": halves, "from the peak": from_peak}


def votes(runs: Mapping[str, Trajectory], shares: Sequence[float]) -> pd.DataFrame:
    """Does R²_lin settle after the loss? One vote a run, its median block's, at every cut and share.

    Returns:
        A row per cut and share: `cut`, `share`, runs `below` and `above` 0, `p`, the `mean` lag in doublings with the
        ends `low` and `high` of its interval, see `vote`.
    """
    rows = []
    for cut, parts in cuts(runs).items():
        for share in shares:
            counted = vote([typical_lag(part, share) for part in parts.values()])
            row = {"cut": cut, "share": share, "below": counted.below, "above": counted.above, "p": counted.p}
            rows.append(row | {"mean": counted.mean.value, "low": counted.mean.low, "high": counted.mean.high})
    return pd.DataFrame(rows)


def record(
    summary: pd.DataFrame, times: pd.DataFrame, lags: pd.DataFrame, alike: pd.DataFrame, votes: pd.DataFrame
) -> dict[str, dict]:
    """The tables as nested dictionaries by run, ready for results.

    Args:
        summary: as `summaries` makes it.
        times: as `passages` makes it.
        lags: as `lags` makes it.
        alike: as `alike` makes it.
        votes: as `votes` makes it.

    Returns:
        `summary` by run; `typical`, the median lag by run; `alike` as [ρ, p] by question and group; `votes` by cut and
        share; `leaves` and `settles`, a step for each block by run, None where it never happened.
    """
    recorded = {
        "summary": summary.T.to_dict(),
        "typical": lags.groupby("run", sort=False)["doublings"].median().to_dict(),
        "alike": {f"{order.what}, {order.group}": [order.rho, order.p] for order in alike.itertuples()},
        "votes": {},
    }
    for cut, of_cut in votes.groupby("cut", sort=False):
        by_share = of_cut.drop(columns="cut").set_index(of_cut["share"].astype(str)).drop(columns="share")
        recorded["votes"][cut] = by_share.to_dict("index")
    for what in ("leaves", "settles"):
        recorded[what] = {}
        for run, of_run in times[times["what"] == what].groupby("run", sort=False):
            recorded[what][run] = [step if np.isfinite(step) else None for step in of_run["step"]]
    return recorded
