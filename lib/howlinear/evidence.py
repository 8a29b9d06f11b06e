"""What each claim is judged by: named statistics of recorded results, a number with its 95 % interval per model.

A statistic reads one notebook's results and nothing else; `contrasts` has the rules for intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from howlinear.contrasts import Curve, Reading, UntestableError, extreme, pairs, steps

Results = Mapping[str, Any]
TOGETHER = "together"  # the key of a number that belongs to no single model
ENDS = ("r2", "r2_low", "r2_high")
GELU = ("gpt2", "pythia")  # families whose blocks are two layers with a GELU between them


Readings = dict[str, Reading]


def _curves(results: Results) -> dict[str, Curve]:
    """R²_lin over the blocks of every model of notebook 02."""
    blocks = {name: one["blocks"] for name, one in results["models"].items()}
    return {name: _ends({end: [each[end] for each in found] for end in ENDS}) for name, found in blocks.items()}


def _ends(profile: Mapping[str, Any]) -> Curve:
    return np.array([profile[end] for end in ENDS], float)


def _by_model(results: Results, reduce: Callable[[Curve], np.ndarray]) -> Readings:
    return {name: Reading(*reduce(curve).tolist()) for name, curve in _curves(results).items()}


def spread(results: Results) -> Readings:
    """Highest block less lowest."""
    return _by_model(results, lambda curve: steps(curve)[:, ~np.eye(curve.shape[1], dtype=bool)].max(1))


def adjacent(results: Results) -> Readings:
    """Largest step, up or down, between neighbours."""
    return _by_model(
        results, lambda curve: np.max([np.diagonal(steps(curve), side, 1, 2).max(1) for side in (1, -1)], 0)
    )


def turn(results: Results) -> Readings:
    """The smaller of the largest rise and the largest fall with depth: 0 or below for a monotone profile."""

    def smaller(curve: Curve) -> np.ndarray:
        step, (i, j) = steps(curve), np.triu_indices(curve.shape[1], 1)
        return np.minimum(step[:, i, j].max(1), step[:, j, i].max(1))

    return _by_model(results, smaller)


def later(results: Results) -> Readings:
    """Mean of the later half of the blocks less mean of the earlier half; a middle block counts with the later."""
    return _by_model(results, lambda curve: steps(curve)[:, : curve.shape[1] // 2, curve.shape[1] // 2 :].mean((1, 2)))


def lowest(results: Results) -> Readings:
    """R²_lin of the least linear block."""
    return _by_model(results, lambda curve: curve.min(1))


def gelu_distance(results: Results) -> Readings:
    """Distance of the two GELU models' profiles."""
    plain = {name: curve for name, curve in _curves(results).items() if any(family in name for family in GELU)}
    if len(plain) != 2:
        raise UntestableError(f"two GELU models are compared, and there are {len(plain)}")
    return {TOGETHER: pairs(plain)[0]}


def nearest_models(results: Results) -> Readings:
    """Distance of the two models whose profiles are most alike."""
    found = pairs(_curves(results))
    if not found:
        raise UntestableError("a single model has no other to match")
    return {TOGETHER: extreme(found, np.min)}


def nearest_twins(results: Results) -> Readings:
    """Distance of the two twins trained on different text that are most alike, on any text they are read on."""
    found = []
    for text in results["twin_gaps"]:
        curves = {name: _ends(read[text]) for name, read in results["twins"].items()}
        for each in pairs(curves):
            one, other = each.note.split(" ~ ")
            if one.split("-")[1] != other.split("-")[1]:  # as in gpt2-docs-0
                found.append(replace(each, note=f"{each.note}, read on {text}"))
    return {TOGETHER: extreme(found, np.min)}


def corpora_distance(results: Results) -> Readings:
    """Distance of the two corpora on which one model's profiles are least alike."""
    if len(results["corpora"]) < 2:
        raise UntestableError("a single corpus has no other to compare with")
    readings = {}
    for name, model in results["models"].items():
        on = {corpus: [found[end] for end in ("value", "low", "high")] for corpus, found in model["profile"].items()}
        readings[name] = extreme(pairs({corpus: np.array(ends, float) for corpus, ends in on.items()}), np.max)
    return readings


