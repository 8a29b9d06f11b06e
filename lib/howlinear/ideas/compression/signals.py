"""Which signal tells beforehand what a swap costs? Signals, measured costs, and how well the one ranks the other.

A signal is a number per block that needs no swap: 1 − R²_lin (by which the paper, arXiv 2606.19379, would go), the size
of the error, the cost of mean ablation, the price in the loss (`price`), or what other papers choose blocks by
(`rivals`). Beside them stands `REPLACE_ONE`, which does swap, on text to fit on. A good one puts the blocks of a model
in the order of what their swaps cost on held-out text: Spearman's ρ, within each model and averaged.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int64
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.intervals import CONFIDENCE, Estimate
from howlinear.errors import InputError
from howlinear.ideas.compression.costs import cost, swap_cost
from howlinear.ideas.compression.price import Price
from howlinear.ideas.compression.reduced_rank import recovered
from howlinear.ideas.compression.rivals import Rivals
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.perplexity import held_out_folds, losses
from howlinear.instrument.swap_costs import swap_losses
from howlinear.text.rows import TokenRows

REPLACE_ONE = "replace one"
"""The signal that measures: what the swap costs on a few sequences of the text to fit on."""

IN_NATS = ("ablation × (1 − R²)", "price", "price, paired", REPLACE_ONE)
"""Signals in the unit of the costs; of these alone one can ask by which factor they miss."""

RESTS = 0.1
"""A map rests on massive rows if the ordinary ones' own map beats it by more than this on them, in R²; our choice."""


def block_costs(
    model: PreTrainedModel,
    blocks: Mapping[int, BlockCapture],
    maps: Mapping[int, AffineMap],
    text: TokenRows | Int64[Tensor, "n seq_len"],
) -> pd.DataFrame:
    """What each block costs that is replaced alone: by its map, and by its mean output.

    Args:
        model: the model; left as it was.
        blocks: block → its capture.
        maps: block → its map, fitted on the train side.
        text: rows, whose held-out part counts, or token ids, see `perplexity.held_out_folds`.

    Returns:
        A row per block: `r2` of the map; `nats`, `delta`, `low` and `high` as in `costs.cost`; `ablation`, what the
        mean costs in nats per token; `recovered`, the share of that which the map keeps (`reduced_rank.recovered`),
        and `width`, the length of its interval; NaN where ablation costs nothing that the text can show.
    """
    means = {block: AffineMap.constant(sum(kept.train)) for block, kept in blocks.items()}
    ids, fold = held_out_folds(text)
    base, swapped = swap_losses(model, maps, ids)
    _, ablated = swap_losses(model, means, ids)
    rows = []
    for block, kept in blocks.items():
        row = {"block": block, "r2": r2(maps[block], sum(kept.test))}
        row["ablation"] = float((ablated[block] - base).mean())
        share = recovered(base, swapped[block], ablated[block], fold)
        row["recovered"] = share.value if share else np.nan
        row["width"] = share.high - share.low if share else np.nan
        rows.append(row | cost(base, swapped[block], fold))
    return pd.DataFrame(rows).set_index("block")


def massive_table(blocks: Mapping[int, BlockCapture], maps: Mapping[int, AffineMap]) -> pd.DataFrame:
    """Which maps rest on a few massive rows (`instrument.massive`), and say nothing of all others.

    Args:
        blocks: block → its capture.
        maps: block → its map, fitted on the train side, all rows.

    Returns:
        A row per block that has massive rows: `block`, how many `massive_rows`; held out, `r2` of the map on all rows,
        `r2_ordinary` of the same map on the ordinary ones, and `own` of a map of their own on these; and whether the
        map `rests` on the massive ones, see `RESTS`.
    """
    rows = []
    for block, kept in blocks.items():
        count = len(kept.massive())
        if count:
            of_all = r2(maps[block], sum(kept.test))
            ordinary = kept.ordinary()
            of_ordinary = r2(maps[block], sum(ordinary.test))
            own_map, _ = fit(sum(ordinary.train))
            own = r2(own_map, sum(ordinary.test))
            row = {"block": block, "massive_rows": count, "r2": of_all, "r2_ordinary": of_ordinary, "own": own}
            rows.append(row | {"rests": own - of_ordinary > RESTS})
    return pd.DataFrame(rows, columns=["block", "massive_rows", "r2", "r2_ordinary", "own", "rests"])


