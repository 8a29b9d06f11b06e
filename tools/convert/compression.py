"""Notebook 06: signals and costs of blocks in one table, intervals by their ends, every table with its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from howlinear.ideas.compression.measure import stack, worth

SIGNALS = {
    "residual": "residual",
    "residual_over_stream": "residual / stream",
    "price": "price",
    "price_paired": "price, paired",
    "block_influence": "block influence",
    "sublayer_cosine": "sub-layer cosine",
    "cca_bound": "CCA bound",
    "replace_one": "replace one",
}
LAYERS = {
    "line": "swapped",
    "line, healed": "line",
    "original, healed": "original",
    "line less original, both healed": "behind",
}


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of `ideas.compression.measure`, from what the notebook recorded per model."""
    models = {name: model for name, model in results["models"].items() if "blocks" in model}
    blocks = stack("blocks", {name: _blocks(model) for name, model in models.items()})
    massive = {name: pd.DataFrame(model["massive"]).rename(columns={"own": "r2_own"}) for name, model in models.items()}
    together = results["together"]
    sums = {
        name: {"naive": together["together, naive"][name], "summed": together["sum of single costs"][name]}
        for name in models
    }
    return {
        "blocks": blocks,
        "worth": worth(blocks),
        "massive": stack("massive", massive),
        "agreements": _agreements(results["agreements"]),
        "reduced_rank": stack("reduced_rank", {name: _costs(model["reduced_rank"]) for name, model in models.items()}),
        "frontier": stack("frontier", {name: _frontier(model) for name, model in models.items()}),
        "together": stack("together", {name: pd.DataFrame([row]) for name, row in sums.items()}),
        "healing": stack("healing", {name: _healing(model["healing"]) for name, model in models.items()}),
    }


def to_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's own settings, by their names of today."""
    settings = dict(results["settings"])
    return settings | {"trial_sequences": settings.pop("judges")}


def _costs(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).rename(columns={"low": "delta_low", "high": "delta_high"})


def _blocks(model: Mapping[str, Any]) -> pd.DataFrame:
    table = _costs(model["blocks"])
    signals = pd.DataFrame(model["signals"])
    table["r2"] = 1 - signals["1 − R²"]  # which has as many digits, and begins further behind the point
    for column, signal in SIGNALS.items():
        table[column] = signals[signal]
    # a jackknife's interval reaches as far below its number as above
    table["recovered"] = table["recovered"].astype(float)
    table["recovered_low"] = table["recovered"] - table["width"].astype(float) / 2
    table["recovered_high"] = table["recovered"] + table["width"].astype(float) / 2
    return table


def _agreements(agreements: Mapping[str, Any]) -> pd.DataFrame:
    rows = []
    for kind, signals in agreements.items():
        for signal, found in signals.items():
            ends = {"rho": found["rho"], "rho_low": found["low"], "rho_high": found["high"]}
            rows.append({"costs": kind, "signal": signal} | ends)
    return pd.DataFrame(rows)


def _frontier(model: Mapping[str, Any]) -> pd.DataFrame:
    """Which block the greedy search took was not recorded; the orders of price and of R² tell theirs."""
    table = _costs(model["frontier"])
    by_price = [row["block"] for row in sorted(model["signals"], key=lambda row: row["price"])]
    by_r2 = [row["block"] for row in sorted(model["signals"], key=lambda row: row["1 − R²"])]
    orders = {"order of price": by_price, "order of R²": by_r2}
    table["block"] = [
        orders[way][count - 1] if way in orders else np.nan
        for way, count in table[["way", "count"]].itertuples(index=False, name=None)
    ]
    return table


def _healing(healing: Mapping[str, Any]) -> pd.DataFrame:
    rows = []
    for layer, name in LAYERS.items():
        delta = healing[name]
        row = {"block": healing["block"], "layer": layer}
        rows.append(row | {"delta": delta["value"], "delta_low": delta["low"], "delta_high": delta["high"]})
    return pd.DataFrame(rows)
