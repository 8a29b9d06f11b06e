"""What notebook 02 found: how linear each block is, and what it costs to put its line in its place."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import mean
from typing import Any

from howlinear.answers import words
from howlinear.instrument.profile import FEW_ROWS_DECIDE

MOST_NAMED = 3
"""More blocks than these are counted, not named."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    models = results["models"]
    spans = {}
    for name, model in models.items():
        lowest = min(model["blocks"], key=lambda block: block["r2"])
        highest = max(model["blocks"], key=lambda block: block["r2"])
        least = f"{words.number(lowest['r2'])} (block {lowest['block']})"
        spans[name] = f"{least} to {words.number(highest['r2'])} (block {highest['block']})"
    answer = [
        "Of the variance of a block's outputs on held-out text, its straight line explains "
        f"{words.per_model(spans)} (R²_lin)."
    ]
    answer += [_rows_decide(name, model) for name, model in models.items() if _decided(model)]
    causal = {name: model for name, model in models.items() if model["swap"]}
    if causal:
        answer += [_dearest(causal), _order(causal)]
    encoders = [name for name in models if name not in causal]
    if encoders:
        answer.append(words.no_loss(encoders))
    return answer


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    models = results["models"]
    causal = {name: model for name, model in models.items() if model["swap"]}
    encoders = [name for name in models if name not in causal]
    swaps = [_most_linear(causal)] if causal else []
    if encoders:
        swaps.append(words.no_loss(encoders))
    return [_before_training(models), _shape(models), " ".join(swaps)]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    models = results["models"]
    return [
        ("Why is a line scored on documents that it was not fitted on?", _optimism(models)),
        (
            "Two neighbouring blocks differ in R²_lin. How do you know that it is not the draw of documents?",
            _sure_steps(models),
        ),
        ("If linearity alone decided what a swap costs, which block would be the dearest?", _by_linearity(models)),
        ("Does training make blocks less linear?", _by_training(models)),
        (
            "The line is found from moments, without any stored row. Is it less exact for that?",
            _exactness(results["solver"]),
        ),
    ]


