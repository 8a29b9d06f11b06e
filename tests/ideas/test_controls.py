from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.stats import f_oneway
from torch import nn

from helpers.captures import capture_of, moments_of
from helpers.planted_neurons import sample_of
from helpers.reference import held_out_r2, normal
from howlinear.core.ceilings import ceiling
from howlinear.errors import InputError
from howlinear.ideas.controls import weights
from howlinear.ideas.controls.anova import anova, beside_seeds
from howlinear.ideas.controls.inputs import Colour, gaussian, recolour, standardise
from howlinear.instrument.capture import capture
from howlinear.models.ffn_sites import sites

# rows through a block


def test_a_block_answers_its_own_rows_as_in_the_model(model, rows):
    kept = capture(model, rows, sample=500)
    for site in sites(model):
        sample = kept[site.block].sample
        torch.testing.assert_close(weights.respond(site.output, sample.x), sample.y, rtol=1e-4, atol=1e-5)


def test_rows_are_answered_in_order_whatever_their_number():
    x = normal(5_000, 3)
    block = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    torch.testing.assert_close(weights.respond(block, x.float()), block(x.float().double()).detach())


def test_rows_are_recovered_as_by_svd_and_the_interval_is_that_of_the_folds():
    x = normal(400, 5)
    y = torch.tanh(x @ normal(5, 4, seed=1))
    sample = sample_of(x, y)
    found = weights.sample_ceiling(sample.x, sample.y, sample)
    train, test = ((sample.x[m], sample.y[m]) for m in (~sample.test, sample.test))
    assert found.r2 == pytest.approx(held_out_r2(train, test), abs=1e-10)
    kept = capture_of(sample)
    expected = ceiling(kept.train, kept.test)
    assert (found.r2_low, found.r2_high) == pytest.approx((expected.r2_low, expected.r2_high), abs=1e-12)
    without = weights.sample_ceiling(sample.x, sample.y, sample, intervals=False)
    assert (without.r2, without.r2_low) == (pytest.approx(found.r2, abs=1e-12), None)


# weights in disorder


@pytest.mark.parametrize("disorder", [weights.permute, weights.redraw])
def test_disorder_touches_matrices_of_the_copy_alone(model, disorder):
    ffn = sites(model)[1].output
    before = {name: value.clone() for name, value in ffn.state_dict().items()}
    changed, again = disorder(ffn), disorder(ffn)
    for name, value in ffn.state_dict().items():
        assert torch.equal(value, before[name])
        new = changed.get_parameter(name)
        assert torch.equal(new, again.get_parameter(name))
        if value.ndim == 1:
            assert torch.equal(new, value)
            continue
        overlap = (new * value).sum() / value.square().sum()
        assert abs(overlap) < 6 / value.numel() ** 0.5 + float(value.mean().square() / value.square().mean())


