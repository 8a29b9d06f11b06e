"""What notebook 04 found: what carries a high R²."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from statistics import mean
from typing import Any

from howlinear.answers import words

KINDS = {
    "broad": "throughout",
    "concentrated": "in hardly more than one loud direction",
    "mixed": "though the two signs of one loud direction, a low effective rank and a bent median feature, disagree",
}
"""The regimes of `ideas.rank.view.regime`, as the end of "is near-linear …"."""


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    answer = []
    for name, model in results["models"].items():
        answer += _near_linear(name, model["blocks"], results["settings"]["high"])
    return [" ".join(answer), _left_out(results), _bands(results), *_depth(results)]


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
        f"The most frequent band lies above the rarest in {words.per_model(frequent, 'of')}.",
    ]


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    models, settings = results["models"], results["settings"]
    return [
        (
            "Pooled R² may be high where the median feature's is low. Which features decide the pooled one?",
            _pooled(models),
        ),
        (
            "What does a block's effective rank describe, and what the least rank that reaches 90 % of its R²?",
            _two_ranks(models),
        ),
        ("Rotate the outputs. Which of this notebook's numbers stay, and which change?", _rotated(models, settings)),
        ("Do the line's predictions spread over as many directions as the outputs?", _predictions(models)),
        (
            "Do the rows that lie furthest out make more of the line's error than their share?",
            _far_out(models, settings["heavy"]),
        ),
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


def _bands(results: Mapping[str, Any]) -> str:
    """On which tokens blocks are straighter: the mean R² over blocks, band by band, from frequent to rare."""
    clauses = {}
    for name, model in results["models"].items():
        blocks = model["blocks"]
        means = [mean(values) for values in zip(*(block["bands"] for block in blocks), strict=True)]
        shape = _shape(means)
        alike = sum(_shape(block["bands"]) == shape for block in blocks)
        clauses[name] = f"{_way(means)} (from band to band the same way in {alike} of {len(blocks)} blocks)"
    return (
        f"From the most frequent tokens to the rarest, in {results['settings']['bands']} bands, the mean R² over "
        f"blocks {words.per_model(clauses)}."
    )


def _shape(values: Sequence[float]) -> str:
    """Which way a sequence goes: "falls", "rises", one and "then" the other, or "goes up and down"."""
    turns = []
    for before, after in pairwise(values):
        way = "rises" if after > before else "falls"
        if turns[-1:] != [way]:
            turns.append(way)
    return ", then ".join(turns) if len(turns) < 3 else "goes up and down"


def _way(values: Sequence[float]) -> str:
    """Which way a sequence goes and between which numbers, with the place where it turns."""
    shape = _shape(values)
    first, last = words.number(values[0]), words.number(values[-1])
    if shape in ("falls", "rises"):
        return f"{shape} from {first} to {last}"
    if shape == "goes up and down":
        return f"{shape} from {first} to {last}, between {words.number(min(values))} and {words.number(max(values))}"
    falls_first = shape.startswith("falls")
    turn = (min if falls_first else max)(values)
    before, after = shape.split(", then ")
    return f"{before} from {first} to {words.number(turn)} in band {values.index(turn) + 1} and {after} to {last}"


def _depth(results: Mapping[str, Any]) -> list[str]:
    """In how many bands the first and the last block are straighter than those between; nothing if there are none."""
    clauses = {}
    for name, model in results["models"].items():
        profiles = list(zip(*(block["bands"] for block in model["blocks"]), strict=True))
        if len(profiles[0]) < 3:
            continue
        above = [min(profile[0], profile[-1]) - mean(profile[1:-1]) for profile in profiles]
        higher = [rise for rise in above if rise > 0]
        by = f" (by {words.number(min(higher))} or more)" if higher else ""
        clauses[name] = f"{len(higher)} of {len(above)} bands{by}"
    if not clauses:
        return []
    return [
        "Over depth the first and the last block both lie above the mean of those between in "
        f"{words.per_model(clauses, 'of')}."
    ]


def _pooled(models: Mapping[str, Any]) -> str:
    """Where pooled and median R² lie furthest apart."""
    blocks = [(name, block) for name, model in models.items() for block in model["blocks"]]
    name, block = max(blocks, key=lambda pair: abs(pair[1]["r2"]["value"] - pair[1]["median"]["value"]))
    return (
        "The loud ones, since each feature votes with its variance. The two lie furthest apart in block "
        f"{block['block']} of {name}: {words.number(block['r2']['value'])} pooled and "
        f"{words.number(block['median']['value'])} for the median feature."
    )


def _two_ranks(models: Mapping[str, Any]) -> str:
    """Where a block's effective rank and the paper's are furthest apart, as a ratio; None: its map explains nothing."""
    both = []
    for name, model in models.items():
        for block, needed in zip(model["blocks"], model["rank_90"], strict=True):
            effective = block["rank"]["value"]
            if needed is not None:
                both.append((abs(log(needed / effective)), effective, needed, f"block {block['block']} of {name}"))
    what = (
        "The first describes the outputs, bent part and all, and weighs their directions by variance; the second "
        "counts the directions that the map needs."
    )
    if not both:
        return f"{what} Here only the first can be told, since no map has a held-out R² above 0."
    _, effective, needed, place = max(both)
    return (
        f"{what} Their ratio is furthest from 1 in {place}, where they are {words.number(effective, 1)} and "
        f"{needed:.0f}."
    )


def _rotated(models: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What leaving out the fewest directions, and as many features, does to the mean R²."""
    few = settings["counts"][1]
    loudest = "the loudest" if few == 1 else f"the {few} loudest"
    directions, features = {}, {}
    for name, model in models.items():
        directions[name] = words.number(mean(block["directions"][1] for block in model["blocks"]))
        features[name] = words.number(mean(block["features"][1] for block in model["blocks"]))
    return (
        f"Pooled R², ranks and all that is said of directions stay: without {loudest} of the directions the mean "
        f"R²_lin over blocks would still be {words.per_model(directions)}. What is said of single features changes, "
        f"such as the mean without {loudest} of them, {words.per_model(features)}."
    )


def _predictions(models: Mapping[str, Any]) -> str:
    """In how many blocks the predictions have a lower effective rank than the outputs."""
    lower, clauses = [], {}
    for name, model in models.items():
        blocks = model["blocks"]
        fewer = [block["predictions"]["effective_rank"] < block["outputs"]["effective_rank"] for block in blocks]
        lower += fewer
        clauses[name] = f"{sum(fewer)} of {len(blocks)} blocks"
    answer = "No" if all(lower) else "Mostly not" if mean(lower) > 0.5 else "Mostly they do"
    return (
        f"{answer}: they hold the straight part alone, and their effective rank is below that of the outputs in "
        f"{words.per_model(clauses, 'of')}."
    )


def _far_out(models: Mapping[str, Any], heavy: words.Number) -> str:
    """In how many blocks the rows of highest leverage make more than their share of the error."""
    more, clauses = [], []
    for name, model in models.items():
        shares = [block["heavy_error"]["value"] for block in model["blocks"]]
        beyond = [share > heavy for share in shares]
        more += beyond
        most = words.number(100 * max(shares), 1)
        clauses.append(f"{sum(beyond)} of {len(shares)} blocks of {name} (at most {most} %)")
    answer = "They do" if all(more) else "Mostly they do" if mean(more) > 0.5 else "Mostly they do not"
    return (
        f"{answer}: the {words.percent(heavy)} of held-out rows with the highest leverage make more than "
        f"{words.percent(heavy)} of the squared error in {words.joined(clauses)}."
    )
