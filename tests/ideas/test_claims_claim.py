import re
from dataclasses import FrozenInstanceError, asdict, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howlinear.core.estimates import Estimate
from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.ideas.claims import claim as stated
from howlinear.ideas.claims.claim import DIRECTIONS, Claim, Verdict, load_claims, parse, together, verdict
from howlinear.ideas.claims.numbers import STATISTICS

TEXT = """
[[claim]]
id = "one"
sentence = "Blocks differ."
where = "figure 2"
paper = "widely"
notebook = "02_ceilings"
statistic = "spread"
asks = "highest − lowest"
threshold = 0.25
direction = "above"
unit = "R²"
why = "a quarter"
"""

YES, NO, MIXED, OPEN = Verdict.REPRODUCED, Verdict.NOT, Verdict.MIXED, Verdict.UNTESTABLE


@pytest.mark.parametrize(
    ("low", "high", "direction", "expected"),
    [
        (0.3, 0.4, "above", YES),
        (0.1, 0.2, "above", NO),
        (0.2, 0.3, "above", MIXED),
        (0.1, 0.2, "below", YES),
        (0.3, 0.4, "below", NO),
        (0.2, 0.3, "below", MIXED),
        (-0.2, 0.2, "within", YES),
        (0.3, 0.4, "within", NO),
        (-0.4, -0.3, "within", NO),
        (-0.3, 0.2, "within", MIXED),
        (0.1, 0.9, "within", MIXED),
        (-0.9, 0.9, "within", MIXED),  # it spans the whole band and shows nothing
    ],
)
def test_a_verdict_by_hand(low, high, direction, expected):
    assert verdict(low, high, 0.25, direction) is expected


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("low", "high"), [(0.25, 0.4), (0.1, 0.25), (0.25, 0.25)])
def test_an_end_on_the_threshold_does_not_clear_it(low, high, direction):
    inside = direction == "within" and low > 0.25
    assert verdict(low, high, 0.25, direction) is MIXED or inside


numbers = st.floats(-10, 10)


@given(ends=st.tuples(numbers, numbers).map(sorted), threshold=st.floats(0.01, 9), wider=st.floats(0, 5))
@settings(deadline=None, max_examples=50)
def test_what_verdicts_must_obey(ends, threshold, wider):
    low, high = ends
    found = {direction: verdict(low, high, threshold, direction) for direction in DIRECTIONS}
    opposite = {YES: NO, NO: YES, MIXED: MIXED}
    assert found["below"] is opposite[found["above"]]  # a claim and its contrary
    assert verdict(-high, -low, threshold, "within") is found["within"]  # the band has no sign
    for direction in DIRECTIONS:  # a wider interval may lose a verdict, never win or turn one
        assert verdict(low - wider, high + wider, threshold, direction) in (found[direction], MIXED)
    if found["within"] is YES:
        assert found["above"] is NO


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (float("nan"), 1.0), (0.0, float("nan"))])
def test_what_is_no_interval_has_no_verdict(low, high):
    with pytest.raises(InputError, match="no interval runs from"):
        verdict(low, high, 0.5, "above")


def test_an_unknown_direction_has_no_verdict():
    with pytest.raises(InputError, match="'beyond' is none of above, below, within"):
        verdict(0.0, 1.0, 0.5, "beyond")


@pytest.mark.parametrize(
    ("several", "expected"),
    [([YES, YES], YES), ([NO], NO), ([YES, NO], MIXED), ([YES, MIXED], MIXED), ([NO, MIXED], MIXED), ([], OPEN)],
)
def test_several_verdicts_make_one(several, expected):
    assert together(several) is expected


def test_every_verdict_has_a_symbol_of_its_own():
    assert [kind.symbol for kind in (YES, NO, MIXED, OPEN)] == ["✓", "✗", "~", "–"]


def test_a_claim_is_read_as_it_stands():
    (claim,) = parse(TEXT)
    assert claim == Claim(
        *("one", "Blocks differ.", "figure 2", "widely", "02_ceilings", "spread"),
        *("highest − lowest", 0.25, "above", "R²", "a quarter"),
    )
    assert parse(TEXT.replace("0.25", "1"))[0].threshold == 1
    with pytest.raises(FrozenInstanceError):
        claim.threshold = 0.0


