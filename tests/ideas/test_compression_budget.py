"""Parameters shared out among blocks: what is chosen is what a search through everything chooses."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howlinear.errors import InputError
from howlinear.ideas.compression import budget
from howlinear.ideas.compression.budget import share_out

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
    if best is None:
        with pytest.raises(InputError, match="the smallest ways they can go have"):
            share_out(ways, most)
        return
    chosen = share_out(ways, most)
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
        monkeypatch.setattr(budget, "CELLS", 10**6)
        fine = share_out(ways, allowed)
        monkeypatch.setattr(budget, "CELLS", 2000)
        coarse = share_out(ways, allowed)
        assert total(ways, coarse, "parameters") <= allowed
        assert total(ways, coarse, "price") <= total(ways, fine, "price") * 1.02 + 1e-12


def test_a_block_that_costs_nothing_gives_all_and_one_that_costs_gives_nothing():
    free = pd.DataFrame({"parameters": [100, 50, 10], "price": [0.0, 0.0, 0.0]})
    dear = pd.DataFrame({"parameters": [100, 50, 10], "price": [0.0, 5.0, 9.0]})
    assert share_out({0: free, 1: dear}, 110) == {0: 2, 1: 0}


def test_no_blocks_are_refused():
    with pytest.raises(InputError, match="10 parameters for 0 blocks"):
        share_out({}, 10)
