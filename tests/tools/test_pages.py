"""The pages' tables are what the results imply, and writing them touches nothing else."""

import re
import shutil

import numpy as np
import pandas as pd
import pytest

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic, paths
from howlinear.files.tables import Results
from howlinear.files.tables import results as load_results
from tools import pages
from tools.book import build
from tools.pages import CLAIMS, END, FINDINGS, FINDINGS_PAGE, LEDGER_PAGE

RECORDED = paths.ROOT / "results"

RESULTS = {
    "models": pd.DataFrame({"model": ["a", "longer"], "perplexity": [39.94, 10.0], "spearman": [-0.5, 0.0]}),
    "blocks": pd.DataFrame(
        {
            "model": ["a", "a", "a", "longer"],
            "block": [0, 1, 2, 0],
            "r2": [0.9, 0.256, 0.5, 1.0],
            "r2_untrained": [-0.1, 0.125, 0.3, 0.0],
            "r2_untrained_in_sample": [0.4, 0.5, 0.31, 0.01],
            "dppl": [-0.2, 1.5, np.nan, 12.0],
            "dppl_low": [-0.3, 1.0, np.nan, 8.0],
            "dppl_high": [-0.1, 2.0, np.nan, 16.0],
        }
    ),
    "likeness": pd.DataFrame({"model": ["a"], "other": "longer", "pearson": 0.987, "inner": 0.1}),
}


def rows(table):
    """The cells of a table in Markdown, without the rule below its head."""
    head, _, *lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]


def test_the_pages_show_what_the_committed_results_imply():
    """If this fails, results or claims have moved: run `make readme`, and read the pages again."""
    implied = pages.tables(RECORDED)
    assert len(implied[pages.INSTRUCTOR]) == len(implied[pages.PLANS]) == len(build.stems())
    for name, of_page in implied.items():
        text = (paths.ROOT / name).read_text(encoding="utf-8")
        for mark, table in of_page.items():
            assert pages.replace(text, mark, table) == text, f"{name}, {mark} is out of date: run make readme"


def test_the_table_of_numbers_by_hand():
    table = pages.ceilings_table(Results("02_ceilings", RESULTS))
    assert [cells[:-2] for cells in rows(table)[1:]] == [
        ["a", "39.9", "0.26 – 0.90", "within [−0.10, 0.50]"],
        ["longer", "10.0", "1.00 – 1.00", "0.00 – 0.00"],
    ]
    assert [cells[-2:] for cells in rows(table)[1:]] == [
        ["+1.50 [1.00, 2.00], block 1", "−0.50"],
        ["+12.00 [8.00, 16.00], block 0", "+0.00"],
    ]
    assert "a ~ longer: r = 0.99" in table


def test_the_table_of_public_models_by_hand():
    decided = {"block": 3, "r2": 0.9, "r2_ordinary": 0.45, "massive_rows": 12}
    hardly = {"block": 4, "r2": 0.5, "r2_ordinary": 0.45, "massive_rows": 7}
    blocks = pd.DataFrame([decided, hardly, hardly]).assign(model=["talks", "talks", "encodes"])
    models = pd.DataFrame({"model": ["talks", "encodes"], "perplexity": [17.04, None], "rows": 1000})
    assert rows(pages.public_table(Results("02_ceilings", {"models": models, "blocks": blocks})))[1:] == [
        ["talks", "17.0", "0.50 – 0.90", "0.45 – 0.45", "3: 0.90 → 0.45 without 1.2 % of the rows"],
        ["encodes", "none, an encoder", "0.50 – 0.50", "0.45 – 0.45", "none"],
    ]


def test_the_table_of_the_race_by_hand():
    row = {"model": "talks", "corpus": "a", "ratio_low": 1.0, "ratio_high": 1.25}
    race = [
        row | {"method": "second", "share": 0.9, "ratio": 1.1},
        row | {"method": "second", "share": 0.8, "ratio": 1.5},
        row | {"method": "first", "share": 0.9, "ratio": 1.126},
        row | {"method": "first", "share": 0.8, "ratio": 1.2},
        row | {"method": "first", "share": 0.8, "ratio": 9.0, "corpus": "another text"},
        row | {"method": "wild", "share": 0.9, "ratio": 1234.5},
        row | {"method": "wild", "share": 0.8, "ratio": None},
    ]
    assert rows(pages.race_table(Results("14_compress", {"race": pd.DataFrame(race)}))) == [
        ["way", "90 %", "80 %"],
        ["first", "1.13 [1.00, 1.25]", "1.20 [1.00, 1.25]"],
        ["second", "1.10 [1.00, 1.25]", "1.50 [1.00, 1.25]"],
        ["wild", "1,234", "–"],
    ]


def test_an_answer_has_its_question_its_figure_and_both_kinds_of_models():
    text = pages.answers(["02_ceilings", "09_dynamics"], RECORDED)
    both, trained_here = re.split("(?=^## 09)", text, flags=re.MULTILINE)
    assert both.startswith("## 02 · How much of a feed-forward block is a straight line?\n")
    assert both.index("Of the public models:") < both.index("Of the embedded models:")
    assert 'src="../figures/public/02_ceilings_profile.png"' in both
    assert "the public models" not in trained_here
    assert 'src="../figures/minis/09_dynamics_profiles.png"' in trained_here


def test_prose_is_filled_from_the_tables(tmp_path, monkeypatch):
    moved = RESULTS["models"].assign(perplexity=[1.0, 2.0])
    monkeypatch.setattr(pages, "TEMPLATES", tmp_path)
    monkeypatch.setattr(pages, "load_results", lambda folder, stem: Results(stem, {"models": moved}))
    (tmp_path / "one.md").write_text('{{ minis("02_ceilings")["models"].perplexity | span(1) }}\n', encoding="utf-8")
    assert pages.fill_prose("one", RECORDED) == "1.0 to 2.0"


