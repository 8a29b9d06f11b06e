"""The numbers that claims are judged by, each read from a notebook's results with its interval.

A statistic is a function: a notebook's results → the name of a model → its `Reading`. `STATISTICS`, at the end, lists
those that `claims.toml` may name. Most are contrasts of blocks, and most of those go through two steps:

- `steps`: every block less every other, each difference with its worst-case interval;
- `distance`: how far apart two profiles are, the one yardstick for *the same* and for *different*.

The intervals in the results come from leaving out document folds. A contrast of blocks takes the worst of both: its
lower end uses the lower end of what is added and the upper end of what is taken off. That is wider than need be, since
the blocks share their documents, and it makes up for having looked for the largest. Blocks are not resampled: they are
all that a model has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from howlinear.core.estimates import Estimate

TOGETHER = "together"
"""The name under which a number stands that belongs to no single model."""

GELU = ("gpt2", "pythia")
"""Families whose blocks are two layers with a GELU between them."""

Results = Mapping[str, Any]


class UntestableError(Exception):
    """These results cannot speak to the claim, by a rule stated here; its text says which."""


@dataclass(frozen=True)
class Reading:
    """A statistic's value.

    Attributes:
        estimate: the value with its 95 % interval, in the unit of its claim.
        note: which block or pair it comes from.
    """

    estimate: Estimate
    note: str = ""


Readings = dict[str, Reading]


@dataclass(frozen=True)
class Estimates:
    """Several numbers, each with its interval: one a block (a profile), or one for every two blocks.

    Attributes:
        value: the numbers.
        low: lower ends of their intervals, of the same shape.
        high: upper ends.
    """

    value: Float[np.ndarray, ...]
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]

    @classmethod
    def of(cls, value: Sequence[Any], low: Sequence[Any], high: Sequence[Any]) -> Estimates:
        """From lists as results hold them, of numbers if they are sound.

        Raises:
            ValueError: what is there is no number.
        """
        return cls(np.array(value, dtype=float), np.array(low, dtype=float), np.array(high, dtype=float))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many numbers there are, in each dimension."""
        return self.value.shape

    def __getitem__(self, index: Any) -> Estimates:
        """Those that a numpy index picks."""
        return Estimates(self.value[index], self.low[index], self.high[index])

    def reduce(self, by: Callable[[np.ndarray], float]) -> Estimate:
        """One number of all, as by `np.max` or `np.mean`; each end of its interval is reduced by itself."""
        return Estimate(float(by(self.value)), float(by(self.low)), float(by(self.high)))


# Contrasts: of blocks, of profiles, of readings


def steps(profile: Estimates) -> Estimates:
    """Every block less every other: r_j − r_i at [i, j], each with the worst of both intervals.

    Args:
        profile: R²_lin over depth, shape (blocks,).

    Returns:
        Differences, shape (blocks, blocks).

    Raises:
        UntestableError: a single block has nothing to differ from.
    """
    if profile.shape[0] < 2:
        raise UntestableError("a model of one block has no profile")
    return Estimates(
        value=profile.value[None, :] - profile.value[:, None],
        # at the least: low_j − high_i
        low=profile.low[None, :] - profile.high[:, None],
        # at the most: high_j − low_i
        high=profile.high[None, :] - profile.low[:, None],
    )


def distance(first: Estimates, second: Estimates) -> Estimate:
    """Mean distance of two profiles, over blocks, in R²: the one yardstick for *the same* and for *different*.

    The two intervals of a block add as variances; over blocks they add up as if all erred together, at worst.

    Raises:
        UntestableError: the profiles differ in depth.
    """
    if first.shape != second.shape:
        raise UntestableError(f"{first.shape[0]} blocks and {second.shape[0]} cannot be laid on each other")
    # d = mean over blocks of |r_b − r'_b|
    gap = np.abs(first.value - second.value)
    # half the length of the interval of r_b − r'_b: h = √(h_b² + h'_b²)
    half = np.hypot(first.high - first.low, second.high - second.low) / 2
    nearest = (gap - half).clip(min=0)  # no distance is below 0
    farthest = gap + half
    return Estimate(float(gap.mean()), float(nearest.mean()), float(farthest.mean()))


