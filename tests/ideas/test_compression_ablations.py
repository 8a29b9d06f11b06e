"""One part of own units exchanged: each variant by a slow reference, and on blocks where that part must matter."""

from dataclasses import replace

import pytest
import torch

from helpers.unit_rows import UNITS, correlated, least_squares_loss, own_readout, seen, weighted_rows
from howlinear.ideas.compression.allocate import eliminations_of, has_constant
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.race import ABLATIONS, in_order, no_ridge, race, racers, scaled_to
from howlinear.ideas.compression.units import Elimination
from howlinear.models.ffn_sites import sites
from howlinear.models.units import units_hooked

pytestmark = pytest.mark.long


def test_a_given_order_is_priced_by_what_is_lost():
    h, own = correlated(), own_readout()
    order = torch.randperm(UNITS, generator=torch.Generator().manual_seed(3))
    found = in_order(torch.cov(h.T, correction=0), own.weight, order)
    for gone in (1, 5, 12, UNITS):
        lost = least_squares_loss(h, own(h), found.kept(UNITS - gone).tolist(), torch.ones(len(h)))
        assert float(found.price[gone]) == pytest.approx(lost, rel=1e-6)


@torch.no_grad()
def alone(model, block, x):
    """The hidden units and outputs of one block on rows of inputs."""
    site = sites(model)[block]
    kept = []
    with units_hooked(model, [site], lambda _, h: kept.append(h)):
        y = site.output(x.float()[None])
    return kept[0][0].double(), y[0].double()


def test_every_variant_fits_its_budget_and_is_another_model(model, more_rows):
    calibration = Calibration(model, more_rows, priced=4)
    table = race(model, racers(calibration, list(ABLATIONS), ABLATIONS), [0.8], {"text": more_rows})
    assert list(table["method"]) == list(ABLATIONS)
    assert (table["why"] == "").all()
    assert (table["kept"] <= 0.8 + 1e-4).all()
    assert (table["kept"] > 0.76).all()
    # none is the first over again, but where the first has the least ridge, or no use for an anchor
    may_be_alike = ["own units before the anchor", "without a ridge", "anchored on the stream"]
    others = table[~table["method"].isin(may_be_alike)]
    assert (others["ratio"] != table["ratio"].iloc[0]).all()


def test_another_price_of_all_units_is_brought_to_the_same():
    found = Elimination(torch.tensor([1, 0]), torch.tensor([0.0, 2.0, 8.0]).double())
    own = Elimination(torch.tensor([0, 1]), torch.tensor([0.0, 0.1, 0.4]).double())
    assert scaled_to(found, own).price.tolist() == pytest.approx([0, 0.1, 0.4])
    nothing = Elimination(found.order, torch.zeros(3).double())
    assert scaled_to(nothing, own).price.tolist() == [0, 0, 0]


def test_without_a_ridge_readouts_are_least_squares(model, more_rows):
    """Whatever ridge own units have."""
    calibration = Calibration(model, more_rows, priced=4)
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
