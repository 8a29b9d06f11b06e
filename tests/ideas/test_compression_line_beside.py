"""A line beside hidden units: against `lstsq` on rows, against the modules that its prices speak of, and planted."""

import pytest
import torch

from helpers.unit_rows import seen, short_rows, weighted_rows
from howlinear.errors import InputError
from howlinear.ideas.compression import prune
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.line_beside import beside_line, gains_of_directions, input_moments, line_size
from howlinear.ideas.compression.own_units import before_anchor, layout
from howlinear.ideas.compression.prune import has_constant
from howlinear.ideas.compression.units import RIDGES, root_of
from howlinear.models.beside import BesideLine
from howlinear.models.ffn_sites import sites, width_of
from howlinear.models.layers import parameters
from howlinear.models.units import readout, unit_count

pytestmark = pytest.mark.long


@pytest.fixture
def calibration(model, monkeypatch):
    """Own units' moments of a small model of every family, all with the least ridge, so that prices are squares."""
    monkeypatch.setattr(prune, "chosen_ridge", lambda *_: RIDGES[0])
    return Calibration(model, short_rows(), priced=4)


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
    return float((root * (rows["y"] - y) @ root_of(calibration.stakes[block].metric)).square().sum())


@pytest.mark.parametrize("rank", [1, 3, None])
def test_a_line_of_any_rank_is_the_best_one_beside_its_units(calibration, rank):
    """By reduced-rank regression on rows: of what the units leave of y on what they leave of x, in the metric."""
    site = sites(calibration.model)[1]
    kept = torch.arange(0, unit_count(calibration.model, site), 3)
    joint = calibration.joint(1)
    metric = calibration.stakes[1].metric
    rank = rank or width_of(calibration.model)
    beside = beside_line(calibration.model, site, kept, joint, metric, rank)
    assert isinstance(beside, BesideLine)

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
    own, moments = calibration.eliminations
    site = sites(model)[1]
    rows, _, root = rows_and_weights(calibration, 1)
    joint = calibration.joint(1)
    weight = readout(model, site).weight @ root_of(calibration.stakes[1].metric)
    whole = moments[1].covariance(has_constant(model, site))
    factor = float(own[1].price[-1]) / float((whole @ weight * weight).sum())

    ways = calibration.ways_beside[1]
    lined = ways[(ways["rank"] > 0) & (ways["units"] < 0.8 * ways["units"].max())]
    assert set(lined["rank"]) > {1, 2, 4, width_of(model)}
    for way in lined.iloc[:: max(1, len(lined) // 6)].itertuples():
        kept = own[1].kept(way.units)
        beside = beside_line(model, site, kept, joint, calibration.stakes[1].metric, way.rank)
        assert sum(parameter.numel() for parameter in beside.parameters()) == way.parameters
        squares = factor * price_of(calibration, 1, beside, rows, root)
        of_the_ridge = RIDGES[0] * float(own[1].price[-1])
        assert way.price == pytest.approx(squares, rel=1e-3, abs=of_the_ridge)


def test_more_directions_never_cost_more_and_none_cost_what_units_do(calibration):
    own, _ = calibration.eliminations
    for block, ways in calibration.ways_beside.items():
        for units, of_count in ways.groupby("units"):
            by_rank = of_count.sort_values("rank")
            assert by_rank["price"].is_monotonic_decreasing
            assert by_rank["price"].iloc[0] == float(own[block].price[-1 - units])


def test_what_has_nothing_to_do_with_the_inputs_gets_no_line():
    """Planted: units that are squares of normal inputs, whose covariance with the inputs themselves is 0."""
    x = torch.randn(50_000, 6, generator=torch.Generator().manual_seed(0)).double()
    h = x.square() @ torch.randn(6, 9, generator=torch.Generator().manual_seed(1)).double().abs()
    h = h + torch.randn(h.shape, generator=torch.Generator().manual_seed(2)).double()
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(3)).double()
    gains = gains_of_directions(torch.cov(torch.cat([h, x], 1).T), weight, torch.arange(9), [0, 4, 9])
    left = float((torch.cov(h.T) @ weight * weight).sum())
    assert list(gains) == [0, 4, 9]
    assert float(gains[0].sum()) < 1e-3 * left
    assert float(gains[9].sum()) < 1e-12 * left


def test_moments_are_those_of_weighted_rows(calibration):
    """Of units and inputs together, with the ridge on both."""
    rows, constant, root = rows_and_weights(calibration, 1)
    both = torch.cat([rows["h"], rows["x"]], 1)
    joint = calibration.joint(1)
    mean = (root.square() * both).sum(0)
    torch.testing.assert_close(joint.mean, mean, rtol=1e-6, atol=1e-6)
    centred = root * (both - mean if constant.shape[1] else both)
    covariance = centred.T @ centred
    covariance += torch.diag(RIDGES[0] * covariance.diagonal())
    torch.testing.assert_close(joint.covariance, covariance, rtol=1e-6, atol=1e-6)


def test_an_input_that_is_not_finite_is_refused(gpt2):
    ids = short_rows().ids[:2]
    with torch.no_grad():
        gpt2.transformer.h[1].ln_2.bias[0] = torch.inf
    weights = {1: torch.ones(32).double()}
    with pytest.raises(InputError, match="NaN or infinity among 64 rows of inputs"):
        input_moments(gpt2, ids, weights)


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
    own, _ = calibration.eliminations
    ways = calibration.ways_beside[1]
    with_line = ways[ways["rank"] > 0]
    few_units = with_line[with_line["units"] == with_line["units"].min()].set_index("rank")["price"]
    of_nothing = float(own[1].price[-1])
    assert few_units[2] < 1e-3 * of_nothing < few_units[1]

    found = layout(calibration, 0.7, lines=True)
    smaller = before_anchor(calibration, 0.7, lines=True)
    assert parameters(smaller) <= calibration.allowed(0.7)
    assert 2 <= found.lines[1] <= 4
    standing = {site.block: site.output.line for site in sites(smaller) if isinstance(site.output, BesideLine)}
    assert standing.keys() == found.lines.keys()
    assert standing[1][0].out_features == found.lines[1]
    assert {site.block: unit_count(smaller, site) for site in sites(smaller)} == found.units
