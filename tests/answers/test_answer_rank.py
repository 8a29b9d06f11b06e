"""What notebook 04 says of tables made up for a case each."""

import dataclasses

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.notebook import prose

SETTINGS = {"models": ["a"], "high": 0.9, "few": 2.0, "gap": 0.25, "counts": [0, 4], "bands": 2, "heavy": 0.01}


def made_up(rows, bands=None, shape="falls"):
    """Rows of (R², median, effective rank, regime), blocks of model a; the R² of its bands, block by block."""
    blocks = pd.DataFrame(rows, columns=["r2", "median_r2", "effective_rank", "regime"])
    blocks = blocks.assign(model="a", block=range(len(rows)), predicted_rank=1.0, heavy_error=0.02, band_shape="falls")
    blocks["rank_90"] = pd.array([2] * len(rows), dtype="Int64")
    bands = bands or [(0.4, 0.5)] * len(rows)
    return tables.Results(
        "04_rank",
        {
            "blocks": blocks,
            "bands": pd.DataFrame(
                [
                    {"model": "a", "block": block, "band": band, "r2": r2}
                    for block, of_block in enumerate(bands)
                    for band, r2 in enumerate(of_block, start=1)
                ]
            ),
            "without_loudest": pd.DataFrame(
                [
                    {"model": "a", "block": block, "axis": axis, "left_out": left_out, "r2": row[0] - left_out * step}
                    for block, row in enumerate(rows)
                    for axis, step in (("features", 0.025), ("directions", 0.05))
                    for left_out in SETTINGS["counts"]
                ]
            ),
            "verdicts": pd.DataFrame({"model": ["a"], "verdict": ["no"], "rho": [0.0], "band_shape": [shape]}),
        },
        {"settings": SETTINGS | {"bands": len(bands[0])}},
    )


def with_blocks(found, **columns):
    blocks = found["blocks"].assign(**columns)
    return dataclasses.replace(found, tables={**found.tables, "blocks": blocks})


BELOW = (0.5, 0.4, 9.0, "below")


def test_the_regimes_of_near_linear_blocks():
    found = made_up(
        [
            (0.97, 0.2, 1.1, "concentrated"),
            (0.95, 0.1, 1.3, "concentrated"),
            (0.92, 0.9, 9.0, "broad"),
            (0.91, 0.9, 1.0, "mixed"),
            BELOW,
        ]
    )
    said = prose.describe(found)
    regimes, left_out, *_ = said.answer
    assert "block 2 is near-linear (R²_lin 0.92) throughout" in regimes
    assert "blocks 0 and 1 are near-linear (R²_lin 0.95 to 0.97) in hardly more than one loud direction" in regimes
    assert "the R² of the median feature is 0.10 to 0.20, the effective rank of the outputs 1.1 to 1.3" in regimes
    assert "block 3 is near-linear (R²_lin 0.91) though the two signs of one loud direction, a low" in regimes
    assert left_out.endswith("is 0.75 and 0.65 (all: 0.85) in a.")
    assert said.replies[0].endswith("So it is in blocks 0 and 1 of a.")
    assert said.replies[1].endswith("from 0.85 to 0.75 in a.")
    assert said.replies[2] == "The most frequent band lies above the rarest in 0 of 5 blocks of a."
    assert "in block 1 of a: 0.95 pooled and 0.10 for" in said.questions[0][1]
    below = prose.describe(made_up([BELOW])).answer
    assert below[0] == "No block of a reaches 0.90; the highest R²_lin is 0.50 (block 0)."


@pytest.mark.parametrize(
    ("shape", "bands", "text"),
    [
        ("falls", [(0.9, 0.6, 0.5), (0.7, 0.6, 0.5)], "falls from 0.80 to 0.50 (… 2 of 2 blocks)"),
        ("rises", [(0.4, 0.5, 0.6)], "rises from 0.40 to 0.60 (… 0 of 1 blocks)"),
        (
            "falls, then rises",
            [(0.9, 0.6, 0.2, 0.8)] * 2,
            "falls from 0.90 to 0.20 in band 3 and rises to 0.80 (… 0 of 2 blocks)",
        ),
        (
            "rises, then falls",
            [(0.3, 0.6, 0.2)],
            "rises from 0.30 to 0.60 in band 2 and falls to 0.20 (… 0 of 1 blocks)",
        ),
        (
            "goes up and down",
            [(0.3, 0.6, 0.2, 0.4)],
            "goes up and down from 0.30 to 0.40, between 0.20 and 0.60 (… 0 of 1 blocks)",
        ),
    ],
)
def test_bands_may_fall_rise_turn_or_do_neither(shape, bands, text):
    said = prose.describe(made_up([BELOW] * len(bands), bands, shape)).answer
    text = text.replace("…", "from band to band the same way in")
    assert said[2] == (
        f"From the most frequent tokens to the rarest, in {len(bands[0])} bands, the mean R² over blocks {text} in a."
    )


def test_over_depth_the_ends_of_a_band_may_lie_above_its_middle():
    first, inner, last = (0.9, 0.9, 0.9), (0.4, 0.5, 0.5), (0.6, 0.9, 0.4)
    said = prose.describe(made_up([BELOW] * 4, [first, inner, inner, last])).answer
    assert said[3] == (
        "Over depth the first and the last block both lie above the mean of those between in 2 of 3 bands (by 0.20 or "
        "more) of a."
    )
    never = prose.describe(made_up([BELOW] * 3, [inner, first, inner])).answer
    assert never[3].endswith("in 0 of 3 bands of a.")
    assert len(prose.describe(made_up([BELOW] * 2, [first, last])).answer) == 3  # nothing lies between two blocks


@pytest.mark.parametrize(
    ("number", "columns", "text"),
    [
        (1, {"rank_90": pd.array([None, None], dtype="Int64")}, "no map has a held-out R² above 0."),
        (1, {"rank_90": pd.array([None, 3], dtype="Int64")}, "in block 1 of a, where they are 9.0 and 3."),
        (1, {"rank_90": pd.array([2, 30], dtype="Int64")}, "in block 0 of a, where they are 9.0 and 2."),
        (3, {}, "No: they hold"),
        (3, {"predicted_rank": [1.0, 99.0]}, "Mostly they do: they hold"),
        (4, {}, "They do: the 1 % of held-out rows"),
        (4, {"heavy_error": [0.001, 0.02]}, "in 1 of 2 blocks of a (at most 2.0 %)."),
        (4, {"heavy_error": 0.001}, "Mostly they do not: "),
    ],
)
def test_results_that_turn_round_turn_the_answer_round(number, columns, text):
    assert text in prose.describe(with_blocks(made_up([BELOW] * 2), **columns)).questions[number][1]
