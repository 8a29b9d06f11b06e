"""Notebook 10's modules: neurons, nested, spectrum, hermite, products."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import polynomial_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from conftest import BLOCKS, VOCABULARY, WIDTH
from helpers.families import UNITS, reads, small
from helpers.planted_neurons import block_of, captured, power, sides_of
from helpers.reference import held_out_r2, normal
from howlinear.core.ceilings import AffineMap, ceiling
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.degrees import products as module
from howlinear.ideas.degrees.measure import fewest_rows
from howlinear.ideas.degrees.nested import add_features, nested, prefix_maps
from howlinear.ideas.degrees.products import Products, gaussian, learning_curve, polynomial, products, quadratic
from howlinear.ideas.degrees.spectrum import degrees, features, loudest, plant_teacher
from howlinear.instrument.capture import capture
from howlinear.models.ffn_sites import sites
from howlinear.models.units import take_apart
from howlinear.text.rows import TokenRows

# --- the block taken apart


@pytest.mark.parametrize("name", [*UNITS, "bert", "distilbert"])
def test_every_family_whose_units_can_be_reached_is_taken_apart(name):
    model = small(name)
    rows = TokenRows.from_ids(reads(name, n=8)["input_ids"], folds=2)
    for block, found in capture(model, rows, sample=60).items():
        mine = take_apart(model, block)
        torch.testing.assert_close(mine(found.sample.x.double()), found.sample.y.double(), atol=1e-4, rtol=1e-4)


def test_a_block_that_is_not_there_or_replaced_is_refused(gpt2):
    with pytest.raises(InputError, match="no block"):
        take_apart(gpt2, BLOCKS)
    gpt2.set_submodule(sites(gpt2, [1])[0].name, torch.nn.Linear(WIDTH, WIDTH))
    with pytest.raises(InputError, match=r"block 1 has no hidden units: .*, a Linear, is linear"):
        take_apart(gpt2, 1)
    gpt2.transformer.h[0].mlp.act = torch.nn.Softmax(-1)  # mixes units
    gpt2.transformer.h[2].mlp.dropout = torch.nn.Tanh()  # behind the readout
    for block in (0, 2):
        with pytest.raises(InputError, match=r", a GPT2MLP, is no activation between linear layers"):
            take_apart(gpt2, block)


# --- nested least squares


def test_every_set_matches_svd_of_its_rows():
    x = normal(400, 6) @ normal(6, 6, seed=1) + 3
    kept = captured(x, torch.tanh(x @ normal(6, 3, seed=2)))

    def squares(x):
        return torch.cat([x, x.square()], 1)

    sizes = [2, 6, 9, 12]
    for size, (r2, low, high) in zip(sizes, nested(kept, squares, sizes).to_numpy(), strict=True):
        sides = sides_of(kept, lambda x, size=size: squares(x)[:, :size])
        assert r2 == pytest.approx(held_out_r2(*sides), abs=1e-6)
        assert low < r2 < high


def test_constant_and_duplicate_features_do_no_harm():
    x = normal(200, 3)
    kept = captured(x, x @ normal(3, 2, seed=1) + 1)
    found = nested(kept, lambda x: torch.cat([x, x, torch.full_like(x, 7)], 1), [3, 6, 9])
    np.testing.assert_allclose(found.r2, 1, atol=1e-6)


def test_the_fewest_rows_are_enough_for_every_fit_and_half_of_them_are_not(gpt2):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (-(-fewest_rows(gpt2, 4) // 16), 16), generator=generator)
    parts = take_apart(gpt2, 1)
    kept, fewer = (
        capture(gpt2, TokenRows.from_ids(some), blocks=1, sample=some.numel())[1]
        for some in (ids, ids[: len(ids) // 2])
    )
    assert len(degrees(kept, parts, 4)) == 4
    assert len(loudest(kept, parts, [0, parts.neurons])) == 2
    with pytest.raises(InputError, match="would fit them exactly"):
        loudest(fewer, parts, [0, parts.neurons])


def test_the_fewest_rows_are_known_of_encoders_as_well():
    model = small("bert")  # whose hidden units no compressor reaches
    width, neurons = model.config.hidden_size, model.config.intermediate_size
    assert fewest_rows(model, 1) == 2 * (width + neurons)


# --- the spectrum: planted teachers


@pytest.mark.parametrize("teacher", [1, 2, 3, 4])
def test_a_teacher_is_found_at_its_degree_and_not_below(teacher):
    x = normal(3_000, 5, seed=teacher)
    gate = block_of(power(teacher)).gate
    unit = AffineMap(gate.weight / gate.weight.norm(dim=0), 0 * gate.bias)  # standard Gaussian pre-activations
    block = replace(block_of(power(teacher)), gate=unit)
    found = degrees(captured(x, block(x)), block, 4).r2
    assert (found[: teacher - 1] < 0.12).all()
    np.testing.assert_allclose(found[teacher - 1 :], 1, atol=1e-5)


@pytest.mark.parametrize("teacher", [1, 2, 3, 4])
def test_a_gated_teacher_has_one_degree_more_than_its_activation(teacher):
    x = normal(3_000, 5, seed=teacher)
    block = block_of(power(teacher - 1), gated=True)
    found = degrees(captured(x, block(x)), block, 4).r2
    assert (found[: teacher - 1] < 0.95).all()
    np.testing.assert_allclose(found[teacher - 1 :], 1, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_it_is_a_lower_bound_on_all_polynomials_of_the_degree(gated):
    """Skewed inputs, an explicit list of all products, least squares by SVD; at degree 2 free neurons lie between."""
    x = normal(3_000, 4).exp().clamp(max=6)
    block = block_of(torch.nn.functional.silu, d=4, m=12, gated=gated)
    kept = captured(x, block(x))
    pooled, full = degrees(kept, block, 3).r2, []
    for k in (1, 2, 3):
        change = PolynomialFeatures(k, include_bias=False)
        full.append(held_out_r2(*sides_of(kept, lambda x, change=change: change.fit_transform(x))))
    _, free = loudest(kept, block, [0, block.neurons]).r2
    assert (pooled <= np.array(full) + 5e-3).all()
    assert pooled[1] - 5e-3 <= free <= full[1] + 5e-3
    assert pooled[2] > pooled[1] > pooled[0]


def test_loudest_neurons_come_first_and_all_of_them_reach_a_block_of_squares():
    x, m = normal(2_000, 5), 7
    block = block_of(torch.square, bias=0.0)
    loud = block.out.weight * torch.tensor([1.0, 1, 1, 20, 1, 1, 1])[:, None].double()
    block = replace(block, out=replace(block.out, weight=loud))
    kept = captured(x, block(x))
    assert features(kept, block, 2, free=True).order[0] == 3
    found = loudest(kept, block, [0, 1, m])
    assert found.r2[0] < 0.1
    assert 0.9 < found.r2[1] < 1
    assert found.r2[2] == pytest.approx(1, abs=1e-5)


def test_a_dead_neuron_is_no_trouble():
    x, block = normal(900, 5), block_of(torch.nn.functional.gelu)
    dead = block.gate.weight.clone()
    dead[:, 2] = 0
    block = replace(block, gate=replace(block.gate, weight=dead))
    found = degrees(captured(x, block(x)), block, 3).r2
    assert 0.9 < found[2] <= 1


def test_a_spectrum_starts_at_degree_two():
    x, block = normal(100, 5), block_of(torch.relu)
    with pytest.raises(InputError, match="degree 1: neurons add to the line from degree 2 on"):
        degrees(captured(x, block(x)), block, 1)


@pytest.mark.parametrize("gated", [False, True])
def test_a_planted_teacher_has_one_degree_whatever_the_block_and_its_offsets(gated):
    x = 2 * normal(3_000, 5) + 3
    block = block_of(torch.relu, gated=gated)
    for degree in (1, 2, 3):
        kept, teacher = plant_teacher(captured(x, block(x)), block, degree)
        assert teacher.up is None
        np.testing.assert_allclose(kept.sample.y, teacher(x.float().double()), rtol=1e-5, atol=1e-4)
        found = degrees(kept, teacher, 3).r2
        assert found[degree - 1] == pytest.approx(1, abs=1e-3)
        assert all(found[: degree - 1] < 0.1)


# --- all products, and kernels


@pytest.mark.parametrize("degree", [2, 3])
def test_the_kernel_reaches_the_explicit_ceiling_of_its_degree_and_not_beyond(degree):
    x, block = normal(1_200, 3), block_of(power(degree), d=3, bias=0.0)
    kept = captured(x, block(x))
    sizes, ridges = [300, 600], (1e-9, 1e-6)
    assert learning_curve(kept, polynomial(degree), sizes, ridges)[-1].r2.value == pytest.approx(1, abs=1e-4)
    below = learning_curve(kept, polynomial(degree - 1), sizes, ridges)[-1].r2.value
    change = PolynomialFeatures(degree - 1, include_bias=False)
    assert below == pytest.approx(held_out_r2(*sides_of(kept, change.fit_transform)), abs=0.05)
    assert below < 0.9


@pytest.mark.parametrize(
    ("kernel", "reference"),
    [(polynomial(2), lambda a, b: polynomial_kernel(a, b, degree=2, gamma=1, coef0=1)), (gaussian, RBF(1.0))],
)
def test_the_kernel_fit_is_the_dual_system_solved_directly(kernel, reference):
    x = normal(400, 4) * torch.tensor([1.0, 5, 0.1, 2]) + 3
    kept = captured(x, torch.tanh(x @ normal(4, 3, seed=1)))
    found = learning_curve(kept, kernel, [150], [1e-3])[0]
    s = kept.sample
    line = ceiling(sum(kept.train), sum(kept.test)).map
    train, x = ~s.test, s.x.double()
    scaled = ((x - x[train].mean(0)) / x[train].std(0, correction=0) / 2).numpy()
    left = (s.y.double() - line(x)).numpy()
    others = torch.cat([(train & (s.fold == fold)).nonzero()[:, 0] for fold in (1, 2, 3)])
    used = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(0))][:150]
    gram = reference(scaled[used], scaled[used])
    dual = np.linalg.lstsq(gram + 1e-3 * np.trace(gram) / 150 * np.eye(150), left[used])[0]
    error = left[s.test] - reference(scaled[s.test], scaled[used]) @ dual
    y = s.y[s.test].double().numpy()
    assert found.r2.value == pytest.approx(1 - (error**2).sum() / ((y - y.mean(0)) ** 2).sum(), abs=1e-6)
    assert found.r2.low < found.r2.value < found.r2.high


@pytest.mark.parametrize("rows", [[], [50, 20], [10, 10], [1], [10_000]])
def test_rows_that_are_not_there_are_refused(rows):
    with pytest.raises(InputError, match="ascending numbers from 2 to the 90 rows there are"):
        learning_curve(captured(normal(160, 4), normal(160, 2)), gaussian, rows)


@pytest.mark.parametrize("directions", [[], [3, 2], [-1], [5]])
def test_directions_that_are_not_there_are_refused(directions):
    with pytest.raises(InputError, match="ascending numbers from 0 to the 4 that vary"):
        products(captured(normal(160, 4), normal(160, 2)), directions)


# --- full degree 2, streamed


@pytest.fixture
def skewed():
    """Skewed, correlated inputs with an offset, one of them a copy; outputs of degree 3."""
    x = normal(1_600, 4) @ normal(4, 4, seed=1) + 0.5 * normal(1_600, 4, seed=2) ** 2 + 3
    x = torch.cat([x, x[:, :1]], 1)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2] ** 3 / 9], 1) + 0.1 * normal(1_600, 2, seed=3)
    return captured(x, y)


def test_full_degree_two_is_scikit_learns_ridge_regression_on_more_and_more_drawn_rows(monkeypatch):
    """Held-out rows are louder than those that whiten; the last number of rows alone would take another ridge."""
    monkeypatch.setattr("howlinear.ideas.degrees.products.STREAM", 50)
    x = normal(800, 4)
    x[3::4] *= 1.5
    kept = captured(x, x[:, :2].prod(1, keepdim=True) + 2 * normal(800, 1, seed=5))
    s, rows, grid = kept.sample, [60, 120, 400], np.geomspace(1e-2, 10, 60).tolist()
    found, y = Products.of(sum(kept.train))(s.x.double()).numpy(), s.y.numpy()
    validation, order = module.split_train(s, rows)

    def fitted(n, ridge):
        return make_pipeline(StandardScaler(), Ridge(n * ridge)).fit(found[order[:n]], y[order[:n]])

    def best(n):
        return max(grid, key=lambda ridge: fitted(n, ridge).score(found[validation], y[validation]))

    curve = quadratic(kept, rows, grid)
    assert [one.ridge for one in curve] == [best(60), best(120), best(120)]
    assert best(400) != best(120)
    for one in curve:
        expected = fitted(one.rows, one.ridge).score(found[s.test], y[s.test])
        assert one.r2.value == pytest.approx(expected, abs=1e-5)


def test_outputs_far_off_cost_full_degree_two_little():
    x = normal(1_600, 4)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2] ** 2], 1)
    assert quadratic(captured(x, 1e4 + y), [900], [1e-9])[0].r2.value == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(("off", "half"), [(0, 1.0), (77, 0.3)])
def test_a_product_that_is_constant_but_for_rounding_gets_no_weight(off, half):
    """The square of an input that takes two values equally often: of 77 ± 0.3 by rounding, of ± 1 not even so."""
    x = torch.where(torch.arange(160) // 16 % 2 == 0, half, -half)[:, None].double()
    kept = captured(x + off, 3 * x)
    assert quadratic(kept, [60, 80], [1e-9])[-1].r2.value == pytest.approx(1, abs=1e-6)
    features = Products.of(sum(kept.train))
    moments = add_features(Moments(features.width, 1), kept.sample, torch.arange(160), features)
    (affine,) = prefix_maps(moments, [2], 1e-9, null=module.FLAT)
    assert affine.weight[1] == 0


def test_products_that_coincide_share_their_weight():
    """The squares of inputs that take two values, one more often, are these inputs and their products again."""
    x = (normal(400, 6) + 0.5).sign()
    assert quadratic(captured(x, 3 * x), [200])[0].r2.value == pytest.approx(1, abs=1e-5)


def test_features_that_coincide_need_a_ridge():
    x = normal(200, 5)
    moments = Moments(25, 5).update(torch.cat([x] * 5, 1), x)
    assert prefix_maps(moments, [25], 1e-8)[0].weight[::5].sum() == pytest.approx(1, abs=1e-6)
    with pytest.raises(InputError, match="on 200 rows some features all but coincide, and a ridge of 0"):
        prefix_maps(moments, [25], 0.0)


def test_products_leave_null_directions_out(skewed):
    full = held_out_r2(*sides_of(skewed, lambda x: PolynomialFeatures(2, include_bias=False).fit_transform(x[:, :4])))
    found = products(skewed, [0, 4])
    assert len(found) == 2
    assert found.r2[1] == pytest.approx(full, abs=1e-6)
    train, _ = sides_of(skewed)
    assert Products.of(sum(skewed.train), 2)(train[0]).shape == (len(train[0]), 4 + 3)


def test_full_degree_two_finds_a_quadratic_teacher_and_not_a_cubic_one():
    x = normal(2_000, 3)
    block = block_of(power(2), d=3, bias=0.0)
    assert quadratic(captured(x, block(x)), [400, 1_000], (1e-8, 1e-4))[-1].r2.value == pytest.approx(1, abs=1e-5)
    assert quadratic(captured(x, power(3)(x)), [400, 1_000], (1e-8, 1e-4))[-1].r2.value < 0.05