def massive_sentence(tables: Mapping[str, pd.DataFrame]) -> str:
    """Which blocks' maps, signals and costs a few massive rows decide, by name.

    Args:
        tables: model → its table, from `massive_table`.
    """
    sentences = []
    for model, table in tables.items():
        resting = table[table["rests"].astype(bool)]
        if len(resting):
            blocks = "; ".join(
                f"block {row.block}, R² {row.r2:.2f} on all rows and {row.r2_ordinary:.2f} on the ordinary ones, "
                f"where a map of their own has {row.own:.2f}"
                for row in resting.itertuples()
            )
            sentences.append(
                f"In {model} a few massive rows decide the map, and with it the signals and the cost, of {blocks}. "
                "Notebook 12 tells of them, and how such a map is mended."
            )
    return " ".join(sentences) or "No map of these models rests on massive rows (notebook 12 tells of them)."


def signals(
    costs: pd.DataFrame,
    prices: Mapping[int, Price],
    rivals: Mapping[int, Rivals] | None = None,
    replaced: Mapping[int, float] | None = None,
) -> pd.DataFrame:
    """What is said of each block before it is swapped; the smaller, the cheaper.

    Args:
        costs: of one model, from `block_costs`; R² and the cost of mean ablation are taken from it, no other cost.
        prices: block → its price, from `price.price`.
        rivals: block → what other papers say of it, from `rivals.rivals`; none by default.
        replaced: block → what its swap costs on text to fit on, from `rivals.replace_one`; none by default.

    Returns:
        A row per block, a column per signal; those in `IN_NATS` are in nats per token.
    """
    priced = [prices[block] for block in costs.index]
    unexplained = 1 - costs["r2"]
    columns = {
        "1 − R²": unexplained,
        "residual": [found.residual for found in priced],
        "residual / stream": [found.residual / found.stream for found in priced],
        "ablation": costs["ablation"],
        "ablation × (1 − R²)": costs["ablation"] * unexplained,
        "price": [found.cost for found in priced],
        "price, paired": [found.paired for found in priced],
    }
    if rivals is not None:
        columns["block influence"] = [rivals[block].influence for block in costs.index]
        columns["sub-layer cosine"] = [rivals[block].cosine for block in costs.index]
        columns["CCA bound"] = [rivals[block].bound for block in costs.index]
    if replaced is not None:
        columns[REPLACE_ONE] = [replaced[block] for block in costs.index]
    return pd.DataFrame(columns, index=costs.index)


def set_costs(
    model: PreTrainedModel,
    maps: Mapping[int, AffineMap],
    said: pd.DataFrame,
    ids: Int64[Tensor, "n seq_len"],
    sets: int,
    generator: np.random.Generator,
) -> pd.DataFrame:
    """What random sets of two to four blocks cost together, beside the sums of what was said of their blocks.

    Args:
        model: the model; left as it was.
        maps: block → its map.
        said: a row per block, a column per signal, from `signals`.
        ids: held-out token ids, shape (n, seq_len).
        sets: how many sets to draw.
        generator: draws them.

    Returns:
        A row per set: its measured `cost` in nats per token, and a column per signal.
    """
    base = losses(model, ids)
    rows = []
    for _ in range(sets):
        size = min(generator.integers(2, 5), len(maps))
        drawn = sorted(generator.choice(list(maps), size, replace=False).tolist())
        measured = swap_cost(model, {block: maps[block] for block in drawn}, ids, base)
        rows.append({"cost": measured["nats"]} | said.loc[drawn].sum().to_dict())
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Agreement:
    """How a signal ranks what it should predict.

    Attributes:
        rho: Spearman's ρ, averaged over groups, with its 95 % bootstrap interval.
        factor: typical ratio by which the signal misses, e to the median |log(signal / truth)|; 1 is exact. Only
            where the signal is in the truth's own units does it say anything.
    """

    rho: Estimate
    factor: float


def agreement(signal: Sequence, truth: Sequence, draws: int = 999, seed: int = 0) -> Agreement:
    """Compare a signal with measured costs, group by group (a group: the blocks of one model).

    Args:
        signal: per group, the predictions.
        truth: per group, the measured costs, in the same order.
        draws: bootstrap draws, with replacement within each group (Efron's percentile interval). A draw of one value
            alone has no ranks and is left out.
        seed: of those draws.

    Raises:
        InputError: a group of fewer than four, sides of different lengths, or a group without any spread.
    """
    groups = _paired(signal, truth)
    generator = np.random.default_rng(seed)
    # each group is drawn anew on its own, and each draw of all of them gives one mean
    drawn = np.mean([_bootstrapped(*group, draws, generator) for group in groups], axis=0)
    low, high = np.nanquantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    rho = np.mean([_rho(*group) for group in groups])
    return Agreement(Estimate(float(rho), float(low), float(high)), _factor(groups))


