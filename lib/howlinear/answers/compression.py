"""What notebook 06 found: which signal tells beforehand what the swap of a block costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howlinear.answers import words

SWAPS = "replace one"
"""The signal that tries every swap on a few sequences, and so is no way to tell beforehand."""

NAMES = {
    "1 − R²": "1 − R²_lin",
    "residual": "the size of the line's error",
    "residual / stream": "the size of the line's error over that of the residual stream",
    "ablation": "the cost of mean ablation",
    "ablation × (1 − R²)": "that cost times 1 − R²_lin",
    "price": "the price in the loss",
    "price, paired": "the price, paired",
    "block influence": "ShortGPT's block influence",
    "sub-layer cosine": "LLM-Drop's cosine",
    "CCA bound": "NBL's bound",
}
"""Signals as the results call them → what they are."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    models = _with_loss(results)
    without = [name for name in results["models"] if name not in models]
    signals = {name: found for name, found in results["agreements"]["one block"].items() if name != SWAPS}
    best = max(signals, key=lambda name: signals[name]["rho"])
    rho = words.estimate(signals[best]["rho"], signals[best]["low"], signals[best]["high"])
    near = [NAMES.get(name, name) for name in signals if name != best and signals[name]["high"] >= signals[best]["low"]]
    reaches = (
        f"; its interval overlaps those of {words.joined(near)}" if near else "; no other interval reaches its own"
    )
    answer = [
        f"What it costs to put a line in a block's place is told best by {NAMES.get(best, best)} (Spearman's ρ = {rho} "
        f"with the cost){reaches}.",
        _r2(signals["1 − R²"]),
        _ablation(models),
    ]
    if without:
        answer.append(words.no_loss(without))
    return answer


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    models = _with_loss(results)
    highest, half = {}, {}
    for name, model in models.items():
        blocks = model["blocks"]
        most = max(blocks, key=lambda block: block["r2"])
        dearer = sum(block["delta"] > most["delta"] for block in blocks)
        cost = words.cost(most["delta"], most["low"], most["high"])
        others = f"{words.counted(dearer, 'block')} of {len(blocks)} would cost more"
        highest[name] = f"{cost} (block {most['block']}; {others})"
        half[name] = _half_rank(model["reduced_rank"])
    return [
        f"In perplexity that one costs {words.per_model(highest)}.",
        f"Of R²_lin it loses at most {words.per_model(half)}.",
        _together(results["together"]),
    ]


def _with_loss(results: Mapping[str, Any]) -> dict[str, Any]:
    """The models that predict a next token, whose swaps have a cost."""
    return {name: model for name, model in results["models"].items() if "blocks" in model}


def _r2(found: Mapping[str, Any]) -> str:
    """How 1 − R²_lin ranks the costs."""
    rho = words.estimate(found["rho"], found["low"], found["high"])
    if found["high"] < 0:
        return (
            f"R²_lin misleads: 1 − R²_lin ranks the costs at ρ = {rho}, so the more linear blocks are the dearer ones."
        )
    if found["low"] > 0:
        return f"1 − R²_lin ranks the costs at ρ = {rho}, so the more linear blocks are the cheaper ones."
    return f"1 − R²_lin ranks the costs at ρ = {rho}, which this run cannot tell from drawing lots."


def _ablation(models: Mapping[str, Any]) -> str:
    """What blocks are worth to the loss: the first, the last and those between."""
    inner, ends = {}, {}
    for name, model in models.items():
        worth = [block["ablation"] for block in model["blocks"]]
        inner[name] = words.span(worth[1:-1] or worth, 3)
        ends[name] = f"{words.number(worth[0])} and {words.number(worth[-1])}"
    return (
        "What a block is worth to the model does not show in its R²_lin. With its mean output in its place (mean "
        f"ablation), a block between the first and the last costs, in nats per token, {words.per_model(inner)}; the "
        f"first and the last cost {words.per_model(ends)}."
    )


def _half_rank(rows: list[Mapping[str, Any]]) -> str:
    """The most that a map of half the full rank falls short of the full map, and where."""
    losses = []
    for block in dict.fromkeys(row["block"] for row in rows):
        r2 = {row["rank"]: row["r2"] for row in rows if row["block"] == block}
        full = max(r2)
        if full // 2 in r2:
            losses.append((r2[full] - r2[full // 2], r2[full], block))
    if not losses:
        return "an amount that was not measured"
    loss, full, block = max(losses)
    return f"{words.number(loss, 3)} of {words.number(full, 3)} (block {block})"


def _together(together: Mapping[str, Mapping[str, Any]]) -> str:
    """The loss of several blocks at once beside the sum of what they cost one by one."""
    clauses = {}
    for name, single in together["sum of single costs"].items():
        joint = together["together, refitted"][name]
        clauses[name] = f"{words.significant(joint)} where the single costs add up to {words.significant(single)}"
    return f"In nats per token, the set that the greedy search ends with costs {words.per_model(clauses)}."
