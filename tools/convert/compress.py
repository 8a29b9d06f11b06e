"""Notebook 14: what was a nest of models and kinds of rows becomes five tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

NAMES = {"low": "ratio_low", "high": "ratio_high", "text": "corpus", "perplexity": "perplexity_after"}


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables by name, from the JSON."""
    raced = {name: model for name, model in results["models"].items() if "race" in model}

    def rows(kind: str) -> pd.DataFrame:
        parts = [pd.DataFrame(model[kind]).assign(model=name) for name, model in raced.items()]
        table = pd.concat(parts, ignore_index=True).rename(columns=NAMES)
        return table[["model", *(column for column in table if column != "model")]]

    race, healing = rows("race"), rows("healing")
    texts = race[["model", "corpus", "before"]].dropna().drop_duplicates(["model", "corpus"])
    smallest = healing["model"].map({name: min(row["share"] for row in model["race"]) for name, model in raced.items()})
    healing = healing.rename(columns={"name": "method"}).assign(share=smallest.where(healing["name"] != "whole", 1.0))
    return {
        "race": _ordered(race.drop(columns="before")),
        "texts": texts.rename(columns={"before": "perplexity"}),
        "exchanges": _ordered(rows("exchanges").drop(columns="before")),
        "limit": _ordered(rows("limit")),
        "healing": _ordered(healing),
    }


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Keys first, and the ends of an interval behind their number."""
    keys = [name for name in ("model", "corpus", "method", "share", "what") if name in table]
    others = ("kept", "perplexity_after", "ratio", "delta", "over_first", "healed", "behind")
    columns = [f"{name}{end}" for name in others for end in ("", "_low", "_high")]
    return table[[*keys, *(name for name in columns if name in table), *(["why"] if "why" in table else [])]]


def to_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's own settings, and which models have no part in the race."""
    without = [name for name, model in results["models"].items() if "race" not in model]
    return results["settings"] | {"without": dict.fromkeys(without, "it predicts no next token")}
