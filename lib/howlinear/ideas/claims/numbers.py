"""The numbers that claims are judged by, each read from a notebook's results with its interval.

A statistic is a function: a notebook's results → the name of a model → its `Reading`, or `Silent` where that model
cannot speak. `STATISTICS`, at the end, lists those that `claims.toml` may name; `contrasts` holds what they are made
of. No number is pooled over models: what belongs to a pair of them, or to all twins, stands under `TOGETHER`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import chi2

from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.files import tables
from howlinear.ideas.claims.contrasts import (
    INNER,
    TOGETHER,
    Estimates,
    Reading,
    Readings,
    Silent,
    UntestableError,
    correlate,
    distance,
    distances,
    extreme,
    steps,
)
from howlinear.instrument.profile import FEW_ROWS_DECIDE

GELU = ("gpt2", "pythia")
"""Families whose blocks are two layers with a GELU between them."""

NEAR_LINEAR = 0.9
"""R² from which a block counts as near-linear, as in notebook 04."""

CRITICAL = 3.0
"""A block is critical if putting the line in its place costs this many times what it costs in a typical later block."""

FOLDS = 5
"""Blocked folds of `r2_sd`, the paper's number of them."""

Results = Mapping[str, Any]


# Reading: models, keys, intervals


def each_model(models: Mapping[str, Any], read: Callable[[Any], Reading]) -> Readings:
    """What `read` makes of every model; `Silent` where it raises `UntestableError`."""
    readings: Readings = {}
    for name, model in models.items():
        try:
            readings[name] = read(model)
        except UntestableError as error:
            readings[name] = Silent(str(error))
    return readings


def measured(tree: Any, key: str) -> Any:
    """What results hold under the key of a measure that not every run takes.

    Raises:
        UntestableError: it is not there.
    """
    if not isinstance(tree, Mapping | pd.DataFrame) or key not in tree:
        raise UntestableError(f"not measured in this run: its results hold no {key}")
    return tree[key]


def exactly(value: float) -> Estimate:
    """A number that has no interval, such as a whole number of directions, or one that the paper gives without."""
    return Estimate(float(value), float(value), float(value))


def without_interval(values: Sequence[Any]) -> Estimates:
    """Several of them."""
    return Estimates.of(values, values, values)


# Notebook 02: the profiles, the costs of swaps, the spread over data


def blocks_of(results: Results) -> dict[str, pd.DataFrame]:
    """Model → its rows of a table `blocks`, in order of depth."""
    return {str(name): blocks for name, blocks in results["blocks"].groupby("model", sort=False)}


def _profile(blocks: pd.DataFrame) -> Estimates:
    """R²_lin over the blocks of a model, shape (blocks,)."""
    return Estimates.of(blocks["r2"], blocks["r2_low"], blocks["r2_high"])


def profiles(results: Results) -> dict[str, Estimates]:
    """`_profile` of every model."""
    return {name: _profile(blocks) for name, blocks in blocks_of(results).items()}


def _costs(blocks: pd.DataFrame) -> Estimates:
    """ΔPPL of swapping each block for its map, shape (blocks,).

    Raises:
        UntestableError: no swap was measured, as of a model that predicts no next token.
    """
    if blocks["dppl"].isna().all():
        raise UntestableError("an encoder predicts no next token, so a swap costs no perplexity")
    return Estimates.of(blocks["dppl"], blocks["dppl_low"], blocks["dppl_high"])


def spread(results: Results) -> Readings:
    """Highest block less lowest."""

    def highest_less_lowest(profile: Estimates) -> Estimate:
        step = steps(profile)
        # max over i ≠ j of r_j − r_i
        off_diagonal = ~np.eye(step.shape[0], dtype=bool)
        return step[off_diagonal].reduce(np.max)

    return each_model(blocks_of(results), lambda blocks: _with_inner(_profile(blocks), highest_less_lowest))


