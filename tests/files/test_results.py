import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from howlinear.errors import InputError, SourceError
from howlinear.files import results


def test_saved_numbers_are_sorted_rounded_and_carry_versions(tmp_path):
    numbers = {"b": torch.tensor([1.0, 2.0]), "a": math.pi, "c": np.int64(3), "d": None}
    path = results.save(tmp_path / "01_x.json", numbers)
    text = path.read_text()
    loaded = results.load(path)
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert loaded["a"] == 3.142
    assert loaded["b"] == [1.0, 2.0]
    assert loaded["c"] == 3
    assert loaded["d"] is None


def test_the_same_numbers_make_the_same_bytes(tmp_path):
    one = results.save(tmp_path / "a.json", {"x": 1 / 3, "y": [1, 2]}).read_bytes()
    two = results.save(tmp_path / "b.json", {"y": [1, 2], "x": 1 / 3}).read_bytes()
    assert one == two


@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor([0.0, -math.inf])])
def test_numbers_that_are_not_finite_are_refused_by_place(tmp_path, value):
    with pytest.raises(InputError, match=r"results\.blocks\[1\]\.r2.* is (nan|inf|-inf)"):
        results.save(tmp_path / "x.json", {"blocks": [{"r2": 1.0}, {"r2": value}]})
    assert list(tmp_path.iterdir()) == []


def test_objects_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"results\.x is a object"):
        results.save(tmp_path / "x.json", {"x": object()})


