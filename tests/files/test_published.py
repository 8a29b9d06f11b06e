import numpy as np
import pandas as pd
import pytest

from howlinear.errors import InputError, SourceError
from howlinear.files.published import COLUMNS, SOURCE, apart, load_published, of_models

MODELS = ["gpt2", "pythia-160m", "llama-160m"]


@pytest.fixture(scope="module")
def table():
    return load_published()


def test_it_holds_twelve_blocks_of_each_of_the_papers_models(table):
    assert table.groupby("model", sort=False).block.apply(list).to_dict() == {name: list(range(12)) for name in MODELS}
    assert table.dtypes.astype(str).to_dict() == COLUMNS
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


def test_only_the_papers_models_have_rows(table):
    assert of_models(["mini-gpt2", "gpt2"]).model.unique().tolist() == ["gpt2"]
    assert of_models(["mini-gpt2"], table).empty


def test_a_run_that_gives_the_papers_numbers_is_at_no_distance(table):
    found = apart(table.rename(columns={"r2_lin": "r2"}), "r2", "r2_lin")
    assert list(found.index) == MODELS
    assert found.largest.max() == 0
    assert found.r.tolist() == pytest.approx([1, 1, 1])
    assert found.blocks.tolist() == [12, 12, 12]


def test_distances_by_hand():
    paper = pd.DataFrame({"model": "gpt2", "block": [0, 1, 2], "r2_lin": [0.9, 0.5, 0.1]})
    ours = pd.DataFrame({"model": ["gpt2"] * 2 + ["mini-gpt2"], "block": [1, 0, 0], "r2": [0.2, 1.0, 0.3]})
    found = apart(ours, "r2", "r2_lin", paper)
    assert list(found.index) == ["gpt2"]
    row = found.loc["gpt2"]
    assert (row["blocks"], row["at"]) == (2, 1)
    assert row[["mean", "largest", "shift", "r"]].astype(float).tolist() == pytest.approx([0.2, 0.3, -0.1, 1.0])


def test_blocks_without_a_number_are_not_compared():
    papers = of_models(["gpt2", "pythia-160m"])
    ours = papers.assign(rank=np.where((papers.model == "gpt2") & (papers.block < 2), papers.rrr_rank90 + 1.0, np.nan))
    compared = apart(ours, "rank", "rrr_rank90")
    assert list(compared.index) == ["gpt2"]
    assert (compared["blocks"].item(), compared["mean"].item(), compared["at"].item()) == (2, 1.0, 0)


def test_models_that_are_not_the_papers_are_not_compared():
    ours = pd.DataFrame({"model": "mini-gpt2", "block": [0], "r2": [0.5]})
    assert apart(ours, "r2", "r2_lin").empty
    with pytest.raises(InputError, match="no column 'r3'"):
        apart(ours, "r2", "r3")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda t: t.drop(columns="r2_lin"), "r2_lin"),
        (lambda t: t.assign(block=t.block + 0.5), "cannot read"),
        (lambda t: t.assign(r2_lin="high"), "cannot read"),
        (lambda t: t.assign(r2_lin=t.r2_lin.mask(t.index == 3, np.nan)), "a gap or a block twice"),
        (lambda t: pd.concat([t, t[:1]]), "a gap or a block twice"),
    ],
)
def test_a_damaged_file_is_refused(table, tmp_path, spoil, match):
    path = tmp_path / "published.csv"
    spoil(table).to_csv(path, index=False)
    with pytest.raises(SourceError, match=match):
        load_published(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"nope\.csv"):
        load_published(tmp_path / "nope.csv")
    assert SOURCE.is_file()