def adjacent(results: Results) -> Readings:
    """Largest step, up or down, between neighbours."""

    def largest_step(profile: Estimates) -> Estimate:
        step = steps(profile)
        # max over |i − j| = 1 of r_j − r_i
        block = np.arange(step.shape[0])
        neighbours = np.abs(block[:, None] - block[None, :]) == 1
        return step[neighbours].reduce(np.max)

    return each_model(blocks_of(results), lambda blocks: _with_inner(_profile(blocks), largest_step))


def turn(results: Results) -> Readings:
    """The smaller of the largest rise and the largest fall with depth: 0 or below for a monotone profile."""

    def smaller_turn(profile: Estimates) -> Estimate:
        step = steps(profile)
        earlier, deeper = np.triu_indices(step.shape[0], k=1)
        # rise: max over i < j of r_j − r_i; fall: max over i < j of r_i − r_j
        rise = step[earlier, deeper].reduce(np.max)
        fall = step[deeper, earlier].reduce(np.max)
        return Estimate(min(rise.value, fall.value), min(rise.low, fall.low), min(rise.high, fall.high))

    return each_model(blocks_of(results), lambda blocks: _with_inner(_profile(blocks), smaller_turn))


def _with_inner(profile: Estimates, statistic: Callable[[Estimates], Estimate]) -> Reading:
    """A statistic of a profile and, beside it, its value without the first and the last block, which often stand out.

    Args:
        profile: R²_lin over depth, shape (blocks,).
        statistic: of two blocks or more.
    """
    whole = statistic(profile)
    inner = profile[1:-1]
    if inner.shape[0] < 2:
        return Reading(whole)
    without_ends = statistic(inner)
    return Reading(whole, beside={INNER: without_ends.value}, inner=without_ends)


def later(results: Results) -> Readings:
    """Mean of the later half of the blocks less mean of the earlier half; a middle block counts with the later."""

    def read(blocks: pd.DataFrame) -> Reading:
        step = steps(_profile(blocks))
        middle = step.shape[0] // 2
        # mean over j in the later half − mean over i in the earlier = mean over all such pairs of r_j − r_i
        return Reading(step[:middle, middle:].reduce(np.mean))

    return each_model(blocks_of(results), read)


def lowest(results: Results) -> Readings:
    """R²_lin of the least linear block."""
    return each_model(blocks_of(results), lambda blocks: extreme(_profile(blocks).readings(), np.min))


def gelu_distance(results: Results) -> Readings:
    """Distance of the two GELU models' profiles."""
    (pair,) = distances(_two_gelu(results))
    return {TOGETHER: pair}


def gelu_correlation(results: Results) -> Readings:
    """Correlation over blocks of the two GELU models' profiles."""
    (name, first), (other, second) = sorted(_two_gelu(results).items())
    if first.shape != second.shape:
        raise UntestableError(f"{first.shape[0]} blocks and {second.shape[0]} cannot be laid on each other")
    reading = correlate(first.value, second.value)
    return {TOGETHER: replace(reading, note=f"{name} ~ {other}")}


def _two_gelu(results: Results) -> dict[str, Estimates]:
    gelu = {name: profile for name, profile in profiles(results).items() if any(family in name for family in GELU)}
    if len(gelu) != 2:
        raise UntestableError(f"two GELU models are compared, and there are {len(gelu)}")
    return gelu


def cost_correlation(results: Results) -> Readings:
    """Rank correlation over blocks of R²_lin with what the swap costs; −1: the more linear, the cheaper."""

    def read(blocks: pd.DataFrame) -> Reading:
        return correlate(_profile(blocks).value, _costs(blocks).value, order=True)

    return each_model(blocks_of(results), read)


def dearest_near_linear(results: Results) -> Readings:
    """What the dearest swap of a near-linear block costs, as a multiple of the model's median swap."""

    def read(blocks: pd.DataFrame) -> Reading:
        costs = _costs(blocks)
        median = float(np.median(costs.value))
        if median <= 0:
            raise UntestableError("swaps of half the blocks cost nothing: there is no typical cost to compare with")
        relative = Estimates(costs.value / median, costs.low / median, costs.high / median)
        return extreme(_near_linear(_profile(blocks), relative), np.max)

    return each_model(blocks_of(results), read)


