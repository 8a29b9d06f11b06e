"""What notebook 09 found: when training makes a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log2
from statistics import median
from typing import Any

from howlinear.answers import words

DETOUR = 0.01
"""A training makes a detour if its mean R²_lin rises above start and end by more than this, as in the notebook."""

CHANCE = 0.05
"""A sign test whose p lies below this speaks against chance."""

STRICTEST = "from the peak"
"""The cut of the votes that leaves out the loss's early, easy fall."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    runs = results["summary"]
    detours = _detours(runs)
    peaks = words.span((run["peak"] for run in detours.values()), 3) if detours else None
    losses = words.span((run["peak_loss"] for run in detours.values()), 1) if detours else None
    share = f"{results['settings']['share']}"
    rank = results["live"]["rank"]
    straightest = _straightest(results["live"]["r2"])
    ends = words.span(run["end"] for run in runs.values())
    if detours:
        first = (
            f"In {len(detours)} of {len(runs)} trainings the blocks first get straighter, up to a mean R²_lin of "
            f"{peaks} at a loss of {losses} (a model that knows word frequencies alone has "
            f"{words.number(results['unigram'], 1)}), and bend only then, to {ends} at the end."
        )
    else:
        first = (
            f"In none of {len(runs)} trainings do the blocks get straighter first; at the end mean R²_lin is {ends}."
        )
    return [
        first,
        "In the live training the mean R²_lin is highest, "
        f"{words.number(_means(results['live']['r2'])[straightest], 3)}, where the outputs' effective rank is "
        f"{words.percent(rank[straightest])} of the width, down from {words.percent(rank[0])} at the start.",
        _settling(results["votes"], share),
    ]


def replies(results: Mapping[str, Any]) -> list[str]:
    """One reply to each question of "Predict first"."""
    runs = results["summary"]
    up = len(_detours(runs))
    lower = sum(run["end"] < run["start"] for run in runs.values())
    later = [by_share[f"{results['settings']['share']}"]["low"] > 0 for by_share in results["votes"].values()]
    return [
        f"{up} of {len(runs)} trainings make blocks straighter first, and {lower} end below where they began.",
        _order(results),
        f"By {sum(later)} of {len(later)} ways of counting the loss is first: the interval of R²_lin's mean lag behind "
        "it lies above 0.",
    ]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    return [
        (
            "At its straightest the live model's blocks are almost lines. What has it learned by then?",
            _learned(results),
        ),
        ("Why must a block stay outside its first interval before it counts as having left?", _patience(results)),
        ("Why is time read on a logarithmic scale?", _doublings(results)),
        (
            "Is it one order in which blocks leave their initial value, and one in which they settle?",
            _one_order(results["alike"]),
        ),
        (
            "Does it hang on the way of counting whether the loss settles before R²_lin?",
            _ways_of_counting(results["votes"]),
        ),
    ]


def _detours(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: run for name, run in runs.items() if run["peak"] > max(run["start"], run["end"]) + DETOUR}


def _means(profiles: list[list[float]]) -> list[float]:
    return [sum(profile) / len(profile) for profile in profiles]


def _straightest(profiles: list[list[float]]) -> int:
    means = _means(profiles)
    return means.index(max(means))


def _settling(votes: Mapping[str, Any], share: str) -> str:
    """Whether R²_lin settles before the loss, by every way of counting."""
    clauses, verdicts = [], set()
    for cut, by_share in votes.items():
        found = by_share[share]
        verdicts.add("later" if found["low"] > 0 else "earlier" if found["high"] < 0 else "open")
        clauses.append(f"{words.estimate(found['mean'], found['low'], found['high'], signed=True)} {_cut(cut)}")
    if verdicts == {"later"}:
        answer = "R²_lin settles after the loss, however one counts"
    elif verdicts == {"earlier"}:
        answer = "R²_lin settles before the loss, however one counts"
    elif "later" in verdicts and "earlier" not in verdicts:
        answer = "R²_lin settles after the loss by some ways of counting; by others the run cannot tell"
    elif "earlier" in verdicts and "later" not in verdicts:
        answer = "R²_lin settles before the loss by some ways of counting; by others the run cannot tell"
    else:
        answer = "Whether R²_lin settles before or after the loss, the run cannot tell"
    return f"{answer}: its mean lag, in doublings of the step, is {words.joined(clauses)}."


