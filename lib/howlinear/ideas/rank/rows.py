"""Single rows of a block: bands of token frequency, a block that is planted, and rows along the loudest direction."""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from howlinear.core.ceilings import fit
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, Sample
from howlinear.instrument.massive import KEPT

PLANTED_SEQUENCE = 16  # rows in a sequence of `planted_block`

ORDINARY, HEAVY = 120, 80
"""Numbers of held-out rows kept of a block: those within `KEPT` median norms, and the heaviest beyond."""


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


def points_along_first(block: BlockCapture) -> pd.DataFrame:
    """Pair held-out outputs with the line's answers, along the direction in which outputs vary most.

    Where that direction holds most of the variance it nearly decides R²_lin.
    """
    line, _ = fit(Moments.total(block.train))
    variances, directions = torch.linalg.eigh(block.outputs.sxx / block.outputs.n)
    first = directions[:, -1]
    first = first * first[first.abs().argmax()].sign()  # its sign is the solver's choice

    # the sample is drawn evenly and holds few massive rows, so these are taken from the heavy rows kept apart
    sample, heavy = block.rows(), block.heavy_rows().beyond(KEPT)
    median = block.heavy_rows().median
    ordinary = sample.test & (torch.linalg.vector_norm(sample.y, dim=1) <= KEPT * median)
    x = torch.cat([sample.x[ordinary][:ORDINARY], heavy.x[heavy.test][:HEAVY]]).double()
    y = torch.cat([sample.y[ordinary][:ORDINARY], heavy.y[heavy.test][:HEAVY]]).double()

    # about the mean output, in standard deviations along that direction
    deviation = variances[-1].sqrt()
    answer = (line(x) - block.outputs.mean_x) @ first / deviation
    output = (y - block.outputs.mean_x) @ first / deviation
    medians = torch.linalg.vector_norm(y, dim=1) / median
    columns = {"answer": answer, "output": output, "medians": medians}
    table = pd.DataFrame({name: column.numpy() for name, column in columns.items()})
    return table.rename_axis("point").reset_index()
