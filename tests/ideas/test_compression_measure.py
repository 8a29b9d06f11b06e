"""The tables of notebook 06 and what its template says of them, on runs that lack something."""

import pandas as pd
import pytest

from howlinear.files import paths, tables
from howlinear.files.tables import Results
from howlinear.ideas.compression.ranking import COLUMNS, stack, worth
from howlinear.notebook.prose import describe


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


@pytest.fixture
def recorded():
    return tables.results(paths.results("minis"), "06_compression")


def of_an_encoder(tables):
    return {name: table[:0] for name, table in tables.items()}


def of_two_models(tables):
    return tables | {name: table[table["model"] != "mini-llama"] for name, table in tables.items() if "model" in table}


def of_two_blocks(tables):
    """Costs, and no ranking."""
    first = {name: table[table["block"] < 2] for name, table in tables.items() if "block" in table}
    return of_an_encoder(tables) | first | {"frontier": tables["frontier"]}


@pytest.mark.parametrize("lacking", [of_an_encoder, of_two_models, of_two_blocks])
def test_a_run_that_lacks_something_has_an_answer_to_every_question(recorded, lacking):
    found = describe(Results(recorded.stem, lacking(dict(recorded)), recorded.run))
    assert len(found.replies) == 3
    assert all(said for _, said in found.questions)
    answer = " ".join(found.answer)
    assert ("mini-llama predict" in answer) == (lacking is not of_two_blocks)
    last = recorded["frontier"].query("model == 'mini-gpt2' and way == 'greedy, refitted'")["delta"].iloc[-1]
    assert (f"{last:+.2f}" in answer) == (lacking is not of_an_encoder)
