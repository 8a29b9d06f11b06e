"""One part of own units exchanged: each variant by a slow reference, and on blocks where that part must matter."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.unit_rows import seen, short_rows, weighted_rows
from howlinear.errors import InputError
from howlinear.ideas.compression import allocate, units
from howlinear.ideas.compression.ablations import (
    ABLATIONS,
    ablations,
    beside_line,
    in_order,
    joint_moments,
    line_size,
    no_ridge,
    options_beside,
    scaled_to,
    select,
    with_lines,
)
from howlinear.ideas.compression.allocate import costs_of, eliminations_of, has_constant
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.race import race
from howlinear.ideas.compression.units import RIDGES, Elimination, eliminate, root_of
from howlinear.models.ffn_sites import sites, width_of
from howlinear.models.layers import parameters
from howlinear.models.units import readout, unit_count, units_hooked

pytestmark = pytest.mark.long


@pytest.fixture
def rows():
    return short_rows()


UNITS, OUT = 24, 5


def correlated():
    """Covariance of correlated units, and a readout of them."""
    generator = np.random.default_rng(0)
    rows = torch.tensor(generator.normal(size=(400, UNITS)) @ generator.normal(size=(UNITS, UNITS)) + 3)
    readout = torch.tensor(generator.normal(size=(UNITS, OUT)))
    return torch.cov(rows.T, correction=0), readout


def lost(covariance, readout, kept):
    """E‖(h − ĥ) β‖², with ĥ the regression of all units on those kept."""
    towards = torch.linalg.solve(covariance[kept][:, kept], covariance[kept])
    left = covariance - covariance[:, kept] @ towards
    return float((left @ readout * readout).sum())


@pytest.mark.parametrize("panel", [1, 7, 64])
def test_selection_is_that_of_trying_every_unit(panel, monkeypatch):
    monkeypatch.setattr(units, "PANEL", panel)
    covariance, readout = correlated()
    found = select(covariance, readout)
    taken = []
    for step in range(UNITS // 2):
        losses = {unit: lost(covariance, readout, [*taken, unit]) for unit in range(UNITS) if unit not in taken}
        best = min(losses, key=losses.get)
        assert int(found.order[-1 - step]) == best
        taken.append(best)
        # what stays is read out best, and all others are gone
        assert float(found.price[UNITS - 1 - step]) == pytest.approx(losses[best], rel=1e-6)
    assert found.price[0] == 0
    assert sorted(found.order.tolist()) == list(range(UNITS))


def test_a_given_order_is_priced_by_what_is_lost():
    covariance, readout = correlated()
    order = torch.randperm(UNITS, generator=torch.Generator().manual_seed(3))
    found = in_order(covariance, readout, order)
    for gone in (1, 5, 12, UNITS - 1):
        kept = found.kept(UNITS - gone).tolist()
        assert float(found.price[gone]) == pytest.approx(lost(covariance, readout, kept), rel=1e-6)
    assert float(found.price[-1]) == pytest.approx(float((covariance @ readout * readout).sum()))


def test_selection_can_miss_what_elimination_keeps():
    """Planted: two units whose difference is all that is read, and one that follows it from afar and is taken first."""
    h = torch.randn(20_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    common = 10 * h[:, :1]
    covariance = torch.cov(torch.cat([common + h[:, 1:2], common, h[:, 1:2] + h[:, 2:]], 1).T)
    own = torch.tensor([[1.0], [-1.0], [0.0]], dtype=torch.float64)
    assert eliminate(covariance, own).order[0] == 2
    assert select(covariance, own).order[-1] == 2


@torch.no_grad()
def alone(model, block, x):
    """The hidden units and outputs of one block on rows of inputs."""
    site = sites(model)[block]
    kept = []
    with units_hooked(model, [site], lambda _, h: kept.append(h)):
        y = site.output(x.float()[None])
    return kept[0][0].double(), y[0].double()


def test_every_variant_fits_its_budget_and_is_another_model(model, rows):
    calibration = Calibration(model, rows, priced=4)
    table = race(model, ablations(calibration), [0.8], {"text": rows})
    assert list(table["method"]) == list(ABLATIONS)
    assert (table["why"] == "").all()
    assert (table["kept"] <= 0.8 + 1e-4).all()
    assert (table["kept"] > 0.76).all()
    # none is the first over again, but where the first has the least ridge, or no use for a line or an anchor
    may_be_alike = ["own units before the anchor", "without a ridge", "with lines beside units"]
    may_be_alike += ["anchored on own outputs", "anchored on the stream", "with lines, anchored on the stream"]
    others = table[~table["method"].isin(may_be_alike)]
    assert (others["ratio"] != table["ratio"].iloc[0]).all()


def test_the_variants_with_lines_have_lines(gpt2, rows):
    calibration = Calibration(gpt2, rows, priced=4)
    lined = [
        name
        for name, compress in ablations(calibration).items()
        if any(hasattr(site.output, "line") for site in sites(compress(0.7)))
    ]
    assert lined == ["with lines beside units", "with lines, anchored on the stream"]


def test_some_variants_stand_behind_own_units_and_no_others_are_known(gpt2, rows):
    calibration = Calibration(gpt2, rows, priced=4)
    assert list(ablations(calibration, ["without a ridge"])) == ["own units before the anchor", "without a ridge"]
    with pytest.raises(InputError, match="no part of own units is called a ridge: there are as many in every block"):
        ablations(calibration, ["a ridge"])


def test_another_price_of_all_units_is_brought_to_the_same():
    found = Elimination(torch.tensor([1, 0]), torch.tensor([0.0, 2.0, 8.0]).double())
    own = Elimination(torch.tensor([0, 1]), torch.tensor([0.0, 0.1, 0.4]).double())
    assert scaled_to(found, own).price.tolist() == pytest.approx([0, 0.1, 0.4])
    nothing = Elimination(found.order, torch.zeros(3).double())
    assert scaled_to(nothing, own).price.tolist() == [0, 0, 0]


def test_without_a_ridge_readouts_are_least_squares(model, rows):
    """Whatever ridge own units have."""
    calibration = Calibration(model, rows, priced=4)
    _, moments = eliminations_of(calibration)
    for block, of_block in moments.items():
        moments[block] = replace(of_block, ridge=1.0)
    copy = no_ridge(calibration, 0.7)
    for block, rows_of in seen(model, calibration.ids).items():
        h, y = alone(copy, block, rows_of["x"])
        if has_constant(model, sites(model)[block]):
            h = torch.cat([h, torch.ones(len(h), 1).double()], 1)
        root = weighted_rows(calibration, block).sqrt()[:, None]
        best = torch.linalg.lstsq(root * h, root * rows_of["y"]).solution
        least = (root * (rows_of["y"] - h @ best)).square().sum()
        rounding = 1e-6 * float((root * rows_of["y"]).square().sum())
        assert float((root * (rows_of["y"] - y)).square().sum()) == pytest.approx(float(least), rel=1e-3, abs=rounding)


# --- Lines beside units: against `lstsq` on rows, against the modules that prices speak of, and planted


@pytest.fixture
def calibration(model, monkeypatch):
    """Own units' moments of a small model of every family, all with the least ridge, so that prices are squares."""
    monkeypatch.setattr(allocate, "choose_ridge", lambda *_: RIDGES[0])
    return Calibration(model, short_rows(), priced=4)


