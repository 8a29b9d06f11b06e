import re
from dataclasses import replace

import pandas as pd
import pytest

from howlinear.core.intervals import Estimate
from howlinear.errors import SourceError
from howlinear.files import paths, tables
from howlinear.files import results as record
from howlinear.ideas.claims.claim import UNITS, Claim, Verdict, fingerprint, load_claims
from howlinear.ideas.claims.contrasts import TOGETHER, Reading
from howlinear.ideas.claims.ledger import (
    DIGITS,
    JUDGED_BY,
    TOLERANCE,
    Row,
    another_ledger,
    answers,
    apart,
    beside_paper,
    by_the_ends,
    cells,
    changes,
    contents,
    counted,
    evaluate,
    in_one_line,
    judge,
    kinds,
    names,
    numbers,
    of_texts,
    only_there,
    remarks,
    steady,
    tally,
    to_markdown,
)
from tests.ideas.test_claims_numbers import ceilings

CLAIM = Claim(
    *("wide", "§5.1", "Blocks differ.", "a lot", "02_ceilings", "spread", "highest − lowest"),
    *(0.25, "above", "R²", "a quarter"),
)


def keep(folder, found):
    tables.write(folder / "02_ceilings", found, {"corpora": ["docs"]})


@pytest.fixture
def results(tmp_path):
    """A folder with results of notebook 02: a wide profile, a narrow one, and one in between."""
    keep(tmp_path, ceilings(a=[0.9, 0.4], b=[0.9, 0.85], c=[0.9, 0.64]))
    return tmp_path


def test_a_row_by_hand(results):
    row = judge(CLAIM, results)
    assert list(row.readings) == ["a", "b", "c"]
    assert list(row.verdicts.values()) == [Verdict.HOLDS, Verdict.NOT, Verdict.MIXED]
    assert row.verdict is Verdict.MIXED
    assert row.reason == ""
    assert row.readings["a"].estimate.low == pytest.approx(0.46)
    assert row.readings["a"].estimate.high == pytest.approx(0.54)


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        ({"a": [0.9, 0.4], "b": [0.2, 0.7]}, Verdict.HOLDS),
        ({"a": [0.9, 0.9], "b": [0.2, 0.3]}, Verdict.NOT),
        ({"a": [0.9, 0.9], "b": [0.2, 0.9]}, Verdict.MIXED),
    ],
)
def test_a_planted_truth_is_found_and_its_contrary_is_not(tmp_path, profiles, expected):
    keep(tmp_path, ceilings(**profiles))
    assert judge(CLAIM, tmp_path).verdict is expected


def test_a_verdict_moves_with_the_results_and_with_nothing_else(results):
    assert judge(replace(CLAIM, why="another reason", paper="none"), results).verdict is Verdict.MIXED
    keep(results, ceilings(a=[0.9, 0.4]))
    assert judge(CLAIM, results).verdict is Verdict.HOLDS
    with pytest.raises(AttributeError):
        judge(CLAIM, results).verdict = Verdict.NOT
    with pytest.raises(TypeError, match="verdict"):
        Row(CLAIM, verdict=Verdict.HOLDS)


def test_without_a_result_there_is_no_verdict_but_a_reason(tmp_path):
    row = judge(CLAIM, tmp_path)
    assert row.verdict is Verdict.UNTESTABLE
    assert row.reason == "no 02_ceilings.json in this profile's results"
    assert row.readings == {}


def test_a_stated_rule_gives_its_reason(results):
    keep(results, ceilings(a=[0.9, 0.4]))
    row = judge(replace(CLAIM, statistic="critical_overlap"), results)
    assert row.verdict is Verdict.UNTESTABLE
    assert row.reason == "a single model has no other to differ from"


def spoil(results, change):
    """Change the table of blocks on disk, cells as text."""
    path = results / "02_ceilings" / "blocks.csv"
    change(pd.read_csv(path, dtype=str, keep_default_na=False)).to_csv(path, index=False)