def cheapest_near_linear(results: Results) -> Readings:
    """Relative rise of perplexity on the cheapest swap of a near-linear block."""

    def read(blocks: pd.DataFrame) -> Reading:
        perplexity = measured(results, "models").set_index("model")["perplexity"]
        costs, before = _costs(blocks), float(perplexity[blocks["model"].iloc[0]])
        # ΔPPL / PPL
        relative = Estimates(costs.value / before, costs.low / before, costs.high / before)
        return extreme(_near_linear(_profile(blocks), relative), np.min)

    return each_model(blocks_of(results), read)


def _near_linear(r2: Estimates, numbers: Estimates) -> list[Reading]:
    """Of one number a block: those of near-linear blocks.

    Raises:
        UntestableError: no block is near-linear.
    """
    near = np.flatnonzero(r2.value >= NEAR_LINEAR)
    if not len(near):
        raise UntestableError(f"no block reaches an R² of {NEAR_LINEAR}: the highest is {r2.value.max():.2f}")
    readings = numbers.readings(f"block {{}}, of {len(near)} with R² ≥ {NEAR_LINEAR}")
    return [readings[block] for block in near]


def early(depth: int) -> int:
    """How many blocks count as early: the first third, as the paper's blocks 0 to 3 of twelve."""
    return depth // 3


def critical(costs: Estimates) -> tuple[set[int], set[int], set[int]]:
    """Early blocks whose swap costs over `CRITICAL` times the median of the later ones.

    Returns:
        Those that surely do (by the lower end), those that do (by the value), those that may (by the upper end).

    Raises:
        UntestableError: no early or no later block, or later blocks that cost nothing.
    """
    first_later = early(costs.shape[0])
    typical = float(np.median(costs.value[first_later:])) if first_later else 0.0
    if typical <= 0:
        raise UntestableError("no later blocks whose cost early ones could be compared with")

    def over(ends: np.ndarray) -> set[int]:
        return {block for block in range(first_later) if ends[block] > CRITICAL * typical}

    return over(costs.low), over(costs.value), over(costs.high)


def critical_overlap(results: Results) -> Readings:
    """How alike the critical early blocks of the two models are that are most alike: shared ones over all (Jaccard).

    1 for the same blocks, or none in either; 0 for no common one. The ends of the interval are the least and the most
    that the intervals of the costs leave possible.
    """
    swapped = {name: blocks for name, blocks in blocks_of(results).items() if blocks["dppl"].notna().any()}
    if len(swapped) < 2:
        raise UntestableError("a single model has no other to differ from")
    sets = {name: critical(_costs(blocks)) for name, blocks in swapped.items()}
    overlaps = []
    for (first, (sure, is_so, may)), (second, (sure_too, is_so_too, may_too)) in combinations(sorted(sets.items()), 2):
        ends = [_jaccard(is_so, is_so_too), _jaccard(sure, sure_too), _jaccard(may, may_too)]
        ends += [len(sure & sure_too) / max(len(may | may_too), 1), len(may & may_too) / max(len(sure | sure_too), 1)]
        overlap = Estimate(ends[0], min(ends), min(max(ends), 1.0))
        overlaps.append(Reading(overlap, f"{first} {sorted(is_so)} ~ {second} {sorted(is_so_too)}"))
    largest = max(overlaps, key=lambda reading: reading.estimate.value)
    low = max(reading.estimate.low for reading in overlaps)
    high = max(reading.estimate.high for reading in overlaps)
    return {TOGETHER: Reading(Estimate(largest.estimate.value, low, high), largest.note)}


def _jaccard(first: set[int], second: set[int]) -> float:
    union = first | second
    return len(first & second) / len(union) if union else 1.0


def fold_spread(results: Results) -> Readings:
    """Mean over blocks of the standard deviation of R²_lin over blocked folds of the text."""
    return each_model(blocks_of(results), lambda blocks: Reading(_of_sd(float(measured(blocks, "r2_sd").mean()))))


