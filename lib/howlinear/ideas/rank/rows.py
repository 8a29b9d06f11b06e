"""Which tokens and which rows carry R²_lin: bands of token frequency, and a block that is planted."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, Sample

PLANTED_SEQUENCE = 16  # rows in a sequence of `planted_block`


def frequency_bands(ids: Int64[Tensor, "*shape"], tokens: Int64[Tensor, " n"], bands: int) -> Int64[Tensor, " n"]:
    """Band of each token by its frequency among `ids`: 0 the most frequent, bands − 1 the rarest and the unseen."""
    if bands < 2 or not ids.numel():
        raise InputError(f"cannot cut {ids.numel()} token ids into {bands} bands: give train ids and two bands or more")
    counts = ids.flatten().bincount(minlength=int(tokens.max()) + 1)
    by_count = counts.argsort(descending=True, stable=True)
    # Laid end to end, most frequent token first, each token takes a stretch of the ids; its middle decides its band.
    stretches = counts[by_count]
    middles = stretches.cumsum(0) - stretches / 2
    band_by_count = (bands * middles / ids.numel()).long().clamp_max(bands - 1)
    band_of_token = torch.empty_like(counts)
    band_of_token[by_count] = band_by_count
    return band_of_token[tokens]


def planted_block(inputs: Float[Tensor, "n d_in"], outputs: Float[Tensor, "n d_out"], folds: int = 8) -> BlockCapture:
    """Build a block from given rows, as a capture would keep it, so that the right findings are known."""
    # every sixteen rows are a sequence, every fourth sequence is held out, and every four sequences make the next fold
    row = torch.arange(len(inputs))
    sequence = row // PLANTED_SEQUENCE
    sample = Sample(
        x=inputs.float(),
        y=outputs.float(),
        position=row % PLANTED_SEQUENCE,
        token=row % 7,
        test=sequence % 4 == 3,
        fold=sequence // 4 % folds,
    )
    held_out_outputs = Moments(outputs.shape[1]).update(sample.y[sample.test])
    return BlockCapture(sample.moments(test=False), sample.moments(test=True), held_out_outputs, sample)
