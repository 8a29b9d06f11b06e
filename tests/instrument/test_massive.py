"""Massive rows: found in one pass and taken apart from the others; heavy tails without sinks are not flagged."""

import pytest
import torch

from helpers.planted_sinks import SEQ_LEN, D, captured, teacher
from howlinear.core.ceilings import ceiling
from howlinear.errors import InputError
from howlinear.instrument import massive
from howlinear.instrument.massive import HEAVIEST, KEPT, MULTIPLE, HeavyRows, HeavyRowsKeeper
from howlinear.instrument.profile import solve


def test_planted_sinks_are_found_and_nothing_else():
    rows = teacher()
    found = captured(*rows).massive()
    assert len(found) == 256
    assert (found.position == 0).all()
    assert sorted(found.sequence.tolist()) == list(range(256))
    assert (found.norm > MULTIPLE * found.median).all()
    x, y, test, fold, _, _ = rows
    for field, source in (("x", x), ("y", y), ("test", test), ("fold", fold)):
        places = found.sequence * SEQ_LEN + found.position
        assert torch.equal(getattr(found, field), source[places]), field  # copies


def test_the_others_are_what_they_would_be_had_the_sinks_never_come():
    x, y, test, fold, sequence, position = teacher()
    ordinary = captured(x, y, test, fold, sequence, position).ordinary()
    rest = position > 0
    alone = captured(x[rest], y[rest], test[rest], fold[rest], sequence[rest], position[rest])
    for side in ("train", "test"):
        for ours, theirs in zip(getattr(ordinary, side), getattr(alone, side), strict=True):
            assert ours.n == theirs.n
            for name in ("mean_x", "mean_y", "sxx", "sxy", "syy"):
                torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ordinary.outputs.sxx, alone.outputs.sxx, rtol=1e-8, atol=1e-6)


def test_what_is_said_of_a_block_that_sinks_decide():
    block = captured(*teacher())
    answer = solve({0: block})[0]
    alone = captured(*teacher(sink=0.0))
    truth = ceiling(alone.train, alone.test)
    assert answer.massive_rows == 256
    assert answer.ceiling.r2 > 0.95
    assert answer.effective_rank < 1.1
    assert answer.ordinary.r2 == pytest.approx(truth.r2, abs=0.02)  # other inputs, less one row in 32
    assert answer.ordinary.r2 < 0.8
    assert answer.ordinary_effective_rank > 3
    assert answer.rests_on_massive_rows


def test_heavy_tails_without_sinks_are_not_flagged():
    answer = solve({0: captured(*teacher(sink=0.0, heavy_tails=True))})[0]
    assert answer.massive_rows > 0  # some rows are that heavy
    assert not answer.rests_on_massive_rows


def test_a_block_without_massive_rows_is_its_own_ordinary_one():
    answer = solve({0: captured(*teacher(sink=0.0))})[0]
    assert (answer.massive_rows, answer.rests_on_massive_rows) == (0, False)
    assert answer.ordinary is answer.ceiling


def test_the_heaviest_are_those_of_a_sort_of_all_rows():
    x, y, *rest = teacher(sink=0.0, heavy_tails=True)
    heavy = captured(x, y, *rest).heavy_rows()
    norm = y.norm(dim=1)
    expected = norm.sort(descending=True).values
    assert len(heavy) == int((norm > KEPT * heavy.median).sum()) + HEAVIEST
    torch.testing.assert_close(heavy.norm, expected[: len(heavy)])
    assert torch.equal(heavy.heaviest(7).y, heavy.y[:7])


@pytest.mark.parametrize("batch", [64, 500])
def test_size_of_batches_changes_nothing(batch):
    rows = teacher(sink=0.0, heavy_tails=True)
    one = captured(*rows).heavy_rows()
    other = captured(*rows, batch=batch).heavy_rows()
    assert torch.equal(one.norm, other.norm)
    assert len(one.beyond()) == int((rows[1].norm(dim=1) > MULTIPLE * one.median).sum()) > 0
    assert one.median == other.median == pytest.approx(float(rows[1].norm(dim=1).median()), rel=1e-6)


def test_a_first_batch_of_louder_rows_than_all_others_costs_at_most_a_factor_of_two():
    x, y, test, fold, *rest = teacher(sink=0.0)
    first_fold = ~test & (fold == 0)
    y[first_fold] *= 6
    heavy = captured(x, y, test, fold, *rest).heavy_rows()
    norm = y.norm(dim=1)
    assert heavy.median == pytest.approx(float(norm[first_fold][:512].median()) / 2, rel=1e-6)
    assert heavy.median > 1.5 * float(norm.median())


def test_parts_merge_to_what_one_pass_keeps():
    rows = teacher()
    sequence = rows[4]
    halves = [captured(*[value[mask] for value in rows]).heavy for mask in (sequence < 128, sequence >= 128)]
    merged = HeavyRows.merged(halves)
    whole = captured(*rows).heavy
    assert merged.median == max(half.median for half in halves)
    assert torch.equal(merged.beyond().norm, whole.beyond().norm)
    assert torch.equal(merged.norm, whole.norm[: len(merged)])
    assert len(merged) == merged.most


def test_on_a_device_batches_wait_and_the_same_rows_are_kept(monkeypatch):
    rows = teacher()
    at_once = captured(*rows, batch=64).heavy
    monkeypatch.setattr(massive, "on_cpu", lambda rows: False)
    later = captured(*rows, batch=64).heavy
    for name, tensor in at_once.tensors().items():
        assert torch.equal(tensor, later.tensors()[name]), name


def test_what_was_not_kept_is_refused():
    block = captured(*teacher())
    with pytest.raises(InputError, match="rows beyond 4 medians: all rows are kept beyond 5 only"):
        block.heavy_rows().beyond(4.0)
    with pytest.raises(InputError, match="the -1 heaviest rows"):
        block.heavy_rows().heaviest(-1)
    with pytest.raises(InputError, match=f"the 100000 heaviest rows: {HEAVIEST + 256} were kept"):
        block.heavy_rows().heaviest(100_000)
    with pytest.raises(InputError, match="only moments were kept"):
        block.ordinary().massive()


def kept(y):
    """The heavy rows of outputs that come in one batch."""
    keeper, place = HeavyRowsKeeper(), torch.arange(len(y))
    keeper.update(torch.ones(len(y), D).to(y), y, torch.zeros_like(place), place, False, 0)
    return keeper.finish()


def test_all_massive_rows_are_kept_however_many():
    heavy = captured(*teacher(sequences=HEAVIEST + 128)).heavy_rows()
    found = heavy.beyond()
    assert len(found) == HEAVIEST + 128
    assert (found.position == 0).all()
    assert len(heavy) - len(found) >= HEAVIEST  # and rows that are not massive beside them


def test_of_a_small_batch_a_row_is_kept_and_of_a_block_that_writes_nothing_as_many_as_of_any_other():
    assert kept(torch.tensor([[1.0], [3.0], [2.0]])).position.tolist() == [1]
    assert kept(torch.zeros(8, D)).norm.tolist() == [0, 0]


def test_rows_of_a_half_precision_model_are_kept_in_float32():
    y = torch.randn(64, D, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = kept(y)
    assert {tensor.dtype for tensor in (found.x, found.y, found.norm)} == {torch.float32}
    assert torch.equal(found.norm, y.float().norm(dim=1).sort(descending=True).values[:16])