def options(calibration, block):
    """The ways that a block can go."""
    (site,) = sites(calibration.model, [block])
    own, _ = eliminations_of(calibration)
    metric = costs_of(calibration)[block].metric
    return options_beside(calibration.model, site, own[block], joint_moments(calibration)[block], metric)


def residual(columns, target, root):
    """What weighted least squares leaves of a target, as weighted rows."""
    coefficients = torch.linalg.lstsq(root * columns, root * target).solution
    return root * (target - columns @ coefficients)


def rows_and_weights(calibration, block):
    """The rows of a block with a column of ones where it has a constant, and the roots of their weights."""
    rows = seen(calibration.model, calibration.ids)[block]
    constant = torch.ones(len(rows["x"]), 1).double()
    if not has_constant(calibration.model, sites(calibration.model)[block]):
        constant = constant[:, :0]
    weight = weighted_rows(calibration, block)
    return rows, constant, (weight / weight.sum()).sqrt()[:, None]


@torch.no_grad()
def price_of(calibration, block, beside, rows, root):
    """½ E[w rᵀ M r] of a module's errors r."""
    y = beside(rows["x"].float()).double()
    return float((root * (rows["y"] - y) @ root_of(costs_of(calibration)[block].metric)).square().sum())


@pytest.mark.parametrize("rank", [1, 3, None])
def test_a_line_of_any_rank_is_the_best_one_beside_its_units(calibration, rank):
    """By reduced-rank regression on rows: of what the units leave of y on what they leave of x, in the metric."""
    site = sites(calibration.model)[1]
    kept = torch.arange(0, unit_count(calibration.model, site), 3)
    joint = joint_moments(calibration)[1]
    metric = costs_of(calibration)[1].metric
    rank = rank or width_of(calibration.model)
    beside = beside_line(calibration.model, site, kept, joint, metric, rank)

    rows, constant, root = rows_and_weights(calibration, 1)
    units = torch.cat([rows["h"][:, kept], constant], 1)
    x_left = residual(units, rows["x"], root)
    y_left = residual(units, rows["y"], root) @ root_of(metric)
    along = torch.linalg.qr(x_left).Q.T @ y_left
    explained = torch.linalg.svdvals(along).square()[:rank].sum()
    least = float(y_left.square().sum() - explained)
    assert price_of(calibration, 1, beside, rows, root) == pytest.approx(least, rel=2e-3)
    assert sum(parameter.numel() for parameter in beside.line.parameters()) == line_size(*[len(metric)] * 2, rank)


