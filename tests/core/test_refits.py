"""The fast way to leave folds out against the slow one: elimination, or `fit`, of the sum of all other folds."""

import pytest
import torch

from helpers.reference import normal
from howlinear.core import ceilings, limits
from howlinear.core.ceilings import AffineMap, ceiling, decompose, fit, r2, refits
from howlinear.core.fold_maps import fit_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments

FOLDS, ROWS, WIDTH = 8, 60, 24
TOLERANCE = 1e-9


def latent(rows=ROWS):
    """Independent rows of 2 · 8 folds, shape (16, rows, width)."""
    return normal(2 * FOLDS, rows, WIDTH)


def outputs(z):
    """What a bent block makes of independent rows; it needs every direction."""
    return torch.tanh(z @ normal(WIDTH, 5, seed=1)) + z @ normal(WIDTH, 5, seed=2) / 3 + normal(*z.shape[:2], 5, seed=3)


def ordinary():
    z = latent()
    rotation = torch.linalg.qr(normal(WIDTH, WIDTH, seed=4)).Q
    return (z * torch.logspace(0, -1, WIDTH)) @ rotation + 3, outputs(z)


def layer_norm():
    """float32 rows with one null direction, blurred by rounding."""
    z = latent()
    norm = torch.nn.LayerNorm(WIDTH)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.3, 2, WIDTH))
        norm.bias.copy_(normal(WIDTH, seed=5))
        return norm(z.float()), outputs(z).float()


def constant_in_train_rows():
    x, y = ordinary()
    x[:FOLDS, :, 2] = 0.1
    return x, y


def duplicated_in_train_rows():
    """What of the map lies in a null direction changes the score here, so it has to be the minimum-norm map."""
    x, y = ordinary()
    x[:FOLDS, :, 3] = x[:FOLDS, :, 4] * torch.arange(1, FOLDS + 1).max()
    return x, y


def outputs_of_rounding():
    """Outputs follow the rounding noise of a null direction, and held-out rows vary along it: no map may use it."""
    x, y = layer_norm()
    x = x.double()
    null = (
        1 / torch.linspace(0.3, 2, WIDTH).double()[:, None]
    )  # what `layer_norm` puts out, over its scale, adds up to 0
    y = y + 1e8 * (x @ null)
    x[FOLDS:] += normal(FOLDS, ROWS, 1, seed=8) * null.T
    return x, y


def power_law():
    """The solver's hard case: a spectrum of 24⁴, an offset of 40, a feature of scale 1000 with rare spikes."""
    z = latent()
    x = (z * torch.arange(1, WIDTH + 1).double() ** -2) @ torch.linalg.qr(normal(WIDTH, WIDTH, seed=4)).Q
    x[..., 3] += 40
    x[..., 5] = 1_000 * normal(*x.shape[:2], seed=5) * (normal(*x.shape[:2], seed=6) > 2.5)
    return x.float(), outputs(z).float()


def width_of_a_fold():
    z = latent(WIDTH + 1)
    return z @ normal(WIDTH, WIDTH, seed=4), outputs(z)


def a_massive_row_in_each_fold():
    x, y = ordinary()
    x[:, 0] *= 10
    y[:, 0] *= 1_000
    return x, y


def a_feature_of_one_fold():
    """Without fold 5 feature 2 is constant."""
    x, y = ordinary()
    x[:5, :, 2] = 4.0
    x[6:FOLDS, :, 2] = 4.0
    return x, y


def a_direction_of_one_fold():
    """Without fold 5 feature 2 is the sum of two others."""
    x, y = ordinary()
    others = [fold for fold in range(FOLDS) if fold != 5]
    x[others, :, 2] = x[others, :, 0] + x[others, :, 1]
    return x, y


def a_loud_fold():
    """Fold 5 is so loud in two features that their difference is null; without it, it is not."""
    x, y = ordinary()
    loud = 1e8 * normal(ROWS, 1, seed=5)
    x[5, :, :2] = loud
    return x, y


def nearly_null():
    """Two features so alike that their difference is only just kept.

    Outputs owe it nothing: else rounding alone, of sums in another order, would show in R² in any solver.
    """
    z = latent()
    x = z.clone()
    x[..., 1] = x[..., 0] + 7e-5 * z[..., 1]
    z[..., 1] = z[..., 0]
    return x, outputs(z)