def largest_fold_spread(results: Results) -> Readings:
    """The same of the block where it is largest."""

    def read(blocks: pd.DataFrame) -> Reading:
        sd = measured(blocks, "r2_sd")
        return Reading(_of_sd(float(sd.max())), f"block {blocks['block'][sd.idxmax()]}")

    return each_model(blocks_of(results), read)


def _of_sd(sd: float) -> Estimate:
    """A standard deviation of `FOLDS` values, as of normal ones: (k − 1) s² / σ² is χ² with k − 1 degrees.

    Over blocks as if all erred together, at worst.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = ((FOLDS - 1) / chi2.ppf(probability, FOLDS - 1) for probability in (1 - tail, tail))
    return Estimate(sd, sd * low**0.5, sd * high**0.5)


def scale_probe(results: Results) -> Readings:
    """R²_lin of the most linear block of TinyLlama."""
    named = {name: profile for name, profile in profiles(results).items() if "tinyllama" in name.lower()}
    if not named:
        raise UntestableError("no TinyLlama among the models of this run")
    return {name: extreme(profile.readings(), np.max) for name, profile in named.items()}


# Notebook 03: products


def _beside(blocks: pd.DataFrame, results: Results, table: str) -> pd.DataFrame:
    """The blocks of a model that another table speaks of, with the columns of both.

    Raises:
        UntestableError: it speaks of none.
    """
    rows = results[table] if table in results else blocks[["model", "block"]].iloc[:0]
    both = blocks.merge(rows, on=["model", "block"], suffixes=("", f"_{table}"))
    if both.empty:
        raise UntestableError(f"not measured in this run: its results hold no {table}")
    return both


def _gains(blocks: pd.DataFrame) -> Estimates:
    return Estimates.of(blocks["gain"], blocks["gain_low"], blocks["gain_high"])


def median_gain(results: Results) -> Readings:
    """Median over blocks of the bilinear probe's gain."""
    return each_model(blocks_of(results), lambda blocks: Reading(_gains(blocks).reduce(np.median)))


def recipe_median_gain(results: Results) -> Readings:
    """The same, by the paper's own recipe, chosen on the rows that it is scored on: without an interval."""

    def read(blocks: pd.DataFrame) -> Reading:
        tried = _beside(blocks, results, "recipe")
        return Reading(exactly(tried["gain_recipe"].median()))

    return each_model(blocks_of(results), read)


def largest_gain(results: Results) -> Readings:
    """Largest gain of the bilinear probe over a model's blocks."""
    return each_model(blocks_of(results), lambda blocks: extreme(_gains(blocks).readings(), np.max))


def gain_correlation(results: Results) -> Readings:
    """Correlation over a model's blocks of the probe's gain with what the line leaves, 1 − R²_lin."""
    return each_model(blocks_of(results), lambda blocks: correlate(1 - blocks["r2"].to_numpy(), _gains(blocks).value))


def recipe_correlation(results: Results) -> Readings:
    """The same, by the paper's own recipe, over the blocks that it was tried on."""

    def read(blocks: pd.DataFrame) -> Reading:
        tried = _beside(blocks, results, "recipe")
        return correlate(1 - tried["r2"].to_numpy(), tried["gain_recipe"].to_numpy())

    return each_model(blocks_of(results), read)


def products_at_depth(results: Results) -> Readings:
    """Largest difference of two hidden layers with products from the same two layers without, over blocks tried."""

    def read(blocks: pd.DataFrame) -> Reading:
        tried = _beside(blocks[["model", "block"]], results, "controls").set_index("block")
        dense, poly = (tried[tried["control"] == control] for control in ("dense2x", "poly2x"))
        gap = (poly["r2"] - dense["r2"]).abs()
        # the same rows: the wider of the two intervals is an upper bound of what their difference can err by
        half = np.maximum(dense["r2_high"] - dense["r2_low"], poly["r2_high"] - poly["r2_low"]) / 2
        ends = zip(gap, (gap - half).clip(lower=0), gap + half, strict=True)
        gaps = [Reading(Estimate(*gap_of), f"block {block}") for block, gap_of in zip(gap.index, ends, strict=True)]
        return extreme(gaps, np.max)

    return each_model(blocks_of(results), read)


