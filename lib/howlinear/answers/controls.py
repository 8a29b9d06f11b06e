"""What notebook 08 found: who makes a profile of R²_lin, architecture, weights, their inputs, the text or chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from howlinear.answers import words

EFFECTS = {"inputs": "the rows", "weights": "weights", "inputs × weights": "how the two fit together"}
"""Effects of the two-way analysis of variance, as the results call them → in words."""

TWINS = {"family": "architectures", "text": "training texts"}
"""What twins differ in, as the results call it → in words."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    outside = {}
    for name, count in results["outside_fresh"].items():
        outside[name] = f"{count} of {len(results['own'][name])} blocks"
    answer = [
        "Training moves R²_lin beyond all that whole models with freshly drawn weights may have, held out or in "
        f"sample, in {words.per_model(outside, 'of')}."
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


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    return [
        (
            "Deal the outputs to the inputs at random. What R² has the best line, on its own rows and on others?",
            _chance_floor(results["floors"]),
        ),
        (
            "Normal rows have the mean and the covariance of the real inputs. If R²_lin is another, what makes it so?",
            _shape_of_inputs(results),
        ),
        ("How can R²_lin on normal rows be known without drawing a row?", _closed_form(results["closed"])),
        (
            "Permuted weights keep their entries, redrawn ones their singular values. Does it matter which?",
            _disorder(results),
        ),
        ("Why is a trained model set beside several random ones, and not beside one?", _random_models(results)),
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
        "When one model's blocks read the rows of another, brought to the mean and covariance of its own inputs, the "
        f"part of R²_lin that moves goes, by an analysis of variance, {words.joined(clauses)}."
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


def _chance_floor(floors: Sequence[Mapping[str, words.Number]]) -> str:
    """R² where there is nothing to explain, from the fewest rows and from the most."""
    few, many = floors[0], floors[-1]
    own, others = (
        [words.number(floor[side]) for floor in (few, many)] for side in ("shuffled_in_sample", "shuffled_held_out")
    )
    rows = [words.number(floor["rows"], 0) for floor in (few, many)]
    return (
        f"On its own rows {own[0]} with {rows[0]} of them and {own[1]} with {rows[1]}, though there is nothing to "
        f"explain; on others {others[0]} and {others[1]}. So an R² in sample misleads, most of all with few rows."
    )


def _shape_of_inputs(results: Mapping[str, Any]) -> str:
    """In how many blocks normal rows make the block less linear."""
    lower = {}
    for name, own in results["own"].items():
        less = sum(normal < real for normal, real in zip(results["normal"][name], own, strict=True))
        lower[name] = f"{less} of {len(own)} blocks"
    return (
        "The shape of the inputs: all that mean and covariance do not tell. On normal rows R²_lin is lower in "
        f"{words.per_model(lower, 'of')}."
    )


def _closed_form(closed: Sequence[words.Number]) -> str:
    """How far the closed form and the fit on normal rows lie apart."""
    gap, priced = (words.number(distance, 3) for distance in closed)
    return (
        "The best line's slope is then the mean slope of the block (Stein's lemma), and Hermite's expansion gives the "
        f"variance of the outputs. Closed form and fit differ by at most {gap}, and by {priced} once it is counted "
        "what a fit on so few rows costs."
    )


def _disorder(results: Mapping[str, Any]) -> str:
    """Mean R² with permuted and with redrawn weights, beside the block's own."""
    alike, clauses = [], {}
    for name, own in results["own"].items():
        permuted, redrawn = mean(results["permuted"][name]), mean(results["redrawn"][name])
        alike.append(abs(permuted - redrawn) < abs(permuted - mean(own)) / 2)
        clauses[name] = f"{words.number(permuted)} and {words.number(redrawn)} (own weights: {words.number(mean(own))})"
    answer = "Hardly" if all(alike) else "In some models" if any(alike) else "It does"
    return f"{answer}: on the mean over blocks R²_lin is {words.per_model(clauses)}."


def _random_models(results: Mapping[str, Any]) -> str:
    """How far random models differ among themselves, and how many trained blocks lie beyond all of them."""
    spans, outside = {}, {}
    for name, seeds in results["fresh"].items():
        spans[name] = words.span((mean(seed) for seed in seeds), 3)
        outside[name] = f"{results['outside_fresh'][name]} of {len(results['own'][name])} blocks"
    return (
        "Because one does not say how far random models differ among themselves. Their mean R²_lin over blocks, held "
        f"out, is {words.per_model(spans)}; beyond all of them lie {words.per_model(outside, 'of')} once trained."
    )
