"""The pages' tables are what the results imply, and writing them touches nothing else."""

import pandas as pd
import pytest

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic, paths
from howlinear.files.tables import Results
from howlinear.notebook import execute
from tools import pages
from tools.pages import CLAIMS, END, FINDINGS, FINDINGS_PAGE, LEDGER_PAGE

RECORDED = paths.ROOT / "results"


def test_the_pages_show_what_the_committed_results_imply():
    """If this fails, results or claims have moved: run `make readme`, and read the pages again."""
    implied = pages.tables(RECORDED)
    assert len(implied[pages.INSTRUCTOR]) == len(implied[pages.PLANS]) == len(execute.stems())
    for name, of_page in implied.items():
        text = (paths.ROOT / name).read_text(encoding="utf-8")
        for mark, table in of_page.items():
            assert pages.replace(text, mark, table) == text, f"{name}, {mark} is out of date: run make readme"


def test_prose_is_filled_from_the_tables(tmp_path, monkeypatch):
    models = pd.DataFrame({"perplexity": [1.0, 2.0]})
    monkeypatch.setattr(pages, "TEMPLATES", tmp_path)
    monkeypatch.setattr(pages, "recorded_tables", lambda folder, stem: Results(stem, {"models": models}))
    (tmp_path / "one.md").write_text('{{ minis("02_ceilings")["models"].perplexity | span(1) }}\n', encoding="utf-8")
    assert pages.fill_prose("one", RECORDED) == "1.0 to 2.0"


def test_what_public_models_lack_is_said_of_the_embedded_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "TEMPLATES", tmp_path)
    monkeypatch.setattr(
        pages, "recorded_tables", lambda folder, stem: Results(stem, {}, {"settings": {"whose": folder.name}})
    )
    (tmp_path / "one.md").write_text(
        '{{ measured("02_ceilings", "blocks").settings.whose }} {{ measured("02_ceilings", "twins").settings.whose }}',
        encoding="utf-8",
    )
    (tmp_path / "public" / "02_ceilings").mkdir(parents=True)
    (tmp_path / "public" / "02_ceilings" / "blocks.csv").touch()
    assert pages.fill_prose("one", tmp_path) == "public minis"
    assert 'src="../figures/public/02_ceilings_profile.png"' in pages.figure("02_ceilings_profile")
    assert 'src="../figures/minis/09_dynamics_profiles.png"' in pages.figure("09_dynamics_profiles")


OTHER = "<!-- other -->\n| 1 |\n<!-- end -->"
TEXT = f"# Title\n\n{OTHER}\n\n{{}}\n\n{OTHER}\n\nThe end."


@pytest.mark.parametrize("inside", ["", "old\n", "| a |\n| b |\n\n2 claims.\n"])
def test_a_table_goes_between_its_marks_and_all_else_stays(inside):
    old = TEXT.format(f"{CLAIMS}\n{inside}{END}")
    new = pages.replace(old, CLAIMS, "| new |\n\nlegend")
    assert new == TEXT.format(f"{CLAIMS}\n| new |\n\nlegend\n{END}")
    assert pages.replace(new, CLAIMS, "| new |\n\nlegend") == new


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TEXT.format(""), f"found 0 lines {CLAIMS}"),
        (TEXT.format(f"{CLAIMS}\nold"), f"no line {END} closes {CLAIMS}"),
        (f"# Title\n{CLAIMS}\nold\n", f"no line {END} closes {CLAIMS}"),
        (TEXT.format(f"{CLAIMS} old\n{END}"), f"found 1 lines {CLAIMS}; a table belongs between one such line"),
        (TEXT.format(f"{CLAIMS}\nold\n{END}\n\n{CLAIMS}\nold\n{END}"), f"found 2 lines {CLAIMS}"),
    ],
    ids=["missing", "closed by another's end", "not closed", "not alone in its line", "doubled"],
)
def test_marks_that_are_missing_or_doubled_are_an_error(text, match):
    with pytest.raises(InputError, match=match):
        pages.replace(text, CLAIMS, "new")


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
    pages.main(project)
    assert capsys.readouterr().out.count("tables written") == 2
    page = (project / FINDINGS_PAGE).read_text(encoding="utf-8")
    assert page == f"# Title\n{FINDINGS}\nnew\n{END}\n\n<!-- more -->\nmore\n{END}\nend\n"
    monkeypatch.setattr(atomic, "written_aside", None)  # what is right is not written again
    pages.main(project)
    assert capsys.readouterr().out.count("nothing to do") == 2


def test_a_text_with_one_mark_alone_is_left_as_it_was(project, capsys):
    path = project / FINDINGS_PAGE
    path.write_text(f"<!-- more -->\nold\n{END}\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        pages.main(project)
    assert capsys.readouterr().err.startswith(f"howlinear: found 0 lines {FINDINGS}")
    assert path.read_text(encoding="utf-8") == f"<!-- more -->\nold\n{END}\n"


def test_a_text_that_is_not_there_is_named(project):
    with pytest.raises(SourceError, match=r"cannot read .*NONE\.md"):
        pages.write(project / "NONE.md", {})
