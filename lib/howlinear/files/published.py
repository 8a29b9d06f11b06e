"""What the paper publishes of its 36 blocks, and how far a run of its models lies from it.

`paper/published.csv` holds the numbers of the survey, `paper/quoted.csv` others that stand in its text and tables, and
`paper/published.md` says where they are from. They are facts about GPT-2, Pythia-160m and llama-160m under the paper's
protocol: beside other models they are a picture, not a yardstick, and beside another protocol they are no test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from howlinear.files import paths

SOURCE = paths.ROOT / "paper" / "published.csv"
QUOTED = paths.ROOT / "paper" / "quoted.csv"


def load_published() -> pd.DataFrame:
    """The paper's numbers, a row a block of a model; what each column is stands in `paper/published.md`."""
    return pd.read_csv(SOURCE)


def of_models(models: Iterable[str]) -> pd.DataFrame:
    """The rows of `load_published` about those of several models that are the paper's.

    They go by their short names, as `gpt2`; an embedded model, as `mini-gpt2`, is another one and has no row.
    """
    table = load_published()
    return table[table["model"].isin(list(models))].reset_index(drop=True)


def beside(by_its_protocol: pd.DataFrame, ours: pd.DataFrame, columns: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Cell by cell: what the paper publishes, the same measured by its protocol, and what ours says of the block.

    Both measured tables have a row a `model` and `block`; `columns` says what columns of `load_published` are called in
    the one and in the other.

    Returns:
        A row a `quantity` (such a column), model and block: `paper`, `by_its_protocol` and `by_ours`.
    """
    keys = ["model", "block"]
    papers = of_models(by_its_protocol["model"].unique())
    parts = [pd.DataFrame(columns=["quantity", *keys, "paper", "by_its_protocol", "by_ours"])]
    for quantity, (theirs, own) in columns.items() if len(papers) else ():
        cells = papers[[*keys, quantity]].set_axis([*keys, "paper"], axis=1)
        cells = cells.merge(by_its_protocol[[*keys, theirs]].rename(columns={theirs: "by_its_protocol"}), on=keys)
        cells = cells.merge(ours[[*keys, own]].rename(columns={own: "by_ours"}), on=keys, how="left")
        parts.append(cells.assign(quantity=quantity)[parts[0].columns])
    return pd.concat(parts[1:] or parts, ignore_index=True)


def load_quoted(place: str) -> pd.DataFrame:
    """What the paper's text says beside its figures at a `place`, a row a `model`, `block` and `quantity`."""
    return pd.read_csv(QUOTED).query("place == @place").drop(columns="place")


def beside_quoted(by_its_protocol: pd.DataFrame, place: str) -> pd.DataFrame:
    """What the paper's text says at a place, as `load_quoted`, beside the same measured by its protocol.

    Returns:
        As of `beside`, without `by_ours`; a row for what both have.
    """
    quoted = load_quoted(place)
    keys = ["quantity", "model", "block"]
    measured = by_its_protocol.melt(["model", "block"], var_name="quantity", value_name="by_its_protocol")
    return quoted.merge(measured.astype({"block": "float64"}), on=keys).astype({"block": "int64"})


def compare_with_paper(cells: pd.DataFrame) -> pd.DataFrame:
    """How far the paper's protocol, run here, lies from what the paper publishes, of the cells of `beside`.

    Returns:
        A row a `quantity` and model: `blocks` compared, `mean` and `largest` distance |by its protocol − paper|, the
        block `at` which it is largest, `shift`, the mean of by its protocol − paper, and Pearson's `r` of the two (NaN
        if one does not vary). No row of a model none of whose blocks has the number.
    """
    rows = []
    # a block that the line explains nothing of has no rank, so nothing to compare
    both = cells.dropna(subset="by_its_protocol")
    for (quantity, model), blocks in both.groupby(["quantity", "model"], sort=False):
        difference = blocks["by_its_protocol"].astype("float64") - blocks["paper"]
        distance = difference.abs()
        rows.append(
            {
                "quantity": quantity,
                "model": model,
                "blocks": len(blocks),
                "mean": distance.mean(),
                "largest": distance.max(),
                "at": int(blocks.loc[distance.idxmax(), "block"]),
                "shift": difference.mean(),
                "r": blocks["by_its_protocol"].astype("float64").corr(blocks["paper"]),
            }
        )
    columns = ["quantity", "model", "blocks", "mean", "largest", "at", "shift", "r"]
    return pd.DataFrame(rows, columns=columns).set_index(["quantity", "model"])
