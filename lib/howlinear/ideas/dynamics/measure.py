"""When training makes a profile, as tidy tables: runs in numbers, when blocks leave and settle, their order, the votes.

Throughout, `films` is run → `Trajectory`, `share` the part of its range that a curve has covered when it counts as
settled, and `patience` the number of measured steps in a row that make a departure, see `timing`. The columns of
recorded tables are described in `files/columns.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from howlinear.files.tables import with_ends
from howlinear.ideas.dynamics.timing import agreement, correlation, departures, lag, settling, spread, vote
from howlinear.ideas.dynamics.trajectory import Trajectory

EVENTS = ("leaves", "settles")
FEWEST = 2  # measured steps in a part of a run, at least

Films = Mapping[str, Trajectory]


def passages(films: Films, share: float = 0.9, patience: int = 2) -> pd.DataFrame:
    """Tabulate when each block of each run leaves its initial value, when it settles, and how long after the loss."""
    tables = []
    for run, film in films.items():
        left = departures(film, patience).first
        settled = settling(film.steps, film.r2, share)
        behind_loss = lag(film, share, patience)
        columns = {"run": run, "block": range(film.r2.shape[1])}
        for name, with_interval in (("leaves", left), ("settles", settled), ("lag", behind_loss)):
            columns |= dict(zip(with_ends(name), with_interval, strict=True))
        tables.append(pd.DataFrame(columns))
    # an event that never happened has an empty cell
    return pd.concat(tables, ignore_index=True).replace(np.inf, np.nan)


def runs(films: Films, passages: pd.DataFrame, share: float = 0.9, patience: int = 2) -> pd.DataFrame:
    """Describe each run: where its mean R²_lin starts, peaks and ends, and what the loss does; table `runs`."""
    rows = []
    for run, film in films.items():
        mean = film.r2.mean(1)
        deviation = film.r2.std(1)
        peak = int(mean.argmax())
        left = departures(film, patience)
        loss = settling(film.steps, film.loss[:, None], share)
        of_run = passages[passages["run"] == run]
        # a loss that ends where it began has no fall to take a share of
        whole_fall = film.loss[0] - film.loss[-1]
        fall = (film.loss[0] - film.loss[peak]) / whole_fall if whole_fall else 0.0
        row = {
            "run": run,
            "start": mean[0],
            "peak": mean[peak],
            "end": mean[-1],
            "peak_step": film.steps[peak],
            "peak_loss": film.loss[peak],
            "fall": fall,
            "spread_start": deviation[0],
            "spread_end": deviation[-1],
            "up": (left.first_side > 0).sum(),
            "below": (left.last_side < 0).sum(),
            "loss_settles": loss.step[0],
            "loss_settles_low": loss.after[0],
            "loss_settles_high": loss.by[0],
            "lag": of_run["lag"].median(),
        }
        for event in EVENTS:
            times = of_run[event].fillna(np.inf)
            row[f"{event}_with_depth"] = correlation(np.stack([of_run["block"], times]))
        rows.append(row)
    return pd.DataFrame(rows)


def orders(passages: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Test whether the runs of a group, all of one depth, have the same order of blocks; table `orders`."""
    rows = []
    for event in EVENTS:
        never_last = passages.fillna({event: np.inf})
        times = never_last.pivot_table(index="run", columns="block", values=event)
        for group, names in groups.items():
            blocks = passages.loc[passages["run"] == names[0], "block"]
            rho, p = agreement(times.loc[list(names), blocks].to_numpy())
            rows.append({"event": event, "group": group, "rho": rho, "p": p})
    return pd.DataFrame(rows)


def cuts(films: Films) -> dict[str, dict[str, Trajectory]]:
    """Return the runs whole, as if each had ended at half its length, and as if each had begun at its peak."""
    # "settled" is relative to where a recording begins and ends; what holds for all three cuts does not depend on that
    found = {"whole run": dict(films), "first half": {}, "from the peak": {}}
    for run, film in films.items():
        last = int(film.steps[-1])
        peak = int(film.steps[film.r2.mean(1).argmax()])
        ends = {"first half": (0, last // 2), "from the peak": (peak, last)}
        for cut, (begin, end) in ends.items():
            inside = (film.steps >= begin) & (film.steps <= end)
            if inside.sum() >= FEWEST:
                found[cut][run] = film.part(inside)
    return found


def votes(films: Films, shares: Sequence[float], patience: int = 2) -> pd.DataFrame:
    """Vote on whether R²_lin settles after the loss, by each run's median lag, at every cut and share."""
    rows = []
    for cut, parts in cuts(films).items():
        for share in shares:
            lags = []
            for film in parts.values():
                of_blocks, _, _ = lag(film, share, patience)
                left = of_blocks[np.isfinite(of_blocks)]
                # a run in which no block ever left its initial value has no vote
                if len(left):
                    lags.append(np.median(left))
            below, above, p, mean = vote(lags)
            row = {"cut": cut, "share": share, "below": below, "above": above, "p": p}
            rows.append(row | mean.columns("lag"))
    return pd.DataFrame(rows)


def spreads(films: Films) -> pd.DataFrame:
    """Tabulate the held-out loss, and `timing.spread` with its reach, a row per run and measured step."""
    tables = []
    for run, film in films.items():
        deviation, reach = spread(film)
        columns = {"run": run, "step": film.steps, "loss": film.loss, "spread": deviation, "reach": reach}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def sink(snapshots: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate how an attention sink grows, from the snapshots of a model's trajectory.json; table `sink`."""
    columns = {"r2": "r2", "r2_ordinary": "r2_ordinary", "massive_rows": "massive_rows"}
    columns |= {"written": "heaviest", "attention": "attention"}
    frames = [
        pd.DataFrame({name: snapshot[key] for key, name in columns.items()}).assign(step=snapshot["step"])
        for snapshot in snapshots
    ]
    table = pd.concat(frames).rename_axis("block").reset_index()
    return table[["step", "block", *columns.values()]]


def births(table: pd.DataFrame) -> pd.DataFrame:
    """List blocks of `sink` that end with massive rows, those whose R²_lin rests on them most first: table `births`."""
    last = table[table["step"] == table["step"].max()]
    without = table[table["massive_rows"] == 0].groupby("block")["step"].max()
    after = {}
    for block in last["block"]:
        later = table["step"] > without.get(block, -1)
        after[block] = table.loc[later, "step"].min()
    found = last[last["massive_rows"] > 0].assign(born=lambda rows: rows["block"].map(after))
    order = (found["r2_ordinary"] - found["r2"]).sort_values().index
    return found.loc[order, ["block", "born", "r2", "r2_ordinary"]].reset_index(drop=True)
