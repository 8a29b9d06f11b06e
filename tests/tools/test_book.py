"""The book: what is folded where, what is refused, and that its pages need no network.

The pages are those of a small book made here; `BOOK=build/book/html pytest tests/test_book.py`, the last step of
`make book`, reads the whole one as well.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup, SoupStrainer
from filelock import FileLock
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from helpers.browser import must_have_chromium
from howlinear.errors import InputError
from howlinear.files import numbers, paths
from howlinear.notebook import execute, prose
from tests.tools import test_explorer, test_in_browser
from tests.tools.test_solutions import answers, small
from tools.book import build, printed

pytestmark = pytest.mark.long

STEM = "02_ceilings"


def test_every_figure_has_a_line_in_the_gallery_and_one_without_is_refused(tmp_path, monkeypatch):
    cards = build.gallery("minis", execute.stems(), tmp_path / "all")
    drawn = {profile: {path.stem for path in paths.figures(profile).glob("*.png")} for profile in ("minis", "public")}
    assert cards.count(":img-top:") == len(drawn["minis"])
    assert prose.captions().keys() == drawn["minis"] | drawn["public"]
    shutil.copytree(paths.figures("minis"), tmp_path / "figures")
    (tmp_path / "figures" / f"{STEM}_new.png").touch()
    monkeypatch.setattr(paths, "figures", lambda _: tmp_path / "figures")
    with pytest.raises(InputError, match="no line for 02_ceilings_new"):
        build.gallery("minis", [STEM], tmp_path / "out")


def test_the_reference_has_every_module_once():
    pages = dict(build.api())
    package = paths.ROOT / "lib/howlinear"
    files = [path.relative_to(package).with_suffix("") for path in package.rglob("[a-z]*.py")]
    modules = {".".join(path.parts) for path in files} - {"public", "app.lm_eval"}  # see `build.modules`
    assert pages.keys() == modules | {"index"}
    listed = re.findall(r"\{doc\}`([\w.]+)`", pages["index"])
    assert sorted(listed) == sorted(modules)
    assert "automodule:: howlinear.core.moments\n" in pages["core.moments"]


def test_main_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        build.main("minis")
    said = capsys.readouterr().err
    assert said.startswith("howlinear: the book needs")
    assert "00_by_hand.ipynb: run make figures PROFILE=minis" in said


@pytest.fixture(scope="session")
def small_book(shared_folder):
    """The small book, built once for all processes of pytest."""
    folder = shared_folder / "book"
    with FileLock(shared_folder / "book.lock"):
        if not (folder / "html").exists():
            folder.mkdir(exist_ok=True)
            build_small_book(folder)
    return folder / "html"


WORDS = """\
The `residual` is what a *swap* leaves.

<details><summary>Refresher: a token</summary>