def test_missing_and_damaged_results_say_what_to_do(tmp_path):
    with pytest.raises(SourceError, match="run notebook 03_bilinear first"):
        results.load(tmp_path / "03_bilinear.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SourceError, match="make them again"):
        results.load(tmp_path / "bad.json")


@pytest.mark.parametrize(("before", "after"), [(0.7, 0.71), (0.71, 0.7), (0.29, 0.3), (7.0, 7.07)])
def test_a_step_of_the_tolerance_is_within_it_however_floats_have_it(before, after):
    old = {"high": before, "tolerance": {"high": 0.01}}
    assert results.moved(old, old | {"high": after}) == []
    assert results.moved(old, old | {"high": before + 2.1 * (after - before)}) != []


def test_moved_compares_within_the_stated_tolerance():
    old = {"r2": 0.5, "delta": 10.0, "n": 3, "list": [{"r2": 1.0}]}
    old |= {"tolerance": {"delta": 0.1}, "versions": {"torch": "1"}}
    assert results.moved(old, {**old, "r2": 0.5009, "delta": 10.9, "versions": {"torch": "2"}}) == []
    assert results.moved(old, {**old, "r2": 0.502}) == ["r2: 0.5 → 0.502"]
    assert results.moved(old, {**old, "delta": 11.1}) == ["delta: 10.0 → 11.1"]
    assert results.moved(old, {**old, "list": [{"r2": 0.9}]}) == ["list.0.r2: 1.0 → 0.9"]


def test_moved_holds_counts_words_and_keys_exactly():
    old = {"n": 3, "name": "a", "ok": True}
    assert results.moved(old, {"n": 4, "name": "a", "ok": True}) == ["n: 3 → 4"]
    assert results.moved(old, {"n": 3, "name": "b", "ok": True}) == ["name: a → b"]
    assert results.moved(old, {"n": 3, "name": "a", "ok": False}) == ["ok: True → False"]
    assert results.moved(old, {"n": 3, "name": "a", "new": 1}) == ["new: new", "ok: gone"]


def test_moved_leaves_out_which_block_an_extreme_is_of():
    old = {"largest": {"value": 0.4, "note": "block 11", "block": "11"}}
    new = {"largest": {"value": 0.4, "note": "block 5", "block": "5"}}
    assert results.moved(old, new) == ["largest.block: 11 → 5"]


def test_comparing_folders_fails_on_a_moved_or_a_missing_result(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        results.save(folder / "01_x.json", {"r2": 0.5})
    assert results.main(str(old), str(new)) == 0
    results.save(new / "01_x.json", {"r2": 0.6})
    assert results.main(str(old), str(new)) == 1
    assert "01_x.json: r2: 0.5 → 0.6" in capsys.readouterr().out
    (new / "01_x.json").unlink()
    assert results.main(str(old), str(new)) == 1


@pytest.mark.parametrize(
    ("number", "tolerance", "digits", "expected"),
    [
        (0.678654, None, None, 0.6787),
        (39.87654, None, None, 39.88),
        (123456.0, None, None, 123500.0),
        (0.00012345, None, None, 0.0001),  # no finer than FINEST
        (0.00004, None, None, 0.0),
        (-0.00004, None, None, 0.0),
        (0.678654, 0.02, None, 0.68),
        (14.19234, 0.02, None, 14.2),
        (0.678654, 0.1, None, 0.7),
        (0.678654, 1e-9, None, 0.6787),  # a tolerance makes nothing finer
        (1.2345e-14, None, 2, 1.2e-14),
        (123456.0, 0.5, 3, 123000.0),
    ],
)
def test_a_number_is_rounded_to_what_means_something(number, tolerance, digits, expected):
    assert results.rounded(number, tolerance, digits) == expected
    assert results.rounded(expected, tolerance, digits) == expected  # once is enough
    assert math.copysign(1, results.rounded(number, tolerance, digits)) == (
        1 if expected == 0 else math.copysign(1, number)
    )


def test_rounding_reaches_into_frames_arrays_and_mappings():
    frame = pd.DataFrame({"r2": [0.123456, 0.5], "null": [1.26e-9, 0.0], "block": [0, 1], "name": ["a", "b"]})
    found = results.rounded(frame, {"r2": 0.01}, {"null": 1})
    assert found["r2"].tolist() == [0.12, 0.5]
    assert found["null"].tolist() == [1e-9, 0.0]
    assert found["block"].tolist() == [0, 1]
    assert found["name"].tolist() == ["a", "b"]
    assert frame["r2"][0] == 0.123456  # a copy

    tree = {"models": {"a": [{"r2": 0.123456, "rank": 12.3456}]}, "power": np.array([0.98765, 2.0])}
    assert results.rounded(tree, {"rank": 0.1})["models"] == {"a": [{"r2": 0.1235, "rank": 12.0}]}
    np.testing.assert_array_equal(results.rounded(tree, {"power": 0.1})["power"], [1.0, 2.0])
    assert results.rounded(tree, {"models": 0.02})["models"]["a"][0]["r2"] == 0.12


def test_what_is_drawn_from_rounded_numbers_is_what_is_saved(tmp_path):
    numbers = {"blocks": [{"r2": 0.123456, "delta": 3.14159}]}
    tolerance = {"delta": 0.02}
    path = results.save(tmp_path / "x.json", numbers, tolerance)
    assert results.load(path)["blocks"] == results.rounded(numbers, tolerance)["blocks"]


def test_a_result_states_its_tolerance_and_keeps_the_digits_asked_for(tmp_path):
    path = results.save(tmp_path / "x.json", {"delta": 3.14159, "null": 1.26e-9}, {"delta": 0.02}, {"null": 1})
    assert results.load(path) == {"delta": 3.14, "null": 1e-9, "tolerance": {"delta": 0.02}}


def test_of_two_tolerances_the_tightest_counts():
    both, number = ("delta", "r2"), 0.123456
    stated = {"delta": 0.1, "r2": 0.01}
    assert results.rounded({both: number}, stated) == {both: 0.12}
    pd.testing.assert_frame_equal(results.rounded(pd.DataFrame({both: [number]}), stated), pd.DataFrame({both: [0.12]}))
    assert results.rounded({both: number}, digits={"delta": 1, "r2": 2}) == {both: 0.12}
    old = {"delta": {"r2": 0.5}, "tolerance": stated}
    assert results.moved(old, {"delta": {"r2": 0.55}, "tolerance": stated}) == ["delta.r2: 0.5 → 0.55"]


def test_digits_are_of_the_key_in_mappings_too():
    assert results.rounded({"null": 1.26e-9, "r2": 0.123456}, digits={"null": 1}) == {"null": 1e-9, "r2": 0.1235}


def test_rounding_changes_numbers_alone():
    named = {"index": [7, 3], "columns": pd.Index(["r2", "r2"], name="what")}  # a name may be there twice
    frame, expected = (pd.DataFrame([[value, 0.5], [0.25, 1.0]], **named) for value in (0.12345, 0.12))
    pd.testing.assert_frame_equal(results.rounded(frame, 0.01), expected)
    empty = pd.DataFrame(index=[1, 2])
    pd.testing.assert_frame_equal(results.rounded(empty), empty)
    table = np.array([[0.12345, 0.5], [2.0, 3.0]], dtype=np.float32)
    found = results.rounded(table, 0.01)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array([[0.12, 0.5], [2.0, 3.0]], dtype=np.float32))
    assert torch.equal(results.rounded(torch.from_numpy(table), 0.01), torch.from_numpy(found))
    mixed = results.rounded(pd.DataFrame({"x": ["a", 0.12345, None]}, dtype=object), 0.01)
    assert mixed["x"].tolist() == ["a", 0.12, None]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (-10.0, -10.005, []),  # relative to the size of the number, whatever its sign
        (-10.0, -10.02, ["x: -10.0 → -10.02"]),
        (1, 1.0005, []),
        (0.5, "none", ["x: 0.5 → none"]),
        (0.5, None, ["x: 0.5 → None"]),
    ],
)
def test_a_number_is_compared_as_one(before, after, lines):
    assert results.moved({"x": before}, {"x": after}) == lines


def test_a_tolerance_that_changes_is_no_number_that_moved():
    old = {"delta": 1.0, "tolerance": {"delta": 0.1}}
    assert results.moved(old, {"delta": 1.0, "tolerance": {"delta": 0.5}}) == []


def test_a_result_that_is_new_is_told(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old / "01_x.json", new / "01_x.json", new / "02_x.json"):
        results.save(path, {"r2": 0.5})
    assert results.main(str(old), str(new)) == 1
    assert f"02_x.json: {old / '02_x.json'} is missing" in capsys.readouterr().out
