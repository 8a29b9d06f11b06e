import numpy as np
import pytest
import torch

from helpers.reference import half_width, least_squares, normal
from howlinear.core.ceilings import ceiling, moments_of
from howlinear.core.reduced_rank import reduced_rank
from howlinear.errors import InputError
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.models.swap import swap


def two_sides(block, n=400, d=6, seed=0):
    """Rows of a block with unequal input scales and offsets, as train (x, y) and held-out (x, y) with another mean."""
    x = normal(n, d, seed=seed) * torch.logspace(1, -1, d) + 3
    x[n // 2 :] += 0.2
    y = block(x)
    return (x[: n // 2], y[: n // 2]), (x[n // 2 :], y[n // 2 :])


def bent(x, d_out=5):
    """A block that is partly linear."""
    return x @ normal(x.shape[1], d_out, seed=1) + (x @ normal(x.shape[1], d_out, seed=2)).relu()


def by_svd(x, y, rank):
    """Reduced-rank regression on stored rows: the fitted outputs, projected on their own leading right vectors."""
    weight, _, _ = least_squares(x, y)
    centred = np.asarray(x, np.float64) - np.asarray(x).mean(0)
    right = np.linalg.svd(centred @ weight, full_matrices=False)[2][:rank]
    weight = weight @ right.T @ right
    return weight, np.asarray(y).mean(0) - np.asarray(x).mean(0) @ weight


def test_by_hand():
    """Two independent inputs of variance 4 and 1, y = (x₁, x₂): rank 1 keeps the first."""
    x = torch.tensor([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]]).double()
    curve = reduced_rank(moments_of(x, x + 5), moments_of(x, x + 5))
    torch.testing.assert_close(curve.r2, torch.tensor([0, 0.8, 1]).double())
    kept = curve.at(1)
    torch.testing.assert_close(kept.down @ kept.up, torch.tensor([[1.0, 0], [0, 0]]).double())
    torch.testing.assert_close(kept(x), torch.stack([x[:, 0] + 5, torch.full((4,), 5.0).double()], 1))
    assert (curve.r2_low, curve.r2_high) == (None, None)


@pytest.mark.parametrize("d_out", [3, 5, 9])
def test_every_rank_equals_the_svd_of_the_fitted_rows(d_out):
    train, test = two_sides(lambda x: bent(x, d_out))
    curve = reduced_rank(moments_of(*train), moments_of(*test))
    assert len(curve.r2) == min(6, d_out) + 1
    for rank in range(1, len(curve.r2)):
        weight, bias = by_svd(*train, rank)
        mine = curve.at(rank)
        np.testing.assert_allclose(mine.down @ mine.up, weight, rtol=0, atol=1e-10)
        np.testing.assert_allclose(mine.bias, bias, rtol=0, atol=1e-10)
        x, y = (side.numpy() for side in test)
        scored = 1 - np.square(y - x @ weight - bias).sum() / np.square(y - y.mean(0)).sum()
        assert float(curve.r2[rank]) == pytest.approx(scored, abs=1e-11)


def test_rank_zero_is_the_train_mean():
    train, test = two_sides(bent)
    train, test = moments_of(*train), moments_of(*test)
    expected = ceiling(train, test).r2
    curve = reduced_rank(train, test)
    off = test.n * (train.mean_y - test.mean_y).square().sum() / test.syy.sum()
    assert float(curve.r2[0]) == pytest.approx(-float(off), abs=1e-12)
    assert float(off) > 1e-4  # the sides differ, or this shows nothing
    assert float(curve.r2[-1]) == pytest.approx(expected, abs=1e-12)


def test_a_planted_rank_is_found():
    """y of rank 2: two directions explain everything, one does not."""
    train, test = two_sides(lambda x: x @ normal(6, 2, seed=3) @ normal(2, 5, seed=4))
    r2 = reduced_rank(moments_of(*train), moments_of(*test)).r2
    assert float(r2[2]) == pytest.approx(1, abs=1e-12)
    assert float(r2[1]) < 0.999


def test_the_interval_is_the_jackknife_of_rescored_and_refitted_folds():
    (x, y), _ = two_sides(bent, n=480)
    sides = [[moments_of(x[i::8], y[i::8]) for i in start] for start in (range(4), range(4, 8))]
    curve = reduced_rank(*sides)
    trains, tests = sides
    at = [reduced_rank(sum(trains[:i] + trains[i + 1 :]), sum(tests)).r2[2] for i in range(4)]
    at_test = [reduced_rank(sum(trains), sum(tests[:i] + tests[i + 1 :])).r2[2] for i in range(4)]
    half = half_width(at, at_test)
    assert float(curve.r2_high[2] - curve.r2[2]) == pytest.approx(half, rel=1e-6)
    assert float(curve.r2[2] - curve.r2_low[2]) == pytest.approx(half, rel=1e-6)


def test_a_reduced_map_swaps_as_its_module_does(gpt2, rows, ids):
    kept = capture(gpt2, rows)[1]
    found = reduced_rank(kept.train, kept.test).at(7)
    assert found.parameters == 7 * (32 + 32) + 32
    module = found.module()
    assert sum(p.numel() for p in module.parameters()) == found.parameters
    x = normal(4, 5, 32).float()
    torch.testing.assert_close(module(x), found(x), rtol=1e-5, atol=1e-5)
    with swap(gpt2, {1: found}):
        direct = losses(gpt2, ids)
    with swap(gpt2, {1: module}):
        torch.testing.assert_close(losses(gpt2, ids), direct, rtol=1e-5, atol=0)


@pytest.mark.parametrize("rank", [0, -1, 6])
def test_a_rank_that_the_map_cannot_have_is_refused(rank):
    train, test = two_sides(bent)
    curve = reduced_rank(moments_of(*train), moments_of(*test))
    with pytest.raises(InputError, match=f"rank {rank} of a map of width 5: use 1 to 5"):
        curve.at(rank)


def test_outputs_that_are_constant_are_refused():
    (x, y), (x_test, y_test) = two_sides(bent)
    with pytest.raises(InputError, match="outputs are constant over 200 rows"):
        reduced_rank(moments_of(x, y), moments_of(x_test, torch.full_like(y_test, 0.1)))
    with pytest.raises(InputError, match="3 train rows for 6 inputs"):
        reduced_rank(moments_of(x[:3], y[:3]), moments_of(x_test, y_test))


def shares(share):
    """Four independent inputs, y = x, whose variances are 60, 32, 6 and 2 % of all: the ranks are known."""
    x = normal(4_000, 4)
    x = torch.linalg.qr(x - x.mean(0)).Q * torch.tensor([60, 32, 6, 2]).double().sqrt()
    curve = reduced_rank(moments_of(x, x), moments_of(x, x))
    return curve.rank_reaching(share)


@pytest.mark.parametrize(("share", "rank"), [(0.5, 1), (0.61, 2), (0.90, 2), (0.95, 3), (0.99, 4), (1.0, 4)])
def test_the_least_rank_that_reaches_a_share_of_the_full_r2(share, rank):
    assert shares(share) == rank


def test_the_share_is_of_what_the_full_map_explains_not_of_all_variance():
    x = normal(4_000, 4)
    noise = 3 * normal(4_000, 4, seed=5)
    curve = reduced_rank(moments_of(x, 10 * x[:, :1] + noise), moments_of(x, 10 * x[:, :1] + noise))
    assert float(curve.r2[-1]) < 0.95
    assert curve.rank_reaching(0.95) == 1


def test_a_map_that_explains_nothing_has_no_such_rank():
    train, test = two_sides(lambda x: normal(len(x), 5, seed=9), n=60)
    curve = reduced_rank(moments_of(*train), moments_of(*test))
    assert float(curve.r2[-1]) < 0
    assert curve.rank_reaching(0.9) is None


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_a_share_of_the_full_r2_that_is_none_is_refused(share):
    with pytest.raises(InputError, match=f"above 0 and is at most 1, got {share}"):
        shares(share)


def test_the_rank_about_the_train_mean_may_be_lower_by_hand():
    """y = (x₁, x₂) with the held-out rows moved by 3 along x₁: seen from the train mean the first direction is more."""
    x = torch.tensor([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]]).double()
    moved = x + torch.tensor([3.0, 0.0])
    curve = reduced_rank(moments_of(x, x), moments_of(moved, moved))
    # about the held-out mean 16 + 4; about the train mean 16 + 36 + 4, of which the first direction has 52
    torch.testing.assert_close(curve.about_train_mean, torch.tensor([0, 52 / 56, 1]).double())
    assert curve.rank_reaching(0.9) == 2
    assert curve.rank_reaching(0.9, about_train_mean=True) == 1
