from contextlib import contextmanager
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from helpers.captures import moments_of
from helpers.reference import normal
from howlinear.core.ceilings import AffineMap, ceiling, fit, r2
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.optimisers.gradient_descent import descent, second_moments
from howlinear.ideas.optimisers.problem import SCALINGS, Coordinates, Problem
from howlinear.ideas.optimisers.training import OPTIMISERS, _Layer, shortfall, train, tuned
from howlinear.instrument.capture import capture


def problem_of(x, y, folds=4):
    """Half of the rows to train on, a quarter each to validate and to be judged on."""
    x, y = x.float(), y.float()
    n = len(x) // 4
    parts = zip(x[: 2 * n].tensor_split(folds), y[: 2 * n].tensor_split(folds), strict=True)
    tests = zip(x[3 * n :].tensor_split(folds), y[3 * n :].tensor_split(folds), strict=True)
    return Problem(
        x[: 2 * n],
        y[: 2 * n],
        [moments_of(*part) for part in parts],
        moments_of(x[2 * n : 3 * n], y[2 * n : 3 * n]),
        [moments_of(*part) for part in tests],
    )


def easy(n=2_400, d=6, seed=0):
    """Well-conditioned inputs off the origin, a linear map and noise: R² about 0.9."""
    x = normal(n, d, seed=seed) + 0.5
    return problem_of(x, x @ normal(d, 4, seed=seed + 1) + 0.7 * normal(n, 4, seed=seed + 2))


def hard(n=2_400, d=6, condition=1e6, turned=False, seed=0):
    """Half of the output's variance comes from the loudest direction, half from the quietest."""
    z = normal(n, d, seed=seed)
    x = z * torch.logspace(0, -np.log10(condition), d, dtype=torch.float64)
    turn = torch.linalg.qr(normal(d, d, seed=seed + 5)).Q if turned else torch.eye(d, dtype=torch.float64)
    return problem_of(x @ turn, torch.stack([z[:, 0], z[:, -1]], 1))


@contextmanager
def in_float64():
    """All optimisers on rows and weights of float64."""
    with pytest.MonkeyPatch.context() as patch:
        for name, recipe in OPTIMISERS.items():
            patch.setitem(OPTIMISERS, name, replace(recipe, dtype=torch.float64))
        yield


def descend(problem, scaling, rate, steps, at=()):
    """Full-batch descent in float64, its rate constant."""
    with in_float64():
        return train(problem, "SGD", scaling, rate, steps, batch=None, at=at, decay=False)


def gap(problem, path):
    return r2(fit(problem.moments)[0], problem.held_out) - path.r2[-1]


# Gradient descent, foretold


def test_descent_by_hand():
    """x = ±1 and y = 2x + 1: second moments are the identity, half of the error goes at every step of rate ½."""
    foretold = descent(moments_of(torch.tensor([[-1.0], [1.0]] * 2), torch.tensor([[-1.0], [3.0]] * 2)), 0.5)
    assert foretold.values.tolist() == pytest.approx([1, 1])
    for steps in (0, 1, 3):
        assert foretold.after(steps).weight.item() == pytest.approx(2 * (1 - 0.5**steps))
        assert foretold.after(steps).bias.item() == pytest.approx(1)
        assert foretold.unlearned(steps) == pytest.approx(0.25**steps)
    assert foretold.steps_to(0.01) == 4  # ¼³ = 0.016, ¼⁴ = 0.004
    assert foretold.shares.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.5, 1.0, 1.9])
def test_theory_and_run_agree(seed, rate):
    problem = hard(condition=30, turned=True, seed=seed)
    foretold = descent(problem.moments, rate / float(second_moments(problem.moments)[0][-1]))
    at = [1, 7, 50]
    path = descend(problem, "raw", rate, 200, at)
    assert path.steps == (*at, 200)
    assert path.r2 == pytest.approx([r2(foretold.after(step), problem.held_out) for step in path.steps], abs=1e-8)
    torch.testing.assert_close(path.map.weight, foretold.after(200).weight, rtol=0, atol=1e-8)
    torch.testing.assert_close(path.map.bias, foretold.after(200).bias, rtol=0, atol=1e-8)