def distances(profiles: Mapping[str, Estimates]) -> list[Reading]:
    """Distance of every two profiles, noted as `a ~ b`."""
    return [
        Reading(distance(profiles[first], profiles[second]), note=f"{first} ~ {second}")
        for first, second in combinations(sorted(profiles), 2)
    ]


def extreme(readings: Sequence[Reading], pick: Callable[..., float]) -> Reading:
    """The largest or smallest of several readings, by `np.max` or `np.min`.

    Each end of the interval is picked by itself, since another reading's may lie farther out. The note is that of the
    reading whose value was picked.
    """
    estimates = Estimates.of(
        value=[reading.estimate.value for reading in readings],
        low=[reading.estimate.low for reading in readings],
        high=[reading.estimate.high for reading in readings],
    )
    picked = estimates.reduce(pick)
    notes = [reading.note for reading in readings if reading.estimate.value == picked.value]
    return Reading(picked, notes[0] if notes else "")  # none if a value is NaN


# What notebook 02 measured: the profiles and the costs of swaps


def profiles(results: Results) -> dict[str, Estimates]:
    """R²_lin over the blocks of every model of notebook 02, each of shape (blocks,)."""
    found = {}
    for name, model in results["models"].items():
        blocks = model["blocks"]
        found[name] = Estimates.of(
            value=[block["r2"] for block in blocks],
            low=[block["r2_low"] for block in blocks],
            high=[block["r2_high"] for block in blocks],
        )
    return found


def spread(results: Results) -> Readings:
    """Highest block less lowest."""
    readings = {}
    for name, profile in profiles(results).items():
        step = steps(profile)
        # max over i ≠ j of r_j − r_i
        off_diagonal = ~np.eye(profile.shape[0], dtype=bool)
        readings[name] = Reading(step[off_diagonal].reduce(np.max))
    return readings


def adjacent(results: Results) -> Readings:
    """Largest step, up or down, between neighbours."""
    readings = {}
    for name, profile in profiles(results).items():
        step = steps(profile)
        # max over |i − j| = 1 of r_j − r_i
        block = np.arange(profile.shape[0])
        neighbours = np.abs(block[:, None] - block[None, :]) == 1
        readings[name] = Reading(step[neighbours].reduce(np.max))
    return readings


def turn(results: Results) -> Readings:
    """The smaller of the largest rise and the largest fall with depth: 0 or below for a monotone profile."""
    readings = {}
    for name, profile in profiles(results).items():
        step = steps(profile)
        earlier, deeper = np.triu_indices(profile.shape[0], k=1)
        # rise: max over i < j of r_j − r_i; fall: max over i < j of r_i − r_j
        rise = step[earlier, deeper].reduce(np.max)
        fall = step[deeper, earlier].reduce(np.max)
        smaller = Estimate(min(rise.value, fall.value), min(rise.low, fall.low), min(rise.high, fall.high))
        readings[name] = Reading(smaller)
    return readings


def later(results: Results) -> Readings:
    """Mean of the later half of the blocks less mean of the earlier half; a middle block counts with the later."""
    readings = {}
    for name, profile in profiles(results).items():
        middle = profile.shape[0] // 2
        # mean over j in the later half − mean over i in the earlier = mean over all such pairs of r_j − r_i
        between_halves = steps(profile)[:middle, middle:]
        readings[name] = Reading(between_halves.reduce(np.mean))
    return readings


def lowest(results: Results) -> Readings:
    """R²_lin of the least linear block."""
    # min over b of r_b
    return {name: Reading(profile.reduce(np.min)) for name, profile in profiles(results).items()}


