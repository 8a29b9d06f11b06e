"""What notebook 08 found: who makes a profile of R²_lin, architecture, weights, their inputs, the text or chance."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from howlinear.answers import words

EFFECTS = {"inputs": "inputs", "weights": "weights", "inputs × weights": "how the two fit together"}
"""Effects of the two-way analysis of variance, as the results call them → in words."""

TWINS = {"family": "architectures", "text": "training texts"}
"""What twins differ in, as the results call it → in words."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    outside = {}
    for name, count in results["outside_fresh"].items():
        outside[name] = f"{count} of {len(results['own'][name])} blocks"
    answer = [
        f"Training moves R²_lin beyond that of every model with random weights in {words.per_model(outside, 'of')}."
    ]
    if "two_way" in results:
        answer.append(_effects(results["two_way"]))
    if "beside_seeds" in results:
        answer.append(_twins(results["beside_seeds"]))
    return answer


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    return [
        f"On the mean over blocks, R²_lin goes from {words.per_model(_means(results, 'permuted'))}.",
        f"On the mean over blocks, it goes from {words.per_model(_means(results, 'normal'))}.",
        _order(results["beside_seeds"]) if "beside_seeds" in results else "This run profile leaves the twins out.",
    ]


def _effects(shares: Mapping[str, Mapping[str, Any]]) -> str:
    """How an analysis of variance shares out what moves when weights and inputs are exchanged."""
    ordered = sorted(shares, key=lambda effect: -shares[effect]["share"])
    clauses = []
    for effect in ordered:
        found = shares[effect]
        share = words.estimate(100 * found["share"], 100 * found["low"], 100 * found["high"], 0)
        clauses.append(f"{share} % to {EFFECTS.get(effect, effect)}")
    return (
        "When one model's blocks read another model's inputs, the part of R²_lin that moves goes, by an analysis of "
        f"variance, {words.joined(clauses)}."
    )


def _twins(found: Mapping[str, Any]) -> str:
    """How far twins of two architectures, or texts, lie apart, beside those of two seeds."""
    clauses = []
    for effect, name in TWINS.items():
        ratio = found[effect]["ratio"]
        times = words.estimate(ratio["value"], ratio["low"], ratio["high"], 1)
        unsure = "" if ratio["low"] > 1 else ", which may be the seed alone"
        clauses.append(f"twins of two {name} {times} times{unsure}")
    return (
        "Among small twins, trained here to differ in one thing only, profiles lie further apart than those of two "
        f"seeds: {words.joined(clauses)} as far."
    )


def _means(results: Mapping[str, Any], control: str) -> dict[str, str]:
    """Model → the mean over blocks of its own R²_lin, and of the control's."""
    means = {}
    for name, own in results["own"].items():
        means[name] = f"{words.number(mean(own))} to {words.number(mean(results[control][name]))}"
    return means


def _order(found: Mapping[str, Any]) -> str:
    """Which change of a twin moves its profile most; the seed is the unit."""
    ratios = {"another seed": 1.0}
    for effect, name in TWINS.items():
        ratios[f"another {name.removesuffix('s').removeprefix('training ')}"] = found[effect]["ratio"]["value"]
    ordered = sorted(ratios, key=lambda change: -ratios[change])
    said = [f"{change} ({words.number(ratios[change], 1)})" for change in ordered]
    said_order = f"From most to least, with the seed as the unit: {', '.join(said)}."
    overlap = found["family"]["ratio"]["low"] <= found["text"]["ratio"]["high"]
    overlap &= found["text"]["ratio"]["low"] <= found["family"]["ratio"]["high"]
    return f"{said_order} The intervals of the first two overlap." if overlap else said_order