A [link](https://example.org), a token and $x$.

</details>

What a swap costs in perplexity, of [row](https://example.org) or residual, by token.

| a row | in a table |
|---|---|
| of | [links](https://example.org) |"""
TABLE = '<table class="dataframe"><thead><tr><th>a</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>'


def with_words(notebook):
    """The notebook with words of the glossary, a refresher, tables and printed text: every kind of thing a page has."""
    outputs = [
        new_output("stream", name="stdout", text="a row is printed"),
        new_output("execute_result", {"text/html": TABLE, "text/plain": "a"}, execution_count=1),
    ]
    cells = [new_markdown_cell(f"## A fold\n\n{WORDS}"), new_code_cell("print('a row')  # 1", outputs=outputs)]
    notebook.cells[5:5] = cells
    return notebook


def build_small_book(folder):
    """A book of one small notebook, made-up rows on its interactive pages, and little reference, for time."""
    patch = pytest.MonkeyPatch()
    patch.setattr(paths, "BUILD", folder)
    patch.setattr(build, "REPORT", folder / "report.pdf")
    patch.setattr(build, "solutions", lambda _: answers(1, 2))
    api = {name: text for name, text in build.api() if name in ("core.moments", "core.ceilings", "errors")}
    api["index"] = "# Reference\n\n```{toctree}\n" + "\n".join(api) + "\n```\n"
    patch.setattr(build, "api", lambda: iter(api.items()))
    (folder / "report.pdf").write_bytes(b"%PDF-1.7")
    (folder / "minis/notebooks").mkdir(parents=True)
    nbformat.write(with_words(small()), folder / "minis/notebooks" / f"{STEM}.ipynb")
    frame = folder / "frame"
    shutil.copytree(build.FRAME, frame)
    words = (frame / "explore.md").read_text(encoding="utf-8")  # its links to other notebooks lead nowhere in this book
    (frame / "explore.md").write_text(re.sub(r"\[(notebook \d+)\]\(notebooks/\d\d\w+\.ipynb\)", r"\1", words))
    patch.setattr(build, "FRAME", frame)
    numbers.save(folder / "minis/explorer.json", test_explorer.made_up())
    numbers.save(folder / "minis/in_browser.json", test_in_browser.made_up())
    head = '<!doctype html><meta name="viewport" content="width=device-width"><title>Tokens</title>'
    (folder / "minis/tokens.html").write_text(head, encoding="utf-8")
    patch.setattr(printed, "chromium", lambda: None)
    build.prepare("minis", folder / "source", [STEM])
    build.build(folder / "source", folder / "html")
    (folder / "html/_static/workflow.html").write_text("<title>Made by make book</title>")
    patch.undo()


@pytest.fixture(scope="session", params=["small", "whole"] if "BOOK" in os.environ else ["small"])
def html(request):
    """Pages: of the small book, and of the whole one where BOOK says where it is."""
    return Path(os.environ["BOOK"]).resolve() if request.param == "whole" else request.getfixturevalue("small_book")


def test_a_notebooks_link_to_a_page_of_the_frame_leads_there(small_book):
    """In the project it lies in `book`, in the book one folder up."""
    html = (small_book / "notebooks" / f"{STEM}.html").read_text(encoding="utf-8")
    assert 'href="../reading.html#block"' in html
    assert 'id="block"' in (small_book / "reading.html").read_text(encoding="utf-8")


def test_the_book_is_printed_where_there_is_a_chromium(small_book, tmp_path, monkeypatch):
    must_have_chromium()
    pages = []

    def run(command):
        """As `printed` runs it, and the page is kept that Chromium gets."""
        if command[0] == printed.chromium():
            pages.append(Path(command[-1].removeprefix("file://")).read_text(encoding="utf-8"))
        ran(command)

    ran = printed._run
    monkeypatch.setattr(printed, "_run", run)
    printed.write(small_book.parent / "source", tmp_path / "book.pdf")
    folded = [tag for tag in re.findall(r"<details[^>]*>", pages[0]) if " open" not in tag]
    assert "<details" in pages[0]
    assert not folded  # paper has no click
    assert (tmp_path / "book.pdf").read_bytes().startswith(b"%PDF")


def test_the_book_says_whether_it_was_printed(monkeypatch, tmp_path):
    monkeypatch.setattr(printed, "chromium", lambda: "/usr/bin/chromium")
    assert 'href="_static/book.pdf"' in printed.sentence()
    monkeypatch.setattr(printed, "chromium", lambda: None)
    assert "book.pdf" not in printed.sentence()
    printed.write(tmp_path, tmp_path / "book.pdf")
    assert not (tmp_path / "book.pdf").exists()


LOADING = ["script", "link", "img", "iframe", "source", "video", "audio", "embed"]
BESIDE = {"search", "index", "next", "prev", "author"}  # links between pages, which load nothing


class Asked:
    """Everything a page loads by itself, what it links to, and pictures without a text."""

    def __init__(self, page):
        read = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser", parse_only=SoupStrainer(["a", *LOADING]))
        asks = [tag for tag in read.find_all(LOADING) if not set(tag.get("rel", [])) & BESIDE]
        self.loads = [where for tag in asks if (where := tag.get("src") or tag.get("href"))]
        self.links = [link.get("href", "") for link in read.find_all("a")]
        self.mute = [image["src"] for image in read.find_all("img") if not image.get("alt")]


def pages(html):
    found = sorted(html.rglob("*.html"))
    assert len(found) > 5
    return [path for path in found if "_static" not in path.parts]


def test_no_page_loads_anything_from_elsewhere(html):
    for path in pages(html):
        asked = Asked(path)
        for where in asked.loads:
            if not where.startswith("data:"):
                assert not urlsplit(where).netloc, f"{path.name} loads {where}"
                assert (path.parent / unquote(urlsplit(where).path)).is_file(), f"{path.name} misses {where}"
        assert not asked.mute, f"{path.name}: no text for {asked.mute}"


def test_no_page_tells_where_it_was_made(html):
    for path in pages(html):
        assert str(paths.ROOT) not in path.read_text(encoding="utf-8"), path.name


def test_every_link_leads_somewhere(html):
    for path in pages(html):
        for where in Asked(path).links:
            parts = urlsplit(where)
            if not parts.scheme and parts.path:
                assert (path.parent / unquote(parts.path)).exists(), f"{path.name} links to {where}"


def test_solutions_are_there_and_closed(html):
    text = (html / "notebooks" / f"{STEM}.html").read_text(encoding="utf-8")
    folds = re.findall(r"<details[^>]*>", text)
    assert len(folds) >= 2
    assert not [fold for fold in folds if " open" in fold]


def is_whole_without_a_network(path, browser):
    browser.open(path.as_uri())
    assert browser.complaints() == [], path.name
    assert browser.value("document.title"), path.name
    drawn = "[...document.querySelectorAll('.math')].every(m => m.querySelector('mjx-container'))"
    assert browser.value(drawn), f"{path.name} has mathematics that is not set"  # so has a title in the sidebar
    assert browser.value("document.querySelectorAll('mjx-merror, [data-mjx-error]').length") == 0, path.name


def test_every_page_is_whole_without_a_network(html, browser):
    every = pages(html)
    assert html / "explore.html" in every
    for path in every:
        is_whole_without_a_network(path, browser)


def test_the_explorer_answers_inside_the_book(html, browser):
    browser.open((html / "explore.html").as_uri())
    said = browser.value("document.querySelector('.explorer-said').textContent")
    assert re.match(r"[\w-]+, block \d+, on \w+: R²_lin −?\d\.\d{3}", said)


def test_the_page_of_tokens_is_a_card_away_and_asks_for_nothing(html, browser):
    assert "tokens.html" in Asked(html / "index.html").links
    assert "_static/tokens.html" in Asked(html / "tokens.html").loads
    is_whole_without_a_network(html / "_static" / "tokens.html", browser)


def test_a_page_that_needs_the_network_is_caught(browser):
    browser.show('<title>bad</title><script src="https://example.org/x.js"></script>')
    assert "asked for https://example.org/x.js" in browser.complaints()


NOWHERE = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


def test_the_pipelines_own_report_is_made_and_read_without_a_network(browser, tmp_path):
    """As `make book` makes it; rules of which nothing has run here have no times in it."""
    page = tmp_path / "workflow.html"
    options = ["--nolock", "--cores", "1", "--config", "profile=minis", "--report", str(page)]
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.SNAKEFILE), *options]
    done = subprocess.run(command, cwd=paths.ROOT, env=os.environ | NOWHERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
    assert str(paths.ROOT) not in page.read_text(encoding="utf-8")
    browser.open(page.as_uri())
    browser.until("!!document.querySelector('svg, canvas') && document.body.textContent.includes('02_ceilings')")
    asked = [said for said in browser.complaints() if not said.startswith("console: ")]  # a warning of its styles'
    assert asked == []


# --- the page with cells to run

LAST_DIGIT = 0.0011  # of three: what is shown with them is rounded twice


def cell(number, part):
    return f"document.querySelectorAll('.try-cell')[{number - 1}].querySelector('{part}')"


def run_cell(browser, number, code=None):
    """The numbers that a cell prints, as it stands or with a reader's code."""
    if code is not None:
        browser.value(f"{cell(number, 'textarea')}.value = {json.dumps(code)}")
    browser.value(f"{cell(number, 'button')}.click()")
    printed = browser.value(f"{cell(number, 'pre')}.textContent")
    return [float(line.split()[-1]) for line in printed.splitlines()]


def heard(browser, number):
    """What a cell's status line says, below what it printed."""
    return browser.value(f"{cell(number, '[role=status] p')}.textContent")


def shares(text):
    return [float(share.replace("−", "-")) for share in re.findall(r"−?\d+\.\d{3}\b", text)]


def told(browser, number):
    """The shares that stand under a task's "What to expect", in their order."""
    return shares(browser.value(f"document.querySelectorAll('details.sd-dropdown')[{number - 1}].textContent"))


@pytest.fixture
def cells(html, browser):
    """The page, just opened."""
    browser.open((html / "try.html").as_uri(), 1000)
    return browser


def test_every_cell_finds_what_the_page_says(cells):
    """The page's numbers are the library's, those of its cells are computed by its own script."""
    held_out = run_cell(cells, 1)
    assert held_out == pytest.approx(told(cells, 1)[:1], abs=LAST_DIGIT)
    _, *both = run_cell(cells, 2)
    assert both == pytest.approx(told(cells, 2)[:2], abs=LAST_DIGIT)
    ridges = run_cell(cells, 3)
    without, best, *_, strongest, _ = told(cells, 3)
    assert [ridges[0], max(ridges), ridges[-1]] == pytest.approx([without, best, strongest], abs=LAST_DIGIT)
    assert run_cell(cells, 4) == pytest.approx(told(cells, 4), abs=LAST_DIGIT)
    assert run_cell(cells, 5) == pytest.approx(told(cells, 5)[:2], abs=LAST_DIGIT)
    assert [heard(cells, number) for number in range(1, 6)] == ["Done."] * 5
    assert cells.complaints() == []


def test_the_cells_find_the_recorded_r2_of_every_block(cells):
    """All three of the page's table, which is filled from the record of notebook 02."""
    recorded = shares(cells.value("document.querySelector('table').textContent"))
    code = """for (const name of ["mostLinear", "middle", "leastLinear"]) {
      print(r2(fit(sum(blocks[name].train)), blocks[name].test).toFixed(6));
    }"""
    assert run_cell(cells, 1, code) == pytest.approx(recorded, abs=6e-4)
    assert len(recorded) == 3


def test_a_readers_fault_is_said_and_can_be_taken_back(cells):
    before = cells.value(f"{cell(2, 'textarea')}.value")
    run_cell(cells, 2, "print(1); print(nothing)")
    assert heard(cells, 2) == "Stopped: nothing is not defined."
    assert cells.value(f"{cell(2, 'pre')}.textContent") == "1"
    run_cell(cells, 2, "const sum = ;")
    assert heard(cells, 2).startswith("Stopped: ")
    run_cell(cells, 2, "fit(blocks.middle.test)")
    assert heard(cells, 2).startswith("Done. Nothing was printed")
    cells.value(f"{cell(2, 'button + button')}.click()")
    assert cells.value(f"{cell(2, 'textarea')}.value") == before
    assert cells.value(f"document.activeElement === {cell(2, 'textarea')}")


def test_a_reader_may_use_any_name_and_changes_no_other_cell(cells):
    before = run_cell(cells, 1)
    assert run_cell(cells, 2, "const sum = 7; print(sum);") == [7]
    run_cell(cells, 2, "blocks.middle.test.syy.fill(1); blocks.middle.train = [];")
    assert run_cell(cells, 1) == before


def test_a_cell_runs_by_its_keys(cells):
    cells.value(f"{cell(1, 'textarea')}.focus()")
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 2}
    for kind in ("keyDown", "keyUp"):
        cells.ask("Input.dispatchKeyEvent", type=kind, **key)
    cells.until(f"{cell(1, '[role=status]')}.textContent.startsWith('held out')")


# --- the glossary's words


def test_the_first_of_a_notebooks_words_leads_to_the_glossary(small_book):
    """Not those in code, headings, tables and outputs; of a word first folded away, the first that lies open."""
    page = (small_book / "notebooks" / f"{STEM}.html").read_text(encoding="utf-8")
    words = re.findall(r'<a [^>]*aria-describedby="[^"]*"[^>]*href="([^"]*)"[^>]*>(.*?)</a>', page)
    found = {re.sub("<[^>]*>", "", word): address.rpartition("#")[2] for address, word in words}
    expected = {"swap": "swap", "perplexity": "perplexity-nat", "residual": "residual", "token": "token"}
    assert found == expected | {"block": "block"}
    assert page.index("</details>") < page.index('id="definition-of-token"')
    assert len(words) == len(found)
    assert "glossed" not in (small_book / "index.html").read_text(encoding="utf-8")


def test_a_definition_shows_on_focus_and_on_hover_and_closes_by_escape(small_book, browser):
    browser.open((small_book / "notebooks" / f"{STEM}.html").as_uri())
    shown = "document.getElementById('definition-of-residual').checkVisibility()"
    link = "document.querySelector('[aria-describedby=definition-of-residual]')"
    assert not browser.value(shown)
    browser.value(f"{link}.scrollIntoView({{ block: 'center' }}); {link}.focus()")
    assert browser.value(shown)
    browser.ask("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27)
    assert not browser.value(shown)
    browser.value(f"{link}.blur()")
    where = browser.value(f"(({{ x, y }}) => [x + 3, y + 8])({link}.getBoundingClientRect())")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])
    browser.until(shown, 5)
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.until(f"!{shown}", 5)
