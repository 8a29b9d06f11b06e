"""Notebook 02: blocks, models, likeness of profiles, and the solver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables by name."""
    models = results["models"]
    pairs = [pair.split(" ~ ") for pair in results["likeness"]]
    likeness = pd.DataFrame(list(results["likeness"].values()), columns=["pearson", "inner", "largest_gap"])
    likeness.insert(0, "model", [model for model, _ in pairs])
    likeness.insert(1, "other", [other for _, other in pairs])
    solver = {"r2_by_svd": results["solver"]["reference"], "within": 1e-9}
    return {
        "blocks": pd.concat([_blocks(name, model) for name, model in models.items()], ignore_index=True),
        "models": pd.DataFrame([_model(name, model) for name, model in models.items()]),
        "likeness": likeness,
        "solver": pd.DataFrame([solver | {"agrees": results["solver"]["ours_within_1e-9"]}]),
    }


def _blocks(name: str, model: Mapping[str, Any]) -> pd.DataFrame:
    order = ["block", "r2", "r2_low", "r2_high", "r2_train", "r2_limit", "r2_limit_low", "r2_limit_high", "r2_median"]
    order += ["effective_rank", "condition", "rank", "rows_train", "rows_test", "massive_rows"]
    order += ["r2_ordinary", "r2_ordinary_low", "r2_ordinary_high", "effective_rank_ordinary"]
    blocks = pd.DataFrame(model["blocks"])[order]
    blocks.insert(0, "model", name)
    swaps = pd.DataFrame(model["swap"], columns=["block", "delta", "low", "high"]).set_index("block")
    swaps.columns = ["dppl", "dppl_low", "dppl_high"]
    blocks = blocks.join(swaps, on="block")
    blocks["r2_untrained"], blocks["r2_untrained_in_sample"] = model["untrained"], model["untrained_in_sample"]
    blocks["r2_sd"] = model["folds_sd"]
    return blocks


def _model(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    own = ("perplexity", "rows", "rows_per_input", "untrained_rows", "rises_and_falls")
    return {
        "model": name,
        **{key: model[key] for key in own},
        "spearman": model["spearman_r2_delta"],
        "rows_sha256": model["sha256"],
    }
