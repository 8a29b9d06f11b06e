import numpy as np
import pandas as pd
import pytest

from howlinear.files import published
from howlinear.files.published import beside, beside_quoted, compare_with_paper, load_published, load_quoted, of_models

MODELS = ["gpt2", "pythia-160m", "llama-160m"]


@pytest.fixture(scope="module")
def table():
    return load_published()


def test_it_holds_twelve_blocks_of_each_of_the_papers_models(table):
    assert table.groupby("model", sort=False).block.apply(list).to_dict() == {name: list(range(12)) for name in MODELS}
    assert not table.isna().any(axis=None)
    assert set(table.dtypes[1:].astype(str)) == {"int64", "float64"}
    shares = table.filter(like="r2_")
    assert ((shares > 0) & (shares < 1)).all(axis=None)


def test_it_agrees_with_what_the_papers_text_quotes(table):
    """Numbers of the text, beside what the figures say."""
    at = table.set_index(["model", "block"])
    assert round(at.r2_lin["gpt2", 2], 3) == 0.996
    assert round(at.r2_lin["gpt2", 8], 2) == 0.22
    assert table.bilinear_gain_r16.nlargest(3).round(3).tolist() == [0.126, 0.078, 0.036]
    assert table.bilinear_gain_r16.median() < 0.01
    assert (at.rrr_rank90["gpt2", 2], at.rrr_rank90["pythia-160m", 0]) == (1, 376)
    assert round(at.dppl_linear["llama-160m", 0]) == 76
    assert round(at.dppl_linear["gpt2", 1], 2) == 1.06
    residual = 1 - table.r2_lin
    assert residual.corr(table.bilinear_gain_r16) == pytest.approx(0.004, abs=5e-4)
    gpt2, pythia = (at.r2_lin[name] for name in MODELS[:2])
    assert (gpt2 - pythia).abs().mean() == pytest.approx(0.36, abs=5e-3)
    assert gpt2.corr(pythia) == pytest.approx(-0.22, abs=5e-3)


def test_a_run_that_gives_the_papers_numbers_is_at_no_distance_whatever_ours_says(table):
    by_its_protocol = table.rename(columns={"r2_lin": "r2_scalar"})
    cells = beside(
        by_its_protocol, table.assign(r2=0.0), {"r2_lin": ("r2_scalar", "r2"), "rrr_rank90": ("rrr_rank90",) * 2}
    )
    found = compare_with_paper(cells)
    assert list(found.index) == [(quantity, model) for quantity in ("r2_lin", "rrr_rank90") for model in MODELS]
    assert found.largest.max() == 0
    assert found.r.tolist() == pytest.approx([1] * 6)
    assert found.blocks.tolist() == [12] * 6


def test_cells_and_distances_by_hand(monkeypatch):
    paper = pd.DataFrame({"model": "gpt2", "block": [0, 1, 2], "r2_lin": [0.9, 0.5, 0.1]})
    theirs = pd.DataFrame({"model": ["gpt2"] * 2 + ["mini-gpt2"], "block": [1, 0, 0], "r2_scalar": [0.2, 1.0, 0.3]})
    ours = pd.DataFrame({"model": "gpt2", "block": [1], "r2": [0.7]})
    monkeypatch.setattr(published, "load_published", lambda: paper)
    cells = beside(theirs, ours, {"r2_lin": ("r2_scalar", "r2")})
    assert cells[["quantity", "model"]].drop_duplicates().to_numpy().tolist() == [["r2_lin", "gpt2"]]
    numbers = cells.set_index("block")[["paper", "by_its_protocol", "by_ours"]]
    assert numbers.loc[1].tolist() == [0.5, 0.2, 0.7]
    assert numbers.loc[0].tolist()[:2] == [0.9, 1.0]
    assert np.isnan(numbers.loc[0, "by_ours"])
    row = compare_with_paper(cells).loc["r2_lin", "gpt2"]
    assert (row["blocks"], row["at"]) == (2, 1)
    assert row[["mean", "largest", "shift", "r"]].astype(float).tolist() == pytest.approx([0.2, 0.3, -0.1, 1.0])


def test_blocks_without_a_number_are_not_compared():
    papers = of_models(["gpt2", "pythia-160m"])
    ranks = papers.rrr_rank90.astype("Int64").where((papers.model == "gpt2") & (papers.block < 2)) + 1
    compared = compare_with_paper(beside(papers.assign(rank=ranks), papers, {"rrr_rank90": ("rank", "rrr_rank90")}))
    assert list(compared.index) == [("rrr_rank90", "gpt2")]
    assert (compared["blocks"].item(), compared["mean"].item(), compared["at"].item()) == (2, 1.0, 0)


@pytest.mark.parametrize("models", [[], ["mini-gpt2"]])
def test_models_that_are_not_the_papers_are_not_compared(models):
    theirs = pd.DataFrame({"model": models, "block": [0] * len(models)}).assign(r2_scalar=0.5)
    cells = beside(theirs, theirs, {"r2_lin": ("r2_scalar", "r2_scalar")})
    assert cells.empty
    assert compare_with_paper(cells).empty
    assert beside_quoted(theirs, "tables").empty


def test_what_the_papers_text_quotes_stands_beside_what_is_measured_alike():
    quoted = load_quoted("tables").set_index(["model", "block", "quantity"])["paper"]
    assert (quoted["gpt2", 1, "perplexity"], quoted["gpt2", 1, "dppl"]) == (64.25, 0.77)
    measured = pd.DataFrame({"model": ["gpt2", "gpt2"], "block": [1, 2], "perplexity": 64.0, "dppl": [0.7, 0.1]})
    cells = beside_quoted(measured, "tables").set_index(["block", "quantity"])
    assert cells["by_its_protocol"].to_dict() == {(1, "perplexity"): 64.0, (1, "dppl"): 0.7}
    assert cells["paper"].to_dict() == {(1, "perplexity"): 64.25, (1, "dppl"): 0.77}
