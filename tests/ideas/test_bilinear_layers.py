import numpy as np
import pytest
import torch

from helpers.planted_products import OUT, D, kept_of, line, products, skewed
from helpers.reference import normal
from howlinear.core.ceilings import AffineMap, ceiling
from howlinear.errors import InputError
from howlinear.ideas.bilinear import layers
from howlinear.ideas.bilinear.layers import LineAndProducts, conjunction, control, cosine, rmse
from howlinear.ideas.bilinear.probe import branch, residual_rows, scores


def bent(x):
    """One hidden layer of GELU: dense 2× can be it, a line cannot."""
    return torch.nn.functional.gelu(x @ normal(D, D, seed=7)) @ normal(D, OUT, seed=8) / D


@pytest.fixture(scope="module")
def trained():
    x = normal(1_600, D)
    blocks = {1: kept_of(x, bent(x)), 4: kept_of(x, line(x))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "RATE", 10 * layers.RATE)  # what the paper's rate needs thousands of steps for
        return blocks, {kind: control(blocks, kind, rank=2, steps=200) for kind in ("dense2x", "poly2x")}


@pytest.mark.parametrize("kind", ["dense2x", "poly2x"])
def test_a_control_finds_a_hidden_layer_and_gains_nothing_on_a_line(trained, kind):
    blocks, fits = trained
    straight = ceiling(blocks[1].train, blocks[1].test).r2
    assert straight < 0.9
    bent_block, line_block = fits[kind].loc[1], fits[kind].loc[4]
    assert bent_block.r2_low > straight + 0.05
    assert bent_block.r2_low < bent_block.r2 < bent_block.r2_high
    assert 0.9 < line_block.r2 <= 1
    assert line_block.step > 0


def test_blocks_are_controlled_as_if_alone(trained):
    blocks, _ = trained
    together, alone = control(blocks, "dense2x", steps=200), control({4: blocks[4]}, "dense2x", steps=200)
    assert alone.r2[4] == pytest.approx(together.r2[4], abs=1e-4)


def test_the_line_with_products_is_the_line_and_the_probes_branch():
    x = skewed(800)
    kept = kept_of(x, line(x) + 40 * products(x))
    rows = residual_rows(kept)
    fitted = branch(rows, 2, 0, 30)
    both = LineAndProducts.of(kept, fitted)
    _, poly = scores(rows, fitted(rows.z))
    held_out = rows.y[rows.test].double()
    left = (held_out - both(kept.sample.x[rows.test].double())).square().sum()
    assert float(1 - left / (held_out - held_out.mean(0)).square().sum()) == pytest.approx(poly[0], abs=1e-5)
    in_batches = both(kept.sample.x[:6].view(2, 3, D))
    assert in_batches.dtype == torch.float32
    torch.testing.assert_close(in_batches.view(6, OUT), both(kept.sample.x[:6]))


def test_cosine_and_rmse_by_hand():
    y = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    predicted = torch.tensor([[6.0, 8.0], [0.0, 1.0]])
    assert cosine(y, predicted) == pytest.approx((1 + 0) / 2)
    assert rmse(y, predicted) == pytest.approx(np.sqrt((9 + 16 + 1 + 1) / 4))


POSITIVE = normal(50, D).abs() + 0.5
HALF = D // 2


@pytest.mark.parametrize(
    ("map_", "x", "index"),
    [
        (AffineMap(normal(D, OUT, seed=1), normal(OUT, seed=2)), POSITIVE, 0),  # adds up
        (lambda x: x[:, :HALF].sum(1, keepdim=True) * x[:, HALF:].sum(1, keepdim=True), POSITIVE, 1),  # needs both
        (lambda x: x[:, :1].square(), POSITIVE, 0),
        (lambda x: x[:, :1] * x[:, 1:], torch.tensor([[2.0, -1.0]]), 0),  # by the clipping: Δ_A = Δ_B = Δ_AB = −2
        # r = 3 a + a b at a = 2, b = 1: Δ_A = 8, Δ_B = 2, Δ_AB = 8
        (lambda x: 3 * x[:, :1] + x[:, :1] * x[:, 1:], torch.tensor([[2.0, 1.0]]), 2 / 8),
    ],
)
def test_conjunction_by_hand(map_, x, index):
    assert conjunction(map_, x) == pytest.approx(index, abs=1e-6)


@pytest.mark.parametrize(("kind", "steps"), [("dense3x", 200), ("dense2x", 199)])
def test_another_control_is_refused(kind, steps):
    with pytest.raises(InputError, match=f"no control '{kind}' of {steps} steps"):
        control({}, kind, steps=steps)
