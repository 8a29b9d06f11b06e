"""What another machine's run leaves on record: the committed files, where all of its numbers agree with them."""

import json
import os
import subprocess

import pytest

from helpers.repository import commit, git
from howlinear.files import paths
from tools import on_record

STEM, OTHER = "02_ceilings", "03_bilinear"
HERE = {"processor": "a", "instructions": "AVX512", "system": "s", "threads": 1, "cores": 2}
LONG_AGO = 1_000_000_000


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def ran(root, stem, r2, drawing, profile="minis", **machine):
    """What a run of a notebook leaves; R² may move by 0.001."""
    record = {"machine": HERE | machine, "versions": {"torch": "2"}}
    write(root / f"results/{profile}/{stem}/blocks.csv", f"model,block,r2\nm,0,{r2}\n")
    write(root / f"results/{profile}/{stem}/run.json", record | {"of": drawing, "settings": {}})
    write(root / f"build/{profile}/runs/{stem}.json", record)
    for kind in ("svg", "png"):
        write(root / f"figures/{profile}/{stem}_it.{kind}", drawing)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Two notebooks with what they have on record, and the report, committed."""
    for name in ("ROOT", "NOTEBOOKS", "BUILD"):
        monkeypatch.setattr(paths, name, tmp_path / ("" if name == "ROOT" else name.lower()))
    write(tmp_path / ".gitignore", "build/\n")
    write(tmp_path / "paper/main.pdf", "report")
    write(tmp_path / "lib/code.py", "1 + 1\n")
    for stem in (STEM, OTHER):
        write(tmp_path / f"notebooks/{stem}.py", "1 + 1\n")
        ran(tmp_path, stem, 0.5, "as committed")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def differing(root):
    told = subprocess.run(["git", "-C", str(root), "status", "--porcelain"], capture_output=True, text=True, check=True)
    return [line[3:] for line in told.stdout.splitlines()]


def test_another_machines_files_give_way_to_those_on_record_with_their_times_and_the_report_after_them(project):
    for stem in (STEM, OTHER):
        ran(project, stem, 0.5005, "elsewhere", instructions="AVX2")
    write(project / "paper/main.pdf", "report of elsewhere")
    drawn = project / f"figures/minis/{STEM}_it.png"
    os.utime(drawn, (LONG_AGO, LONG_AGO))
    back = on_record.given_back("minis")
    assert list(back) == [STEM, OTHER, on_record.REPORT]
    assert len(back[STEM]) == 4  # result, record, two files of a figure
    assert differing(project) == []
    assert drawn.read_text() == "as committed"
    assert drawn.stat().st_mtime == LONG_AGO
    assert on_record.given_back("minis") == {}


def test_a_number_that_moved_keeps_all_that_came_with_it(project):
    ran(project, STEM, 0.5005, "elsewhere", processor="b")
    ran(project, OTHER, 0.6, "elsewhere", processor="b")
    write(project / "paper/main.pdf", "report of elsewhere")
    assert list(on_record.given_back("minis")) == [STEM]
    assert len(differing(project)) == 5  # what 03 made, and the report, which shows it
    assert (project / f"figures/minis/{OTHER}_it.svg").read_text() == "elsewhere"


def test_on_the_machine_of_the_record_a_change_has_another_cause_and_stays(project):
    ran(project, STEM, 0.5, "drawn in another way")
    assert on_record.given_back("minis") == {}
    assert f"figures/minis/{STEM}_it.svg" in differing(project)


def test_what_a_notebook_of_this_machine_makes_of_anothers_numbers_gives_way_too(project):
    ran(project, STEM, 0.5005, "elsewhere", processor="b")
    ran(project, OTHER, 0.5, "drawn from the numbers of the first")
    assert list(on_record.given_back("minis")) == [STEM, OTHER]
    assert differing(project) == []


def test_a_later_processor_of_the_same_name_is_another_machine(project):
    ran(project, STEM, 0.5005, "elsewhere", family="25", model="17")
    assert list(on_record.given_back("minis")) == [STEM]


@pytest.mark.parametrize("changed", ["lib/code.py", f"notebooks/{STEM}.py"])
def test_other_code_than_the_commits_is_not_judged_by_its_record(project, changed):
    ran(project, STEM, 0.5005, "elsewhere", system="t")
    write(project / changed, "2 + 2\n")
    assert on_record.given_back("minis") == {}
    assert f"results/minis/{STEM}/blocks.csv" in differing(project)


def test_a_notebook_that_is_not_on_record_keeps_what_it_made(project):
    write(project / "notebooks/04_rank.py", "1 + 1\n")
    commit(project)
    ran(project, "04_rank", 0.5, "new", system="t")
    assert on_record.given_back("minis") == {}
    assert (project / "results/minis/04_rank/blocks.csv").is_file()


def test_a_file_that_the_run_did_not_make_comes_back(project):
    ran(project, STEM, 0.5005, "elsewhere", threads=2)
    (project / f"figures/minis/{STEM}_it.svg").unlink()
    on_record.given_back("minis")
    assert (project / f"figures/minis/{STEM}_it.svg").read_text() == "as committed"


def test_other_run_profiles_have_no_report(project):
    ran(project, STEM, 0.5, "as committed", "public")
    commit(project)
    ran(project, STEM, 0.5005, "elsewhere", "public", system="t")
    write(project / "paper/main.pdf", "report of elsewhere")
    assert list(on_record.given_back("public")) == [STEM]
    assert "paper/main.pdf" in differing(project)


def test_one_line_says_what_was_given_back(project, capsys):
    on_record.main("minis")
    assert capsys.readouterr().out == ""
    ran(project, STEM, 0.5005, "elsewhere", system="t")
    on_record.main("minis")
    assert capsys.readouterr().out.strip().endswith(f"{STEM} (4 files made elsewhere)")


def test_without_a_checkout_nothing_is_judged(project):
    ran(project, STEM, 0.5005, "elsewhere", system="t")
    (project / ".git").rename(project / "not.git")
    assert on_record.given_back("minis") == {}
