"""The paper passes its own ledger: a row that it fails is a misreading of ours."""

from dataclasses import replace

import pytest

from howlinear.errors import InputError
from howlinear.files.published import load_published
from howlinear.ideas.claims.claim import Verdict, load_claims
from howlinear.ideas.claims.ledger import as_results, own_numbers, own_verdict

CLAIMS = {claim.id: claim for claim in load_claims()}
FINDINGS = [claim for claim in CLAIMS.values() if claim.kind == "finding"]


@pytest.fixture(scope="module")
def table():
    return load_published()


@pytest.mark.parametrize("claim", FINDINGS, ids=lambda claim: claim.id)
def test_the_papers_own_numbers_clear_every_threshold(claim, table):
    if claim.unpublished:
        assert own_verdict(claim, table) is Verdict.UNTESTABLE
        assert len(claim.unpublished) > 10
        return
    assert own_numbers(claim, table)
    assert own_verdict(claim, table) is Verdict.HOLDS


@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS.values() if claim.kind != "finding"], ids=lambda claim: claim.id
)
def test_what_others_say_does_not_hold_of_the_paper(claim, table):
    assert own_verdict(claim, table) is not Verdict.HOLDS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("heterogeneous", {"gpt2": 0.779, "pythia-160m": 0.542, "llama-160m": 0.612}),
        ("not-activation", {"together": 0.362}),
        ("products-largest", {"gpt2": 0.0285, "pythia-160m": 0.1259, "llama-160m": 0.078}),
        ("gain-not-residual", {"gpt2": 0.05, "pythia-160m": 0.46, "llama-160m": -0.01}),
        ("dissociation", {"gpt2": -0.38, "pythia-160m": 0.08, "llama-160m": 0.71}),
        ("two-regimes-many", {"gpt2": 1, "pythia-160m": 376, "llama-160m": 193}),
        ("critical-differ", {"together": 0.25}),
        ("products-critical", {"pythia-160m": 0.514, "llama-160m": 0.697}),
        ("text-small-shift", {"gpt2": 0.068, "pythia-160m": 0.038, "llama-160m": 0.053}),
        ("healing-confound", {"GPT-2 block 1": -20.7}),
        ("learned-twins", {}),
    ],
)
def test_the_same_statistic_gives_what_the_paper_says(name, expected, table):
    assert own_numbers(CLAIMS[name], table) == pytest.approx(expected, abs=0.006)


def test_without_its_end_blocks_the_papers_own_gpt2_follows_the_residual(table):
    """Why no row leaves them out: the paper would fail it."""
    inner = table[~table.block.isin([0, 11])]
    claim = CLAIMS["gain-not-residual"]
    assert own_numbers(claim, inner)["gpt2"] == pytest.approx(0.83, abs=0.005)
    assert own_verdict(claim, inner) is not Verdict.HOLDS


def test_what_the_figures_do_not_hold_must_be_quoted(table):
    with pytest.raises(InputError, match=r"'scale-probe': no TinyLlama .*; quote the paper's text"):
        own_numbers(replace(CLAIMS["scale-probe"], quoted={}), table)


def test_results_of_the_paper_have_no_interval(table):
    block = as_results("02_ceilings", table)["blocks"].query("model == 'gpt2' and block == 8").iloc[0]
    assert block.r2_low == block.r2 == block.r2_high == 0.217
