"""What notebook 04 found: what carries a high R²."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from howlinear.answers import words

KINDS = {
    "broad": "throughout",
    "concentrated": "in hardly more than one loud direction",
    "mixed": "with signs that disagree",
}
"""The regimes of `ideas.rank.view.regime`, as the end of "is near-linear …"."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    answer = []
    for name, model in results["models"].items():
        answer += _near_linear(name, model["blocks"], results["settings"]["high"])
    return [" ".join(answer), _left_out(results), _bands(results["models"])]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    concentrated, falls, frequent = {}, {}, {}
    for name, model in results["models"].items():
        blocks = model["blocks"]
        found = [block["block"] for block in blocks if block["regime"] == "concentrated"]
        if found:
            concentrated[name] = words.blocks(found)
        means = [mean(block["features"][place] for block in blocks) for place in (0, -1)]
        falls[name] = f"from {words.number(means[0])} to {words.number(means[1])}"
        above = sum(block["bands"][0] > block["bands"][-1] for block in blocks)
        frequent[name] = f"{above} of {len(blocks)} blocks"
    here = (
        f"So it is in {words.per_model(concentrated, 'of')}" if concentrated else "No block of this run is of that kind"
    )
    return [
        f"One loud feature or direction can carry nearly all of the variance, and be straight. {here}.",
        f"On the mean over blocks, R²_lin goes {words.per_model(falls)}.",
        f"On frequent ones in {words.per_model(frequent, 'of')}.",
    ]


def _near_linear(name: str, blocks: Sequence[Mapping[str, Any]], high: float) -> list[str]:
    """Which blocks of a model are near-linear, and of which of the paper's two kinds."""
    said = []
    for kind, meaning in KINDS.items():
        found = [block for block in blocks if block["regime"] == kind]
        if found:
            medians = words.span(block["median"]["value"] for block in found)
            ranks = words.span((block["rank"]["value"] for block in found), 1)
            where = words.blocks(block["block"] for block in found)
            verb = "is" if len(found) == 1 else "are"
            said.append(
                f"In {name} {where} {verb} near-linear (R²_lin {words.span(block['r2']['value'] for block in found)}) "
                f"{meaning}: the R² of the median feature is {medians}, the effective rank of the outputs {ranks}."
            )
    if said:
        return said
    highest = max(blocks, key=lambda block: block["r2"]["value"])
    r2 = words.number(highest["r2"]["value"])
    return [f"No block of {name} reaches {words.number(high)}; the highest R²_lin is {r2} (block {highest['block']})."]


def _left_out(results: Mapping[str, Any]) -> str:
    """What leaving out the loudest features, and the loudest directions, does to the mean R²."""
    most = max(results["settings"]["counts"])
    last = results["settings"]["counts"].index(most)
    clauses = {}
    for name, model in results["models"].items():
        of_all = mean(block["features"][0] for block in model["blocks"])
        features = mean(block["features"][last] for block in model["blocks"])
        directions = mean(block["directions"][last] for block in model["blocks"])
        clauses[name] = f"{words.number(features)} and {words.number(directions)} (all: {words.number(of_all)})"
    return (
        f"Without the {most} loudest output features, and without the {most} loudest directions, the mean R²_lin over "
        f"blocks is {words.per_model(clauses)}."
    )


def _bands(models: Mapping[str, Any]) -> str:
    """On which tokens blocks are straighter."""
    means = {}
    for name, model in models.items():
        frequent = mean(block["bands"][0] for block in model["blocks"])
        rare = mean(block["bands"][-1] for block in model["blocks"])
        means[name] = f"{words.number(frequent)} against {words.number(rare)}"
    return f"Among the most frequent tokens the mean R² is, against that among the rarest, {words.per_model(means)}."
