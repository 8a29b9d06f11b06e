"""What notebook 07 found: how far a trained linear layer falls short of the exact line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howlinear.answers import words

WAYS = {"GD": "plain gradient descent", "momentum": "momentum", "Adam": "Adam"}
"""How a layer is trained, as the results call it → in words."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    shortfalls = _worst(results["models"])
    compared = sum(len(model["exact"]) for model in results["models"].values())
    outside = []
    for way, name in WAYS.items():
        count = sum(model[way]["outside"] for model in results["verdicts"].values())
        outside.append(f"{int(count)} by {name}")
    correlations = results["spearman_condition"]
    forecast = {name: f"ρ = {words.number(correlations[way], signed=True)}" for way, name in WAYS.items()}
    return [
        f"A linear layer trained for {results['steps']} steps, on raw inputs at a tuned rate, falls short of "
        f"the exact R²_lin by at most {words.joined(shortfalls)}.",
        f"Of {compared} blocks, the trained number lies outside the interval of the exact one in "
        f"{words.joined(outside)}.",
        "The rank correlation of the shortfall with the condition number of a block's inputs is "
        f"{words.per_model(forecast, 'for')}.",
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    studied = results["studied"]
    race = results["race"]
    raw = {way.removesuffix(", raw"): r2 for way, r2 in race.items() if way.endswith(", raw")}
    best = max(raw, key=raw.get)
    last = min(raw, key=raw.get)
    scaled = [
        f"{words.number(race[f'{last}, {scaling}'], 3)} on {scaling} inputs" for scaling in ("standardised", "whitened")
    ]
    condition, short = [], []
    for model in results["models"].values():
        condition.append(_most(model, model["condition"]))
        short.append(_most(model, [exact - r2 for exact, r2 in zip(model["exact"], model["GD"], strict=True)]))
    same = sum(a == b for a, b in zip(condition, short, strict=True))
    return [
        f"In block {studied['block']} of {studied['model']}, whose exact R²_lin is "
        f"{words.number(studied['exact'], 3)}, {best} comes first with {words.number(raw[best], 3)} on raw inputs and "
        f"{last} last with {words.number(raw[last], 3)}.",
        f"{last} then reaches {words.joined(scaled)}, of {words.number(studied['exact'], 3)}.",
        "By plain gradient descent it is most wrong in the block of the most uneven inputs in "
        f"{same} of {len(short)} models.",
    ]


def _worst(models: Mapping[str, Any]) -> list[str]:
    """Per way of training, the largest shortfall and where it is."""
    clauses = []
    for way, name in WAYS.items():
        worst = {}
        for model, numbers in models.items():
            gaps = [exact - r2 for exact, r2 in zip(numbers["exact"], numbers[way], strict=True)]
            worst[max(gaps)] = f"block {numbers['block'][gaps.index(max(gaps))]} of {model}"
        largest = max(worst)
        clauses.append(f"{words.number(largest, 3)} by {name} ({worst[largest]})")
    return clauses


def _most(model: Mapping[str, Any], values: list[float]) -> int:
    """The block that has the largest value."""
    return model["block"][values.index(max(values))]