def test_permuted_weights_are_the_same_numbers_and_redrawn_ones_have_the_same_singular_values(model):
    ffn = sites(model)[0].output
    for name, value in ffn.named_parameters():
        if value.ndim == 2:
            same = weights.permute(ffn).get_parameter(name)
            assert torch.equal(same.flatten().sort().values, value.flatten().sort().values)
            turned = weights.redraw(ffn).get_parameter(name)
            torch.testing.assert_close(torch.linalg.svdvals(turned), torch.linalg.svdvals(value), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(turned.flatten().sort().values, value.flatten().sort().values, atol=1e-3)


def test_directions_are_orthonormal_and_prefer_no_side():
    found = torch.stack([weights.random_directions(5, 3, torch.Generator().manual_seed(seed)) for seed in range(400)])
    torch.testing.assert_close(found.mT @ found, torch.eye(3, dtype=torch.float64).expand(400, 3, 3))
    assert found.mean(0).abs().max() < 4 * (1 / 5 / 400) ** 0.5  # QR alone would put −|q| in the corner
    assert found.square().mean(0) == pytest.approx(np.full((5, 3), 1 / 5), abs=0.06)


def test_a_module_without_matrices_is_refused():
    with pytest.raises(InputError, match="GELU has no weight matrix"):
        weights.permute(nn.GELU())


# chance


def test_shuffled_pairs_score_as_least_squares_on_noise_does():
    x = normal(12_000, 30)
    sample = sample_of(x, x @ normal(30, 20, seed=1))
    for rows in (90, 1_000):
        floors = [weights.chance_floor(sample, rows, seed) for seed in range(5)]
        assert floors[0]["expected_in_sample"] == pytest.approx(30 / (rows - 1))
        table = pd.DataFrame(floors)
        assert table.shuffled_in_sample.mean() == pytest.approx(30 / (rows - 1), rel=0.1)
        assert table.shuffled_held_out.mean() == pytest.approx(floors[0]["expected_held_out"], rel=0.15)
        assert table[["in_sample", "held_out"]].min().min() > 1 - 1e-9
    assert weights.chance_floor(sample, 90)["expected_held_out"] == pytest.approx(1 - 91 * 88 / (90 * 58))


def test_a_floor_is_the_same_again_and_does_not_look_at_more_rows_than_it_says():
    x = normal(400, 4)
    sample = sample_of(x, torch.tanh(x))
    once, again, other = (weights.chance_floor(sample, 50, seed) for seed in (1, 1, 2))
    assert once == again != other
    whole = weights.chance_floor(sample, 300)
    held = [(sample.x[m], sample.y[m]) for m in (~sample.test, sample.test)]
    assert whole["held_out"] == pytest.approx(held_out_r2(*held), abs=1e-9)


@pytest.mark.parametrize("rows", [7, 301])
def test_a_floor_at_too_few_or_too_many_rows_is_refused(rows):
    sample = sample_of(normal(400, 4), normal(400, 2, seed=1))
    with pytest.raises(InputError, match=f"at {rows} rows: give from 8 up to the sample's 300"):
        weights.chance_floor(sample, rows)


def test_effective_support_by_hand():
    assert weights.effective_support(torch.tensor([[-1.0], [1.0]])) == 1
    assert weights.effective_support(torch.tensor([[0.0], [0.0], [3.0]])) == pytest.approx(4 / 6)  # w = 1, 1, 4
    lonely = torch.zeros(100, 2)
    lonely[7, 1] = 5
    assert weights.effective_support(lonely + 40) == pytest.approx(1 / 100, rel=0.05)
    assert weights.effective_support(normal(200_000, 6)) == pytest.approx(6 / 8, rel=0.01)


# analysis of variance

NAMES = ("family", "text", "seed")


def moved_by(factor):
    """Profiles of 12 blocks that differ in one factor of two levels alone, by 1 to either side."""
    sides = np.array([-1.0, 1.0]).reshape([2 if name == factor else 1 for name in NAMES])
    common = np.random.default_rng(0).normal(size=(12, 1, 1, 1))
    return np.broadcast_to(common + sides, (12, 2, 2, 2)).copy()


def tidy(profiles, factors):
    """Profiles, an axis of blocks and one a factor, as a table: a row a block and combination of levels."""
    index = pd.MultiIndex.from_product([range(size) for size in profiles.shape], names=["block", *factors])
    return pd.DataFrame({"r2": profiles.ravel()}, index=index).reset_index()


def analysed(profiles, factors):
    return anova(tidy(profiles, factors), factors).set_index("effect")


def test_anova_by_hand():
    found = analysed(np.array([[[1.0, 2.0], [3.0, 8.0]]]), ("a", "b"))  # mean 3.5; a ∓2, b ∓1.5, a × b ±1
    assert found.share.to_dict() == pytest.approx({"a": 16 / 29, "b": 9 / 29, "a × b": 4 / 29})
    assert found["size"].tolist() == pytest.approx([2, 1.5, 1])
    assert found.freedom.tolist() == [1, 1, 1]
    assert found.share_low["a"] == found.share["a"] == found.share_high["a"]  # one block: nothing to draw


def test_anova_is_regression_on_dummies():
    """Sums of squares as what ordinary least squares explains more when an effect's columns are added."""
    made = np.random.default_rng(2).normal(size=(3, 3, 2, 2))
    cells = np.array(list(product(range(3), range(2), range(2))))
    dummies = [np.eye(size)[cells[:, i]] for i, size in enumerate((3, 2, 2))]

    def columns(effect):
        made = np.ones((12, 1))
        for factor in effect:
            made = (made[:, :, None] * dummies[factor][:, None]).reshape(12, -1)
        return made

    in_any_order = tidy(made, ("a", "b", "c")).sample(frac=1, random_state=0)
    found = anova(in_any_order, ("a", "b", "c"))
    design, before, gained = np.ones((12, 1)), None, []
    for effect in [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]:
        design = np.hstack([design, columns(effect)])
        y = made.reshape(3, 12).T
        left = np.square(y - design @ np.linalg.lstsq(design, y, rcond=None)[0]).sum()
        gained, before = [*gained, (before or 0) - left], left
    expected = np.array(gained[1:]) / sum(gained[1:])
    assert found.share.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.freedom.tolist() == [2, 1, 1, 2, 2, 1, 2]


def test_the_interval_is_as_wide_as_blocks_differ_in_their_shares():
    """Half of the blocks are all family, half all text: the family's share is that of the blocks drawn."""
    made = moved_by("family")
    made[::2] = moved_by("text")[::2]
    found = analysed(made, NAMES).loc["family"]
    assert found.share == pytest.approx(0.5)
    expected = (0.5 - 1.96 / 48**0.5, 0.5 + 1.96 / 48**0.5)
    assert (found.share_low, found.share_high) == pytest.approx(expected, abs=0.05)
    louder_and_louder = moved_by("family") * np.arange(1, 13).reshape(12, 1, 1, 1)
    found = analysed(louder_and_louder, NAMES).loc["family"]
    assert (found.share_low, found.share_high) == pytest.approx((1, 1))  # of whichever blocks are drawn


# beside seeds


def repeated(families, theta, rho, random, seeds=2):
    """Profiles of 8 blocks: an architecture effect of size θ on noise of size 1, correlated ρ between blocks."""
    levels = np.linspace(-1, 1, families)
    levels *= theta / levels.std(ddof=1)
    sign = random.choice([-1.0, 1.0], size=(8, 1, 1, 1))
    common, own = random.normal(size=(1, families, 2, seeds)), random.normal(size=(8, families, 2, seeds))
    return sign * levels[None, :, None, None] + sign * rho**0.5 * common + (1 - rho) ** 0.5 * own


def compared(profiles, effects, factors=NAMES):
    return beside_seeds(tidy(profiles, factors), factors, effects)


def test_beside_seeds_by_hand():
    """Means 1.5 and 5.5, a mean square of 16; seeds ∓0.5 and ∓2.5, one of 6.5."""
    found = compared(np.array([[[1.0, 2.0], [3.0, 8.0]]]), ("weights",), ("weights", "seed"))
    assert found["f"] == pytest.approx(16 / 6.5)
    assert (found["freedom"], found["error_freedom"], found["independent_blocks"]) == (1, 2, pytest.approx(1))
    variance = (16 / 6.5 - 1) / 2  # θ² / σ²
    assert found["share"] == pytest.approx(variance / (1 + variance))
    assert found["ratio"] == pytest.approx((1 + variance) ** 0.5)


def test_beside_seeds_is_fishers_f_of_one_block():
    made = np.random.default_rng(0).normal(size=(1, 3, 4))
    found = compared(made, ("family",), ("family", "seed"))
    known = f_oneway(*made[0])
    assert found["f"] == pytest.approx(known.statistic)
    assert (found["share_low"] > 0) == (known.pvalue < 0.025)


@pytest.mark.long
@pytest.mark.parametrize("families", [2, 3])
@pytest.mark.parametrize("theta", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("rho", [0.6, 1.0])
def test_the_interval_beside_seeds_is_covered(families, theta, rho):
    random, held, truth = np.random.default_rng(1), 0, theta**2 / (1 + theta**2)
    for _ in range(80):
        found = compared(repeated(families, theta, rho, random), ("family",))
        held += found["share_low"] - 1e-12 <= truth <= found["share_high"] + 1e-12
    assert held / 80 > 0.88


@pytest.mark.parametrize("families", [2, 3])
def test_a_planted_text_effect_is_found_and_none_is_not(families):
    """What the falsifier's row must be able to say, both ways, with seeds enough."""
    random = np.random.default_rng(0)
    within = ("text", "family × text")
    nothing = repeated(families, 0.0, 0.3, random, seeds=12)
    assert compared(nothing, within)["ratio_high"] < 1.41
    text = nothing + np.array([-2.0, 2.0])[None, None, :, None]
    assert compared(text, within)["ratio_low"] > 1.41
    assert compared(text, ("family",))["share_high"] < 0.5
    few = repeated(families, 0.0, 0.3, random)
    assert compared(few, within)["ratio_low"] < 1.41  # two seeds: it cannot tell, but it does not cry wolf


def test_a_clear_effect_far_above_the_seeds_has_a_finite_interval():
    made = repeated(2, 1_000.0, 0.5, np.random.default_rng(0))
    found = compared(made, ("family",))
    assert 100 < found["ratio_low"] < found["ratio"] < found["ratio_high"] < 1e4


def test_the_seeds_of_one_kind_are_mere_labels():
    """One cell's seeds the other way round: the second seed of one has nothing to do with that of another."""
    made = repeated(3, 1.0, 0.5, np.random.default_rng(0))
    swapped = made.copy()
    swapped[:, 0, 1] = made[:, 0, 1, ::-1]
    assert compared(swapped, ("family",))["f"] == pytest.approx(compared(made, ("family",))["f"])
    assert analysed(swapped, NAMES).share["seed"] != pytest.approx(analysed(made, NAMES).share["seed"])


def test_profiles_that_cannot_be_analysed_are_refused():
    good = moved_by("family")
    with pytest.raises(InputError, match="95 values for 96 combinations of block, family, text, seed"):
        anova(tidy(good, NAMES)[:-1], NAMES)
    with pytest.raises(InputError, match="96 values for 24 combinations of block, family: give each one"):
        anova(tidy(good, NAMES), ["family"])


# other inputs


def covariance(x):
    return np.cov(np.asarray(x, np.float64), rowvar=False, ddof=0)


def coloured(n, d, seed):
    """Skewed rows of their own mean and covariance."""
    return normal(n, d, seed=seed).exp() @ normal(d, d, seed=seed + 1) + 10 * normal(d, seed=seed + 2)


def layer_normed(n, d, seed=0):
    x = nn.functional.layer_norm(normal(n, d, seed=seed) * torch.arange(1, d + 1), (d,))
    return (x * (1 + normal(d, seed=seed + 1).abs()) + normal(d, seed=seed + 2)).float()


def test_recoloured_rows_have_the_other_mean_and_covariance_and_nothing_is_turned():
    """Zero-phase whitening by square roots of the correlation matrices (scipy), there and back."""
    here, there = coloured(500, 6, 0), coloured(400, 6, 10)
    found = recolour(here, Colour.of(moments_of(here)), Colour.of(moments_of(there)))
    torch.testing.assert_close(found.mean(0), there.mean(0))
    np.testing.assert_allclose(covariance(found), covariance(there), rtol=1e-9, atol=1e-9)
    scales = [np.sqrt(np.diag(covariance(x))) for x in (here, there)]
    roots = [sqrtm(covariance(x) / np.outer(s, s)).real for x, s in zip((here, there), scales, strict=True)]
    white = ((here - here.mean(0)).numpy() / scales[0]) @ np.linalg.inv(roots[0])
    np.testing.assert_allclose(found, there.mean(0).numpy() + white @ roots[1] * scales[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rows", [coloured(300, 8, 3), layer_normed(300, 8)])
def test_a_models_own_colour_leaves_its_rows(rows):
    own = Colour.of(moments_of(rows))
    torch.testing.assert_close(recolour(rows, own, own), rows, rtol=1e-5, atol=1e-5)


def test_null_directions_of_the_target_stay_null():
    here, there = layer_normed(600, 8, 0), layer_normed(500, 8, 20)
    colours = [Colour.of(moments_of(x)) for x in (here, there)]
    assert colours[0].root.shape == (7, 8)
    for source, rows in ((colours[0], here), (Colour.of(moments_of(coloured(600, 8, 5))), coloured(600, 8, 5))):
        found = recolour(rows.double(), source, colours[1])
        np.testing.assert_allclose(covariance(found), covariance(there), atol=1e-5)
        assert np.linalg.eigvalsh(covariance(found))[0] < 1e-9
    narrow = recolour(here.double(), colours[0], Colour.of(moments_of(coloured(600, 8, 5))))
    assert np.linalg.matrix_rank(covariance(narrow), tol=1e-6) == 7


def test_a_constant_feature_stays_constant():
    here, there = coloured(300, 5, 0), coloured(300, 5, 9)
    there[:, 2] = 0.7
    found = recolour(here, Colour.of(moments_of(here)), Colour.of(moments_of(there)))
    torch.testing.assert_close(found[:, 2], torch.full_like(found[:, 2], 0.7))
    assert standardise(there, moments_of(there))[:, 2].abs().max() == 0


def test_turned_rows_keep_the_covariance_and_lose_their_directions():
    rows = coloured(4_000, 6, 0)
    own = Colour.of(moments_of(rows))
    found, again, other = (recolour(rows, own, own, turn=seed) for seed in (1, 1, 2))
    np.testing.assert_allclose(covariance(found), covariance(rows), rtol=1e-8, atol=1e-8)
    assert torch.equal(found, again)
    assert (found - other).abs().max() > 1 < (found - rows).abs().max()
    flat = own.white(rows).square().sum(1).sort().values  # how far out each row lies does not change
    torch.testing.assert_close(own.white(found).square().sum(1).sort().values, flat)


def test_normal_rows_have_a_colour_and_no_shape():
    rows = coloured(900, 4, 0)
    found = gaussian(Colour.of(moments_of(rows)), 200_000, seed=1).double()
    scale = rows.std(0)
    assert ((found.mean(0) - rows.mean(0)) / scale).abs().max() < 0.02
    assert (covariance(found) / np.outer(scale, scale)) == pytest.approx(
        covariance(rows) / np.outer(scale, scale), abs=0.02
    )
    white = (found - found.mean(0)) / found.std(0)
    assert white.pow(3).mean(0).abs().max() < 0.03
    assert white.pow(4).mean(0) == pytest.approx([3, 3, 3, 3], abs=0.1)


def test_standardised_rows_have_unit_variance():
    rows = coloured(300, 5, 0)
    found = standardise(rows, moments_of(rows))
    assert found.mean(0).abs().max() < 1e-12
    torch.testing.assert_close(found.square().mean(0), torch.ones(5, dtype=torch.float64))
