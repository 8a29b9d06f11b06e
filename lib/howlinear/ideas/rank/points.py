"""Rows of a block along the direction in which its outputs vary most: what the block writes, and what the line says.

One direction can be looked at row by row, and where it holds most of the variance it nearly decides R²_lin.
"""

from __future__ import annotations

import pandas as pd
import torch

from howlinear.core.ceilings import fit
from howlinear.core.moments import Moments
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.massive import KEPT

ORDINARY, HEAVY = 120, 80
"""Numbers of held-out rows kept of a block: those within `KEPT` median norms, and the heaviest beyond."""


def points_along_first(block: BlockCapture) -> pd.DataFrame:
    """Pair held-out outputs with the line's answers, along the direction in which outputs vary most."""
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
