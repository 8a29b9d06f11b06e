"""The page of a measurement: whole, alone, and only as clever as what it is given."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

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
    assert "prefers-color-scheme: dark" in page


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
    span, dearest, massive, rank = thoughts(replace(made_up(r2, {1: 0.2, 2: 0.55}), costs=costing(deltas)))
    assert "0.300 (block 3) to 0.900 (block 0)" in span
    assert "block 4: its map costs +4.25 of perplexity in its place (95 % interval +3.75 to +4.75)" in dearest
    assert "0.400; 4 of 6 blocks" in dearest
    assert "block 1: R²_lin rests on at most 12 of 1,280 rows" in massive
    assert massive.endswith("block 1 0.50 → 0.20.")
    rho = correlation(r2, deltas, order=True).r
    assert f"ρ of the two is {rho.value:+.2f} (95 % interval {rho.low:+.2f} to {rho.high:+.2f})" in rank


def test_what_to_think_of_less():
    span, massive, rank = thoughts(made_up([0.5, 0.25]))
    assert "0.250 (block 1) to 0.500 (block 0)" in span
    assert massive.startswith("No block has a massive row")
    assert "--swap measures the costs" in rank
    alone, massive, rank = thoughts(made_up([0.5], {0: 0.45}))
    assert "block 0 is 0.500; no other block" in alone
    assert "nearly the same" in massive
    assert "--swap measures the costs" in rank
    assert "--swap" not in thoughts(made_up([0.5, 0.25], perplexity=None))[-1]  # an encoder has no such cost


@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_where_nothing_correlates_no_correlation_is_told(blocks):
    said = thoughts(replace(made_up([0.5] * blocks), costs=costing([1.0] * blocks)))
    assert f"over {blocks} block{'s' * (blocks > 1)} no correlation says how the two go together" in said[-1]


def test_the_page_says_what_to_think_of_it_and_nothing_twice():
    profile = made_up([0.9, 0.5], {1: 0.2})
    page = render(Measurement("m", profile))
    (section,) = re.findall(r"<h2>What to think of it</h2>\n(.*?)</ul>", page, re.DOTALL)
    assert re.findall(r"<li>(.*)</li>", section) == [*thoughts(profile), profile.outlook]
    plt.close("all")


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
