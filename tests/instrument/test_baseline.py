import numpy as np
import pytest
import torch

from conftest import BLOCKS, tiny
from howlinear.core.ceilings import fit, r2
from howlinear.instrument.baseline import Baseline, baseline
from howlinear.instrument.capture import capture, capture_batches
from howlinear.models.load import untrained
from howlinear.text.rows import TokenRows


@pytest.fixture
def many(ids):
    """128 sequences of 16 tokens."""
    generator = torch.Generator().manual_seed(1)
    return TokenRows.from_ids(torch.randint(0, int(ids.max()) + 1, (128, 16), generator=generator), folds=2)


def test_a_bracket_by_hand():
    found = Baseline(np.array([-0.2, 0.3]), np.array([0.6, 0.32]), 1_000)
    assert found.apart == pytest.approx(0.8)
    np.testing.assert_allclose(found.middle, [0.2, 0.31])


def test_both_ends_are_those_of_a_plain_fit_on_all_rows(gpt2, many):
    found = baseline(gpt2, many, seed=1, apart=0.0)
    assert found.rows == many.count
    for block, kept in capture(untrained(gpt2, 1), many).items():
        affine, _ = fit(sum(kept.train))
        assert found.held_out[block] == pytest.approx(r2(affine, sum(kept.test)), abs=1e-6)
        assert found.in_sample[block] == pytest.approx(r2(affine, sum(kept.train)), abs=1e-6)
    assert (found.held_out < found.in_sample).all()


def test_of_many_folds_the_moments_of_each_side_are_kept_as_one(gpt2, many, monkeypatch):
    kept = []

    def noting(*args, **options):
        captured = capture_batches(*args, **options)
        kept.extend(captured.values())
        return captured

    monkeypatch.setattr("howlinear.instrument.baseline.capture_batches", noting)
    baseline(gpt2, many, first=512, apart=0.0)
    assert kept
    assert all(len(block.train) == len(block.test) == 1 for block in kept)


def test_rows_double_until_both_ends_meet(gpt2, many):
    counts = []
    for apart in (1.0, 0.0):
        counts.append(baseline(gpt2, many, first=512, apart=apart).rows)
    assert counts == [512, 2_048]
    brackets = [baseline(gpt2, many, first=first, apart=1.0).apart for first in (512, 2_048)]
    assert brackets[1] < brackets[0]


def test_seeds_are_other_models(gpt2, many):
    one, same, other = (baseline(gpt2, many, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.held_out, same.held_out)
    assert np.abs(one.held_out - other.held_out).min() > 1e-5
    assert len(one.held_out) == BLOCKS


def test_a_random_product_of_projections_looks_less_than_linear_only_for_want_of_rows(many):
    """A SwiGLU block before training: few rows put its held-out R² below its in-sample R² by more than many do."""
    llama = tiny("mini-llama")
    few = baseline(llama, many.subset(torch.arange(64)), apart=0.0)
    all_rows = baseline(llama, many, apart=0.0)
    assert all_rows.apart < few.apart
    assert ((few.held_out < all_rows.middle) & (all_rows.middle < few.in_sample)).all()
