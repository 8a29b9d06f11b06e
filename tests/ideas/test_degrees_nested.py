"""What notebook 10's modules promise beside their answers: train rows alone, ridges, offsets, order, small parts."""

from dataclasses import astuple, replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import PolynomialFeatures

from helpers.planted_neurons import block_of, captured, sides_of
from helpers.reference import held_out_r2, normal
from howlinear.core.ceilings import AffineMap, ceiling
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.degrees.nested import nested, prefix_maps
from howlinear.ideas.degrees.products import Products, gaussian, learning_curve, polynomial, products, score
from howlinear.ideas.degrees.spectrum import degrees, features, plant_teacher

gelu = torch.nn.functional.gelu


def far(n=400, d=6):
    """float32 inputs of spread 0.01 about 1000, which a map in float32 cannot tell apart to better than 1 %."""
    return (1_000 + 0.01 * normal(n, d)).float().double()


# --- features


def test_features_and_teachers_come_from_train_rows_alone():
    x, block = normal(800, 5), block_of(gelu)
    other = torch.where((torch.arange(800) % 4 == 3)[:, None], 9 * x + 5, x)  # the held-out rows are another's
    kept, spoilt = captured(x, block(x)), captured(other, block(other))
    mine, theirs = features(kept, block), features(spoilt, block)
    for name in ("centre", "whiten", "adds", "order"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    assert torch.equal(mine.gate.weight, theirs.gate.weight)
    assert torch.equal(mine.gate.bias, theirs.gate.bias)
    assert torch.equal(plant_teacher(kept, block, 2)[1](x), plant_teacher(spoilt, block, 2)[1](x))


def test_features_are_of_standardised_preactivations_and_of_inputs_without_null_directions():
    x, block = normal(800, 5) @ normal(5, 5, seed=1) + 3, block_of(gelu)
    x[:, 4] = x[:, 0] - x[:, 1]
    kept = captured(x, block(x))
    found, ((train, _), _) = features(kept, block), sides_of(kept)
    z = found.gate(train)
    torch.testing.assert_close(z.mean(0), torch.zeros_like(z[0]), atol=1e-9, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones_like(z[0]))
    assert found.sizes == [4, 8, 12, 16]
    plain = found(train)[:, :4]
    torch.testing.assert_close(plain.T @ plain / len(plain), torch.eye(4, dtype=torch.float64))


def test_few_rows_for_the_polynomials_are_spread_over_all(monkeypatch):
    """The rows of the first fold are so near one point that the activation is straight there."""
    x, block = normal(1_600, 5), block_of(gelu)
    first = torch.arange(1_600) // 4 % 4 == 0
    x[first] = 1 + 0.01 * x[first]
    kept = captured(x, block(x))
    whole = features(kept, block, 2).adds
    monkeypatch.setattr("howlinear.ideas.degrees.spectrum.FIT_ROWS", 200)
    torch.testing.assert_close(features(kept, block, 2).adds, whole, atol=0.1, rtol=0)


def test_chunks_change_nothing(monkeypatch):
    x, block = normal(800, 5), block_of(gelu, gated=True)
    kept = captured(x, block(x))
    found, adds = degrees(kept, block), features(kept, block).adds
    monkeypatch.setattr("howlinear.ideas.degrees.spectrum.CHUNK", 70)
    monkeypatch.setattr("howlinear.ideas.degrees.nested.CHUNK", 30)
    torch.testing.assert_close(features(kept, block).adds, adds, atol=1e-4, rtol=1e-4)
    pd.testing.assert_frame_equal(degrees(kept, block), found, atol=1e-6)


@pytest.mark.parametrize("gated", [False, True])
def test_neurons_are_in_order_of_what_their_bends_add_to_the_outputs(gated):
    """Neuron 2 is the loudest by far, but where its activation is straight."""
    x, block = normal(2_000, 5), block_of(gelu, gated=gated)
    bias, weight, out = block.gate.bias.clone(), block.gate.weight.clone(), block.out.weight.clone()
    bias[2], weight[:, 2], out[2] = 12, 1e-3 * weight[:, 2], 50 * out[2]
    block = replace(block, gate=AffineMap(weight, bias), out=replace(block.out, weight=out))
    kept = captured(x, block(x))
    found, ((train, _), _) = features(kept, block, 2, free=True), sides_of(kept)
    loud = found(train)[:, found.sizes[0] :].square().sum(0) * out[found.order].square().sum(1)
    assert (loud.diff() <= 0).all()
    assert sorted(found.order.tolist()) == list(range(7))
    assert found.order[-1] == 2


def test_a_gated_neuron_whose_up_is_nothing_is_no_trouble():
    x, block = normal(800, 5), block_of(gelu, gated=True)
    up = AffineMap(block.up.weight.clone(), block.up.bias.clone())
    up.weight[:, 2], up.bias[2] = 0, 0
    block = replace(block, up=up)
    kept = captured(x, block(x))
    assert (features(kept, block).adds[..., 2] == 0).all()
    assert 0.9 < degrees(kept, block).r2[3] < 1


# --- nested least squares


def test_a_ridge_is_relative_to_each_features_variance():
    x = normal(300, 2) * torch.tensor([0.01, 100.0]) + 3
    for column in (x[:, :1], x[:, 1:]):
        moments = Moments(1, 1).update(column, 5 * column)
        assert prefix_maps(moments, [1], 0.25)[0].weight.item() == pytest.approx(4, abs=1e-9)


def test_a_feature_that_varies_by_rounding_alone_gets_no_weight():
    x = torch.cat([normal(50, 1), 7 + 1e-7 * normal(50, 1, seed=1)], 1)
    (found,) = prefix_maps(Moments(2, 1).update(x, normal(50, 1, seed=2)), [2], ridge=0.0)
    assert found.weight[1] == 0
    assert found.weight[0] != 0


def test_an_offset_costs_no_precision():
    """An exact line of inputs far from 0 is found exactly, its interval too; outputs may lie far off as well."""
    x = far()
    line = (x - 1_000) @ (100 * normal(6, 3, seed=2))
    kept, block = captured(x, line), block_of(gelu, d=6)
    for found in (nested(kept, lambda x: x, [6]), degrees(kept, block, 2)):
        assert found.r2[0] == pytest.approx(1, abs=1e-9)
        assert 0 <= found.r2_high[0] - found.r2_low[0] < 2e-8
    curve = learning_curve(kept, gaussian, [50])
    assert curve[0].r2.value == pytest.approx(1, abs=1e-9)
    kept = captured(x, 1e6 + line + normal(400, 3, seed=3))
    found, known = nested(kept, lambda x: x, [6]), ceiling(kept.train, kept.test)
    ends = (known.r2, known.r2_low, known.r2_high)
    assert found.loc[0].tolist() == pytest.approx(ends, abs=1e-7)


def test_a_score_is_in_double_precision():
    y = (1e6 + normal(400, 2)).float()
    guess = y.double() + 0.7 * normal(400, 2, seed=1)
    error, spread = (np.square(part.numpy()).sum() for part in (y - guess, y.double() - y.double().mean(0)))
    assert score(y.split(100), guess.split(100)).value == pytest.approx(1 - error / spread, abs=1e-9)


def test_the_interval_of_a_score_leaves_out_each_fold_of_rows_in_turn():
    truth = [normal(20 + 10 * i, 3, seed=i) + i for i in range(4)]
    guess = [y + 0.1 * (i + 1) * normal(len(y), 3, seed=10 + i) for i, y in enumerate(truth)]

    def r2_of(folds):
        y = torch.cat([truth[i] for i in folds])
        error = y - torch.cat([guess[i] for i in folds])
        return float(1 - error.square().sum() / (y - y.mean(0)).square().sum())

    everything = range(4)
    without_each = [r2_of([i for i in everything if i != left]) for left in everything]
    expected = Estimate.jackknife(r2_of(everything), without_each)
    assert astuple(score(truth, guess)) == pytest.approx(astuple(expected), abs=1e-12)


def test_two_rows_more_than_features_are_enough():
    kept = captured(normal(40, 5), normal(40, 2))  # 21 train rows without the largest fold
    waves = normal(5, 20, seed=1)
    assert np.isfinite(nested(kept, lambda x: torch.cos(x @ waves.to(x))[:, :19], [19]).r2).all()
    with pytest.raises(InputError, match=r"21 train rows, one fold left out, for 20 features.*at least 22"):
        nested(kept, lambda x: torch.cos(x @ waves.to(x)), [20])


# --- kernels and products


def test_the_ridge_is_chosen_on_validation_rows_and_carried_to_the_last():
    x = normal(800, 4)
    clean, noisy = (captured(x, x[:, :2].prod(1, keepdim=True) + noise * normal(800, 1, seed=5)) for noise in (0, 2))
    for kept, ridge in ((clean, 1e-6), (noisy, 1.0)):
        curve = learning_curve(kept, polynomial(2), [100, 200], (1e-6, 1.0))
        assert [(point.rows, point.ridge) for point in curve] == [(100, ridge), (200, ridge)]

    # the last takes the ridge before it, and ridges do not add up
    grid = np.geomspace(1e-3, 10, 60).tolist()
    before, last = learning_curve(noisy, polynomial(2), [30, 400], grid)
    (alone,) = learning_curve(noisy, polynomial(2), [400], grid)
    assert last.ridge == before.ridge != alone.ridge
    again = learning_curve(noisy, polynomial(2), [400], [alone.ridge])[0]
    assert again.r2.value == pytest.approx(alone.r2.value, abs=1e-12)


def test_an_input_that_varies_by_rounding_alone_is_nothing_to_a_kernel():
    x = normal(400, 3)
    still = 7 + 1e-6 * normal(400, 1, seed=1)
    y = torch.tanh(x[:, :2] * 2)
    same, noisy = (captured(torch.cat([x, last], 1), y) for last in (torch.full_like(still, 7), still))
    expected, found = (learning_curve(kept, gaussian, [200], [1e-3])[0].r2.value for kept in (same, noisy))
    assert expected > 0.9
    assert found == pytest.approx(expected, abs=1e-6)


def test_products_are_of_the_loudest_directions_of_the_train_rows():
    """Held-out rows are loud elsewhere; the list of the first k directions' products is written down."""
    x = normal(1_200, 4) * torch.tensor([4.0, 3, 2, 1]) @ torch.linalg.qr(normal(4, 4, seed=1))[0] + 1
    x[3::4] = x[3::4].flip(1)
    kept = captured(x, torch.stack([x[:, 0] * x[:, 1], x[:, 2] ** 2 + x[:, 3]], 1))
    (train, _), _ = sides_of(kept)
    white = Products.of(sum(kept.train)).white(train)
    torch.testing.assert_close(white.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
    scale = train.std(0, correction=0)
    pca = PCA().fit(train / scale)  # directions of the correlation matrix, the loudest first
    found = products(kept, [1, 2, 3])
    for k, value in zip((1, 2, 3), found.r2, strict=True):

        def listed(x, k=k):
            lead = torch.from_numpy(pca.transform(x / scale))[:, :k]
            return np.concatenate([x, PolynomialFeatures(2, include_bias=False).fit_transform(lead)[:, k:]], 1)

        assert value == pytest.approx(held_out_r2(*sides_of(kept, listed)), abs=1e-5)
    assert found.r2[0] != pytest.approx(found.r2[1], abs=1e-2)
    assert products(kept, [0]).r2[0] == pytest.approx(ceiling(kept.train, kept.test).r2, abs=1e-6)