def cell(row, column, value):
    return lambda table: table.assign(**{column: table[column].where(table.index != row, value)})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda table: table.drop(columns="model"), r"spread: KeyError: 'model'"),
        (lambda table: table.drop(columns="r2_low"), r"spread: KeyError: 'r2_low'"),
        (cell(0, "r2_low", ""), "spread gives no finite interval for a$"),
        (cell(0, "r2_high", "inf"), "spread gives no finite interval for a$"),
        (lambda table: table[:0], "spread gives no finite interval for any model"),
        (cell(0, "r2", "high"), "'high'"),
    ],
)
def test_results_that_lack_what_they_should_hold_are_an_error_and_no_untestable_claim(results, change, match):
    spoil(results, change)
    with pytest.raises(SourceError, match=rf"(?s)02_ceilings.*{match}"):
        judge(CLAIM, results)


def test_the_error_says_which_notebook_to_run(results):
    spoil(results, lambda table: table.drop(columns="dppl"))
    with pytest.raises(SourceError, match=r"claim 'wide' reads.*'dppl'.*run notebook 02_ceilings again"):
        judge(replace(CLAIM, statistic="cost_correlation"), results)


def test_a_damaged_file_is_an_error(results):
    (results / "02_ceilings" / "run.json").write_text("{")
    with pytest.raises(SourceError, match="cannot read"):
        judge(CLAIM, results)


def test_thresholds_can_be_moved_and_the_readings_stay(results):
    keep(results, ceilings(a=[0.9, 0.4]))  # 0.5, give or take 0.04
    row = judge(CLAIM, results)
    assert changes(row, (0.5, 1.0, 2.0, 3.0)) == {
        0.5: {"a": Verdict.HOLDS},
        1.0: {"a": Verdict.HOLDS},
        2.0: {"a": Verdict.MIXED},
        3.0: {"a": Verdict.NOT},
    }
    assert row.at(2.0).readings is row.readings
    assert row.claim.threshold == 0.25


def test_numbers_are_what_record_takes(results):
    row = judge(CLAIM, results)
    path = record.save(results / "11.json", {row.claim.id: numbers(row)})
    kept = record.load(path)["wide"]
    assert kept["verdict"] == "mixed"
    assert kept["cells"]["b"] == {"value": 0.05, "low": 0.01, "high": 0.09, "note": "", "verdict": "does not hold here"}
    assert "reason" not in kept
    assert kept["paper"] == {"gpt2": 0.779, "pythia-160m": 0.542, "llama-160m": 0.612}
    assert numbers(Row(CLAIM, reason="none such"))["reason"] == "none such"


def test_a_model_that_is_silent_leaves_the_others_their_verdicts(results):
    """Of three models, one has a near-linear block that costs ten times the median."""
    keep(results, ceilings(a=[0.5, 0.6, 0.95], b=[0.1, 0.2, 0.3]))
    row = judge(replace(CLAIM, statistic="cheapest_near_linear", threshold=0.01, unit="%"), results)
    assert row.verdicts == {"a": Verdict.HOLDS, "b": Verdict.UNTESTABLE}
    assert row.silent == {"b": "no block reaches an R² of 0.9: the highest is 0.30"}
    assert row.verdict is Verdict.HOLDS
    assert numbers(row)["silent"] == dict(row.silent)
    keep(results, ceilings(a=[0.3], b=[0.3]))
    none = judge(replace(CLAIM, statistic="cheapest_near_linear"), results)
    assert none.verdicts == {"a": Verdict.UNTESTABLE, "b": Verdict.UNTESTABLE}
    assert none.verdict is Verdict.UNTESTABLE
    assert none.reason == "no block reaches an R² of 0.9: the highest is 0.30"


def test_public_models_have_a_column_and_a_tally_of_their_own():
    embedded = Row(CLAIM, {"small": Reading(Estimate(0.5, 0.4, 0.6))})
    public = Row(CLAIM, {"large": Reading(Estimate(0.1, 0.0, 0.2))})
    apart_, table, of_public, of_embedded = to_markdown([embedded], [public]).split("\n\n")
    head, _, line = table.splitlines()
    assert head.split(" | ")[3:5] == ["public models", "embedded models"]
    assert line.split(" | ")[3:5] == ["✗ large 0.10 [0.00, 0.20]", "✓ small 0.50 [0.40, 0.60]"]
    assert apart_ == "**Apart.** In an embedded model, and in no public one, holds *wide*."
    assert of_public.startswith("Public models: ")
    assert "large: ✓ 0, ✗ 1" in of_public
    assert "small: ✓ 1, ✗ 0" in of_embedded


