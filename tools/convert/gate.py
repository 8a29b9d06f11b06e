"""Notebook 15: from a record a model to tables of blocks, costs, means, gates at once, curves and the planted block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from howlinear.ideas.gate.measure import COLUMNS
from howlinear.notebook import settings

KINDS = {
    "lots": "random",
    "lots, as many": "random, as many",
    "gate − lots": "gate − random",
}
CASES = {"told": "plane", "untold": "random"}
TOLD = {"told": "score_r2", "told_low": "score_r2_low", "told_high": "score_r2_high"}


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 15, models in the order of the run profile; those without a loss are in none."""
    known = results["models"]
    models = {name: known[name] for name in settings.read(results["profile"]).models_by_name if "costs" in known[name]}
    rows = {
        "blocks": _rows(models, "blocks"),
        "costs": _rows(models, "costs"),
        "means": _means(models),
        "together": ({"model": name} | model["together"] for name, model in models.items()),
        "curves": _rows(models, "curves"),
    }
    tables = {}
    for name, of_models in rows.items():
        table = pd.DataFrame(of_models).rename(columns=TOLD)
        tables[name] = _plain(table)[["model", *COLUMNS[name].split()]]
    planted = pd.DataFrame(results["planted"]).rename(columns=TOLD)
    planted = planted.assign(case=planted["case"].map(CASES), model=results["settings"]["planted"]["model"])
    tables["planted"] = _plain(planted)[["model", "case", *COLUMNS["costs"].split(), "right", "score_r2", "limit"]]
    return tables


def _rows(models: Mapping[str, Any], key: str) -> Iterator[dict]:
    for name, model in models.items():
        for row in model[key]:
            yield {"model": name} | row


def _means(models: Mapping[str, Any]) -> Iterator[dict]:
    """Kinds in the order in which a notebook measures them."""
    order = ["gate", "oracle", "lots", "lots, as many", "all", "gate − lots", "oracle − gate"]
    for name, model in models.items():
        for blocks, of_blocks in {"all": model["mean"], "dear": model["dear"]}.items():
            for kind in order:
                if kind in of_blocks:
                    yield {"model": name, "blocks": blocks, "kind": kind} | of_blocks[kind]


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(kind=table["kind"].replace(KINDS)) if "kind" in table else table


def to_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's own settings."""
    own = results["settings"]
    return {key: own[key] for key in ("limit", "beside", "published_low", "published_high", "choose_rows", "cost_rows")}
