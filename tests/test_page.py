"""The page of a measurement: whole, alone, and only as clever as what it is given."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pytest
import torch

from howlinear.instrument.measure import measure
from howlinear.instrument.swap_costs import swap_costs
from howlinear.page import render
from howlinear.text.rows import TokenRows

NASTY = "<script>alert('x')</script>"
LOADS = {"src", "srcset", "data", "poster", "background", "action"}  # attributes that have a browser fetch something
VOID = {"meta"}


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
    page = render(profile, "tiny", ["A note."], {"seed": "0"}, costs if swapped else None)
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


def test_the_figure_is_sound_and_of_outlines(measured):
    profile, costs = measured
    page = render(profile, "tiny", [], {}, costs)
    svg = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    root = ET.fromstring(svg)
    assert root.get("viewBox")
    assert not list(root.iter("{http://www.w3.org/2000/svg}text"))  # letters need no font


def test_what_is_given_is_text(measured):
    profile, _ = measured
    page = render(profile, NASTY, [NASTY], {NASTY: NASTY})
    assert "script" not in Reader(page).tags
    assert page.count("&lt;script&gt;") >= 5
