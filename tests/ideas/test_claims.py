"""Claims on results: every verdict is computed, and what cannot be asked says why."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from howlinear.errors import SourceError
from howlinear.files import paths, tables
from howlinear.files.git import git
from howlinear.ideas.claims import ledger
from howlinear.ideas.claims.claim import Claim, Verdict, load_claims
from howlinear.ideas.claims.contrasts import TOGETHER
from howlinear.notebook import settings
from tests.ideas.test_claims_numbers import ceilings, on_texts, probed

YES, NO, MIXED, OPEN = Verdict.HOLDS, Verdict.NOT, Verdict.MIXED, Verdict.UNTESTABLE

CLAIM = Claim(
    *("wide", "§5.1", "Blocks differ.", "a lot", "02_ceilings", "spread", "highest − lowest"),
    *(0.25, "above", "R²", "a quarter"),
)
SHAPE = replace(CLAIM, id="shape", notebook="05_corpora", statistic="corpora_correlation", threshold=0.9, unit="r")


def keep(folder, **profiles):
    found = ceilings(**profiles)
    tables.write(folder / "02_ceilings", found, dict(found.settings))


@pytest.fixture
def results(tmp_path):
    """A folder with results of notebook 02: a wide profile, a narrow one, and one in between."""
    keep(tmp_path, a=[0.9, 0.4], b=[0.9, 0.85], c=[0.9, 0.64])
    return tmp_path


def verdicts(claim, results):
    found = ledger.evaluate(results, [claim])
    return dict(zip(found.model, found.verdict, strict=True))


def together(claim, results):
    found = ledger.evaluate(results, [claim])
    return ledger.summarise([claim], found, ledger.move_thresholds(found, [claim], [1.0])).verdict.item()


def test_rows_by_hand(results):
    found = ledger.evaluate(results, [CLAIM]).set_index("model")
    assert found.verdict.to_dict() == {"a": YES, "b": NO, "c": MIXED}
    assert found.loc["a", ["value", "value_low", "value_high"]].tolist() == pytest.approx([0.5, 0.46, 0.54])
    assert found.reason.isna().all()
    assert together(CLAIM, results) == MIXED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"notebook": "05_corpora"}, "no results of 05_corpora in this run profile"),
        ({"statistic": "critical_overlap"}, "a single model has no other to differ from"),
    ],
)
def test_where_no_model_can_speak_there_is_no_verdict_but_a_reason(tmp_path, change, reason):
    keep(tmp_path, a=[0.9, 0.4])
    claim = replace(CLAIM, **change)
    (row,) = ledger.evaluate(tmp_path, [claim])[["model", "verdict", "reason"]].to_numpy().tolist()
    assert row == [TOGETHER, OPEN, reason]
    assert together(claim, tmp_path) == OPEN


@pytest.mark.parametrize(
    ("gain", "threshold", "planted", "expected"),
    [
        (0.1, 0.2, 0.0, Verdict.NO_POWER),
        (0.1, 0.12, 0.0, Verdict.NO_POWER),
        (0.1, 0.05, 0.0, NO),  # what is found is there
        (0.1, 0.2, 0.9, YES),
    ],
)
def test_little_found_says_nothing_without_power_and_much_found_says_much(tmp_path, gain, threshold, planted, expected):
    found = probed([gain] * 6, range(6), power={"block": [0], "planted": planted})
    tables.write(tmp_path / "03_bilinear", found, dict(found.settings))
    small = replace(CLAIM, notebook="03_bilinear", statistic="median_gain", threshold=threshold, direction="below")
    judged = ledger.evaluate(tmp_path, [small])
    assert judged.verdict.item() == expected
    assert judged.reason.notna().item() == (expected is Verdict.NO_POWER)
    assert judged.value.item() == pytest.approx(gain)
    of_all = OPEN if expected is Verdict.NO_POWER else expected
    assert together(small, tmp_path) == of_all


def test_a_model_that_cannot_speak_leaves_the_others_their_verdicts(results):
    keep(results, a=[0.5, 0.6, 0.95], b=[0.1, 0.2, 0.3])
    claim = replace(CLAIM, statistic="cheapest_near_linear", threshold=0.01, unit="%")
    found = ledger.evaluate(results, [claim]).set_index("model")
    assert found.verdict.to_dict() == {"a": YES, "b": OPEN}
    assert found.reason["b"] == "no block reaches an R² of 0.9: the highest is 0.30"
    assert together(claim, results) == YES


def tables_of(folder, claims, factors, other_texts=None):
    """All tables of notebook 13, on the results in a folder."""
    found = ledger.evaluate(folder, claims)
    moved = ledger.move_thresholds(found, claims, factors)
    return {
        "verdicts": found,
        "other_texts": ledger.evaluate_other_texts(folder, claims, other_texts),
        "thresholds": moved,
        "paper": ledger.paper_numbers(claims),
        "claims": ledger.summarise(claims, found, moved),
    }


def spoil(results, change):
    """Change the table of blocks on disk, cells as text."""
    path = results / "02_ceilings" / "blocks.csv"
    change(pd.read_csv(path, dtype=str, keep_default_na=False)).to_csv(path, index=False)


def cell(row, column, value):
    return lambda table: table.assign(**{column: table[column].where(table.index != row, value)})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda table: table.drop(columns="model"), "blocks"),
        (
            lambda table: table.drop(columns="r2_low"),
            r"claim 'wide' reads \(spread: KeyError.*r2_low.*run notebook 02_ceilings again",
        ),
        (cell(0, "r2_low", ""), "spread gives no finite interval for a$"),
        (cell(0, "r2_high", "inf"), "spread gives no finite interval for a$"),
        (lambda table: table[:0], "spread gives no finite interval for a"),
        (cell(0, "r2", "high"), "'high'"),
    ],
)
def test_results_that_lack_what_they_should_hold_are_an_error_and_no_untestable_claim(results, change, match):
    spoil(results, change)
    with pytest.raises(SourceError, match=rf"(?s)02_ceilings.*{match}"):
        ledger.evaluate(results, [CLAIM])


def test_a_damaged_file_is_an_error(results):
    (results / "02_ceilings" / "run.json").write_text("{")
    with pytest.raises(SourceError, match="cannot read"):
        ledger.evaluate(results, [CLAIM])


def test_a_tick_that_needs_the_two_end_blocks_is_known(tmp_path):
    """Of four blocks in `ends` the first and the last differ, in `inner` the two between them as well."""
    keep(tmp_path, ends=[0.9, 0.5, 0.5, 0.4], inner=[0.9, 0.9, 0.5, 0.4], flat=[0.5] * 4, short=[0.9, 0.5, 0.4])
    found = ledger.evaluate(tmp_path, [CLAIM])
    assert dict(zip(found.model, found.verdict, strict=True)) == {"ends": YES, "inner": YES, "flat": NO, "short": YES}
    assert ledger.depends_on_ends(found).model.tolist() == ["ends"]
    assert found.set_index("model").inner_verdict["ends"] == NO


def test_a_verdict_that_massive_rows_make_is_known(tmp_path):
    """The profile is wide as it is and flat on ordinary rows in `made`, the other way round in `hidden`."""
    found = ceilings(made=[0.9, 0.4], hidden=[0.9, 0.9], wide=[0.9, 0.4], none=[0.9, 0.4])
    blocks = found["blocks"]
    ordinary = {"made": [0.5, 0.4], "hidden": [0.9, 0.4], "wide": [0.9, 0.5], "none": [0.9, 0.4]}
    values = np.concatenate([ordinary[name] for name in blocks.model.unique()])
    ends = {"r2_ordinary": values, "r2_ordinary_low": values - 0.02, "r2_ordinary_high": values + 0.02}
    massive = np.where(blocks.model == "none", 0, 600)
    tables.write(
        tmp_path / "02_ceilings",
        {"blocks": blocks.assign(**ends, massive_rows=massive), "models": found["models"]},
        dict(found.settings),
    )
    judged = ledger.evaluate(tmp_path, [CLAIM])
    by_model = judged.set_index("model")
    assert by_model.verdict.to_dict() == {"made": YES, "hidden": NO, "wide": YES, "none": YES}
    assert by_model.ordinary_verdict.dropna().to_dict() == {"made": NO, "hidden": YES, "wide": YES}
    assert by_model.loc["made", ["ordinary", "ordinary_low", "ordinary_high"]].tolist() == pytest.approx(
        [0.1, 0.06, 0.14]
    )
    assert ledger.depends_on_massive_rows(judged).model.tolist() == ["made", "hidden"]
    shown = ledger.show(judged, [CLAIM]).set_index("model")
    assert shown.hangs_on_massive_rows.to_dict() == {"made": True, "hidden": True, "wide": False, "none": False}


def test_thresholds_can_be_moved_and_the_numbers_stay(results):
    keep(results, a=[0.9, 0.4])  # 0.5, give or take 0.04
    found = ledger.evaluate(results, [CLAIM])
    moved = ledger.move_thresholds(found, [CLAIM], [0.5, 1.0, 2.0, 3.0])
    assert moved[["model", "factor", "verdict"]].to_dict("list") == {
        "model": ["a"] * 4,
        "factor": [0.5, 1.0, 2.0, 3.0],
        "verdict": [YES, YES, MIXED, NO],
    }
    assert ledger.summarise([CLAIM], found, moved).steady.tolist() == [False]
    assert ledger.summarise([CLAIM], found, moved[moved.factor <= 1]).steady.tolist() == [True]
    nothing = ledger.evaluate(results, [SHAPE])
    assert ledger.summarise([SHAPE], nothing, ledger.move_thresholds(nothing, [SHAPE], [1.0])).steady.isna().all()


def test_a_claim_about_texts_is_judged_on_those_of_another_run_profile(tmp_path):
    def corpora(profile, main, other, r):
        rows = pd.DataFrame({"model": list("ab"), "corpus": main, "other": other, "r": r, "r_low": r, "r_high": r})
        found = on_texts([main, other], models=list("ab"), agreement=rows)
        tables.write(tmp_path / profile / "05_corpora", found, dict(found.settings))

    keep(tmp_path / "minis", a=[0.9, 0.4], b=[0.9, 0.4])
    corpora("minis", "docs", "code", 0.98)
    corpora("prose", "docs", "wikitext", 0.8)
    assert verdicts(SHAPE, tmp_path / "minis") == {"a": YES, "b": YES}
    other = ledger.evaluate_other_texts(tmp_path / "minis", [CLAIM, SHAPE], "prose")
    assert other[["claim", "profile", "model", "verdict"]].to_dict("list") == {
        "claim": ["shape"] * 2,
        "profile": ["prose"] * 2,
        "model": ["a", "b"],
        "verdict": [NO] * 2,
    }
    assert ledger.evaluate_other_texts(tmp_path / "minis", [CLAIM, SHAPE], None).empty


def test_verdicts_are_shown_in_the_claims_unit_with_how_far_they_clear_it(results):
    shown = ledger.show(ledger.evaluate(results, [CLAIM]), [CLAIM]).set_index("model")
    assert shown[["mark", "number", "interval"]].to_dict("list") == {
        "mark": ["✓", "✗", "~"],
        "number": ["0.50", "0.05", "0.26"],
        "interval": ["0.50 [0.46, 0.54]", "0.05 [0.01, 0.09]", "0.26 [0.22, 0.30]"],
    }
    assert shown.loc["a", ["margin", "margin_low", "margin_high"]].tolist() == pytest.approx([0.25, 0.21, 0.29])
    below = replace(CLAIM, direction="below")
    turned = ledger.show(ledger.evaluate(results, [below]), [below]).set_index("model")
    assert turned.loc["a", ["margin", "margin_low", "margin_high"]].tolist() == pytest.approx([-0.25, -0.29, -0.21])


def test_the_board_has_a_row_a_claim_and_a_column_a_model(results):
    gone = replace(CLAIM, id="gone", notebook="99_gone", quoted={"x": 0.5})
    claims = [CLAIM, gone]
    table = ledger.board(ledger.evaluate(results, claims), ledger.paper_numbers(claims), claims)
    assert table.index.tolist() == ["wide", "gone"]
    assert table.columns.tolist() == ["asked", "the paper", "a", "b", "c", TOGETHER]
    assert table.loc["wide", ["a", TOGETHER]].tolist() == ["✓ 0.50 [0.46, 0.54]", ""]
    assert table.loc["gone", ["the paper", "a", TOGETHER]].tolist() == ["✓ 0.50", "", "–"]


# --- what is on record


def test_claims_were_settled_before_a_new_model_was_run():
    """Thresholds were tried on the embedded models' results; of all others the first know the claims as they are."""
    if git(paths.ROOT, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("this clone's history does not go back that far")
    settled = git(paths.ROOT, "log", "-1", "--format=%H", "--", "paper/claims.toml")
    for folder in filter(Path.is_dir, (paths.ROOT / "results").iterdir()):
        commits = git(paths.ROOT, "log", "--diff-filter=A", "--format=%H", "--", f"results/{folder.name}")
        if folder.name not in ("minis", "bench") and commits:
            first = commits.splitlines()[-1]
            assert git(paths.ROOT, "merge-base", "--is-ancestor", settled, first) is not None, folder


@pytest.mark.parametrize("profile", ["minis", "public"])
def test_the_record_is_the_ledger_of_the_committed_results_and_claims(profile):
    """If this fails, results or claims changed after they were judged: run notebook 13 again."""
    claims, folder = load_claims(), paths.results(profile)
    other = settings.read(profile).parameters.get("13_claims", {}).get("other_texts")
    kept = tables.read(folder / "13_claims")
    factors = kept.settings["factors"]
    assert kept.settings.items() >= ledger.settings_of_ledger(factors).items()
    anew = tables_of(folder, claims, factors, other)
    assert kept.keys() == anew.keys()
    for name, table in anew.items():
        pd.testing.assert_frame_equal(kept[name], tables.as_recorded(table, "13_claims", name))
