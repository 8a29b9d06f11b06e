"""Notebook 07: from lists over blocks to tables of blocks, of ways of training, and of the race."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from howlinear.notebook import settings

WAYS = ("GD", "momentum", "Adam")
BASELINES = ("SGD", "AdamW")


def to_tables(results: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of notebook 07, models in the order of the run profile."""
    models = {name: results["models"][name] for name in settings.read(results["profile"]).models_by_name}
    studied = results["studied"]["model"], results["studied"]["block"]
    blocks, ways, baseline = [], [], []
    for name, model in models.items():
        for place, block in enumerate(model["block"]):
            blocks.append(
                {
                    "model": name,
                    "block": block,
                    "condition": model["condition"][place],
                    "r2": model["exact"][place],
                    "r2_low": model["low"][place],
                    "r2_high": model["high"][place],
                    "asleep": int(model["asleep"][place]),
                    "asleep_share": model["asleep share"][place],
                    "steps_needed": int(model["steps to 0.01"][place]),
                    "raced": (name, block) == studied,
                }
            )
        for way in WAYS:
            reached = zip(model["block"], model[way], strict=True)
            ways += [{"model": name, "block": block, "way": way, "reached": r2} for block, r2 in reached]
        for way in BASELINES:
            reached = zip(model["baseline"]["blocks"], model["baseline"][way], strict=True)
            baseline += [{"model": name, "block": block, "way": way, "reached": r2} for block, r2 in reached]
    race = {tuple(key.split(", ")): reached for key, reached in results["race"].items()}
    planted = results["planted"]
    return {
        "blocks": pd.DataFrame(blocks),
        "ways": pd.DataFrame(ways),
        "baseline": pd.DataFrame(baseline),
        "race": pd.DataFrame(
            {"scaling": scaling, "optimiser": optimiser, "reached": race[optimiser, scaling]}
            for scaling in ("raw", "standardised", "whitened")
            for optimiser in ("SGD", "momentum", "Adam", "AdamW", "Muon", "L-BFGS")
        ),
        "planted": pd.DataFrame(
            {"way": way, "condition": planted[way]["condition"], "exact": planted[way]["exact"]}
            | {"reached": planted[way]["r2"]}
            for way in BASELINES
        ),
        "verdicts": pd.DataFrame(
            {"model": name, "way": way} | _counted(results["verdicts"][name][way]) for name in models for way in WAYS
        ),
        "by_way": pd.DataFrame(
            {"way": way, "rho_condition": results["spearman_condition"][way]}
            | {"compared": results["compared"], "turned": int(results["turned"][way])}
            for way in WAYS
        ),
    }


def _counted(verdict: Mapping[str, float]) -> dict[str, float]:
    return {key: int(value) if key in ("outside", "flipped") else value for key, value in verdict.items()}
