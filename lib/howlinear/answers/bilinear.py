"""What notebook 03 found: what a few products of inputs add to the straight line."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, median
from typing import Any

from howlinear.answers import words

FOUND = 0.5
"""A search that recovers less than this of a planted teacher misses it; our choice."""

NOTHING = 0.05
"""A search that recovers less than this of what is not there finds nothing; our choice."""

NOTICED = 0.01
"""A smaller mean change of R² by a second layer, or by products in it, tells nothing; our choice."""

PARTS = {"selection": "the choice of the step", "rows": "the rows", "optimiser": "the optimiser"}
"""What parts our probe from the paper's recipe, as the results call it → in words."""


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
        *_ranks(results["ranks"], results["settings"]["rank"]),
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


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    return [
        ("How do you know that a gain is not noise that the probe has learned by heart?", _noise(results["power"])),
        (
            "Where the line leaves more, there is more to gain. What else must one look at?",
            _share(results["correlation"]["recovered"]),
        ),
        (
            "Two probes with as many products report different gains on the same rows. What can part them?",
            _parts(results["models"]),
        ),
        ("Products win back some R². Do they win back perplexity as well?", _perplexity(results["models"])),
        (
            "Two trained layers with GELU between them stand beside the line. Do products in them add anything?",
            _depth(results["models"]),
        ),
    ]


def _power(power: Mapping[str, Any]) -> list[str]:
    """Whether the search finds what is planted; where it does not, a small gain cannot be believed."""
    rows = [row for of_model in power.values() for row in of_model]
    seen = [row for row in rows if row["planted"] >= FOUND]
    missed = {}
    for name, of_model in power.items():
        blind = [row["block"] for row in of_model if row["planted"] < FOUND]
        if blind:
            missed[name] = words.blocks(blind)
    said = []
    if seen:
        alone = words.span(row["planted"] for row in seen)
        hidden = words.span(row["hidden"] for row in seen)
        said.append(
            f"Where we plant such a branch, the search recovers {alone} of it, and {hidden} of it where we add noise "
            "of three times its variance."
        )
    if missed:
        where = words.per_model(missed, "of")
        besides = "But it" if seen else "The search"
        said.append(f"{besides} misses the one planted in {where}, so a small gain there says little.")
    return [" ".join(said)]


def _slopes(correlations: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether the gain follows what the line leaves, over blocks."""
    meanings = {}
    for name, found in correlations.items():
        whole = words.estimate(found["r"], found["low"], found["high"], signed=True)
        inner = words.number(found["inner"], signed=True)
        r = f"r = {whole}; {inner} without the first and the last block"
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


def _ranks(ranks: Mapping[str, Any], probed: int) -> list[str]:
    """Whether more products would find more, where the search can see so many."""
    clauses = {}
    found = []
    for name, blocks in ranks.items():
        if name == "hidden":
            continue
        highest = max((rank for of_block in blocks.values() for rank in of_block), key=int)
        if int(highest) <= probed or any(str(probed) not in of_block for of_block in blocks.values()):
            continue
        more = words.number(median(of_block[highest] for of_block in blocks.values()))
        fewer = words.number(median(of_block[str(probed)] for of_block in blocks.values()))
        clauses[name] = f"{more} instead of {fewer}"
        found.append(ranks["hidden"][name][highest])
    if not clauses:
        return []
    return [
        f"With {words.counted(int(highest), 'product')} the share recovered is, in the median of the blocks looked at, "
        f"{words.per_model(clauses)}; of a teacher of that rank, hidden in noise, the search finds {words.span(found)}."
    ]


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


def _noise(power: Mapping[str, Any]) -> str:
    """What the probe finds in rows where there is nothing to find."""
    most = max(row["shuffled"] for of_model in power.values() for row in of_model)
    verdict = "there it finds nothing" if most < NOTHING else "there it finds too much to be trusted"
    return (
        f"It is scored on held-out rows, and tried on shuffled ones: {verdict}, at most {words.number(most)} of what "
        "the line leaves."
    )


def _share(correlations: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether the share recovered follows what the line leaves."""
    clauses = {}
    for name, found in correlations.items():
        clauses[name] = f"r = {words.estimate(found['r'], found['low'], found['high'], signed=True)}"
    sure = [name for name, found in correlations.items() if found["low"] > 0 or found["high"] < 0]
    return (
        "The share of it that is recovered, since a gain cannot exceed what is left. That share correlates with what "
        f"the line leaves, over blocks, at {words.per_model(clauses)}; the interval leaves out 0 in "
        f"{words.joined(sure) or 'no model'}."
    )


def _parts(models: Mapping[str, Any]) -> str:
    """By how much our gain differs from that of the paper's recipe, and what makes most of it."""
    clauses = {}
    for name, model in models.items():
        recipe = model["recipe"]
        gap = round(mean(recipe["ours"]) - mean(recipe["gain"]), 9)  # as the notebook's table has it
        parts = {said: round(mean(recipe[key]), 9) for key, said in PARTS.items()}
        largest = max(parts, key=lambda part: abs(parts[part]))
        part = f"{largest}, {words.number(parts[largest], 3, signed=True)}"
        clauses[name] = f"{words.number(gap, 3, signed=True)} (the largest part is {part})"
    return (
        f"{words.opened(words.joined(PARTS.values()))}. Our gain less that of the paper's recipe is, on the mean over "
        f"blocks, {words.per_model(clauses)}."
    )


def _perplexity(models: Mapping[str, Any]) -> str:
    """In how many blocks a swap with products costs less than the line alone."""
    clauses, encoders = [], []
    for name, model in models.items():
        costs = model["dppl"]
        if not costs["block"]:
            encoders.append(name)
            continue
        saved = [line - products for line, products in zip(costs["linear"], costs["poly"], strict=True)]
        most = max(saved)
        where = costs["block"][saved.index(most)]
        said = f"at most {words.significant(most)} less, in block {where}" if most > 0 else "nothing is saved"
        clauses.append(f"{sum(each > 0 for each in saved)} of {len(saved)} blocks of {name} ({said})")
    if not clauses:
        gain = max(block["gain"] for model in models.values() for block in model["blocks"])
        return f"{words.no_loss(encoders)} The largest gain in R² is {words.number(gain)}."
    return f"With them a swap costs less perplexity than with the line alone in {words.joined(clauses)}."


def _depth(models: Mapping[str, Any]) -> str:
    """A hidden layer without products beside the line, and beside one with products."""
    depth, products = [], []
    for model in models.values():
        lines = {block["block"]: block["r2_lin"] for block in model["blocks"]}
        dense, poly = model["dense2x"], model["poly2x"]
        depth += [r2 - lines[block] for block, r2 in zip(dense["blocks"], dense["r2"], strict=True)]
        products += [with_them - r2 for with_them, r2 in zip(poly["r2"], dense["r2"], strict=True)]
    if mean(depth) > max(NOTICED, 2 * abs(mean(products))):
        answer = "Hardly, as far as these controls tell"
    elif mean(products) > max(NOTICED, mean(depth)):
        answer = "Yes, as far as these controls tell"
    else:
        answer = "These controls cannot tell"
    return (
        f"{answer}: the hidden layer changes R² by {words.span(depth, 3, signed=True)} from the line's, and products "
        f"within both of its layers by {words.span(products, 3, signed=True)} from there. That does not say that a "
        "block needs no products: GELU(h) is about h/2 + 0.4 h² near 0, so the hidden layer has squares of its own."
    )
