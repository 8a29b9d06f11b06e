"""What notebook 12 has on record, as tables."""

from __future__ import annotations

from typing import Any

import pandas as pd

from howlinear.ideas.sinks.predictions import FALL
from howlinear.notebook import settings

NAMES = {
    "median": "median_r2",
    "median_ordinary": "median_r2_ordinary",
    "loud": "r2_without_loudest",
    "loud_ordinary": "r2_ordinary_without_loudest",
    "low": "delta_low",
    "high": "delta_high",
}
ESTIMATES = ("r2", "r2_ordinary", "nats", "delta")
BLOCKS = """
    rows massive_rows heaviest r2 r2_ordinary of_all fall median_r2 median_r2_ordinary effective_rank
    effective_rank_ordinary rank_one rank_one_ordinary r2_without_loudest r2_ordinary_without_loudest carried_by
"""
COSTS = "massive_rows nats nats_first nats_later perplexity delta"
COLUMNS = {
    "blocks": f"model block {BLOCKS}",
    "massive": "model block share at_first size smallest largest one_direction",
    "tokens": "model block place rank token count share",
    "flow": "model block writer cosine same_rows role",
    "cosines": "model block other cosine",
    "rules": "model block rule left_out at_first r2 effective_rank",
    "costs": f"model block kind {COSTS}",
    "planted": f"case block {BLOCKS}",
    "planted_costs": f"block kind {COSTS}",
    "predictions": "model block falls fell",
}
"""Table → its columns, without the ends of intervals."""


def to_tables(results: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Table name → table, as notebook 12 records it."""
    models = [settings.short(source) for source in settings.read(results["profile"]).models]
    tables = {}
    for name in ("blocks", "massive", "tokens", "flow", "cosines", "rules", "costs"):
        tables[name] = pd.DataFrame(
            [{"model": model} | row for model in models for row in results["models"][model][name]]
        )
    if len(tables["tokens"]):
        tables["tokens"]["rank"] = tables["tokens"].groupby(["model", "block", "place"]).cumcount() + 1
    tables["planted"] = pd.DataFrame(results["planted"]).rename(columns={"model": "case"})
    tables["planted_costs"] = pd.DataFrame(results["planted_costs"])
    tables["predictions"] = pd.DataFrame(results["predictions"])
    return {name: table.rename(columns=NAMES).reindex(columns=_columns(name)) for name, table in tables.items()}


def _columns(name: str) -> list[str]:
    columns = []
    for column in COLUMNS[name].split():
        has_ends = column in ESTIMATES and name != "rules"
        columns += [column, f"{column}_low", f"{column}_high"] if has_ends else [column]
    return columns


def to_settings(results: dict[str, Any]) -> dict[str, Any]:
    """The notebook's own settings."""
    return results["settings"] | {"deciding_fall": FALL}
