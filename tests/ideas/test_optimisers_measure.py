import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

from helpers.planted_products import OUT, kept_of, line, skewed
from helpers.reference import normal
from howlinear.core.ceilings import ceiling, fit, r2
from howlinear.ideas.optimisers import measure
from howlinear.ideas.optimisers.gradient_descent import descent
from howlinear.ideas.optimisers.problem import SCALINGS, Problem
from howlinear.ideas.optimisers.training import OPTIMISERS, shortfall, tuned

STEPS = 30


@pytest.fixture(scope="module")
def models():
    x = skewed(800)
    kept = {block: kept_of(x, line(x) + noise * normal(800, OUT, seed=3)) for block, noise in ((0, 5), (4, 20))}
    return {"one": kept, "two": {4: kept[4]}}


@pytest.fixture(scope="module")
def paths(models):
    return measure.race(Problem.of(models["one"][0]), STEPS, 128, [1, 10])


def test_forecasts_are_those_of_the_descent_and_of_the_closed_form(models):
    table = measure.forecasts(models, STEPS)
    assert table[["model", "block"]].to_numpy().tolist() == [["one", 0], ["one", 4], ["two", 4]]
    problem = Problem.of(models["one"][4])
    exact, theory = ceiling(problem.folds, problem.test), descent(problem.moments)
    row = table.iloc[1]
    assert (row.r2, row.r2_low, row.r2_high) == pytest.approx((exact.r2, exact.r2_low, exact.r2_high))
    assert row.condition == pytest.approx(exact.condition)
    assert row.reached == pytest.approx(r2(theory.after(STEPS), problem.held_out))
    assert table.raced.sum() == 1
    assert (table.r2 - table.reached)[table.raced].item() == (table.r2 - table.reached).max()
    asleep = (1 - theory.rate * theory.values) ** STEPS > 0.5
    assert 0 < row.asleep == int(asleep.sum()) < len(asleep)
    assert row.asleep_share == pytest.approx(float(theory.shares[asleep].sum()))
    needed = int(row.steps_needed)
    assert theory.unlearned(needed) <= 0.01 < theory.unlearned(needed - 1)


def test_the_valley_is_long_in_raw_inputs_and_a_bowl_in_standardised_ones():
    x = normal(1_000, 2, seed=5) * torch.tensor([1.0, 0.1])
    y = x[:, :1] + 10 * x[:, 1:] + 3
    surfaces, walks = measure.valley(x, y, steps=[0, 1, 2_000])
    assert list(surfaces.scaling.unique()) == list(walks.scaling.unique()) == ["raw", "standardised"]
    raw, bowl = (walks[walks.scaling == scaling].set_index("step") for scaling in ("raw", "standardised"))
    np.testing.assert_allclose(raw.loc[0, ["first", "second"]].astype(float), 0, atol=1e-9)
    assert raw.loc[1, "first"] > 0.9  # one step learns the loud input
    assert raw.loc[1, "second"] < 0.5  # and hardly anything of the quiet one
    np.testing.assert_allclose(raw.loc[2_000, ["first", "second"]].astype(float), [1, 10], atol=1e-6)
    one, last = bowl.loc[1, ["first", "second"]], bowl.loc[2_000, ["first", "second"]]
    np.testing.assert_allclose(one.astype(float), last.astype(float), rtol=0.1)

    # the map is the share that weights leave unlearned, with the best bias: here of three of its points
    of_raw = surfaces[surfaces.scaling == "raw"]
    for point in of_raw.sample(3, random_state=0).itertuples():
        left = y - x @ torch.tensor([[point.first], [point.second]], dtype=torch.float64)
        share = float((left - left.mean()).square().sum() / (y - y.mean()).square().sum())
        assert point.unlearned == pytest.approx(share)


def test_a_race_is_run_by_all_in_all_scalings_and_its_scores_are_tidy(models, paths):
    assert list(paths) == [(scaling, optimiser) for scaling in SCALINGS for optimiser in OPTIMISERS]
    alone = tuned(
        Problem.of(models["one"][0]), "Adam", "raw", OPTIMISERS["Adam"].rates, steps=STEPS, batch=128, at=[1, 10]
    )
    assert paths["raw", "Adam"].r2 == alone.r2
    table = measure.scores(paths)
    adam = table[(table.scaling == "raw") & (table.optimiser == "Adam")]
    assert adam.step.tolist() == [1, 10, STEPS]
    assert adam.reached.tolist() == list(alone.r2)
    assert set(adam.rate) == {alone.rate}
    assert len(table) == sum(len(path.steps) for path in paths.values())


