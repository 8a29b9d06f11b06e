import pandas as pd
import pytest

from conftest import BLOCKS, WIDTH, tiny
from howlinear.ideas.inputs import describe_inputs, null_directions, summarise
from howlinear.instrument.capture import capture, describe


@pytest.fixture
def captures(rows):
    models = {"gpt2": tiny("mini-gpt2"), "llama": tiny("mini-llama", seed=1)}
    return {name: capture(model, rows, sample=rows.ids.numel()) for name, model in models.items()}


def test_the_table_of_inputs_has_a_row_a_block_and_model(captures):
    table = describe_inputs(captures)
    assert list(zip(table["model"], table["block"], strict=True)) == [
        (name, block) for name in ("gpt2", "llama") for block in range(BLOCKS)
    ]
    assert (table["width"] == WIDTH).all()
    row = table.iloc[BLOCKS + 1]
    found = describe(captures["llama"][1])
    assert row["condition"] == found["condition"]
    assert row["first_position_out"] == found["first_position_out"]


INPUTS = pd.DataFrame(
    {
        "model": ["b", "b", "a"],
        "block": [0, 1, 0],
        "width": [8, 8, 4],
        "rank": [7, 6, 4],
        "null": [1e-16, 3e-15, 0.2],
        "second": [1e-3, 1e-2, 0.3],
        "condition": [10.2, 20.6, 3.0],
        "effective_rank": [2.0, 3.1, 4.0],
    }
)


def test_null_directions_take_the_worst_block_of_each_model():
    table = null_directions(INPUTS)
    assert list(table.index) == ["b", "a"]  # the order of the table, not of the alphabet
    assert table.loc["b"].to_dict() == {"width": 8, "rank": 7, "smallest, at most": 3e-15, "next, at least": 1e-3}


def test_the_summary_of_inputs_by_hand():
    assert summarise(INPUTS).to_dict("index") == {
        "b": {"largest condition number": 20.6, "mean effective rank": 2.6, "null directions": 2},
        "a": {"largest condition number": 3.0, "mean effective rank": 4.0, "null directions": 0},
    }
