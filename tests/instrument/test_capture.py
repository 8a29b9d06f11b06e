import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import howlinear as hl
from conftest import BLOCKS, WIDTH, logits, tiny
from helpers.unit_rows import hush
from howlinear.core import moments
from howlinear.instrument import massive
from howlinear.instrument.capture import Collector, capture, describe, hooked
from howlinear.instrument.profile import solve
from howlinear.instrument.store import block_tensors
from howlinear.models.layers import stack_of
from howlinear.text.rows import TokenRows, batches, draw


def whole(model, rows, **options):
    """A capture whose sample is every row."""
    return capture(model, rows, sample=rows.ids.numel(), **options)


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_rows_are_bit_for_bit_what_the_model_computes(model, rows):
    """As hooks of torch see them in passes with the head, of the same batches."""
    captured, in_order = whole(model, rows), batches(rows, 16)
    back = torch.cat(in_order).argsort()
    for site in hl.sites(model):
        seen = []
        with site.input.register_forward_hook(lambda _, args, output, seen=seen: seen.append((args[0], output))):
            for batch in in_order:
                logits(model, rows.ids[batch])
        x, y = (torch.cat(each)[back].flatten(0, 1) for each in zip(*seen, strict=True))
        assert torch.equal(captured[site.block].sample.x, x)
        assert torch.equal(captured[site.block].sample.y, y)


