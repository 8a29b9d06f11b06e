"""The book's interactive page: its numbers against least squares on stored rows, and the page in a browser."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from helpers.planted_sinks import massive_block
from helpers.reference import held_out_r2, least_squares, pooled_r2
from howlinear.files import paths
from howlinear.notebook import run as notebooks
from tools.book import explorer

FRAME = paths.ROOT / "book" / "explorer.html"


def planted(**options):
    return massive_block(48, (1.0, 0.0, 0.0, 0.0), kept=200, **options)


def test_what_the_moments_give_equals_least_squares_on_stored_rows():
    kept, x, y, test, fold = planted()
    norm = y.norm(dim=1)
    found = {(row["protocol"], row["cut"]): row["r2"] for row in explorer.from_moments(kept)}
    assert len(found) == 3 * 5
    for cut in ("all", "5", "10", "20", "50"):
        within = norm <= (np.inf if cut == "all" else int(cut) * norm.median())
        train, held_out = ((x[part], y[part]) for part in (within & ~test, within & test))
        assert found["ours", cut] == pytest.approx(held_out_r2(train, held_out), abs=1e-6)
        weight, bias, _ = least_squares(*train)
        answer, target = np.asarray(held_out[0], float) @ weight + bias, np.asarray(held_out[1], float)
        scalar = 1 - np.square(target - answer).sum() / np.square(target - target.mean()).sum()
        assert found["scalar", cut] == pytest.approx(scalar, abs=1e-6)
        one = within & ~test & (fold == 0)
        few = pooled_r2(*held_out, *least_squares(x[one], y[one])[:2])
        assert found["fold", cut] == pytest.approx(few, abs=1e-6)
    assert found["ours", "5"] - found["ours", "all"] > 0.1  # the planted rows have nothing to do with the inputs


@pytest.mark.parametrize("profile", ["public", "minis"])
def test_what_is_on_record_is_on_the_page(profile):
    """Read from the CSV files cell by cell."""
    found = explorer.recorded(profile).drop_duplicates(explorer.KEYS).set_index(explorer.KEYS).sort_index()

    def cells(stem, name):
        with open(paths.results(profile) / stem / f"{name}.csv", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    main = cells("05_corpora", "profiles")[0]["corpus"]
    for row in cells("02_ceilings", "blocks"):
        where = (row["model"], main, int(row["block"]))
        ours = found.loc[(*where, "ours", "all")]
        assert ours.to_dict() == {name: float(row[name]) for name in explorer.VALUES}
        assert found.loc[(*where, "scalar", "all"), "r2"] == float(row["r2_scalar"])
    for row in cells("12_sinks", "blocks"):
        within = found.loc[(row["model"], main, int(row["block"]), "ours", "10")]
        assert [within["r2"], within["r2_low"]] == [float(row["r2_ordinary"]), float(row["r2_ordinary_low"])]
    curves = cells("11_protocol", "curves")
    most = max(int(row["factor"]) for row in curves)
    fewest = min(int(row["factor"]) for row in curves)
    for row in curves:
        where = (row["model"], main, int(row["block"]))
        if (row["split"], int(row["factor"])) == ("tail", most):
            assert found.loc[(*where, "tail", "all"), "r2"] == float(row["r2"])
        if (row["split"], int(row["factor"])) == ("documents", fewest):
            assert found.loc[(*where, "few", "all"), "r2"] == float(row["r2"])


class Run(notebooks.Run):
    """A run profile of one made-up model, whose capture is at hand."""

    def capture(self, name, corpus=None):
        blocks = {block: planted(seed=block, bend=0.2 + 0.2 * block)[0] for block in range(3)}
        return type("Stored", (), {"blocks": blocks})


@pytest.fixture(scope="module")
def found():
    return made_up()


def made_up():
    """What `collect` finds of a made-up model beside the records of public and embedded ones."""
    return explorer.collect(Run("explorer", "minis", {"made-up": "nowhere"}, ["docs"], 1024, 32, 0, 16))


def test_collect_has_each_number_once_and_the_recorded_one_with_its_interval(found):
    keys = [tuple(row[key] for key in explorer.KEYS) for row in found["values"]]
    assert len(set(keys)) == len(keys)
    by_key = dict(zip(keys, found["values"], strict=True))
    expected = {(row["protocol"], row["cut"]): row["r2"] for row in explorer.from_moments(planted(seed=1, bend=0.4)[0])}
    for (protocol, cut), value in expected.items():
        assert by_key["made-up", "docs", 1, protocol, cut]["r2"] == pytest.approx(value, abs=6e-5)
    assert by_key["mini-gpt2", "docs", 0, "ours", "all"]["r2_low"] is not None


@pytest.mark.parametrize("profile", ["public", "minis"])
def test_points_on_record_are_on_the_page(profile):
    """Read from the CSV file cell by cell."""
    clouds = explorer.recorded_clouds(profile)
    drawn = []
    for model, by_corpus in clouds.items():
        (by_block,) = by_corpus.values()
        for block, cloud in by_block.items():
            assert 0 < cloud["share"] <= 1
            drawn += [(model, block, *map(float, point)) for point in cloud["points"]]
    with open(paths.results(profile) / "04_rank" / "points.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = [(row["model"], row["block"], *(float(row[name]) for name in explorer.POINT)) for row in rows]
    assert sorted(drawn) == sorted(expected)


class Cells(HTMLParser):
    """The numbers of the page's table, by row and cut."""

    def __init__(self):
        super().__init__()
        self.values, self.row, self.cut = {}, None, None

    def handle_starttag(self, tag, attributes):
        about = dict(attributes)
        if tag == "tr":
            self.row = about
        self.cut = about.get("data-cut") if tag == "td" else None

    def handle_data(self, data):
        if self.cut and data.strip():
            keys = [self.row[f"data-{key}"] for key in explorer.KEYS[:-1]]
            self.values[(*keys, self.cut)] = float(data)


