"""The page of a measurement: whole, alone, and only as clever as what it is given."""

from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from markupsafe import escape

from helpers.made_up import ceiling_of, made_up_profile
from howlinear.app.measurement import Measurement
from howlinear.app.page import render, thoughts
from howlinear.core.correlation import correlation
from howlinear.instrument.baseline import Baseline
from howlinear.instrument.measure import measure
from howlinear.instrument.perplexity import Change
from howlinear.instrument.swap_costs import swap_costs
from howlinear.text.rows import TokenRows

NASTY = "<script>alert('x')</script>"
LOADS = {"src", "srcset", "data", "poster", "background", "action"}  # attributes that have a browser fetch something
VOID = {"meta", "input"}


class Reader(HTMLParser):
    """What of a page would be loaded, whether its tags are closed, and the cells of its table."""

    def __init__(self, page):
        super().__init__()
        self.loaded, self.open, self.tags, self.rows = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        for name, value in attributes:
            remote = name.endswith("href") and not value.startswith("#")
            if name in LOADS or remote or "url(http" in (value or ""):
                self.loaded.append((tag, name, value))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.fixture
def measured(gpt2):
    ids = torch.randint(80, (64, 32), generator=torch.Generator().manual_seed(3))
    rows = TokenRows.from_ids(ids, folds=4)
    profile = measure(gpt2, rows)
    yield profile, swap_costs(gpt2, {block: found.map for block, found in profile.items()}, rows)
    plt.close("all")


@pytest.mark.parametrize("swapped", [False, True])
def test_the_page_has_every_block_and_loads_nothing(measured, swapped):
    profile, costs = measured
    page = render(Measurement("tiny", replace(profile, costs=costs if swapped else None)))
    read = Reader(page)
    assert read.open == []
    assert read.loaded == []
    assert {"link", "script", "iframe", "img", "object"}.isdisjoint(read.tags)
    assert "@import" not in page
    heading, *blocks = read.rows
    assert heading[:3] == ["block", "R²_lin", "95 % interval"]
    assert ("ΔPPL of swap" in heading) == swapped
    for row, (block, found) in zip(blocks, profile.items(), strict=True):
        assert row[:2] == [str(block), f"{found.r2:.3f}"]
        if swapped:
            assert row[heading.index("ΔPPL of swap")] == f"{costs[block].delta:+.2f}"


def test_what_is_given_is_text(measured):
    profile, _ = measured
    page = render(Measurement(NASTY, profile, dtype=NASTY))
    assert "script" not in Reader(page).tags
    assert page.count("&lt;script&gt;") >= 3  # title, heading, settings


def made_up(r2, ordinary=None, perplexity=25.0):
    """A profile of blocks with these R²_lin, and with those of them without twelve massive rows."""
    others = {block: ceiling_of(value) for block, value in (ordinary or {}).items()}
    return made_up_profile(map(ceiling_of, r2), dict.fromkeys(others, 12), others, perplexity)


def costing(deltas):
    return {block: Change(delta, delta - 0.5, delta + 0.5) for block, delta in enumerate(deltas)}


def test_what_to_think_of_it_by_hand():
    r2 = [0.9, 0.5, 0.6, 0.3, 0.4, 0.8]
    deltas = [3.0, 0.2, 0.3, 0.1, 4.25, 0.4]
    profile = replace(made_up(r2, {1: 0.2, 2: 0.55}), costs=costing(deltas))
    span, dearest, massive, rank = thoughts(profile)
    rho = correlation(r2, deltas, order=True).r
    numbers = {
        span: ["0.300 (block 3)", "0.900 (block 0)"],
        dearest: ["block 4", "+4.25", "+3.75 to +4.75", "0.400", "4 of 6 blocks"],
        massive: ["block 1", "12 of 1,280", "0.50 → 0.20"],
        rank: [f"{rho.value:+.2f}", f"{rho.low:+.2f} to {rho.high:+.2f}"],
    }
    assert [number for said, numbers in numbers.items() for number in numbers if number not in said] == []
    assert "block 2" not in massive  # whose R²_lin is nearly the same without them
    page = render(Measurement("m", profile))
    assert all(page.count(str(escape(said))) == 1 for said in (*numbers, profile.outlook))


@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_where_nothing_correlates_no_correlation_is_told(blocks):
    assert "ρ" not in thoughts(replace(made_up([0.5] * blocks), costs=costing([1.0] * blocks)))[-1]


def test_massive_rows_that_decide_nothing_are_told_apart_from_none():
    (_, decide_nothing, _), (_, none, _) = (thoughts(made_up([0.5], ordinary)) for ordinary in ({0: 0.45}, {}))
    assert decide_nothing != none


@pytest.mark.parametrize("perplexity", [25.0, None])
def test_swaps_are_advised_where_a_model_has_a_perplexity_to_lose(perplexity):
    assert ("--swap" in thoughts(made_up([0.5, 0.25], perplexity=perplexity))[-1]) == (perplexity is not None)


def test_before_training_stands_beside_each_block_and_in_the_figure():
    fresh = Baseline(np.array([0.951, 0.1]), np.array([0.953, 0.4]), 4_096, [0, 1])
    page = render(Measurement("m", made_up([0.9, 0.5]), untrained=fresh))
    heading, *blocks = Reader(page).rows
    place = heading.index("before training")
    assert [row[place] for row in blocks] == ["0.952", "0.10 – 0.40"]
    assert "dotted is the same architecture before training" in page
    without = render(Measurement("m", made_up([0.9, 0.5])))
    assert "before training" not in without
    assert page.count("<path") > without.count("<path")
    plt.close("all")
