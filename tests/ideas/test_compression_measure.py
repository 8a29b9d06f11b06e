"""The tables of notebook 06."""

import pandas as pd
import pytest

from howlinear.ideas.compression.ranking import COLUMNS, stack, worth


def test_tables_of_models_stand_one_below_the_other():
    tables = {
        "a": pd.DataFrame({"summed": [1.0], "naive": [2.0]}),
        "b": pd.DataFrame({"naive": [3.0], "summed": [4.0]}),
    }
    assert stack("together", tables).to_numpy().tolist() == [["a", 2.0, 1.0], ["b", 3.0, 4.0]]
    for name, columns in COLUMNS.items():
        empty = stack(name, {})
        assert empty.empty
        assert list(empty) == ["model", *columns]


def of_blocks(model, ablation):
    """A model whose blocks grow more linear one by one."""
    r2 = [0.1 * block for block in range(len(ablation))]
    return pd.DataFrame({"model": model, "block": range(len(r2)), "r2": r2, "ablation": ablation})


def test_the_more_linear_blocks_are_worth_more_or_less_or_too_few():
    tables = [of_blocks("more", [1, 2, 3, 5, 4, 6, 7]), of_blocks("less", [7, 6, 4, 5, 3, 2, 1])]
    tables += [of_blocks("few", [1, 2, 3]), of_blocks("same", [1.0] * 7)]
    table = worth(pd.concat(tables, ignore_index=True)).set_index("model")
    assert table["rho"].to_dict() == pytest.approx({"more": 27 / 28, "less": -27 / 28})
    assert table["inner"].to_dict() == pytest.approx({"more": 0.9, "less": -0.9})
    assert table.loc["more", ["rho_low", "rho_high"]].tolist() == pytest.approx([0.6737, 0.9966], abs=1e-4)
    assert worth(stack("blocks", {})).empty
