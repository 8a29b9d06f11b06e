"""A line fitted over the vocabulary: every token once, as a sequence of its own, weighted by its count in a text.

If a row depended on its token alone, a text would have no other rows than these, and least squares weighted by the
tokens' frequencies would be the limit of lines fitted to ever more rows of the text. Its R² needs no held-out rows,
since nothing is sampled.
"""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import fit, r2
from howlinear.core.moments import FLOAT32, Moments
from howlinear.instrument.resample import rows_of_blocks
from howlinear.instrument.token_split import Grouping, token_sums
from howlinear.text.rows import TokenRows

BATCH = 1_024  # sequences of one token in a pass


def weighted_moments(x: Float[Tensor, "n d_in"], y: Float[Tensor, "n d_out"], weight: Int64[Tensor, " n"]) -> Moments:
    """Compute moments of rows that count `weight` times each."""
    x, y, weight = x.double(), y.double(), weight.double()
    total = weight.sum()
    mean_x, mean_y = weight @ x / total, weight @ y / total
    off_x, off_y = x - mean_x, y - mean_y
    weighted = weight[:, None] * off_x
    return Moments.from_tensors(
        {
            "n": total.round().long()[None],
            "mean_x": mean_x,
            "mean_y": mean_y,
            "sxx": weighted.T @ off_x,
            "sxy": weighted.T @ off_y,
            "syy": weight @ off_y.square(),
            "eps": torch.tensor([FLOAT32], dtype=torch.float64),
        }
    )


def vocabulary_moments(
    model: PreTrainedModel, token: Int64[Tensor, " types"], count: Int64[Tensor, " types"], blocks: list[int]
) -> dict[int, Moments]:
    """Block → moments over sequences of a single token, each counted as often as a text has it."""
    alone = rows_of_blocks(model, TokenRows.from_ids(token[:, None]), blocks, BATCH)
    return {block: weighted_moments(x, y, count) for block, (x, y) in alone.items()}


def vocabulary_table(model: PreTrainedModel, text: TokenRows, much: TokenRows, blocks: list[int]) -> pd.DataFrame:
    """Compare lines over the vocabulary, its tokens counted in `much`, with lines fitted to and scored on the text."""
    token, count = much.ids.unique(return_counts=True)
    of_vocabulary = vocabulary_moments(model, token, count, blocks)
    sides = [Grouping.by_token(text, held_out) for held_out in (False, True)]
    rows = []
    for block, sums in token_sums(model, text, sides, blocks).items():
        train, held_out = (side.total() for side in sums)
        own, _ = fit(train)
        over_vocabulary, _ = fit(of_vocabulary[block])
        rows.append(
            {
                "block": block,
                "r2": r2(own, held_out),
                "r2_train": r2(own, train),
                "r2_vocabulary": r2(over_vocabulary, of_vocabulary[block]),
                "r2_carried": r2(over_vocabulary, held_out),
            }
        )
    return pd.DataFrame(rows)
