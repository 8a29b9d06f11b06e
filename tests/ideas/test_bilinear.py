from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad
from scipy.stats import t as student_t

from helpers.planted_products import OUT, D, kept_of, line, products, skewed
from helpers.reference import half_width, normal
from howlinear.core.ceilings import ceiling
from howlinear.errors import InputError
from howlinear.ideas.bilinear import probe as module
from howlinear.ideas.bilinear.probe import ProbeRows, _Projected, branch, power, probe, residual_rows, scores
from howlinear.ideas.bilinear.recipe import end_to_end

RANK = 2


@pytest.fixture(scope="module")
def planted():
    """A line, a rank-2 bilinear branch, and noise that neither explains."""
    x = skewed(3_000)
    return kept_of(x, line(x) + 40 * products(x) + 5 * normal(3_000, OUT, seed=3))


def test_scores_by_hand():
    y = torch.tensor([[9.0], [0.0], [2.0], [4.0], [10.0]])
    e = torch.tensor([[7.0], [1.0], [1.0], [2.0], [2.0]])
    added = torch.tensor([[0.0], [1.0], [0.0], [1.0], [2.0]])
    test, fold = torch.tensor([False, True, True, True, True]), torch.tensor([0, 0, 0, 1, 1])
    nought = torch.zeros(5, 1)
    rows = ProbeRows(x=nought, y=y, position=fold, token=fold, test=test, fold=fold, z=nought, e=e)
    affine, more = scores(rows, added)
    # y − 4 is −4 −2 0 6: Σ² = 56; fold 1 alone: 4, 10: Σ² = 18; fold 0 alone: 0, 2: Σ² = 2
    np.testing.assert_allclose(affine, [1 - 10 / 56, 1 - 8 / 18, 1 - 2 / 2])
    np.testing.assert_allclose(more, [1 - 2 / 56, 1 - 1 / 18, 1 - 1 / 2])


def test_a_square_by_hand():
    """y = z² with symmetric z: no line explains it, one product explains it all."""
    x = torch.tensor([-3.0, -1.0, 1.0, 3.0]).repeat(160)[:, None]  # folds hold whole rounds
    found = probe(kept_of(x, x.square()), rank=1, seeds=2)
    assert found.r2_lin == pytest.approx(0, abs=1e-6)
    assert found.r2_poly == pytest.approx(1, abs=1e-6)
    assert found.gain.value == pytest.approx(found.r2_poly - found.r2_lin)
    assert found.recovered == pytest.approx(1, abs=1e-6)
    # every start is the optimum, and the optimiser may stop before its first step
    rows = residual_rows(kept_of(x, x.square()))
    for seed in range(12):
        torch.testing.assert_close(branch(rows, 1, seed)(rows.z), rows.e, atol=1e-3, rtol=0)


def reference(z, e, left, right, z_new):
    """Branch and loss by plain least squares on stacked rows: ridge as √d more rows per input, no projections."""
    z, e, left, right, z_new = (np.asarray(part, np.float64) for part in (z, e, left, right, z_new))
    products, new = (z @ left) * (z @ right), (z_new @ left) * (z_new @ right)
    centre, d = z.mean(0), z.shape[1]
    stacked = np.vstack([z - centre, d**0.5 * np.eye(d)])
    slope = np.linalg.lstsq(stacked, np.vstack([products - products.mean(0), np.zeros((d, left.shape[1]))]))[0]
    features = products - products.mean(0) - (z - centre) @ slope
    readout = np.linalg.lstsq(features, e - e.mean(0))[0]
    loss = np.square(e - e.mean(0) - features @ readout).sum() / np.square(e - e.mean(0)).sum()
    return loss, (new - products.mean(0) - (z_new - centre) @ slope) @ readout + e.mean(0)


def test_readout_and_straight_part_match_least_squares_on_stacked_rows():
    z, e, fresh = normal(80, 5) + 0.1, normal(80, 3, seed=1) + 2, normal(7, 5, seed=2)
    z, e = z + 0.4 * z.square(), e + z[:, :1] * z[:, 1:2]
    both = normal(5, 4, seed=4)
    target = _Projected(z, e, 2)
    loss, _ = target(both.numpy().ravel())
    expected, prediction = reference(z, e, both[:, :2], both[:, 2:], fresh)
    assert loss == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(target.branch(both.numpy().ravel())(fresh), prediction, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_the_loss(seed):
    z, e = normal(60, 5, seed=seed), normal(60, 3, seed=seed + 10)
    target, at = _Projected(z, e, 2), normal(20, seed=seed + 20).numpy()
    slope = np.linalg.norm(target(at)[1])
    assert slope > 1e-3
    assert check_grad(lambda flat: target(flat)[0], lambda flat: target(flat)[1], at) < 1e-4 * slope


def test_a_planted_branch_is_recovered(planted):
    x = skewed(3_000)
    clean = probe(kept_of(x, line(x) + 40 * products(x)), rank=RANK)
    assert 0.1 < clean.r2_lin < 0.9
    assert clean.recovered > 0.98
    noisy = probe(planted, rank=RANK)
    assert 0.8 * clean.gain.value < noisy.gain.value < clean.gain.value
    assert noisy.gain.low < noisy.gain.value < noisy.gain.high


def test_too_low_a_rank_recovers_part_and_a_higher_one_no_more(planted):
    one, two, four = (probe(planted, rank=rank).gain.value for rank in (1, 2, 4))
    assert 0.1 * two < one < 0.9 * two
    assert four == pytest.approx(two, abs=0.01)


def test_a_cubic_teacher_is_not_recovered():
    x = normal(3_000, D)
    found = probe(kept_of(x, line(x) + products(x, 3)), rank=RANK)
    assert 1 - found.r2_lin > 0.02
    assert found.recovered < 0.1


def test_a_line_leaves_nothing_to_gain():
    x = skewed(1_000)
    found = probe(kept_of(x, line(x)), rank=RANK)
    assert found.r2_lin == pytest.approx(1, abs=1e-9)
    assert abs(found.gain.value) < 1e-9


def test_inputs_are_white_and_residuals_are_the_maps(planted):
    rows, sample = residual_rows(planted), planted.sample
    z = rows.z[~rows.test].double()
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(D, dtype=torch.float64), atol=1e-4, rtol=0)
    expected = sample.y - ceiling(planted.train, planted.test).map(sample.x.double())
    torch.testing.assert_close(rows.e.double(), expected, atol=1e-6 * float(sample.y.abs().max()), rtol=0)


