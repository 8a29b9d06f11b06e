"""What must hold whatever the numbers: R² and moments under hypothesis' choice of rows, widths, scales and orders."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from howlinear.core.ceilings import ceiling, moments_of

SEEDS = st.integers(0, 2**32 - 1)
WIDTHS = st.integers(1, 6)
quick = settings(max_examples=40, deadline=None)


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(seed, d_in, d_out, n=80):
    """Rows of a block that is neither linear nor noise: inputs with offsets, outputs bent."""
    generator = torch.Generator().manual_seed(seed)
    x = normal(generator, n, d_in) + 3 * normal(generator, d_in)
    y = torch.tanh(x @ normal(generator, d_in, d_out)) + x @ normal(generator, d_in, d_out) + normal(generator, d_out)
    return generator, x, y + 0.3 * normal(generator, n, d_out)


def measured(x, y):
    """Fitted on the first three quarters, scored on the rest."""
    cut = 3 * len(x) // 4
    return ceiling(moments_of(x[:cut], y[:cut]), moments_of(x[cut:], y[cut:]))


def invertible(generator, d):
    """A matrix of condition at most 20, neither symmetric nor of unit scale."""
    left, right = (torch.linalg.qr(normal(generator, d, d))[0] for _ in range(2))
    return left * torch.linspace(0.5, 10, d, dtype=torch.float64) @ right


@quick
@given(SEEDS, WIDTHS, WIDTHS)
def test_an_affine_reparametrisation_of_inputs_leaves_r2(seed, d_in, d_out):
    generator, x, y = problem(seed, d_in, d_out)
    before = measured(x, y)
    after = measured(x @ invertible(generator, d_in) + 5 * normal(generator, d_in), y)
    assert after.r2 == pytest.approx(before.r2, abs=1e-9)
    torch.testing.assert_close(after.r2_per_feature, before.r2_per_feature, atol=1e-9, rtol=0)
    assert after.rank == before.rank


@quick
@given(SEEDS, WIDTHS, WIDTHS, st.floats(1e-6, 1e6), st.booleans())
def test_scaling_turning_and_shifting_outputs_leaves_r2(seed, d_in, d_out, scale, negative):
    generator, x, y = problem(seed, d_in, d_out)
    turned = torch.linalg.qr(normal(generator, d_out, d_out))[0]
    before = measured(x, y)
    assert measured(x, (-scale if negative else scale) * y).r2 == pytest.approx(before.r2, abs=1e-10)
    assert measured(x, y @ turned + normal(generator, d_out)).r2 == pytest.approx(before.r2, abs=1e-9)


@quick
@given(SEEDS, WIDTHS, WIDTHS)
def test_each_features_r2_is_its_own(seed, d_in, d_out):
    """Scaling one output feature moves the pooled R², and no feature's own."""
    _, x, y = problem(seed, d_in, d_out)
    loud = y * torch.logspace(0, 3, d_out, dtype=torch.float64)
    torch.testing.assert_close(measured(x, loud).r2_per_feature, measured(x, y).r2_per_feature, atol=1e-9, rtol=0)


@quick
@given(SEEDS, WIDTHS, WIDTHS)
def test_no_map_beats_the_ceiling_on_its_own_rows(seed, d_in, d_out):
    generator, x, y = problem(seed, d_in, d_out)
    found = ceiling(moments_of(x, y), moments_of(x, y))
    weight = found.map.weight + 0.1 * normal(generator, d_in, d_out)
    other = 1 - (y - x @ weight - found.map.bias).square().sum() / (y - y.mean(0)).square().sum()
    assert 0 <= found.r2 <= 1
    assert other <= found.r2 + 1e-12
