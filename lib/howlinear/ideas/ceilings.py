"""How much of a block is a straight line: the tables of notebook 02.

They put the instrument's measurements of single models side by side, with a row per block and model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd

from howlinear.core.ceilings import fit, r2, r2_about_scalar
from howlinear.core.fold_maps import fold_spread
from howlinear.core.moments import Moments
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.perplexity import Change
from howlinear.instrument.profile import Profile

# Solvers


def null_rule(train: Moments, scored: Mapping[str, Moments], thresholds: Sequence[float]) -> pd.DataFrame:
    """Vary the threshold for null directions, and tabulate the fit and its R² on each of `scored`."""
    rows = []
    for threshold in thresholds:
        affine, inputs = fit(train, null=threshold)
        row = {"threshold": threshold, "rank": inputs.rank, "largest weight": float(affine.weight.abs().max())}
        for name, held_out in scored.items():
            row[name] = r2(affine, held_out)
        rows.append(row)
    return pd.DataFrame(rows)


def order_of_magnitude(errors: Mapping[str, float], least: float, most: float) -> pd.Series:
    """Round errors to the nearest power of ten between two bounds: other digits depend on the processor."""
    exponents = np.log10(pd.Series(errors, dtype=float).clip(least, most))
    return 10.0 ** exponents.round()


# Blocks


def measure_blocks(
    profiles: Mapping[str, Profile],
    captures: Mapping[str, Mapping[int, BlockCapture]],
    untrained: Mapping[str, Baseline],
    costs: Mapping[str, Mapping[int, Change]],
) -> pd.DataFrame:
    """Tabulate R²_lin of every block, before and after training, its spread over folds, and the cost of a swap."""
    tables = []
    for model, profile in profiles.items():
        table = replace(profile, costs=costs.get(model, {})).to_frame().drop(columns=["corpus", "site", "inputs"])
        table["model"] = model
        fresh = {"r2_untrained": untrained[model].held_out, "r2_untrained_in_sample": untrained[model].in_sample}
        table = table.join(pd.DataFrame(fresh, untrained[model].blocks), on="block")
        held_out = {block: sum(captures[model][block].test) for block in profile}
        table["r2_scalar"] = [r2_about_scalar(profile[block].map, rows) for block, rows in held_out.items()]
        table["r2_sd"] = [fold_spread(captures[model][block].train) for block in profile]
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


# Models


def describe_models(
    profiles: Mapping[str, Profile], untrained: Mapping[str, Baseline], blocks: pd.DataFrame
) -> pd.DataFrame:
    """Describe each model as a whole, in a row per model."""
    of_model = dict(list(blocks.groupby("model", sort=False)))
    return pd.DataFrame(
        {
            "model": model,
            "perplexity": profile.perplexity,
            "rows": profile.rows_used,
            "documents": profile.rows.held_out.documents,
            "rows_per_input": profile.rows_per_input,
            "untrained_rows": untrained[model].rows,
            "rises_and_falls": profile.rises_and_falls,
            "spearman": of_model[model]["r2"].corr(of_model[model]["dppl"], method="spearman"),
            "rows_sha256": profile.rows.sha256,
        }
        for model, profile in profiles.items()
    )


def summarise(blocks: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Summarise what the profiles show, in a row per model."""
    rises_and_falls = models.set_index("model")["rises_and_falls"]
    rows = {}
    for model, own in blocks.groupby("model", sort=False):
        trained = own["r2"]
        # an untrained block lies between held-out and in-sample R²: it is taken as halfway
        fresh = (own["r2_untrained"] + own["r2_untrained_in_sample"]) / 2
        half_brackets = (own["r2_untrained_in_sample"] - own["r2_untrained"]) / 2
        rows[model] = {
            "lowest": trained.min(),
            "highest": trained.max(),
            "rises and falls": rises_and_falls[model],
            "largest step": trained.diff().abs().max(),
            "trained − fresh": (trained - fresh).mean(),
            "fresh spread": fresh.max() - fresh.min(),
            "fresh ±": half_brackets.max(),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")


def compare_profiles(blocks: pd.DataFrame) -> pd.DataFrame:
    """Compare the profiles of every two models of one depth: table `likeness`, a row per pair."""
    curves = {model: own["r2"].reset_index(drop=True) for model, own in blocks.groupby("model", sort=False)}
    rows = []
    for (model, a), (other, b) in combinations(curves.items(), 2):
        if len(a) == len(b):  # profiles of different depth cannot be laid on each other
            inner = a[1:-1].corr(b[1:-1])
            row = {"model": model, "other": other, "pearson": a.corr(b), "inner": inner}
            rows.append(row | {"largest_gap": (a - b).abs().max()})
    return pd.DataFrame(rows, columns=["model", "other", "pearson", "inner", "largest_gap"])
