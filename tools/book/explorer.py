"""The book's interactive page, its numbers: every model, corpus and block as one small row.

`collect` reads the captures; the pipeline keeps what it finds in `build/<profile>/explorer.json`, and module `charts`
draws it. Nothing is measured here that the notebooks do not measure.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import torch

from howlinear.core.ceilings import ceiling
from howlinear.core.moments import effective_rank
from howlinear.core.reduced_rank import reduced_rank
from howlinear.files import numbers, paths, tables
from howlinear.instrument.capture import BlockCapture
from howlinear.notebook import run as notebooks

POINTS = 128
"""The most points that a block's sorted features or its rank curve are drawn with; narrower blocks keep them all."""


def collect(run: notebooks.Run) -> list[dict[str, Any]]:
    """One row per model, corpus and block.

    Args:
        run: the profile; a capture that is not there is made.

    Returns:
        Rows of the keys in `row`, and `model`, `corpus`, `block` and `delta` (ΔPPL of the block's swap, measured by
        notebook 02 on the main corpus, None on the others).

    Raises:
        SourceError: notebook 02 has not run on this profile.
        InputError: a block cannot be fitted.
    """
    costs = tables.results(run.profile, "02_ceilings")["blocks"].set_index(["model", "block"])["dppl"]
    rows = []
    for name in run.models:
        for corpus in run.corpora:
            stored = run.capture(name, corpus)
            for block in stored.blocks:
                cost = None if corpus != run.corpora[0] or pd.isna(costs[name, block]) else costs[name, block]
                rows.append(
                    {"model": name, "corpus": corpus, "block": block, "delta": cost, **row(stored.blocks[block])}
                )
    return rows


def row(kept: BlockCapture) -> dict[str, Any]:
    """What the page shows of one block.

    Returns:
        `r2` with `low` and `high`; `median`; `rank`, the effective rank of the held-out outputs; `condition`, log₁₀;
        `features`, R² falling over the output features; `ranks` and `curve`, the best map's R² at each of these ranks.
    """
    found = ceiling(kept.train, kept.test)
    curve = reduced_rank(sum(kept.train), sum(kept.test)).r2
    features = found.r2_per_feature[found.r2_per_feature.isfinite()].sort(descending=True).values
    ranks = few(len(curve), steep=True)
    return {
        "r2": _short(found.r2),
        "low": _short(found.r2_low),
        "high": _short(found.r2_high),
        "median": _short(found.r2_median),
        "rank": _short(effective_rank(kept.outputs.sxx), 2),
        "condition": _short(np.log10(found.condition), 2),
        "features": [_short(value, 3) for value in features[few(len(features))]],
        "ranks": ranks,
        "curve": [_short(value, 3) for value in curve[torch.tensor(ranks)]],
    }


def few(count: int, steep: bool = False) -> list[int]:
    """At most `POINTS` of the places 0 to count − 1, both ends among them.

    Args:
        count: how many there are.
        steep: close together at the start, as a curve that rises there needs; evenly spread otherwise.
    """
    if count <= POINTS and not steep:
        return list(range(count))
    spread = np.geomspace(1, count, POINTS) - 1 if steep else np.linspace(0, count - 1, POINTS)
    return np.unique(spread.round().astype(int)).tolist()


def _short(value: float | torch.Tensor, digits: int = 4) -> float:
    return round(float(value), digits)


def main(profile: str = "minis") -> None:
    """Write `build/<profile>/explorer.json`, what `collect` finds; the pipeline's own step."""
    torch.set_num_threads(1)
    rows = collect(notebooks.start("explorer", profile))
    numbers.save(paths.build(profile) / "explorer.json", {"blocks": rows})


if __name__ == "__main__":
    main(*sys.argv[1:])
