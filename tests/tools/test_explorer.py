import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.reference import least_squares, pooled_r2, r2_by_feature
from howlinear.core.moments import Moments
from howlinear.errors import InputError, SourceError
from howlinear.files import paths, tables
from howlinear.instrument.capture import BlockCapture, capture
from howlinear.instrument.store import save_capture
from howlinear.notebook import run as notebooks
from howlinear.text.rows import TokenRows
from tools.book import explorer


def kept_of(x, y, folds=4):
    """A block's capture from rows: the first half to fit on, the second held out, each in folds."""

    def moments(x, y):
        parts = zip(x.chunk(folds), y.chunk(folds), strict=True)
        return [Moments(x.shape[1], y.shape[1]).update(*part) for part in parts]

    half = len(x) // 2
    sides = moments(x[:half], y[:half]), moments(x[half:], y[half:])
    return BlockCapture(*sides, Moments(y.shape[1]).update(y[half:]), None)


@pytest.fixture
def rows():
    """Rows of a block: its first output is linear, its second a square, the others a mixture."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(800, 6, generator=generator, dtype=torch.float64)
    mixed = x @ torch.randn(6, 3, generator=generator, dtype=torch.float64) + x[:, :3].square()
    return x, torch.cat([3 * x[:, :1], 2 * x[:, 1:2].square(), mixed], 1)


def test_a_block_by_hand():
    """y = (2x₁, x₁²) on x₁ = ±1, ±2 in equal parts: the first is linear, the second is not; of variance 10 and 2.25."""
    x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]).double().repeat(8, 1)
    found = explorer.row(kept_of(x, torch.cat([2 * x, x.square()], 1)))
    assert found["features"] == [1.0, 0.0]
    assert found["median"] == 0.5  # of two: interpolated
    assert found["r2"] == pytest.approx(10 / 12.25, abs=1e-4)
    assert found["rank"] == pytest.approx(12.25**2 / (10**2 + 2.25**2), abs=0.01)
    assert (found["ranks"], found["curve"]) == ([0, 1], [0.0, pytest.approx(10 / 12.25, abs=1e-3)])
    assert found["condition"] == 0


def test_a_block_equals_least_squares_on_stored_rows(rows):
    x, y = rows
    found = explorer.row(kept_of(x, y))
    weight, bias, _ = least_squares(x[:400], y[:400])
    assert found["r2"] == pytest.approx(pooled_r2(x[400:], y[400:], weight, bias), abs=6e-5)  # four digits are kept
    assert found["low"] < found["r2"] < found["high"]
    slow = np.sort(r2_by_feature(x[400:], y[400:], weight, bias))[::-1]
    assert found["features"] == pytest.approx(slow, abs=6e-4)
    assert found["features"][0] == 1
    assert found["condition"] == pytest.approx(np.log10(np.linalg.cond(x[:400] - x[:400].mean(0))), abs=0.01)
    assert found["curve"][-1] == pytest.approx(found["r2"], abs=1e-3)
    assert found["ranks"] == list(range(6))


def test_a_constant_feature_has_no_r2_and_is_left_out(rows):
    x, y = rows
    found = explorer.row(kept_of(x, torch.cat([y, torch.ones(len(y), 1).double()], 1)))
    assert len(found["features"]) == y.shape[1]


@given(st.integers(1, 3000), st.booleans())
def test_few_places_have_both_ends_and_are_in_order(count, steep):
    places = explorer.few(count, steep)
    assert places[0] == 0
    assert places[-1] == count - 1
    assert places == sorted(set(places))
    assert len(places) <= explorer.POINTS
    if count <= explorer.POINTS and not steep:
        assert len(places) == count


def test_few_steep_places_are_close_together_at_the_start():
    assert explorer.few(769, steep=True)[:9] == list(range(9))
    assert np.diff(explorer.few(769, steep=True))[-1] > 20


@pytest.fixture
def run(gpt2, rows, tmp_path, monkeypatch):
    """A profile of one model and two texts, captured."""
    for name in ("BUILD", "ROOT"):
        monkeypatch.setattr(paths, name, tmp_path)
    return notebooks.Run("explorer", "tiny", {"one": "nowhere"}, ["docs", "code"], 1024, 32, 0, 16)


@pytest.fixture
def measured(run, gpt2):
    for seed, corpus in enumerate(run.corpora):
        ids = torch.randint(80, (24, 32), generator=torch.Generator().manual_seed(seed))
        rows = TokenRows.from_ids(ids, folds=3)
        about = {"sizes": run.sizes, "sources": run._sources("one", corpus), "perplexity": 1.0, "model": "one"}
        save_capture(run.capture_path("one", corpus), capture(gpt2, rows), rows, about)
    blocks = pd.DataFrame({"model": "one", "block": range(3), "dppl": [0.123, 1.123, 2.123]})
    tables.write(paths.results("tiny") / "02_ceilings", {"blocks": blocks}, {})
    return run


def test_collect_has_a_row_for_every_block_of_every_text(measured):
    found = explorer.collect(measured)
    assert [(row["model"], row["corpus"], row["block"]) for row in found] == [
        ("one", corpus, block) for corpus in ("docs", "code") for block in range(3)
    ]
    assert [row["delta"] for row in found] == [0.123, 1.123, 2.123, None, None, None]
    assert found[0]["r2"] != found[3]["r2"]  # the texts differ
    kept = measured.capture("one", "code").blocks[1]
    assert found[4].items() >= explorer.row(kept).items()


def test_main_writes_what_collect_finds(measured, monkeypatch):
    monkeypatch.setattr(notebooks, "start", lambda *_: measured)
    explorer.main("tiny")
    written = json.loads((paths.build("tiny") / "explorer.json").read_text())
    assert written["blocks"] == explorer.collect(measured)


def test_without_notebook_02_there_is_no_cost_to_show(run):
    with pytest.raises(SourceError, match="run notebook 02_ceilings first"):
        explorer.collect(run)


def test_a_block_that_cannot_be_fitted_says_so(rows):
    x, y = rows
    with pytest.raises(InputError, match="train rows for 6 inputs"):
        explorer.row(kept_of(x[:12], y[:12], folds=2))
