"""Notebook 09: from numbers by run to tables of runs, passages, orders, votes and the live training.

What lies in the recordings beside the models and was drawn only, such as the measured steps on either side of a
passage, is computed again from these; of the live training the ends of its intervals are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from howlinear.files import paths
from howlinear.ideas.dynamics import measure
from howlinear.ideas.dynamics.trajectory import Trajectory, films
from howlinear.training.loop import log_spaced
from howlinear.training.minis import FACTORY
from howlinear.training.twins import load_twins


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 09, runs in the order in which it reads them."""
    share, patience = results["settings"]["share"], results["settings"]["patience"]
    recordings = films(paths.MODELS / name for name in FACTORY)
    recordings |= {twin.name: Trajectory.of(twin.name, found["steps"]) for twin, found in load_twins().items()}

    passages = measure.passages(recordings, share, patience)
    runs = measure.runs(recordings, passages, share, patience).set_index("run")
    for event in measure.EVENTS:
        passages[event] = [results[event][row.run][row.block] for row in passages.itertuples()]
    for run, found in results["summary"].items():
        counts = {name: int(found[name]) for name in ("up", "below", "peak_step")}
        for name, number in (found | counts | {"lag": results["typical"][run]}).items():
            runs.loc[run, name] = number
    live = results["live"]
    steps = log_spaced(results["settings"]["live"]["steps"])
    return {
        "passages": passages,
        "runs": runs.reset_index(),
        "unigram": pd.DataFrame({"loss": [results["unigram"]]}),
        "live": pd.DataFrame({"step": steps, "loss": live["loss"], "rank": live["rank"]}),
        "live_blocks": pd.DataFrame(
            {"step": step, "block": block, "r2": r2, "r2_low": None, "r2_high": None}
            for step, profile in zip(steps, live["r2"], strict=True)
            for block, r2 in enumerate(profile)
        ),
        "orders": pd.DataFrame(_orders(results)),
        "votes": pd.DataFrame(_votes(results)),
    }


def _orders(results: Mapping[str, Any]) -> Iterator[dict]:
    for event in measure.EVENTS:
        for group in ("recorded", "twins"):
            rho, p = results["alike"][f"{event}, {group}"]
            yield {"event": event, "group": group, "rho": rho, "p": p}


def _votes(results: Mapping[str, Any]) -> Iterator[dict]:
    for cut in ("whole run", "first half", "from the peak"):
        for share, vote in results["votes"][cut].items():
            row = {"cut": cut, "share": float(share), "below": int(vote["below"]), "above": int(vote["above"])}
            yield row | {"p": vote["p"], "lag": vote["mean"], "lag_low": vote["low"], "lag_high": vote["high"]}
