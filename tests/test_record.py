import json
import math

import numpy as np
import pytest
import torch

from howlinear import record
from howlinear.errors import InputError, SourceError


def test_saved_numbers_are_sorted_rounded_and_carry_versions(tmp_path):
    numbers = {"b": torch.tensor([1.0, 2.0]), "a": math.pi, "c": np.int64(3), "d": None}
    path = record.save(tmp_path / "01_x.json", numbers)
    text = path.read_text()
    loaded = record.load(path)
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert loaded["a"] == 3.141593
    assert loaded["b"] == [1.0, 2.0]
    assert loaded["c"] == 3
    assert loaded["d"] is None
    assert loaded["versions"]["torch"] == torch.__version__


def test_the_same_numbers_make_the_same_bytes(tmp_path):
    one = record.save(tmp_path / "a.json", {"x": 1 / 3, "y": [1, 2]}).read_bytes()
    two = record.save(tmp_path / "b.json", {"y": [1, 2], "x": 1 / 3}).read_bytes()
    assert one == two


@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor([0.0, -math.inf])])
def test_numbers_that_are_not_finite_are_refused_by_place(tmp_path, value):
    with pytest.raises(InputError, match=r"results\.blocks\[1\]\.r2.* is (nan|inf|-inf)"):
        record.save(tmp_path / "x.json", {"blocks": [{"r2": 1.0}, {"r2": value}]})
    assert list(tmp_path.iterdir()) == []


def test_objects_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"results\.x is a object"):
        record.save(tmp_path / "x.json", {"x": object()})


def test_missing_and_damaged_results_say_what_to_do(tmp_path):
    with pytest.raises(SourceError, match="run notebook 03_bilinear first"):
        record.load(tmp_path / "03_bilinear.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SourceError, match="make them again"):
        record.load(tmp_path / "bad.json")


def test_moved_compares_within_the_stated_tolerance():
    old = {"r2": 0.5, "delta": 10.0, "n": 3, "list": [{"r2": 1.0}]}
    old |= {"tolerance": {"delta": 0.1}, "versions": {"torch": "1"}}
    assert record.moved(old, {**old, "r2": 0.5009, "delta": 10.9, "versions": {"torch": "2"}}) == []
    assert record.moved(old, {**old, "r2": 0.502}) == ["r2: 0.5 → 0.502"]
    assert record.moved(old, {**old, "delta": 11.1}) == ["delta: 10.0 → 11.1"]
    assert record.moved(old, {**old, "list": [{"r2": 0.9}]}) == ["list.0.r2: 1.0 → 0.9"]


def test_moved_holds_counts_words_and_keys_exactly():
    old = {"n": 3, "name": "a", "ok": True}
    assert record.moved(old, {"n": 4, "name": "a", "ok": True}) == ["n: 3 → 4"]
    assert record.moved(old, {"n": 3, "name": "b", "ok": True}) == ["name: a → b"]
    assert record.moved(old, {"n": 3, "name": "a", "ok": False}) == ["ok: True → False"]
    assert record.moved(old, {"n": 3, "name": "a", "new": 1}) == ["new: new", "ok: gone"]


def test_comparing_folders_fails_on_a_moved_or_a_missing_result(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        record.save(folder / "01_x.json", {"r2": 0.5})
    assert record.main(str(old), str(new)) == 0
    record.save(new / "01_x.json", {"r2": 0.6})
    assert record.main(str(old), str(new)) == 1
    assert "01_x.json: r2: 0.5 → 0.6" in capsys.readouterr().out
    (new / "01_x.json").unlink()
    assert record.main(str(old), str(new)) == 1
    assert record.main(str(tmp_path / "none"), str(tmp_path / "none")) == 1
