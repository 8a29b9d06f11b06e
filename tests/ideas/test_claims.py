import json
import re
from dataclasses import replace

import pytest
from test_claims_numbers import ceilings

from howlinear.core.estimates import Estimate
from howlinear.errors import SourceError
from howlinear.files import paths
from howlinear.files import results as record
from howlinear.ideas.claims.claim import UNITS, Claim, Verdict, load_claims
from howlinear.ideas.claims.ledger import (
    ALL,
    DIGITS,
    TOLERANCE,
    Row,
    answers,
    cells,
    changes,
    contents,
    evaluate,
    judge,
    numbers,
    steady,
    summary,
    to_markdown,
)
from howlinear.ideas.claims.numbers import TOGETHER, Reading

CLAIM = Claim(
    *("wide", "Blocks differ.", "figure 2", "a lot", "02_ceilings", "spread", "highest − lowest"),
    *(0.25, "above", "R²", "a quarter"),
)


@pytest.fixture
def results(tmp_path):
    """A folder with results of notebook 02: a wide profile, a narrow one, and one in between."""
    record.save(tmp_path / "02_ceilings.json", ceilings(a=[0.9, 0.4], b=[0.9, 0.85], c=[0.9, 0.64]))
    return tmp_path


def test_a_row_by_hand(results):
    row = judge(CLAIM, results)
    assert list(row.readings) == ["a", "b", "c"]
    assert list(row.verdicts.values()) == [Verdict.REPRODUCED, Verdict.NOT, Verdict.MIXED]
    assert row.verdict is Verdict.MIXED
    assert row.reason == ""
    assert row.readings["a"].estimate.low == pytest.approx(0.46)
    assert row.readings["a"].estimate.high == pytest.approx(0.54)


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        ({"a": [0.9, 0.4], "b": [0.2, 0.7]}, Verdict.REPRODUCED),
        ({"a": [0.9, 0.9], "b": [0.2, 0.3]}, Verdict.NOT),
        ({"a": [0.9, 0.9], "b": [0.2, 0.9]}, Verdict.MIXED),
    ],
)
def test_a_planted_truth_is_found_and_its_contrary_is_not(tmp_path, profiles, expected):
    record.save(tmp_path / "02_ceilings.json", ceilings(**profiles))
    assert judge(CLAIM, tmp_path).verdict is expected


def test_a_verdict_moves_with_the_results_and_with_nothing_else(results):
    assert judge(replace(CLAIM, why="another reason", paper="none"), results).verdict is Verdict.MIXED
    record.save(results / "02_ceilings.json", ceilings(a=[0.9, 0.4]))
    assert judge(CLAIM, results).verdict is Verdict.REPRODUCED
    with pytest.raises(AttributeError):
        judge(CLAIM, results).verdict = Verdict.NOT
    with pytest.raises(TypeError, match="verdict"):
        Row(CLAIM, verdict=Verdict.REPRODUCED)


def test_without_a_result_there_is_no_verdict_but_a_reason(tmp_path):
    row = judge(CLAIM, tmp_path)
    assert row.verdict is Verdict.UNTESTABLE
    assert row.reason == "no 02_ceilings.json in this profile's results"
    assert row.readings == {}


def test_a_stated_rule_gives_its_reason(results):
    record.save(results / "02_ceilings.json", ceilings(a=[0.9, 0.4]))
    row = judge(replace(CLAIM, statistic="nearest_models"), results)
    assert row.verdict is Verdict.UNTESTABLE
    assert row.reason == "a single model has no other to match"


def spoil(results, change):
    path = results / "02_ceilings.json"
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda tree: tree.pop("models"), r"KeyError: 'models'"),
        (lambda tree: tree["models"]["a"].pop("blocks"), r"KeyError: 'blocks'"),
        (lambda tree: tree["models"]["b"]["blocks"][1].pop("r2_low"), r"KeyError: 'r2_low'"),
        (lambda tree: tree["models"].update(a=[]), r"TypeError"),
        (lambda tree: tree.update(models=3), r"AttributeError"),
        (lambda tree: tree["models"]["a"]["blocks"][0].update(r2="high"), r"ValueError: could not convert"),
        (lambda tree: tree["models"]["a"]["blocks"][0].update(r2_low=None), "no finite interval for a$"),
        (lambda tree: tree["models"]["a"]["blocks"][0].update(r2_high=float("inf")), "no finite interval for a$"),
        (lambda tree: tree.update(models={}), "no finite interval for any model"),
    ],
)
def test_results_that_lack_what_they_should_hold_are_an_error_and_no_untestable_claim(results, change, match):
    spoil(results, change)
    with pytest.raises(SourceError, match=rf"(?s)02_ceilings\.json.*spread.*{match}"):
        judge(CLAIM, results)


