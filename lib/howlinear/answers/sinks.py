"""What notebook 12 found: which tokens make a block look linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howlinear.answers import words

OF_ALL, KEPT, ORDINARY_KEPT, MENDED = "a", "b", "d", "e"
"""Kinds of swap, as `ideas.sinks.costs.KINDS` has them: the map of all rows; the same with massive rows left to the
block; that of the ordinary rows with massive rows left to the block; and that with a constant at the first position."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    answer = [model["answer"] for model in results["models"].values()]
    mended = {}
    for name, model in results["models"].items():
        found = _mended(model["costs"])
        if found:
            mended[name] = found
    if mended:
        answer.append(
            f"In the place of such a block the map of all rows costs, in nats per token, {words.per_model(mended)}."
        )
    answer += _curves_end(results["models"], max(results["settings"]["counts"]))
    return [*answer, _predicted(results["predictions"], results["compared"])]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    massive, others, size = 100, 19_900, 500  # the question's own numbers, the others of size 1
    share = massive * size**2 / (massive * size**2 + others)
    planted = max(results["planted"], key=lambda row: row["massive_rows"])
    return [
        f"{words.number(100 * share, 1)} %, if the others have size 1.",
        f"In the block with planted massive rows the map has an R² of {words.number(planted['r2'])} on all rows, and "
        f"of {words.number(planted['of_all'], 1)} on the ordinary ones, where 0 is as good as their mean.",
        _planted_costs(results["planted_costs"]),
    ]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    planted = max(results["planted"], key=lambda row: row["massive_rows"])
    return [
        ("For how many ordinary rows does a massive one count in R²?", _squared(planted)),
        ("A block has an effective rank of 1. Does it write along one direction only?", _one_direction(planted)),
        ("Are massive rows always the first of their sequence?", _at_first(results)),
        (
            "Can one constant take a block's place on its massive rows?",
            _constant({row["kind"]: row for row in results["planted_costs"]}),
        ),
        ("What could show that massive rows are not why the paper's blocks look linear?", _refuted(results)),
    ]


def _mended(costs: Sequence[Mapping[str, Any]]) -> str | None:
    """The block with massive rows whose swap is dearest, and what it costs once the map is fitted without them."""
    plain = {row["block"]: row for row in costs if row["kind"] == OF_ALL and row["massive_rows"]}
    mended = {row["block"]: row for row in costs if row["kind"] == MENDED}
    both = plain.keys() & mended.keys()
    if not both:
        return None
    block = max(both, key=lambda block: plain[block]["nats"])
    return (
        f"{_nats(plain[block])}, and a map of the ordinary rows with a constant at the first position "
        f"{_nats(mended[block])} (block {block})"
    )


def _curves_end(models: Mapping[str, Any], most: words.Number) -> list[str]:
    """Which blocks have more massive rows than the figure leaves out, if any, and what R² is without all of them."""
    clauses, beyond = {}, []
    for name, model in models.items():
        found = [block for block in model["blocks"] if block["massive_rows"] > most]
        if found:
            counts = words.span((block["massive_rows"] for block in found), 0)
            clauses[name] = f"{words.blocks(block['block'] for block in found)} ({counts} massive rows)"
            beyond += [(block, name) for block in found]
    if not beyond:
        return []
    largest, name = max(beyond, key=lambda pair: pair[0]["massive_rows"])
    return [
        f"The figure in which heaviest rows are left out ends at {words.number(most, 0)} rows, before all massive rows "
        f"are gone, in {words.per_model(clauses, 'of')}. The block with the most, block {largest['block']} of {name}, "
        f"has an R²_lin of {words.number(largest['r2'])}, and of {words.number(largest['r2_ordinary'])} once all are "
        "gone."
    ]


def _nats(row: Mapping[str, Any]) -> str:
    return words.estimate(row["nats"], row["nats_low"], row["nats_high"])


