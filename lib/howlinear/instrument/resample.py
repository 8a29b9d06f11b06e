"""More sampled rows for a capture that lies on disk: one more pass over some of its sequences.

A stored sample is small (`sample` of a run profile), since one is kept for every block. A fit by search rather than
from moments needs more rows on a wide model: notebooks 03, 07 and 08 on models of some hundred inputs. The rows are
those of whole sequences, taken evenly from the document folds of both sides; no row is preferred or left out. So
massive rows (`instrument.massive`) are as frequent in the sample as in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.instrument.capture import BlockCapture, LazyBlocks, Sample, read_tokens
from howlinear.instrument.store import Stored
from howlinear.models.ffn_sites import Site, sites
from howlinear.text.rows import TokenRows

BATCH = 16  # sequences in a pass


def resampled(stored: Stored, model: PreTrainedModel, most: int | None) -> Mapping[int, BlockCapture]:
    """Return a capture's blocks with about `most` sampled rows each; with None, as they are stored."""
    if most is None:
        return stored.blocks
    rows = stored.rows.thinned(most)
    every = rows_of_blocks(model, rows)
    places = torch.arange(rows.count)
    samples = {block: Sample.at(rows, places, x, y) for block, (x, y) in every.items()}

    def with_sample(block: int) -> BlockCapture:
        return replace(stored.blocks[block], sample=samples[block])

    return LazyBlocks({block: partial(with_sample, block) for block in stored.blocks})


def rows_of_blocks(
    model: PreTrainedModel, rows: TokenRows, blocks: list[int] | None = None, batch_size: int = BATCH
) -> dict[int, tuple[Float[Tensor, "n d_in"], Float[Tensor, "n d_out"]]]:
    """Collect block → its inputs and outputs at all these rows, float32, in their order."""
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(site: Site, x: Tensor, y: Tensor, sequence: Tensor, _: Tensor) -> None:
        if site.block not in found:
            # allocated at once, since batches joined at the end would be in memory twice
            found[site.block] = (torch.empty(rows.count, x.shape[-1]), torch.empty(rows.count, y.shape[-1]))
        start = int(sequence[0]) * rows.seq_len
        for whole, part in zip(found[site.block], (x, y), strict=True):
            whole[start : start + len(part)] = part

    read_tokens(model, rows, sites(model, blocks), torch.arange(len(rows.ids)).split(batch_size), keep)
    return dict(sorted(found.items()))
