"""What a block would be on Gaussian inputs: by hand, by closed forms, on a fine grid, and on drawn rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PolynomialFeatures
from torch.nn.functional import gelu, silu

from conftest import WIDTH
from helpers.planted_neurons import block_of, captured, sides_of
from helpers.reference import held_out_r2, normal
from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.gaussian import Hidden, hermite, predict_spectrum
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.controls.inputs import Colour
from howlinear.ideas.controls.inputs import gaussian as gaussian_rows
from howlinear.ideas.controls.weights import respond
from howlinear.instrument.capture import capture
from howlinear.models.ffn_sites import sites
from howlinear.models.units import take_apart

BLOCKS = [
    pytest.param(gelu, False, id="GELU"),
    pytest.param(torch.relu, False, id="ReLU"),
    pytest.param(silu, False, id="SiLU"),
    pytest.param(silu, True, id="SwiGLU"),
    pytest.param(gelu, True, id="GEGLU"),
    pytest.param(torch.relu, True, id="ReGLU"),
]


def moments_with(mean, covariance):
    """Moments of inputs that have exactly this mean and covariance."""
    moments = Moments(len(mean))
    moments.n, moments.mean_x, moments.sxx = 10, mean, 10 * covariance
    return moments


STANDARD = moments_with(torch.zeros(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64))


def one(activation, mean=0.0):
    """One neuron that reads its input as it comes, mean added."""
    unit, none = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    return Hidden(AffineMap(unit, none + mean), None, activation, AffineMap(unit, none))


def r2_lin(block, moments):
    return predict_spectrum(block, moments, 1)[0]


# --- Hermite's polynomials, and what a neuron sees


def test_hermite_by_hand():
    z = torch.tensor([2.0, -1.0], dtype=torch.float64)
    expected = [z**0, z, (z**2 - 1) / 2**0.5, (z**3 - 3 * z) / 6**0.5, (z**4 - 6 * z**2 + 3) / 24**0.5]
    torch.testing.assert_close(hermite(z, 4), expected)
    assert len(hermite(z, 0)) == 1


def test_spread_of_preactivations_is_that_of_the_rows():
    block, x = block_of(torch.relu), normal(200, 5, seed=9) @ normal(5, 5, seed=8) + 2
    mean, deviation = block.spread(Moments(5).update(x))
    z = block.gate(x)
    torch.testing.assert_close(mean, z.mean(0))
    torch.testing.assert_close(deviation, z.std(0, correction=0))


# --- by hand, and by closed forms


def test_prediction_by_hand():
    """One neuron: z² of z ~ N(μ, 1) is μ² + 1 + 2μ h₁ + √2 h₂, so the shares are 4μ² : 2."""
    block = one(torch.square, mean=0.5)
    np.testing.assert_allclose(predict_spectrum(block, STANDARD, 3), [1 / 3, 1, 1], atol=1e-9)
    gated = replace(block, up=block.gate, activation=lambda z: z)  # u g with u = g: the same function
    np.testing.assert_allclose(predict_spectrum(gated, STANDARD, 3), [1 / 3, 1, 1], atol=1e-9)


# --- planted


def test_what_lies_beyond_the_degrees_added_up_counts():
    """sign(z) has a tenth of its variance there: R²₁ = E[|z|]² = 2/π, and R²₃ one third of a sixth more."""
    found = predict_spectrum(one(torch.sign), STANDARD, 3)
    np.testing.assert_allclose(found, np.array([1, 1, 7 / 6]) * 2 / np.pi, atol=0.01)


def test_degrees_of_a_prediction_end_where_they_are_added_up():
    assert predict_spectrum(one(gelu), STANDARD, 24).shape == (24,)
    with pytest.raises(InputError, match="degree 25: ask for 1 to 24"):
        predict_spectrum(one(gelu), STANDARD, 25)


@pytest.mark.parametrize("gated", [False, True])
def test_a_neuron_that_never_moves_predicts_nothing(gated):
    block, moments = block_of(gelu, gated=gated), Moments(5).update(normal(300, 5))
    weight, out = block.gate.weight.clone(), block.out.weight.clone()
    weight[:, 2], out[2] = 0, 0 if gated else out[2]
    still = replace(block, gate=replace(block.gate, weight=weight), out=replace(block.out, weight=out))
    others = [0, 1, 3, 4, 5, 6]
    part = [AffineMap(side.weight[:, others], side.bias[others]) for side in (block.gate, block.up or block.gate)]
    rest = Hidden(part[0], part[1] if gated else None, gelu, AffineMap(block.out.weight[others], block.out.bias))
    np.testing.assert_allclose(predict_spectrum(still, moments), predict_spectrum(rest, moments), atol=1e-9)


def test_a_preactivation_along_a_null_direction_does_not_spread():
    """The products round to less than nothing there."""
    moments, weight = Moments(2), torch.tensor([[1.0], [-1]], dtype=torch.float64)
    moments.n, moments.sxx = 1, torch.tensor([[1, 1], [1, 1 - 2**-53]], dtype=torch.float64)
    assert (weight.T @ moments.sxx @ weight).item() < 0
    none = AffineMap(weight, torch.zeros(1, dtype=torch.float64))
    assert Hidden(none, None, gelu, none).spread(moments)[1].item() == 0


# --- against the block itself


@pytest.mark.parametrize("width", [1, 30])
@pytest.mark.parametrize(("activation", "gated"), BLOCKS)
def test_the_prediction_is_least_squares_on_a_grid_under_the_density(activation, gated, width):
    """Two inputs, so that all of the Gaussian fits on a grid; at width 30 every bend is as sharp as ReLU's."""
    block = block_of(lambda z: activation(width * z), d=2, m=9, gated=gated, bias=0.6)
    mean, root = torch.tensor([0.4, -0.2], dtype=torch.float64), 0.7 * normal(2, 2, seed=6)
    line = torch.linspace(-7, 7, 601, dtype=torch.float64)
    white = torch.cartesian_prod(line, line)
    density = (-white.square().sum(1) / 2).exp()
    density = (density / density.sum())[:, None]
    # the white coordinates are orthonormal under the density, so that each explains the square of its mean product
    y = block(mean + white @ root)
    y = y - (density * y).sum(0)
    explained = (white.T @ (density * y)).square().sum()
    exact = float(explained / (density * y.square()).sum())
    assert 0.05 < exact < 0.99
    assert r2_lin(block, moments_with(mean, root.T @ root)) == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("gated", [False, True])
