"""Notebook 01: the inputs of every block, and which rows each model read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables by name."""
    order = ["model", "block", "width", "rank", "null", "second", "condition", "effective_rank", "dynamic_range"]
    inputs = pd.DataFrame(results["inputs"])[[*order, "first_position_in", "first_position_out"]]
    return {"inputs": inputs, "rows": pd.DataFrame(results["sha256"].items(), columns=["model", "rows_sha256"])}
