"""Measure a model as arXiv 2606.19379 does: with its rows, its R², its median, its rank and its perplexity.

The paper's survey compares held-out outputs with one scalar, the mean of all of them; its ranks are about the train
mean; its median is the lower of two middle values; its perplexities are of another part of the text. Only numbers
computed like this can be compared with those that it publishes. Only the map is ours: plain least squares, which the
paper uses, also fits the null direction of a LayerNorm (`core.ceilings.NULL`; see `benchmarks/paper_code.py`).
"""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import outputs_vary, r2, r2_about_scalar, r2_per_feature
from howlinear.core.moments import Moments
from howlinear.core.reduced_rank import reduced_rank
from howlinear.instrument.capture import read_tokens
from howlinear.instrument.perplexity import held_out
from howlinear.instrument.swap_costs import each_alone, swap_losses
from howlinear.models.ffn_sites import Site, sites
from howlinear.text.paper_rows import PaperRows
from howlinear.text.rows import TokenRows

BATCH = 16  # windows in a forward pass

COLUMNS = {
    "r2_scalar": "float64",
    "r2": "float64",
    "median_r2_lower": "float64",
    "rank_90_train_mean": "Int64",
    "rank_95_train_mean": "Int64",
}
"""Quantities of a block by the paper's protocol → their types."""


def paper_blocks(
    model: PreTrainedModel,
    rows: PaperRows,
    scored: Int64[Tensor, "windows seq_len"] | None = None,
    blocks: Collection[int] | None = None,
) -> pd.DataFrame:
    """Measure blocks by the paper's protocol, except those that write the same output on every row.

    `scored` are windows of the test part, for perplexities; numbers in `blocks` that the model does not have are
    ignored.

    Returns:
        One row per `block`: `r2_scalar`, R² about one scalar mean; `r2`, each feature about its own; `median_r2_lower`;
        `rank_90_train_mean` and `rank_95_train_mean`; and, with `scored`, `perplexity` of the model and `dppl`, its
        rise when the map takes the block's place.
    """
    maps, table = {}, []
    for block, (train, test) in paper_moments(model, rows, blocks).items():
        if not (outputs_vary(train) and outputs_vary(test)):
            continue
        curve = reduced_rank(train, test)
        maps[block] = curve.map
        table.append(
            {
                "block": block,
                "r2_scalar": r2_about_scalar(curve.map, test),
                "r2": r2(curve.map, test),
                # the lower of two middle values, as in arXiv 2606.19379; ours is their mean
                "median_r2_lower": float(r2_per_feature(curve.map, test).nanmedian()),
                "rank_90_train_mean": curve.rank_reaching(0.90, about_train_mean=True),
                "rank_95_train_mean": curve.rank_reaching(0.95, about_train_mean=True),
            }
        )
    measured = pd.DataFrame(table, columns=["block", *COLUMNS]).astype(COLUMNS)
    if scored is None:
        return measured
    before, after = swap_losses(model, each_alone(maps), held_out(scored))
    perplexity = float(before.mean().exp())
    return measured.assign(
        perplexity=perplexity, dppl=[float(after[block].mean().exp()) - perplexity for block in measured["block"]]
    )


def paper_moments(
    model: PreTrainedModel, rows: PaperRows, blocks: Collection[int] | None = None
) -> dict[int, tuple[Moments, Moments]]:
    """Compute block → moments of the rows before the cut, and of the rows from the cut on."""
    sides: dict[int, tuple[Moments, Moments]] = {}

    def keep(site: Site, x: Tensor, y: Tensor, sequence: Tensor, _: Tensor) -> None:
        if site.block not in sides:
            sides[site.block] = (Moments(x.shape[1], y.shape[1]), Moments(x.shape[1], y.shape[1]))
        start = int(sequence[0]) * rows.ids.shape[1]
        before = max(0, rows.cut - start)  # train rows of this batch
        train, test = sides[site.block]
        train.update(x[:before], y[:before])
        test.update(x[before:], y[before:])

    chosen = [site for site in sites(model) if blocks is None or site.block in blocks]
    if chosen:
        windows = torch.arange(len(rows.ids)).split(BATCH)
        read_tokens(model, TokenRows.from_ids(rows.ids), chosen, windows, keep)
    return sides
