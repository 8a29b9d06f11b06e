import hashlib
from dataclasses import FrozenInstanceError, asdict, replace

import pytest

from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.files import paths
from howlinear.ideas.claims.claim import DIRECTIONS, Claim, Verdict, fingerprint, load_claims, margin, parse, verdict
from howlinear.ideas.claims.numbers import STATISTICS

TEXT = """
[[claim]]
id = "one"
sentence = "Blocks differ."
section = "§5.1"
paper = "widely"
notebook = "02_ceilings"
statistic = "spread"
asks = "highest − lowest"
threshold = 0.25
direction = "above"
unit = "R²"
why = "a quarter"
"""

YES, NO, MIXED, OPEN = Verdict.HOLDS, Verdict.NOT, Verdict.MIXED, Verdict.UNTESTABLE


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


def test_no_interval_clears_a_band_by_more_than_its_half():
    assert margin(-0.1, 0.2, 0.25, "within") == pytest.approx((0.05, 0.25))  # it holds 0


@pytest.mark.parametrize(
    ("low", "high", "direction", "match"),
    [
        (1.0, 0.0, "above", "no interval runs from"),
        (float("nan"), 1.0, "above", "no interval runs from"),
        (0.0, float("nan"), "above", "no interval runs from"),
        (0.0, 1.0, "beyond", "'beyond' is none of above, below, within"),
    ],
)
def test_what_is_no_interval_or_no_direction_has_no_verdict(low, high, direction, match):
    with pytest.raises(InputError, match=match):
        verdict(low, high, 0.5, direction)


@pytest.mark.parametrize(
    ("several", "of_every", "of_some"),
    [
        ([YES, YES], YES, YES),
        ([NO], NO, NO),
        ([YES, NO], MIXED, YES),
        ([YES, MIXED], MIXED, YES),
        ([NO, MIXED], MIXED, MIXED),
        ([], OPEN, OPEN),
    ],
)
def test_several_verdicts_make_one(several, of_every, of_some):
    (every,) = parse(TEXT)
    some = replace(every, scope="some model")
    assert every.together(several) is of_every
    assert some.together(several) is of_some


def test_a_claim_is_read_as_it_stands():
    (claim,) = parse(TEXT)
    assert claim == Claim(
        *("one", "§5.1", "Blocks differ.", "widely", "02_ceilings", "spread"),
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
        ("0.001 R²", "above", 2.0, "above 2.000", "0.356 [-0.100, 0.402]"),
        ("times", "above", 2.0, "above 2.0 ×", "0.4 × [-0.1, 0.4]"),
        ("rank", "above", 2.0, "above 2", "0 [0, 0]"),
        ("r", "within", 0.4, "within ± 0.40", "0.36 [-0.10, 0.40]"),
    ],
)
def test_numbers_are_shown_in_the_claims_unit(unit, direction, threshold, asked, shown):
    (claim,) = parse(TEXT)
    claim = Claim(**asdict(claim) | {"unit": unit, "direction": direction, "threshold": threshold})
    assert claim.asked == asked
    assert claim.question == f"highest − lowest, {asked}?"
    assert claim.show(Estimate(0.356, -0.1, 0.402)) == shown
    assert claim.show_number(0.356) == shown.split(" [")[0]
    assert claim.show(Estimate(-1e-9, -1e-9, -1e-9)).count("-") == 0  # no minus nought
    assert claim.show(Estimate(0.4, 0.4, 0.4)) == claim.show_number(0.4)  # no interval: none shown


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('why = "a', 'verdict = "holds here"\nwhy = "a', "'one': verdict: Unexpected"),
        ('why = "a quarter"', "", "'one': why"),
        ('section = "', 'setcion = "', r"'one': section.*setcion"),
        ("§5.1", "figure 2", "section = 'figure 2' of a finding: give it as §5.3"),
        ('why = "a', 'scope = "any"\nwhy = "a', "scope"),
        ('why = "a', 'kind = "rumour"\nwhy = "a', "kind"),
        ('why = "a', 'quoted = 0.3\nwhy = "a', "quoted"),
        ('why = "a', 'quoted = { a = 1.0 }\nunpublished = "none"\nwhy = "a', "both quoted and unpublished"),
        ('id = "one"', "", "'without an id': id"),
        ('"spread"', '"spred"', "'one': statistic must be one of"),
        ('"above"', '"over"', "direction"),
        ('"R²"', '"R2"', "unit must be one of"),
        ('"02_ceilings"', '"../02_ceilings"', "notebook"),
        ('"a quarter"', '" "', "why"),
        ("0.25", '"0.25"', "threshold"),
        ("0.25", "true", "threshold"),
        ("0.25", "nan", "threshold = nan with direction above"),
        ('0.25\ndirection = "above"', '-0.25\ndirection = "within"', r"threshold = -0\.25 with direction within"),
        ('"widely"', "3", "paper"),
        (TEXT, TEXT + TEXT, "come twice: one;"),
    ],
)
def test_what_is_no_claim_is_refused(old, new, match):
    assert old in TEXT
    with pytest.raises(InputError, match=match):
        parse(TEXT.replace(old, new))


def test_all_that_is_wrong_with_a_claim_is_said_in_one_line():
    with pytest.raises(InputError, match=r"^[^\n]*direction[^\n]*unit[^\n]*$"):
        parse(TEXT.replace('"above"', '"over"').replace('"R²"', '"R2"'))


def test_the_fingerprint_is_the_contents_whatever_the_line_ends(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_bytes(TEXT.encode())
    first = fingerprint(path)
    assert first == hashlib.sha256(TEXT.encode()).hexdigest()
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert fingerprint(path) == first
    path.write_bytes(TEXT.replace("0.25", "0.26").encode())
    assert fingerprint(path) != first


def test_the_projects_claims_ask_for_every_number_and_each_has_its_reason():
    claims = load_claims()
    assert {claim.statistic for claim in claims} == set(STATISTICS)  # and no number that nobody asks for
    assert all(len(claim.why) > 20 for claim in claims)
    known = {path.stem for path in paths.NOTEBOOKS.rglob("[0-9]*.py")}
    assert {claim.notebook for claim in claims} <= known
