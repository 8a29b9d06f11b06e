"""What the course's pages say of the notebooks, and that their minutes add up."""

import pytest

from howlinear.files import paths
from howlinear.notebook import execute
from tools import teaching

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


def test_every_notebook_has_its_week_after_what_it_needs():
    taught = [stem for stems in teaching.WEEKS.values() for stem in stems]
    assert sorted(taught) == execute.stems()
    assert taught[:3] == ["00_by_hand", "01_capture", "02_ceilings"]
    needs = {"10_degrees": "03_bilinear", "12_sinks": "04_rank", "14_compress": "06_compression", "15_gate": "12_sinks"}
    assert all(taught.index(before) < taught.index(stem) for stem, before in needs.items())
    assert taught[-1] == "13_claims"