@pytest.mark.parametrize(
    ("unit", "direction", "threshold", "asked", "shown"),
    [
        ("R²", "above", 0.25, "above 0.25", "0.36 [-0.10, 0.40]"),
        ("%", "below", 0.03, "below 3.0 %", "35.6 % [-10.0, 40.2]"),
        ("share", "below", 0.5, "below 50 %", "36 % [-10, 40]"),
        ("rank", "above", 2.0, "above 2.0", "0.4 [-0.1, 0.4]"),
        ("r", "within", 0.4, "within ± 0.40", "0.36 [-0.10, 0.40]"),
    ],
)
def test_numbers_are_shown_in_the_claims_unit(unit, direction, threshold, asked, shown):
    (claim,) = parse(TEXT)
    claim = Claim(**asdict(claim) | {"unit": unit, "direction": direction, "threshold": threshold})
    assert claim.asked == asked
    assert claim.question == f"highest − lowest, {asked}?"
    assert claim.show(Estimate(0.356, -0.1, 0.402)) == shown
    assert claim.show_value(Estimate(0.356, -0.1, 0.402)) == shown.split(" [")[0]
    assert claim.show(Estimate(-1e-9, -1e-9, -1e-9)).count("-") == 0  # no minus nought


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('why = "a quarter"', 'verdict = "reproduced"', "'one' sets a verdict: verdicts are computed"),
        ('why = "a quarter"', 'why = "a quarter"\nverdict = "reproduced"', "'one' sets a verdict"),
        ('why = "a quarter"', "", "'one': why is missing; every claim has id, sentence"),
        ('where = "', 'wehre = "', "'one': wehre is unknown, where is missing"),
        ('id = "one"', "", "'without an id': id is missing"),
        ('"spread"', '"spred"', "'one': cannot use statistic = 'spred'"),
        ('"above"', '"over"', "direction = 'over'"),
        ('"R²"', '"R2"', "unit = 'R2'"),
        ('"02_ceilings"', '"ceilings"', "notebook = 'ceilings'"),
        ('"02_ceilings"', '"../02_ceilings"', "notebook = '../02_ceilings'"),
        ('"a quarter"', '" "', "cannot use why"),
        ('"spread"', '"spred"\nunit2 = "R²"', "unit2 is unknown; every claim has"),
        ('"above"\nunit = "R²"', '"over"\nunit = "R2"', "cannot use direction = 'over'; unit = 'R2'"),
        ("0.25", '"0.25"', "threshold = '0.25': threshold is a number"),
        ("0.25", "true", "threshold = True: threshold is a number"),
        ("0.25", "nan", "threshold = nan with direction above"),
        ("0.25", "inf", "threshold = inf"),
        ('"above"', '"within"\n', None),
        ('0.25\ndirection = "above"', '-0.25\ndirection = "within"', r"threshold = -0\.25 with direction within"),
        ("0.25", "0.25.1", "no TOML"),
        ("[[claim]]", "[claim]", r"must be \[\[claim\]\] tables"),
        ("[[claim]]", "[[claims]]", r"must be \[\[claim\]\] tables and nothing else; found claims"),
        ("[[claim]]", "title = 1\n[[claim]]", "found title, claim"),
        ('"widely"', "3", "paper = 3: threshold is a number, all else text"),
    ],
)
def test_what_is_no_claim_is_refused(old, new, match):
    assert old in TEXT
    text = TEXT.replace(old, new)
    if match is None:
        assert parse(text)[0].direction == "within"
        return
    with pytest.raises(InputError, match=match):
        parse(text)


def test_what_is_wrong_with_a_claim_is_said_in_one_line():
    with pytest.raises(InputError) as error:
        parse(TEXT.replace('"above"', '"over"').replace('"R²"', '"R2"'))
    assert "\n" not in str(error.value)
    assert "pydantic" not in str(error.value)


def test_a_claim_made_by_hand_is_checked_too():
    (claim,) = parse(TEXT)
    with pytest.raises(ValueError, match="threshold = nan"):
        replace(claim, threshold=float("nan"))


def test_a_list_of_what_are_no_tables_is_refused():
    with pytest.raises(InputError, match=r"must be a \[\[claim\]\] table, not 3"):
        parse("claim = [3]")


def test_a_claim_may_not_come_twice():
    with pytest.raises(InputError, match="come twice: one;"):
        parse(TEXT + TEXT)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read claims .*nope\.toml"):
        load_claims(tmp_path / "nope.toml")


def test_the_projects_claims_are_all_there_each_with_its_reason():
    """Every row of the paper's list; two regimes, falsifier and learned are asked for in two parts."""
    claims = load_claims()
    asked = {
        *("heterogeneous", "non-monotone", "not-activation", "learned", "bilinear-small", "bilinear-uncorrelated"),
        *("two-regimes", "corpus-robust", "compress-safe", "compress-unsafe", "optimiser-pitfall", "falsifier"),
        "later-layers",
    }
    assert {part for part in asked if not any(claim.id.startswith(part) for claim in claims)} == set()
    assert {claim.statistic for claim in claims} == set(STATISTICS)  # and no number that nobody asks for
    assert all(len(claim.why) > 20 for claim in claims)
    known = {path.stem for path in paths.NOTEBOOKS.rglob("[0-9]*.py")}
    assert {claim.notebook for claim in claims} <= known
    assert not re.search(r"^verdict|^\[(?!\[claim\])", stated.SOURCE.read_text(encoding="utf-8"), re.MULTILINE)


def test_there_is_no_key_for_a_verdict():
    assert "verdict" not in {each.name for each in fields(Claim)}
