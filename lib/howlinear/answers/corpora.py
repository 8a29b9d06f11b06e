"""What notebook 05 found: whether another text gives the same profile, and the same line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howlinear.answers import words

ODD = 0.05
"""A text is the odd one out if a line loses so much more of R² on it than on another; our choice."""


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


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    models = results["models"]
    asked = {
        "Two texts give profiles of nearly the same shape. Is it then the same line?": _alike,
        "Why is the correlation of two profiles given without the first and the last block as well?": _ends,
        "The weights are the same on every text. Why is the line not?": _bend,
        "A line that was fitted on another text scores low. Is the block less linear on this one?": _own_line,
        "The largest difference of two profiles is picked from many. What should one read instead?": _beyond_chance,
    }
    if len(results["corpora"]) < 2:
        return [(question, "This run profile has a single text, so it cannot tell.") for question in asked]
    return [(question, answer(models, results["corpora"])) for question, answer in asked.items()]


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
    further = []
    for name, model in models.items():
        drop = model["mean_drop"]
        if "seen → unseen" in drop and "seen → seen" in drop:
            further.append(drop["seen → unseen"] - drop["seen → seen"])
            unseen = words.number(drop["seen → unseen"])
            clauses[name] = f"{unseen} on the unseen and {words.number(drop['seen → seen'])} on the other seen text"
    if not clauses:
        return "Which texts these models saw in training is not known here, or there are too few of them to tell."
    answer = "Yes" if min(further) > ODD else "Not in all models" if max(further) > ODD else "Hardly"
    return (
        f"{answer}. A line fitted on a text that the model trained on loses, on the mean, {words.per_model(clauses)}. "
        "These means have no interval."
    )


def _alike(models: Mapping[str, Any], _: Sequence[str]) -> str:
    """How alike the maps of one block on two texts are, beside what noise alone would leave."""
    differ, clauses = [], {}
    for name, model in models.items():
        likeness, noise = model["carried"]["likeness"], model["carried"]["noise alone"]
        differ.append(likeness < noise)
        clauses[name] = f"{words.number(likeness)} where noise alone would leave {words.number(noise)}"
    answer = "No" if all(differ) else "Not everywhere" if any(differ) else "It may be"
    return f"{answer}: the cosine of two maps of one block is, on the mean, {words.per_model(clauses)}."


def _ends(models: Mapping[str, Any], _: Sequence[str]) -> str:
    """Where the two end blocks raise the correlation most."""
    cases = [(found["r"] - found["inner"], pair, name) for name, pair, found in _agreements(models)]
    fall, pair, name = max(cases)
    found = models[name]["agreement"][pair]
    change = "it falls most" if fall > 0 else "it falls nowhere, and rises least"
    return (
        f"Because these two can lie far from all others and make it high by themselves. Without them {change} for "
        f"{_texts(pair)} in {name}, from {words.number(found['r'])} to {words.number(found['inner'])}."
    )


def _agreements(models: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(model, pair of texts, how its profiles agree)."""
    return [(name, pair, found) for name, model in models.items() for pair, found in model["agreement"].items()]


def _bend(models: Mapping[str, Any], _: Sequence[str]) -> str:
    """Whether the more bent blocks lose more of their line."""
    clauses, follows = {}, []
    for name, model in models.items():
        r = model["carried"]["with bend"]
        clauses[name] = words.number(r, signed=True)
        follows.append(r > words.chance(len(model["blocks"])))
    answer = "So they do" if all(follows) else "Not all models show it" if any(follows) else "No model shows it"
    return (
        "Because each text brings other inputs, and a bent function has another best line wherever they lie. Then the "
        f"more bent blocks must lose more of their line. {answer}: over blocks the mean drop correlates with "
        f"1 − R²_lin at {words.per_model(clauses)}."
    )


def _own_line(models: Mapping[str, Any], texts: Sequence[str]) -> str:
    """The pair of texts where a foreign line falls furthest behind the text's own, on the mean over blocks."""
    cases = []
    for name, model in models.items():
        mean_r2 = model["mean_r2"]
        for fitted, row in enumerate(mean_r2):
            for scored, foreign in enumerate(row):
                own = mean_r2[scored][scored]
                cases.append((own - foreign, own, foreign, texts[fitted], texts[scored], name))
    _, own, foreign, fitted, scored, name = max(cases)
    return (
        f"No: how linear a block is on a text, its own line there says. In {name} the lines of {fitted} have a mean R² "
        f"of {words.number(foreign)} on {scored}, and the lines of {scored} one of {words.number(own)}."
    )


def _beyond_chance(models: Mapping[str, Any], _: Sequence[str]) -> str:
    """How many differences of two profiles lie beyond their interval."""
    clauses = {}
    for name, model in models.items():
        differ = sum(found["differ"] for found in model["agreement"].values())
        clauses[name] = f"{differ:.0f} of {len(model['agreement']) * len(model['blocks'])}"
    return (
        "How many of the differences lie beyond their interval, where one in twenty would by chance: "
        f"{words.per_model(clauses)}. The largest of many is large by choice."
    )