def _rho(said: np.ndarray, measured: np.ndarray, axis: int = -1) -> np.ndarray | np.floating:
    return stats.spearmanrho(said, measured, axis=axis).statistic


def _bootstrapped(said: np.ndarray, measured: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Spearman's ρ of a group drawn anew, shape (draws,); NaN for a draw of one value alone."""
    with warnings.catch_warnings():
        # such a draw has no ρ, and scipy no interval where there is one; the interval is over all groups' draws
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        return stats.bootstrap(
            (said, measured), _rho, paired=True, vectorized=True, n_resamples=draws, method="percentile", rng=generator
        ).bootstrap_distribution


def _factor(groups: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """E to the median |log(signal / truth)|, over the pairs that have logarithms; infinite if none has."""
    said = np.concatenate([group[0] for group in groups])
    measured = np.concatenate([group[1] for group in groups])
    positive = (said > 0) & (measured > 0)
    if not positive.any():
        return float("inf")
    return float(np.exp(np.median(np.abs(np.log(said[positive] / measured[positive])))))


def _paired(signal: Sequence, truth: Sequence) -> list[tuple[np.ndarray, np.ndarray]]:
    """The groups as pairs of arrays, if they have ranks to compare."""
    if not signal or len(signal) != len(truth):
        raise InputError(f"{len(signal)} groups of predictions for {len(truth)} of costs: give them in pairs")
    groups = []
    for i, (said, measured) in enumerate(zip(signal, truth, strict=True)):
        if len(said) != len(measured) or len(said) < 4:
            raise InputError(
                f"group {i}: {len(said)} predictions for {len(measured)} costs; ranks need at least four pairs"
            )
        if np.ptp(said) == 0 or np.ptp(measured) == 0:
            raise InputError(f"group {i}: all values are the same, so there is no rank to compare")
        groups.append((np.asarray(said, dtype=float), np.asarray(measured, dtype=float)))
    return groups


def compare(said: pd.DataFrame, truth: pd.Series, seed: int = 0) -> pd.DataFrame:
    """The `Agreement` of every signal with the truth.

    Args:
        said: a column per signal; the first level of the index says which group a row belongs to.
        truth: the measured costs, with the same index.
        seed: of the bootstrap draws.

    Returns:
        A row per signal: `rho`, its interval's ends `low` and `high`, and `factor`.
    """
    group = said.index.get_level_values(0)
    names = group.unique()
    costs = [truth[group == name].to_numpy() for name in names]
    rows = {}
    for signal in said:
        predictions = [said.loc[group == name, signal].to_numpy() for name in names]
        found = agreement(predictions, costs, seed=seed)
        rows[signal] = {"rho": found.rho.value, "low": found.rho.low, "high": found.rho.high, "factor": found.factor}
    return pd.DataFrame.from_dict(rows, orient="index")


def ranking(said: pd.DataFrame, costs: pd.DataFrame, joint: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """How well every signal ranks the costs of single blocks, and of sets of blocks.

    Args:
        said: of `signals`, a row per model and block.
        costs: of `block_costs`, with the same index.
        joint: of `set_costs`, a row per model and set.
        seed: of the bootstrap draws.

    Returns:
        A row per signal; columns (`one block` or `several`; `rho`, `low`, `high` or `factor`). The factor is NaN for
        signals that are not in the unit of the costs (`IN_NATS`).
    """
    single = compare(said, costs["nats"], seed)
    several = compare(joint[list(said)], joint["cost"], seed)
    for table in (single, several):
        table.loc[~table.index.isin(IN_NATS), "factor"] = np.nan
    return pd.concat({"one block": single, "several": several}, axis=1)


def folded(table: pd.DataFrame, most: int = 12) -> pd.DataFrame:
    """A deep table laid out in several columns side by side, so that it reads at one column of a page.

    Args:
        table: a row per block.
        most: rows that stand below one another; a table of no more stays as it is.
    """
    if len(table) <= most:
        return table
    parts = -(-len(table) // most)
    height = -(-len(table) // parts)
    flat = table.copy()
    if flat.columns.nlevels == 2 and len(set(flat.columns.get_level_values(1))) == 1:
        flat.columns = flat.columns.get_level_values(0)  # one model: its name at every column says nothing
    flat.columns = [" ".join(map(str, name)) if isinstance(name, tuple) else name for name in flat.columns]
    flat = flat.reset_index()
    pieces = [flat.iloc[start : start + height].reset_index(drop=True) for start in range(0, len(flat), height)]
    side_by_side = pd.concat(pieces, axis=1).astype(object)
    return side_by_side.where(side_by_side.notna(), "")
