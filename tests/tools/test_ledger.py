"""The ledger's page: which group a claim is in."""

import pandas as pd
import pytest

from howlinear.files import paths
from howlinear.files.tables import Results
from howlinear.ideas.claims.claim import Verdict, load_claims
from tools import ledger

YES, NO, MIXED, OPEN = Verdict.HOLDS, Verdict.NOT, Verdict.MIXED, Verdict.UNTESTABLE


@pytest.mark.parametrize(
    ("verdicts", "firm", "group"),
    [
        ([OPEN, OPEN], False, ledger.UNTESTABLE),
        ([OPEN, Verdict.NO_POWER], False, ledger.UNTESTABLE),
        ([NO, OPEN], False, ledger.FAILS),
        ([NO, YES], True, ledger.HOLDS),
        ([YES, YES], False, ledger.OPEN),
        ([NO, MIXED], False, ledger.OPEN),
    ],
)
def test_a_claim_is_in_one_group(verdicts, firm, group):
    assert ledger.group(pd.Series(verdicts), firm) == group


def judged(unit="R²", threshold=0.25, inner=YES, at_more=YES, ordinary=None):
    """A claim that holds in model a; without end blocks or massive rows, and at 1.5 times its threshold, as given."""
    moved = [("wide", "a", 0.5, NO), ("wide", "a", 0.75, YES), ("wide", "a", 1.0, YES), ("wide", "a", 1.5, at_more)]
    return Results(
        "13_claims",
        {
            "verdicts": pd.DataFrame(
                {"claim": ["wide"], "model": "a", "verdict": YES, "inner_verdict": inner, "ordinary_verdict": ordinary}
            ),
            "thresholds": pd.DataFrame(moved, columns=["claim", "model", "factor", "verdict"]),
            "claims": pd.DataFrame({"claim": ["wide"], "unit": unit, "threshold": threshold}),
        },
    )


def test_a_tick_is_firm_that_no_end_block_and_no_threshold_near_its_own_takes_away():
    assert ledger.firm_ticks(judged()) == {"wide"}
    assert ledger.firm_ticks(judged(inner=None)) == {"wide"}
    assert ledger.firm_ticks(judged(inner=MIXED)) == set()
    assert ledger.firm_ticks(judged(ordinary=YES)) == {"wide"}
    assert ledger.firm_ticks(judged(ordinary=NO)) == set()
    assert ledger.firm_ticks(judged(at_more=MIXED)) == set()
    assert ledger.firm_ticks(judged(unit="r", threshold=0.9, at_more=NO)) == {"wide"}  # no r is above 1.35
    assert ledger.firm_ticks(judged(unit="PPL", threshold=0.9, at_more=NO)) == set()


@pytest.mark.parametrize("profiles", [("public", "minis"), ("minis",)])
def test_every_claim_is_on_the_page_once(profiles):
    text = ledger.page(paths.ROOT / "results", profiles)
    for claim in load_claims():
        assert text.count(f"[**{claim.id}**]") == 1, claim.id
