"""When training makes a profile, as tidy tables: runs in numbers, when blocks leave and settle, their order, the votes.

Everywhere `films` is run → `Trajectory`, `share` the part of its range that a curve has covered when it counts as
settled, and `patience` the measured steps in a row that make a departure, see `timing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from howlinear.errors import InputError
from howlinear.ideas.dynamics.timing import Passage, agreement, correlation, departures, lag, settling, spread, vote
from howlinear.ideas.dynamics.trajectory import Trajectory

EVENTS = ("leaves", "settles")

Films = Mapping[str, Trajectory]


def passages(films: Films, share: float = 0.9, patience: int = 2) -> pd.DataFrame:
    """When each block of each run leaves its initial value, when it settles, and how long after the loss.

    Returns:
        run, block; leaves and settles, interpolated steps whose ends are the measured ones between which it happened,
        empty where it never did; lag, in doublings of the step, see `timing.lag`.
    """
    tables = []
    for run, film in films.items():
        table = {"run": run, "block": range(film.r2.shape[1])}
        table |= _columns("leaves", departures(film, patience).first)
        table |= _columns("settles", settling(film.steps, film.r2, share))
        table |= dict(zip(("lag", "lag_low", "lag_high"), lag(film, share, patience), strict=True))
        tables.append(pd.DataFrame(table))
    return pd.concat(tables, ignore_index=True)


def _columns(name: str, passage: Passage) -> dict[str, np.ndarray]:
    ends = {name: passage.step, f"{name}_low": passage.after, f"{name}_high": passage.by}
    return {column: np.where(np.isinf(steps), np.nan, steps) for column, steps in ends.items()}


def runs(films: Films, passages: pd.DataFrame, share: float = 0.9, patience: int = 2) -> pd.DataFrame:
    """Each run in numbers, a row a run.

    Returns:
        run; start, peak and end: mean R²_lin over blocks at the first step, where it is highest, and at the last;
        peak_step and peak_loss: the measured step of the peak, and the loss there; fall: the share of its whole fall
        that the loss has behind it at the peak; spread_start and spread_end: standard deviation over blocks; up: how
        many blocks first leave upwards; below: how many end below; loss_settles, with the measured steps on either
        side; lag: that of the median block; leaves_with_depth and settles_with_depth: the rank correlation of a block's
        number with its time, positive where the first blocks come first.
    """
    rows = []
    for run, film in films.items():
        mean, deviation, loss = film.r2.mean(1), film.r2.std(1), film.loss
        peak = int(mean.argmax())
        left = departures(film, patience)
        of_run = passages[passages["run"] == run]
        whole_fall = loss[0] - loss[-1]
        row = {"run": run, "start": mean[0], "peak": mean[peak], "end": mean[-1]}
        row |= {"peak_step": film.steps[peak], "peak_loss": loss[peak]}
        # a loss that ends where it began has no fall to take a share of
        row |= {"fall": (loss[0] - loss[peak]) / whole_fall if whole_fall else 0.0}
        row |= {"spread_start": deviation[0], "spread_end": deviation[-1]}
        row |= {"up": (left.first_side > 0).sum(), "below": (left.last_side < 0).sum()}
        row |= {name: ends[0] for name, ends in _columns("loss_settles", _loss(film, share)).items()}
        row |= {"lag": of_run["lag"].median()}
        for event in EVENTS:
            times = of_run[event].fillna(np.inf)
            row[f"{event}_with_depth"] = correlation(np.stack([of_run["block"], times]))
        rows.append(row)
    return pd.DataFrame(rows)


def _loss(film: Trajectory, share: float) -> Passage:
    return settling(film.steps, film.loss[:, None], share)


def orders(passages: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Do the runs of a group, all of one depth, have one order? Columns event, group; rho and p of `agreement`."""
    rows = []
    for event in EVENTS:
        times = passages.fillna({event: np.inf}).pivot_table(index="run", columns="block", values=event)
        for group, names in groups.items():
            blocks = passages.loc[passages["run"] == names[0], "block"]
            rho, p = agreement(times.loc[list(names), blocks].to_numpy())
            rows.append({"event": event, "group": group, "rho": rho, "p": p})
    return pd.DataFrame(rows)


def cuts(films: Films) -> dict[str, dict[str, Trajectory]]:
    """The same runs whole, as if each had ended at half its length, and as if each had begun at its straightest step.

    "Settled" is relative to where a recording begins and ends; what holds of all three does not hang on that. A run is
    left out of a cut that leaves fewer than two of its measured steps.
    """
    found = {"whole run": dict(films), "first half": {}, "from the peak": {}}
    for run, film in films.items():
        peak = film.steps[film.r2.mean(1).argmax()]
        for cut, ends in {"first half": (0, film.steps[-1] // 2), "from the peak": (peak, film.steps[-1])}.items():
            try:
                found[cut][run] = film.part(*map(int, ends))
            except InputError:  # too few steps
                continue
    return found


def votes(films: Films, shares: Sequence[float], patience: int = 2) -> pd.DataFrame:
    """Does R²_lin settle after the loss? One vote a run, its median block's lag, at every cut and share.

    Returns:
        cut, share; runs below and above 0, and p of their sign test; lag, the mean over runs, with its ends. A run of
        which no block ever left has no vote.
    """
    rows = []
    for cut, parts in cuts(films).items():
        for share in shares:
            lags = pd.DataFrame({run: pd.Series(lag(film, share, patience)[0]) for run, film in parts.items()})
            found = vote(lags.median().dropna().tolist())
            row = {"cut": cut, "share": share, "below": found.below, "above": found.above, "p": found.p}
            rows.append(row | found.mean.columns("lag"))
    return pd.DataFrame(rows)


def spreads(films: Films) -> pd.DataFrame:
    """A row a run and measured step: run, step, the held-out loss, and `timing.spread` with its reach."""
    tables = []
    for run, film in films.items():
        deviation, reach = spread(film)
        columns = {"run": run, "step": film.steps, "loss": film.loss, "spread": deviation, "reach": reach}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)