def test_the_interval_is_the_jackknife_of_folds_and_of_fits(planted):
    rows, gains = residual_rows(planted), []
    for seed in range(3):
        added = branch(rows, RANK, seed)(rows.z)
        masks = [rows.test, *(rows.test & (rows.fold != i) for i in range(4))]
        totals = [(rows.y[mask].double() - rows.y[mask].double().mean(0)).square().sum() for mask in masks]
        saved = [(rows.e[mask].square() - (rows.e - added)[mask].square()).sum() for mask in masks]
        gains.append([float(part / total) for part, total in zip(saved, totals, strict=True)])
    gains = np.array(gains)
    left_out = gains[:, 1:].mean(0)
    tests = 3 / 4 * np.square(left_out - left_out.mean()).sum()
    trains = 3 * np.var(gains[:, 0], ddof=1)
    freedom = (tests + trains) ** 2 / (tests**2 / 3 + trains**2 / 2)
    half = student_t.ppf(0.975, freedom) * (tests + trains) ** 0.5
    found = probe(planted, rank=RANK)
    assert found.gain.value == pytest.approx(gains[:, 0].mean(), abs=1e-6)
    assert (found.gain.low, found.gain.high) == pytest.approx(
        (found.gain.value - half, found.gain.value + half), abs=1e-5
    )
    alone = probe(planted, rank=RANK, seeds=1).gain
    assert alone.half_width == pytest.approx(half_width(gains[0, 1:]), abs=1e-5)


def test_held_out_rows_do_not_touch_the_fit(planted):
    rows = residual_rows(planted)
    spoilt = replace(rows, e=rows.e.masked_fill(rows.test[:, None], torch.nan))
    for part, other in zip(vars(branch(rows, RANK)).values(), vars(branch(spoilt, RANK)).values(), strict=True):
        assert torch.equal(part, other)


def test_a_fold_that_contradicts_the_others_stops_the_fit_before_it_starts(planted):
    rows = residual_rows(planted)
    contrary = (rows.fold == 1) & ~rows.test
    turned = replace(rows, e=torch.where(contrary[:, None], -rows.e, rows.e))
    assert not branch(turned, RANK, seed=1)(rows.z).any()
    assert branch(turned, RANK, seed=0)(rows.z).any()


def test_a_fit_ends_once_it_has_long_gained_nothing(planted, monkeypatch):
    seen, call = [], _Projected.__call__
    monkeypatch.setattr(_Projected, "__call__", lambda target, flat: [call(target, flat), seen.append(flat)][0])
    rows, counts = residual_rows(planted), {}
    noise = replace(rows, e=normal(*rows.e.shape, seed=4).float())
    for patience in (3, 1_000):
        monkeypatch.setattr("howlinear.ideas.bilinear.probe.PATIENCE", patience)
        for name, target in (("noise", noise), ("planted", rows)):
            seen.clear()
            assert branch(target, RANK, steps=1_000).readout.any() == (name == "planted")
            counts[name, patience] = len(seen)
    assert counts["noise", 3] < 8 < counts["noise", 1_000]
    assert counts["planted", 3] > 8  # goes on while there is something to be gained


