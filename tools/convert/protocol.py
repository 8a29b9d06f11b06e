"""Notebook 11: from records of its own to tables of agreement, effects, flips, verdicts, orders and curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

VERDICTS = {"✓": "holds", "✗": "fails", "~": "open"}
CURVES = {
    "in_sample": "r2_train",
    "held_out": "r2",
    "limit": "r2_limit",
    "low": "r2_limit_low",
    "high": "r2_limit_high",
}
TABLES = {
    "protocols": "protocol denominator split rows seq_len position_0 loud null",
    "curves": "model split block factor rows r2_train r2 r2_limit r2_limit_low r2_limit_high",
    "agreement": "split blocks limit_agrees value_agrees raw_error limit_error",
    "effects": "choice level mean largest",
    "statements": "statement asks threshold above",
    "flips": "model statement smallest largest share flips alone",
    "verdicts": "model statement protocol value value_low value_high verdict",
    "orders": "order share",
    "lowest_blocks": "model block share",
}
"""Table → its columns."""


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 11."""
    verdicts = pd.DataFrame(results["side_by_side"]).rename(columns={"low": "value_low", "high": "value_high"})
    tables = {
        "protocols": _named(results["protocols"], "protocol", ["paper", "ours"]),
        "curves": pd.DataFrame(results["curves"]).rename(columns=CURVES),
        "agreement": pd.DataFrame(results["agreement"]),
        "effects": pd.DataFrame(results["effects"]),
        "statements": _named(results["statements"], "statement", ["spread", "both ways", "neighbours", "lowest"]),
        "flips": pd.DataFrame(results["flips"]).rename(columns={"low": "smallest", "high": "largest"}),
        "verdicts": verdicts.assign(verdict=verdicts["verdict"].map(VERDICTS)),
        "orders": pd.DataFrame(results["orders"].items(), columns=["order", "share"]),
        "lowest_blocks": pd.DataFrame(results["lowest_blocks"]),
    }
    return {name: table[TABLES[name].split()] for name, table in tables.items()}


def _named(records: Mapping[str, Any], key: str, names: list[str]) -> pd.DataFrame:
    return pd.DataFrame([{key: name} | records[name] for name in names])


def to_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's own settings."""
    return results["settings"] | {"universes": results["universes"]}