def gelu_distance(results: Results) -> Readings:
    """Distance of the two GELU models' profiles."""
    gelu = {name: profile for name, profile in profiles(results).items() if any(family in name for family in GELU)}
    if len(gelu) != 2:
        raise UntestableError(f"two GELU models are compared, and there are {len(gelu)}")
    (pair,) = distances(gelu)
    return {TOGETHER: pair}


def nearest_models(results: Results) -> Readings:
    """Distance of the two models whose profiles are most alike."""
    pairs = distances(profiles(results))
    if not pairs:
        raise UntestableError("a single model has no other to match")
    return {TOGETHER: extreme(pairs, np.min)}


def swap_most_linear(results: Results) -> Readings:
    """Relative rise of perplexity on swapping the block of highest R²_lin for its map; paired intervals."""
    return _swap(results, np.argmax)


def swap_least_linear(results: Results) -> Readings:
    """Relative rise of perplexity on swapping the block of lowest R²_lin for its map; paired intervals."""
    return _swap(results, np.argmin)


def _swap(results: Results, pick: Callable[[list[float]], Any]) -> Readings:
    """Relative rise of perplexity on swapping one block of every model, picked by its R²_lin."""
    readings = {}
    for name, model in results["models"].items():
        picked = pick([block["r2"] for block in model["blocks"]])
        block = model["blocks"][int(picked)]["block"]
        cost = {swap["block"]: swap for swap in model["swap"]}[block]
        # ΔPPL / PPL
        before = model["perplexity"]
        rise = Estimate(cost["delta"] / before, cost["low"] / before, cost["high"] / before)
        readings[name] = Reading(rise, note=f"block {block}")
    return readings


# What notebook 03 measured: the bilinear probe


def largest_gain(results: Results) -> Readings:
    """Largest gain of the bilinear probe over a model's blocks."""
    readings = {}
    for name, model in results["models"].items():
        gains = [
            Reading(Estimate(block["gain"], block["low"], block["high"]), note=f"block {block['block']}")
            for block in model["blocks"]
        ]
        readings[name] = extreme(gains, np.max)
    return readings


def gain_correlation(results: Results) -> Readings:
    """Correlation of that gain with 1 − R²_lin over all blocks of all models; the interval is notebook 03's."""
    correlation = results["correlation"]["gain"]["all"]
    return {TOGETHER: Reading(Estimate(correlation["r"], correlation["low"], correlation["high"]))}


# What notebook 04 measured: effective ranks


def lowest_rank(results: Results) -> Readings:
    """Lowest effective rank of the outputs among near-linear blocks of all models."""
    return {TOGETHER: extreme(_near_linear_ranks(results), np.min)}


def highest_rank(results: Results) -> Readings:
    """Highest effective rank of the outputs among near-linear blocks of all models."""
    return {TOGETHER: extreme(_near_linear_ranks(results), np.max)}


def _near_linear_ranks(results: Results) -> list[Reading]:
    """Effective rank of every block that notebook 04 calls near-linear."""
    high = results["settings"]["high"]
    readings = []
    for name, model in results["models"].items():
        for block in model["blocks"]:
            if block["r2"]["value"] >= high:
                rank = block["rank"]
                estimate = Estimate(rank["value"], rank["low"], rank["high"])
                readings.append(Reading(estimate, note=f"{name}, block {block['block']}"))
    if not readings:
        raise UntestableError(f"no block reaches an R² of {high}")
    return readings


# What notebook 05 measured: profiles on several corpora


def corpora_distance(results: Results) -> Readings:
    """Distance of the two corpora on which one model's profiles are least alike."""
    if len(results["corpora"]) < 2:
        raise UntestableError("a single corpus has no other to compare with")
    readings = {}
    for name, model in results["models"].items():
        by_corpus = {
            corpus: Estimates.of(curve["value"], curve["low"], curve["high"])
            for corpus, curve in model["profile"].items()
        }
        readings[name] = extreme(distances(by_corpus), np.max)
    return readings


# What notebook 07 measured: trained linear layers