def test_the_tables_by_hand(results):
    gone = Row(replace(CLAIM, id="gone", section="§5.2", notebook="99_gone", quoted={"x": 0.5}), reason="no results")
    reading = Reading(Estimate(0.5, 0.4, 0.6), "block 3", {"inner": 0.25})
    whole = Row(replace(CLAIM, id="whole", unit="%", unpublished="not measured"), {TOGETHER: reading}, {"d": "why not"})
    first, second, count = to_markdown([judge(CLAIM, results), whole, gone]).split("\n\n")
    head, rule, *lines = first.splitlines()
    assert head == "| claim (§5.1) | asked | the paper's own numbers | here, with 95 % intervals | shown by |"
    assert re.fullmatch(r"(\|-+){5}\|", rule)
    assert lines == [
        "| **wide**: Blocks differ. | highest − lowest, above 0.25? "
        "| ✓ gpt2 0.78<br>✓ pythia-160m 0.54<br>✓ llama-160m 0.61 | ✓ a 0.50 [0.46, 0.54]"
        "<br>✗ b 0.05 [0.01, 0.09]<br>~ c 0.26 [0.22, 0.30] | [02_ceilings](notebooks/02_ceilings.py) |",
        "| **whole**: Blocks differ. | highest − lowest, above 25.0 %? | none: not measured "
        "| ✓ 50.0 % [40.0, 60.0] (block 3; inner 25.0 %)<br>– d: why not | [02_ceilings](notebooks/02_ceilings.py) |",
    ]
    assert second.splitlines()[0].startswith("| claim (§5.2) |")
    assert second.splitlines()[2] == (
        "| **gone**: Blocks differ. | highest − lowest, above 0.25? | ✓ x 0.50 | – no results | 99_gone |"
    )
    assert count == (
        "3 findings. a: ✓ 1, ✗ 0, ~ 0, – 1; b: ✓ 0, ✗ 1, ~ 0, – 1; c: ✓ 0, ✗ 0, ~ 1, – 1; "
        "d: ✓ 0, ✗ 0, ~ 0, – 2; pairs of models and twins: ✓ 1, ✗ 0, ~ 0, – 0."
    )


def with_inner(low, high, name="wide", kind="finding", **models):
    """A claim that the blocks of a model differ, which holds with all of them; between the ends as given."""
    inner = Estimate((low + high) / 2, low, high)
    return Row(replace(CLAIM, id=name, kind=kind), {"a": Reading(Estimate(0.5, 0.4, 0.6), inner=inner)} | models)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.3, 0.4, ""),
        (
            0.1,
            0.2,
            "One tick is not kept without the first and the last block: *wide* ✗ a.",
        ),
        (
            0.2,
            0.4,
            "One tick is not kept without the first and the last block: *wide* ~ a.",
        ),
    ],
)
def test_a_tick_that_needs_the_two_end_blocks_is_said_to(low, high, said):
    assert by_the_ends([with_inner(low, high)]) == said
    assert remarks([with_inner(low, high)]) == ([said] if said else [])
    not_so = {
        "b": Reading(Estimate(0.1, 0.0, 0.2), inner=Estimate(0.1, 0.0, 0.2)),
        "c": Reading(Estimate(0.5, 0.4, 0.6)),
    }
    assert by_the_ends([with_inner(low, high, **not_so)]) == said  # no tick there, and no number without the ends


def test_ticks_that_need_the_same_two_blocks_are_said_to_be_no_facts_of_their_own():
    ledger = [with_inner(0.1, 0.2), with_inner(0.3, 0.4, "sure"), with_inner(0.2, 0.4, "other")]
    assert by_the_ends(ledger) == (
        "2 claims do not keep their ticks without the first and the last block, so these ticks are not independent of "
        "one another: *wide* ✗ a; *other* ~ a."
    )
    first, *_ = to_markdown(ledger, ledger).split("\n\n")
    assert first == f"**Public models.** {by_the_ends(ledger)}"
    assert to_markdown(ledger).startswith(by_the_ends(ledger))