def _cut(name: str) -> str:
    return {"whole run": "over the whole run", "first half": "over its first half"}.get(name, name)


def _order(results: Mapping[str, Any]) -> str:
    """Whether the last blocks, or the first, leave their initial value first."""
    last_first, first_first = 0, 0
    for steps in results["leaves"].values():
        next_to_text, next_to_loss = (inf if step is None else step for step in (steps[0], steps[-1]))  # None: never
        last_first += next_to_loss < next_to_text
        first_first += next_to_text < next_to_loss
    count = len(results["leaves"])
    alike = []
    for group, (rho, _) in results["alike"].items():
        what, _, runs = group.partition(", ")
        if what == "leaves":
            alike.append(f"{words.number(rho, signed=True)} ({runs})")
    return (
        f"The one next to the loss leaves before the one next to the text in {last_first} of {count} trainings, after "
        f"it in {first_first}. The orders of two trainings correlate, on the mean, at {words.joined(alike)}."
    )


def _learned(results: Mapping[str, Any]) -> str:
    """The live model's loss where it is straightest, beside that of a model which knows frequencies alone."""
    loss = results["live"]["loss"]
    straightest = _straightest(results["live"]["r2"])
    learned = "Not even all of" if loss[straightest] > results["unigram"] else "More than"
    return (
        f"{learned} how often each token occurs: its loss is {words.number(loss[straightest])} nats per token, down "
        f"from {words.number(loss[0])}; a model that knows frequencies alone has {words.number(results['unigram'])}."
    )


def _patience(results: Mapping[str, Any]) -> str:
    """How long a departure must hold, and when blocks then leave."""
    steps = _known(results["leaves"])
    return (
        "Because measurements are noisy, and one of them may lie outside by chance. A departure counts once it holds "
        f"for {words.counted(results['settings']['patience'], 'measured step')} running; the first block then leaves "
        f"at step {words.number(min(steps), 1)}, read between two measured ones, and the last at step "
        f"{words.number(max(steps), 1)}."
    )


def _doublings(results: Mapping[str, Any]) -> str:
    """When the median block leaves its initial value, and when it settles."""
    leaves, settles = median(_known(results["leaves"])), median(_known(results["settles"]))
    return (
        "Because training begins fast and ends slowly. The median block leaves its initial value at step "
        f"{words.number(leaves, 1)} and settles at step {words.number(settles, 0)}, "
        f"{words.number(log2(settles / leaves), 1)} doublings later; on an even scale all departures would lie at the "
        "left edge."
    )


def _known(steps: Mapping[str, Sequence[words.Number | None]]) -> list[words.Number]:
    """The steps of all blocks of all trainings; None stands for never."""
    return [step for of_run in steps.values() for step in of_run if step is not None]


def _one_order(alike: Mapping[str, Sequence[words.Number]]) -> str:
    """How much the orders of two trainings are alike."""
    orders: dict[str, list[words.Number]] = {"leaves": [], "settles": []}
    for group, (rho, _) in alike.items():
        orders[group.partition(", ")[0]].append(rho)
    if min(orders["leaves"]) > max(orders["settles"]):
        answer = "More in leaving than in settling"
    elif min(orders["settles"]) > max(orders["leaves"]):
        answer = "More in settling than in leaving"
    else:
        answer = "About as much in the one as in the other"
    leaving, settling = (words.span(rhos, signed=True) for rhos in orders.values())
    return (
        f"{answer}: the orders of two trainings correlate, on the mean, at {leaving} in leaving and at {settling} in "
        "settling, where 1 would be one order."
    )


def _ways_of_counting(votes: Mapping[str, Mapping[str, Any]]) -> str:
    """By how many ways of counting the interval and the sign test say that the loss is first, or R²."""
    ways = [found for by_share in votes.values() for found in by_share.values()]
    later = [found for found in ways if found["low"] > 0]
    earlier = [found for found in ways if found["high"] < 0]
    answer = "No" if len(ways) in (len(later), len(earlier)) else "Yes"
    agree = sum(found["p"] < CHANCE for found in later + earlier)
    return (
        f"{answer}: by {len(later)} of {len(ways)} ways of counting the interval of the mean lag says that the loss is "
        f"first, by {len(earlier)} that R²_lin is, and by {len(ways) - len(later) - len(earlier)} it cannot tell. The "
        f"sign test of runs agrees, with p below {CHANCE}, in {agree} of those that the interval decides."
    )
