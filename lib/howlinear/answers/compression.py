"""What notebook 06 found: which signal tells beforehand what the swap of a block costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howlinear.answers import words
from howlinear.core import correlation

SWAPS = "replace one"
"""The signal that tries every swap on a few sequences, and so is no way to tell beforehand."""

MOST_NAMED = 2
"""Of more signals than these that may be as good as the best the rest is counted, not named."""

NAMES = {
    "1 − R²": "1 − R²_lin",
    "residual": "the size of the line's error",
    "residual / stream": "the size of the line's error over that of the residual stream",
    "ablation": "the cost of mean ablation",
    "ablation × (1 − R²)": "the cost of mean ablation times 1 − R²_lin",
    "price": "the price in the loss",
    "price, paired": "the paired price",
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
    answer = [_best(signals), _r2(signals["1 − R²"]), *_worth(models), _mean_ablation(models)]
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


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    models = _with_loss(results)
    agreements = results["agreements"]
    return [
        ("A swap is cheap. Why look at mean ablation before one praises the line?", _worth_little(models)),
        (
            "1 − R²_lin and the price weigh the same error. What does the price know that 1 − R²_lin does not?",
            _weighed(agreements["one block"]),
        ),
        ("Several blocks are to go. Is it enough to take the most linear ones?", _several(models)),
        (
            "A line in a block's place is trained for a while. How can one tell what the line gains by it?",
            _healed(models),
        ),
        ("Are the costs of sets of blocks told better than those of single blocks?", _sets(agreements)),
    ]


def _with_loss(results: Mapping[str, Any]) -> dict[str, Any]:
    """The models that predict a next token, whose swaps have a cost."""
    return {name: model for name, model in results["models"].items() if "blocks" in model}


def _best(signals: Mapping[str, Mapping[str, Any]]) -> str:
    """The signal that ranks the costs best, and which others this run cannot tell from it: the best two by name."""
    best, *others = sorted(signals, key=lambda name: signals[name]["rho"], reverse=True)
    answer = (
        f"What it costs to put a line in a block's place is told best by {NAMES.get(best, best)}: Spearman's ρ with "
        f"the cost is {_rho(signals[best])}"
    )
    near = [name for name in others if signals[name]["high"] >= signals[best]["low"]]
    if not near:
        return f"{answer}; no other interval reaches its own."
    reaching = [f"{NAMES.get(name, name)} ({_rho(signals[name])})" for name in near[:MOST_NAMED]]
    if len(near) > MOST_NAMED:
        reaching.append(words.counted(len(near) - MOST_NAMED, "more signal"))
    whose = "The interval of {} overlaps" if len(near) == 1 else "The intervals of {} overlap"
    return f"{answer}. {whose.format(words.joined(reaching))} with its own."


def _rho(found: Mapping[str, Any]) -> str:
    return words.estimate(found["rho"], found["low"], found["high"])


def _r2(found: Mapping[str, Any]) -> str:
    """How 1 − R²_lin ranks the costs."""
    rho = _rho(found)
    if found["high"] < 0:
        return (
            f"R²_lin misleads: 1 − R²_lin ranks the costs at ρ = {rho}, so the more linear blocks are the dearer ones."
        )
    if found["low"] > 0:
        return f"1 − R²_lin ranks the costs at ρ = {rho}, so the more linear blocks are the cheaper ones."
    return f"1 − R²_lin ranks the costs at ρ = {rho}, which this run cannot tell from drawing lots."


def _worth(models: Mapping[str, Any]) -> list[str]:
    """Whether the more linear blocks are worth more to the model, or less: a sentence for each answer."""
    clauses: dict[str, dict[str, str]] = {}
    for name, model in models.items():
        blocks = model["blocks"]
        if len(blocks) < correlation.FEWEST:
            continue
        found = correlation.correlation(
            [block["r2"] for block in blocks], [block["ablation"] for block in blocks], order=True
        )
        if found.r.low > 0:
            answer = "The more linear blocks are worth more to the model"
        elif found.r.high < 0:
            answer = "The more linear blocks are worth less to the model"
        else:
            answer = "This run cannot tell whether the more linear blocks are worth more to the model"
        rho = words.estimate(found.r.value, found.r.low, found.r.high, signed=True)
        inner = words.number(found.inner, signed=True)
        clauses.setdefault(answer, {})[name] = f"ρ = {rho} ({inner} without the first and the last block)"
    said = []
    for answer, of_models in clauses.items():
        what = "R²_lin ranks what a block's mean output costs in its place (mean ablation) at"
        said.append(f"{answer}: {what} {words.per_model(of_models)}.")
    return said


def _mean_ablation(models: Mapping[str, Any]) -> str:
    """What the block that is worth most costs when its mean takes its place, and what the others do."""
    clauses = {}
    for name, model in models.items():
        most, *others = sorted(model["blocks"], key=lambda block: block["ablation"], reverse=True)
        clauses[name] = f"{words.number(most['ablation'])} for block {most['block']}"
        if others:
            clauses[name] += f" and {words.span((block['ablation'] for block in others), 3)} for the others"
    return f"In nats per token mean ablation costs {words.per_model(clauses, 'of')}."


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


def _worth_little(models: Mapping[str, Any]) -> str:
    """The block that the model misses least, and what the line costs there."""
    clauses = {}
    for name, model in models.items():
        block = min(model["blocks"], key=lambda block: block["ablation"])
        costs = f"{words.significant(block['ablation'])} and {words.significant(block['nats'])}"
        clauses[name] = f"{costs} (block {block['block']})"
    return (
        "Because a block that does little can be replaced by anything, even by its mean. In the block that is missed "
        f"least its mean and its line cost, in nats per token, {words.per_model(clauses)}."
    )


def _weighed(signals: Mapping[str, Mapping[str, Any]]) -> str:
    """How the price ranks the costs, beside 1 − R²."""
    said = {}
    for signal in ("price", "1 − R²"):
        said[signal] = f"ρ = {_rho(signals[signal])}"
    helps = "" if signals["price"]["rho"] > signals["1 − R²"]["rho"] else "; in this run that does not help"
    return (
        "What the loss makes of the error: the price weighs it by the loss's gradient. It ranks the costs at "
        f"{said['price']}, and 1 − R²_lin at {said['1 − R²']}{helps}."
    )


def _several(models: Mapping[str, Any]) -> str:
    """What as many blocks as were tried cost, by R² and by the greedy search."""
    dearer, clauses = [], {}
    count = max(row["count"] for model in models.values() for row in model["frontier"])
    for name, model in models.items():
        deltas = {row["way"]: row["delta"] for row in model["frontier"] if row["count"] == count}
        by_r2, greedy = deltas["order of R²"], deltas["greedy, refitted"]
        dearer.append(by_r2 > greedy)
        clauses[name] = f"{words.significant(by_r2, 3)} against {words.significant(greedy, 3)}"
    answer = "No" if all(dearer) else "Not in every model" if any(dearer) else "It was in this run"
    return (
        f"{answer}: with {words.counted(count, 'block')} replaced, perplexity rises, in the order of R²_lin against "
        f"that of the greedy search, by {words.per_model(clauses)}."
    )


def _healed(models: Mapping[str, Any]) -> str:
    """What training does to the line, and to the original block."""
    clauses, healed, behind = {}, [], []
    for name, model in models.items():
        found = model["healing"]
        line, original = (words.significant(found[layer]["value"], signed=True) for layer in ("line", "original"))
        clauses[name] = f"{line} with the line and {original} with the original"
        healed.append(found["block"])
        behind += [name] * (found["behind"]["low"] > 0)
    return (
        "By training the original block as long. Against the model as it was perplexity then changes, in "
        f"{words.blocks(dict.fromkeys(healed))}, by {words.per_model(clauses)}; the line surely stays behind in "
        f"{words.joined(behind) or 'no model'}."
    )


def _sets(agreements: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """How many signals rank sets better than single blocks."""
    single, several = agreements["one block"], agreements["several"]
    better = sum(several[signal]["rho"] > single[signal]["rho"] for signal in single)
    return (
        f"By {better} of {len(single)} signals; that of the price goes from ρ = {words.number(single['price']['rho'])} "
        f"to {words.number(several['price']['rho'])}. Part of it is no merit: larger sets cost more, and every sum "
        "grows with the set."
    )
