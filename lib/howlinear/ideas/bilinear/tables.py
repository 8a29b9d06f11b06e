"""Notebook 03's tables: the probe on every block, its power, its rank, the gate; a row a measurement."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import (
    BootstrapMethod,
    ConstantInputWarning,
    DegenerateDataWarning,
    PermutationMethod,
    pearsonr,
    spearmanr,
)

from howlinear.core.estimates import Estimate
from howlinear.ideas.bilinear.gate import end_to_end
from howlinear.ideas.bilinear.power import hidden_teacher, power
from howlinear.ideas.bilinear.probe import probe
from howlinear.instrument.capture import BlockCapture

RESAMPLES = 9_999
ALL = "all"  # the row of a table over models that takes all blocks together

Blocks = Mapping[int, BlockCapture]  # block → what was captured of it


def gains(models: Mapping[str, Blocks], rank: int = 16, seeds: int = 3, steps: int = 100) -> pd.DataFrame:
    """What the branch gains on every block.

    Args:
        models: model → its captured blocks, with samples.
        rank: as `probe` takes it, and so are the others.
        seeds: fits per block.
        steps: most iterations per fit.

    Returns:
        A row a block: `model`, `block`, `r2_lin`, `r2_poly`; `gain` with its interval `low`, `high`; what the line
        leaves, `left` = 1 − R²_lin, and the share of that which the branch recovers, `recovered`.
    """
    table = []
    for model, block, kept in _each_block(models):
        found = probe(kept, rank, seeds, steps)
        table.append(
            {
                "model": model,
                "block": block,
                "r2_lin": found.r2_lin,
                "r2_poly": found.r2_poly,
                "gain": found.gain.value,
                "low": found.gain.low,
                "high": found.gain.high,
                "left": 1 - found.r2_lin,
                "recovered": found.recovered,
            }
        )
    return pd.DataFrame(table)


def powers(models: Mapping[str, Blocks], count: int, rank: int = 16, seeds: int = 3, steps: int = 100) -> pd.DataFrame:
    """What the probe recovers of teachers that are known, on `count` blocks of each model.

    Returns:
        A row a block: `model`, `block`, and the shares recovered of the teachers of `Power`: `planted`, `hidden` (in
        noise), `cubic`, `shuffled`.
    """
    table = []
    for model, block, kept in _each_block(models, count):
        found = power(kept, rank, seeds, steps=steps)
        row = {"model": model, "block": block, "planted": found.planted, "hidden": found.in_noise}
        table.append(row | {"cubic": found.cubic, "shuffled": found.shuffled})
    return pd.DataFrame(table)


def rank_sweep(models: Mapping[str, Blocks], ranks: Sequence[int], count: int, steps: int = 100) -> pd.DataFrame:
    """The share recovered as the branch's rank grows, one fit each, on `count` blocks of each model.

    Returns:
        A row a rank of a block: `model`, `block`, `rank`, `recovered`; and `hidden`, what is recovered of a hidden
        teacher of that rank, in the middle one of the blocks, NaN in the others.
    """
    middle = {model: spaced(blocks, count)[count // 2] for model, blocks in models.items()}
    table = []
    for model, block, kept in _each_block(models, count):
        for rank in ranks:
            recovered = probe(kept, rank, seeds=1, steps=steps).recovered
            hidden = hidden_teacher(kept, rank, steps=steps) if block == middle[model] else np.nan
            table.append({"model": model, "block": block, "rank": rank, "recovered": recovered, "hidden": hidden})
    return pd.DataFrame(table)


def gates(models: Mapping[str, Blocks], rates: Sequence[float], rank: int = 16, steps: int = 600) -> pd.DataFrame:
    """Every block's branch trained end to end, at each learning rate.

    Returns:
        A row a block at a rate: `rate`, `model`, `block`, and what `EndToEnd` holds: `gain`, `gate`, `share`, `r2_lin`;
        `left` = 1 − R²_lin.
    """
    table = []
    for rate in rates:
        for model, block, kept in _each_block(models):
            found = vars(end_to_end(kept, rank, rate, steps))
            table.append({"rate": rate, "model": model, "block": block} | found | {"left": 1 - found["r2_lin"]})
    return pd.DataFrame(table)


def gate_order(gates: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """Whether the gate, and what passes it, go by what the line leaves; and how the gain compares with the probe's.

    Args:
        gates: as from `gates`.
        gains: as from `gains`.

    Returns:
        A row a rate: `rate`, `ρ of gate` and `ρ of share` (Spearman's, over all blocks, with what the line leaves; 0
        where it is undefined), `median gate`, `gain ÷ probe's` (of the gains, summed over blocks).
    """
    table = []
    for rate, group in gates.groupby("rate"):
        row = {"rate": rate}
        for column in ("gate", "share"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConstantInputWarning)
                rho = spearmanr(group.left, group[column]).statistic
            row[f"ρ of {column}"] = float(np.nan_to_num(rho))
        row["median gate"] = group.gate.median()
        row["gain ÷ probe's"] = group.gain.sum() / max(gains.gain.sum(), 1e-9)
        table.append(row)
    return pd.DataFrame(table)


@dataclass(frozen=True)
class Correlation:
    """Pearson's r over blocks.

    Attributes:
        r: with a bootstrap interval, blocks drawn with replacement as if they were independent. Neighbouring blocks are
            alike, and the first and the last stand out, so the interval is too narrow by an amount that it cannot tell.
        p: how often a shuffled pairing correlates as strongly.
    """

    r: Estimate
    p: float


def correlation(x: ArrayLike, y: ArrayLike, seed: int = 0) -> Correlation:
    """Pearson's r with its bootstrap interval and permutation p-value.

    Where nothing varies, r is undefined: then it is 0, from −1 to 1, with p = 1.

    Args:
        x: one value a block.
        y: another.
        seed: of draws and shuffles.
    """
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        warnings.simplefilter("ignore", DegenerateDataWarning)
        test = pearsonr(x, y, method=PermutationMethod(n_resamples=RESAMPLES, rng=rng))
        bootstrap = BootstrapMethod(n_resamples=RESAMPLES, method="percentile", rng=rng)
        interval = test.confidence_interval(method=bootstrap)
    if np.isnan(test.statistic):
        return Correlation(Estimate(0.0, -1.0, 1.0), p=1.0)
    low = np.nan_to_num(interval.low, nan=-1.0)  # in some draw nothing varied
    high = np.nan_to_num(interval.high, nan=1.0)
    return Correlation(Estimate(float(test.statistic), float(low), float(high)), float(test.pvalue))


def correlations(gains: pd.DataFrame, column: str, seed: int = 0) -> pd.DataFrame:
    """Correlation of what the line leaves with a column of `gains`, over the blocks of each model and over all.

    Returns:
        A row a model, and one for `ALL`: `model`, `r`, `low`, `high`, `p`.
    """
    groups = dict(list(gains.groupby("model", sort=False))) | {ALL: gains}
    table = []
    for model, group in groups.items():
        found = correlation(group.left.to_numpy(), group[column].to_numpy(), seed)
        row = {"model": model, "r": found.r.value, "low": found.r.low, "high": found.r.high, "p": found.p}
        table.append(row)
    return pd.DataFrame(table)


def spaced(blocks: Iterable[int], count: int) -> list[int]:
    """`count` of the blocks, evenly spaced, the first and the last among them."""
    numbers = list(blocks)
    places = np.linspace(0, len(numbers) - 1, count).round().astype(int)
    return [numbers[place] for place in places]


def _each_block(models: Mapping[str, Blocks], count: int | None = None) -> Iterator[tuple[str, int, BlockCapture]]:
    """Model, block and capture of every block, or of `count` blocks of each model."""
    for model, blocks in models.items():
        for block in blocks if count is None else spaced(blocks, count):
            yield model, block, blocks[block]
