"""What the paper publishes of its 36 blocks, and how far a run of its models lies from it.

`paper/published.csv` holds the numbers and `paper/published.md` says where they are from. They are facts about GPT-2,
Pythia-160m and llama-160m under the paper's protocol: beside other models they are a picture, not a yardstick.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from howlinear.errors import InputError, SourceError
from howlinear.files import paths

SOURCE = paths.ROOT / "paper" / "published.csv"

COLUMNS = {
    "model": "string",
    "block": "int64",
    "r2_lin": "float64",
    "r2_perfeature_median": "float64",
    "rrr_rank90": "int64",
    "bilinear_gain_r16": "float64",
    "dppl_linear": "float64",
    "dppl_poly": "float64",
    "r2_poly_wholelayer": "float64",
    "r2_lin_math_puzzles": "float64",
    "r2_lin_moby_dick": "float64",
}
"""Column → its type; what each is stands in `paper/published.md`."""


def load_published(path: Path = SOURCE) -> pd.DataFrame:
    """The paper's numbers, a row a block of a model, with the columns and types of `COLUMNS`.

    Raises:
        SourceError: the file cannot be read, lacks a column or holds what is no number of that kind; a number is
            missing, or a block comes twice.
    """
    try:
        table = pd.read_csv(path, dtype=COLUMNS)[list(COLUMNS)]
    except (OSError, KeyError, ValueError) as error:
        raise SourceError(f"cannot read the paper's numbers {path}: {error}; take it from the repository") from error
    if table.isna().any(axis=None) or table.duplicated(["model", "block"]).any():
        raise SourceError(f"the paper's numbers {path} have a gap or a block twice; take it from the repository")
    return table


def of_models(models: Iterable[str], table: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rows about those of several models that are the paper's, by the short names that results go by.

    Args:
        models: short names, as `gpt2`; an embedded model's, as `mini-gpt2`, is another model and has no row.
        table: as from `load_published`, which it is by default.
    """
    if table is None:
        table = load_published()
    return table[table["model"].isin(list(models))].reset_index(drop=True)


def apart(measured: pd.DataFrame, column: str, published: str, table: pd.DataFrame | None = None) -> pd.DataFrame:
    """How far a run of the paper's models lies from what the paper publishes.

    Args:
        measured: a row a block: `model`, `block` and the column to compare.
        column: of `measured`, as `r2`.
        published: the column of `COLUMNS` to compare it with, as `r2_lin`.
        table: as from `load_published`, which it is by default.

    Returns:
        A row a model of the paper that was measured: `blocks` compared, `mean` and `largest` distance |ours − paper's|,
        the block `at` which it is largest, `shift`, the mean of ours − the paper's, and Pearson's `r` of the two (NaN
        if one does not vary). No row if no model is the paper's, or none of its blocks has the number.

    Raises:
        InputError: the paper publishes no such column.
    """
    if published not in COLUMNS:
        raise InputError(f"the paper publishes no column {published!r}: {', '.join(COLUMNS)}")
    ours = measured[["model", "block", column]].rename(columns={column: "ours"})
    papers = of_models(measured["model"].unique(), table)[["model", "block", published]]
    # a block that the line explains nothing of has no rank, so nothing to compare
    ours = ours.dropna(subset="ours")
    both = ours.merge(papers.rename(columns={published: "paper"}), on=["model", "block"])
    rows = {}
    for model, blocks in both.groupby("model", sort=False):
        difference = blocks["ours"] - blocks["paper"]
        distance = difference.abs()
        rows[model] = {
            "blocks": len(blocks),
            "mean": distance.mean(),
            "largest": distance.max(),
            "at": int(blocks.loc[distance.idxmax(), "block"]),
            "shift": difference.mean(),
            "r": blocks["ours"].corr(blocks["paper"]),
        }
    columns = ["blocks", "mean", "largest", "at", "shift", "r"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("model")
