"""A larger sample of a stored capture: whole sequences from every fold, the rows that the model has there."""

import pytest
import torch

from conftest import BLOCKS
from howlinear.instrument.capture import capture
from howlinear.instrument.resample import resampled
from howlinear.instrument.store import load_capture, save_capture
from howlinear.text.rows import TokenRows


@pytest.fixture(scope="module")
def rows():
    """64 sequences of 16 tokens, three folds a side."""
    ids = torch.randint(80, (64, 16), generator=torch.Generator().manual_seed(5))
    return TokenRows.from_ids(ids, folds=3)


@pytest.fixture
def stored(gpt2, rows, tmp_path):
    path = tmp_path / "capture.safetensors"
    save_capture(path, capture(gpt2, rows, sample=32), rows, {})
    return load_capture(path)


def test_the_sample_is_what_a_capture_of_all_these_rows_would_hold(gpt2, rows, stored):
    found = resampled(stored, gpt2, rows.count // 2)
    assert list(found) == list(range(BLOCKS))
    assert len(found) == BLOCKS
    fewer = rows.thinned(rows.count // 2)
    for block, expected in capture(gpt2, fewer, sample=fewer.count).items():
        theirs, ours = expected.rows(), found[block].rows()
        for name in ("x", "y"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-5, rtol=1e-4)
        for name in ("test", "fold", "position", "token"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_moments_and_heavy_rows_stay_those_of_all_rows(gpt2, rows, stored):
    found, kept = resampled(stored, gpt2, rows.count // 2)[1], stored.blocks[1]
    assert sum(moments.n for moments in [*found.train, *found.test]) == rows.count
    assert torch.equal(sum(found.train).sxx, sum(kept.train).sxx)
    assert found.heavy_rows().median == kept.heavy_rows().median
    assert resampled(stored, gpt2, None) is stored.blocks
