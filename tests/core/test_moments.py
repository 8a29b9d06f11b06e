import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from howlinear.core.ceilings import ceiling, moments_of
from howlinear.core.moments import Moments, add_gram, effective_rank, participation_ratio, tensor_of
from howlinear.errors import InputError

NAMES = ("mean_x", "mean_y", "sxx", "sxy", "syy")


def random_rows(n, d_in=5, d_out=3, seed=0, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    x = offset + torch.randn(n, d_in, generator=generator, dtype=torch.float64)
    return x, torch.tanh(x - offset) @ torch.randn(d_in, d_out, generator=generator, dtype=torch.float64) + offset


def assert_same(one, other, tolerance=1e-10):
    """Equal to `tolerance` of each moment's largest entry."""
    assert one.n == other.n
    for name in NAMES:
        a, b = getattr(one, name), getattr(other, name)
        assert (a - b).abs().max() <= tolerance * b.abs().max(), name


def test_by_hand():
    moments = moments_of(torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([[0.0], [3.0], [3.0]]))
    assert (moments.n, moments.d_in, moments.d_out) == (3, 1, 1)
    assert moments.mean_x.tolist() == [3]
    assert moments.mean_y.tolist() == [2]
    assert moments.sxx.tolist() == [[14]]  # 4 + 1 + 9
    assert moments.sxy.tolist() == [[6]]  # (−2)(−2) + (−1)(1) + (3)(1)
    assert moments.syy.tolist() == [6]  # 4 + 1 + 1


@pytest.mark.parametrize("d_in", [3, 255, 256, 301])  # widths that are and are not multiples of a BLAS block
def test_equals_numpy_on_stored_rows(d_in):
    x, y = random_rows(40, d_in, 4, offset=3)
    moments = moments_of(x, y)
    covariance = np.cov(np.hstack([x, y]), rowvar=False, bias=True) * 40
    np.testing.assert_allclose(moments.sxx, covariance[:d_in, :d_in], rtol=0, atol=1e-11)
    np.testing.assert_allclose(moments.sxy, covariance[:d_in, d_in:], rtol=0, atol=1e-11)
    np.testing.assert_allclose(moments.syy, covariance.diagonal()[d_in:], rtol=0, atol=1e-11)


def test_all_is_float64_whatever_the_rows():
    x, y = random_rows(10)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        moments = moments_of(x.to(dtype), y.to(dtype))
        assert {getattr(moments, name).dtype for name in NAMES} == {torch.float64}
        assert_same(moments, moments_of(x.to(dtype).double(), y.to(dtype).double()), 1e-12)


@given(
    cuts=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 2**31), offset=st.sampled_from([0, 1, 40, 1e4])
)
@settings(deadline=None, max_examples=40)
def test_any_chunking_and_order_gives_the_same_moments(cuts, seed, offset):
    x, y = random_rows(60, seed=seed, offset=offset)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    chunked = Moments(5, 3)
    edges = [0, *sorted(cuts), 60]
    for start, stop in pairwise(edges):
        chunked.update(x[order[start:stop]], y[order[start:stop]])
    assert_same(chunked, moments_of(x, y))


def test_adding_equals_moments_of_all_rows_and_leaves_the_operands():
    (x1, y1), (x2, y2) = random_rows(30), random_rows(50, seed=1, offset=7)
    a, b = moments_of(x1, y1), moments_of(x2, y2)
    before = [a.copy(), b.copy()]
    both = a + b
    both.update(x1, y1)
    assert_same(a, before[0], 0)
    assert_same(b, before[1], 0)
    assert_same(a + b, moments_of(torch.cat([x1, x2]), torch.cat([y1, y2])))


def test_sum_of_a_list_starts_from_nothing_and_changes_no_operand():
    parts = [moments_of(*random_rows(20, seed=seed)) for seed in range(3)]
    first = parts[0].copy()
    total = sum(parts)
    assert_same(total, parts[0] + parts[1] + parts[2], 1e-12)
    alone = sum(parts[:1])
    alone.update(*random_rows(5))
    assert_same(parts[0], first, 0)


def test_no_rows_add_nothing():
    moments = moments_of(*random_rows(20))
    before = moments.copy()
    moments.update(torch.empty(0, 5), torch.empty(0, 3))
    assert_same(moments + Moments(5, 3), before, 1e-12)
    assert_same(Moments(5, 3) + moments, before, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (30, 7), (70, 40), (20, 300)])
