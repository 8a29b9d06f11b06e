"""Numbers of hidden units that are multiples of what a format counts in: which there are, and which are taken."""

from itertools import product

import numpy as np
import pytest

import howlinear as hl
from conftest import tiny
from howlinear.errors import InputError
from howlinear.ideas.compression import allocate
from howlinear.ideas.compression.allocate import eliminations_of, size_options
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compress import compress
from howlinear.ideas.compression.own_units import layout
from howlinear.models.ffn_sites import sites


@pytest.fixture
def llama():
    """128 hidden units of 96 parameters in each of 3 blocks."""
    return tiny("mini-llama")


def test_the_sizes_of_a_block_by_hand(llama, monkeypatch):
    site = sites(llama)[0]
    price = np.arange(129.0)  # of each unit that goes, one
    table = size_options(llama, site, price, 24)
    assert table["units"].tolist() == [120, 96, 72, 48, 24]
    assert table["parameters"].tolist() == [units * 96 for units in (120, 96, 72, 48, 24)]
    assert table["price"].tolist() == [8, 32, 56, 80, 104]
    assert size_options(llama, site, price)["units"].tolist() == list(range(128, 0, -1))
    # at most so many sizes that they are further apart, multiples still
    monkeypatch.setattr(allocate, "SIZES", 2)
    assert size_options(llama, site, price, 24)["units"].tolist() == [120, 72, 24]


@pytest.mark.parametrize("share", [0.9, 0.7])
def test_of_all_multiples_within_the_budget_none_is_priced_less(llama, more_rows, share):
    calibration = Calibration(llama, more_rows, multiple=24)
    eliminations, _ = eliminations_of(calibration)
    budget = int(share * llama.num_parameters()) - (llama.num_parameters() - 3 * 128 * 96)
    best = min(
        sum(float(eliminations[block].price[128 - units]) for block, units in enumerate(counts))
        for counts in product((120, 96, 72, 48, 24), repeat=3)
        if sum(counts) * 96 <= budget
    )
    found = layout(calibration, share)
    assert all(count % 24 == 0 for count in found.units.values())
    assert sum(found.units.values()) * 96 <= budget
    assert found.price == pytest.approx(best)


@pytest.mark.parametrize("budget", [{"max_parameters": 0.8}, {"max_parameters": 0.8, "alike": True}, {"max_dppl": 2.0}])
def test_blocks_keep_multiples_and_the_budget_is_met(llama, more_rows, budget):
    found = compress(llama, more_rows, **budget, multiple=24)
    assert [count % 24 for count in found.units.values()] == [0, 0, 0]
    assert found.model.num_parameters() <= budget.get("max_parameters", 1) * llama.num_parameters()
    assert found.delta.delta <= budget.get("max_dppl", np.inf)
    assert found.price >= found.free_price
    assert f"{found.free_price:.3f}" in found.outlook


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_parameters": 0.9, "multiple": 256}, "a block of 128 hidden units cannot keep fewer in multiples of 256"),
        ({"max_dppl": 1.0, "multiple": 256}, "a block of 128 hidden units cannot keep fewer in multiples of 256"),
        ({"max_parameters": 0.9, "multiple": 128}, "a block of 128 hidden units cannot keep fewer in multiples of 128"),
        ({"max_parameters": 0.5, "multiple": 64}, "these need 18,432"),
        ({"max_parameters": 0.9, "multiple": 0}, "multiple=0: give a whole number, 1 or more"),
    ],
)
def test_what_no_multiple_meets_is_refused_in_one_line(llama, more_rows, options, message):
    with pytest.raises(InputError, match=message) as refused:
        hl.compress(llama, more_rows, **options)
    assert "\n" not in str(refused.value)