def _decided(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The blocks whose R² a few massive rows decide."""
    return [block for block in model["blocks"] if abs(block["r2"] - block["r2_ordinary"]) >= FEW_ROWS_DECIDE]


def _rows_decide(name: str, model: Mapping[str, Any]) -> str:
    decided = _decided(model)
    most = max(decided, key=lambda block: abs(block["r2"] - block["r2_ordinary"]))
    where = words.blocks(block["block"] for block in decided)
    which = f" of block {most['block']}" if len(decided) > 1 else ""
    share = words.number(100 * most["massive_rows"] / model["rows"], 1)
    return (
        f"In {where} of {name} a few massive rows, with outputs far larger than the others', decide that number: "
        f"without {share} % of the rows that{which} is {words.number(most['r2_ordinary'])}, not "
        f"{words.number(most['r2'])}."
    )


def _dearest(models: Mapping[str, Any]) -> str:
    """Which swap costs most, and whether that is sure."""
    costs, doubtful = {}, {}
    for name, model in models.items():
        dearest = max(model["swap"], key=lambda swap: swap["delta"])
        costs[name] = f"block {dearest['block']} ({words.cost(dearest['delta'], dearest['low'], dearest['high'])})"
        reach = [swap["block"] for swap in model["swap"] if swap is not dearest and swap["high"] >= dearest["low"]]
        if reach:
            doubtful[name] = words.blocks(reach) if len(reach) <= MOST_NAMED else f"{len(reach)} other blocks"
    said = f"The block that costs most perplexity, when its line takes its place, is {words.per_model(costs)}"
    if not doubtful:
        return f"{said}; no other block of the same model has an interval that overlaps with its."
    return f"{said}. That is not sure: its interval overlaps with that of {words.per_model(doubtful)}."


def _order(models: Mapping[str, Any]) -> str:
    """Whether the more linear blocks are the cheaper ones."""
    correlations, verdicts = {}, {}
    for name, model in models.items():
        rho = model["spearman_r2_delta"]
        limit = words.chance(len(model["swap"]))
        correlations[name] = f"ρ = {words.number(rho, signed=True)}"
        verdicts[name] = "tell" if abs(rho) <= limit else "dearer" if rho > 0 else "cheaper"
    clauses = {
        "dearer": "the more linear blocks are the dearer ones",
        "cheaper": "the more linear blocks are the cheaper ones",
        "tell": "this may be chance",
    }
    said = {name: clauses[verdict] for name, verdict in verdicts.items()}
    meaning = clauses[next(iter(verdicts.values()))] if len(set(said.values())) == 1 else words.per_model(said)
    return f"The rank correlation of R²_lin with that cost is {words.per_model(correlations)}: {meaning}."


def _before_training(models: Mapping[str, Any]) -> str:
    """Whether most blocks of a model are surely more, or less, linear before training than after, and why."""
    named: dict[str, list[str]] = {}
    for name, model in models.items():
        blocks = model["blocks"]
        above = sum(r2 > block["r2_high"] for r2, block in zip(model["untrained"], blocks, strict=True))
        below = sum(r2 < block["r2_low"] for r2, block in zip(model["untrained_in_sample"], blocks, strict=True))
        r2 = words.span([*model["untrained"], *model["untrained_in_sample"]])
        if 2 * above > len(blocks):
            answer, surely = "more linear", f"surely in {above}"
        elif 2 * below > len(blocks):
            answer, surely = "less linear", f"surely in {below}"
        else:
            answer, surely = "not surely more or less linear", f"more in {above} and less in {below}"
        named.setdefault(answer, []).append(f"{name} (R²_lin {r2}; {surely} of {len(blocks)} blocks)")
    answers = words.joined(f"{answer} in {words.joined(of_models)}" for answer, of_models in named.items())
    return (
        f"Before training blocks are {answers}. Small random weights make hidden values small, where GELU is nearly "
        "straight; SwiGLU multiplies two of them, and a product has a straight part only as far as its inputs are "
        "skewed."
    )


def _shape(models: Mapping[str, Any]) -> str:
    """Whether profiles rise or fall smoothly."""
    turning = [name for name, model in models.items() if model["rises_and_falls"]]
    other = [name for name in models if name not in turning]
    said = []
    if turning:
        both = "Neither: over depth the profile both falls and rises, by more than its intervals, in"
        said.append(f"{both} {words.joined(turning)}.")
    if other:
        said.append(f"The intervals do not show that it both falls and rises in {words.joined(other)}.")
    return " ".join(said)


def _most_linear(models: Mapping[str, Any]) -> str:
    """What the swap of the most linear block costs, and how many cost more."""
    clauses = {}
    for name, model in models.items():
        block = max(model["blocks"], key=lambda block: block["r2"])["block"]
        costs = {swap["block"]: swap["delta"] for swap in model["swap"]}
        dearer = sum(cost > costs[block] for cost in costs.values())
        rises = f"by {words.significant(costs[block], 3)} from {words.number(model['perplexity'], 1)}"
        clauses[name] = f"{rises} (block {block}; {words.counted(dearer, 'block')} of {len(costs)} would cost more)"
    return f"Perplexity rises {words.per_model(clauses)}."


def _optimism(models: Mapping[str, Any]) -> str:
    """By how much a line looks better on its own rows, where that is most."""
    gaps, clauses = {}, {}
    for name, model in models.items():
        block = max(model["blocks"], key=lambda block: block["r2_train"] - block["r2"])
        gaps[name] = block["r2_train"] - block["r2"]
        clauses[name] = f"{words.number(gaps[name], 3, signed=True)} (block {block['block']})"
    reason = (
        "looks better on its own rows than it is" if max(gaps.values()) > 0 else "might look better on its own rows"
    )
    return (
        f"Because a line {reason}: its R² there less that on held-out rows is, where it is largest, "
        f"{words.per_model(clauses)}."
    )


def _sure_steps(models: Mapping[str, Any]) -> str:
    """At how many steps from one block to the next the two intervals do not touch."""
    sure = {}
    for name, model in models.items():
        steps = list(pairwise(model["blocks"]))
        apart = sum(a["r2_low"] > b["r2_high"] or b["r2_low"] > a["r2_high"] for a, b in steps)
        sure[name] = f"{apart} of {len(steps)} steps"
    return (
        "By their intervals, which come from leaving out one fold of documents at a time. From one block to the next "
        f"they do not touch at {words.per_model(sure)}."
    )


def _by_linearity(models: Mapping[str, Any]) -> str:
    """The least linear block beside the dearest one."""
    clauses = {}
    for name, model in models.items():
        least = min(model["blocks"], key=lambda block: block["r2"])["block"]
        if not model["swap"]:
            clauses[name] = f"block {least} (without a cost: an encoder)"
            continue
        dearest = max(model["swap"], key=lambda swap: swap["delta"])["block"]
        really = "which is the dearest" if dearest == least else f"the dearest is block {dearest}"
        clauses[name] = f"block {least} ({really})"
    return f"The least linear one, that is, {words.per_model(clauses)}."


def _by_training(models: Mapping[str, Any]) -> str:
    """Mean R² before and after training; before it, the middle between held out and in sample."""
    falls, means = [], {}
    for name, model in models.items():
        before = mean([*model["untrained"], *model["untrained_in_sample"]])
        after = mean(block["r2"] for block in model["blocks"])
        falls.append(after < before)
        means[name] = f"{words.number(before)} to {words.number(after)}"
    answer = "It did in every model of this run" if all(falls) else "Not always" if any(falls) else "It did not here"
    return (
        f"{answer}: the mean R²_lin over blocks goes from {words.per_model(means)}. Where it "
        "starts (taken halfway between R² held out and in sample) depends on the architecture."
    )


def _exactness(solver: Mapping[str, Any]) -> str:
    """The map from moments beside that from all rows, on the planted block."""
    answer, near = ("No", "less") if solver["ours_within_1e-9"] else ("It was here", "more")
    return (
        f"{answer}: on a planted block with inputs of very unequal scale, a slow and safe solver that has all rows "
        f"reaches an R² of {words.number(solver['reference'], 3)}, and ours differs from it by {near} than a billionth."
    )
