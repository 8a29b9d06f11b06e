"""The tables of notebook 06 and what its template says of them, on runs that lack something."""

import pandas as pd
import pytest

from howlinear.files import paths, tables
from howlinear.files.tables import Results
from howlinear.ideas.compression.measure import COLUMNS, stack, worth
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


def fewer(found, keep):
    """The same results with some rows of each table."""
    tables = {name: table[keep(table)] for name, table in found.items() if "model" in table}
    return Results(found.stem, {**found, **tables}, found.run)


def test_a_run_of_an_encoder_alone_has_an_answer_to_every_question(recorded):
    empty = Results(recorded.stem, {name: table[:0] for name, table in recorded.items()}, recorded.run)
    (answer,) = describe(empty).answer
    assert answer.startswith("mini-gpt2, mini-pythia and mini-llama predict no next token")
    assert len(describe(empty).replies) == 3
    assert all(said for _, said in describe(empty).questions)


def test_of_an_encoder_beside_others_it_is_said_that_it_has_no_loss(recorded):
    found = describe(fewer(recorded, lambda table: table["model"] != "mini-llama"))
    assert found.answer[-1].startswith("mini-llama predicts no next token")


def test_a_model_of_two_blocks_has_costs_and_no_ranking(recorded):
    few = fewer(recorded, lambda table: table["block"] < 2 if "block" in table else table["model"] == "")
    few = Results(few.stem, {**few, "agreements": few["agreements"][:0], "frontier": recorded["frontier"]}, few.run)
    found = describe(few)
    _, of_means, of_lines = found.answer
    assert "block 0" in of_means
    last = recorded["frontier"].query("model == 'mini-gpt2' and way == 'greedy, refitted'")
    assert f"{last['delta'].iloc[-1]:+.2f}" in of_lines
    assert all(said for _, said in found.questions)
