"""The smallest model within a budget of perplexity: by a brute search over sizes, and on costs that are planted."""

from math import ceil, exp, log, log1p
from types import SimpleNamespace

import pytest
import torch

from howlinear.errors import InputError
from howlinear.ideas.compression import compress as within
from howlinear.ideas.compression.allocate import least_share
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compress import (
    AIM,
    GUESSES,
    NEAR,
    STEP,
    Compressed,
    compress,
    next_price,
    share_priced,
)
from howlinear.ideas.compression.own_units import layout
from howlinear.instrument.perplexity import Change, perplexity
from howlinear.models.layers import parameters

pytestmark = pytest.mark.long


def test_it_keeps_its_budget_and_is_the_smallest_that_was_tried(model, more_rows, monkeypatch):
    tried = {}
    measured = within.make_and_measure

    def noted(calibration, judged_on, share, *others):
        tried[share] = measured(calibration, judged_on, share, *others)
        return tried[share]

    monkeypatch.setattr(within, "make_and_measure", noted)
    whole = perplexity(model, more_rows)
    budget = 0.02 * whole
    found = compress(model, more_rows, max_dppl=budget)
    assert perplexity(found.model, more_rows) - whole == pytest.approx(found.delta.delta, rel=1e-3, abs=1e-4)
    assert found.delta.delta <= budget
    assert 1 <= len(tried) <= GUESSES
    share = min(share for share, each in tried.items() if each.delta.delta <= budget)
    assert tried[share] is found
    assert parameters(found.model) <= share * parameters(model)
    # it is what the same share makes of the model without a search
    alone = compress(model, more_rows, share)
    assert alone.units == found.units
    assert alone.perplexity == pytest.approx(found.perplexity, rel=1e-6)


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5])
def test_a_planted_cost_is_nearly_met(gpt2, more_rows, monkeypatch, factor):
    """Planted: a size is priced (1 − share)², and costs so many times that and a little more than in proportion."""
    base, budget = 20.0, 2.0

    def price(share):
        return (1 - share) ** 2

    def cost(share):
        return factor * price(share) + price(share) ** 2

    tried = []
    aims = []  # what guesses after the first may cost

    def make_and_measure(_, __, share, *___):
        tried.append(share)
        rise = base * (exp(cost(share)) - 1)
        units = {0: round(share / STEP)}  # which share it is
        delta = Change(rise, rise, rise)
        held_out = {"base": base, "perplexity": base + rise, "delta": delta, "speeds": (1.0, 1.0)}
        return Compressed(gpt2, units, price(share), None, 1, price(share), **held_out)

    for name, stands_for in {
        "least_share": lambda *_: 0.2,
        "check_possible": lambda *_: None,
        "timed_losses": lambda *_: (torch.full((4,), log(base)).double(), 1.0),
        "layout": lambda _, share, *__: SimpleNamespace(price=price(share)),
        "make_and_measure": make_and_measure,
        "next_price": lambda measured, allowed: aims.append(allowed) or next_price(measured, allowed),
    }.items():
        monkeypatch.setattr(within, name, stands_for)
    share = compress(gpt2, more_rows, max_dppl=budget).units[0] * STEP
    assert NEAR <= cost(share) / log1p(budget / base) <= 1
    assert len(tried) <= 4
    # all guesses aim at a little less than is allowed, the first by its price
    aim = AIM * log1p(budget / base)
    assert price(tried[0]) <= aim < price(tried[0] - STEP)
    assert aims == [pytest.approx(aim)] * len(aims)
    assert aims or factor < 2  # the price is far too low, so that a second guess is needed


def test_a_larger_size_found_later_is_not_taken(gpt2, more_rows, monkeypatch):
    """Planted: sizes of 80 % and then of 90 %, both within the budget."""
    sizes = [0.8, 0.9, None]
    monkeypatch.setattr(within, "share_priced", lambda *_: sizes.pop(0))
    found = compress(gpt2, more_rows, max_dppl=50.0)
    assert not sizes
    assert 0.78 < parameters(found.model) / parameters(gpt2) <= 0.8


def test_the_next_price_by_hand():
    """Costs of half the price; then with the square of it; then where nothing is lost, and where chance is all."""
    assert next_price([(0.2, 0.1)], 0.15) == pytest.approx(0.3)
    assert next_price([(0.1, 0.01), (0.2, 0.04)], 0.09) == pytest.approx(0.3)
    assert next_price([(0.2, 0.0)], 0.1) == 0.8
    assert next_price([(0.2, 0.001)], 0.1) == 0.8
    assert next_price([(0.2, 0.05), (0.20001, 0.04)], 0.05) == pytest.approx(0.20001 * (0.05 / 0.04) ** 2)
    # a power is at most three, and one where the size before cost nothing or was priced the same
    assert next_price([(0.1, 0.001), (0.2, 0.016)], 0.128) == pytest.approx(0.4)
    assert next_price([(0.1, 0.0), (0.2, 0.04)], 0.09) == pytest.approx(0.45)
    assert next_price([(0.2, 0.05), (0.2, 0.04)], 0.05) == pytest.approx(0.25)


def test_a_share_is_the_smallest_that_is_priced_so(gpt2, more_rows):
    calibration = Calibration(gpt2, more_rows)
    shares = [round(step * STEP, 3) for step in range(ceil(least_share(gpt2) / STEP), 1000)]
    prices = {share: layout(calibration, share).price for share in shares}
    for price in (prices[0.7], prices[0.912], 0.5 * (prices[0.8] + prices[0.801])):
        expected = min(share for share in shares if prices[share] <= price)
        assert share_priced(calibration, price) == expected
    assert share_priced(calibration, -1.0) is None


def test_a_budget_that_no_size_keeps_is_refused(gpt2, more_rows, monkeypatch):
    monkeypatch.setattr(within, "layout", lambda *_: SimpleNamespace(price=1.0))
    with pytest.raises(InputError, match=r"of 0 sizes tried none is within 0.01 of perplexity: allow more"):
        compress(gpt2, more_rows, max_dppl=0.01)


def test_blocks_alike_are_alike_within_a_budget_of_perplexity_too(gpt2, more_rows):
    budget = 0.02 * perplexity(gpt2, more_rows)
    found = compress(gpt2, more_rows, max_dppl=budget, alike=True)
    assert found.delta.delta <= budget
    assert len(set(found.units.values())) == 1
