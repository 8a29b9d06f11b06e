"""What notebook 11 found: which numbers and verdicts hang on the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howlinear.answers import words

STATEMENTS = {
    "spread": "how far the blocks spread",
    "both ways": "whether the profile goes both ways",
    "neighbours": "how much neighbouring blocks differ",
    "lowest": "how low the least linear block is",
}
"""Statements as the results call them → what they are about."""

CHOICES = {
    ("denominator", "scalar"): "one mean of all outputs in the denominator",
    ("split", "tail"): "a contiguous tail held out",
}
"""Choices as the results call them → in words; others are built from their name and level."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    universes = f"{results['universes']:,}"
    effects = sorted(results["effects"], key=lambda effect: -abs(effect["mean"]))
    moved = [f"{words.number(effect['mean'], signed=True)} with {_choice(effect)}" for effect in effects[:4]]
    return [
        _verdicts(results),
        _orders(results["orders"], universes),
        f"R²_lin itself moves with the protocol, on the mean over blocks most by {words.joined(moved)}.",
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    effects = {(effect["choice"], effect["level"]): effect for effect in results["effects"]}
    scalar = effects.get(("denominator", "scalar"))
    few = effects.get(("rows", str(min(results["settings"]["factors"]))))
    denominator = "This run has not compared the two denominators."
    if scalar:
        denominator = (
            f"One mean of all outputs: it raises R²_lin by {words.number(scalar['mean'])} on the mean and by "
            f"{words.number(scalar['largest'])} at most."
        )
    rows = "This run has not compared so few rows with more."
    if few:
        rows = (
            f"With {few['level']} rows for each input R²_lin is lower, than with all, by {words.number(-few['mean'])} "
            f"on the mean and by {words.number(-few['largest'])} at most."
        )
    _, turning = _flips(results["flips"])
    parts = [f"{name}, in {words.joined(cases)}" for name, cases in turning.items()]
    flips = f"Only {words.joined(parts)}." if parts else "None of them, in any model of this run."
    return [denominator, rows, flips]


def _flips(flips: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Statement → the models of which its verdict is the same under all protocols; and those of which it is not."""
    steady, turning = {}, {}
    for row in flips:
        name = STATEMENTS.get(row["statement"], row["statement"])
        if row["flips"]:
            alone = f"; alone, {row['alone'].replace(', ', ' or ')} flips it" if row["alone"] else ""
            held = f"{row['model']} (the statement holds under {words.percent(row['share'])} of them{alone})"
            turning.setdefault(name, []).append(held)
        else:
            steady.setdefault(name, []).append(row["model"])
    return steady, turning


def _verdicts(results: Mapping[str, Any]) -> str:
    """Which verdicts are the same whatever one chooses, and which flip."""
    steady, turning = _flips(results["flips"])
    said = []
    if steady:
        alike = words.together({name: words.joined(models) for name, models in steady.items()})
        parts = [f"{words.joined(names)} (in {models})" for models, names in alike.items()]
        said.append(
            f"Under all of {results['universes']:,} protocols one comes to the same verdict on {words.joined(parts)}."
        )
    if turning:
        parts = [f"{name}, in {words.joined(cases)}" for name, cases in turning.items()]
        said.append(f"The protocol decides on {words.joined(parts)}.")
    return " ".join(said)


def _orders(orders: Mapping[str, Any], universes: str) -> str:
    """Which model is the most linear."""
    best = max(orders, key=orders.get)
    if " > " not in best:
        return "With one model there is no order of models."
    share = words.percent(orders[best])
    whose = "all" if orders[best] == 1 else share
    return (
        f"By mean R²_lin the order of the models is {best.replace(' > ', ', then ')} under {whose} of the {universes}."
    )


def _choice(effect: Mapping[str, Any]) -> str:
    """A choice of a protocol, in words."""
    if effect["choice"] == "rows":
        level = effect["level"]
        return "the limit of many rows" if level == "limit" else f"{level} rows for each input"
    if effect["choice"] == "seq_len":
        return f"sequences of {effect['level']} tokens"
    return CHOICES.get((effect["choice"], effect["level"]), f"{effect['choice']} {effect['level']}".replace("_", " "))