def test_a_gram_matrix_is_added_and_stays_symmetric(n, d, dtype):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=dtype)
    gram = torch.full((d, d), 3.0, dtype=dtype)
    add_gram(gram, rows)
    exact = 3 + rows.double().numpy().T @ rows.double().numpy()
    np.testing.assert_allclose(gram.numpy(), exact, rtol=0, atol=40 * torch.finfo(dtype).eps * np.abs(exact).max())
    assert torch.equal(gram, gram.T)  # one half is a copy of the other


def test_a_part_of_a_matrix_is_added_to_in_its_place():
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = torch.zeros(30, 30, dtype=torch.float64)
    add_gram(whole[5:25, 5:25], rows)
    add_gram(whole[5:25, 5:25], torch.cat([rows, rows], 1)[:, 20:])
    torch.testing.assert_close(whole[5:25, 5:25], 2 * rows.T @ rows, rtol=1e-13, atol=1e-13)


def test_another_device_multiplies_to_the_same(monkeypatch):
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    here, there = torch.eye(20, dtype=torch.float64), torch.eye(20, dtype=torch.float64)
    add_gram(here, rows)
    monkeypatch.setattr("howlinear.core.moments.on_cpu", lambda rows: False)
    add_gram(there, rows)
    torch.testing.assert_close(here, there, rtol=1e-13, atol=1e-13)


def test_tensors_are_the_way_to_a_file_and_back(tmp_path):
    from safetensors.torch import load_file, save_file

    moments = moments_of(*random_rows(20))
    save_file(moments.tensors(), tmp_path / "m.safetensors")
    again = Moments.from_tensors(load_file(tmp_path / "m.safetensors"))
    assert_same(again, moments, 0)
    assert_same(again.update(*random_rows(5)), moments.update(*random_rows(5)), 1e-12)


def test_moments_on_a_device_are_independent_of_the_original_and_in_main_memory_themselves():
    moments = moments_of(*random_rows(20))
    before = moments.copy()
    moments.to("cpu").update(*random_rows(5, seed=1))
    assert_same(moments, before, 0)
    assert moments.cpu() is moments


@pytest.mark.parametrize(
    "values", [[float("nan")], [float("inf")], [float("-inf")], [float("inf"), float("-inf")], [1e200]]
)
@pytest.mark.parametrize("side", [0, 1])
def test_values_that_are_not_finite_are_refused_and_nothing_is_added(values, side):
    """Opposite infinities too, and finite values whose squares overflow."""
    moments = moments_of(*random_rows(20))
    before = moments.copy()
    bad = random_rows(10, seed=1)
    bad[side][4 : 4 + len(values), 1] = torch.tensor(values).double()
    with pytest.raises(InputError, match="NaN or infinity among 10 rows"):
        moments.update(*bad)
    assert_same(moments, before, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e200])
@pytest.mark.parametrize("side", [0, 1])
def test_on_a_device_values_that_are_not_finite_are_found_whatever_follows(monkeypatch, value, side):
    """Nothing is read there before somebody asks, and what came in never gets out again."""
    monkeypatch.setattr(sys.modules["howlinear.core.moments"], "on_cpu", lambda rows: False)
    good, bad = moments_of(*random_rows(20)), random_rows(10, seed=1)
    assert good.finite
    assert good.checked() is good
    bad[side][4, 1] = value
    spoilt = good.copy().update(*bad)
    later = spoilt.copy().update(*random_rows(50, seed=2)).update(*bad)
    for moments in (spoilt, later, spoilt + good, good + spoilt, spoilt + spoilt, moments_of(*bad)):
        assert not moments.finite
        with pytest.raises(InputError, match=f"NaN or infinity among {moments.n} rows"):
            moments.checked()
        with pytest.raises(InputError, match="NaN or infinity among"):
            ceiling(good, moments)
        with pytest.raises(InputError, match="NaN or infinity among"):
            ceiling(moments, good)


@pytest.mark.parametrize(("x", "y"), [((4, 6), (4, 3)), ((4, 5), (4, 2)), ((4, 5), (3, 3)), ((4, 5), None)])
@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_fit_are_refused(x, y):
    moments = Moments(5, 3)
    with pytest.raises(InputError, match=r"rows of shape .* do not fit moments of \(5, 3\)"):
        moments.update(torch.zeros(x), None if y is None else torch.zeros(y))
    assert moments.n == 0


def test_rows_taken_away_leave_the_others_and_the_operands():
    x, y = random_rows(40, offset=5)
    whole, some = moments_of(x, y), moments_of(x[:7], y[:7])
    assert_same(whole - some, moments_of(x[7:], y[7:]))
    assert (whole.n, some.n) == (40, 7)
    with pytest.raises(InputError, match="cannot take 40 rows from 40: none would remain"):
        whole - whole