def test_on_gaussian_inputs_the_prediction_is_the_full_ceiling(gated):
    """Against all products, by SVD of rows: the prediction saw no row."""
    block = block_of(lambda z: gelu(2 * z), d=3, m=9, gated=gated, bias=0.6)
    x = normal(40_000, 3, seed=5) @ normal(3, 3, seed=6) * 0.7 + 0.4
    kept = captured(x, block(x))
    found = predict_spectrum(block, sum(kept.train), 4)
    for k in (1, 2, 3, 4):
        change = PolynomialFeatures(k, include_bias=False)
        full = held_out_r2(*sides_of(kept, lambda x, change=change: change.fit_transform(x)))
        assert found[k - 1] == pytest.approx(full, abs=0.015)


def test_a_models_prediction_is_the_ceiling_of_its_block_on_normal_rows(model, rows):
    """What notebook 08 holds its normal rows against, for every family."""
    moments = sum(capture(model, rows)[1].train)
    moments.sxx *= 30**2  # the fresh models' blocks are all but straight on rows of the right size
    found, ffn = predict_spectrum(take_apart(model, 1), moments, 1)[0], sites(model)[1].output
    drawn = gaussian_rows(Colour.of(moments), 60_000)
    own = Moments(WIDTH, WIDTH).update(drawn, respond(ffn, drawn))
    assert 0.3 < found < 0.97
    assert r2(fit(own)[0], own) == pytest.approx(found, abs=4e-3)


def test_a_prediction_that_cannot_be_is_refused():
    moments, block = Moments(5).update(normal(50, 5)), block_of(torch.relu)
    with pytest.raises(InputError, match="degree 0: ask for 1 to 24"):
        predict_spectrum(block, moments, 0)
    with pytest.raises(InputError, match="constant"):
        predict_spectrum(replace(block, activation=torch.zeros_like), moments)
