"""Predictions from the paper's own values of which blocks rest on massive rows, written down before any was run.

A sink writes its output in one direction, in a few features. Then pooled R²_lin is high, since the map follows the
sink; the median feature, which the sink hardly affects, stays as nonlinear as the ordinary rows are; and a map of few
directions does nearly as well as the full one. `paper/published.csv` holds all three for the 36 blocks of GPT-2,
Pythia-160m and llama-160m. Where the three agree, we predict that R²_lin of ordinary rows is lower by more than `FALL`.
"""

from __future__ import annotations

import pandas as pd

from howlinear.core.profile_statistics import FEW_ROWS_DECIDE
from howlinear.files.published import load_published

HIGH = 0.6
"""Pooled R² is high from here up; the paper's median block has 0.665."""

LOWER = 0.15
"""The median feature is far lower from this distance on: a fall beyond `FALL` needs as much, and a margin."""

FEW = 10
"""At most this many of 768 directions are few. Counted is the rank of the map that reaches 90 % of the full map's R²,
held out; the paper's rank for 95 % is not among the published values here."""

FALL = FEW_ROWS_DECIDE
"""R²_lin of ordinary rows is predicted to be lower by more than this."""


def predictions() -> pd.DataFrame:
    """Predict for every block of the paper whether it `falls`, also in words, with the values that decide it."""
    published = load_published()
    table = published[["model", "block", "r2_lin", "r2_perfeature_median", "rrr_rank90"]].copy()
    table["gap"] = table["r2_lin"] - table["r2_perfeature_median"]
    high = table["r2_lin"] >= HIGH
    far_lower = table["gap"] >= LOWER
    few_directions = table["rrr_rank90"] <= FEW
    table["falls"] = high & far_lower & few_directions
    words = {True: f"lower by more than {FALL:g}", False: f"within {FALL:g}"}
    table["prediction"] = table["falls"].map(words)
    table["threshold"] = FALL
    return table


def compared(predicted: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """Compare predictions with what was measured, block by block: whether it `fell`, and whether that is `right`."""
    measured = blocks[["model", "block", "r2", "r2_ordinary", "massive_rows", "fall"]]
    table = predicted.merge(measured, on=["model", "block"])
    table["fell"] = table["fall"] > table["threshold"]
    table["right"] = table["fell"] == table["falls"]
    return table


def sentence(comparison: pd.DataFrame) -> str:
    """Say in a sentence how the predictions did."""
    if comparison.empty:
        return "No model of this run is the paper's, so no prediction can be checked."
    predicted = comparison["falls"]
    fell = comparison["fell"]
    return (
        f"Of {predicted.sum()} blocks that were to fall, {(predicted & fell).sum()} fell; of {(~predicted).sum()} that "
        f"were to stay, {(~predicted & ~fell).sum()} stayed."
    )


def prediction_table(predicted: pd.DataFrame, comparison: pd.DataFrame) -> pd.DataFrame:
    """Tabulate whether each block of the paper is predicted to fall and, if it was run, fell; table `predictions`."""
    fell = comparison[["model", "block", "fell"]].astype({"fell": "boolean"})
    return predicted[["model", "block", "falls"]].merge(fell, "left", ["model", "block"])