def test_claims_that_hold_in_models_of_one_kind_alone_are_named():
    def of(kind, **values):
        readings = {name: Reading(Estimate(value, value - 0.01, value + 0.01)) for name, value in values.items()}
        return Row(replace(CLAIM, id=kind), readings)

    here = [of("both", a=0.5), of("here", a=0.5, b=0.1), of("there", a=0.1), of("unasked", a=0.5)]
    there = [
        of("both", c=0.5),
        of("here", c=0.26),
        of("there", c=0.5),
        Row(replace(CLAIM, id="unasked"), reason="none"),
    ]
    assert only_there(here, there) == ["here"]
    assert only_there(there, here) == ["there"]
    assert apart(here, there) == (
        "In a public model, and in no embedded one, holds *here*. In an embedded model, and in no public one, holds "
        "*there*."
    )
    assert apart(here, here) == ""
    assert f"**Apart.** {apart(here, there)}" in to_markdown(there, here)


def corpora(main, *others, r=0.98):
    """Tables of notebook 05 with profiles of two models on several texts, which differ by nothing but in name."""
    rows = [(model, main, other, r, r - 0.01, r + 0.01) for model in "ab" for other in others]
    agreement = pd.DataFrame(rows, columns=["model", "corpus", "other", "r", "r_low", "r_high"])
    return {"agreement": agreement}, {"models": ["a", "b"], "corpora": [main, *others]}


SHAPE = replace(CLAIM, id="shape", notebook="05_corpora", statistic="corpora_correlation", threshold=0.9, unit="r")


def test_a_claim_about_texts_names_them_and_is_judged_on_those_of_another_run_profile(tmp_path):
    keep(tmp_path / "minis", ceilings(a=[0.9, 0.4], b=[0.9, 0.4]))
    tables.write(tmp_path / "minis" / "05_corpora", *corpora("docs", "code", "cpp"))
    tables.write(tmp_path / "prose" / "05_corpora", *corpora("docs", "wikitext", "puzzles", r=0.8))
    ledger = evaluate(tmp_path / "minis", [CLAIM, SHAPE])
    assert of_texts(ledger) == (
        "*shape* was tried on programmers' text (docs, code and cpp). On prose (wikitext and puzzles) the same rules "
        "give: *shape* ✗ a and b (run profile `prose`)."
    )
    assert remarks(ledger) == [of_texts(ledger)]
    line = next(line for line in to_markdown(ledger).splitlines() if "**shape**" in line)
    assert "✓ b 0.98 [0.97, 0.99] (docs ~ code)<br>all on programmers' text (docs, code and cpp)<br>" in line
    assert "<br>on other texts (run profile `prose`):<br>✗ a 0.80 [0.79, 0.81] (docs ~ wikitext)<br>✗ b" in line
    assert contents(ledger, {})["elsewhere"] == {"prose": {"shape": dict.fromkeys("ab", "does not hold here")}}
    assert all(row.verdict is Verdict.HOLDS for row in ledger)  # the other texts decide nothing here
    assert not any(row.elsewhere for row in evaluate(tmp_path / "prose", [CLAIM, SHAPE]))


def test_other_texts_that_are_not_on_record_are_said_to_be_missing(tmp_path):
    tables.write(tmp_path / "minis" / "05_corpora", *corpora("docs", "mine.txt"))
    ledger = evaluate(tmp_path / "minis", [SHAPE])
    assert of_texts(ledger) == (
        "*shape* was tried on docs and mine.txt. Of run profile `prose` nothing can be said: no 05_corpora.json in "
        "this profile's results."
    )
    assert "on other texts (run profile `prose`):<br>– no 05_corpora.json" in to_markdown(ledger)


def test_claims_are_counted_by_kind_and_it_is_said_which_are_counted_where(results):
    row = judge(CLAIM, results)
    other = [replace(row, claim=replace(row.claim, id=kind, kind=kind)) for kind in ("falsifier", "falsifier", "press")]
    ours = replace(row, claim=replace(row.claim, id="mine", kind="ours"))
    assert kinds([row, *other, ours]) == [
        "1 finding of the paper",
        "2 falsifiers",
        "1 claim of the press",
        "1 of our own",
    ]
    said = counted([row, *other, ours])
    assert said == (
        "These are 5 claims: 1 finding of the paper, 2 falsifiers, 1 claim of the press and 1 of our own. Here the "
        "paper's findings alone are counted, model by model. The answer of notebook 13 counts all 5, each once, by its "
        "verdict over a run's models."
    )
    *_, before, tallied = to_markdown([row, *other, ours]).split("\n\n")
    assert before == said
    assert tallied == in_one_line([row])
    assert counted([row]) == ""


