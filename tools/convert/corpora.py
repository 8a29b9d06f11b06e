"""Notebook 05: from a nested record a model to tables of profiles, transfers, likenesses, agreements and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from howlinear.notebook import settings

ENDS = {"value": "", "low": "_low", "high": "_high"}


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 05, models and texts in the order of the run profile."""
    models = {name: results["models"][name] for name in settings.read(results["profile"]).models_by_name}
    corpora = results["corpora"]
    ordered = [f"{one} → {other}" for one in corpora for other in corpora if one != other]
    unordered = [f"{one} ~ {other}" for place, one in enumerate(corpora) for other in corpora[place + 1 :]]
    return {
        "profiles": pd.DataFrame(_curves(models, "profile", "r2", ["corpus"], corpora)),
        "transfer": pd.DataFrame(_curves(models, "drop", "drop", ["fitted", "scored"], ordered)),
        "likeness": pd.DataFrame(_curves(models, "likeness", "likeness", ["corpus", "other"], unordered)),
        "agreement": pd.DataFrame(_agreements(models, unordered)),
        "by_model": pd.DataFrame(
            {
                "model": name,
                "by_block": model["by_block"],
                "bend": model["carried"]["with bend"],
                "noise": model["carried"]["noise alone"],
            }
            for name, model in models.items()
        ),
        "drops_by_training": pd.DataFrame(
            {"model": name, "fitted": kind.split(" → ")[0], "scored": kind.split(" → ")[1], "drop": drop}
            for name, model in models.items()
            for kind, drop in model["mean_drop"].items()
        ),
        "costs": _costs(models, corpora),
    }


def _curves(models: Mapping[str, Any], key: str, name: str, keys: list[str], names: list[str]) -> Iterator[dict]:
    for model, of_model in models.items():
        for pair in names:
            curve = of_model[key][pair]
            texts = dict(zip(keys, pair.replace("~", "→").split(" → "), strict=True))
            for place, block in enumerate(of_model["blocks"]):
                numbers = {name + end: curve[part][place] for part, end in ENDS.items()}
                yield {"model": model} | texts | {"block": block} | numbers


def _agreements(models: Mapping[str, Any], pairs: list[str]) -> Iterator[dict]:
    for model, of_model in models.items():
        for pair in pairs:
            found = of_model["agreement"][pair]
            row = dict(zip(("model", "corpus", "other"), (model, *pair.split(" ~ ")), strict=True))
            row["rho"] = found["rho"]
            row |= {name + end: found[name + end] for name in ("r", "inner", "gap") for end in ENDS.values()}
            yield row | {"gap_block": found["at"], "differ": int(found["differ"])}


def _costs(models: Mapping[str, Any], corpora: list[str]) -> pd.DataFrame:
    rows = {}
    for model, of_model in models.items():
        for cost in sorted(of_model["costs"], key=lambda row: (corpora.index(row["corpus"]), row["block"])):
            name = {"bilinear": "gain"}.get(cost["kind"], cost["kind"])
            row = rows.setdefault((model, cost["corpus"], cost["block"]), {})
            row |= {name: cost["delta"], f"{name}_low": cost["low"], f"{name}_high": cost["high"]}
    keys = pd.DataFrame(rows.keys(), columns=["model", "corpus", "block"])
    columns = [name + end for name in ("own", "extra", "gain") for end in ENDS.values()]
    return pd.concat([keys, pd.DataFrame(list(rows.values()), columns=columns)], axis=1)