def test_a_probe_repeats_itself_and_keeps_what_its_first_seed_found(planted):
    one, same, alone = (probe(planted, rank=RANK, seeds=seeds, steps=5) for seeds in (2, 2, 1))
    assert one.gain == same.gain
    assert one.gain.value != alone.gain.value
    for name, first in vars(branch(residual_rows(planted), RANK, seed=0, steps=5)).items():
        assert torch.equal(getattr(one.branch, name), first)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 0}, f"rank=0, .*inputs of rank {D}: take a rank of 1 to {D}"),
        ({"rank": D + 1}, f"rank={D + 1}, .*inputs of rank {D}: take a rank of 1 to {D}"),
        ({"seeds": 0}, "seeds must be 1 to 4.*got 0"),
        ({"seeds": 5}, "seeds must be 1 to 4.*got 5"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_a_probe_refuses_what_cannot_be(planted, wrong, message):
    with pytest.raises(InputError, match=message):
        probe(planted, **{"rank": RANK} | wrong)


def test_ranks_are_those_that_the_probe_has_rows_for():
    """What is kept can be fitted, whichever fold is kept apart, and what is left out cannot."""
    few, many = (kept_of(x, line(x)) for x in (normal(100, D), normal(1_000, D)))
    assert module.ranks_within([1, 4, 8], [many, few]) == [1, 4]
    assert module.ranks_within([1, 4, 8], [many]) == [1, 4, 8]
    rows = residual_rows(few)
    for seed in range(4):
        branch(rows, 4, seed, steps=1)
    with pytest.raises(InputError, match="56 rows to fit rank 8 on: use at least 80, or a lower rank"):
        branch(rows, 8, steps=1)
    with pytest.raises(InputError, match=r"the least of the ranks \[8, 16\] needs 80: sample more rows"):
        module.ranks_within([8, 16], [few])


def test_outputs_that_are_constant_are_refused():
    x = normal(200, 3)
    with pytest.raises(InputError, match="constant over 50 held-out rows"):
        probe(kept_of(x, torch.full((200, 2), 3.0)), rank=1, seeds=1)


def test_power_finds_what_is_planted_and_nothing_else():
    x = skewed(4_000)
    kept = kept_of(x, line(x) + 30 * products(x, 3))
    found, one = power(kept, rank=RANK), power(kept, rank=RANK, seeds=1)
    assert module.hidden_teacher(kept, rank=RANK) == one["hidden"] != found["hidden"]
    assert found["planted"] > 0.95
    assert 0.7 < found["hidden"] < 1
    assert found["cubic"] < 0.6
    assert -0.02 < found["shuffled"] <= 0.005
    with pytest.raises(InputError, match="seeds=0"):
        power(kept, rank=RANK, seeds=0)


def test_teachers_have_no_straight_part_and_the_degree_they_say():
    rows = residual_rows(kept_of(normal(4_000, 4), normal(4_000, OUT, seed=1)))
    for degree in (2, 3):
        planted = module.teacher(rows, degree, RANK, torch.Generator().manual_seed(0))[~rows.test].double()
        z = rows.z[~rows.test].double()
        straight = z @ torch.linalg.lstsq(z, planted).solution
        assert straight.square().sum() < 1e-4 * planted.square().sum()
        monomials = torch.stack([z[:, i] * z[:, j] for i in range(4) for j in range(i, 4)], 1)
        quadratic = torch.cat([torch.ones_like(z[:, :1]), z, monomials], 1)
        left = planted - quadratic @ torch.linalg.lstsq(quadratic, planted).solution
        share = float(left.square().sum() / planted.square().sum())
        assert share < 1e-4 if degree == 2 else share > 0.5


def test_shuffling_keeps_rows_and_sides(planted):
    rows = residual_rows(planted)
    mixed = module.shuffled(rows, torch.Generator().manual_seed(0))
    for side in (rows.test, ~rows.test):
        order, before = mixed[side, 0].argsort(), rows.e[side, 0].argsort()
        assert torch.equal(mixed[side][order], rows.e[side][before])
        assert (mixed[side] == rows.e[side]).all(1).float().mean() < 0.02


def test_end_to_end_starts_at_the_closed_form(planted):
    found, again = (end_to_end(planted, rank=RANK, rate=1e-9, steps=10) for _ in range(2))
    assert found == again
    assert found == pytest.approx({"gain": 0, "gate": 1, "share": 0}, abs=1e-6)


def test_end_to_end_finds_most_of_a_planted_branch_and_says_how_much_it_adds():
    x = normal(2_000, D)
    kept = kept_of(x, line(x) + 2 * products(x))
    found, best = end_to_end(kept, rank=RANK, rate=3e-2), probe(kept, rank=RANK)
    assert 0.8 * best.gain.value < found["gain"] < 1 - best.r2_lin
    assert found["share"] == pytest.approx(1 - best.r2_lin, rel=0.25)  # independent of the line, so variances add


def test_a_gate_that_closes_need_not_mean_a_branch_that_does(monkeypatch):
    """The same function from a larger A and a smaller gate: only the share is a property of the function."""
    x = normal(2_000, D)
    kept = kept_of(x, line(x) + 2 * products(x))
    found = []
    for decay in (0.0, 0.3):
        monkeypatch.setattr("howlinear.ideas.bilinear.recipe.DECAY", decay)
        found.append(end_to_end(kept, rank=RANK, rate=3e-2))
    loose, tight = found
    assert abs(loose["gate"] - tight["gate"]) > 0.05
    assert loose["share"] == pytest.approx(tight["share"], rel=0.1)


def test_end_to_end_refuses_too_few_steps(planted):
    with pytest.raises(InputError, match="9 steps to train a gate: take 10 or more"):
        end_to_end(planted, steps=9)
