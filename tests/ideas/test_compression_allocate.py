"""Hidden units that go and their prices: against units taken at random, and against what a swap measures."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from howlinear.ideas.compression import allocate
from howlinear.ideas.compression.allocate import NOTHING, Thinned, allocate_budget, calibrate_prices, eliminations_of
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.signals import divergences
from howlinear.ideas.compression.units import Elimination


def test_a_price_is_what_one_swap_measures_where_a_quarter_is_gone(model, more_rows):
    half = more_rows.ids[~more_rows.test][::2]  # of a text this short
    eliminations, moments = eliminations_of(Calibration(model, more_rows, blocks=[0, 2]))
    counts = {block: len(found.order) - len(found.order) // 4 for block, found in eliminations.items()}
    for block, moved in divergences(model, Thinned(model, eliminations, moments, counts), half, 4).items():
        found = eliminations[block]
        quarter = len(found.order) - counts[block]
        if moved > NOTHING:
            assert float(found.price[quarter]) == pytest.approx(moved, rel=1e-3)
        else:  # it goes for nothing, which tells no factor: what is measured is rounding, and may be below 0
            assert 0 <= float(found.price[quarter]) < 10 * NOTHING
        assert (found.price.diff() >= 0).all()


def test_a_cost_that_is_no_more_than_rounding_scales_no_price(gpt2, more_rows):
    """Planted: a block whose first quarter of units costs 0.002 nats by its price, and what one swap says of it."""
    calibration = Calibration(gpt2, more_rows, blocks=[1])
    eliminations, moments = eliminations_of(calibration)
    units = len(eliminations[1].order)
    linear = Elimination(eliminations[1].order, torch.linspace(0, 0.008, units + 1).double())

    def scaled(cost):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(allocate, "divergences", lambda *_: {1: cost})
            return calibrate_prices(calibration, {1: linear}, moments)[1].price

    assert torch.equal(scaled(NOTHING / 2), linear.price)
    assert torch.equal(scaled(-NOTHING), linear.price)
    torch.testing.assert_close(scaled(0.004), 2 * linear.price)


# --- A budget among blocks: what is chosen is what a search through everything chooses

WAY = st.tuples(st.integers(1, 30), st.floats(0, 10, allow_subnormal=False))
WAYS = st.lists(st.lists(WAY, min_size=1, max_size=4), min_size=1, max_size=4)


def tables(blocks):
    return {3 * number: pd.DataFrame(ways, columns=["parameters", "price"]) for number, ways in enumerate(blocks)}


def total(ways, chosen, column):
    return sum(ways[block][column][place] for block, place in chosen.items())


@settings(max_examples=150, deadline=None)
@given(WAYS, st.integers(1, 100))
def test_nothing_within_the_budget_costs_less(blocks, most):
    ways = tables(blocks)
    best = min(
        (sum(way[1] for way in chosen) for chosen in product(*blocks) if sum(way[0] for way in chosen) <= most),
        default=None,
    )
    assume(best is not None)
    chosen = allocate_budget(ways, most)
    assert list(chosen) == list(ways)
    assert total(ways, chosen, "parameters") <= most
    assert total(ways, chosen, "price") == pytest.approx(best, abs=1e-9)


@pytest.mark.long
def test_a_large_budget_is_counted_in_steps_and_still_kept(monkeypatch):
    generator = np.random.default_rng(0)
    ways = {}
    for block in range(6):
        parameters = np.sort(generator.integers(1, 10**6, 20))[::-1]
        ways[block] = pd.DataFrame({"parameters": parameters, "price": np.sort(generator.random(20))})
    least = sum(table["parameters"].min() for table in ways.values())
    most = sum(table["parameters"].max() for table in ways.values())
    for share in (0, 0.2, 0.6, 1):
        allowed = int(least + share * (most - least))
        monkeypatch.setattr(allocate, "CELLS", 10**6)
        fine = allocate_budget(ways, allowed)
        monkeypatch.setattr(allocate, "CELLS", 2000)
        coarse = allocate_budget(ways, allowed)
        assert total(ways, coarse, "parameters") <= allowed
        assert total(ways, coarse, "price") <= total(ways, fine, "price") * 1.02 + 1e-12