def shortfall(results: Results) -> Readings:
    """Largest shortfall in held-out R² of a trained linear layer, over blocks and ways of training, on raw inputs.

    The trained layer is taken as given; the interval is the closed form's.
    """
    readings = {}
    for name, model in results["models"].items():
        exact = Estimates.of(model["exact"], model["low"], model["high"])
        worst = []
        for way in results["verdicts"][name]:
            trained = np.array(model[way], dtype=float)
            # R² of the closed form − R² of the trained layer, block by block
            below = Estimates(exact.value - trained, exact.low - trained, exact.high - trained)
            for block in range(below.shape[0]):
                estimate = Estimate(float(below.value[block]), float(below.low[block]), float(below.high[block]))
                worst.append(Reading(estimate, note=f"{way}, block {block}"))
        readings[name] = extreme(worst, np.max)
    return readings


# What notebook 08 measured: models at random, and twins


def moved(results: Results) -> Readings:
    """Mean distance of the trained profile from those of the same architecture at random, whole models.

    Value: from the mean over seeds; lower end: from the nearest seed; upper end: from the farthest.
    """
    readings = {}
    for name, profiles_at_random in results["fresh"].items():
        at_random = np.array(profiles_at_random, dtype=float)  # (seeds, blocks)
        lowest_seed, highest_seed = at_random.min(axis=0), at_random.max(axis=0)
        own = Estimates.of(results["own"][name], results["own_low"][name], results["own_high"][name])
        # |r_b − mean over seeds|
        from_mean = np.abs(own.value - at_random.mean(axis=0))
        # from r_b's interval to the range of the seeds: 0 where they overlap
        to_range = np.maximum(own.low - highest_seed, lowest_seed - own.high).clip(min=0)
        # from the far end of the interval to the far end of the range
        across = np.maximum(own.high - lowest_seed, highest_seed - own.low)
        readings[name] = Reading(Estimate(float(from_mean.mean()), float(to_range.mean()), float(across.mean())))
    return readings


def architecture_share(results: Results) -> Readings:
    """Share of what tells the eight twins apart that goes by architecture; the larger of the texts they are read on.

    The interval is notebook 08's: it draws blocks.
    """
    readings = []
    for text in results["twin_gaps"]:
        family = results[f"{text}, as measured"]["family"]
        estimate = Estimate(family["share"], family["low"], family["high"])
        readings.append(Reading(estimate, note=f"read on {text}"))
    return {TOGETHER: extreme(readings, np.max)}


def nearest_twins(results: Results) -> Readings:
    """Distance of the two twins trained on different text that are most alike, on any text they are read on."""
    readings = []
    for text in results["twin_gaps"]:
        curves = {}
        for name, by_text in results["twins"].items():
            curve = by_text[text]
            curves[name] = Estimates.of(curve["r2"], curve["r2_low"], curve["r2_high"])
        for first, second in combinations(sorted(curves), 2):
            if _training_text(first) != _training_text(second):
                apart = distance(curves[first], curves[second])
                readings.append(Reading(apart, note=f"{first} ~ {second}, read on {text}"))
    return {TOGETHER: extreme(readings, np.min)}


def _training_text(twin: str) -> str:
    """What a twin was trained on, by its name, as in `gpt2-docs-0`."""
    return twin.split("-")[1]


STATISTICS: dict[str, Callable[[Results], Readings]] = {
    "spread": spread,
    "adjacent": adjacent,
    "turn": turn,
    "later": later,
    "lowest": lowest,
    "gelu_distance": gelu_distance,
    "nearest_models": nearest_models,
    "swap_most_linear": swap_most_linear,
    "swap_least_linear": swap_least_linear,
    "largest_gain": largest_gain,
    "gain_correlation": gain_correlation,
    "lowest_rank": lowest_rank,
    "highest_rank": highest_rank,
    "corpora_distance": corpora_distance,
    "shortfall": shortfall,
    "moved": moved,
    "architecture_share": architecture_share,
    "nearest_twins": nearest_twins,
}
"""What `claims.toml` may name."""
