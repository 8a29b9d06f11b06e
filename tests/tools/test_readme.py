"""README's tables are what the results imply, and writing them touches nothing else."""

import json
import shutil

import pytest

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic, paths
from howlinear.ideas.claims import ledger as claims
from tools import readme
from tools.readme import CLAIMS, END, NUMBERS, PUBLIC

RECORDED = paths.ROOT / "results"

RESULTS = {
    "models": {
        "a": {
            "perplexity": 39.94,
            "blocks": [{"r2": 0.9}, {"r2": 0.256}, {"r2": 0.5}],
            "untrained": [-0.1, 0.125, 0.3],
            "untrained_in_sample": [0.4, 0.5, 0.31],
            "swap": [{"block": 0, "delta": -0.2}, {"block": 1, "delta": 1.5}, {"block": 2, "delta": 0.3}],
            "spearman_r2_delta": -0.5,
        },
        "longer": {
            "perplexity": 10.0,
            "blocks": [{"r2": 1.0}],
            "untrained": [0.0],
            "untrained_in_sample": [0.01],
            "swap": [{"block": 0, "delta": 12.0}],
            "spearman_r2_delta": 0.0,
        },
    },
    "likeness": {"a ~ longer": {"pearson": 0.987, "inner": 0.1}},
}


def test_the_readme_shows_what_the_committed_results_imply():
    """If this fails, results or claims have moved: run `make readme`, and read the text around the tables again."""
    text = readme.README.read_text(encoding="utf-8")
    for mark, table in readme.tables(RECORDED).items():
        assert readme.replace(text, mark, table) == text, f"{mark} is out of date: run make readme"


def test_the_table_of_numbers_by_hand():
    head, _, *rows, empty, legend = readme.ceilings_table(RESULTS).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]
    assert cells == [
        ["model", "perplexity", "R²_lin, lowest – highest block", "before training", "dearest swap, ΔPPL", "ρ"],
        ["a", "39.9", "0.26 – 0.90", "within [-0.10, 0.50]", "+1.50, block 1", "-0.50"],
        ["longer", "10.0", "1.00 – 1.00", "0.00 – 0.00", "+12.00, block 0", "+0.00"],
    ]
    assert empty == ""
    assert legend.startswith("Before training, *within*: from the lowest held-out to the highest in-sample R²")
    assert "ρ: Spearman correlation of R²_lin with the swap's cost; above 0, more linear is dearer." in legend
    assert legend.endswith("Correlation of profiles: a ~ longer: r = 0.99.")


def test_the_table_of_public_models_by_hand():
    decided = {"block": 3, "r2": 0.9, "r2_ordinary": 0.45, "massive_rows": 12}
    hardly = {"block": 4, "r2": 0.5, "r2_ordinary": 0.45, "massive_rows": 7}
    models = {
        "talks": {"perplexity": 17.04, "rows": 1000, "blocks": [decided, hardly]},
        "encodes": {"perplexity": None, "rows": 1000, "blocks": [hardly]},
    }
    _, _, *rows = readme.public_table({"models": models}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    assert cells == [
        ["talks", "17.0", "0.50 – 0.90", "0.45 – 0.45", "3: 0.90 → 0.45 without 1.2% of the rows"],
        ["encodes", "none, an encoder", "0.50 – 0.50", "0.45 – 0.45", "none"],
    ]


def test_every_table_comes_from_the_recorded_results():
    tables = readme.tables(RECORDED)
    assert tables.keys() == {PUBLIC, NUMBERS, CLAIMS}
    of_both = [claims.evaluate(RECORDED / profile) for profile in ("minis", "public")]
    assert tables[CLAIMS] == claims.to_markdown(*of_both)


OTHER = "<!-- other -->\n| 1 |\n<!-- end -->"
TEXT = f"# Title\n\n{OTHER}\n\n{{}}\n\n{OTHER}\n\nThe end."


@pytest.mark.parametrize("inside", ["", "old\n", "| a |\n| b |\n\n2 claims.\n"])
def test_a_table_goes_between_its_marks_and_all_else_stays(inside):
    old = TEXT.format(f"{CLAIMS}\n{inside}{END}")
    new = readme.replace(old, CLAIMS, "| new |\n\nlegend")
    assert new == TEXT.format(f"{CLAIMS}\n| new |\n\nlegend\n{END}")
    assert readme.replace(new, CLAIMS, "| new |\n\nlegend") == new


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
        readme.replace(TEXT.format(middle), CLAIMS, "new")


def test_a_mark_that_nothing_closes_is_an_error():
    with pytest.raises(InputError, match="no line <!-- end --> closes"):
        readme.replace(f"# Title\n{CLAIMS}\nold\n", CLAIMS, "new")


@pytest.fixture
def project(tmp_path):
    """A README with empty tables, and the committed results."""
    for profile in ("minis", "public"):
        shutil.copytree(RECORDED / profile, tmp_path / "results" / profile)
    text = f"# Title\n{PUBLIC}\n{END}\n{NUMBERS}\n{END}\n\nbetween\n\n{CLAIMS}\n{END}\nend\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    return tmp_path


def test_one_command_writes_all_tables_once(project, capsys, monkeypatch):
    path, results = project / "README.md", project / "results"
    assert readme.main(path, results) == 0
    assert "written" in capsys.readouterr().out
    tables = readme.tables(results)
    first, second, third = (f"{mark}\n{tables[mark]}\n{END}\n" for mark in (PUBLIC, NUMBERS, CLAIMS))
    expected = f"# Title\n{first}{second}\nbetween\n\n{third}end\n"
    assert path.read_text(encoding="utf-8") == expected
    monkeypatch.setattr(atomic, "written_aside", None)  # what is right is not written again
    assert readme.main(path, results) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_a_text_with_one_mark_alone_is_left_as_it_was(project, capsys):
    path = project / "README.md"
    path.write_text(f"{NUMBERS}\nold\n{END}\n", encoding="utf-8")
    assert readme.main(path, project / "results") == 2
    assert capsys.readouterr().err == (
        f"howlinear: found 0 lines {PUBLIC}; a table belongs between one such line and {END}\n"
    )
    assert path.read_text(encoding="utf-8") == f"{NUMBERS}\nold\n{END}\n"


def test_a_text_that_is_not_there_is_named(project):
    with pytest.raises(SourceError, match=r"cannot read .*NONE\.md"):
        readme.write(project / "NONE.md", project / "results")


def test_results_that_lack_what_a_table_shows_are_named(project):
    path = project / "results" / "minis" / "02_ceilings.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    del tree["models"]["mini-gpt2"]["untrained"]
    path.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(SourceError, match=r"02_ceilings\.json does not hold .*'untrained'.*run notebook 02 again"):
        readme.write(project / "README.md", project / "results")


def test_without_results_the_notebook_to_run_is_named(project):
    (project / "results" / "minis" / "02_ceilings.json").unlink()
    with pytest.raises(SourceError, match=r"no results at .*02_ceilings"):
        readme.write(project / "README.md", project / "results")
