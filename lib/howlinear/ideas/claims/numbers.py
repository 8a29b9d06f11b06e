"""The numbers that claims are judged by, each read from the tables of a notebook's results with its interval.

A statistic of a model is a function of its tables; `per_model` takes it of every model, or says by which rule it cannot
be taken. Numbers of a pair of models, or of all twins, are under `TOGETHER`; no number is pooled over models.
`contrasts` holds their building blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import chi2

from howlinear.core import profile_statistics
from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.core.profile_statistics import FEW_ROWS_DECIDE
from howlinear.files.tables import Results, with_ends
from howlinear.ideas.claims import contrasts
from howlinear.ideas.claims.contrasts import TOGETHER, Reading, Readings, UntestableError, distance, extreme
from howlinear.text.rows import FOLDS

GELU = ("gpt2", "pythia")
"""Families whose blocks are two layers with a GELU between them."""

NEAR_LINEAR = 0.9
"""R² from which a block counts as near-linear, as in notebook 04."""

CRITICAL = 3.0
"""A block is critical if replacing it by the line costs this many times what it costs for a typical later block."""

POWER = 0.5
"""Least share of a planted teacher that a search with power finds in the median block."""

NO_COST = "an encoder predicts no next token, so a swap costs no perplexity"

Statistic = Callable[[Results], Readings]

STATISTICS: dict[str, Statistic] = {}
"""The statistics that `claims.toml` and `claims_ours.toml` may name."""


# Model by model, or of several together


def per_model(read: Callable[[Results], Reading]) -> Statistic:
    """Register a statistic of one model's tables, taken of every model of a run, or the reason why it cannot be."""

    @wraps(read)
    def statistic(results: Results) -> Readings:
        readings: Readings = {}
        for name in results.settings["models"]:
            try:
                readings[name] = read(of_model(results, name))
            except UntestableError as error:
                readings[name] = str(error)
        return readings

    return of_several(statistic)


def of_several(statistic: Statistic) -> Statistic:
    """Register a statistic of all tables, so that claims can name it."""

    @wraps(statistic)
    def of_tested(results: Results) -> Readings:
        beside = results.settings.get("beside", ())  # models that were made to show something are no test of it
        if not beside:
            return statistic(results)
        tested = [name for name in results.settings["models"] if name not in beside]
        tables = {
            key: table[~table["model"].isin(beside)] if "model" in table else table for key, table in results.items()
        }
        return statistic(Results(results.stem, tables, {"settings": {**results.settings, "models": tested}}))

    STATISTICS[statistic.__name__] = of_tested
    return of_tested


def of_model(results: Results, name: str) -> Results:
    """Select a model's rows of every table with a column `model`."""
    own = {key: table[table["model"] == name] for key, table in results.items() if "model" in table}
    return Results(results.stem, own, results.run)


def measured(found: Mapping[str, Any] | pd.DataFrame, key: str) -> Any:
    """Return a table or column that not every run measures; raise `UntestableError` if it is missing."""
    if key not in found or found[key].empty:
        raise UntestableError(f"not measured in this run: its results hold no {key}")
    return found[key]


# Notebook 02: the profiles, the costs of swaps, the spread over data


@per_model
def spread(found: Results) -> Reading:
    """Highest block less lowest."""
    return contrasts.of_profile(found["blocks"], profile_statistics.spread)


@per_model
def adjacent(found: Results) -> Reading:
    """Largest step, up or down, between neighbours."""
    return contrasts.of_profile(found["blocks"], profile_statistics.largest_step)


@per_model
def turn(found: Results) -> Reading:
    """The smaller of the largest rise and the largest fall with depth: 0 or below for a monotone profile."""
    return contrasts.of_profile(found["blocks"], profile_statistics.smaller_turn)


@per_model
def later(found: Results) -> Reading:
    """Mean of the later half of the blocks less mean of the earlier half; a middle block counts with the later."""
    return replace(contrasts.of_profile(found["blocks"], profile_statistics.later_less_earlier), inner=None)


@per_model
def lowest(found: Results) -> Reading:
    """R²_lin of the least linear block."""
    return extreme(found["blocks"], "r2", np.min)


