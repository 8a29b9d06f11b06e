"""The tables that notebook 06 records, each with all its models; `files/columns.yaml` says what a column means.

A model that predicts no next token has no loss, so no swap in it has a cost: it is in none of these tables, and if no
model has a loss they are empty.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from howlinear.core.correlation import FEWEST, correlation
from howlinear.files import tables
from howlinear.files.tables import with_ends

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
