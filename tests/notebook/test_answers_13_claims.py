"""What notebook 13 says of results unlike those on record."""

import pytest

from howlinear.files.tables import Results
from howlinear.ideas.claims import ledger
from howlinear.ideas.claims.claim import load_claims
from howlinear.notebook import prose
from tests.ideas.test_claims import keep, tables_of

CLAIMS = load_claims()


def described(folder, models):
    """The prose of notebook 13 on the results in a folder."""
    factors = [0.75, 1.0, 1.5]
    settings = {"models": models, "corpora": ["docs"]} | ledger.settings_of_ledger(factors)
    return prose.describe(Results("13_claims", tables_of(folder, CLAIMS, factors), {"settings": settings}))


def test_without_any_results_nothing_is_judged(tmp_path):
    said = described(tmp_path, ["a"])
    assert len(said.questions) == 5
    assert all(answer for _, answer in said.questions)
    assert f"{len(CLAIMS)} cannot be tested here" in said.answer[0]


@pytest.fixture
def one_model(tmp_path):
    keep(tmp_path, a=[0.9, 0.2, 0.2, 0.8])
    return tmp_path


def test_of_one_model_the_board_is_its_own(one_model):
    said = described(one_model, ["a"])
    found = ledger.evaluate(one_model, CLAIMS)
    ticks = (found.verdict == "holds here").sum()
    assert f"{ticks} `✓`" in said.replies[0]
    assert "all models together" not in said.replies[0]


def test_a_model_of_the_papers_own_is_said_to_be_its(one_model):
    """On which a claim fails that the paper makes of it."""
    keep(one_model, gpt2=[0.5, 0.5, 0.5, 0.5])
    said = described(one_model, ["gpt2"])
    refuted = dict(said.questions)["A claim does not hold here. Is the paper refuted?"]
    assert "gpt2" in refuted
    assert "its own" in refuted


def test_a_tick_without_its_end_blocks_is_told_of(one_model):
    """Between the ends lies one value, so nothing that is said of the whole profile is so there."""
    keep(one_model, a=[0.9, 0.5, 0.5, 0.2])
    assert any("*heterogeneous* ✗ a" in sentence for sentence in described(one_model, ["a"]).answer)
    keep(one_model, a=[0.9, 0.2, 0.8, 0.2])
    assert not any("*heterogeneous* ✗ a" in sentence for sentence in described(one_model, ["a"]).answer)
