import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t

from helpers.reference import held_out_r2, least_squares, normal, pooled_r2, r2_by_feature
from howlinear.core import ceilings
from howlinear.core.ceilings import (
    AffineMap,
    ceiling,
    fit,
    leverage,
    moments_of,
    r2,
    r2_about_scalar,
    whitening,
)
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import capture
from howlinear.models.load import load_model
from howlinear.text.corpus import load_corpus
from howlinear.training.minis import FACTORY


def planted(block, n=600, d=6):
    """Train and held-out rows of a block, as ((x, y), (x, y))."""
    x = normal(n, d)
    y = block(x)
    cut = 2 * n // 3
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def score(train, test):
    return ceiling(*train, *test)


def rows_and_folds(n=240, folds=4, seed=0):
    """Rows of a block that is partly linear, dealt to folds."""
    x = normal(n, 4, seed=seed) + 2
    y = x @ normal(4, 3, seed=seed + 1) + normal(n, 3, seed=seed + 2) + x[:, :1].square()
    fold = torch.arange(n) % folds
    return x, y, fold


def folds_of(x, y, fold):
    return [moments_of(x[fold == i], y[fold == i]) for i in fold.unique()]


def test_by_hand():
    train = moments_of(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    test = moments_of(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [4.0]]))
    found = ceiling(train, test)
    assert found.map.weight.item() == pytest.approx(2.5)  # Sxy / Sxx = 5 / 2
    assert found.map.bias.item() == pytest.approx(-0.5)  # ȳ − 2.5 x̄
    assert found.r2 == pytest.approx(1 - (0.25 + 0.25) / 8)  # predicts −0.5 and 4.5
    assert (found.rank, found.condition, found.rows_train, found.rows_test) == (1, 1.0, 3, 2)
    assert (found.r2_low, found.r2_high) == (None, None)


def test_a_known_mixture_gives_its_share_of_variance():
    train, test = planted(lambda x: x + x.square(), n=60_000)  # variances 1 and 2, uncorrelated
    assert score(train, test).r2 == pytest.approx(1 / 3, abs=0.01)


def layer_norm_rows(n, d, seed=0):
    """float32 outputs of a LayerNorm with gain and bias: rank d − 1, up to rounding."""
    norm = torch.nn.LayerNorm(d)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.3, 2, d))
        norm.bias.copy_(2 * normal(d, seed=seed + 2))
        return norm(normal(n, d, seed=seed).float() * torch.logspace(0.5, -0.5, d))


@pytest.mark.parametrize("seed", range(3))
def test_layer_norm_outputs_have_rank_one_less(seed):
    x = layer_norm_rows(900, 24, seed)
    y = torch.nn.functional.gelu(x @ normal(24, 7, seed=seed + 5).float())
    train, test = (x[:600], y[:600]), (x[600:], y[600:])
    found = score(train, test)
    assert found.rank == 23 == least_squares(*train)[2]
    assert found.r2 == pytest.approx(held_out_r2(train, test), abs=1e-9)


def test_noise_in_a_null_direction_is_not_fitted():
    x = layer_norm_rows(200, 24)
    scaled = ((x - x.mean(0)) / x.std(0)).double()
    null = torch.linalg.svd(scaled).Vh[-1]
    y = x[:, :3].double() + 1e5 * (scaled @ null)[:, None]  # only the rounding of these rows explains the second part
    moments = moments_of(x, y)
    honest, fooled = (fit(moments, threshold)[0].weight * x.std(0)[:, None] for threshold in (1e-12, 0.0))
    assert (honest.T @ null).abs().max() < 1e-3
    assert (fooled.T @ null).abs().min() > 1e4


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -40.3, 1e6])
def test_constant_features_get_no_weight(value):
    x = normal(100, 4).float()
    x[:, 2] = value
    y = x[:, :2] - x[:, 3:]
    moments = sum(map(moments_of, x.split(7), y.split(7)))
    affine, inputs = fit(moments)
    assert inputs.rank == 3
    assert affine.weight[2].tolist() == [0, 0]
    assert r2(affine, moments) == pytest.approx(1, abs=1e-12)