def moved(results: Results) -> Readings:
    """Mean distance of the trained profile from those of the same architecture at random, whole models.

    Value: from the mean over seeds; lower end: from the nearest seed; upper end: from the farthest.
    """
    readings = {}
    for name, fresh in results["fresh"].items():
        fresh = np.array(fresh, float)  # (seeds, blocks)
        own, low, high = (np.array(results[key][name], float) for key in ("own", "own_low", "own_high"))
        least = np.maximum(low - fresh.max(0), fresh.min(0) - high).clip(0)
        most = np.maximum(high - fresh.min(0), fresh.max(0) - low)
        readings[name] = Reading(*(float(part.mean()) for part in (np.abs(own - fresh.mean(0)), least, most)))
    return readings


def architecture_share(results: Results) -> Readings:
    """Share of what tells the eight twins apart that goes by architecture; the larger of the texts they are read on.

    The interval is notebook 08's: it draws blocks.
    """
    found = [(text, results[f"{text}, as measured"]["family"]) for text in results["twin_gaps"]]
    readings = [Reading(each["share"], each["low"], each["high"], f"read on {text}") for text, each in found]
    return {TOGETHER: extreme(readings, np.max)}


def largest_gain(results: Results) -> Readings:
    """Largest gain of the bilinear probe over a model's blocks."""
    gains = {
        name: [Reading(b["gain"], b["low"], b["high"], f"block {b['block']}") for b in blocks]
        for name, blocks in results["models"].items()
    }
    return {name: extreme(found, np.max) for name, found in gains.items()}


def gain_correlation(results: Results) -> Readings:
    """Correlation of that gain with 1 − R²_lin over all blocks of all models; the interval is notebook 03's."""
    found = results["correlation"]["gain"]["all"]
    return {TOGETHER: Reading(found["r"], found["low"], found["high"])}


def near_linear_rank(results: Results, pick: Callable[..., float]) -> Readings:
    """Lowest or highest effective rank of the outputs among near-linear blocks (as in notebook 04) of all models."""
    high = results["settings"]["high"]
    found = [
        Reading(*(block["rank"][end] for end in ("value", "low", "high")), f"{name}, block {block['block']}")
        for name, model in results["models"].items()
        for block in model["blocks"]
        if block["r2"]["value"] >= high
    ]
    if not found:
        raise UntestableError(f"no block reaches an R² of {high}")
    return {TOGETHER: extreme(found, pick)}


def swap(results: Results, pick: Callable[..., int]) -> Readings:
    """Relative rise of perplexity on swapping the block of highest or lowest R²_lin for its map; paired intervals."""
    readings = {}
    for name, model in results["models"].items():
        block = model["blocks"][int(pick([each["r2"] for each in model["blocks"]]))]["block"]
        cost = {each["block"]: each for each in model["swap"]}[block]
        ends = (cost[end] / model["perplexity"] for end in ("delta", "low", "high"))
        readings[name] = Reading(*ends, f"block {block}")
    return readings


def shortfall(results: Results) -> Readings:
    """Largest shortfall in held-out R² of a trained linear layer, over blocks and ways of training, on raw inputs.

    The trained layer is taken as given; the interval is the closed form's.
    """
    readings = {}
    for name, model in results["models"].items():
        exact = np.array([model[end] for end in ("exact", "low", "high")], float)
        found = [
            Reading(*below, f"{way}, block {block}")
            for way in results["verdicts"][name]
            for block, below in enumerate((exact - np.array(model[way], float)).T.tolist())
        ]
        readings[name] = extreme(found, np.max)
    return readings


_PLAIN = (spread, adjacent, turn, later, lowest, gelu_distance, nearest_models, nearest_twins)
_PLAIN += (corpora_distance, moved, architecture_share, largest_gain, gain_correlation, shortfall)
STATISTICS: dict[str, Callable[[Results], Readings]] = {
    **{statistic.__name__: statistic for statistic in _PLAIN},
    "lowest_rank": partial(near_linear_rank, pick=np.min),
    "highest_rank": partial(near_linear_rank, pick=np.max),
    "swap_most_linear": partial(swap, pick=np.argmax),
    "swap_least_linear": partial(swap, pick=np.argmin),
}
"""What `claims.toml` may name."""
