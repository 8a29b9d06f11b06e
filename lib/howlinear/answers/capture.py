"""What notebook 01 found: how stretched a block's inputs are, and how many of their directions can vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from howlinear.answers import words

ALIKE = 1.25
"""Rows at position 0 are like the others if their mean norm is within this factor of theirs; our choice."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    inputs = results["inputs"]
    ranks = {}
    for model, rows in _by_model(inputs).items():
        ranks[model] = f"{words.span((row['effective_rank'] for row in rows), 0)} of {rows[0]['width']}"
    stretched = max(inputs, key=lambda row: row["condition"])
    return [
        "A feed-forward block is a function from rows to rows. The cloud of rows that it receives is not round: its "
        "effective rank, the number of directions that share the variance, is from block to block "
        f"{words.per_model(ranks)}.",
        f"The most stretched inputs are those of block {stretched['block']} of {stretched['model']}. Their standard "
        f"deviation along the longest direction is {words.significant(stretched['condition'], 3)} times that along the "
        "shortest (the condition number).",
        f"The inputs vary in {_free_directions(inputs)}.",
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    inputs = results["inputs"]
    lowest = min(inputs, key=lambda row: row["effective_rank"] / row["width"])
    highest = max(inputs, key=lambda row: row["effective_rank"] / row["width"])
    return [
        f"No. If they did, the effective rank would be the width. It is at most {_effective_rank(highest)}, and only "
        f"{_effective_rank(lowest)}.",
        _position_0(inputs),
        f"{words.opened(_free_directions(inputs))}.",
    ]


def _by_model(inputs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    models: dict[str, list[Mapping[str, Any]]] = {}
    for row in inputs:
        models.setdefault(row["model"], []).append(row)
    return models


def _effective_rank(row: Mapping[str, Any]) -> str:
    rank = words.number(row["effective_rank"], 0)
    return f"{rank} of {row['width']} (block {row['block']} of {row['model']})"


def _free_directions(inputs: Sequence[Mapping[str, Any]]) -> str:
    """In how many directions the inputs of each model vary."""
    clauses = {}
    for model, rows in _by_model(inputs).items():
        width = rows[0]["width"]
        ranks = [row["rank"] for row in rows]
        free = f"all {width} directions" if min(ranks) == width else f"{words.span(ranks, 0)} of {width} directions"
        clauses[model] = free
    return words.per_model(clauses)


def _position_0(inputs: Sequence[Mapping[str, Any]]) -> str:
    """How long inputs and outputs are at a sequence's first position, beside all others."""
    furthest = {}
    for model, rows in _by_model(inputs).items():
        furthest[model] = max(rows, key=lambda row: abs(log(max(row["first_position_out"], 1e-9))))
    like = [1 / ALIKE < row["first_position_out"] < ALIKE for row in furthest.values()]
    answer = "Yes, nearly" if all(like) else "Not in all models" if any(like) else "No"
    clauses = [
        f"{words.significant(row['first_position_out'])} times as long in block {row['block']} of {model}"
        for model, row in furthest.items()
    ]
    return (
        f"{answer}. At a sequence's first position the outputs are, where they differ most, {words.joined(clauses)}; "
        f"the inputs, which are normalised, are {words.span(row['first_position_in'] for row in inputs)} times as long."
    )
