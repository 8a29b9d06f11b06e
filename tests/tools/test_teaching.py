"""What the course's pages say of the notebooks, and that their minutes add up."""

import re

import pytest

from howlinear.errors import InputError
from howlinear.files import paths
from tools import reading_time, teaching
from tools.book import build

COURSE = paths.ROOT / "book" / "course"
SMALL = """\
# %% [markdown]
# # 07 · How small?
#
# {words}
#
# ## Exercises
#
# **1 (warm-up).** One?

# %%
one = None

# %% [markdown]
# **2 (find the bug).** Two, and `**3 (harder).**` is not one.
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder with one notebook of 1,300 words, which take ten minutes."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    (tmp_path / "07_small.py").write_text(SMALL.format(words="word " * 1300), encoding="utf-8")
    return "07_small"


def cells(table):
    _, _, *rows = table.splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_a_notebooks_row_by_hand(small):
    link = "[07_small](../../notebooks/07_small.py)"
    assert cells(teaching.notebooks_table([small])) == [[link, "How small?", "10", "warm-up, find the bug", "3"]]


def test_a_weeks_row_adds_up_its_notebooks(small, monkeypatch):
    monkeypatch.setattr(teaching, "WEEKS", {"All of it": (small, small)})
    link = "[07_small](../../notebooks/07_small.py)"
    assert cells(teaching.weeks_table()) == [["1", "All of it", f"{link}, {link}", "20", "4", "6"]]


def test_a_notebook_without_a_title_is_named(small):
    (paths.NOTEBOOKS / "08_small.py").write_text(SMALL, encoding="utf-8")
    with pytest.raises(InputError, match="notebook 08_small has no title '# 08 ·'"):
        teaching.question("08_small")


def test_every_notebook_has_its_week_after_what_it_needs():
    taught = [stem for stems in teaching.WEEKS.values() for stem in stems]
    assert sorted(taught) == build.stems()
    assert taught[:3] == ["00_by_hand", "01_capture", "02_ceilings"]
    assert taught.index("03_bilinear") < taught.index("10_degrees")
    assert taught.index("04_rank") < taught.index("12_sinks")
    assert taught.index("06_compression") < taught.index("14_compress")
    assert taught.index("12_sinks") < taught.index("15_gate")
    assert taught[-1] == "13_claims"


def test_minutes_are_those_of_the_headers():
    for stem in build.stems():
        (stated,) = reading_time.STATED.findall((paths.NOTEBOOKS / f"{stem}.py").read_text(encoding="utf-8"))
        assert teaching.minutes([stem]) == int(stated)


def own_words(page):
    """A page of the course without what is written between its marks."""
    text = (COURSE / f"{page}.md").read_text(encoding="utf-8")
    return re.sub(r"<!-- (?!end).*?<!-- end -->", "", text, flags=re.DOTALL)


@pytest.mark.parametrize(("page", "minutes"), [("syllabus", 240), ("lab", 60)])
def test_the_minutes_of_a_plan_fill_its_time(page, minutes):
    assert sum(map(int, re.findall(r"^\| (\d+) \|", own_words(page), re.MULTILINE))) == minutes


@pytest.mark.parametrize(("page", "heading"), [("instructor", "### "), ("plans", "## ")])
def test_the_instructor_has_numbers_and_a_lesson_plan_for_every_notebook(page, heading):
    parts = re.split(rf"^{heading}(?=\d)", (COURSE / f"{page}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in parts] == build.stems()


@pytest.mark.parametrize("page", ["syllabus", "lab", "instructor", "plans"])
def test_own_words_have_no_result(page):
    """Results come between the marks; what is left are minutes, points, settings and names."""
    settings = r"95 % intervals|R² of 0\.99?\b|2\.6 GB of\s+packages"
    assert re.findall(r"\d+\.\d+|\d+ %", re.sub(settings, "", own_words(page))) == []
