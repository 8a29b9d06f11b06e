"""One part of own units exchanged: each variant by a slow reference, and on blocks where that part must matter."""

import pytest
import torch

from helpers.unit_rows import seen, short_rows, weighted_rows
from howlinear.errors import InputError
from howlinear.ideas.compression.ablations import (
    ABLATIONS,
    ablations,
    no_ridge,
    refit_in_place,
    refitted,
    scaled_to,
    unweighted,
)
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.prune import has_constant
from howlinear.ideas.compression.race import own_units, race
from howlinear.ideas.compression.units import RIDGES, Elimination, unit_moments
from howlinear.models.ffn_sites import sites
from howlinear.models.replace import copy_of
from howlinear.models.units import affine_of, unit_layers, units_hooked

pytestmark = pytest.mark.long


@pytest.fixture
def rows():
    return short_rows()


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
    # none is the first over again, but where the first has the least ridge, or no use for a line
    others = table[~table["method"].isin(["own units", "without a ridge", "with lines beside units"])]
    assert (others["perplexity"] != table["perplexity"].iloc[0]).all()


def test_some_variants_stand_behind_own_units_and_no_others_are_known(gpt2, rows):
    calibration = Calibration(gpt2, rows, priced=4)
    assert list(ablations(calibration, ["without a ridge"])) == ["own units", "without a ridge"]
    with pytest.raises(InputError, match="no part of own units is called a ridge: there are by scores of single"):
        ablations(calibration, ["a ridge"])


def test_another_price_of_all_units_is_brought_to_the_same():
    found = Elimination(torch.tensor([1, 0]), torch.tensor([0.0, 2.0, 8.0]).double())
    own = Elimination(torch.tensor([0, 1]), torch.tensor([0.0, 0.1, 0.4]).double())
    assert scaled_to(found, own).price.tolist() == pytest.approx([0, 0.1, 0.4])
    nothing = Elimination(found.order, torch.zeros(3).double())
    assert scaled_to(nothing, own).price.tolist() == [0, 0, 0]


def test_unweighted_moments_are_those_of_rows_that_weigh_alike(model, rows):
    calibration = Calibration(model, rows, priced=4)
    alike = {block: torch.ones(32).double() for block in calibration.units}
    for block, reference in unit_moments(model, calibration.ids, alike).items():
        found = unweighted(calibration.units[block], 0.01)
        torch.testing.assert_close(found.second, reference.second, rtol=1e-6, atol=1e-6)
        assert found.ridge == 0.01


def test_without_a_ridge_readouts_are_least_squares(model, rows):
    """Whatever ridge own units have."""
    calibration = Calibration(model, rows, priced=4)
    _, moments = calibration.eliminations
    for of_block in moments.values():
        of_block.ridge = 1.0
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


# --- fitted once more in place


def test_a_readout_fitted_in_place_is_the_ridge_regression_on_what_the_copy_gives(model, rows):
    """Of every block by rows: the inputs that it was fitted on are those that the finished copy has."""
    calibration = Calibration(model, rows, priced=4)
    before = own_units(calibration, 0.7)
    copy = refitted(calibration, 0.7)
    whole, inside = seen(model, calibration.ids), seen(copy, calibration.ids)
    _, moments = calibration.eliminations
    for site in sites(copy):
        block = site.block
        weight = weighted_rows(calibration, block)
        h = inside[block]["h"]
        start = affine_of(unit_layers(before, sites(before)[block])[-1])
        r = whole[block]["y"] - start(h)
        if has_constant(model, sites(model)[block]):
            h = h - weight @ h / weight.sum()
            r = r - weight @ r / weight.sum()
        gram = h.T @ (weight[:, None] * h) / weight.sum()
        penalty = moments[block].ridge * gram.diagonal().diag()
        change = torch.linalg.solve(gram + penalty, h.T @ (weight[:, None] * r) / weight.sum())
        now = affine_of(unit_layers(copy, site)[-1])
        torch.testing.assert_close(now.weight, start.weight + change, rtol=1e-3, atol=1e-5)
        if has_constant(model, sites(model)[block]):  # the mean output is the whole model's
            mean = weight @ (now(inside[block]["h"]) - whole[block]["y"]) / weight.sum()
            assert mean.abs().max() < 1e-5


def test_where_nothing_is_missing_nothing_is_changed(model, rows):
    copy = copy_of(model)
    weights = {site.block: torch.ones(32).double() for site in sites(model)}
    refit_in_place(model, copy, rows.ids, weights, dict.fromkeys(weights, RIDGES[0]))
    with torch.no_grad():
        moved = copy(input_ids=rows.ids).logits - model(input_ids=rows.ids).logits
    assert moved.abs().max() < 1e-4  # rounding of float32 alone


def test_a_planted_shift_is_made_good_behind_it(gpt2, rows):
    """Planted: a copy's first readout is turned to nothing. What can be mended behind it is, and before it nothing."""
    copy = copy_of(gpt2)
    with torch.no_grad():
        readout_of(copy, 1).weight.zero_()
        readout_of(copy, 1).bias.zero_()
    weights = {site.block: torch.ones(32).double() for site in sites(gpt2)}
    refit_in_place(gpt2, copy, rows.ids, weights, dict.fromkeys(weights, RIDGES[0]))
    # with all its units the block gets its own readout back
    torch.testing.assert_close(readout_of(copy, 1).weight, readout_of(gpt2, 1).weight, rtol=1e-2, atol=1e-3)


def readout_of(model, block):
    return unit_layers(model, sites(model)[block])[-1]
