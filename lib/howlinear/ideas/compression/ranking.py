"""The tables of notebook 06: the costs of blocks and of sets of blocks, and how well signals rank them.

A model that predicts no next token has no loss, so no swap in it has a cost: it is in none of these tables, and if no
model has a loss they are empty. `files/columns.yaml` says what a column means.

A signal (`signals`) is a number per block; a good one puts the blocks of a model in the order of the costs of their
swaps on held-out text. So ρ is computed within each model and averaged over models.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int64
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.correlation import FEWEST, correlation
from howlinear.core.intervals import CONFIDENCE, Estimate, fold_means
from howlinear.files import tables
from howlinear.files.tables import with_ends
from howlinear.ideas.compression.costs import cost, swap_cost
from howlinear.ideas.compression.signals import REPLACE_ONE
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.perplexity import held_out, losses
from howlinear.instrument.swap_costs import swap_losses
from howlinear.text.rows import TokenRows

RESTS = 0.1
"""A map rests on massive rows if a map of ordinary rows beats it on these by more than this in R²; our choice."""

COST = ("nats", *with_ends("delta"))
LOSS = ("residual", "residual_over_stream", "price", "price_paired")
STREAM = ("block_influence", "sublayer_cosine", "cca_bound")
COLUMNS = {
    "blocks": ("block", "r2", "ablation", *with_ends("recovered"), *COST, *LOSS, *STREAM, "replace_one"),
    "massive": ("block", "massive_rows", "r2_ordinary", "r2_own", "rests"),
    "reduced_rank": ("block", "rank", "share", "r2", *COST),
    "frontier": ("way", "count", "block", "share", *COST),
    "together": ("naive", "summed"),
    "healing": ("block", "layer", *with_ends("delta")),
}
"""Table → its columns behind `model`."""


def stack(name: str, found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Stack the table called `name` over all models, from model → its own table."""
    of_models = (table.reset_index().assign(model=model) for model, table in found.items())
    return tables.stack(of_models, ["model", *COLUMNS[name]])


# --- what swaps cost


def block_costs(
    model: PreTrainedModel,
    blocks: Mapping[int, BlockCapture],
    maps: Mapping[int, AffineMap],
    text: TokenRows | Int64[Tensor, "n seq_len"],
) -> pd.DataFrame:
    """Measure the cost of replacing each block alone, by its map and by its mean output; part of table `blocks`."""
    means = {block: AffineMap.constant(sum(captured.train)) for block, captured in blocks.items()}
    scored = held_out(text)
    swaps = {
        (kind, block): (block, of_kind[block]) for kind, of_kind in (("map", maps), ("mean", means)) for block in blocks
    }
    base, losses = swap_losses(model, swaps, scored)
    rows = []
    for block, captured in blocks.items():
        swapped, ablated = losses["map", block], losses["mean", block]
        share = recovered(base, swapped, ablated, scored.fold) or Estimate.exact(np.nan)
        ablation = float((ablated - base).mean())
        row = {"block": block, "r2": r2(maps[block], sum(captured.test)), "ablation": ablation}
        rows.append(row | share.columns("recovered") | cost(base, swapped, scored.fold))
    return pd.DataFrame(rows).set_index("block")


def recovered(
    base: Float[Tensor, " n"],
    swapped: Float[Tensor, " n"],
    ablated: Float[Tensor, " n"],
    fold: Int64[Tensor, " n"] | None = None,
) -> Estimate | None:
    """Compute the loss recovered, 1 − (L_swapped − L) / (L_ablated − L); None if the ablation may cost nothing."""
    # it tells a block that is cheap to replace from one that does little: both have a small ΔPPL, but only the first
    # recovers the loss
    line = (swapped - base).numpy()
    mean = (ablated - base).numpy()
    places = np.arange(len(base)) if fold is None else fold.numpy()
    if Estimate.of_mean(mean, places).low <= 0:
        return None
    share = 1 - float(line.mean() / mean.mean())
    without_fold = 1 - fold_means(line, places) / fold_means(mean, places)
    return Estimate.jackknife(share, without_fold)


def set_costs(
    model: PreTrainedModel,
    maps: Mapping[int, AffineMap],
    table: pd.DataFrame,
    ids: Int64[Tensor, "n seq_len"],
    sets: int,
    generator: np.random.Generator,
) -> pd.DataFrame:
    """Measure the `cost` of random sets of two to four blocks, nats per token, and sum each signal of their blocks."""
    base = losses(model, ids)
    rows = []
    for _ in range(sets):
        size = min(generator.integers(2, 5), len(maps))
        drawn = generator.choice(list(maps), size, replace=False)
        blocks = sorted(drawn.tolist())
        measured = swap_cost(model, {block: maps[block] for block in blocks}, ids, base)
        signals = table.loc[blocks].sum()
        rows.append({"cost": measured["nats"]} | signals.to_dict())
    return pd.DataFrame(rows)


