"""What notebook 10 found: of what degree a feed-forward block is."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from howlinear.answers import words

PRODUCTS = "16"
"""The rank of notebook 03's probe, as the results call it."""

NEARLY_ALL = 0.9
"""The share of the rest that the first prediction asks for."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    models = results["models"]
    quadratic = {name: words.percents(_rest(model, 2)) for name, model in models.items()}
    cubic = {name: words.percents(_rest(model, 3)) for name, model in models.items()}
    answer = [
        "Of what the line leaves of a block, all that is of degree 2 explains, from block to block, "
        f"{words.per_model(quadratic)}; with degree 3 as well, {words.per_model(cubic)}."
    ]
    probes = _probes(models)
    if probes:
        answer.append(
            "The quadratic part is spread over many products: of what degree 2 adds, a probe of sixteen products "
            f"reaches {words.per_model(probes)}, in the blocks that were checked."
        )
    return [*answer, _reach(models, results["settings"]["share_reached"])]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    models = results["models"]
    enough = {2: {}, 3: {}}
    straighter, differences = {}, {}
    for name, model in models.items():
        blocks = model["blocks"]
        for degree, counts in enough.items():
            count = sum(share >= NEARLY_ALL for share in _rest(model, degree))
            counts[name] = f"{count} of {len(blocks)} blocks"
        misses = [block["r2"][0] - block["hermite"][0] for block in blocks]
        straighter[name] = f"{sum(miss > 0 for miss in misses)} of {len(blocks)} blocks"
        differences[name] = words.number(mean(misses), signed=True)
    probes = _probes(models)
    return [
        f"By degree 2 in {words.per_model(enough[2], 'of')}; by degree 3 in {words.per_model(enough[3], 'of')}.",
        f"{words.opened(words.per_model(probes))}." if probes else "No probe of sixteen products was fitted.",
        "The real block is more linear than its weights and Gaussian inputs would make it in "
        f"{words.per_model(straighter, 'of')}; its R²_lin differs on the mean by {words.per_model(differences)}.",
    ]


def _rest(model: Mapping[str, Any], degree: int) -> list[float]:
    """Per block, the share of what the line leaves that is explained with all degrees up to this one."""
    shares = []
    for block in model["blocks"]:
        line = block["r2"][0]
        shares.append((block["r2"][degree - 1] - line) / (1 - line))
    return shares


def _probes(models: Mapping[str, Any]) -> dict[str, str]:
    """Model → what the probe reaches of the quadratic step, over the blocks that were checked."""
    reached = {}
    for name, model in models.items():
        shares = [check["probe"][PRODUCTS] for check in model["checks"].values() if PRODUCTS in check["probe"]]
        if shares:
            reached[name] = words.percents(shares)
    return reached


def _reach(models: Mapping[str, Any], share: float) -> str:
    """How many of the loudest neurons it takes."""
    clauses = {}
    for name, model in models.items():
        counts = [check["reach"] for check in model["checks"].values() if check["reach"] is not None]
        if counts:
            clauses[name] = words.span(counts, 0)
    if not clauses:
        return f"No number of neurons that was tried reaches {words.percent(share)} of it."
    return (
        f"{words.percent(share)} of what the squares of all neurons add is reached, in those blocks, by the loudest "
        f"{words.per_model(clauses)}."
    )
