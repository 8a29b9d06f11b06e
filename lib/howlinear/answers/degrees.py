"""What notebook 10 found: of what degree a feed-forward block is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from howlinear.answers import words

PRODUCTS = "16"
"""The rank of notebook 03's probe, as the results call it."""

NEARLY_ALL = 0.9
"""The share of the rest that the first prediction asks for."""

GAUSSIAN = 0.05
"""Inputs on which lower degrees explain less than this of a teacher are nearly Gaussian; our choice."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    models = results["models"]
    quadratic = {name: words.percents(_rest(model, 2)) for name, model in models.items()}
    cubic = {name: words.percents(_rest(model, 3)) for name, model in models.items()}
    answer = [
        "Of what the line leaves of a block, its neurons' polynomials of degree 2 explain, from block to block and as "
        f"a lower bound, {words.per_model(quadratic)}; with degree 3 as well, {words.per_model(cubic)}."
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


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    models = results["models"]
    return [
        (
            "On Gaussian inputs, what do lower degrees explain of a planted teacher of one degree, and what here?",
            _lower_degrees(results["planted"]),
        ),
        ("Why is what the neurons' polynomials explain only a lower bound?", _all_products(models)),
        ("How would a quadratic part of few products show, and does it?", _few_products(models)),
        ("Of what degree are the middle blocks before training?", _before_training(models)),
        (
            "A wide spread of pre-activations meets more of the bend. Is R²_lin lowest where the spread is widest?",
            _by_spread(models),
        ),
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
    """How many of the loudest neurons it takes; all of a block's own are always tried."""
    clauses = {}
    for name, model in models.items():
        checks = [check for check in model["checks"].values() if check["reach"] is not None]
        if not checks:
            continue
        counts = [check["reach"] for check in checks]
        line, *_, everything = checks[0]["loudest"]["sizes"]
        of_all = words.number(everything - line, 0)
        alone = min(counts) == everything - line
        clauses[name] = f"{of_all}, which are all of them," if alone else f"{words.span(counts, 0)} of {of_all}"
    if not clauses:
        return f"No number of neurons that was tried reaches {words.percent(share)} of it."
    return (
        f"{words.percent(share)} of what the squares of all neurons add is reached, in those blocks, by the loudest "
        f"{words.per_model(clauses)}."
    )


def _lower_degrees(planted: Sequence[Sequence[words.Number]]) -> str:
    """What degrees below its own explain of the planted teacher of the highest degree."""
    teacher = len(planted)
    share = planted[-1][-2]
    inputs = "so these inputs are nearly Gaussian in this" if share < GAUSSIAN else "so these inputs are not Gaussian"
    return (
        "Nothing, since Hermite's polynomials of different degree do not correlate there. Here degrees up to "
        f"{teacher - 1} explain {words.number(share)} of a teacher of degree {teacher}, {inputs}."
    )


def _all_products(models: Mapping[str, Any]) -> str:
    """In how many of the checked blocks a kernel of all products explains more than the neurons' squares."""
    clauses = []
    for name, model in models.items():
        bound = {block["block"]: block["r2"][1] for block in model["blocks"]}
        checks = {int(block): check["degree 2"][-1] for block, check in model["checks"].items() if check["degree 2"]}
        more = sum(round(check["r2"], 2) > round(bound[block], 2) for block, check in checks.items())
        rows = words.number(max((check["rows"] for check in checks.values()), default=0), 0)
        clauses.append(f"{more} of {len(checks)} checked blocks of {name} (from {rows} rows)")
    return (
        "Because products that no neuron makes may explain more. A kernel that holds all products of two inputs "
        f"reaches more than the neurons' polynomials of degree 2 in {words.joined(clauses)}."
    )


def _few_products(models: Mapping[str, Any]) -> str:
    """What the probes of the lowest and of the highest rank reach of the quadratic step."""
    clauses, few_do = {}, []
    for name, model in models.items():
        probes = [check["probe"] for check in model["checks"].values() if check["probe"]]
        if not probes:
            continue
        ranks = set.intersection(*(set(probe) for probe in probes))
        lowest, highest = min(ranks, key=int), max(ranks, key=int)
        reached = {rank: [probe[rank] for probe in probes] for rank in (lowest, highest)}
        few_do.append(min(reached[lowest]) > 0.5)
        products = words.counted(int(lowest), "product")
        most = f"{words.percents(reached[highest])} with {highest}"
        clauses[name] = f"{words.percents(reached[lowest])} with {products} and {most}"
    if not clauses:
        return f"A few products would reach most of it; this run has no probe to tell of its {len(models)} models."
    answer = "So it is here" if all(few_do) else "So it is in some models" if any(few_do) else "It does not"
    return (
        f"A few products would reach most of it. {answer}: in the checked blocks a probe reaches, of what degree 2 "
        f"adds, {words.per_model(clauses)}."
    )


def _before_training(models: Mapping[str, Any]) -> str:
    """What degrees 1 and 2 explain of a block with fresh weights."""
    clauses, squares, too_few = {}, [], []
    for name, model in models.items():
        line, square = model["fresh"][:2]
        clauses[name] = f"{words.number(line)} by degree 1 and {words.number(square)} by degree 2"
        squares.append(square)
        too_few += [name] * (line < 0)
    answer = "Hardly above 2" if min(squares) >= NEARLY_ALL else "Not all of them of 1 or 2"
    note = f"; below 0 the rows are too few for the line of {words.joined(too_few)}" if too_few else ""
    return f"{answer}: R² is {words.per_model(clauses)}{note}."


def _by_spread(models: Mapping[str, Any]) -> str:
    """R² of the block whose pre-activations spread most, and of that where they spread least."""
    lower, clauses = [], {}
    for name, model in models.items():
        wide, narrow = (choose(model["blocks"], key=lambda block: block["spread"]) for choose in (max, min))
        lower.append(wide["r2"][0] < narrow["r2"][0])
        said = [
            f"{words.number(block['r2'][0])} at a spread of {words.number(block['spread'])} (block {block['block']})"
            for block in (wide, narrow)
        ]
        clauses[name] = " and ".join(said)
    answer = "Lower than where it is narrowest" if all(lower) else "Not in every model" if any(lower) else "No"
    return f"{answer}: R²_lin is {words.per_model(clauses)}. What counts as well is which neurons act together."