def test_the_ill_conditioned_block_is_exact():
    """The solver's hard case: power-law spectrum, one offset of 40, one feature of scale 1000 with rare spikes."""
    n, d = 6_000, 128
    rotation, independent = torch.linalg.qr(normal(d, d, seed=1)).Q, normal(n, d)
    x = (independent * torch.arange(1, d + 1).double() ** -2) @ rotation
    x[:, 3] += 40
    x[:, 5] = 1_000 * normal(n, seed=2) * (normal(n, seed=3) > 2.5)
    x = x.float()
    hidden = torch.nn.functional.gelu(independent @ normal(d, 64, seed=4) / d**0.5)  # quiet directions matter too
    y = (hidden @ normal(64, 16, seed=5)).float()
    train, test = (x[:4_500], y[:4_500]), (x[4_500:], y[4_500:])
    found = ceiling(*(sum(map(moments_of, x.split(1_000), y.split(1_000))) for x, y in (train, test)))
    assert found.condition > 1e5
    assert found.r2 == pytest.approx(held_out_r2(train, test), abs=1e-8)
    assert 0.05 < found.r2 < 0.9999


def test_r2_per_feature_matches_rows_and_is_nan_where_constant():
    train, test = planted(lambda x: torch.cat([torch.tanh(x[:, :3]), torch.full_like(x[:, :1], 0.1)], 1))
    found = score(train, test)
    weight, bias, _ = least_squares(*train)
    np.testing.assert_allclose(
        found.r2_per_feature[:3], r2_by_feature(test[0], test[1][:, :3], weight[:, :3], bias[:3]), atol=1e-12
    )
    assert found.r2_per_feature[3].isnan()
    assert found.r2_median == pytest.approx(found.r2_per_feature[:3].median().item())


@pytest.fixture(params=[True, False], ids=["on a CPU", "as on a GPU"])
def anywhere(request, monkeypatch):
    """Condition numbers by singular values, and by products as a GPU has them sooner."""
    monkeypatch.setattr(ceilings, "on_cpu", lambda tensor: request.param)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("seed", range(5))
def test_condition_is_right_beyond_what_the_gram_matrix_resolves(seed):
    """Squared, such a spread is past float64: small singular values must not be read off the Gram matrix."""
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    x = normal(300, 8, seed=seed) @ normal(8, 8, seed=seed + 10) * torch.logspace(5, -5, 8)[order]
    found = score((x, x), (x, x))
    assert found.rank == 8
    assert found.condition == pytest.approx(np.linalg.cond((x - x.mean(0)).numpy()), rel=1e-2)


def test_affine_map_applies_in_the_dtype_of_its_rows():
    affine = AffineMap(normal(4, 3), normal(3, seed=1))
    x = normal(2, 5, 4, seed=2)
    torch.testing.assert_close(affine(x), x @ affine.weight + affine.bias)
    assert affine(x.float()).dtype == torch.float32
    assert affine(x.float()).shape == (2, 5, 3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("held", [list, np.array, torch.tensor])
def test_a_map_is_of_numbers_however_they_are_held(held):
    affine = AffineMap(held([[1.0, 2.0], [3.0, 4.0]]), held([0.5, -0.5]))  # (1, 2) W = (7, 10)
    assert affine(torch.tensor([1.0, 2.0])).tolist() == [7.5, 9.5]
    for whole in (torch.tensor([[1, 2]]), np.array([[1, 2]]), [[1, 2]]):  # as whole numbers 0.5 would be 0
        assert affine(whole).tolist() == [[7.5, 9.5]]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(3, 5), (3,), ()])
