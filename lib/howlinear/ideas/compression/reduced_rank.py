"""What one map keeps of a block: at every rank, and of the block's worth to the loss.

`core.reduced_rank` gives the best map of every rank from one factorisation. A rank-r map holds
r (d_in + d_out) numbers, fewer than the full map's d_in · d_out below half the width. The paper (arXiv 2606.19379)
stops at the full map, 8 times smaller than a GELU block; the curve says what lies beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.intervals import Estimate, fold_means
from howlinear.core.reduced_rank import RankCurve, Reduced
from howlinear.errors import InputError
from howlinear.ideas.compression.costs import swap_cost
from howlinear.instrument.perplexity import held_out_folds, losses
from howlinear.models.ffn_sites import sites
from howlinear.text.rows import TokenRows


def recovered(
    base: Float[Tensor, " n"],
    swapped: Float[Tensor, " n"],
    ablated: Float[Tensor, " n"],
    fold: Int64[Tensor, " n"] | None = None,
) -> Estimate | None:
    """Loss recovered: 1 − (L_swapped − L) / (L_ablated − L), in nats; 1 is lossless, 0 no better than a mean.

    Tells a block that is cheap to replace from one that does little: both have a small ΔPPL, only the first recovers.

    Args:
        base: loss of each sequence before, shape (n,), see `perplexity.losses`.
        swapped: the same with the map in the block's place.
        ablated: the same with its mean output in the block's place.
        fold: the document fold of each sequence, shape (n,); by default each is a document of its own.

    Returns:
        The share, with a jackknife over document folds; None where ablating costs nothing that the text can show
        (its interval reaches 0), as a share of nothing is undefined.

    Raises:
        InputError: fewer than two folds, or different numbers of sequences.
    """
    n = len(base)
    if n < 2 or not n == len(swapped) == len(ablated):
        raise InputError(
            f"a paired interval needs the same sequences three times, at least two sequences: got {n}, "
            f"{len(swapped)} and {len(ablated)}"
        )
    cost = (swapped - base).numpy()
    worth = (ablated - base).numpy()
    # the means without each fold in turn
    places = np.arange(n) if fold is None else fold.numpy()
    cost_without = fold_means(cost, places)
    worth_without = fold_means(worth, places)
    if Estimate.jackknife(float(worth.mean()), worth_without).low <= 0:
        return None
    share = 1 - float(cost.mean() / worth.mean())
    return Estimate.jackknife(share, 1 - cost_without / worth_without)


def ffn_parameters(model: PreTrainedModel, maps: Mapping[int, AffineMap | Reduced] | None = None) -> int:
    """How many numbers all feed-forward blocks hold together.

    Args:
        model: the model, whole.
        maps: block → the map in its place, if any.
    """
    held = {site.block: sum(parameter.numel() for parameter in site.parameters()) for site in sites(model)}
    for block, replacement in (maps or {}).items():
        if isinstance(replacement, AffineMap):
            held[block] = replacement.weight.numel() + replacement.bias.numel()
        else:
            held[block] = replacement.parameters
    return sum(held.values())


def share_of_block(curve: RankCurve, rank: int, own: float) -> float:
    """How many numbers a map of one rank holds, as a share of the block's own.

    Args:
        curve: of the block.
        rank: of the map; at the curve's end it is the full map, one matrix instead of two.
        own: numbers that the block holds.
    """
    d_in, d_out = curve.map.weight.shape
    matrices = d_in * d_out if rank == len(curve.r2) - 1 else rank * (d_in + d_out)
    return (matrices + d_out) / own


def first_middle_last(count: int) -> dict[int, str]:
    """The blocks whose thin maps are looked at, of `count` blocks, and how a figure names their places."""
    return {0: "first block", count // 2: "middle block", count - 1: "last block"}


def rank_curves(model: PreTrainedModel, curves: Mapping[int, RankCurve]) -> pd.DataFrame:
    """Held-out R² by rank, as far as a pair of thin matrices is smaller than the full one: up to half the width.

    Args:
        model: the model.
        curves: block → its curve, with intervals, of `first_middle_last` blocks.

    Returns:
        A row per block and rank: `block`, its `place`, `rank`, `share` of the block's numbers, `r2`, and its interval's
        ends `low` and `high`.
    """
    own, places = _own(model)
    rows = []
    for block, curve in curves.items():
        width = len(curve.r2) - 1
        for rank in range(1, width // 2 + 1):
            row = {"block": block, "place": places[block], "rank": rank, "share": share_of_block(curve, rank, own)}
            row |= {"r2": float(curve.r2[rank]), "low": float(curve.r2_low[rank]), "high": float(curve.r2_high[rank])}
            rows.append(row)
    return pd.DataFrame(rows)


def rank_costs(
    model: PreTrainedModel,
    curves: Mapping[int, RankCurve],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    parts: Iterable[int] = (16, 8, 4, 2, 1),
) -> pd.DataFrame:
    """What it costs to replace a block by the best map of some ranks.

    Args:
        model: the model; left as it was.
        curves: block → its curve, of `first_middle_last` blocks.
        text: rows, whose held-out part counts, or token ids, see `perplexity.held_out_folds`.
        parts: which ranks: the width divided by each of these, at least 1.

    Returns:
        A row per block and rank: `block`, its `place`, `rank`, `share` of the block's numbers, `r2`, and what it
        costs, see `costs.cost`.
    """
    ids, _ = held_out_folds(text)
    base = losses(model, ids)
    own, places = _own(model)
    rows = []
    for block, curve in curves.items():
        width = len(curve.r2) - 1
        for rank in sorted({max(1, width // part) for part in parts}):
            replacement = curve.map if rank == width else curve.at(rank)
            row = {"block": block, "place": places[block], "rank": rank, "share": share_of_block(curve, rank, own)}
            row["r2"] = float(curve.r2[rank])
            rows.append(row | swap_cost(model, {block: replacement}, text, base))
    return pd.DataFrame(rows)


def _own(model: PreTrainedModel) -> tuple[float, dict[int, str]]:
    """How many numbers a block of the model holds, on the mean, and the places of its blocks."""
    count = len(sites(model))
    return ffn_parameters(model) / count, first_middle_last(count)
