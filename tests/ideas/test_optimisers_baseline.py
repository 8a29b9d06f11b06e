from dataclasses import replace

import pytest
import torch

from howlinear.core.ceilings import AffineMap, decompose, fit, r2
from howlinear.errors import InputError
from howlinear.ideas.optimisers import measure
from howlinear.ideas.optimisers.baseline import BASELINES, baseline, planted
from howlinear.ideas.optimisers.training import shortfall

ILL, TRUTH = planted(n=3_200, d=16)


def test_the_planted_problem_is_what_it_says():
    assert TRUTH == 0.95
    assert r2(fit(ILL.moments)[0], ILL.held_out) == pytest.approx(TRUTH, abs=0.02)
    assert decompose(ILL.moments).condition == pytest.approx(1e4, rel=0.1)
    variances = ILL.held_out.syy
    assert float(variances.max() / variances.median()) == pytest.approx(100, rel=0.15)
    assert (len(ILL.x), ILL.moments.n, ILL.validation.n, ILL.held_out.n) == (1_200, 1_200, 400, 1_600)


@pytest.mark.parametrize("way", BASELINES)
def test_it_falls_far_short_where_inputs_are_ill_conditioned(way):
    assert shortfall(ILL, baseline(ILL, way, steps=300)).low > 0.3


def test_it_gets_there_where_they_are_not():
    """A step of AdamW moves a weight by the rate, and no weight is larger than the loud output's."""
    problem, truth = planted(n=3_200, d=16, condition=1.0)
    quiet = replace(problem, y=problem.y / 20)
    found = baseline(quiet, "AdamW", steps=1_000)
    assert r2(AffineMap(20 * found.weight, 20 * found.bias), problem.held_out) == pytest.approx(truth, abs=0.02)


def test_steps_are_torchs_on_the_mean_squared_error():
    generator = torch.Generator().manual_seed(4)
    layer = torch.nn.Linear(16, 16)
    with torch.no_grad():
        layer.weight.copy_(torch.empty(16, 16).uniform_(-0.25, 0.25, generator=generator).T)
        layer.bias.copy_(torch.empty(16).uniform_(-0.25, 0.25, generator=generator))
    stepper = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for _ in range(3):
        rows = torch.randint(len(ILL.x), (256,), generator=generator)
        stepper.zero_grad()
        torch.nn.functional.mse_loss(layer(ILL.x[rows]), ILL.y[rows]).backward()
        stepper.step()
    found = baseline(ILL, "SGD", steps=3, seed=4)
    torch.testing.assert_close(found.weight.float(), layer.weight.T.detach())
    torch.testing.assert_close(found.bias.float(), layer.bias.detach())


def test_the_rows_of_the_table_are_the_shortfalls():
    table = measure.untuned({"planted": {None: ILL}, "one": {4: ILL}}, steps=5)
    assert table.way.to_list() == list(BASELINES) * 2
    assert table.block.isna().to_list() == [True, True, False, False]
    fitted = baseline(ILL, "AdamW", steps=5)
    gap = shortfall(ILL, fitted)
    reached = r2(fitted, ILL.held_out)
    assert table.loc[1, ["reached", "gap", "gap_low"]].to_list() == [reached, gap.value, gap.low]
    assert table.exact[0] == pytest.approx(table.reached[0] + table.gap[0])


@pytest.mark.parametrize(("way", "steps"), [("Adam", 5), ("SGD", 0)])
def test_another_baseline_is_refused(way, steps):
    with pytest.raises(InputError, match=f"no baseline '{way}' of {steps} steps"):
        baseline(ILL, way, steps)


def test_weights_that_overflow_are_told():
    with pytest.raises(InputError, match="too loud"):
        baseline(replace(ILL, x=1e4 * ILL.x), "SGD", steps=60)
