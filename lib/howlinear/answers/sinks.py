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
    return [*answer, _predicted(results["predictions"], results["compared"])]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    massive, others, size = 100, 19_900, 500  # the question's own numbers, the others of size 1
    share = massive * size**2 / (massive * size**2 + others)
    planted = max(results["planted"], key=lambda row: row["massive_rows"])
    return [
        f"{words.number(100 * share, 1)} %, if the others have size 1.",
        f"In the block with planted massive rows the map explains {words.number(planted['r2'])} of all rows, and of "
        f"the ordinary ones {words.number(planted['of_all'], 1)}, where 0 is as good as their mean.",
        _planted_costs(results["planted_costs"]),
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
    text = f"Of the paper's {len(predictions)} blocks we predict a lower R²_lin without such rows in {len(falls)}"
    checked = f"{len(compared)} of them have been run" if compared else "none of them has been run yet"
    return f"{text}; {checked}."