def test_a_way_costs_and_holds_what_the_block_that_goes_it_does(calibration):
    """Prices are those of the rows they were fitted on, times the block's factor; sizes are counted."""
    model = calibration.model
    own, moments = eliminations_of(calibration)
    site = sites(model)[1]
    rows, _, root = rows_and_weights(calibration, 1)
    joint = joint_moments(calibration)[1]
    weight = readout(model, site).weight @ root_of(costs_of(calibration)[1].metric)
    whole = moments[1].covariance(has_constant(model, site))
    factor = float(own[1].price[-1]) / float((whole @ weight * weight).sum())

    ways = options(calibration, 1)
    lined = ways[(ways["rank"] > 0) & (ways["units"] < 0.8 * ways["units"].max())]
    assert set(lined["rank"]) > {1, 2, 4, width_of(model)}
    for way in lined.iloc[:: max(1, len(lined) // 6)].itertuples():
        kept = own[1].kept(way.units)
        beside = beside_line(model, site, kept, joint, costs_of(calibration)[1].metric, way.rank)
        assert sum(parameter.numel() for parameter in beside.parameters()) == way.parameters
        squares = factor * price_of(calibration, 1, beside, rows, root)
        of_the_ridge = RIDGES[0] * float(own[1].price[-1])
        assert way.price == pytest.approx(squares, rel=1e-3, abs=of_the_ridge)


def test_more_directions_never_cost_more_and_none_cost_what_units_do(calibration):
    own, _ = eliminations_of(calibration)
    for block in own:
        ways = options(calibration, block)
        for count, of_count in ways.groupby("units"):
            by_rank = of_count.sort_values("rank")
            assert by_rank["price"].is_monotonic_decreasing
            assert by_rank["price"].iloc[0] == float(own[block].price[-1 - count])


def test_moments_are_those_of_weighted_rows(calibration):
    """Of units and inputs together, with the ridge on both."""
    rows, constant, root = rows_and_weights(calibration, 1)
    both = torch.cat([rows["h"], rows["x"]], 1)
    covariance, joint_mean = joint_moments(calibration)[1]
    mean = (root.square() * both).sum(0)
    torch.testing.assert_close(joint_mean, mean, rtol=1e-6, atol=1e-6)
    centred = root * (both - mean if constant.shape[1] else both)
    expected = centred.T @ centred
    expected += torch.diag(RIDGES[0] * expected.diagonal())
    torch.testing.assert_close(covariance, expected, rtol=1e-6, atol=1e-6)


def test_a_block_that_is_a_line_of_rank_two_gets_one(gpt2):
    """Planted: a block's units in pairs h and −h behind a ReLU, read out in two directions: a line says it all."""
    ffn = sites(gpt2)[1].output
    half = ffn.c_fc.weight.shape[1] // 2
    ffn.act = torch.nn.ReLU()
    drawn = torch.Generator().manual_seed(5)
    directions = torch.randn(2, ffn.c_proj.weight.shape[1], generator=drawn)
    with torch.no_grad():
        ffn.c_fc.weight[:, half:] = -ffn.c_fc.weight[:, :half]
        ffn.c_fc.bias[half:] = -ffn.c_fc.bias[:half]
        ffn.c_proj.weight[:half] = torch.randn(half, 2, generator=drawn) @ directions
        ffn.c_proj.weight[half:] = -ffn.c_proj.weight[:half]
    calibration = Calibration(gpt2, short_rows(), priced=4)
    own, _ = eliminations_of(calibration)
    ways = options(calibration, 1)
    with_line = ways[ways["rank"] > 0]
    few_units = with_line[with_line["units"] == with_line["units"].min()].set_index("rank")["price"]
    of_nothing = float(own[1].price[-1])
    assert few_units[2] < 1e-3 * of_nothing < few_units[1]

    smaller = with_lines(calibration, 0.7)
    assert parameters(smaller) <= calibration.allowed(0.7)
    assert 2 <= sites(smaller)[1].output.line[0].out_features <= 4
