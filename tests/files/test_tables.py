"""Tidy tables: rounded once as the data dictionary says, read back as written, compared column by column."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from howlinear.core.intervals import Estimate
from howlinear.errors import InputError, SourceError
from howlinear.files import numbers, tables

STEM = "02_ceilings"
NAMES = {
    "common": {
        "model": tables.Column("model", type="text", key=True),
        "block": tables.Column("block", type="integer", key=True),
        "r2": tables.Column("R²"),
    },
    STEM: {
        "cost": tables.Column("ΔPPL", digits=3, decimals=9, tolerance=0.1),
        "blocks.count": tables.Column("rows", type="integer"),
        "word": tables.Column("a word", type="text"),
        "sure": tables.Column("whether", type="flag"),
        "near": tables.Column("a near tie", compared=False),
    },
}


@pytest.fixture(autouse=True)
def names(monkeypatch):
    monkeypatch.setattr(tables, "dictionary", lambda: NAMES)


def blocks(**columns):
    return pd.DataFrame({"model": ["a", "a"], "block": [0, 1]} | columns)


def written(folder, settings=None, **named):
    recorded = {name: tables.as_recorded(table, STEM, name) for name, table in named.items()}
    tables.write(folder / STEM, recorded, settings or {})
    return tables.read(folder / STEM)


def test_what_is_recorded_is_what_is_read_back(tmp_path):
    table = blocks(r2=[1 / 3, np.nan], count=[5, 6], word=["NA", ""], sure=[True, False])
    recorded = tables.as_recorded(table, STEM, "blocks")
    found = written(tmp_path, {"probed": 3}, blocks=table)
    pd.testing.assert_frame_equal(found["blocks"], recorded)
    assert found["blocks"]["r2"][0] == 0.3333
    assert found["blocks"]["word"][0] == "NA"
    assert found["blocks"]["word"].isna().tolist() == [False, True]
    assert found["blocks"]["sure"].tolist() == [True, False]
    assert found.settings == {"probed": 3}


def test_recording_twice_changes_nothing():
    table = blocks(r2=[2 / 3, 1e-9], cost=[12.3456, 0.00012345])
    once = tables.as_recorded(table, STEM, "blocks")
    pd.testing.assert_frame_equal(tables.as_recorded(once, STEM, "blocks"), once)


def test_the_ends_of_an_interval_are_what_the_number_is():
    table = pd.DataFrame([{"model": "a", "block": 0} | Estimate(0.123456, 0.05, 1 / 3).columns("cost")])
    recorded = tables.as_recorded(table, STEM, "blocks")
    assert recorded.iloc[0].to_dict() == {
        "model": "a", "block": 0, "cost": 0.123, "cost_low": 0.05, "cost_high": 0.333,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (blocks(unheard=[1, 2]), "unheard.*columns.yaml"),
        (blocks(r2=[1.0, math.inf]), "r2 is infinite in row 1"),
        (blocks(r2=[1.0, 2.0]).assign(block=0), "two rows have the same model, block"),
    ],
)
def test_what_is_no_tidy_table_is_refused(table, says):
    with pytest.raises(InputError, match=says):
        tables.as_recorded(table, STEM, "blocks")


def test_writing_replaces_the_folder_and_leaves_what_is_known_of_the_run(tmp_path):
    written(tmp_path, blocks=blocks(r2=[1, 2]), costs=blocks(cost=[1, 2]))
    known = numbers.load(tmp_path / STEM / tables.RUN) | {"commit": "abc"}
    (tmp_path / STEM / "run.json").write_text(json.dumps(known))
    found = written(tmp_path, {"seed": 1}, blocks=blocks(r2=[1, 3]))
    assert set(found) == {"blocks"}
    assert found.run == {"commit": "abc", "settings": {"seed": 1}}
    with pytest.raises(SourceError, match="no table 'costs': blocks"):
        found["costs"]


def test_an_empty_table_keeps_its_columns(tmp_path):
    found = written(tmp_path, blocks=blocks(r2=[1, 2]).iloc[:0])
    assert list(found["blocks"].columns) == ["model", "block", "r2"]
    assert len(found["blocks"]) == 0


def test_a_folder_may_be_a_string(tmp_path, monkeypatch):
    monkeypatch.setattr(tables.paths, "ROOT", tmp_path / "checkout")
    for folder, count in (("mine", 1), ("out/results", 2), ("checkout/results/public", 3)):
        written(tmp_path / folder, blocks=blocks(count=[count, count]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, count in (("public", 3), ("mine", 1), ("./mine", 1), ("~/mine", 1), ("out/results", 2)):
        assert tables.results(name, STEM)["blocks"]["count"][0] == count
    for name in ("nowhere/results", "~no-one/results"):
        with pytest.raises(SourceError, match=f"no results in .*{name}"):
            tables.results(name, STEM)
    for name in ("", "..", "a\0b"):
        with pytest.raises(InputError, match="give a name"):
            tables.results(name, STEM)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("a,1,0.25\n", "a,1", "is cut off"),
        ("0.25\n", "0.2", "is cut off"),
        ("a,1,0.25\n", "a,1,0.25,7\n", "more cells than the header"),
        ("a,1,", "a,0,", "two rows have the same model, block"),
    ],
)
def test_a_table_that_was_cut_or_edited_is_no_other_table(tmp_path, before, after, says):
    """A program that edits tables may put a byte order mark first and end lines as Windows does; no more."""
    found = written(tmp_path, blocks=blocks(r2=[0.5, 0.25]))["blocks"]
    path = tmp_path / STEM / "blocks.csv"
    text = path.read_text()
    path.write_text("\ufeff" + text, encoding="utf-8", newline="\r\n")
    pd.testing.assert_frame_equal(tables.read(tmp_path / STEM)["blocks"], found)
    path.write_text(text.replace(before, after))
    with pytest.raises(SourceError, match=says):
        tables.read(tmp_path / STEM)


def test_missing_and_damaged_results_say_what_to_do(tmp_path):
    with pytest.raises(SourceError, match=f"run notebook {STEM} first"):
        tables.read(tmp_path / STEM)
    written(tmp_path, blocks=blocks(count=[1, 2]))
    path = tmp_path / STEM / "blocks.csv"
    path.write_text(path.read_text().replace(",2\n", ",two\n"))
    with pytest.raises(SourceError, match="make them again"):
        tables.read(tmp_path / STEM)
    (tmp_path / STEM / "run.json").write_text("{")
    path.unlink()
    with pytest.raises(SourceError) as caught:
        tables.read(tmp_path / STEM)
    assert str(caught.value).count("make them again") == 1


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (blocks(r2=[0.5, 0.5009]), []),
        (blocks(r2=[0.5, 0.502]), ["blocks, a 1, r2: 0.5 → 0.502"]),
        (blocks(r2=[0.5, np.nan]), ["blocks, a 1, r2: 0.5 → nan"]),
        (blocks(r2=[0.5, 0.5]).iloc[::-1], []),
        (blocks(r2=[0.5, 0.5]).iloc[:1], ["blocks, a 1: gone"]),
        (blocks(r2=[0.5, 0.5], near=[1, 2]), ["blocks: columns model, block, r2 → model, block, r2, near"]),
    ],
)
def test_results_differ_where_a_number_leaves_its_tolerance(tmp_path, new, says):
    old = written(tmp_path / "old", blocks=blocks(r2=[0.5, 0.5]))
    assert tables.differences(old, written(tmp_path / "new", blocks=new)) == says


@pytest.mark.parametrize(("before", "after"), [(0.7, 0.8), (0.8, 0.7), (7.0, 7.7)])
def test_a_step_of_the_tolerance_is_within_it_however_floats_have_it(tmp_path, before, after):
    old, near, far = (
        written(tmp_path / name, blocks=blocks(cost=[0, value]))
        for name, value in [("old", before), ("near", after), ("far", before + 2.1 * (after - before))]
    )
    assert tables.differences(old, near) == []
    assert len(tables.differences(old, far)) == 1


def test_which_of_near_ties_an_extreme_is_of_is_not_compared(tmp_path):
    old, new = (written(tmp_path / str(at), blocks=blocks(near=[at, 0])) for at in (3, 9))
    assert tables.differences(old, new) == []


def test_two_folders_are_compared_as_a_whole(tmp_path, capsys):
    written(tmp_path / "old", blocks=blocks(r2=[0.5, 0.5]))
    written(tmp_path / "same", blocks=blocks(r2=[0.5, 0.5]))
    written(tmp_path / "moved", blocks=blocks(r2=[0.5, 0.6]))
    assert tables.main(str(tmp_path / "old"), str(tmp_path / "same")) == 0
    assert tables.main(str(tmp_path / "old"), str(tmp_path / "moved")) == 1
    assert tables.main(str(tmp_path / "old"), str(tmp_path / "none")) == 1
    assert "02_ceilings: blocks, a 1, r2: 0.5 → 0.6" in capsys.readouterr().out