def test_rows_of_another_width_than_the_maps_are_refused(shape):
    affine = AffineMap(normal(4, 3), normal(3, seed=1))
    with pytest.raises(InputError, match="4"):
        affine(torch.zeros(shape))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("weight", "bias"), [
    ([[1.0, 2.0], [3.0, 4.0]], [0.5]),  # one number for both outputs
    ([[1.0, 2.0], [3.0, 4.0]], 0.5),
    ([[1.0, 2.0], [3.0, 4.0]], [[0.5, 0.5]]),
    ([1.0, 2.0], [0.5, 0.5]),
    ([[1.0, 2.0], [3.0, 4.0]], None),
    ([[1j, 2.0], [3.0, 4.0]], [0.5, 0.5]),
])  # fmt: skip
def test_a_map_of_other_shapes_or_of_no_real_numbers_is_refused(weight, bias):
    with pytest.raises(InputError):
        AffineMap(weight, bias)


def test_the_constant_map_is_the_mean_and_explains_nothing():
    x, y, _ = rows_and_folds()
    affine = AffineMap.constant(moments_of(x, y))
    torch.testing.assert_close(affine(x), y.mean(0).expand_as(y))
    assert r2(affine, moments_of(x, y)) == pytest.approx(0, abs=1e-14)


def test_whitening_leaves_unit_variance_no_correlation_and_no_null_direction():
    x = normal(400, 5) @ normal(5, 5, seed=1) + 3
    x = torch.cat([x, x[:, :1] - x[:, 1:2], torch.full((400, 1), 7.0, dtype=torch.float64)], 1)
    moments = moments_of(x, x[:, :1])
    white = (x - moments.mean_x) @ whitening(moments)
    torch.testing.assert_close(white.T @ white / 400, torch.eye(5, dtype=torch.float64), atol=1e-9, rtol=0)
    with pytest.raises(InputError):
        whitening(moments_of(torch.ones(9, 2, dtype=torch.float64), x[:9, :1]))


def test_interval_equals_a_loop_of_refits_on_rows():
    x, y, fold = rows_and_folds()
    x_test, y_test, fold_test = rows_and_folds(n=90, folds=3, seed=7)
    found = ceiling(folds_of(x, y, fold), folds_of(x_test, y_test, fold_test))
    whole = held_out_r2((x, y), (x_test, y_test))
    refitted = [held_out_r2((x[fold != i], y[fold != i]), (x_test, y_test)) for i in range(4)]
    rescored = [held_out_r2((x, y), (x_test[fold_test != i], y_test[fold_test != i])) for i in range(3)]
    variance = 3 / 4 * np.square(np.subtract(refitted, np.mean(refitted))).sum()
    variance += 2 / 3 * np.square(np.subtract(rescored, np.mean(rescored))).sum()
    half = student_t.ppf(0.975, 2) * variance**0.5
    assert found.r2 == pytest.approx(whole, abs=1e-10)
    assert (found.r2_low, found.r2_high) == pytest.approx((whole - half, whole + half), abs=1e-10)


def test_one_fold_on_a_side_gives_neither_interval_nor_limit():
    folds = folds_of(*rows_and_folds())
    for found in (ceiling(folds, sum(folds)), ceiling(sum(folds), folds)):
        assert (found.r2_low, found.r2_high, found.limit) == (None, None, None)


def test_too_few_rows_are_refused():
    x, y = normal(8, 6), normal(8, 2, seed=1)
    with pytest.raises(InputError, match=r"7 train rows for 6 inputs.*use at least 8 rows"):
        fit(moments_of(x[:7], y[:7]))
    assert fit(moments_of(x, y))[1].rank == 6
    folds = [moments_of(x[:4], y[:4]), moments_of(x[4:], y[4:])]
    with pytest.raises(InputError, match="4 train rows for 6 inputs"):  # of what is left to refit
        ceiling(folds, folds)


@pytest.mark.parametrize("value", [0.0, 0.1, 40.7])
def test_inputs_that_are_all_constant_are_refused(value):
    parts = [moments_of(torch.full((len(part), 3), value), part) for part in normal(50, 2).split(9)]
    moments = sum(parts)
    with pytest.raises(InputError, match="all 3 inputs are constant over 50 rows"):
        fit(moments)


