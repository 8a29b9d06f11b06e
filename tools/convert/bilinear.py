"""Notebook 03: from a nested record a model to tables of blocks, correlations, teachers, gates, recipes and layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from howlinear.notebook import settings

VIEWS = {"gain": "gain", "recovered": "recovered", "gain_ordinary": "gain of ordinary rows"}
TEACHERS = ["planted", "hidden", "cubic", "shuffled"]
ENDS = {"low": "gain_low", "high": "gain_high"}
COSTS = {
    f"{old}{end}": f"{new}{end}"
    for old, new in (("linear", "dppl"), ("poly", "dppl_poly"))
    for end in ("", "_low", "_high")
}


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 03, models in the order of the run profile."""
    names = list(settings.read(results["profile"]).models_by_name)
    models = {name: results["models"][name] for name in names}
    gates = _stacked({name: results["gate"][name] for name in names})
    rates = [{"rate": float(rate), **found} for rate, found in results["gate_order"].items()]
    return {
        "blocks": _blocks({name: model["blocks"] for name, model in models.items()}),
        "ordinary": _ordinary({name: rows for name in names if (rows := results["massive"].get(name))}),
        "correlations": pd.DataFrame(_correlations(results["correlation"], names)),
        "power": _stacked({name: results["power"][name] for name in names})[["model", "block", *TEACHERS]],
        "ranks": pd.DataFrame(_ranks(results["ranks"], names)),
        "gates": gates[["model", "block", "rate", "gain", "gate", "share"]].sort_values("rate", kind="stable"),
        "rates": pd.DataFrame(rates).rename(columns={"median gate": "gate", "gain ÷ probe's": "gain_over_probe"})[
            ["rate", "gate", "gain_over_probe"]
        ],
        "recipe": pd.concat([_recipe(name, model["recipe"]) for name, model in models.items()]),
        "controls": pd.DataFrame(_controls(models)),
        "layers": pd.concat([_layers(name, model) for name, model in models.items()]),
    }


def _stacked(models: Mapping[str, list[dict]]) -> pd.DataFrame:
    return pd.DataFrame([{"model": name, **row} for name, rows in models.items() for row in rows])


def _blocks(models: Mapping[str, list[dict]]) -> pd.DataFrame:
    table = _stacked(models).rename(columns={"r2_lin": "r2"} | ENDS)
    return table[["model", "block", "r2", "r2_poly", "gain", "gain_low", "gain_high", "recovered"]]


def _ordinary(models: Mapping[str, list[dict]]) -> pd.DataFrame:
    own = ["massive_rows", "sampled", "held_out", "share"]
    numbers = ["r2", "r2_poly", "gain", "gain_low", "gain_high", "recovered"]
    table = _stacked(models).rename(columns={"r2_lin": "r2", "rows": "massive_rows"} | ENDS)
    return table.reindex(columns=["model", "block", *own, *numbers])


def _correlations(views: Mapping[str, Any], names: list[str]) -> Iterator[dict]:
    for view, of in VIEWS.items():
        for name in names if view in views else ():
            found = views[view][name]
            ends = {"r": found["r"], "r_low": found["low"], "r_high": found["high"], "p": found["p"]}
            rest = {key: found[key] for key in ("inner", "lowest", "highest")}
            yield {"model": name, "of": of} | ends | rest


def _ranks(ranks: Mapping[str, Any], names: list[str]) -> Iterator[dict]:
    for name in names:
        blocks = sorted(ranks[name], key=int)
        for block in blocks:
            for rank in sorted(ranks[name][block], key=int):
                hidden = ranks["hidden"][name][rank] if block == blocks[len(blocks) // 2] else None
                row = {"model": name, "block": int(block), "rank": int(rank)}
                yield row | {"recovered": ranks[name][block][rank], "hidden": hidden}


def _recipe(name: str, recipe: Mapping[str, Any]) -> pd.DataFrame:
    table = pd.DataFrame(recipe).rename(columns={"same_rows": "gain_all", "few": "rows_few", "all": "rows_all"})
    changes = ["selection", "rows", "optimiser", "rows_few", "rows_all"]
    return table.assign(model=name)[["model", "block", "gain", "gain_all", "ours", *changes]]


def _controls(models: Mapping[str, Any]) -> Iterator[dict]:
    for name, model in models.items():
        for kind in ("dense2x", "poly2x"):
            fits = model[kind]
            for i, block in enumerate(fits["blocks"]):
                row = {"model": name, "block": block, "control": kind, "r2": fits["r2"][i]}
                row |= {"r2_low": fits["low"][i], "r2_high": fits["high"][i]}
                yield row | {"conjunction": model["conjunction"][kind][i], "step": fits["step"][i]}


def _layers(name: str, model: Mapping[str, Any]) -> pd.DataFrame:
    measured = pd.DataFrame([block for block in model["blocks"] if "cosine" in block])
    indices = model["conjunction"]
    index = pd.DataFrame({"block": indices["blocks"], "conjunction": indices["linear"]})
    index["conjunction_poly"] = indices["poly"]
    costs = pd.DataFrame(model["dppl"]).rename(columns=COSTS).astype({"block": int})
    table = measured.merge(index, how="left", on="block").merge(costs, how="left", on="block").assign(model=name)
    columns = [f"{measure}{suffix}" for suffix in ("", "_poly") for measure in ("cosine", "rmse", "conjunction")]
    return table[["model", "block", *columns, *COSTS.values()]]
