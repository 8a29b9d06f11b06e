"""What notebook 07 found: how far a trained linear layer falls short of the exact line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howlinear.answers import words

WAYS = {"GD": "plain gradient descent", "momentum": "momentum", "Adam": "Adam"}
"""How a layer is trained, as the results call it → in words."""

RATES = {"GD": "at the rate 1/λ₁, as its formula foretells", "momentum": "at a tuned rate", "Adam": "at a tuned rate"}
"""At which rate, as the results call the way → in words."""

SELDOM = 0.2
"""A smaller share than this of steps from block to block that are turned round is few; our choice."""


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
        f"After {results['steps']} steps on raw inputs a linear layer falls short of the exact R²_lin by at most "
        f"{words.joined(shortfalls)}.",
        f"Of {compared} blocks, what the layer comes to lies outside the interval of the exact number in "
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


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    return [
        (
            "The problem is convex and has one minimum. Why do optimisers end apart after as many steps?",
            _not_yet_learned(results),
        ),
        ("What does whitening the inputs do for SGD?", _whitened(results)),
        ("Would trained layers have told another order of neighbouring blocks?", _turned(results)),
        (
            "Is the shortfall of gradient descent largest where the condition number is largest?",
            _by_condition(results["models"]),
        ),
        (
            "A linear layer, trained with an untuned rate, reports a low R². Is the block bent?",
            _untuned(results["planted"]),
        ),
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
        clauses.append(f"{words.number(largest, 3)} by {name} {RATES[way]} ({worst[largest]})")
    return clauses


def _most(model: Mapping[str, Any], values: list[float]) -> int:
    """The block that has the largest value."""
    return model["block"][values.index(max(values))]


def _not_yet_learned(results: Mapping[str, Any]) -> str:
    """The directions that gradient descent has not learned, in the block of the race."""
    studied = results["studied"]
    model = results["models"][studied["model"]]
    at = model["block"].index(studied["block"])
    return (
        "Because they walk, and the quiet directions of the inputs take longest. In block "
        f"{studied['block']} of {studied['model']} plain gradient descent is foretold to have learned less than half "
        f"along {model['asleep'][at]:.0f} directions after {results['steps']} steps, and through these the map "
        f"explains {words.percent(model['asleep share'][at])} of the outputs' variance."
    )


def _whitened(results: Mapping[str, Any]) -> str:
    """Where SGD ends on raw inputs, and where on whitened ones."""
    raw, whitened = (results["race"][f"SGD, {scaling}"] for scaling in ("raw", "whitened"))
    exact = words.number(results["studied"]["exact"], 3)
    change = f"from {words.number(raw, 3)} to {words.number(whitened, 3)}, where the exact line has {exact}"
    if whitened > raw:
        return f"It makes all directions equally loud, so that one rate suits them all: R² rises {change}."
    return f"It makes all directions equally loud, but in this run that does not help: R² goes {change}."


def _turned(results: Mapping[str, Any]) -> str:
    """How many steps from one block to the next change their sign."""
    steps = sum(len(model["block"]) - 1 for model in results["models"].values())
    turned = {way: sum(model[way]["flipped"] for model in results["verdicts"].values()) for way in WAYS}
    most = max(turned.values())
    answer = "No" if most == 0 else "Hardly" if most < SELDOM * steps else "Yes"
    counts = [f"{count:.0f} by {WAYS[way]}" for way, count in turned.items()]
    return f"{answer}: of {steps} steps from one block to the next, {words.joined(counts)} change their sign."


def _by_condition(models: Mapping[str, Any]) -> str:
    """The block of largest condition number, and that of largest shortfall."""
    blocks = []
    for name, model in models.items():
        columns = (model["block"], model["condition"], model["exact"], model["GD"])
        for block, condition, exact, trained in zip(*columns, strict=True):
            blocks.append({"place": f"block {block} of {name}", "condition": condition, "gap": exact - trained})
    uneven = max(blocks, key=lambda block: block["condition"])
    worst = max(blocks, key=lambda block: block["gap"])
    condition, gap = words.significant(uneven["condition"], 3), words.number(uneven["gap"], 3)
    needs = "A shortfall also needs something to learn in the quiet directions."
    if uneven is worst:
        return f"Here it is: {uneven['place']} has a condition number of {condition} and a shortfall of {gap}. {needs}"
    at_worst = f"is at {words.significant(worst['condition'], 3)}"
    return (
        f"No: at the largest condition number, {condition} in {uneven['place']}, it is {gap}; the largest shortfall, "
        f"{words.number(worst['gap'], 3)} in {worst['place']}, {at_worst}. {needs}"
    )


def _untuned(planted: Mapping[str, Mapping[str, words.Number]]) -> str:
    """What untuned layers report of a planted problem whose answer is known."""
    exact = max(found["exact"] for found in planted.values())
    reported = [f"{words.number(found['r2'])} ({way})" for way, found in planted.items()]
    misled = min(found["r2"] for found in planted.values()) < exact / 2
    answer = "That does not follow" if misled else "It may well be"
    return (
        f"{answer}: of a planted problem of which the exact line explains {words.number(exact)}, such layers report "
        f"{words.joined(reported)}."
    )
