"""How low the rank of the map in a block's place may be.

`core.reduced_rank` gives the best map of every rank from one factorisation. A rank-r map holds
r (d_in + d_out) numbers, fewer than the full map's d_in · d_out below half the width. The paper (arXiv 2606.19379)
stops at the full map, 8 times smaller than a GELU block; the curve says what lies beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.reduced_rank import RankCurve
from howlinear.files.tables import with_ends
from howlinear.ideas.compression.costs import cost
from howlinear.instrument.perplexity import held_out
from howlinear.instrument.swap_costs import swap_losses
from howlinear.models.ffn_sites import sites
from howlinear.text.rows import TokenRows


def ffn_parameters(model: PreTrainedModel, maps: Mapping[int, AffineMap] | None = None) -> int:
    """Count the numbers that all feed-forward blocks hold together, with `maps` in the place of some."""
    held = 0
    for site in sites(model):
        affine = maps.get(site.block) if maps else None
        tensors = site.parameters() if affine is None else (affine.weight, affine.bias)
        held += sum(tensor.numel() for tensor in tensors)
    return held


def share_of_block(curve: RankCurve, rank: int, own: float) -> float:
    """Compute how many numbers a map of one rank holds, as a share of the block's `own`."""
    d_in, d_out = curve.map.weight.shape
    full = len(curve.r2) - 1
    # D of d_in × r and U of r × d_out, or W of d_in × d_out; and the bias
    weights = d_in * d_out if rank == full else rank * (d_in + d_out)
    return (weights + d_out) / own


def rank_curves(model: PreTrainedModel, curves: Mapping[int, RankCurve]) -> pd.DataFrame:
    """Tabulate held-out R² by rank up to half the width, where a pair of thin matrices is smaller than the full one."""
    own = ffn_parameters(model) / len(sites(model))
    tables = []
    for block, curve in curves.items():
        ranks = list(range(1, (len(curve.r2) - 1) // 2 + 1))
        columns = {"block": block, "rank": ranks, "share": [share_of_block(curve, rank, own) for rank in ranks]}
        columns |= {column: getattr(curve, column)[ranks] for column in with_ends("r2")}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def rank_costs(
    model: PreTrainedModel, curves: Mapping[int, RankCurve], text: TokenRows | Int64[Tensor, "n seq_len"]
) -> pd.DataFrame:
    """Measure `costs.cost` of the best map of some ranks in a block's place: the width, and a half to a sixteenth."""
    scored = held_out(text)
    maps = {}
    for block, curve in curves.items():
        width = len(curve.r2) - 1
        for rank in sorted({max(1, width // part) for part in (16, 8, 4, 2, 1)}):
            # past half the width a pair of thin matrices is no smaller than the full one
            maps[block, rank] = curve.map if rank == width else curve.at(rank)
    base, after = swap_losses(model, {key: (key[0], replacement) for key, replacement in maps.items()}, scored)
    own = ffn_parameters(model) / len(sites(model))
    rows = []
    for block, rank in maps:
        curve = curves[block]
        row = {"block": block, "rank": rank, "share": share_of_block(curve, rank, own), "r2": float(curve.r2[rank])}
        rows.append(row | cost(base, after[block, rank], scored.fold))
    return pd.DataFrame(rows)