def saved_early(results: Results) -> Readings:
    """Largest share of a critical early block's cost that products save."""

    def read(blocks: pd.DataFrame) -> Reading:
        line, savings = _savings(blocks, results)
        _, dear, _ = critical(line)
        if not dear:
            raise UntestableError(f"no early block costs {CRITICAL:g} times what later ones do")
        return extreme([savings[block] for block in sorted(dear)], np.max)

    return each_model(blocks_of(results), read)


def saved_later(results: Results) -> Readings:
    """Largest share of a later block's cost that products save."""

    def read(blocks: pd.DataFrame) -> Reading:
        _, savings = _savings(blocks, results)
        return extreme(savings[early(len(savings)) :], np.max)

    return each_model(blocks_of(results), read)


def _savings(blocks: pd.DataFrame, results: Results) -> tuple[Estimates, list[Reading]]:
    """Every block's ΔPPL with the line, and the share of it that products save: (line − products) / line.

    Raises:
        UntestableError: not measured, or not of all blocks.
    """
    swapped = _beside(blocks, results, "layers")
    line = _costs(swapped)
    if len(swapped) < len(blocks):
        raise UntestableError(f"dppl is of blocks {', '.join(map(str, swapped['block']))} alone: all are needed")
    products = Estimates.of(swapped["dppl_poly"], swapped["dppl_poly_low"], swapped["dppl_poly_high"])
    # at the least: the line as cheap, the layer as dear as they may be
    shares = Estimates(
        (line.value - products.value) / line.value,
        (line.low - products.high) / np.abs(line.value),
        (line.high - products.low) / np.abs(line.value),
    )
    return line, shares.readings()


# Notebook 04: what carries a high R²


def lowest_median(results: tables.Results) -> Readings:
    """Of a model's near-linear blocks: the lowest R² of the median output feature."""
    return each_model(_rank_blocks(results), lambda blocks: extreme(_near_linear_medians(blocks), np.min))


def highest_median(results: tables.Results) -> Readings:
    """Of a model's near-linear blocks: the highest R² of the median output feature."""
    return each_model(_rank_blocks(results), lambda blocks: extreme(_near_linear_medians(blocks), np.max))


def _rank_blocks(results: tables.Results) -> dict[str, pd.DataFrame]:
    """Model → its rows of table `blocks`."""
    return dict(iter(results["blocks"].groupby("model", sort=False)))


def _near_linear_medians(blocks: pd.DataFrame) -> list[Reading]:
    medians = Estimates.of(*(blocks[f"median_r2{end}"].tolist() for end in ("", *tables.ENDS)))
    return _near_linear(without_interval(blocks["r2"].tolist()), medians)


def lowest_rank(results: tables.Results) -> Readings:
    """Of a model's near-linear blocks: the least rank of a map that reaches 90 % of the full R²; a whole number."""
    return each_model(_rank_blocks(results), lambda blocks: extreme(_near_linear_ranks(blocks), np.min))


def highest_rank(results: tables.Results) -> Readings:
    """Of a model's near-linear blocks: the highest of these ranks."""
    return each_model(_rank_blocks(results), lambda blocks: extreme(_near_linear_ranks(blocks), np.max))


def _near_linear_ranks(blocks: pd.DataFrame) -> list[Reading]:
    r2, ranks = (without_interval(blocks[name].astype(float).tolist()) for name in ("r2", "rank_90"))
    return _near_linear(r2, ranks)