@of_several
def gelu_distance(results: Results) -> Readings:
    """Distance of the two GELU models' profiles."""
    (name, first), (other, second) = _two_gelu(results)
    return {TOGETHER: Reading(distance(first, second), f"{name} ~ {other}")}


@of_several
def gelu_correlation(results: Results) -> Readings:
    """Correlation over blocks of the two GELU models' profiles."""
    (name, first), (other, second) = _two_gelu(results)
    contrasts.check_depth(first, second)
    return {TOGETHER: replace(contrasts.correlate(first["r2"], second["r2"]), note=f"{name} ~ {other}")}


def _two_gelu(results: Results) -> list[tuple[str, pd.DataFrame]]:
    """Return name and blocks of the two GELU models, sorted by name."""
    blocks = results["blocks"]
    gelu = sorted(name for name in blocks["model"].unique() if any(family in name for family in GELU))
    if len(gelu) != 2:
        raise UntestableError(f"two GELU models are compared, and there are {len(gelu)}")
    return [(name, blocks[blocks["model"] == name]) for name in gelu]


@per_model
def cost_correlation(found: Results) -> Reading:
    """Rank correlation over blocks of R²_lin with what the swap costs; −1: the more linear, the cheaper."""
    blocks = _swapped(found["blocks"])
    return contrasts.correlate(blocks["r2"], blocks["dppl"], order=True)


@per_model
def dearest_near_linear(found: Results) -> Reading:
    """Cost of the most expensive swap of a near-linear block, as a multiple of the model's median swap."""
    blocks = _swapped(found["blocks"])
    # taken as measured: the interval is that of the most expensive swap, and a little narrow for the ratio
    typical = blocks["dppl"].median()
    if typical <= 0:
        raise UntestableError("swaps of half the blocks cost nothing: there is no typical cost to compare with")
    return _extreme_near_linear(blocks, "dppl", np.max, unit=typical)


@per_model
def cheapest_near_linear(found: Results) -> Reading:
    """Relative rise of perplexity, ΔPPL / PPL, on the cheapest swap of a near-linear block."""
    blocks = _swapped(found["blocks"])
    perplexity = measured(found, "models")["perplexity"].item()
    return _extreme_near_linear(blocks, "dppl", np.min, unit=perplexity)


