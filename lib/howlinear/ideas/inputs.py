"""What goes into the blocks of several models: the tables of notebook 01."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from howlinear.instrument.capture import BlockCapture, describe
from howlinear.instrument.selection import each_block


def describe_inputs(captures: Mapping[str, Mapping[int, BlockCapture]]) -> pd.DataFrame:
    """Describe the input rows of every block: `width`, and the columns of `capture.describe`."""
    rows = []
    for model, block, kept in each_block(captures):
        rows.append({"model": model, "block": block, "width": kept.train[0].d_in, **describe(kept)})
    return pd.DataFrame(rows)


def null_directions(inputs: pd.DataFrame) -> pd.DataFrame:
    """Compare the two smallest eigenvalues of the inputs' correlation matrix, as shares of the largest one."""
    by_model = inputs.groupby("model", sort=False)
    return pd.DataFrame(
        {
            "width": by_model["width"].first(),
            "rank": by_model["rank"].max(),
            "smallest, at most": by_model["null"].max(),
            "next, at least": by_model["second"].min(),
        }
    )


def summarise(inputs: pd.DataFrame) -> pd.DataFrame:
    """Summarise the inputs of each model in three numbers, in a row per model."""
    by_model = inputs.groupby("model", sort=False)
    return pd.DataFrame(
        {
            "largest condition number": by_model["condition"].max().round(1),
            "mean effective rank": by_model["effective_rank"].mean().round(1),
            "null directions": by_model["width"].first() - by_model["rank"].min(),
        }
    )