def rank_correlation(results: tables.Results) -> Readings:
    """Rank correlation over a model's blocks of R²_lin with the rank of the map."""

    def read(blocks: pd.DataFrame) -> Reading:
        if blocks["rank_90"].isna().any():
            raise UntestableError("a map of some block explains nothing at any rank, so it has none")
        return correlate(blocks["r2"].tolist(), blocks["rank_90"].tolist(), order=True)

    return each_model(_rank_blocks(results), read)


# Notebook 05: profiles on several corpora


def corpora_correlation(results: tables.Results) -> Readings:
    """Lowest correlation over blocks of the main corpus' profile with another's."""
    main = results.settings["corpora"][0]

    def read(model: str) -> Reading:
        _check_others(results)
        rows = results["agreement"]
        rows = rows[(rows["model"] == model) & ((rows["corpus"] == main) | (rows["other"] == main))]
        if rows.empty:
            raise UntestableError("fewer than three blocks: their profiles have no correlation")
        lowest_r = extreme(_pair_readings(rows, "r"), np.min)
        if "inner" not in rows:
            return lowest_r
        return replace(lowest_r, inner=extreme(_pair_readings(rows, "inner"), np.min).estimate)

    return each_model(_by_name(results), read)


def corpora_shift(results: tables.Results) -> Readings:
    """Largest mean distance of the main corpus' profile from another's."""
    main, *others = results.settings["corpora"]

    def read(model: str) -> Reading:
        _check_others(results)
        rows = results["profiles"]
        curves = {
            corpus: Estimates(*curve[["r2", "r2_low", "r2_high"]].to_numpy().T)
            for corpus, curve in rows[rows["model"] == model].sort_values("block").groupby("corpus")
        }
        pairs = [Reading(distance(curves[main], curves[other]), f"{main} ~ {other}") for other in others]
        return extreme(pairs, np.max)

    return each_model(_by_name(results), read)


def _by_name(results: tables.Results) -> dict[str, str]:
    return {name: name for name in results.settings["models"]}


def _check_others(results: tables.Results) -> None:
    if len(results.settings["corpora"]) < 2:
        raise UntestableError("a single corpus has no other to compare with")


