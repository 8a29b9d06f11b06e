"""Tidy tables of several models' measurements: a row a block and model, as notebooks 01 and 02 show and draw them.

The instrument itself measures one model at a time; here several of its results are laid beside one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from howlinear.core.ceilings import fit, r2
from howlinear.core.moments import Moments
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.capture import BlockCapture, describe
from howlinear.instrument.measure import Profile
from howlinear.instrument.perplexity import Change

# What goes into a block (notebook 01)


def inputs_table(captures: Mapping[str, Mapping[int, BlockCapture]]) -> pd.DataFrame:
    """What the rows that go into every block are like.

    Args:
        captures: model → block → what was kept of it, with sampled rows.

    Returns:
        A row a block: `model`, `block`, `width` (features of an input row), and the fields of
        `capture.InputStatistics`.

    Raises:
        InputError: no rows were sampled.
    """
    rows = []
    for model, blocks in captures.items():
        for block, kept in blocks.items():
            width = kept.train[0].d_in
            rows.append({"model": model, "block": block, "width": width, **asdict(describe(kept))})
    return pd.DataFrame(rows)


def null_directions(inputs: pd.DataFrame) -> pd.DataFrame:
    """How far apart the two smallest eigenvalues of the inputs' correlation matrix are.

    Args:
        inputs: as of `inputs_table`.

    Returns:
        A row a model: `width`; `rank`, the largest of any block; over the blocks the largest of the smallest eigenvalue
        and the smallest of the next, both relative to the largest eigenvalue.
    """
    by_model = inputs.groupby("model", sort=False)
    return pd.DataFrame(
        {
            "width": by_model["width"].first(),
            "rank": by_model["rank"].max(),
            "smallest, at most": by_model["null"].max(),
            "next, at least": by_model["second"].min(),
        }
    )


def inputs_summary(inputs: pd.DataFrame) -> pd.DataFrame:
    """The inputs of a model in three numbers: a row a model.

    Args:
        inputs: as of `inputs_table`.
    """
    by_model = inputs.groupby("model", sort=False)
    return pd.DataFrame(
        {
            "largest condition number": by_model["condition"].max().round(1),
            "mean effective rank": by_model["effective_rank"].mean().round(1),
            "null directions": by_model["width"].first() - by_model["rank"].min(),
        }
    )


# How much of a block is a straight line (notebook 02)


def null_rule_table(train: Moments, scored: Mapping[str, Moments], thresholds: Sequence[float]) -> pd.DataFrame:
    """What becomes of a fit as the rule for null directions moves.

    Args:
        train: moments of the train rows.
        scored: name of a column → moments of held-out rows that the maps are scored on.
        thresholds: values of the rule, relative to the largest eigenvalue of the inputs' correlation matrix.

    Returns:
        A row a threshold: `threshold`, `rank` of the inputs under it, `largest weight` of the map in absolute value,
        and R² on each of `scored`.
    """
    rows = []
    for threshold in thresholds:
        affine, rank = fit(train, null=threshold)
        row = {"threshold": threshold, "rank": rank, "largest weight": float(affine.weight.abs().max())}
        for name, held_out in scored.items():
            row[name] = r2(affine, held_out)
        rows.append(row)
    return pd.DataFrame(rows)


def order_of_magnitude(errors: Mapping[str, float], least: float, most: float) -> pd.Series:
    """Errors to the nearest power of ten: a rounding error has no digits that another processor would find too.

    Args:
        errors: name → error.
        least: what is smaller counts as this.
        most: what is larger counts as this.
    """
    exponents = np.log10(pd.Series(errors, dtype=float).clip(least, most))
    return 10.0 ** exponents.round()


def ceilings_table(profiles: Mapping[str, Profile], untrained: Mapping[str, Baseline] | None = None) -> pd.DataFrame:
    """R²_lin of every block of several models.

    Args:
        profiles: model → its profile.
        untrained: model → what is known of the same architecture before training.

    Returns:
        A row a block: `model` and the columns of `Profile.to_frame`; and, if `untrained` is given, `r2_untrained`, held
        out, `r2_untrained_in_sample` and `untrained_rows`.
    """
    tables = []
    for model, profile in profiles.items():
        table = profile.to_frame()
        table.insert(0, "model", model)
        if untrained is not None:
            table["r2_untrained"] = untrained[model].held_out
            table["r2_untrained_in_sample"] = untrained[model].in_sample
            table["untrained_rows"] = untrained[model].rows
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def swap_table(costs: Mapping[str, Mapping[int, Change]]) -> pd.DataFrame:
    """What swapping each block for its map costs.

    Args:
        costs: model → block → change of perplexity, as of `swap_costs`.

    Returns:
        A row a block: `model`, `block`, `delta` (in perplexity), and the ends of its interval, `low` and `high`.
    """
    return pd.DataFrame(
        {"model": model, "block": block, "delta": change.delta, "low": change.low, "high": change.high}
        for model, changes in costs.items()
        for block, change in changes.items()
    )


def by_block(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of a tidy table with a row a block and a column a model, models in the table's order."""
    models = table["model"].unique()
    return table.pivot_table(index="block", columns="model", values=column)[models]


