import numpy as np
import pytest
import torch

from conftest import BLOCKS
from helpers.families import reads, small
from howlinear.core.ceilings import fit, r2
from howlinear.instrument.baseline import Baseline, baseline, brackets
from howlinear.instrument.capture import capture
from howlinear.instrument.distributed import capture_together
from howlinear.instrument.measure import measure
from howlinear.models.load import load_on_disk, untrained
from howlinear.text.rows import TokenRows


@pytest.fixture
def many(ids):
    """128 sequences of 16 tokens."""
    generator = torch.Generator().manual_seed(1)
    return TokenRows.from_ids(torch.randint(0, int(ids.max()) + 1, (128, 16), generator=generator), folds=2)


def test_a_bracket_by_hand():
    found = Baseline(np.array([-0.2, 0.3]), np.array([0.6, 0.32]), 1_000, [0, 1])
    assert found.apart == pytest.approx(0.8)


def test_both_ends_are_those_of_a_plain_fit_on_all_rows(gpt2, many):
    *_, found = brackets(gpt2, many, seed=1)
    assert found.rows == many.count
    assert found.blocks == list(range(BLOCKS))
    for block, kept in capture(untrained(gpt2, 1), many).items():
        affine, _ = fit(sum(kept.train))
        assert found.held_out[block] == pytest.approx(r2(affine, sum(kept.test)), abs=1e-6)
        assert found.in_sample[block] == pytest.approx(r2(affine, sum(kept.train)), abs=1e-6)
    assert (found.held_out < found.in_sample).all()
    *_, some = brackets(gpt2, many, seed=1, blocks=[2, 0])
    assert some.blocks == [0, 2]
    np.testing.assert_array_equal(some.held_out, found.held_out[[0, 2]])


def test_of_many_folds_the_moments_of_each_side_are_kept_as_one(gpt2, many, monkeypatch):
    kept = []

    def noting(*args, **options):
        captured = capture_together(*args, **options)
        kept.extend(captured.values())
        return captured

    monkeypatch.setattr("howlinear.instrument.baseline.capture_together", noting)
    assert list(brackets(gpt2, many, first=512))
    assert kept
    assert all(len(block.train) == len(block.test) == 1 for block in kept)


def test_rows_double_until_both_ends_meet(gpt2, many, monkeypatch):
    counts = []
    for apart in (1.0, 0.0):
        monkeypatch.setattr("howlinear.instrument.baseline.APART", apart)
        counts.append(baseline(gpt2, many, first=512).rows)
    assert counts == [512, 2_048]
    few, _, all_rows = brackets(gpt2, many, first=512)
    assert all_rows.apart < few.apart


# --- layer by layer


def materialised(fresh):
    """The same weights in a whole model."""
    whole = type(fresh)(fresh.config).eval()
    names = fresh.state_dict(keep_vars=True).items()
    whole.load_state_dict({name: fresh.howlinear_shards.read(name, like) for name, like in names})
    return whole


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert"])
def test_weights_that_are_drawn_layer_by_layer_are_measured_as_in_a_whole_model(name, tmp_path, monkeypatch):
    small(name).save_pretrained(tmp_path)
    on_disk = load_on_disk(tmp_path)
    rows = TokenRows.from_ids(reads(name, n=192)["input_ids"], folds=4)
    options = {"seed": 5, "first": rows.count // 4}
    found = list(brackets(on_disk, rows, **options))
    *_, of_one = brackets(on_disk, rows, **options, blocks=[1])
    np.testing.assert_array_equal(of_one.held_out, found[-1].held_out[[1]])
    whole = materialised(untrained(on_disk, 5))
    monkeypatch.setattr("howlinear.instrument.baseline.untrained", lambda *_: whole)
    expected = list(brackets(whole, rows, **options))
    assert len(found) == len(expected) > 1
    for mine, plain in zip(found, expected, strict=True):
        assert mine.rows == plain.rows
        np.testing.assert_allclose(mine.held_out, plain.held_out, rtol=0, atol=1e-9)
        np.testing.assert_allclose(mine.in_sample, plain.in_sample, rtol=0, atol=1e-9)


def test_drawn_weights_are_the_same_in_every_pass(tmp_path):
    """Body, head and swaps read a layer again."""
    small("llama").save_pretrained(tmp_path)
    fresh = untrained(load_on_disk(tmp_path), 1)
    rows = TokenRows.from_ids(reads("llama", n=96)["input_ids"])
    found, expected = (measure(model, rows, swap=True) for model in (fresh, materialised(fresh)))
    assert found.perplexity == pytest.approx(expected.perplexity, rel=1e-9)
    for block, plain in expected.items():
        assert found[block].r2 == pytest.approx(plain.r2, abs=1e-9)
        assert found.costs[block].delta == pytest.approx(expected.costs[block].delta, rel=1e-5)
