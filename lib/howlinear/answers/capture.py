"""What notebook 01 found: how stretched a block's inputs are, and how many of their directions can vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import log
from typing import Any

from howlinear.answers import words

ALIKE = 1.25
"""Rows at position 0 are like the others if their mean norm is within this factor of theirs; our choice."""

SAME_RANK = 1.05
"""Two inputs have the same effective rank for their width if one is within this factor of the other's; our choice."""


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


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    inputs = results["inputs"]
    return [
        ("Must inputs with a large condition number have a small effective rank?", _stretched(inputs)),
        (
            "Multiply all inputs by ten. Which of condition number, effective rank and dynamic range change?",
            _in_other_units(inputs[0]),
        ),
        ("What would a cloud of effective rank 1 look like, and how near does a block come to it?", _needle(inputs)),
        ("How can one tell a direction in which nothing varies from one in which little does?", _smallest(inputs)),
        ("What would rows that are much longer than the others do to an R²?", _long_rows(inputs)),
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


def _place(row: Mapping[str, Any]) -> str:
    return f"block {row['block']} of {row['model']}"


def _stretched(inputs: Sequence[Mapping[str, Any]]) -> str:
    """The inputs of largest condition number, beside those of smallest effective rank."""
    difference = (
        "The first compares the longest direction with the shortest alone, the second asks how many directions share "
        "the variance."
    )
    same_rank = []
    for one, other in combinations(inputs, 2):
        shares = sorted(row["effective_rank"] / row["width"] for row in (one, other))
        if shares[1] < SAME_RANK * shares[0]:
            same_rank.append(sorted((one, other), key=lambda row: row["condition"]))
    if not same_rank:
        return f"Not by necessity. {difference} No two inputs of this run have the same effective rank for their width."
    rounder, stretched = max(same_rank, key=lambda pair: pair[1]["condition"] / pair[0]["condition"])
    clauses = []
    for row in (stretched, rounder):
        condition = words.significant(row["condition"], 3)
        clauses.append(f"{condition} and {words.number(row['effective_rank'], 0)} of {row['width']} in {_place(row)}")
    return f"No. {difference} For example, they are {clauses[0]}, and {clauses[1]}."


def _in_other_units(row: Mapping[str, Any]) -> str:
    """Three numbers that are ratios."""
    return (
        f"Not one of them, since all three are ratios: {_place(row)} would keep its condition number of "
        f"{words.significant(row['condition'], 3)}, its effective rank of {words.number(row['effective_rank'], 1)} and "
        f"its dynamic range of {words.number(row['dynamic_range'], 1)}."
    )


def _needle(inputs: Sequence[Mapping[str, Any]]) -> str:
    """The inputs of the smallest effective rank."""
    nearest = min(inputs, key=lambda row: row["effective_rank"])
    return (
        "Like a needle, with all of its variance along one direction. The nearest to it are the inputs of "
        f"{_place(nearest)}: their effective rank is {words.number(nearest['effective_rank'], 1)} of "
        f"{nearest['width']}."
    )


def _smallest(inputs: Sequence[Mapping[str, Any]]) -> str:
    """How small the eigenvalues of real directions get, and whose inputs lack one."""
    smallest, lacking = {}, []
    for model, rows in _by_model(inputs).items():
        lacks = any(row["rank"] < row["width"] for row in rows)
        lacking += [model] * lacks
        smallest[model] = words.significant(min(row["second" if lacks else "null"] for row in rows), 1)
    gap = (
        "By a gap in the eigenvalues. Divided by the largest, that of a direction in which inputs do vary is at least "
        f"{words.per_model(smallest)}"
    )
    if not lacking:
        return f"{gap}, and no direction is missing in this run."
    return f"{gap}; that of the direction missing in {words.joined(lacking)} is rounding, many powers of ten below."


def _long_rows(inputs: Sequence[Mapping[str, Any]]) -> str:
    """For how many others an output at the first position counts, where it is longest."""
    longest = max(inputs, key=lambda row: row["first_position_out"])
    times = longest["first_position_out"]
    where = f"times as long as elsewhere at a sequence's first position ({_place(longest)})"
    if times < ALIKE:
        return (
            f"They would decide it, since it adds up squares; here outputs are at most {words.number(times)} {where}."
        )
    return (
        f"They would decide it, since it adds up squares. Here outputs are up to {words.significant(times)} {where}, "
        f"so that one such row counts as about {words.significant(times**2)} others."
    )
