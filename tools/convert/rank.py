"""What notebook 04 has on record, as tables."""

from __future__ import annotations

from typing import Any

import pandas as pd

from howlinear.ideas.rank.measure import verdict_table, with_band_shapes
from howlinear.notebook import settings

ESTIMATES = {
    "r2": "r2",
    "median": "median_r2",
    "rank": "effective_rank",
    "predicted": "predicted_rank",
    "without_heavy": "rise_without_heaviest",
    "without_first": "rise_without_first",
    "refitted": "rise_refitted_without_first",
    "heavy_variance": "heavy_variance",
    "heavy_error": "heavy_error",
}


def to_tables(results: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Table name → table, as notebook 04 records it."""
    blocks, rest, bands = [], [], []
    counts = results["settings"]["counts"]
    for model in map(settings.short, settings.read(results["profile"]).models):
        found = results["models"][model]
        for at, block in enumerate(found["blocks"]):
            key = {"model": model, "block": block["block"]}
            blocks.append(key | _row(block) | {name: found[name][at] for name in ("rank_90", "rank_95")})
            for axis in ("features", "directions"):
                for count, r2 in zip(counts, block[axis], strict=True):
                    rest.append(key | {"axis": axis, "left_out": count, "r2": r2})
            bands += [key | {"band": band, "r2": r2} for band, r2 in enumerate(block["bands"], start=1)]
    bands = pd.DataFrame(bands)
    blocks = with_band_shapes(pd.DataFrame(blocks).astype({"rank_90": "Int64", "rank_95": "Int64"}), bands)
    verdicts = verdict_table(blocks, bands)
    for name in ("verdict", "rho"):
        verdicts[name] = [results["models"][model][name] for model in verdicts["model"]]
    return {"blocks": blocks, "without_loudest": pd.DataFrame(rest), "bands": bands, "verdicts": verdicts}


def _row(block: dict[str, Any]) -> dict[str, Any]:
    row = {}
    for old, name in ESTIMATES.items():
        row |= {name: block[old]["value"], f"{name}_low": block[old]["low"], f"{name}_high": block[old]["high"]}
    for old, prefix in (("outputs", ""), ("predictions", "predicted_")):
        row |= {
            f"{prefix}{name}": block[old][key]
            for name, key in (("entropy_rank", "entropy_rank"), ("first_share", "first"))
        }
    return row | {"regime": block["regime"]}