def _swapped(blocks: pd.DataFrame, every: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a model's blocks, if the cost of swapping was measured for each of them, or for each of `every`."""
    costed = blocks[blocks["dppl"].notna()]
    if costed.empty:
        raise UntestableError(NO_COST)
    if len(costed) < len(blocks if every is None else every):
        raise UntestableError(f"dppl is of blocks {', '.join(map(str, costed['block']))} alone: all are needed")
    return blocks


def _extreme_near_linear(blocks: pd.DataFrame, name: str, pick: Callable[..., float], unit: float = 1.0) -> Reading:
    """The extreme of a number over near-linear blocks, in multiples of a unit."""
    near = blocks[blocks["r2"] >= NEAR_LINEAR]
    if near.empty:
        raise UntestableError(f"no block reaches an R² of {NEAR_LINEAR}: the highest is {blocks['r2'].max():.2f}")
    in_units = near.assign(**(near[with_ends(name)].astype(float) / unit))
    return extreme(in_units, name, pick, f"block {{block}}, of {len(near)} with R² ≥ {NEAR_LINEAR}")


def early(depth: int) -> int:
    """Return how many blocks count as early: the first third, as the paper's blocks 0 to 3 of twelve."""
    return depth // 3


def critical(blocks: pd.DataFrame) -> tuple[set[int], set[int], set[int]]:
    """Early blocks whose swap costs over `CRITICAL` times the later median, by lower end, value and upper end."""
    value, low, high = contrasts.intervals(blocks, "dppl")
    first_later = early(len(blocks))
    typical = np.median(value[first_later:]) if first_later else 0.0
    if typical <= 0:
        raise UntestableError("no later blocks whose cost early ones could be compared with")
    surely, so, maybe = (
        set(np.flatnonzero(ends[:first_later] > CRITICAL * typical).tolist()) for ends in (low, value, high)
    )
    return surely, so, maybe


@of_several
def critical_overlap(results: Results) -> Readings:
    """Overlap of critical early blocks in the two models that are most alike: shared blocks over all (Jaccard)."""
    swapped = results["blocks"].groupby("model").filter(lambda blocks: blocks["dppl"].notna().all())
    if swapped["model"].nunique() < 2:
        raise UntestableError("a single model has no other to differ from")
    sets = {name: critical(blocks) for name, blocks in swapped.groupby("model")}
    # 1 for the same blocks, or none in either; 0 for none in common. The ends of the interval are the least and the
    # most that the intervals of the early blocks' costs leave possible; the later median is taken as measured.
    overlaps = []
    for (first, (surely, so, maybe)), (other, (surely_too, so_too, maybe_too)) in combinations(sets.items(), 2):
        # least: what only one of the two may share is critical there alone; most: it is critical in both, or in neither
        least = _overlap(surely & surely_too, maybe | maybe_too)
        most = _overlap(maybe & maybe_too, surely | surely_too | (maybe & maybe_too))
        note = f"{first} {sorted(so)} ~ {other} {sorted(so_too)}"
        overlaps.append((_overlap(so & so_too, so | so_too), least, most, note))
    value, low, high, notes = zip(*overlaps, strict=True)
    return {TOGETHER: Reading(Estimate(max(value), max(low), max(high)), notes[np.argmax(value)])}


def _overlap(shared: set[int], either: set[int]) -> float:
    return len(shared) / len(either) if either else 1.0


@per_model
def fold_spread(found: Results) -> Reading:
    """Mean over blocks of the standard deviation of R²_lin over document folds; the paper's is over five of its own."""
    return Reading(_of_sd(measured(found["blocks"], "r2_sd").mean()), f"over {FOLDS} folds")


@per_model
def largest_fold_spread(found: Results) -> Reading:
    """Standard deviation of R²_lin over blocked folds in the block where it is largest."""
    sd = measured(found["blocks"], "r2_sd")
    block = found["blocks"]["block"][sd.idxmax()]
    return Reading(_of_sd(sd.max(), of=len(sd)), f"block {block}, over {FOLDS} folds")


def _of_sd(sd: float, of: int = 1) -> Estimate:
    """Add an interval to a standard deviation of `FOLDS` normal values: (k − 1) s² / σ² is χ² with k − 1 degrees."""
    # For a mean over blocks this is the worst case, in which all err together. If it is the largest of several, all of
    # their intervals hold at once (Bonferroni).
    tail = (1 - CONFIDENCE) / 2 / of
    low = ((FOLDS - 1) / chi2.ppf(1 - tail, FOLDS - 1)) ** 0.5
    high = ((FOLDS - 1) / chi2.ppf(tail, FOLDS - 1)) ** 0.5
    return Estimate(float(sd), float(sd * low), float(sd * high))


@of_several
def scale_probe(results: Results) -> Readings:
    """R²_lin of the most linear block of TinyLlama."""
    named = [name for name in results.settings["models"] if "tinyllama" in name.lower()]
    if not named:
        raise UntestableError("no TinyLlama among the models of this run")
    return {name: extreme(of_model(results, name)["blocks"], "r2", np.max) for name in named}


# Notebook 03: products


@per_model
def median_gain(found: Results) -> Reading:
    """Median over blocks of the bilinear probe's gain."""
    value, low, high = (float(np.median(ends)) for ends in contrasts.intervals(found["blocks"], "gain"))
    return _with_power(found, Reading(Estimate(value, low, high)))


@per_model
def recipe_median_gain(found: Results) -> Reading:
    """Median gain by the paper's own recipe, chosen on the rows that it is scored on: without an interval."""
    return Reading(Estimate.exact(_beside(found, "recipe")["gain_recipe"].median()))


@per_model
def largest_gain(found: Results) -> Reading:
    """Largest gain of the bilinear probe over a model's blocks."""
    return _with_power(found, extreme(found["blocks"], "gain", np.max))


@per_model
def gain_correlation(found: Results) -> Reading:
    """Correlation over a model's blocks of the probe's gain with what the line leaves, 1 − R²_lin."""
    return _with_power(found, contrasts.correlate(1 - found["blocks"]["r2"], found["blocks"]["gain"]))


def _with_power(found: Results, said: Reading) -> Reading:
    """Add to a reading whether the bilinear probe finds teachers that are planted in the same model's rows."""
    if "power" not in found or found["power"].empty:
        return said
    planted = found["power"]["planted"]
    if planted.median() >= POWER:
        return said
    reason = f"the search finds {planted.median():.2f} of a planted teacher in the median of {len(planted)} blocks"
    return replace(said, no_power=reason)


@per_model
def recipe_correlation(found: Results) -> Reading:
    """Correlation of the gain by the paper's own recipe with 1 − R²_lin, over the blocks that it was tried on."""
    tried = _beside(found, "recipe")
    return contrasts.correlate(1 - tried["r2"], tried["gain_recipe"])


@per_model
def products_at_depth(found: Results) -> Reading:
    """Largest difference in R² of two layers with products from the same two without, over the blocks tried."""
    tried = measured(found, "controls").set_index("block")
    dense, poly = (tried[tried["control"] == control] for control in ("dense2x", "poly2x"))
    gap = (poly["r2"] - dense["r2"]).abs()
    # the rows are the same, so the wider of the two intervals bounds the error of their difference
    half = np.maximum(dense["r2_high"] - dense["r2_low"], poly["r2_high"] - poly["r2_low"]) / 2
    gaps = pd.DataFrame({"gap": gap, "gap_low": (gap - half).clip(lower=0), "gap_high": gap + half})
    return extreme(gaps.reset_index(), "gap", np.max)


@per_model
def saved_early(found: Results) -> Reading:
    """Largest share of a critical early block's cost that products save."""
    swapped = _savings(found)
    _, dear, _ = critical(swapped)
    if not dear:
        raise UntestableError(f"no early block costs {CRITICAL:g} times what later ones do")
    return _most_saved(swapped[swapped["block"].isin(dear)])


@per_model
def saved_later(found: Results) -> Reading:
    """Largest share of a later block's cost that products save."""
    swapped = _savings(found)
    return _most_saved(swapped[early(len(swapped)) :])


def _most_saved(blocks: pd.DataFrame) -> Reading:
    """The largest share saved, of the blocks whose line has a cost."""
    costly = blocks[blocks["saved"].notna()]
    if costly.empty:
        raise UntestableError("in none of these blocks does the line cost something for certain")
    return extreme(costly, "saved", np.max, f"block {{block}}, of {len(costly)} that cost something")


def _beside(found: Results, table: str) -> pd.DataFrame:
    """Return the blocks that are in another table too, with the columns of both."""
    return found["blocks"].merge(measured(found, table), on="block", suffixes=("", f"_{table}"))


def _savings(found: Results) -> pd.DataFrame:
    """Return every block's ΔPPL with the line, and the share that products save; NaN if the line may cost nothing."""
    return _swapped(_beside(found, "layers"), found["blocks"])


# Notebook 04: what carries a high R²


@per_model
def lowest_median(found: Results) -> Reading:
    """Lowest R² of the median output feature over a model's near-linear blocks."""
    return _extreme_near_linear(found["blocks"], "median_r2", np.min)


@per_model
def highest_median(found: Results) -> Reading:
    """Highest R² of the median output feature over a model's near-linear blocks."""
    return _extreme_near_linear(found["blocks"], "median_r2", np.max)


@per_model
def lowest_rank(found: Results) -> Reading:
    """Lowest rank, over a model's near-linear blocks, of a map that reaches 90 % of the full R²; a whole number."""
    return _extreme_near_linear(contrasts.without_intervals(found["blocks"], "rank_90"), "rank_90", np.min)


@per_model
def highest_rank(found: Results) -> Reading:
    """Highest rank, over a model's near-linear blocks, of a map that reaches 90 % of the full R²."""
    return _extreme_near_linear(contrasts.without_intervals(found["blocks"], "rank_90"), "rank_90", np.max)


@per_model
def rank_correlation(found: Results) -> Reading:
    """Rank correlation over a model's blocks of R²_lin with the rank of the map."""
    blocks = found["blocks"]
    if blocks["rank_90"].isna().any():
        raise UntestableError("a map of some block explains nothing at any rank, so it has none")
    return contrasts.correlate(blocks["r2"], blocks["rank_90"], order=True)


# Notebook 05: profiles on several corpora


@per_model
def corpora_correlation(found: Results) -> Reading:
    """Lowest correlation over blocks of the main corpus' profile with another's."""
    main, *_ = _several_corpora(found)
    pairs = found["agreement"]
    pairs = pairs[(pairs["corpus"] == main) | (pairs["other"] == main)]
    if pairs.empty:
        raise UntestableError("fewer than three blocks: their profiles have no correlation")
    lowest_r = extreme(pairs, "r", np.min, "{corpus} ~ {other}")
    if "inner" not in pairs:
        return lowest_r
    return replace(lowest_r, inner=extreme(pairs, "inner", np.min, "").estimate)


@per_model
def corpora_shift(found: Results) -> Reading:
    """Largest mean distance of the main corpus' profile from another's."""
    main, *others = _several_corpora(found)
    profiles = dict(iter(found["profiles"].sort_values("block").groupby("corpus")))
    shifts = [{"other": other} | distance(profiles[main], profiles[other]).columns("shift") for other in others]
    return extreme(pd.DataFrame(shifts), "shift", np.max, f"{main} ~ {{other}}")


def _several_corpora(found: Results) -> list[str]:
    corpora = found.settings["corpora"]
    if len(corpora) < 2:
        raise UntestableError("a single corpus has no other to compare with")
    return corpora


# Notebook 06: healing


@per_model
def healed_original(found: Results) -> Reading:
    """Change in perplexity when the original block is healed as the line was; negative if it improves."""
    healing = measured(found, "healing").set_index("layer")
    original, line = healing.loc["original, healed"], healing.loc["line, healed"]
    delta = Estimate(*original[with_ends("delta")].astype(float))
    return Reading(delta, f"block {original['block']}; healed line {line['delta']:.1f}")


# Notebook 07: trained linear layers


@per_model
def shortfall(found: Results) -> Reading:
    """Largest shortfall in held-out R² of a trained linear layer, over ill-conditioned blocks and ways of training."""
    # Inputs count as ill-conditioned if their condition number exceeds the number of steps, as fixed with the claim: a
    # narrow rule, since gradient descent needs about as many steps as its square. The trained layer is taken as given.
    steps = found.settings["steps"]
    trained = found["ways"].merge(found["blocks"], on="block")
    trained = trained[trained["condition"] > steps]
    if trained.empty:
        raise UntestableError(f"no inputs are ill-conditioned: no condition number exceeds the {steps} steps taken")
    # R² of the closed form − R² of the trained layer
    below = trained.assign(**trained[with_ends("r2")].sub(trained["reached"], axis=0))
    return extreme(below, "r2", np.max, "{way}, block {block}")


# Notebook 08: models at random, and twins


@per_model
def moved(found: Results) -> Reading:
    """Mean distance of the trained profile from those of whole random models of the same architecture."""
    # A random model's R² is known as a bracket, from held out to in sample. Value: from the middle of the brackets,
    # averaged over seeds; lower end: from the nearest end of any seed; upper end: from the farthest.
    own, random = found["controls"], found["random"]
    by_block = random.assign(middle=(random["r2"] + random["r2_in_sample"]) / 2).groupby("block")
    bracket = by_block.agg(middle=("middle", "mean"), lowest=("r2", "min"), highest=("r2_in_sample", "max"))
    both = own[own["control"] == "own"].join(bracket, on="block")
    # |r_b − mean over seeds of the bracket's middle|
    from_mean = (both["r2"] - both["middle"]).abs()
    # from r_b's interval to the range of the seeds: 0 where they overlap
    to_range = np.maximum(both["r2_low"] - both["highest"], both["lowest"] - both["r2_high"]).clip(lower=0)
    # from the far end of the interval to the far end of the range
    across = np.maximum(both["r2_high"] - both["lowest"], both["highest"] - both["r2_low"])
    return Reading(Estimate(float(from_mean.mean()), float(to_range.mean()), float(across.mean())))


@of_several
def architecture_beside_seeds(results: Results) -> Readings:
    """Architecture's variance between twins, as a share of its own plus the seeds' (notebook 08, `beside_seeds`)."""
    return _beside_seeds(results, "family", "share")


@of_several
def text_beside_seeds(results: Results) -> Readings:
    """How many times as far apart twins of two training texts lie as twins of two seeds (notebook 08)."""
    return _beside_seeds(results, "text", "ratio")


def _beside_seeds(results: Results, effect: str, number: str) -> Readings:
    moving = measured(results, "beside_seeds")
    (row,) = moving[(moving["measured_on"] == "all") & (moving["effect"] == effect)].to_dict("records")
    families, texts = (" and ".join(results["twins"][column].unique()) for column in ("family", "measured_on"))
    found = Estimate(*(row[column] for column in with_ends(number)))
    return {TOGETHER: Reading(found, f"among {families} twins, read on {texts}")}


# Notebook 12: massive rows


@per_model
def fall_without_massive_rows(found: Results) -> Reading:
    """Largest fall of R²_lin over a model's blocks when the map is fitted and scored without their massive rows."""
    blocks = _with_massive_rows(found["blocks"])
    # the worst of both intervals, as in any contrast
    falls = blocks.assign(
        fall=blocks["r2"] - blocks["r2_ordinary"],
        fall_low=blocks["r2_low"] - blocks["r2_ordinary_high"],
        fall_high=blocks["r2_high"] - blocks["r2_ordinary_low"],
    )
    return extreme(falls, "fall", np.max)


@per_model
def rank_one_of_tokens(found: Results) -> Reading:
    """Share of the blocks nearly linear along one direction alone that are not so without massive rows."""
    along_one = found["blocks"][found["blocks"]["rank_one"]]
    if along_one.empty:
        raise UntestableError("no block is nearly linear along one direction alone")
    of_tokens = ~along_one["rank_one_ordinary"].to_numpy(bool)
    return Reading(Estimate.of_share(of_tokens), f"of {len(along_one)} blocks")


@per_model
def least_at_first_position(found: Results) -> Reading:
    """Lowest share of massive rows at position 0, over the blocks whose R²_lin rests on massive rows."""
    blocks = _with_massive_rows(found["blocks"])
    rests = blocks["fall"].abs() >= FEW_ROWS_DECIDE
    resting = blocks.loc[rests, ["block"]].merge(found["massive"], on="block")
    if resting.empty:
        raise UntestableError(f"without its massive rows no block's R²_lin moves by {FEW_ROWS_DECIDE} or more")
    return extreme(contrasts.without_intervals(resting, "at_first"), "at_first", np.min)


@per_model
def dearest_mended(found: Results) -> Reading:
    """Share of the cost of the costliest swap of a block with massive rows that a map of its other rows saves."""
    costs = found["costs"]
    if costs.empty:
        raise UntestableError(NO_COST)
    # d of notebook 12 is a map of ordinary rows, with massive rows left to the FFN; a is least squares on all rows
    of_kind = {kind: rows.set_index("block") for kind, rows in costs[costs["massive_rows"] > 0].groupby("kind")}
    if not of_kind:
        raise UntestableError("no block with a massive row was swapped")
    dearest = of_kind["a"]["nats"].idxmax()
    if of_kind["a"].loc[dearest, "nats_low"] <= 0:
        raise UntestableError("the dearest swap of a block with massive rows may cost nothing")
    return Reading(Estimate(*of_kind["d"].loc[dearest, with_ends("mended")]), f"block {dearest}")


def _with_massive_rows(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return a model's blocks that have massive rows, if there are any."""
    massive = blocks[blocks["massive_rows"] > 0]
    if massive.empty:
        raise UntestableError("no block has a massive row")
    return massive