def test_how_far_profiles_lie_apart_at_most_by_hand():
    profiles = pd.DataFrame({"a": [0.5, 0.5], "b": [0.75, 0.25], "c": [0.5, 0.625]})
    assert pages.furthest(profiles) == 0.3125  # of b and c, whose blocks differ by 0.25 and 0.375


OTHER = "<!-- other -->\n| 1 |\n<!-- end -->"
TEXT = f"# Title\n\n{OTHER}\n\n{{}}\n\n{OTHER}\n\nThe end."


@pytest.mark.parametrize("inside", ["", "old\n", "| a |\n| b |\n\n2 claims.\n"])
def test_a_table_goes_between_its_marks_and_all_else_stays(inside):
    old = TEXT.format(f"{CLAIMS}\n{inside}{END}")
    new = pages.replace(old, CLAIMS, "| new |\n\nlegend")
    assert new == TEXT.format(f"{CLAIMS}\n| new |\n\nlegend\n{END}")
    assert pages.replace(new, CLAIMS, "| new |\n\nlegend") == new


@pytest.mark.parametrize(
    ("middle", "match"),
    [
        ("", f"found 0 lines {CLAIMS}"),
        (CLAIMS, f"no line {END} closes {CLAIMS}"),
        (f"{CLAIMS}\nold", f"no line {END} closes {CLAIMS}"),
        (f"{CLAIMS} old\n{END}", f"found 1 lines {CLAIMS}; a table belongs between one such line"),
        (f"{CLAIMS}\nold\n{END}\n\n{CLAIMS}\nold\n{END}", f"found 2 lines {CLAIMS}"),
    ],
)
def test_marks_that_are_missing_or_doubled_are_an_error(middle, match):
    with pytest.raises(InputError, match=match):
        pages.replace(TEXT.format(middle), CLAIMS, "new")


def test_a_mark_that_nothing_closes_is_an_error():
    with pytest.raises(InputError, match="no line <!-- end --> closes"):
        pages.replace(f"# Title\n{CLAIMS}\nold\n", CLAIMS, "new")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Two pages, one of them with two marks, and what goes between."""
    new = {FINDINGS_PAGE: {FINDINGS: "new", "<!-- more -->": "more"}, LEDGER_PAGE: {CLAIMS: "claims"}}
    monkeypatch.setattr(pages, "tables", lambda results: new)
    (tmp_path / "results").mkdir()
    (tmp_path / FINDINGS_PAGE).write_text(f"# Title\n{FINDINGS}\n{END}\n\n<!-- more -->\n{END}\nend\n", "utf-8")
    (tmp_path / LEDGER_PAGE).write_text(f"{CLAIMS}\n{END}\n", encoding="utf-8")
    return tmp_path


def test_one_command_writes_all_tables_once(project, capsys, monkeypatch):
    assert pages.main(project) == 0
    assert capsys.readouterr().out.count("tables written") == 2
    page = (project / FINDINGS_PAGE).read_text(encoding="utf-8")
    assert page == f"# Title\n{FINDINGS}\nnew\n{END}\n\n<!-- more -->\nmore\n{END}\nend\n"
    monkeypatch.setattr(atomic, "written_aside", None)  # what is right is not written again
    assert pages.main(project) == 0
    assert capsys.readouterr().out.count("nothing to do") == 2


def test_a_text_with_one_mark_alone_is_left_as_it_was(project, capsys):
    path = project / FINDINGS_PAGE
    path.write_text(f"<!-- more -->\nold\n{END}\n", encoding="utf-8")
    assert pages.main(project) == 2
    assert capsys.readouterr().err.startswith(f"howlinear: found 0 lines {FINDINGS}")
    assert path.read_text(encoding="utf-8") == f"<!-- more -->\nold\n{END}\n"


def test_a_text_that_is_not_there_is_named(project):
    with pytest.raises(SourceError, match=r"cannot read .*NONE\.md"):
        pages.write(project / "NONE.md", {})


def test_results_that_lack_what_a_table_shows_are_named(tmp_path):
    shutil.copytree(RECORDED / "minis" / "02_ceilings", tmp_path / "02_ceilings")
    path = tmp_path / "02_ceilings" / "blocks.csv"
    pd.read_csv(path).drop(columns="r2_untrained").to_csv(path, index=False)
    with pytest.raises(SourceError, match=r"02_ceilings do not hold .*r2_untrained.*run the notebook again"):
        pages.ceilings_table(load_results(tmp_path, "02_ceilings"))
    with pytest.raises(SourceError, match=r"no results in .*02_ceilings"):
        pages.tables(tmp_path / "elsewhere")


def test_results_of_another_notebook_that_lack_what_its_answer_says_are_named(tmp_path):
    shutil.copytree(RECORDED / "minis" / "01_capture", tmp_path / "minis" / "01_capture")
    with_minis_alone = pages.expected("01_capture", tmp_path)
    assert "Of the embedded models:" in with_minis_alone
    assert "public" not in with_minis_alone
    shutil.copytree(RECORDED / "public" / "01_capture", tmp_path / "public" / "01_capture")
    (tmp_path / "public" / "01_capture" / "inputs.csv").unlink()
    with pytest.raises(SourceError, match=r"results of 01_capture do not hold .*run the notebook again"):
        pages.expected("01_capture", tmp_path)
