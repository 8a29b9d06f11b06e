"""Notebook 00: the blocks by hand, the hasty line, three checks, and what the pictures show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

OTHER = {"left": "right", "right": "left"}


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables by name."""
    model = {"model": results["model"]}
    checks = {key: results[key] for key in ("rows_to_fit", "planted", "nonsense", "rank")}
    home, away = results["parabola"]["at_home"], results["parabola"]["away"]
    flanks = [
        {"fitted": side, "scored": scored, "r2": r2}
        for side in home
        for scored, r2 in ((side, home[side]), (OTHER[side], away[side]))
    ]
    checks = model | {"rows_to_fit": checks.pop("rows_to_fit"), "agrees": results["agrees_to_three_digits"]} | checks
    return {
        "blocks": pd.DataFrame([model | block for block in results["blocks"]]),
        "hasty": pd.DataFrame([model | results["hasty"]])[["model", "block", "rows", "r2", "r2_in_sample"]],
        "checks": pd.DataFrame([checks]),
        "drawn": pd.DataFrame(results["drawn"].items(), columns=["panel", "r2"]),
        "parabola": pd.DataFrame(flanks),
        "neurons": pd.DataFrame(results["toys"])[["bend", "width", "middle", "r2"]],
    }