@given(value=st.floats(-1e6, 1e6), rows=st.integers(1, 300), chunk=st.integers(1, 300))
@settings(deadline=None, max_examples=60)
@example(0.1, 200, 200)
def test_outputs_that_are_constant_are_refused(value, rows, chunk):
    """Whatever rounding their mean leaves: it is no variance."""
    train, test = moments_of(normal(50, 3), normal(50, 2)), Moments(3, 2)
    for part in normal(rows, 3, seed=1).split(chunk):
        test.update(part, torch.full((len(part), 2), value, dtype=torch.float64))
    with pytest.raises(InputError, match=f"outputs are constant over {rows} rows"):
        ceiling(train, test)


@pytest.mark.usefixtures("unchecked")
def test_a_side_without_rows_is_refused():
    full = moments_of(normal(50, 3), normal(50, 2))
    for train, test in (([], full), (full, []), (full, Moments(3, 2))):
        with pytest.raises(InputError, match="rows"):
            ceiling(train, test)


@pytest.mark.parametrize(("d_in", "d_out"), [(3, 1), (2, 2), (3, 3)])
def test_rows_of_other_features_than_the_map_has_are_refused(d_in, d_out):
    x, y = normal(400, 3), normal(400, 2)
    with pytest.raises(InputError, match="3 inputs to 2 outputs"):
        ceiling(x, y, normal(100, d_in), normal(100, d_out))
    line, _ = fit(Moments(3, 2).update(x, y))
    with pytest.raises(InputError, match="3 inputs to 2 outputs"):
        r2(line, Moments(d_in, d_out).update(normal(100, d_in), normal(100, d_out)))


@pytest.mark.parametrize("table", [pd.DataFrame, pa.table])
def test_tables_of_other_columns_are_refused_and_of_the_same_are_arrays(table):
    """A map knows features by their place alone, so columns in another order would be scored as other features."""
    x, y = normal(60, 3), normal(60, 2, seed=1)
    held = {name: column.numpy() for name, column in zip("abc", x.T, strict=True)}
    rest = {name: held[name] for name in "cba"}
    unnamed = pd.DataFrame(x.numpy(), columns=[np.nan, 1, "b"])
    assert ceiling(table(held), y, table(held), y).r2 == ceiling(x, y, x, y).r2 == ceiling(table(held), y, x, y).r2
    assert ceiling(unnamed, y, unnamed.copy(), y).r2 == ceiling(x, y, x, y).r2
    for other in (rest, {name: held[name] for name in "ab"}):
        with pytest.raises(InputError, match=r"column . of X"):
            ceiling(table(held), y, table(other), y)
        with pytest.raises(InputError, match=r"column . of Y"):
            ceiling(y, table(held), y, table(other))


@pytest.mark.long
@pytest.mark.parametrize("name", FACTORY)
def test_every_block_of_the_embedded_models_matches_svd_of_its_rows(name):
    model = load_model(name)
    rows = load_corpus("docs", model).rows(4_096)
    captured = capture(model, rows, sample=4_096)
    assert len(captured) == 12
    for kept in captured.values():
        found, side = ceiling(kept.train, kept.test), kept.sample.test
        train, test = [(kept.sample.x[mask], kept.sample.y[mask]) for mask in (~side, side)]
        weight, bias, rank = least_squares(*train)
        assert found.r2 == pytest.approx(pooled_r2(*test, weight, bias), abs=1e-9)
        assert found.rank == rank


def test_leverage_is_the_diagonal_of_the_hat_matrix():
    x = torch.cat([normal(60, 4) + 3, torch.ones(60, 1)], 1)
    x = torch.cat([x, x[:, :1]], 1)  # a constant and a duplicate: rank 4 of 6
    design = torch.cat([x[:, :4], torch.ones(60, 1)], 1)
    found = leverage(moments_of(x, x), x)
    torch.testing.assert_close(found, (design @ torch.linalg.pinv(design)).diagonal())
    assert found.sum().item() == pytest.approx(4 + 1)


