"""What notebook 14 found: which compressor costs least perplexity at the same size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from statistics import mean
from typing import Any

from howlinear.answers import words

OURS = "own units"

BEFORE = "own units before the anchor"

LINES = "lines by price"

BY_SCORES = "by scores of single units"

SAME_SIZE = 0.01
"""Shares of all parameters that differ by less are one size."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    raced, without = _raced(results)
    said = []
    if raced:
        said = [_ours(results, raced), _rivals(results, raced), _limit(results, raced), _healed(results, raced)]
    if without:
        said.append(words.no_loss(without))
    return [sentence for sentence in said if sentence]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    raced, _ = _raced(results)
    smallest = min(results["settings"]["shares"])
    a_tenth = min(results["settings"]["shares"], key=lambda share: abs(share - 0.9))
    readout = _beside(
        raced, smallest, "Wanda", "GRAIL on Wanda", "To keep the readout", "to read the same units out anew"
    )
    choice = _choice(results, raced)
    return [
        _beside(raced, a_tenth, "ShortGPT", OURS, "To drop layers", "to drop own hidden units"),
        _beside(raced, smallest, "magnitude", "Wanda", "To drop units of small weights", "to drop soft ones"),
        f"{readout} {choice}".strip(),
    ]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    raced, without = _raced(results)
    shares = results["settings"]["shares"]
    asked = {
        "Which part of own units buys most, and which exchange would buy more?": lambda: _parts(results, raced),
        "The interval of a ratio of perplexities contains 1. What does that say?": lambda: _no_difference(raced),
        "Does the cost grow as fast as what is taken away?": lambda: _growth(raced, shares),
        "A line in the place of a block holds d² + d numbers. Are they well spent?": lambda: _lines(raced, min(shares)),
        "Everything is fitted on one text. What do other texts tell?": lambda: _other_texts(
            results, raced, min(shares)
        ),
    }
    if not raced:
        return [(question, words.no_loss(without)) for question in asked]
    return [(question, answer()) for question, answer in asked.items()]


def _raced(results: Mapping[str, Any]) -> tuple[dict[str, Sequence[Mapping[str, Any]]], list[str]]:
    """The rows of each model that raced, on the text that was fitted on; and the models that have no perplexity."""
    raced = {}
    for name, model in results["models"].items():
        if "race" in model:
            main = model["race"][0]["text"]
            raced[name] = [row for row in model["race"] if row["text"] == main]
    return raced, [name for name in results["models"] if name not in raced]


def _at(rows: Sequence[Mapping[str, Any]], share: float) -> dict[str, Mapping[str, Any]]:
    """Method → its row at a budget, of those that could keep it."""
    return {row["method"]: row for row in rows if row["share"] == share and row["ratio"] is not None}


def _and(parts: Iterable[str]) -> str:
    """Parts in one list, with an "and" before the last; they may hold commas of their own, in brackets."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def _times(row: Mapping[str, Any]) -> str:
    return words.estimate(row["ratio"], row["low"], row["high"])


def _ours(results: Mapping[str, Any], raced: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What own units come to at every budget."""
    shares = results["settings"]["shares"]
    clauses = {}
    for model, rows in raced.items():
        of_ours = [_at(rows, share).get(OURS) for share in shares]
        clauses[model] = _and(_times(row) if row else "(it gets no smaller)" for row in of_ours)
    left = _and(words.percent(share) for share in shares)
    return (
        f"Where every block keeps its dearest own hidden units, and {left} of all parameters are left, perplexity is "
        f"that of the whole model times {words.per_model(clauses)}."
    )