def profile_summary(profiles: Mapping[str, Profile], ceilings: pd.DataFrame) -> pd.DataFrame:
    """What the profiles show, a row a model.

    Args:
        profiles: model → its profile.
        ceilings: as of `ceilings_table`, with what was before training.

    Returns:
        `lowest` and `highest` block; whether the profile `rises and falls` beyond its intervals; the `largest step`
        between neighbours; `trained − fresh`, the mean change that training made; `fresh spread`, highest less lowest
        block before training. Before training a block counts as halfway between held-out and in-sample R²; `fresh ±` is
        half of the widest such bracket.
    """
    rows = {}
    for model, profile in profiles.items():
        blocks = ceilings[ceilings["model"] == model]
        trained = blocks["r2"]
        fresh = (blocks["r2_untrained"] + blocks["r2_untrained_in_sample"]) / 2
        half_brackets = (blocks["r2_untrained_in_sample"] - blocks["r2_untrained"]) / 2
        rows[model] = {
            "lowest": trained.min(),
            "highest": trained.max(),
            "rises and falls": profile.rises_and_falls,
            "largest step": trained.diff().abs().max(),
            "trained − fresh": (trained - fresh).mean(),
            "fresh spread": fresh.max() - fresh.min(),
            "fresh ±": half_brackets.max(),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")


def likeness(ceilings: pd.DataFrame) -> pd.DataFrame:
    """How alike the profiles of every two models of one depth are.

    Args:
        ceilings: as of `ceilings_table`.

    Returns:
        A row a pair, named as in `a ~ b`: Pearson's correlation over blocks, `pearson`; the same without first and last
        block, `inner`; and the `largest_gap` of any block, in R².
    """
    curves = {model: blocks["r2"].to_numpy() for model, blocks in ceilings.groupby("model", sort=False)}
    rows = {}
    for first, second in combinations(curves, 2):
        a, b = curves[first], curves[second]
        if len(a) != len(b):
            continue  # profiles of different depth cannot be laid on each other
        rows[f"{first} ~ {second}"] = {
            "pearson": float(np.corrcoef(a, b)[0, 1]),
            "inner": float(np.corrcoef(a[1:-1], b[1:-1])[0, 1]),
            "largest_gap": float(np.abs(a - b).max()),
        }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["pearson", "inner", "largest_gap"])


def linearity_and_cost(ceilings: pd.DataFrame, swaps: pd.DataFrame) -> dict[str, float]:
    """Model → Spearman's correlation over blocks of R²_lin with the cost of the swap; −1: more linear is cheaper.

    Args:
        ceilings: as of `ceilings_table`.
        swaps: as of `swap_table`.
    """
    both = ceilings.merge(swaps, on=["model", "block"], validate="one_to_one")
    return {
        str(model): float(blocks["r2"].corr(blocks["delta"], method="spearman"))
        for model, blocks in both.groupby("model", sort=False)
    }


def ceilings_record(
    profiles: Mapping[str, Profile], ceilings: pd.DataFrame, swaps: pd.DataFrame, correlation: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """What notebook 02 keeps of every model: `Profile.to_dict`, and what a swap and training did.

    Args:
        profiles: model → its profile.
        ceilings: as of `ceilings_table`, with what was before training.
        swaps: as of `swap_table`.
        correlation: as of `linearity_and_cost`; a model without perplexity has no swaps, and so none.
    """
    record = {}
    for model, profile in profiles.items():
        fresh = ceilings[ceilings["model"] == model]
        cost = swaps.loc[swaps["model"] == model, ["block", "delta", "low", "high"]]
        record[model] = profile.to_dict() | {
            "model": model,
            "untrained": fresh["r2_untrained"].tolist(),
            "untrained_in_sample": fresh["r2_untrained_in_sample"].tolist(),
            "untrained_rows": int(fresh["untrained_rows"].iloc[0]),
            "swap": cost.to_dict("records"),
            "spearman_r2_delta": correlation.get(model),
            "rises_and_falls": profile.rises_and_falls,
        }
    return record