def test_trained_blocks_fall_short_as_shortfall_says(models):
    table = measure.trained(models, {"momentum": [1.0], "Adam": [0.1, 0.3]}, STEPS, 128, seed=2)
    assert table.way.tolist() == ["momentum", "Adam"] * 3
    assert table.block.tolist() == [0, 0, 4, 4, 4, 4]
    problem = Problem.of(models["one"][4])
    path = tuned(problem, "Adam", "raw", [0.1, 0.3], steps=STEPS, batch=128, seed=2)
    gap, row = shortfall(problem, path.map), table.iloc[3]
    assert row.reached == r2(path.map, problem.held_out)
    assert (row.gap, row.gap_low, row.gap_high) == (gap.value, gap.low, gap.high)


def made_up():
    """Two models of three blocks: descent keeps the order within `a` and turns it round in `b`; Adam is exact."""
    forecasts = pd.DataFrame(
        {
            "model": ["a"] * 3 + ["b"] * 3,
            "block": [0, 1, 2] * 2,
            "condition": [1.0, 2, 3, 4, 5, 6],
            "r2": [0.5, 0.6, 0.7, 0.8, 0.4, 0.9],
            "reached": [0.4, 0.5, 0.55, 0.3, 0.5, 0.2],
        }
    )
    forecasts["r2_low"], forecasts["r2_high"] = forecasts.r2 - 0.12, forecasts.r2 + 0.12
    trained = forecasts[["model", "block"]].assign(way="Adam", reached=forecasts.r2)
    return measure.beside_exact(forecasts, measure.ways(forecasts, trained))


def test_every_way_stands_beside_the_closed_form():
    table = made_up()
    assert table.groupby("way", sort=False).size().to_dict() == {"GD": 6, "Adam": 6}
    row = table[(table.way == "GD") & (table.model == "b") & (table.block == 1)].iloc[0]
    assert (row.reached, row.gap, row.r2, row.condition) == pytest.approx((0.5, -0.1, 0.4, 5))
    assert (row.r2_low, row.r2_high) == pytest.approx((0.28, 0.52))


def test_verdicts_by_hand():
    table = measure.verdicts(made_up()).set_index(["model", "way"])
    assert table.loc[("a", "GD")].to_dict() == pytest.approx({"spearman": 1, "outside": 1, "flipped": 0, "worst": 0.15})
    assert table.loc[("b", "GD")].to_dict() == pytest.approx({"spearman": -1, "outside": 2, "flipped": 2, "worst": 0.7})
    for model in ("a", "b"):
        assert table.loc[(model, "Adam")].to_dict() == pytest.approx(
            {"spearman": 1, "outside": 0, "flipped": 0, "worst": 0}
        )


def test_comparisons_of_models_are_made_block_by_block():
    table = measure.by_way(made_up()).set_index("way")
    assert table.turned.to_dict() == {"GD": 2, "Adam": 0}  # at 0 and 2 b is the more linear, and descent says a
    assert set(table.compared) == {3}
    gaps, condition = [0.1, 0.1, 0.15, 0.5, -0.1, 0.7], [1, 2, 3, 4, 5, 6]
    assert table.rho_condition["GD"] == pytest.approx(spearmanr(gaps, condition)[0])
    alone = made_up()
    assert measure.by_way(alone[alone.model == "a"])[["compared", "turned"]].to_numpy().tolist() == [[0, 0], [0, 0]]
    shorter = alone[(alone.model == "a") | (alone.block < 2)]  # blocks that both have
    assert measure.by_way(shorter).set_index("way")[["compared", "turned"]].to_numpy().tolist() == [[2, 1], [2, 0]]


def test_a_single_block_has_no_rank_correlation():
    table = made_up().query("model == 'a' and block == 0")
    assert measure.verdicts(table).spearman.isna().all()
    assert measure.by_way(table).rho_condition.isna().all()


def test_directions_are_the_modes_that_are_not_null(models):
    x = skewed(800)
    x[:, 0] = x[:, 1]  # a null direction
    problem = Problem.of(kept_of(x, line(x)))
    theory = descent(problem.moments)
    exact, _ = fit(problem.moments)
    table = measure.directions(theory, {"exact": exact, "start": theory.after(0)})
    assert table.way.tolist() == ["exact"] * 10 + ["start"] * 10
    start, ways = table[table.way == "start"], table.way
    np.testing.assert_allclose(start.loudness.iloc[-1], 1)
    assert (np.diff(start.loudness) > 0).all()
    assert start.share.sum() == pytest.approx(float(theory.shares.sum()), abs=1e-6)
    np.testing.assert_allclose(start.learned, 0, atol=1e-9)
    np.testing.assert_allclose(table.learned[ways == "exact"], 1, atol=1e-9)