def _pair_readings(rows: pd.DataFrame, name: str) -> list[Reading]:
    return [
        Reading(Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"]), f"{row['corpus']} ~ {row['other']}")
        for row in rows.to_dict("records")
    ]


# Notebook 06: healing


def healed_original(results: Results) -> Readings:
    """What healing the original block does to perplexity, as it was done to the line: below 0, it lowers it."""
    readings: Readings = {}
    for name in results.settings["models"]:
        table = results["healing"]
        layers = table[table["model"] == name].set_index("layer")
        if layers.empty:
            readings[name] = Silent("not measured in this run: its results hold no healing")
            continue
        original = layers.loc["original, healed"]
        delta = Estimate(original["delta"], original["delta_low"], original["delta_high"])
        beside = {"healed line": float(layers["delta"]["line, healed"])}
        readings[name] = Reading(delta, f"block {original['block']}", beside)
    return readings


# Notebook 07: trained linear layers


def shortfall(results: tables.Results) -> Readings:
    """Largest shortfall in held-out R² of a trained linear layer, over ill-conditioned blocks and ways of training.

    Inputs count as ill-conditioned where their condition number exceeds the number of steps, as the claim was settled.
    (Gradient descent needs about as many steps as its square, so the rule is a narrow one.) The trained layer is taken
    as given; the interval is the closed form's.
    """
    taken = results.settings["steps"]
    both = results["ways"].merge(results["blocks"], on=["model", "block"])

    def worst(model: str) -> Reading:
        rows = both[(both["model"] == model) & (both["condition"] > taken)]
        if rows.empty:
            raise UntestableError(f"no inputs are ill-conditioned: no condition number exceeds the {taken} steps taken")
        # R² of the closed form − R² of the trained layer, block by block
        below = [
            Reading(
                Estimate(row.r2 - row.reached, row.r2_low - row.reached, row.r2_high - row.reached),
                f"{row.way}, block {row.block}",
            )
            for row in rows.itertuples()
        ]
        return extreme(below, np.max)

    return each_model(_by_name(results), worst)


# Notebook 08: models at random, and twins


def moved(results: tables.Results) -> Readings:
    """Mean distance of the trained profile from those of the same architecture at random, whole models.

    A random model is known as a bracket, from its held-out to its in-sample R². Value: from the middle of the brackets,
    averaged over seeds; lower end: from the nearest end of any seed; upper end: from the farthest.
    """
    own = results["controls"][results["controls"]["control"] == "own"]
    by_block = results["random"].assign(middle=(results["random"]["r2"] + results["random"]["r2_in_sample"]) / 2)
    bracket = by_block.groupby(["model", "block"]).agg(
        middle=("middle", "mean"), lowest=("r2", "min"), highest=("r2_in_sample", "max")
    )
    both = own.join(bracket, on=["model", "block"])
    distances = both[["model"]].assign(
        # |r_b − mean over seeds of the bracket's middle|
        value=(both["r2"] - both["middle"]).abs(),
        # from r_b's interval to the range of the seeds: 0 where they overlap
        low=np.maximum(both["r2_low"] - both["highest"], both["lowest"] - both["r2_high"]).clip(lower=0),
        # from the far end of the interval to the far end of the range
        high=np.maximum(both["r2_high"] - both["lowest"], both["highest"] - both["r2_low"]),
    )
    means = distances.groupby("model", sort=False).mean()
    return {row.Index: Reading(Estimate(row.value, row.low, row.high)) for row in means.itertuples()}


def architecture_beside_seeds(results: tables.Results) -> Readings:
    """The architecture's variance between twins, as a share of its own and the seeds' (notebook 08, `beside_seeds`)."""
    return _beside_seeds(results, "family", "share")


def text_beside_seeds(results: tables.Results) -> Readings:
    """How many times as far apart twins of two training texts lie as twins of two seeds (notebook 08)."""
    return _beside_seeds(results, "text", "ratio")


def _beside_seeds(results: tables.Results, effect: str, number: str) -> Readings:
    moving = measured(results, "beside_seeds")
    (row,) = moving[(moving["measured_on"] == "all") & (moving["effect"] == effect)].to_dict("records")
    families, texts = (" and ".join(results["twins"][column].unique()) for column in ("family", "measured_on"))
    found = Estimate(row[number], row[f"{number}_low"], row[f"{number}_high"])
    return {TOGETHER: Reading(found, f"among {families} twins, read on {texts}")}


# Notebook 12: massive rows


def _sinks(results: tables.Results) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Model → table → its rows, as mappings."""
    found = {name: results[name] for name in ("blocks", "massive", "costs")}
    return {
        model: {name: table[table["model"] == model].to_dict("records") for name, table in found.items()}
        for model in results.settings["models"]
    }


def fall_without_massive_rows(results: tables.Results) -> Readings:
    """Largest fall of R²_lin over a model's blocks when the map is fitted and scored without their massive rows."""

    def read(model: Any) -> Reading:
        falls = []
        for block in _with_massive_rows(model):
            fall = Estimate(
                block["r2"] - block["r2_ordinary"],
                # the worst of both intervals, as of any contrast
                block["r2_low"] - block["r2_ordinary_high"],
                block["r2_high"] - block["r2_ordinary_low"],
            )
            falls.append(Reading(fall, f"block {block['block']}"))
        return extreme(falls, np.max)

    return each_model(_sinks(results), read)


def rank_one_of_tokens(results: tables.Results) -> Readings:
    """Of a model's blocks that are nearly linear along one direction: the share that is not so without massive rows."""

    def read(model: Any) -> Reading:
        along_one = [block for block in model["blocks"] if block["rank_one"]]
        if not along_one:
            raise UntestableError("no block is nearly linear along one direction alone")
        still = [block for block in along_one if block["rank_one_ordinary"]]
        share = 1 - len(still) / len(along_one)
        return Reading(exactly(share), f"of {len(along_one)} blocks")

    return each_model(_sinks(results), read)


def least_at_first_position(results: tables.Results) -> Readings:
    """Share of a block's massive rows at position 0, of the block where it is least; of blocks that rest on them."""

    def read(model: Any) -> Reading:
        falls = {block["block"]: abs(block["fall"]) for block in _with_massive_rows(model)}
        resting = [kind for kind in model["massive"] if falls[kind["block"]] >= FEW_ROWS_DECIDE]
        if not resting:
            raise UntestableError(f"without its massive rows no block's R²_lin moves by {FEW_ROWS_DECIDE} or more")
        return extreme([Reading(exactly(kind["at_first"]), f"block {kind['block']}") for kind in resting], np.min)

    return each_model(_sinks(results), read)


def dearest_mended(results: tables.Results) -> Readings:
    """Of the dearest block with massive rows: the share of its swap's cost that is saved by a map of the other rows.

    The map is fitted to ordinary rows, and massive rows are left to the FFN (`d` of notebook 12; `a` is least squares
    on all rows).
    """

    def read(model: Any) -> Reading:
        if not model["costs"]:
            raise UntestableError("an encoder predicts no next token, so a swap costs no perplexity")
        nats = {
            (cost["block"], cost["kind"]): Estimate(cost["nats"], cost["nats_low"], cost["nats_high"])
            for cost in model["costs"]
            if cost["massive_rows"]
        }
        if not nats:
            raise UntestableError("no block with a massive row was swapped")
        dearest, _ = max((place for place in nats if place[1] == "a"), key=lambda place: nats[place].value)
        before, after = nats[dearest, "a"], nats[dearest, "d"]
        if before.low <= 0:
            raise UntestableError("the dearest swap of a block with massive rows may cost nothing")
        saved = Estimate(
            1 - after.value / before.value,
            # at the least: the mended map as dear, the other as cheap as they may be
            1 - after.high / before.low,
            1 - after.low / before.high,
        )
        return Reading(saved, f"block {dearest}")

    return each_model(_sinks(results), read)


def _with_massive_rows(model: Any) -> list[Mapping[str, Any]]:
    """A model's blocks that have massive rows.

    Raises:
        UntestableError: there is none.
    """
    blocks = [block for block in model["blocks"] if block["massive_rows"]]
    if not blocks:
        raise UntestableError("no block has a massive row")
    return blocks


STATISTICS: dict[str, Callable[[Results], Readings]] = {
    "spread": spread,
    "adjacent": adjacent,
    "turn": turn,
    "later": later,
    "lowest": lowest,
    "gelu_distance": gelu_distance,
    "gelu_correlation": gelu_correlation,
    "cost_correlation": cost_correlation,
    "dearest_near_linear": dearest_near_linear,
    "cheapest_near_linear": cheapest_near_linear,
    "critical_overlap": critical_overlap,
    "fold_spread": fold_spread,
    "largest_fold_spread": largest_fold_spread,
    "scale_probe": scale_probe,
    "median_gain": median_gain,
    "recipe_median_gain": recipe_median_gain,
    "largest_gain": largest_gain,
    "gain_correlation": gain_correlation,
    "recipe_correlation": recipe_correlation,
    "products_at_depth": products_at_depth,
    "saved_early": saved_early,
    "saved_later": saved_later,
    "lowest_median": lowest_median,
    "highest_median": highest_median,
    "lowest_rank": lowest_rank,
    "highest_rank": highest_rank,
    "rank_correlation": rank_correlation,
    "corpora_correlation": corpora_correlation,
    "corpora_shift": corpora_shift,
    "healed_original": healed_original,
    "shortfall": shortfall,
    "moved": moved,
    "architecture_beside_seeds": architecture_beside_seeds,
    "text_beside_seeds": text_beside_seeds,
    "fall_without_massive_rows": fall_without_massive_rows,
    "rank_one_of_tokens": rank_one_of_tokens,
    "least_at_first_position": least_at_first_position,
    "dearest_mended": dearest_mended,
}
"""What `claims.toml` and `claims_ours.toml` may name."""