def test_the_error_says_which_notebook_to_run(results):
    spoil(results, lambda tree: tree["models"]["a"].pop("swap"))
    with pytest.raises(SourceError, match=r"claim 'wide' reads.*'swap'.*run notebook 02_ceilings again"):
        judge(replace(CLAIM, statistic="swap_most_linear"), results)


def test_a_damaged_file_is_an_error(results):
    (results / "02_ceilings.json").write_text("{")
    with pytest.raises(SourceError, match="cannot read results"):
        judge(CLAIM, results)


def test_thresholds_can_be_moved_and_the_readings_stay(results):
    record.save(results / "02_ceilings.json", ceilings(a=[0.9, 0.4]))  # 0.5, give or take 0.04
    row = judge(CLAIM, results)
    assert changes(row, (0.5, 1.0, 2.0, 3.0)) == {
        0.5: Verdict.REPRODUCED,
        1.0: Verdict.REPRODUCED,
        2.0: Verdict.MIXED,
        3.0: Verdict.NOT,
    }
    assert row.at(2.0).readings is row.readings
    assert row.claim.threshold == 0.25


def test_numbers_are_what_record_takes(results):
    row = judge(CLAIM, results)
    path = record.save(results / "11.json", {row.claim.id: numbers(row)})
    kept = record.load(path)["wide"]
    assert kept["verdict"] == "mixed"
    assert kept["cells"]["b"] == {"value": 0.05, "low": 0.01, "high": 0.09, "note": "", "verdict": "not reproduced"}
    assert "reason" not in kept
    assert numbers(Row(CLAIM, reason="none such"))["reason"] == "none such"


def test_the_table_by_hand(results):
    gone = Row(replace(CLAIM, id="gone", notebook="99_gone"), reason="no 99_gone.json")
    reading = Reading(Estimate(0.5, 0.4, 0.6), "block 3")
    whole = Row(replace(CLAIM, id="whole", unit="%"), {TOGETHER: reading})
    against = replace(whole, claim=replace(whole.claim, id="falsifier-flat"))
    tail = "3 claims: 1 reproduced, 0 not reproduced, 1 mixed, 1 not testable here."
    assert to_markdown([judge(CLAIM, results), whole, against, gone]).endswith(f"\n\n{tail} Falsifiers: flat ✓.")
    head, rule, *lines = to_markdown([judge(CLAIM, results), whole, gone]).splitlines()
    assert head == "| claim | verdict | here, with 95 % intervals | the paper | shown by |"
    assert re.fullmatch(r"(\|-+){5}\|", rule)
    assert lines == [
        "| **wide**: Blocks differ. | ~ mixed | highest − lowest, above 0.25?<br>✓ a 0.50 [0.46, 0.54]"
        "<br>✗ b 0.05 [0.01, 0.09]<br>~ c 0.26 [0.22, 0.30] | a lot | [02_ceilings](notebooks/02_ceilings.py) |",
        "| **whole**: Blocks differ. | ✓ reproduced | highest − lowest, above 25.0 %?"
        "<br>✓ 50.0 % [40.0, 60.0] (block 3) | a lot | [02_ceilings](notebooks/02_ceilings.py) |",
        "| **gone**: Blocks differ. | – not testable here | no 99_gone.json | a lot | 99_gone |",
        "",
        tail,
    ]


def test_the_board_by_hand(results):
    gone = Row(replace(CLAIM, id="gone"), reason="no results")
    table = cells([judge(CLAIM, results), gone])
    assert table.to_dict("list") == {
        "claim": ["wide"] * 4 + ["gone"],
        "asked": ["above 0.25"] * 5,
        "column": ["a", "b", "c", ALL, ALL],
        "verdict": ["reproduced", "not reproduced", "mixed", "mixed", "not testable here"],
        "symbol": ["✓", "✗", "~", "~", "–"],
        "number": ["0.50", "0.05", "0.26", "", ""],
    }


