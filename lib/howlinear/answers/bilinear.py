"""What notebook 03 found: what a few products of inputs add to the straight line."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, median
from typing import Any

from howlinear.answers import words

FOUND = 0.5
"""A search that recovers less than this of a planted teacher misses it; our choice."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    gains = {}
    for name, model in results["models"].items():
        gain = [block["gain"] for block in model["blocks"]]
        share = [block["recovered"] for block in model["blocks"]]
        gains[name] = f"{words.span(gain)} of R² ({words.percents(share)} of what the line leaves)"
    products = words.counted(results["settings"]["rank"], "product")
    return [
        f"A branch of {products} adds {words.per_model(gains)}.",
        *_power(results["power"]),
        _slopes(results["correlation"]["gain"]),
        _recipe(results["models"]),
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    shares = {}
    for name, model in results["models"].items():
        shares[name] = words.percent(median(block["recovered"] for block in model["blocks"]))
    slopes = results["correlation"]["gain"]
    sure = [name for name, found in slopes.items() if found["low"] > 0 or found["high"] < 0]
    inner = {name: words.number(found["inner"], signed=True) for name, found in slopes.items()}
    return [
        f"In the median block it recovers, of what the line leaves, {words.per_model(shares)}.",
        f"The interval of r leaves out 0 in {words.joined(sure) or 'no model'}. Without the first and the last block r "
        f"is {words.per_model(inner)}.",
        _gate(results["gate_order"]),
    ]


def _power(power: Mapping[str, Any]) -> list[str]:
    """Whether the search finds what is planted; where it does not, a small gain cannot be believed."""
    rows = [row for of_model in power.values() for row in of_model]
    found = [row["planted"] for row in rows if row["planted"] >= FOUND]
    missed = {}
    for name, of_model in power.items():
        blind = [row["block"] for row in of_model if row["planted"] < FOUND]
        if blind:
            missed[name] = words.blocks(blind)
    said = []
    if found:
        said.append(f"Where we plant such a branch, the search recovers {words.span(found)} of it.")
    if missed:
        where = words.per_model(missed, "of")
        besides = "But it" if found else "The search"
        said.append(f"{besides} misses the one planted in {where}, so a small gain there says little.")
    return [" ".join(said)]


def _slopes(correlations: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether the gain follows what the line leaves, over blocks."""
    meanings = {}
    for name, found in correlations.items():
        r = f"r = {words.estimate(found['r'], found['low'], found['high'], signed=True)}"
        if found["low"] > 0:
            verdict = "grows with"
        elif found["high"] < 0:
            verdict = "falls with"
        else:
            verdict = None
        meanings.setdefault(verdict, {})[name] = r
    said = []
    for verdict, found in meanings.items():
        if verdict is None:
            said.append(f"The run cannot tell whether it follows what the line leaves in {_each(found)}.")
        else:
            said.append(f"The gain {verdict} what the line leaves in {_each(found)}.")
    return " ".join(said)


def _each(found: Mapping[str, str]) -> str:
    return words.joined(f"{name} ({said})" for name, said in found.items())


def _recipe(models: Mapping[str, Any]) -> str:
    """The mean gain by the paper's recipe beside ours, on the same blocks."""
    clauses = {}
    for name, model in models.items():
        recipe = model["recipe"]
        clauses[name] = f"{words.number(mean(recipe['gain']), 3)} (ours {words.number(mean(recipe['ours']), 3)})"
    return f"By the paper's own recipe the mean gain, on the same blocks, is {words.per_model(clauses)}."


def _gate(order: Mapping[str, Mapping[str, Any]]) -> str:
    """What became of the gate, and of the gain behind it, at the lowest and at the highest learning rate."""
    rates = sorted(order, key=float)
    slow, fast = order[rates[0]], order[rates[-1]]
    clauses = []
    for rate in dict.fromkeys((rates[0], rates[-1])):
        gate = words.number(order[rate]["median gate"])
        gain = words.number(order[rate]["gain ÷ probe's"])
        clauses.append(
            f"at learning rate {rate} the median gate ends at {gate} and the branch at {gain} of our probe's gain"
        )
    closes = fast["median gate"] < 0.8 * slow["median gate"]
    if closes and fast["gain ÷ probe's"] >= slow["gain ÷ probe's"]:
        answer = "No: where the gate closes the branch gains no less"
    elif closes:
        answer = "Perhaps: where the gate closes the branch gains less"
    else:
        answer = "The gate does not close in this run"
    return f"{answer}. {words.opened('; '.join(clauses))}."