def _planted_costs(costs: Sequence[Mapping[str, Any]]) -> str:
    """What becomes of the planted model under the swaps that the question is about."""
    by_kind = {row["kind"]: row for row in costs}
    answer = "No" if by_kind[KEPT]["nats_low"] > 0 else "As far as this text can tell, yes"
    return (
        f"{answer}: in nats per token the map costs {_nats(by_kind[OF_ALL])}, and {_nats(by_kind[KEPT])} with those "
        f"rows left to the block. Fitted without them as well it costs {_nats(by_kind[ORDINARY_KEPT])}."
    )


def _predicted(predictions: Sequence[Mapping[str, Any]], compared: Sequence[Mapping[str, Any]]) -> str:
    """In how many of the paper's blocks we predict that R² rests on such rows, and what came of it."""
    falls = [row for row in predictions if row["falls"]]
    text = f"Of the paper's {len(predictions)} blocks we predict a lower R²_lin without massive rows in {len(falls)}"
    checked = f"{len(compared)} of them have been run" if compared else "none of them has been run yet"
    return f"{text}; {checked}."


def _squared(planted: Mapping[str, Any]) -> str:
    """For how many rows of median norm the heaviest row of the planted block counts."""
    size = planted["heaviest"]
    return (
        f"For the square of its size: the heaviest row of the planted block has {words.number(size, 0)} times the "
        f"median norm and counts as about {words.significant(size**2)} rows of that norm. The block has "
        f"{words.number(planted['massive_rows'], 0)} massive rows of {words.number(planted['rows'], 0)}."
    )


def _one_direction(planted: Mapping[str, Any]) -> str:
    """The effective rank of the planted block, of all rows and of ordinary ones."""
    whole, ordinary = planted["effective_rank"], planted["effective_rank_ordinary"]
    answer = "Not on most rows" if ordinary > 2 * whole else "It seems so here"
    return (
        f"{answer}: the outputs of the planted block have an effective rank of {words.number(whole, 1)}, and without "
        f"its massive rows of {words.number(ordinary, 1)}. It weighs directions by "
        "their variance, which adds up squares, so a few large rows decide it."
    )


def _at_first(results: Mapping[str, Any]) -> str:
    """Which share of the massive rows stands at the first position, or that there are none."""
    shares, heaviest = {}, []
    for name, model in results["models"].items():
        heaviest += [(block["heaviest"], f"block {block['block']} of {name}") for block in model["blocks"]]
        if model["massive"]:
            shares[name] = words.percents(row["at_first"] for row in model["massive"])
    if not shares:
        size, place = max(heaviest)
        return (
            f"This run cannot tell, since no model of it has one: the heaviest row, in {place}, has "
            f"{words.number(size, 1)} times the median norm, and it takes "
            f"{words.number(results['settings']['multiple'], 0)}."
        )
    always = all(row["at_first"] == 1 for model in results["models"].values() for row in model["massive"])
    answer = "They are in this run" if always else "No"
    return f"{answer}: from block to block, {words.per_model(shares)} of them stand at the first position."


def _constant(planted: Mapping[str, Mapping[str, Any]]) -> str:
    """What a constant at the first position costs beside the block itself there."""
    more = planted[MENDED]["nats"] - planted[ORDINARY_KEPT]["nats"]
    enough = more < 0.1 * abs(planted[OF_ALL]["nats"])
    answer = "Yes, where they are nearly one and the same vector" if enough else "Not in the planted block"
    return (
        f"{answer}: there, in nats per token, the map of the ordinary rows costs {_nats(planted[MENDED])} with a "
        f"constant at the first position and {_nats(planted[ORDINARY_KEPT])} with massive rows left to the block; the "
        f"map of all rows costs {_nats(planted[OF_ALL])}."
    )


def _refuted(results: Mapping[str, Any]) -> str:
    """Which predictions stand, and what has become of them."""
    predictions, compared = results["predictions"], results["compared"]
    falls = sum(row["falls"] for row in predictions)
    threshold = words.number(predictions[0]["threshold"], 1)
    run = f"of {len(compared)} that have been run {sum(row['right'] for row in compared)} came out right"
    return (
        "A run of the paper's own models. We predict, from what the paper publishes, that without such rows R²_lin "
        f"falls by more than {threshold} in {falls} of {len(predictions)} blocks and in the others does not; "
        f"{run if compared else 'none of them has been run yet'}."
    )
