import json
import re
import shutil

import pytest

from helpers.browser import Browser, must_have_chromium
from howlinear.errors import InputError
from howlinear.files import paths
from howlinear.plots import style
from tools.book import charts

pytestmark = pytest.mark.long

FRAME = (paths.ROOT / "book" / "explorer.html").read_text(encoding="utf-8")
CORPORA, MODELS, BLOCKS = ("docs", "code"), ("mini-gpt2", "mini-llama"), range(4)


def rows():
    """Rows as `explorer.collect` makes them, every number telling where it belongs."""
    for c, corpus in enumerate(CORPORA):
        for m, model in enumerate(MODELS):
            for block in BLOCKS:
                r2 = round(0.9 - 0.1 * block - 0.03 * m - 0.01 * c, 4)
                yield {
                    "model": model,
                    "corpus": corpus,
                    "block": block,
                    "delta": None if c else block / 10,
                    "r2": r2,
                    "low": r2 - 0.02,
                    "high": r2 + 0.02,
                    "median": r2 - 0.05,
                    "rank": 20.0 + block,
                    "condition": 3.0,
                    "features": [r2 + 0.05, r2, r2 - 0.05],
                    "ranks": [0, 1, 2, 3],
                    "curve": [0.0, r2 / 2, r2 - 0.01, r2],
                }


ROWS = list(rows())


def test_the_drawing_holds_every_row_and_a_control_for_each_choice():
    drawing = charts.charts(ROWS)
    assert drawing["data"]["values"] == ROWS
    assert json.dumps(drawing).count('"features": [') == len(ROWS)  # once, not once per chart
    controls = {param["name"]: param for param in drawing["params"]}
    assert {name: param["value"] for name, param in controls.items()} == {
        "corpus": "docs",
        "statistic": "r2",
        "model": "mini-gpt2",
        "block": 2,
    }
    assert controls["corpus"]["bind"]["options"] == list(CORPORA)
    assert controls["model"]["bind"]["options"] == list(MODELS)
    assert controls["block"]["bind"]["options"] == list(BLOCKS)
    assert controls["statistic"]["bind"]["options"] == list(charts.STATISTICS)
    assert set(charts.STATISTICS) <= ROWS[0].keys()


def test_models_look_as_in_every_figure():
    drawing = json.dumps(charts.charts(ROWS))
    for model in MODELS:
        assert style.look(model)["color"] in drawing
    assert '"range": ["circle", "triangle-up"]' in drawing


def test_the_fragment_asks_for_nothing_and_cannot_be_broken_out_of():
    evil = [row | {"model": "a</script><b>"} for row in ROWS]
    text = charts.fragment(evil, FRAME)
    assert text.count("</script>") == FRAME.count("</script>")
    assert not re.findall(r"<(?:script|link|iframe)[^>]*(?:src|href)=", text)  # images: the browser tells
    assert len(text) < 1_500_000


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="nothing to explore"):
        charts.charts([])


@pytest.mark.parametrize("frame", ["%LIBRARY%", "%LIBRARY% %DRAWING% %DRAWING%"])
def test_a_frame_without_its_marks_is_refused(frame):
    with pytest.raises(InputError, match=r"holds %DRAWING% \d times"):
        charts.fragment(ROWS, frame)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page in a browser that reaches no network."""
    must_have_chromium()
    folder = tmp_path_factory.mktemp("explorer")
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    (folder / "page.html").write_text(head + charts.fragment(ROWS, FRAME), encoding="utf-8")
    with Browser(folder / "profile") as browser:
        browser.address = (folder / "page.html").as_uri()
        yield browser
    shutil.rmtree(folder / "profile", ignore_errors=True)


def points(page):
    """Where the filled points are, and what a reader hears of each."""
    return page.value(
        "[...document.querySelectorAll('path[aria-roledescription=point]')].map(p => {"
        "const b = p.getBoundingClientRect(); return [p.ariaLabel, b.x + b.width / 2, b.y + b.height / 2]})"
    )


def drawn(page):
    return page.value("document.getElementById('explorer-drawing').textContent")


def said(page):
    return page.value("document.getElementById('explorer-said').textContent")


def draws_and_fits(page, width):
    page.open(page.address, width)
    assert page.complaints() == []
    assert page.value("document.documentElement.scrollWidth") <= width
    assert said(page).startswith("mini-gpt2, block 2, on docs: R²_lin 0.700 [0.680, 0.720]")
    assert len(points(page)) == len(MODELS) * len(BLOCKS) + 1  # and the ring


def test_the_page_draws_and_fits_on_a_phone(page):
    draws_and_fits(page, 390)


def test_the_page_draws_and_fits_and_answers(page):
    """On one page, one after the other: to draw it takes a browser seconds."""
    draws_and_fits(page, 1000)
    a_click_on_a_point_shows_its_block_below(page)
    the_controls_change_text_and_statistic(page)


def a_click_on_a_point_shows_its_block_below(page):
    label, x, y = next(point for point in points(page) if "block: 3" in point[0] and "mini-llama" in point[0])
    page.click(x, y)
    page.until("window.explorer.signal('block') === 3")
    assert page.value("window.explorer.signal('model')") == "mini-llama"
    assert "0.57" in label
    page.until("document.getElementById('explorer-said').textContent.startsWith('mini-llama, block 3, on docs')")
    assert "Per-feature R²: mini-llama, block 3" in page.value(
        "document.querySelector('#explorer-drawing').textContent"
    )
    assert "swapping it costs 0.30 perplexity" in said(page)


def the_controls_change_text_and_statistic(page):
    for name, value in (("corpus", "code"), ("statistic", "delta")):
        label = json.dumps(charts.STATISTICS.get(value, value))
        page.value(
            f"(select => {{ select.value = [...select.options].find(o => o.textContent === {label}).value;"
            "for (const kind of ['input', 'change']) select.dispatchEvent(new Event(kind)) })"
            f"(document.querySelector('#explorer-controls select[name={name}]'))"
        )
        page.until(f"window.explorer.signal('{name}') === '{value}'")
    page.until("document.getElementById('explorer-said').textContent.includes('on code')")
    assert "swapping" not in said(page)
    page.until("document.getElementById('explorer-drawing').textContent.includes('measured on docs only')")
    assert points(page) == []  # no cost is known on this text