def test_logits_are_the_same_before_during_and_after(model, rows):
    before = logits(model, rows.ids)
    passes = []
    with hooked(hl.sites(model), lambda site, x, y: passes.append((site.block, x.shape, y.shape))):
        assert torch.equal(logits(model, rows.ids), before)
    shape = (*rows.ids.shape, WIDTH)
    assert passes == [(block, shape, shape) for block in range(BLOCKS)]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    capture(model, rows, sample=10)
    assert torch.equal(logits(model, rows.ids), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert hooks(model) == 0


@pytest.mark.parametrize("kind", ["ffn", "attention", "layer"])
def test_a_block_that_writes_over_its_input_is_measured_on_what_it_was_given(kind, rows, monkeypatch):
    model = tiny("mini-gpt2")
    (site,) = hl.sites(model, [1], kind)
    forward = site.input.forward
    seen = []
    for clamp in (torch.clamp, torch.clamp_):  # a copy is clamped, or what was given
        changed = lambda x, *rest, clamp=clamp, **named: forward(clamp(x, -0.5, 0.5), *rest, **named)  # noqa: E731
        monkeypatch.setattr(site.input, "forward", changed)
        with hooked([site], lambda _, x, y: seen.append((x.clone(), y.clone()))):
            logits(model, rows.ids)
    (x, y), (x_over, y_over) = seen
    assert torch.equal(x, x_over)
    assert torch.equal(y, y_over)
    assert x.abs().max() > 0.5


def test_a_block_called_by_keywords_is_measured_on_its_first_parameter(rows, monkeypatch):
    model = tiny("mini-gpt2")
    expected = whole(model, rows)[1].sample.x
    mlp = model.transformer.h[1].mlp
    forward, call = mlp.forward, type(mlp).__call__
    monkeypatch.setattr(mlp, "forward", lambda rows, beside=None: forward(rows))

    def by_keywords(self, x):
        return call(self, beside=torch.zeros_like(x), rows=x) if self is mlp else call(self, x)

    monkeypatch.setattr(type(mlp), "__call__", by_keywords)
    assert torch.equal(whole(model, rows)[1].sample.x, expected)


def test_moments_are_those_of_each_folds_rows_and_of_the_held_out_outputs(model, rows):
    in_fold, held_out = rows.fold.repeat_interleave(32), rows.test.repeat_interleave(32)
    for found in whole(model, rows).values():
        for side, parts in ((False, found.train), (True, found.test)):
            assert len(parts) == 3
            for fold, part in enumerate(parts):
                mine = (in_fold == fold) & (held_out == side)
                x, y = found.sample.x[mine].double(), found.sample.y[mine].double()
                x, y = x - x.mean(0), y - y.mean(0)
                assert part.n == len(x) == (192 if not side else 64)
                np.testing.assert_allclose(part.sxx, x.T @ x, rtol=0, atol=1e-10 * (x.T @ x).abs().max())
                np.testing.assert_allclose(part.sxy, x.T @ y, rtol=0, atol=1e-10 * (x.T @ y).abs().max())
                np.testing.assert_allclose(part.syy, y.square().sum(0), rtol=1e-10)
        y = found.sample.y[held_out].double()
        expected = np.cov(y, rowvar=False, bias=True) * len(y)
        assert found.outputs.n == len(y)
        np.testing.assert_allclose(found.outputs.sxx, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_the_sample_is_bounded_seeded_and_the_right_rows(gpt2, rows):
    few, again, other = (capture(gpt2, rows, sample=50, seed=seed) for seed in (3, 3, 4))
    drawn, _ = draw(rows, 50, seed=3)
    place = torch.arange(rows.count)
    for block, found in whole(gpt2, rows).items():
        assert torch.equal(found.sample.position, place % 32)
        assert torch.equal(found.sample.token, rows.ids.flatten())
        assert torch.equal(found.sample.test, rows.test[place // 32])
        assert torch.equal(found.sample.fold, rows.fold[place // 32])
        for name, values in vars(found.sample).items():
            assert torch.equal(getattr(few[block].sample, name), values[drawn]), name
        assert torch.equal(few[block].sample.x, again[block].sample.x)
        assert not torch.equal(few[block].sample.x, other[block].sample.x)


@pytest.mark.parametrize(("test", "side"), [(True, "held-out"), (False, "train")])
def test_a_sample_of_one_fold_has_none_to_leave_out(gpt2, rows, test, side):
    block = capture(gpt2, rows, 0, sample=100)[0]
    assert block.rows_in_folds() is block.sample
    one = torch.where(block.sample.test == test, 0, block.sample.fold)
    with pytest.raises(hl.InputError, match=f"the sample's {side} rows need two document folds"):
        replace(block, sample=replace(block.sample, fold=one)).rows_in_folds()
    with pytest.raises(hl.InputError, match="none were sampled: capture with sample=4096"):
        replace(block, sample=None).rows_in_folds()


def test_layers_behind_the_last_chosen_block_do_not_run(model, rows):
    stack = model.get_submodule(stack_of(model))
    capture(model, rows, blocks=[1])  # a model's first pass is whole: it shows whether a layer runs again
    passes = [0] * BLOCKS
    for number, layer in enumerate(stack):

        def count(*_, number=number):
            passes[number] += 1

        layer.register_forward_hook(count)
    capture(model, rows, blocks=[1])
    assert passes[0] == passes[1] > 0
    assert not any(passes[2:])
    assert hooks(model) == BLOCKS
    hl.losses(model, rows.ids)  # and the model is whole again
    assert passes[-1] > 0


def test_sequences_may_come_in_any_order_and_folds_have_gaps(gpt2, rows):
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    shuffled = TokenRows(rows.ids[order], rows.test[order], 10 * rows.fold[order])
    one, other = capture(gpt2, rows)[1], whole(gpt2, shuffled)[1]
    assert torch.equal(other.sample.token, shuffled.ids.flatten())
    for a, b in zip(one.train + one.test, other.train + other.test, strict=True):
        np.testing.assert_allclose(a.sxy, b.sxy, rtol=0, atol=1e-5 * a.sxy.abs().max())


def test_what_is_captured_goes_on_as_any_tensors(gpt2, rows):
    """Moments take more rows, and a sample can be learned from."""
    found = capture(gpt2, rows, sample=64)[0]
    train, sample = found.train[0], found.sample
    n = train.n
    assert train.update(torch.zeros(4, WIDTH), torch.zeros(4, WIDTH)).n == n + 4
    weight = torch.zeros(WIDTH, WIDTH, requires_grad=True)
    (sample.x @ weight - sample.y).square().mean().backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_weight_that_is_not_a_number_is_found_in_its_block(gpt2, rows, block):
    with torch.no_grad():
        next(hl.sites(gpt2)[block].output.parameters()).view(-1)[5] = float("nan")
    name = hl.sites(gpt2)[block].name.replace(".", r"\.")
    with pytest.raises(hl.InputError, match=rf"at block {block} \({name}\), in the batch of sequences \[0, "):
        capture(gpt2, rows)
    assert hooks(gpt2) == 0


@pytest.fixture
def elsewhere(monkeypatch):
    """As on a device: no number is read while batches run."""
    monkeypatch.setattr(moments, "on_cpu", lambda rows: False)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_is_not_finite_on_a_device_is_found_in_the_end(gpt2, rows, monkeypatch, block, value):
    """One number of one held-out batch; the blocks before, and other folds, are as they were."""
    late, update, seen = int((rows.test & (rows.fold == 1)).nonzero()[0]), hl.Moments.update, []

    def spoilt(self, x, y=None):
        if y is None:  # outputs alone
            return update(self, x)
        seen.append(len(x))
        if len(seen) == 4 * BLOCKS + block + 1:  # the fifth of six batches
            y = y.clone()
            y[3, 2] = value
        return update(self, x, y)

    monkeypatch.setattr(hl.Moments, "update", spoilt)
    name = hl.sites(gpt2)[block].name
    said = rf"NaN or infinity among the rows at block {block} \({re.escape(name)}\), in the batch of sequences \[{late}"
    with pytest.raises(hl.InputError, match=rf"{said}[, 0-9]*\]: this model overflows on this text in torch\.float32"):
        capture(gpt2, rows)
    assert len(seen) == 6 * BLOCKS
    assert hooks(gpt2) == 0


@pytest.mark.usefixtures("elsewhere")
def test_a_capture_on_a_device_is_that_on_a_cpu(gpt2, rows, monkeypatch):
    found = capture(gpt2, rows)
    monkeypatch.undo()
    for block, kept in capture(gpt2, rows).items():
        tensors = block_tensors(found[block])
        for name, tensor in block_tensors(replace(kept, heavy=None)).items():
            close = 1e-12 * float(tensor.abs().max()) if tensor.numel() else 0
            torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=close)


@pytest.mark.parametrize("held_out", [False, True])
def test_a_side_without_sequences_is_refused(gpt2, ids, held_out):
    rows = TokenRows(ids, torch.full((24,), held_out), torch.zeros(24, dtype=torch.long))
    with pytest.raises(hl.InputError, match=r"held out|to fit on"):
        capture(gpt2, rows)


# --- describe


def test_statistics_of_inputs_are_those_of_the_rows(model, rows):
    found = whole(model, rows)[1]
    x, y = found.sample.x.double(), found.sample.y.double()
    train = x[~found.sample.test]
    statistics = describe(found)
    values = np.linalg.eigvalsh(np.corrcoef(train, rowvar=False))
    norm = model.config.model_type != "llama"  # a LayerNorm has a null direction, RMSNorm none
    assert statistics["rank"] == WIDTH - norm
    assert (statistics["null"] < 1e-12) == norm
    if not norm:
        assert statistics["null"] == pytest.approx(values[0] / values[-1], rel=1e-6)
    singular = np.linalg.svd(train - train.mean(0), compute_uv=False)
    assert statistics["condition"] == pytest.approx(singular[0] / singular[statistics["rank"] - 1], rel=1e-6)
    variances = singular**2
    assert statistics["effective_rank"] == pytest.approx(variances.sum() ** 2 / (variances**2).sum(), rel=1e-9)
    spread = train.std(0)
    assert statistics["dynamic_range"] == pytest.approx((spread.max() / np.median(spread)).item(), rel=0.05)
    first = found.sample.position == 0
    for value, side in ((statistics["first_position_in"], x), (statistics["first_position_out"], y)):
        sizes = side.norm(dim=1)
        assert value == pytest.approx((sizes[first].mean() / sizes[~first].mean()).item(), rel=1e-5)


def test_statistics_need_rows_at_position_zero(gpt2, rows):
    with pytest.raises(hl.InputError, match="none were sampled"):
        describe(capture(gpt2, rows)[0])
    seed = next(s for s in range(50) if (capture(gpt2, rows, [0], 3, s)[0].sample.position > 0).all())
    with pytest.raises(hl.InputError, match="no sampled row is at position 0"):
        describe(capture(gpt2, rows, [0], 3, seed)[0])


# --- devices


@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_a_block_without_an_output_matrix_does_not_vary(model, rows, bias):
    """Whatever vector it writes; and it is such blocks that have no R²_lin."""
    hush(hl.sites(model)[1].ffn, bias=bias)
    captured = capture(model, rows)
    assert [block.varies for block in captured.values()] == [True, False, True]
    assert [block for block, ceiling in hl.measure(model, rows).items() if np.isnan(ceiling.r2)] == [1]


def test_a_block_varies_if_it_does_on_both_sides_whatever_fold_is_left_out(gpt2, rows):
    """One that varies in a single document fold leaves the others solved."""
    (captured,) = capture(gpt2, rows, 0).values()
    assert captured.varies
    for side in ("train", "test"):
        one, other, _ = getattr(captured, side)
        silent = hl.Moments(WIDTH, WIDTH).update(torch.randn(99, WIDTH), torch.ones(99, WIDTH))
        in_one, in_two = (replace(captured, **{side: folds}) for folds in ([one, silent, silent], [one, other, silent]))
        assert not replace(captured, **{side: [silent]}).varies
        assert not in_one.varies
        assert in_two.varies
        solved = solve({0: captured, 1: in_one, 2: in_two})
        assert [np.isnan(each.ceiling.r2) for each in solved.values()] == [False, True, False]


def test_a_model_on_mps_is_refused(gpt2, rows, monkeypatch):
    monkeypatch.setattr(type(gpt2), "device", torch.device("mps"))
    with pytest.raises(hl.InputError, match="float64"):
        hl.measure(gpt2, rows)


class Waits(TorchDispatchMode):
    """Counts operations for whose result Python must wait: a number that is read, a shape that depends on values."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in self.NAMES
        return func(*args, **(kwargs or {}))

    def counted(self, method):
        def read(*args):
            self.count += 1
            return method(*args)

        return read


def test_no_batch_is_waited_for_on_a_device(gpt2, rows, monkeypatch):
    """A block is when all is done, for its finiteness and its heavy rows."""
    for module in (moments, massive):
        monkeypatch.setattr(module, "on_cpu", lambda rows: False)
    keep, counts = Collector.keep, []

    def watched(*args):
        with Waits() as waits, monkeypatch.context() as patch:
            for read in ("cpu", "numpy", "tolist"):  # no operation tells these
                patch.setattr(Tensor, read, waits.counted(getattr(Tensor, read)))
            keep(*args)
        counts.append(waits.count)

    monkeypatch.setattr(Collector, "keep", watched)
    capture(gpt2, rows, batch_size=2)
    assert counts == [0] * 12 * BLOCKS