def _rivals(results: Mapping[str, Any], raced: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The best rival at every budget, beside own units."""
    clauses = {}
    for model, rows in raced.items():
        found = []
        for share in results["settings"]["shares"]:
            at = _at(rows, share)
            rivals = [name for name in at if not name.startswith(OURS)]
            if OURS not in at or not rivals:
                continue
            best = min(rivals, key=lambda name: at[name]["ratio"])
            found.append(_over_ours(at[best]))
        if found:
            clauses[model] = _and(found)
    if not clauses:
        return ""
    return (
        f"The best rival comes to {words.per_model(clauses)} times the perplexity of own units, paired over documents."
    )


def _over_ours(row: Mapping[str, Any]) -> str:
    """A method's perplexity over that of own units, with its interval and its name."""
    times = words.estimate(row["over_first"], row["over_first_low"], row["over_first_high"])
    return f"{times} ({row['method']})"


def _limit(results: Mapping[str, Any], raced: Mapping[str, Any]) -> str:
    """What keeps own units from costing less, at the smallest budget."""
    share = min(results["settings"]["shares"])
    clauses = {}
    for name in raced:
        ratio = {row["what"]: row["ratio"] for row in results["models"][name]["limit"] if row["share"] == share}
        clauses[name] = _and(f"{words.significant(value, 3)} {_under_what(what)}" for what, value in ratio.items())
    if not any(clauses.values()):
        return ""
    return (
        f"At {words.percent(share)}, in times the whole model's perplexity, own units come to "
        f"{words.per_model(clauses)}."
    )


def _under_what(what: str) -> str:
    """What a limit was measured under, as the results call it, in a sentence."""
    if what.startswith("by "):
        return f"as foretold {what}"
    return what.replace("held out, fitted", "held out if fitted")


def _healed(results: Mapping[str, Any], raced: Mapping[str, Any]) -> str:
    """How far own units stay behind the whole model after both were trained alike."""
    share = min(results["settings"]["shares"])
    clauses = {}
    for name in raced:
        for row in results["models"][name]["healing"]:
            if row["name"] == OURS:
                clauses[name] = words.estimate(row["behind"], row["behind_low"], row["behind_high"])
    if not clauses:
        return ""
    return (
        f"After {results['settings']['heal_steps']} steps of training, at {words.percent(share)}, own units come to "
        f"{words.per_model(clauses)} times the perplexity of the whole model trained alike."
    )


def _beside(
    raced: Mapping[str, Sequence[Mapping[str, Any]]], share: float, first: str, second: str, does: str, other: str
) -> str:
    """What two methods come to, side by side, and the sizes where these differ."""
    clauses = {}
    for model, rows in raced.items():
        at = _at(rows, share)
        if first in at and second in at:
            ratios = [words.significant(at[method]["ratio"], 3) for method in (first, second)]
            clauses[model] = " against ".join(ratios) + _sizes(at[first]["kept"], at[second]["kept"])
    if not clauses:
        return f"This run has not raced {first} against {second}."
    return f"{does} against {other}, at {words.percent(share)}: perplexity times {words.per_model(clauses)}."


def _sizes(first: float, second: float) -> str:
    """The shares of parameters that two models hold, in brackets, if they are not of one size."""
    if abs(first - second) < SAME_SIZE:
        return ""
    return f" (with {words.number(100 * first, 1)} % and {words.number(100 * second, 1)} % of the parameters)"


def _parts(results: Mapping[str, Any], raced: Mapping[str, Any]) -> str:
    """Of the exchanges of one part of own units whose interval excludes 1, the one that costs and that gains most."""
    dearest, best = {}, {}
    tried = 0
    for name in raced:
        exchanges = results["models"][name]["exchanges"]
        rows = [row for row in exchanges if row["method"] != BEFORE and row["over_first"] is not None]
        rows.sort(key=lambda row: row["over_first"])
        worse = [_over_ours(row) for row in rows if row["over_first_low"] > 1]
        better = [_over_ours(row) for row in rows if row["over_first_high"] < 1]
        dearest[name] = worse[-1] if worse else "none"
        best[name] = better[0] if better else "none"
        tried = max(tried, len(rows))
    share = words.percent(min(results["settings"]["shares"]))
    if not tried:
        return f"This run has exchanged no part at {share}."
    return (
        f"At {share} this run has made {words.counted(tried, 'exchange')}, each alone. The one that costs most, in "
        "times the perplexity of own units before the anchor and of those whose interval lies above 1, is "
        f"{words.per_model(dearest)}. The one that gains most, of those whose interval lies below 1, is "
        f"{words.per_model(best)}."
    )


def _choice(results: Mapping[str, Any], raced: Mapping[str, Any]) -> str:
    """What own units cost where scores of single units choose them."""
    clauses = {}
    for name in raced:
        for row in results["models"][name]["exchanges"]:
            if row["method"] == BY_SCORES and row["over_first"] is not None:
                clauses[name] = words.estimate(row["over_first"], row["over_first_low"], row["over_first_high"])
    if not clauses:
        return ""
    return (
        "Where scores of single units choose, not exact elimination, and all else is as in own units before the "
        f"anchor, perplexity is theirs times {words.per_model(clauses)}."
    )


def _no_difference(raced: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """How many of the smaller models this text cannot tell from the whole one."""
    clauses = {}
    for name, rows in raced.items():
        tried = [row for row in rows if row["ratio"] is not None]
        alike = sum(row["low"] <= 1 <= row["high"] for row in tried)
        clauses[name] = f"{alike} of {len(tried)} smaller models"
    return (
        "That this text cannot tell the smaller model from the whole one, not that they are alike. So it is with "
        f"{words.per_model(clauses, 'of')}."
    )


def _growth(raced: Mapping[str, Sequence[Mapping[str, Any]]], shares: Sequence[float]) -> str:
    """For how many methods the cost in nats grows faster than the share that is gone."""
    large, small = max(shares), min(shares)
    if large == small:
        return f"This run has a single budget, {words.percent(small)}, so it cannot tell."
    faster, clauses = [], {}
    for name, rows in raced.items():
        costs = [{method: log(row["ratio"]) for method, row in _at(rows, share).items()} for share in (large, small)]
        both = [method for method in costs[0] if method in costs[1]]
        grown = [costs[1][method] > costs[0][method] * (1 - small) / (1 - large) for method in both]
        faster += grown
        clauses[name] = f"{sum(grown)} of {len(grown)} methods"
    answer = "It grows faster" if all(faster) else "Mostly faster" if mean(faster) > 0.5 else "Mostly no faster"
    return (
        f"{answer}: from {words.percent(1 - large)} gone to {words.percent(1 - small)}, the logarithm of the ratio "
        f"grows by more than that for {words.per_model(clauses, 'in')}."
    )


def _lines(raced: Mapping[str, Sequence[Mapping[str, Any]]], share: float) -> str:
    """Lines beside the dearest own units, at the smallest budget."""
    better, clauses = [], {}
    for name, rows in raced.items():
        at = _at(rows, share)
        if LINES in at and OURS in at:
            better.append(at[OURS]["ratio"] < at[LINES]["ratio"])
            ratios = [words.significant(at[method]["ratio"], 3) for method in (LINES, OURS)]
            clauses[name] = " and ".join(ratios) + _sizes(at[LINES]["kept"], at[OURS]["kept"])
    if not clauses:
        return f"This run has not raced lines against own units at {words.percent(share)}."
    answer = "No" if all(better) else "Not in every model" if any(better) else "They are here"
    return (
        f"{answer}: at {words.percent(share)} lines, and the same budget for the blocks' own hidden units, multiply "
        f"perplexity by {words.per_model(clauses)}."
    )


def _other_texts(results: Mapping[str, Any], raced: Mapping[str, Any], share: float) -> str:
    """What own units cost at the smallest budget, text by text."""
    clauses, counts = {}, set()
    for name in raced:
        rows = [row for row in results["models"][name]["race"] if (row["method"], row["share"]) == (OURS, share)]
        ratios = {row["text"]: row["ratio"] for row in rows if row["ratio"] is not None}
        clauses[name] = words.joined(f"{words.significant(ratio, 3)} on {text}" for text, ratio in ratios.items())
        counts.add(len(ratios))
    found = f"at {words.percent(share)} own units multiply perplexity by {words.per_model(clauses)}"
    if max(counts) < 2:
        return f"Whether what is kept suits that text alone. This run has no other: {found}."
    return f"Whether what is kept suits that text alone: {found}. The text that was fitted on stands first."
