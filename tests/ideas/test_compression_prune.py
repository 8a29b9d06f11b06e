"""Hidden units that go and their prices: against units taken at random, and against what a swap measures."""

import pytest
import torch

from conftest import BLOCKS, tiny
from helpers.unit_rows import short_rows
from howlinear.ideas.compression import prune
from howlinear.ideas.compression.divergence import divergences
from howlinear.ideas.compression.prune import NOTHING, eliminations_of, fewer_units, measured, thinned
from howlinear.ideas.compression.units import Elimination, stakes
from howlinear.models.ffn_sites import sites
from howlinear.models.forward import logits


@pytest.fixture
def rows():
    return short_rows()


def test_elimination_with_refit_beats_units_taken_at_random(model, rows):
    train = rows.ids[~rows.test]
    eliminations, moments = eliminations_of(model, train, stakes(model, train, list(range(BLOCKS))))
    kept = {block: found.order.numel() // 2 for block, found in eliminations.items()}
    chosen = fewer_units(model, eliminations, moments, kept)
    shuffled = {
        block: Elimination(found.order[torch.randperm(len(found.order))], found.price)
        for block, found in eliminations.items()
    }
    at_random = fewer_units(model, shuffled, moments, kept)
    whole = logits(model, train)
    assert (logits(chosen, train) - whole).square().mean() < 0.7 * (logits(at_random, train) - whole).square().mean()


def test_a_price_is_what_one_swap_measures_where_a_quarter_is_gone(model, rows):
    train = rows.ids[~rows.test]
    eliminations, moments = eliminations_of(model, train, stakes(model, train, [0, 2]))
    for site in sites(model, [0, 2]):
        found = eliminations[site.block]
        quarter = len(found.order) // 4
        module = thinned(model, site, found.kept(len(found.order) - quarter), moments[site.block])
        moved = divergences(model, {site.block: module}, train)[site.block]
        if moved > NOTHING:
            assert float(found.price[quarter]) == pytest.approx(moved, rel=1e-3)
        else:  # it goes for nothing, which tells no factor: what is measured is rounding, and may be below 0
            assert 0 <= float(found.price[quarter]) < 10 * NOTHING
        assert (found.price.diff() >= 0).all()


def test_once_ridges_are_chosen_the_moments_are_no_longer_kept_in_halves(model, rows):
    train = rows.ids[~rows.test]
    _, moments = eliminations_of(model, train, stakes(model, train, [0, 2]))
    assert [len(of_block.halves) for of_block in moments.values()] == [1, 1]


def test_a_cost_that_is_no_more_than_rounding_scales_no_price():
    """Planted: a block whose first quarter of units costs 0.002 nats by its price, and what one swap says of it."""
    model = tiny("mini-gpt2")
    ids = torch.randint(80, (4, 16), generator=torch.Generator().manual_seed(0))
    eliminations, moments = eliminations_of(model, ids, stakes(model, ids, [1]))
    units = len(eliminations[1].order)
    told = Elimination(eliminations[1].order, torch.linspace(0, 0.008, units + 1).double())

    def scaled(cost):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prune, "divergences", lambda *_: {1: cost})
            return measured(model, ids, {1: told}, moments)[1].price

    assert torch.equal(scaled(NOTHING / 2), told.price)
    assert torch.equal(scaled(-NOTHING), told.price)
    torch.testing.assert_close(scaled(0.004), 2 * told.price)
