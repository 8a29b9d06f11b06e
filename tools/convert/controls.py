"""Notebook 08: from profiles by control, model and twin to tables of controls, random models, transplants and twins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pandas as pd

from howlinear.ideas.controls.measure import CONTROLS, FACTORS
from howlinear.notebook import settings

FLOORS = ["rows", *(f"{kind}{side}" for kind in ("", "shuffled_", "expected_") for side in ("in_sample", "held_out"))]
DESIGNS = {"two_way": "two-way", "three_way": "three-way"}


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 08, models in the order of the run profile."""
    models = list(settings.read(results["profile"]).models_by_name)
    gap, priced_gap = results["closed"]
    counts = {"outside": results["outside_fresh"], "random_rows": results["fresh_rows"]}
    found = {
        "controls": pd.DataFrame(_controls(results, models)),
        "random": pd.DataFrame(_random(results, models)),
        "by_model": pd.DataFrame({"model": models} | {name: [of[m] for m in models] for name, of in counts.items()}),
        "closed_form": pd.DataFrame({"gap": [gap], "priced_gap": [priced_gap]}),
        "floors": pd.DataFrame(results["floors"])[FLOORS],
        "support": _support(results, models),
        "pairs": pd.DataFrame(_pairs(results, models), columns=["block", "inputs", "weights", "r2"]),
        "effects": pd.DataFrame(_effects(results), columns=["design", "effect", *_ends("share"), "freedom", "size"]),
        "nearness": pd.DataFrame(_nearness(results), columns=["curve", "gap"]),
    }
    if "twins" in results:
        found["twins"] = pd.concat(_twins(results), ignore_index=True)
        gaps = results["twin_gaps"]
        texts = [text for text in ("docs", "code") if text in gaps]
        rows = [(text, factor, gaps[text][factor]) for text in texts for factor in FACTORS]
        found["twin_gaps"] = pd.DataFrame(rows, columns=["measured_on", "factor", "gap"])
        found["beside_seeds"] = pd.DataFrame(_beside_seeds(results))
    return found


def _ends(name: str) -> list[str]:
    return [name, f"{name}_low", f"{name}_high"]


def _controls(results: Mapping[str, Any], models: list[str]) -> Iterator[dict]:
    for model in models:
        for block in range(len(results["own"][model])):
            for control in CONTROLS[:-1]:  # `fresh` was drawn and not recorded: its key held whole models at random
                row = {"model": model, "block": block, "control": control, "r2": results[control][model][block]}
                own = control == "own"  # on record, no other control has an interval
                row["r2_low"] = results["own_low"][model][block] if own else None
                row["r2_high"] = results["own_high"][model][block] if own else None
                yield row


def _random(results: Mapping[str, Any], models: list[str]) -> Iterator[dict]:
    for model in models:
        for seed, r2 in enumerate(results["fresh"][model]):
            in_sample = results["fresh_in_sample"][model][seed]
            for block, both in enumerate(zip(r2, in_sample, strict=True)):
                yield {"model": model, "seed": seed, "block": block, "r2": both[0], "r2_in_sample": both[1]}


def _support(results: Mapping[str, Any], models: list[str]) -> pd.DataFrame:
    keys = [(model, block) for model in models for block in range(len(results["own"][model]))]
    inputs = {name: results["inputs"][name] for name in ("support_in", "support_out")}
    return pd.DataFrame(keys, columns=["model", "block"]).assign(**inputs)


def _pairs(results: Mapping[str, Any], models: list[str]) -> Iterator[tuple]:
    for block, by_inputs in enumerate(results.get("pairs", ())):
        for inputs, by_weights in zip(models, by_inputs, strict=True):
            for weights, r2 in zip(models, by_weights, strict=True):
                yield block, inputs, weights, r2


def _effects(results: Mapping[str, Any]) -> Iterator[dict]:
    for key, design in DESIGNS.items():
        found = results.get(key, {})
        for effect in sorted(found, key=lambda effect: (effect.count("×"), effect)):
            of = found[effect]
            share = dict(zip(_ends("share"), (of["share"], of["low"], of["high"]), strict=True))
            yield {"design": design, "effect": effect} | share | {"freedom": of["freedom"], "size": of["size"]}


def _nearness(results: Mapping[str, Any]) -> Iterator[tuple]:
    for curve in ("weights' owner", "inputs' owner", "normal", "turned"):
        if curve in results["nearness"]:
            yield curve, results["nearness"][curve]


def _twins(results: Mapping[str, Any]) -> Iterator[pd.DataFrame]:
    families = results["beside_seeds"]["families"]
    for family, text, seed in product(families, ("docs", "code"), (0, 1)):
        name = f"{family}-{text}-{seed}"
        for measured_on, profile in results["twins"][name].items():
            keys = {"family": family, "text": text, "seed": seed, "measured_on": measured_on}
            keys["block"] = range(len(profile["r2"]))
            yield pd.DataFrame(keys | {column: profile[column] for column in _ends("r2")})


def _beside_seeds(results: Mapping[str, Any]) -> Iterator[dict]:
    by_view = results["beside_seeds"]["by_view"]
    views = {("all", "as measured"): by_view["as measured"]}
    for text in results["beside_seeds"]["texts"]:
        for view in ("as measured", "shape only"):
            views[text, view] = by_view[f"{text}, {view}"]
    for (measured_on, view), effects in views.items():
        for effect in ("family", "text"):
            of = effects[effect]
            row = {"measured_on": measured_on, "view": view, "effect": effect, "f": of["f"]}
            row |= {"freedom": of["freedom"], "error_freedom": of["error_freedom"], "independent_blocks": of["blocks"]}
            row |= dict(zip(_ends("share"), (of["share"], of["low"], of["high"]), strict=True))
            yield row | {name: of[name] for name in _ends("ratio")}
