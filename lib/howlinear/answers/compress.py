"""What notebook 14 found: which compressor costs least perplexity at the same size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howlinear.answers import words

OURS = "own units"


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    raced, without = _raced(results)
    said = []
    for share in results["settings"]["shares"]:
        ours = {}
        rivals = {}
        for model, rows in raced.items():
            at = _at(rows, share)
            if OURS not in at:
                continue
            ours[model] = f"{_times(at[OURS])}"
            best = min((method for method in at if not method.startswith(OURS)), key=lambda name: at[name]["ratio"])
            rivals[model] = f"{_times(at[best])} by {best}"
        if ours:
            said.append(
                f"With {words.percent(share)} of all parameters, where every block keeps its dearest own hidden units, "
                f"perplexity is that of the whole model times {words.per_model(ours)}. The best rival comes to "
                f"{words.per_model(rivals)}."
            )
    if without:
        said.append(words.no_loss(without))
    return said


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    raced, _ = _raced(results)
    smallest = min(results["settings"]["shares"])
    largest = max(results["settings"]["shares"])
    readout = _beside(
        raced, smallest, "Wanda", "GRAIL on Wanda", "To keep the readout", "to read the same units out anew"
    )
    choice = _beside(
        raced, smallest, "GRAIL on Wanda", OURS, "To keep these units", "to keep those of exact elimination"
    )
    return [
        _beside(raced, largest, "ShortGPT", OURS, "To drop layers", "to drop own hidden units"),
        _beside(raced, smallest, "magnitude", "Wanda", "To drop units of small weights", "to drop soft ones"),
        f"{readout} {choice}",
    ]


def _raced(results: Mapping[str, Any]) -> tuple[dict[str, Sequence[Mapping[str, Any]]], list[str]]:
    """The rows of each model that raced, on the text that was fitted on; and the models that have no perplexity."""
    raced = {}
    for name, model in results["models"].items():
        if "race" in model:
            main = model["race"][0]["text"]
            raced[name] = [row for row in model["race"] if row["text"] == main]
    return raced, [name for name in results["models"] if name not in raced]


def _at(rows: Sequence[Mapping[str, Any]], share: float) -> dict[str, Mapping[str, Any]]:
    """Method → its row at a budget, of those that could keep it."""
    return {row["method"]: row for row in rows if row["share"] == share and row["ratio"] is not None}


def _times(row: Mapping[str, Any]) -> str:
    return words.estimate(row["ratio"], row["low"], row["high"])


def _beside(
    raced: Mapping[str, Sequence[Mapping[str, Any]]], share: float, first: str, second: str, does: str, other: str
) -> str:
    """What two methods come to, side by side."""
    clauses = {}
    for model, rows in raced.items():
        at = _at(rows, share)
        if first in at and second in at:
            ratios = [words.significant(at[method]["ratio"], 3) for method in (first, second)]
            clauses[model] = " against ".join(ratios)
    if not clauses:
        return f"This run has not raced {first} against {second}."
    return f"{does} against {other}, at {words.percent(share)}: perplexity times {words.per_model(clauses)}."