def test_answers_stand_under_their_model(results):
    whole = Row(replace(CLAIM, id="whole"), {TOGETHER: Reading(Estimate(0.5, 0.4, 0.6))})
    table = answers([judge(CLAIM, results), whole], ["c", "a", "none"])
    assert list(table.columns) == ["asked", "c", "a", "none", TOGETHER]
    assert list(table.loc["wide"]) == [
        "highest − lowest, above 0.25?",
        "0.26 [0.22, 0.30]",
        "0.50 [0.46, 0.54]",
        "",
        "",
    ]
    assert list(table.loc["whole"])[1:] == ["", "", "", "0.50 [0.40, 0.60]"]


def test_the_summary_puts_the_paper_beside_this_run(results):
    table = summary([judge(CLAIM, results)])
    assert table.loc["wide"].to_dict() == {
        "the paper": "a lot",
        "this run": "~ mixed",
        "why this threshold": "a quarter",
    }


def test_a_verdict_is_steady_where_no_multiple_changes_it():
    moves = {
        "steady": {0.5: Verdict.NOT, 2.0: Verdict.NOT},
        "fragile": {0.5: Verdict.MIXED, 2.0: Verdict.NOT},
        "open": {0.5: Verdict.UNTESTABLE, 2.0: Verdict.UNTESTABLE},
    }
    assert steady(moves) == ["steady"]


def test_the_record_says_how_numbers_and_verdicts_are_shown(results):
    row = judge(CLAIM, results)
    found = contents([row], {"wide": {0.5: Verdict.MIXED, 1.0: Verdict.NOT}})
    assert found["claims"] == {"wide": numbers(row)}
    assert found["thresholds_moved"] == {"wide": {"0.5": "mixed", "1.0": "not reproduced"}}
    assert found["marks"] == {verdict.value: verdict.symbol for verdict in Verdict}
    assert found["units"].keys() == UNITS.keys()
    assert found["units"]["%"] == {"factor": 100, "digits": 1, "suffix": " %"}


@pytest.fixture(scope="module")
def ledger():
    return evaluate(paths.results("minis"))


def test_every_claim_has_a_row_and_only_absent_results_or_rules_leave_one_open(ledger):
    assert [row.claim for row in ledger] == load_claims()
    for row in ledger:
        absent = not (paths.results("minis") / f"{row.claim.notebook}.json").exists()
        assert bool(row.reason) is absent, row.reason  # three models, three corpora: no rule applies here
        assert (row.verdict is Verdict.UNTESTABLE) is absent


def test_the_record_of_notebook_11_is_the_ledger_of_the_committed_results(ledger, tmp_path):
    kept = record.load(paths.results("minis") / "12_claims.json")
    path = record.save(tmp_path / "11.json", {row.claim.id: numbers(row) for row in ledger}, TOLERANCE, DIGITS)
    anew = record.load(path)
    assert kept["claims"] == {row.claim.id: anew[row.claim.id] for row in ledger}


def test_no_verdict_is_typed_in_the_notebook_or_its_prose():
    """Verdict words may be explained there; none may be given to a claim by name."""
    source = (paths.NOTEBOOKS / "12_claims.py").read_text(encoding="utf-8")
    for claim in load_claims():
        assert not re.search(rf"{claim.id}\W{{0,4}}(is|was|:|=)?\W{{0,4}}(not )?(reproduced|mixed)", source), claim.id


def test_the_committed_ledger_agrees_with_numbers_the_other_notebooks_kept(ledger):
    """By another way: flags and extremes that notebooks 02, 03 and 04 recorded themselves."""
    rows = {row.claim.id: row for row in ledger}
    ceilings, rank = (record.load(paths.results("minis") / f"{stem}.json") for stem in ("02_ceilings", "04_rank"))
    for name, model in ceilings["models"].items():
        assert (rows["non-monotone"].readings[name].estimate.low > 0) is model["rises_and_falls"]
    pair = rows["not-activation"].readings[TOGETHER]
    assert pair.estimate.value <= ceilings["likeness"]["mini-gpt2 ~ mini-pythia"]["largest_gap"]
    near = [b["rank"]["value"] for m in rank["models"].values() for b in m["blocks"] if b["regime"] != "below"]
    assert rows["two-regimes-outlier"].readings[TOGETHER].estimate.value == min(near)
    assert rows["two-regimes-broad"].readings[TOGETHER].estimate.value == max(near)