def test_leverage_of_new_rows_weighs_their_own_prediction():
    """A train row's prediction moves by its leverage when its output moves by one."""
    x, y = normal(30, 3), normal(30, 1, seed=1)
    nudged = y.clone()
    nudged[11] += 1
    moved = fit(moments_of(x, nudged))[0](x[11:12]) - fit(moments_of(x, y))[0](x[11:12])
    assert leverage(moments_of(x, y), x[11:12]).item() == pytest.approx(moved.item())


@pytest.mark.parametrize("scale", [1e-160, 1e-300])
def test_rows_whose_squares_vanish_in_float64_are_refused(scale):
    """R² of what is left of them would be NaN or minus infinity."""
    (x, y), (x_test, y_test) = planted(lambda x: x[:, :3].square() + x[:, 3:])
    with pytest.raises(InputError, match="inputs are constant"):
        ceiling(x * scale, y, x_test * scale, y_test)
    with pytest.raises(InputError, match="outputs are constant"):
        ceiling(x, y * scale, x_test, y_test * scale)
    expected = pytest.approx(ceiling(x, y, x_test, y_test).r2, abs=1e-9)
    assert ceiling(x * 1e-140, y * 1e-140, x_test * 1e-140, y_test * 1e-140).r2 == expected


@pytest.mark.parametrize(("offset", "within"), [(1.7e9, 1e-6), (1e12, 1e-3)])  # float64 has steps of 2e-7 and 1e-4
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_large_offset_is_resolved_in_float64_and_named_in_float32(side, offset, within):
    """Seconds or milliseconds since 1970, one apart: float32 has steps of 128 or of 65,536 there."""
    x, noise = normal(800, 2), normal(800, 1, seed=1)
    y = x.sum(1, keepdim=True) + noise
    expected = held_out_r2((x[:600], y[:600]), (x[600:], y[600:]))
    (x if side == "inputs" else y).add_(offset)
    found = score((x[:600], y[:600]), (x[600:], y[600:]))
    assert 0.6 < found.r2 < 0.7
    assert found.r2 == pytest.approx(expected, abs=within)
    assert found.rank == 2
    assert not found.r2_per_feature.isnan().any()
    x, y = x.float(), y.float()
    with pytest.raises(InputError, match=f"{side} are constant over"):
        score((x[:600], y[:600]), (x[600:], y[600:]))


def test_one_float32_chunk_makes_the_rule_that_of_float32():
    """Of the inputs if it is of these: outputs of a model are float32, and say nothing of seconds since 1970."""
    x, y = normal(100, 2) + 1.7e9, normal(100, 1)
    moments = moments_of(x[:50], y[:50])
    assert fit(moments)[1].rank == 2
    with pytest.raises(InputError, match="inputs are constant over 100 rows"):
        fit(moments + moments_of(x[50:].float(), y[50:]))
    mixed, right = fit(moments_of(x, y.float()))[0], fit(moments_of(x, y.float().double()))[0]
    torch.testing.assert_close(mixed.weight, right.weight)


# --- the paper's conventions


def test_about_one_scalar_it_is_the_papers_r2_of_rows():
    """Offsets between features count as explained there, and not about each feature's own mean."""
    train, test = planted(lambda x: x.relu() @ normal(6, 5, seed=1) + torch.arange(5))
    affine = score(train, test).map
    x, y = (side.numpy() for side in test)
    left = np.square(y - x @ affine.weight.numpy() - affine.bias.numpy()).sum()
    found = r2_about_scalar(affine, moments_of(*test))
    assert found == pytest.approx(1 - left / np.square(y - y.mean()).sum(), abs=1e-12)
    assert found > r2(affine, moments_of(*test)) + 0.01
    constant = moments_of(torch.randn(9, 6), torch.arange(5.0).expand(9, 5))
    with pytest.raises(InputError, match="constant over 9 rows"):
        r2_about_scalar(affine, constant)