def test_moments_of_other_widths_are_neither_added_nor_taken_away():
    with pytest.raises(InputError, match=r"cannot add moments of \(5, 3\) and \(4, 3\) features"):
        Moments(5, 3) + Moments(4, 3)
    with pytest.raises(InputError, match=r"cannot take moments of \(4, 3\) features from \(5, 3\)"):
        Moments(5, 3) - Moments(4, 3)


@pytest.mark.parametrize("other", [1, "a", None])
def test_only_nothing_and_moments_are_added_and_taken_away(other):
    for together in (lambda: other + Moments(5, 3), lambda: Moments(5, 3) + other, lambda: Moments(5, 3) - other):
        with pytest.raises(TypeError):
            together()


@pytest.mark.parametrize("widths", [(0, 3), (-1, 3), (2, -1), ("a", 3), (2, 1.5)])
def test_impossible_widths_are_refused(widths):
    with pytest.raises(InputError, match="d_in ≥ 1 and d_out ≥ 0"):
        Moments(*widths)


@pytest.mark.usefixtures("unchecked")
def test_arrays_are_taken_as_well():
    rows = np.random.default_rng(0).standard_normal((50, 3))
    moments = Moments(3).update(rows)
    assert effective_rank(moments.sxx.numpy()) == effective_rank(moments.sxx)
    np.testing.assert_allclose(moments.sxx, np.cov(rows.T) * 49, rtol=1e-12)
    with pytest.raises(InputError, match=r"shape \(50, 3\)"):
        effective_rank(rows)
    with pytest.raises(InputError, match="holds no numbers"):
        effective_rank("x")
    odd = [np.full((3, 3), value) for value in (0.0, np.nan, np.inf)]
    odd.append([[1.0, 2.0], [2.0, 1.0]])  # λ = 3 and −1
    for no_covariance in (rows[:3], -moments.sxx, np.zeros((0, 0)), *odd):
        with pytest.raises(InputError, match="symmetric"):
            effective_rank(no_covariance)
    assert participation_ratio(-1e-18 * torch.eye(3)) == pytest.approx(3)  # what rounding leaves of rows taken away
    values = np.linalg.eigvalsh(1000 * moments.sxx.half().double())  # whose squares are beyond half precision
    assert effective_rank((1000 * moments.sxx).half()) == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-3)


def test_an_array_that_cannot_be_written_to_is_read_without_a_warning(recwarn):
    rows = np.ones((3, 2))
    rows.setflags(write=False)
    torch.set_warn_always(True)
    try:
        assert tensor_of(rows).tolist() == rows.tolist()
    finally:
        torch.set_warn_always(False)
    assert not recwarn.list


@given(seed=st.integers(0, 2**31), d=st.integers(1, 12))
@settings(deadline=None, max_examples=20)
def test_effective_rank_is_between_one_and_the_width(seed, d):
    x, _ = random_rows(30, d, seed=seed)
    values = np.linalg.eigvalsh((x.T @ x).numpy())
    assert effective_rank(x.T @ x) == pytest.approx(values.sum() ** 2 / np.square(values).sum(), rel=1e-10)
    assert 1 - 1e-12 <= effective_rank(x.T @ x) <= d + 1e-12


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_effective_rank_knows_no_unit(unit):
    """Variances of 2, 1 and 1: (2 + 1 + 1)² / (4 + 1 + 1)."""
    assert effective_rank(unit * torch.diag(torch.tensor([2.0, 1.0, 1.0]).double())) == pytest.approx(16 / 6)


def test_rows_with_gradients_leave_no_graph():
    x, y = random_rows(20)
    moments = Moments(5, 3).update(x.requires_grad_(), y)
    assert not any(tensor.requires_grad for tensor in moments.tensors().values())


def test_moments_know_the_coarsest_rows_they_saw():
    def eps_of(moments):
        return moments.eps_x, moments.eps_y

    x, y = random_rows(20)
    double, single, half = (torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32, torch.bfloat16))
    assert eps_of(Moments(5, 3)) == (0, 0)
    assert eps_of(moments_of(x, y)) == (double, double)
    mixed = moments_of(x, y) + moments_of(x, y.float())
    assert eps_of(mixed) == (double, single)
    assert eps_of(mixed - moments_of(x, y)) == (double, single)
    assert eps_of(mixed.update(x.bfloat16(), y)) == (half, single)
    assert eps_of(Moments.from_tensors(mixed.tensors())) == eps_of(mixed)
    without = {name: part for name, part in mixed.tensors().items() if name != "eps"}
    assert eps_of(Moments.from_tensors(without)) == (single, single)


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_are_exact():
    moments = Moments(1).update(torch.tensor([[1], [2], [6]]))
    assert (moments.sxx.item(), moments.eps_x) == (14, 0)
