"""The paper's published numbers of its 36 blocks, and how far a run on its models lies from them.

`paper/published.csv` holds the numbers of the survey, `paper/quoted.csv` others from its text and tables, and
`paper/published.md` gives their sources. They are facts about GPT-2, Pythia-160m and llama-160m under the paper's
protocol: next to other models they are an illustration, not a yardstick, and for another protocol they are no test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from howlinear.files import paths

SOURCE = paths.ROOT / "paper" / "published.csv"
QUOTED = paths.ROOT / "paper" / "quoted.csv"


def load_published() -> pd.DataFrame:
    """Load the paper's numbers, one row per block of a model; `paper/published.md` describes the columns."""
    return pd.read_csv(SOURCE)


def of_models(models: Iterable[str]) -> pd.DataFrame:
    """Select the rows of `load_published` for those of `models` that are the paper's.

    Models are given by short name, as in `gpt2`; an embedded model such as `mini-gpt2` is another model and has no row.
    """
    table = load_published()
    return table[table["model"].isin(list(models))].reset_index(drop=True)


def beside(by_its_protocol: pd.DataFrame, ours: pd.DataFrame, columns: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Lay the paper's numbers next to the same numbers measured by its protocol and by ours, cell by cell.

    Both measured tables have one row per `model` and `block`; `columns` maps columns of `load_published` to their names
    in the first and in the second table.

    Returns:
        One row per `quantity` (a key of `columns`), model and block: `paper`, `by_its_protocol` and `by_ours`.
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
    """Load the numbers that the paper's text gives at a `place`, one row per `model`, `block` and `quantity`."""
    return pd.read_csv(QUOTED).query("place == @place").drop(columns="place")


def beside_quoted(by_its_protocol: pd.DataFrame, place: str) -> pd.DataFrame:
    """Lay the numbers of the paper's text at a place (`load_quoted`) next to the same measured by its protocol.

    Returns:
        As in `beside`, without `by_ours`; one row for each number that both have.
    """
    quoted = load_quoted(place)
    keys = ["quantity", "model", "block"]
    measured = by_its_protocol.melt(["model", "block"], var_name="quantity", value_name="by_its_protocol")
    return quoted.merge(measured.astype({"block": "float64"}), on=keys).astype({"block": "int64"})


def compare_with_paper(cells: pd.DataFrame) -> pd.DataFrame:
    """Summarise how far the paper's protocol, run here, lies from the paper, given the cells of `beside`.

    Returns:
        One row per `quantity` and model: `blocks` compared, `mean` and `largest` distance |by its protocol − paper|,
        the block `at` which it is largest, `shift`, the mean of by its protocol − paper, and Pearson's `r` of the two
        (NaN if one does not vary). A model without the number in any block has no row.
    """
    rows = []
    # a block of which the map explains nothing has no rank to compare
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