def test_the_page_is_a_table_of_every_number_for_whoever_has_no_script(found):
    cells = Cells()
    page = explorer.page(found, FRAME)
    cells.feed(page)
    expected = {tuple(str(row[key]) for key in explorer.KEYS): row["r2"] for row in found["values"]}
    assert cells.values == expected
    assert len(page) < 1_000_000


def test_the_page_asks_for_nothing_and_cannot_be_broken_out_of(found):
    evil = "a</script><b>"
    values = [row | {"model": evil} for row in found["values"][:9]]
    page = explorer.page({"values": values, "clouds": {evil: {}}}, FRAME)
    assert page.count("</script>") == 1
    assert "<b>" not in page.replace("<\\/", "</").partition("<script")[0]
    assert not re.findall(r"<(?:script|link|iframe)[^>]*(?:src|href)=", page)


# --- in a browser


@pytest.fixture
def page(found, browser):
    """The browser with the page, just opened."""
    parts = {name: (FRAME.parent / "_static" / name).read_text() for name in ("book.css", "explorer.js")}
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    body = f"<style>{parts['book.css']}</style>{explorer.page(found, FRAME)}<script>{parts['explorer.js']}</script>"
    browser.show(head + body)
    return browser


def choose(page, **choices):
    for name, value in choices.items():
        page.value(
            f"(select => {{ select.value = {json.dumps(value)};"
            "select.dispatchEvent(new Event('change', { bubbles: true })) })"
            f"(document.querySelector('#explorer select[name={name}]'))"
        )


def said(page):
    return page.value("document.querySelector('.explorer-said').textContent").replace("−", "-")


@pytest.mark.long
def test_a_choice_changes_profile_cloud_table_and_words(page, found):
    by_key = {tuple(row[key] for key in explorer.KEYS): row["r2"] for row in found["values"]}
    assert page.complaints() == []
    choose(page, model="made-up", cut="10", block="2")
    before, after = (by_key["made-up", "docs", 2, "ours", cut] for cut in ("all", "10"))
    assert f"R²_lin {before:.3f} of all rows" in said(page)
    assert f"as chosen {after:.3f}, a change of {after - before:+.3f}" in said(page)
    drawn = "[...document.querySelectorAll('.explorer-profile circle.filled')].map(c => Number(c.getAttribute('cy')))"
    heights = page.value(drawn)
    r2 = [by_key["made-up", "docs", block, "ours", "10"] for block in range(3)]
    slopes = np.diff(heights) / np.diff(r2)
    assert slopes == pytest.approx(slopes[0] * np.ones(2), rel=1e-3)  # a straight axis
    assert slopes[0] < 0
    visible = "[...document.querySelectorAll('#explorer tbody tr')].filter(r => r.checkVisibility()).length"
    assert page.value(visible) == 3
    choose(page, model="mpnet-base", block="8")
    medians = np.array(found["clouds"]["mpnet-base"]["wikitext"]["8"]["points"])[:, 2]
    assert (medians > 10).any()
    for drawn, count in (("circle.point", medians <= 5), (".massive:not(.filled)", medians > 10)):
        assert page.value(f"document.querySelectorAll('.explorer-cloud {drawn}').length") == count.sum()


@pytest.mark.long
def test_what_was_not_measured_cannot_be_chosen(page):
    choose(page, model="smollm2-135m", protocol="tail")
    option = "document.querySelector('#explorer select[name=cut] option[value=\"10\"]').disabled"
    assert page.value(option) is True
    assert page.value("document.querySelector('.explorer-cloud svg') !== null") is True
    choose(page, protocol="ours")
    assert page.value(option) is False


@pytest.mark.long
def test_a_click_chooses_a_block(page):
    choose(page, model="made-up")
    where = page.value(
        "(b => [b.x + b.width / 2, b.y + b.height / 2])"
        "(document.querySelector('.target[data-block=\"2\"]').getBoundingClientRect())"
    )
    page.click(*where)
    page.until("window.explorer.block === '2'", 10)
    assert said(page).startswith("made-up, block 2, on docs")


@pytest.mark.long
def test_the_controls_can_be_reached_by_keyboard(page):
    reached = []
    for _ in range(6):
        page.ask("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(page.value("document.activeElement.name ?? document.activeElement.className"))
    assert reached == ["model", "corpus", "protocol", "cut", "block", "explorer-table"]