CASES = [
    ordinary,
    layer_norm,
    constant_in_train_rows,
    duplicated_in_train_rows,
    outputs_of_rounding,
    power_law,
    width_of_a_fold,
    a_massive_row_in_each_fold,
    a_feature_of_one_fold,
    a_direction_of_one_fold,
    a_loud_fold,
    nearly_null,
]
OF_FOLD_5 = (a_feature_of_one_fold, a_direction_of_one_fold, a_loud_fold)
"""Cases with a direction that is fold 5's alone: without it, eigenvalues have to tell what is null."""


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request):
    """Moments of the train folds and of the held-out folds, and the folds without which eigenvalues are needed."""
    x, y = request.param()
    folds = [Moments(WIDTH, 5).update(*rows) for rows in zip(x, y, strict=True)]
    return folds[:FOLDS], folds[FOLDS:], [5] if request.param in OF_FOLD_5 else []


@pytest.fixture
def decomposed(monkeypatch):
    """The moments whose eigenvalues were asked for."""
    asked = []

    def counted(moments, *args):
        asked.append(moments)
        return decompose(moments, *args)

    monkeypatch.setattr(ceilings, "decompose", counted)
    return asked


def without(folds, i):
    return sum([*folds[:i], *folds[i + 1 :]])


def slow_refit(train, i, alone):
    """The least-squares map without fold i, off the null directions of all rows; where some are its alone, `fit`'s."""
    rest = without(train, i)
    if i in alone:
        return fit(rest)[0]
    inputs = decompose(sum(train))
    basis = inputs.scale[:, None] * inputs.vectors
    weight = basis @ torch.linalg.solve(basis.T @ rest.sxx @ basis, basis.T @ rest.sxy)
    return AffineMap(weight, rest.mean_y - rest.mean_x @ weight)


def slow(train, test, alone):
    """R²_lin and its limit with their intervals, every map the slow way and every sum fold by fold."""
    whole, _ = fit(sum(train))
    here, in_sample = r2(whole, sum(test)), r2(whole, sum(train))
    refitted, refitted_limits, rescored, rescored_limits = [], [], [], []
    for i in range(FOLDS):
        refit = slow_refit(train, i, alone)
        refitted.append(r2(refit, sum(test)))
        refitted_limits.append(limits.limit(r2(refit, without(train, i)), refitted[-1]))
        rescored.append(r2(whole, without(test, i)))
        rescored_limits.append(limits.limit(in_sample, rescored[-1]))
    limit = Estimate.jackknife(limits.limit(in_sample, here), refitted_limits, rescored_limits)
    return Estimate.jackknife(here, refitted, rescored), limit, in_sample


def test_intervals_are_those_of_the_slow_way(case, decomposed):
    train, test, alone = case
    found = ceiling(train, test)
    assert len(decomposed) == 1 + len(alone)
    here, limit, in_sample = slow(train, test, alone)
    assert (found.interval.low, found.interval.high) == pytest.approx((here.low, here.high), abs=TOLERANCE, rel=0)
    assert (found.r2, found.r2_train) == pytest.approx((here.value, in_sample), abs=TOLERANCE, rel=0)
    if found.limit is not None:
        assert (found.limit.low, found.limit.high) == pytest.approx((limit.low, limit.high), abs=TOLERANCE, rel=0)


def test_maps_are_those_of_the_slow_way(case):
    """Whatever the scale of a weight; and on their own rows they explain what `fit`'s do."""
    train, _, alone = case
    maps = fit_folds(train).refits
    for i, (affine, moments) in enumerate(refits(train, decompose(sum(train)))):
        assert moments.n == without(train, i).n
        assert torch.equal(affine.weight, maps[i].weight)
        expected = slow_refit(train, i, alone)
        scale = moments.sxx.diagonal().sqrt()[:, None]
        difference = scale * (affine.weight - expected.weight)
        assert difference.abs().max() < 1e-6 * (scale * expected.weight).abs().max()
        assert r2(affine, moments) == pytest.approx(r2(fit(moments)[0], moments), abs=TOLERANCE, rel=0)