def test_only_the_papers_findings_are_counted(results):
    row = judge(CLAIM, results)
    falsifier = replace(row, claim=replace(row.claim, id="other", kind="falsifier"))
    assert tally([row, falsifier]) == tally([row])
    assert tally([falsifier], "falsifier")["a"][Verdict.HOLDS] == 1
    assert in_one_line([row, falsifier]).startswith("1 findings. a: ✓ 1")
    assert names([row, falsifier]) == ["a", "b", "c"]


def test_the_board_by_hand(results):
    gone = Row(replace(CLAIM, id="gone"), reason="no results")
    part = Row(replace(CLAIM, id="part"), silent={"c": "why not"}, reason="why not")
    table = cells([judge(CLAIM, results), gone, part])
    assert table.to_dict("list") == {
        "claim": ["wide"] * 3 + ["gone", "part"],
        "section": ["§5.1"] * 5,
        "asked": ["above 0.25"] * 5,
        "column": ["a", "b", "c", TOGETHER, "c"],
        "verdict": ["holds here", "does not hold here", "mixed", "not testable here", "not testable here"],
        "symbol": ["✓", "✗", "~", "–", "–"],
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


def test_the_paper_stands_beside_this_run(results):
    table = beside_paper([judge(CLAIM, results)])
    assert table.loc["wide"].to_dict() == {
        "section": "§5.1",
        "the paper's own": "✓ gpt2 0.78; ✓ pythia-160m 0.54; ✓ llama-160m 0.61",
        "asked": "above 0.25",
        "this run": "a ✓; b ✗; c ~",
        "why this threshold": "a quarter",
    }


def test_a_claim_is_steady_where_no_multiple_changes_a_verdict():
    moves = {
        "steady": {0.5: {"a": Verdict.NOT, "b": Verdict.HOLDS}, 2.0: {"a": Verdict.NOT, "b": Verdict.HOLDS}},
        "fragile": {0.5: {"a": Verdict.MIXED}, 2.0: {"a": Verdict.NOT}},
        "open": {0.5: {"a": Verdict.UNTESTABLE}, 2.0: {"a": Verdict.UNTESTABLE}},
    }
    assert steady(moves) == ["steady"]


def test_the_record_says_how_numbers_and_verdicts_are_shown_and_who_judged(results):
    row = judge(CLAIM, results)
    found = contents([row], {"wide": {0.5: {"a": Verdict.MIXED}, 1.0: {"a": Verdict.NOT}}})
    assert found["claims"] == {"wide": numbers(row)}
    assert found["kinds"] == ["1 finding of the paper"]
    once = dict.fromkeys(map(str, Verdict), 0)
    of_verdicts = {"a": "holds here", "b": "does not hold here", "c": "mixed"}
    assert found["findings"] == {name: once | {verdict: 1} for name, verdict in of_verdicts.items()}
    assert found["remarks"] == []
    assert found["elsewhere"] == {}
    assert found["thresholds_moved"] == {"wide": {"0.5": {"a": "mixed"}, "1.0": {"a": "does not hold here"}}}
    assert found["marks"] == {verdict.value: verdict.symbol for verdict in Verdict}
    assert found["units"].keys() == UNITS.keys()
    assert found["units"]["%"] == {"factor": 100, "digits": 1, "suffix": " %"}
    assert found[JUDGED_BY] == fingerprint()


def test_results_judged_by_other_claims_are_said_to_be(tmp_path):
    source = tmp_path / "claims.toml"
    source.write_text("one", encoding="utf-8")
    path = record.save(tmp_path / "minis" / "13_claims.json", {JUDGED_BY: fingerprint(source)})
    assert another_ledger(path, source) is None
    source.write_text("two", encoding="utf-8")
    assert re.search(r"minis/13_claims.json was judged by another ledger \(SHA-256", another_ledger(path, source))
    record.save(path, {})
    assert "which, they do not say" in another_ledger(path, source)


@pytest.mark.parametrize("path", sorted(paths.ROOT.glob("results/*/*_claims.json")), ids=lambda path: path.parent.name)
def test_every_committed_verdict_was_given_by_the_committed_claims(path):
    """If this fails, claims.toml was changed after results were judged by it."""
    assert another_ledger(path) is None


@pytest.fixture(scope="module")
def ledger():
    return evaluate(paths.results("minis"))


def test_every_claim_has_a_row_and_what_cannot_be_tested_says_why(ledger):
    assert [row.claim for row in ledger] == load_claims()
    for row in ledger:
        assert row.readings or row.reason, row.claim.id
        assert bool(row.reason) is (row.verdict is Verdict.UNTESTABLE), row.claim.id
        for name, verdict in row.verdicts.items():
            assert (verdict is Verdict.UNTESTABLE) is (name in row.silent)


def test_the_record_of_notebook_11_is_the_ledger_of_the_committed_results(ledger, tmp_path):
    kept = record.load(paths.results("minis") / "13_claims.json")
    path = record.save(tmp_path / "11.json", {row.claim.id: numbers(row) for row in ledger}, TOLERANCE, DIGITS)
    anew = record.load(path)
    assert kept["claims"] == {row.claim.id: anew[row.claim.id] for row in ledger}


def test_the_committed_ledger_says_on_which_texts_and_by_which_blocks_its_ticks_stand(ledger):
    """By another way: from the profiles that notebooks 02 and 05 kept, without the rules of the claims."""
    ends, texts = remarks(ledger)
    for _, blocks in tables.results("minis", "02_ceilings")["blocks"].groupby("model"):
        inner = blocks.iloc[1:-1]
        assert inner.r2_high.max() - inner.r2_low.min() < 0.27  # what heterogeneous asks for, of the furthest ends
    told = (
        (paths.NOTEBOOKS / "13_claims.py").read_text(encoding="utf-8").partition("Ticks need not be independent. ")[2]
    )
    assert re.findall(r"\*([\w-]+)\*", told.partition(" can all")[0]) == [row.claim.id for row in ledger if row.hanging]
    every = "mini-gpt2, mini-llama and mini-pythia"
    assert f"*heterogeneous* ✗ {every}; *adjacent* ✗ {every}; *non-monotone* ~ " in ends
    prose = tables.results("prose", "05_corpora")
    *_, one, other, last = prose.settings["corpora"]
    assert f"On prose ({one}, {other} and {last}) the same rules give:" in texts
    lowest = prose["agreement"].query("corpus == 'docs'").groupby("model").r_low.min()
    assert lowest.max() < 0.9  # so no tick
    assert "*text-same-shape* ~ mini-gpt2, mini-pythia and mini-llama;" in texts
    assert texts.startswith(
        "*text-same-shape* and *text-small-shift* were tried on programmers' text (docs, code and cpp)."
    )


def test_no_verdict_is_typed_in_the_notebook_or_its_prose():
    """Verdict words may be explained there; none may be given to a claim by name."""
    source = (paths.NOTEBOOKS / "13_claims.py").read_text(encoding="utf-8")
    for claim in load_claims():
        assert not re.search(rf"{claim.id}\W{{0,4}}(is|was|:|=)?\W{{0,4}}(holds|does not|mixed)", source), claim.id


def test_the_committed_ledger_agrees_with_numbers_the_other_notebooks_kept(ledger):
    """By another way: flags and extremes that notebooks 02 and 04 recorded themselves."""
    rows = {row.claim.id: row for row in ledger}
    ceilings, ranks = tables.results("minis", "02_ceilings"), tables.results("minis", "04_rank")["blocks"]
    for model in ceilings["models"].itertuples():
        assert (rows["non-monotone"].readings[model.model].estimate.low > 0) == model.rises_and_falls
        spearman = rows["dissociation"].readings[model.model].estimate.value
        assert spearman == pytest.approx(model.spearman, abs=0.01)
    gelu = {"mini-gpt2", "mini-pythia"}
    (likeness,) = [row for row in ceilings["likeness"].itertuples() if {row.model, row.other} == gelu]
    assert rows["not-activation"].readings[TOGETHER].estimate.value <= likeness.largest_gap
    alike = rows["not-activation-shape"].readings[TOGETHER]
    assert alike.estimate.value == pytest.approx(likeness.pearson, abs=0.01)
    for name, near in ranks[ranks["regime"] != "below"].groupby("model"):
        assert rows["two-regimes-outlier"].readings[name].estimate.value == near["median_r2"].min()
