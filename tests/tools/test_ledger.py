"""The ledger's page: which group a claim is in, and what stands in its line."""

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


def test_a_line_has_a_mark_and_a_number_a_model():
    rows = [
        ("wide", "a", YES, "✓", "0.50", True, False),
        ("wide", "b", NO, "✗", "0.10", False, True),
        ("pair", "together", MIXED, "~", "0.30", False, False),
        ("gone", "together", OPEN, "–", "", False, False),
        ("part", "a", OPEN, "–", "", False, False),
    ]
    names = ["claim", "model", "verdict", "mark", "number", "hangs_on_ends", "hangs_on_massive_rows"]
    found = ledger.cells(pd.DataFrame(rows, columns=names))
    assert found.columns.tolist() == ["a", "b", ledger.PAIR]
    assert found.loc["wide"].tolist() == ["✓ᵉ 0.50", "✗ᵐ 0.10", ""]
    assert found.loc["pair"].tolist() == ["", "", "~ 0.30"]
    assert found.loc["part"].tolist() == ["–", "", ""]
    assert "gone" not in found.index


def test_the_papers_own_numbers_are_a_range_with_the_marks_that_fell():
    paper = pd.DataFrame(
        [("wide", 0.7, "✓", "0.70"), ("wide", 0.5, "✗", "0.50"), ("one", 0.2, "✓", "0.20")],
        columns=["claim", "value", "mark", "number"],
    )
    assert ledger.ranges(paper) == {"wide": "✓✗ 0.50 to 0.70", "one": "✓ 0.20"}


@pytest.mark.parametrize("profiles", [("public", "minis"), ("minis",)])
def test_every_claim_is_on_the_page_once(profiles):
    text = ledger.page(paths.ROOT / "results", profiles)
    for claim in load_claims():
        assert text.count(f"[**{claim.id}**]") == 1, claim.id