def massive_table(blocks: Mapping[int, BlockCapture], maps: Mapping[int, AffineMap]) -> pd.DataFrame:
    """Find the maps that rest on a few massive rows and say nothing of all others; a row per block that has some."""
    rows = []
    for block, captured in blocks.items():
        count = len(captured.massive())
        if not count:
            continue
        ordinary = captured.ordinary()
        own_map, _ = fit(sum(ordinary.train))
        row = {
            "block": block,
            "massive_rows": count,
            "r2_ordinary": r2(maps[block], sum(ordinary.test)),
            "r2_own": r2(own_map, sum(ordinary.test)),
        }
        rows.append(row | {"rests": row["r2_own"] - row["r2_ordinary"] > RESTS})
    return pd.DataFrame(rows)


# --- how well a signal ranks them


def agreement(signal: Sequence, truth: Sequence, draws: int = 999, seed: int = 0) -> Estimate:
    """Average Spearman's ρ of a signal with measured costs over groups, the blocks of one model each; bootstrapped."""
    generator = np.random.default_rng(seed)
    rho, drawn = [], []
    for predicted, measured in zip(signal, truth, strict=True):
        predicted, measured = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
        rho.append(_rho(predicted, measured))
        # groups are resampled independently, and each draw of all groups gives one mean
        places = generator.integers(len(predicted), size=(draws, len(predicted)))
        drawn.append(_rho(predicted[places], measured[places]))
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = np.nanquantile(np.mean(drawn, axis=0), ends)
    return Estimate(float(np.mean(rho)), float(low), float(high))


def _rho(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray | np.floating:
    """Compute Spearman's ρ along the last axis; NaN for a draw of one value alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        return stats.spearmanrho(predicted, measured, axis=-1).statistic


def compare(table: pd.DataFrame, truth: pd.Series, seed: int = 0) -> pd.DataFrame:
    """Compute the `agreement` of every signal with the truth, over the models of `FEWEST` rows where it varies."""
    rows = []
    for signal in table:
        predicted, measured = [], []
        pairs = pd.DataFrame({"predicted": table[signal], "measured": truth})
        for _, of_model in pairs.groupby(level=0, sort=False):
            varies = (of_model.min() < of_model.max()).all()
            if len(of_model) >= FEWEST and varies:
                predicted.append(of_model["predicted"])
                measured.append(of_model["measured"])
        if predicted:
            rho = agreement(predicted, measured, seed=seed)
            rows.append({"signal": signal} | rho.columns("rho"))
    return pd.DataFrame(rows, columns=["signal", *with_ends("rho")])


def ranking(
    known: Mapping[str, pd.DataFrame],
    costs: Mapping[str, pd.DataFrame],
    sets: Mapping[str, pd.DataFrame],
    resting: Sequence[tuple[str, int]] = (),
    seed: int = 0,
) -> pd.DataFrame:
    """Compare every signal with the costs of single blocks, of several, and of blocks not `resting` on massive rows."""
    columns = ["costs", "signal", *with_ends("rho")]
    if not known:
        return pd.DataFrame(columns=columns)
    table = pd.concat(known)
    nats = pd.concat(costs)["nats"]
    joint = pd.concat(sets)
    parts = {
        "one block": compare(table, nats, seed),
        "several": compare(joint.drop(columns="cost"), joint["cost"], seed),
    }
    if resting:
        fewer = list(resting)
        parts["one block, without massive rows"] = compare(table.drop(fewer), nats.drop(fewer), seed)
    kinds = [part.assign(costs=kind) for kind, part in parts.items()]
    return pd.concat(kinds, ignore_index=True)[columns]


def deciding(rankings: pd.DataFrame) -> list[str]:
    """Choose four signals: the paper's own, the price, and those that rank single blocks best without a swap."""
    single = rankings[(rankings["costs"] == "one block") & (rankings["signal"] != REPLACE_ONE)]
    by_rho = single.sort_values("rho", ascending=False, kind="stable")["signal"]
    chosen = [signal for signal in ("1 − R²", "price") if signal in set(by_rho)]
    others = [signal for signal in by_rho if signal not in chosen]
    return (chosen + others)[:4]


def worth(blocks: pd.DataFrame) -> pd.DataFrame:
    """Rank-correlate R²_lin with mean ablation over blocks: are the more linear blocks worth more? A row per model."""
    rows = []
    for model, of_model in blocks.groupby("model", sort=False):
        if len(of_model) < FEWEST:
            continue
        r2 = of_model["r2"].to_numpy()
        ablation = of_model["ablation"].to_numpy()
        # what does not vary over the inner blocks has no correlation
        if np.ptp(r2[1:-1]) > 0 and np.ptp(ablation[1:-1]) > 0:
            rho = correlation(r2, ablation, order=True)
            rows.append({"model": model} | rho.r.columns("rho") | {"inner": rho.inner})
    return pd.DataFrame(rows, columns=["model", *with_ends("rho"), "inner"])
