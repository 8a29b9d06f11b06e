"""Numbers in JSON: rounded once, the same bytes again, finite."""

import json

import numpy as np
import pytest
import torch

from howlinear.errors import InputError, SourceError
from howlinear.files import numbers


def test_what_is_saved_is_rounded_sorted_and_read_back(tmp_path):
    content = {"r2": np.float64(2 / 3), "a": torch.tensor([1.0, 12345.678]), "n": 123456, "text": "é", "none": None}
    path = numbers.save(tmp_path / "x.json", content)
    assert numbers.load(path) == {"r2": 0.6667, "a": [1.0, 12350.0], "n": 123456, "text": "é", "none": None}
    assert list(json.loads(path.read_text())) == sorted(content)
    again = numbers.save(tmp_path / "y.json", dict(reversed(content.items())))
    assert again.read_bytes() == path.read_bytes()
    assert numbers.load(numbers.save(tmp_path / "z.json", numbers.load(path))) == numbers.load(path)  # once is enough


@pytest.mark.parametrize(
    ("number", "digits", "kept"),
    [
        (0.123456, None, 0.1235),
        (1.23456e-5, None, 0.0),
        (1.23456e-5, 2, 1.2e-5),
        (-0.00004, None, 0.0),
        (99995.0, None, 100000.0),
        (0.0, 1, 0.0),
        (1.26e-12, 1, 1e-12),
    ],
)
def test_a_number_keeps_four_digits_and_four_places_or_the_digits_stated(tmp_path, number, digits, kept):
    stated = {} if digits is None else {"errors": digits}
    found = numbers.load(numbers.save(tmp_path / "x.json", {"errors": {"a": [number]}}, stated))["errors"]["a"]
    assert found == [kept]
    assert str(found[0])[0] != "-"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1}])
def test_what_is_no_finite_number_is_refused_and_nothing_written(tmp_path, value):
    with pytest.raises(InputError, match=r"numbers.blocks\[0\].r2"):
        numbers.save(tmp_path / "x.json", {"blocks": [{"r2": value}]})
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for name in ("bad.json", "list.json", "absent.json"):
        with pytest.raises(SourceError, match=f"cannot read numbers from .*{name}"):
            numbers.load(tmp_path / name)


def test_a_byte_order_mark_that_windows_puts_first_is_none_of_the_numbers(tmp_path):
    (tmp_path / "x.json").write_text('\ufeff{"r2": 0.5}', encoding="utf-8")
    assert numbers.load(tmp_path / "x.json") == {"r2": 0.5}
