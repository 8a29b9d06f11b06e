"""What notebook 05 found: whether another text gives the same profile, and the same line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howlinear.answers import words


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    models = results["models"]
    if len(results["corpora"]) < 2:
        return ["This run profile has a single text, so there is nothing to compare."]
    largest, drops = {}, {}
    for name, model in models.items():
        pair, found = max(model["agreement"].items(), key=lambda item: abs(item[1]["gap"]))
        gap = words.estimate(found["gap"], found["gap_low"], found["gap_high"], signed=True)
        largest[name] = f"{gap} in block {found['at']} of {name} ({_texts(pair)})"
        sure = sum(low > 0 for found in model["drop"].values() for low in found["low"])
        count = sum(len(found["low"]) for found in model["drop"].values())
        carried = model["carried"]
        drops[name] = (
            f"{words.number(carried['drop'])} on the mean and {words.number(carried['largest'])} at most "
            f"(surely above 0 in {sure} of {count} cases)"
        )
    return [
        "One model's profiles on two texts correlate, over all blocks, at "
        f"{words.per_model(_correlations(models, 'r'))}; without the first and the last block at "
        f"{words.per_model(_correlations(models, 'inner'))}.",
        f"The largest difference in R²_lin that a change of text makes is {words.joined(largest.values())}.",
        f"A line that is fitted on one text and scored on another loses, of R², {words.per_model(drops)}.",
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    models = results["models"]
    if len(results["corpora"]) < 2:
        return ["This run profile has a single text, so it cannot tell."] * 3
    differ, worst = {}, {}
    for name, model in models.items():
        most = max(found["differ"] for found in model["agreement"].values())
        least = min(found["differ"] for found in model["agreement"].values())
        differ[name] = f"{words.span((least, most), 0)} of {len(model['blocks'])} blocks"
        worst[name] = _largest_drop(model)
    return [
        f"Its shape correlates at {words.per_model(_correlations(models, 'r'))}. Its height changes surely, from one "
        f"text to another, in {words.per_model(differ, 'of')}.",
        f"Most is lost {words.per_model(worst, 'of')}.",
        _unseen(models),
    ]


def _texts(pair: str) -> str:
    """Two corpora, as the results name a pair."""
    return pair.replace(" ~ ", " and ")


def _correlations(models: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Model → the lowest and the highest correlation of two texts."""
    return {name: words.span(found[kind] for found in model["agreement"].values()) for name, model in models.items()}


def _largest_drop(model: Mapping[str, Any]) -> str:
    """From which text to which, and in which block, a line loses most."""
    cases = [
        (value, low, high, block, pair)
        for pair, found in model["drop"].items()
        for value, low, high, block in zip(found["value"], found["low"], found["high"], model["blocks"], strict=True)
    ]
    value, low, high, block, pair = max(cases)
    fitted, _, scored = pair.partition(" → ")
    return f"from {fitted} to {scored} in block {block} ({words.estimate(value, low, high)})"


def _unseen(models: Mapping[str, Any]) -> str:
    """Whether lines lose more on a text that the model never saw in training."""
    clauses = {}
    for name, model in models.items():
        drop = model["mean_drop"]
        if "seen → unseen" in drop and "seen → seen" in drop:
            unseen = words.number(drop["seen → unseen"])
            clauses[name] = f"{unseen} on the unseen and {words.number(drop['seen → seen'])} on the other seen text"
    if not clauses:
        return "Which texts these models saw in training is not known here, or there are too few of them to tell."
    return (
        f"A line fitted on a text that the model trained on loses, on the mean, {words.per_model(clauses)}. These "
        "means have no interval."
    )