def test_learned_is_the_rest_of_left_and_works_for_any_map():
    foretold = descent(easy().moments)
    for steps in (0, 3, 30):
        torch.testing.assert_close(foretold.learned(foretold.after(steps)), 1 - foretold.left(steps))
    torch.testing.assert_close(
        foretold.learned(fit(easy().moments)[0]), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_descent_refuses():
    moments = easy().moments
    limit = 2 / float(second_moments(moments)[0][-1])
    with pytest.raises(InputError, match=rf"rate {1.01 * limit:.3g} descent diverges.*between 0 and {limit:.3g}"):
        descent(moments, 1.01 * limit)
    with pytest.raises(InputError, match="between 0 and"):
        descent(moments, 0.0)
    with pytest.raises(InputError, match=r"rate of 1e-30 leaves 0\.9.*for good"):
        descent(moments, 1e-30).steps_to(0.1)
    with pytest.raises(InputError, match="outputs are constant over 50 rows"):
        descent(moments_of(normal(50, 3), torch.zeros(50, 2)))
    with pytest.raises(InputError, match="0 train rows for 3 inputs"):
        descent(Moments(3, 2))


# Planted truths


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_every_optimiser_reaches_the_ceiling_of_a_kind_problem(optimiser, scaling):
    problem = easy(n=1_600)
    rates = OPTIMISERS[optimiser].rates
    assert abs(gap(problem, tuned(problem, optimiser, scaling, rates, steps=120, batch=100))) < 5e-3


def test_descent_falls_short_by_the_foretold_amount_where_the_signal_is_quiet():
    problem = hard(n=1_200)
    assert ceiling(problem.folds, problem.test).r2 == pytest.approx(1, abs=1e-9)
    path = descend(problem, "raw", 1.0, 1_000)
    assert gap(problem, path) == pytest.approx(0.5, abs=0.03)  # the quiet half, whole
    assert 1 - r2(path.map, problem.moments) == pytest.approx(descent(problem.moments).unlearned(1_000), abs=1e-8)
    assert gap(problem, descend(problem, "whitened", 1.0, 1_000)) == pytest.approx(0, abs=1e-8)


# The pieces


def reference(problem, make, steps, batch, seed):
    """The same training with nn.Linear and autograd, in float64, on standardised inputs."""
    x, y = problem.x.double(), problem.y.double()
    centre, scale = x.mean(0), x.std(0, correction=0)
    spread = (y - y.mean(0)).square().mean().sqrt()
    x, y = (x - centre) / scale, y / spread
    layer = torch.nn.Linear(x.shape[1], y.shape[1]).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(y.mean(0))
    optimisers = make(layer.weight, layer.bias)
    peaks = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
    generator, left = torch.Generator().manual_seed(seed), []
    for step in range(steps):
        left = left if len(left) >= batch else torch.randperm(len(x), generator=generator).tolist()
        rows, left = left[:batch], left[batch:]
        layer.zero_grad()
        (0.5 * (layer(x[rows]) - y[rows]).square().sum(1).mean()).backward()
        for optimiser, peak in zip(optimisers, peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * (steps - step) / steps
            optimiser.step()
    weight = spread * (layer.weight.T / scale[:, None]).detach()
    return AffineMap(weight, (spread * layer.bias).detach() - centre @ weight)


TORCH = {
    "Adam": lambda w, b: [torch.optim.Adam([w, b], 0.03)],
    "AdamW": lambda w, b: [torch.optim.AdamW([w, b], 0.03, weight_decay=0.01)],
    "SGD": lambda w, b: [torch.optim.SGD([w, b], 0.03)],
    "momentum": lambda w, b: [torch.optim.SGD([w, b], 0.03, momentum=0.9)],
}


@pytest.mark.parametrize("optimiser", TORCH)
def test_training_equals_a_linear_layer_with_autograd(optimiser):
    problem = easy(n=400)
    rate = 0.03
    if OPTIMISERS[optimiser].relative:
        standard = Coordinates.of(problem.moments, "standardised").rows(problem.x)
        rate *= float(second_moments(Moments(6).update(standard))[0][-1])
    with in_float64():
        path = train(problem, optimiser, "standardised", rate, steps=30, batch=64, seed=7)
    expected = reference(problem, TORCH[optimiser], 30, 64, 7)
    torch.testing.assert_close(path.map.weight, expected.weight, rtol=0, atol=1e-10)
    torch.testing.assert_close(path.map.bias, expected.bias, rtol=0, atol=1e-10)


def test_muon_steps_the_matrix_by_a_nearly_orthogonal_one_and_leaves_it_undecayed():
    problem = easy(n=400)
    one = train(problem, "Muon", "whitened", 0.01, steps=1, batch=None, decay=False)
    spread = float((problem.moments.syy.mean() / problem.moments.n).sqrt())
    frame = Coordinates.of(problem.moments, "whitened")
    step = torch.linalg.lstsq(frame.mixing, one.map.weight).solution / spread / 0.01
    singular = torch.linalg.svdvals(step) / (6 / 4) ** 0.5
    assert 0.5 < singular.min() < singular.max() < 1.3
    parts = OPTIMISERS["Muon"].make(torch.zeros(3, 2), torch.zeros(2), 0.1)
    assert [type(part).__name__ for part in parts] == ["Muon", "Adam"]
    assert parts[0].defaults["weight_decay"] == 0


def test_scores_are_at_the_steps_asked_for_and_on_held_out_rows():
    problem = easy(n=400)
    path = train(problem, "Adam", "raw", 0.1, steps=20, batch=50, at=[1, 4, 99])
    assert path.steps == (1, 4, 20)
    assert path.r2[-1] == r2(path.map, problem.held_out)
    assert path.validation == r2(path.map, problem.validation)
    again, other = (train(problem, "Adam", "raw", 0.1, steps=20, batch=50, at=[1, 4, 99], seed=seed) for seed in (0, 1))
    assert again.r2 == path.r2 != other.r2
    whole, larger = (train(problem, "Adam", "raw", 0.1, steps=3, batch=batch) for batch in (None, 10_000))
    assert whole.r2 == larger.r2


def test_lbfgs_gets_as_many_row_visits(monkeypatch):
    calls = []
    original = _Layer.gradient
    monkeypatch.setattr(_Layer, "gradient", lambda self, rows: calls.append(rows) or original(self, rows))
    problem = hard(n=400, condition=20, turned=True)
    path = train(problem, "L-BFGS", "raw", 1.0, steps=60, batch=50)  # 15 passes over 200 rows
    assert all(rows == slice(None) for rows in calls)
    assert path.steps[-1] == 4 * len(calls)
    assert path.steps[-2] < 60 <= path.steps[-1]
    assert list(path.steps) == sorted(path.steps)
    assert abs(gap(problem, path)) < 0.02


def test_the_rate_is_chosen_on_the_validation_fold_alone():
    problem = easy(n=400)
    rates = (1e-3, 1.0, 0.1)
    paths = [train(problem, "SGD", "raw", rate, steps=40) for rate in rates]
    best = tuned(problem, "SGD", "raw", rates, steps=40)
    assert best.rate == 1.0
    assert best.validation == max(path.validation for path in paths)
    misled = replace(problem, validation=moments_of(problem.x.flip(0), problem.y))  # rows that tell nothing
    assert tuned(misled, "SGD", "raw", rates, steps=40).rate == 1e-3
    fooled = replace(problem, test=[moments_of(problem.x.flip(0), problem.y)])
    assert tuned(fooled, "SGD", "raw", rates, steps=40).rate == 1.0


def test_rates_that_overflow_are_passed_over():
    problem = easy(n=400)
    assert tuned(problem, "momentum", "raw", (1e30, 1.0), steps=60).rate == 1.0
    with pytest.raises(InputError, match=r"momentum on raw inputs overflowed at every rate of \[1e\+30\]"):
        tuned(problem, "momentum", "raw", [1e30], steps=60)


def test_training_refuses():
    problem = easy(n=400)
    with pytest.raises(InputError, match="no optimiser 'Adagrad': one of SGD, momentum, Adam, AdamW, Muon, L-BFGS"):
        train(problem, "Adagrad", "raw", 0.1)
    with pytest.raises(InputError, match="no scaling 'log': one of raw, standardised, whitened"):
        train(problem, "SGD", "log", 0.1)
    for wrong in ({"steps": 0}, {"batch": 0}, {"rate": 0.0}):
        with pytest.raises(InputError, match="must be positive"):
            train(problem, "SGD", "raw", **{"rate": 0.1, **wrong})


def test_coordinates_do_what_they_say_and_can_be_undone():
    problem = hard(condition=30, turned=True)
    x = problem.x.double() + 2
    moments = moments_of(x, problem.y)
    rows = {scaling: Coordinates.of(moments, scaling).rows(x) for scaling in SCALINGS}
    torch.testing.assert_close(rows["raw"], x)
    for scaling in ("standardised", "whitened"):
        torch.testing.assert_close(rows[scaling].mean(0), torch.zeros(6).double(), rtol=0, atol=1e-10)
        torch.testing.assert_close(rows[scaling].var(0, correction=0), torch.ones(6).double())
    torch.testing.assert_close(rows["whitened"].T @ rows["whitened"] / len(x), torch.eye(6).double())
    weight, bias = normal(6, 2, seed=8), normal(2, seed=9)
    for scaling in SCALINGS:
        affine = Coordinates.of(moments, scaling).undo(weight, bias)
        torch.testing.assert_close(affine(x), rows[scaling] @ weight + bias)


def test_whitening_leaves_null_directions_out_and_constants_alone():
    x = normal(200, 3)
    x = torch.cat([x, x.sum(1, keepdim=True), torch.full((200, 1), 0.1, dtype=torch.float64)], 1)
    moments = moments_of(x, x[:, :1])
    assert Coordinates.of(moments, "whitened").rows(x).shape == (200, 3)
    assert Coordinates.of(moments, "standardised").rows(x)[:, 4].tolist() == [0] * 200


def test_shortfall_is_paired_over_held_out_folds():
    problem = easy(n=400)
    trained = descent(problem.moments).after(3)
    found, exact = shortfall(problem, trained), fit(problem.moments)[0]
    assert found.value == pytest.approx(ceiling(problem.folds, problem.test).r2 - r2(trained, problem.held_out))
    parts = [sum(problem.test[:i] + problem.test[i + 1 :]) for i in range(4)]
    paired = Estimate.jackknife(found.value, [r2(exact, part) - r2(trained, part) for part in parts])
    assert astuple(found) == pytest.approx(astuple(paired))
    assert found.low < found.value < found.high
    assert shortfall(problem, exact) == Estimate(0.0, 0.0, 0.0)


def test_a_problem_deals_the_sampled_rows_to_three_sides(gpt2, rows):
    kept = capture(gpt2, rows, sample=rows.ids.numel())[1]
    problem, sample = Problem.of(kept), kept.sample
    last = sample.fold == sample.fold[~sample.test].max()
    mine = ~sample.test & ~last
    assert torch.equal(problem.x, sample.x[mine])
    assert torch.equal(problem.y, sample.y[mine])
    assert [part.n for part in problem.folds] == [int((mine & (sample.fold == fold)).sum()) for fold in range(2)]
    assert problem.moments.n == len(problem.x)
    torch.testing.assert_close(problem.moments.sxy, moments_of(problem.x, problem.y).sxy)
    chosen = ~sample.test & last
    torch.testing.assert_close(problem.validation.sxx, moments_of(sample.x[chosen], sample.y[chosen]).sxx)
    assert problem.test is kept.test
    assert problem.held_out.n == sum(part.n for part in kept.test)
