"""Texts by name, none of them real: a stand-in for the Hub, a server on the loopback address, a folder."""

import gc
import hashlib
import re
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import datasets
import pooch
import pytest

from howlinear.errors import InputError, SourceError
from howlinear.text import library
from howlinear.text.library import BOOKS, PAPERS, read_public
from howlinear.text.plain import paragraphs, read_text

START, END = (f"*** {word} OF THIS PROJECT GUTENBERG EBOOK TOY ***" for word in ("START", "END"))
BOOK = f"""Header.

{START}


CHAPTER 1. A

It cost £1.


CHAPTER 2. B

End.
{END}
""".replace("\n", "\r\n")
CHAPTERS = ["CHAPTER 1. A\n\nIt cost £1.", "CHAPTER 2. B\n\nEnd."]
HEADINGS = {"moby_dick": "CHAPTER 1. Loomings.", "puzzles": "1.--A POST-OFFICE PERPLEXITY."}


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # open sockets


@pytest.fixture(autouse=True, scope="module")
def collected():
    """Sockets of transfers that broke off are collected here, and in no later test."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No folder of texts, no proxy, a cache of its own, and no pause before another try."""
    monkeypatch.delenv(library.FOLDER, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setattr(pooch.core.time, "sleep", lambda _: None)


# --- books from an address


@contextmanager
def serving(content):
    """A server that says `content`, and fails `failures` more times, with a status or, if that is 0, half-way."""
    state = SimpleNamespace(content=content, failures=0, status=500, asked=0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked += 1
            broken = state.failures > 0
            state.failures -= broken
            self.send_response(state.status if broken and state.status else 200)
            self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
            self.wfile.write(state.content[: len(state.content) // 2] if broken else state.content)

        def log_message(self, *args):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        state.address = f"http://127.0.0.1:{server.server_port}/book.txt"
        yield state
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def book(monkeypatch):
    """A server with a made-up book in Latin-1 in the place of Moby-Dick."""
    content = BOOK.encode("latin-1")
    with serving(content) as server:
        toy = replace(
            BOOKS["moby_dick"], address=server.address, sha256=hashlib.sha256(content).hexdigest(), encoding="latin-1"
        )
        monkeypatch.setitem(BOOKS, "moby_dick", toy)
        yield server


def left_behind(tmp_path):
    return [path.name for path in (tmp_path / "cache").glob("*")]


def test_a_book_is_fetched_once_and_read_by_chapters_without_the_licence(book, tmp_path):
    first = read_public("moby_dick")
    assert first == CHAPTERS
    assert read_public("moby_dick") == first
    assert book.asked == 1
    assert left_behind(tmp_path) == ["moby_dick.txt"]


@pytest.mark.parametrize("status", [500, 0])
def test_a_transfer_that_fails_is_tried_again(book, status):
    book.failures, book.status = library.RETRIES, status
    assert read_public("moby_dick") == CHAPTERS
    assert book.asked == library.RETRIES + 1


@pytest.mark.parametrize(("status", "says"), [(404, "404"), (0, "broke off"), (None, "no connection")])
def test_a_server_that_goes_on_failing_or_is_down_is_refused_and_leaves_nothing(
    book, monkeypatch, tmp_path, status, says
):
    book.failures, book.status = 99, status
    address = book.address if status is not None else "http://127.0.0.1:9/book.txt"
    monkeypatch.setitem(BOOKS, "moby_dick", replace(BOOKS["moby_dick"], address=address))
    with pytest.raises(SourceError, match=f"cannot fetch moby_dick from {address}: .*{says}.*HOWLINEAR_TEXTS"):
        read_public("moby_dick")
    assert left_behind(tmp_path) == []


def test_another_text_than_the_pinned_one_is_refused_with_both_hashes(book, tmp_path):
    book.content = book.content.replace(b"cost", b"kost")
    with pytest.raises(SourceError, match="is not the moby_dick that was pinned") as error:
        read_public("moby_dick")
    for digest in (hashlib.sha256(book.content).hexdigest(), BOOKS["moby_dick"].sha256):
        assert digest in str(error.value)
    assert "HOWLINEAR_TEXTS" in str(error.value)
    assert left_behind(tmp_path) == []


def test_a_damaged_cache_is_fetched_anew(book, tmp_path):
    read_public("moby_dick")
    (tmp_path / "cache" / "moby_dick.txt").write_text("damaged")
    assert read_public("moby_dick") == CHAPTERS
    assert book.asked == 2


def test_a_cache_that_cannot_be_written_is_one_line(book, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "file" / "cache")
    with pytest.raises(SourceError, match="cannot fetch moby_dick"):
        read_public("moby_dick")


@pytest.mark.parametrize("name", BOOKS)
def test_addresses_hold_a_commit_and_headings_are_those_of_the_book(name):
    assert re.search(r"/[0-9a-f]{40}/", BOOKS[name].address)
    assert len(BOOKS[name].sha256) == 64
    assert BOOKS[name].heading.match(HEADINGS[name])


# --- a folder


@pytest.fixture
def folder(tmp_path):
    """The paper's texts as a person may have them."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("wikitext", "wikitext_test"):
        (folder / f"{name}.txt").write_text(" \n = One = \n \n Text . \n \n = Two = \n \n Text . \n")
    (folder / "moby_dick.txt").write_text("CHAPTER 1. A\n\nText.\n\n\nCHAPTER 2. B\n\nText.\n")
    (folder / "puzzles.txt").write_bytes("\ufeff1.--A.\r\n\r\nIt cost £1.\r\n\r\n\r\n2.--B.\r\n\r\nText.\r\n".encode())
    return folder


@pytest.mark.parametrize("by", ["argument", "environment"])
@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_texts_are_read_from_a_folder(folder, monkeypatch, name, by):
    if by == "environment":
        monkeypatch.setenv(library.FOLDER, str(folder))
        text = read_public(name)
    else:
        monkeypatch.setenv(library.FOLDER, "elsewhere")  # who names a folder means that one
        text = read_public(name, folder)
    assert len(text) == 2


def test_a_folder_that_lacks_a_text_is_not_passed_over(folder, book):
    (folder / "moby_dick.txt").unlink()
    with pytest.raises(SourceError, match=r"cannot read moby_dick: .*moby_dick\.txt is not there; put it there"):
        read_public("moby_dick", folder)
    assert book.asked == 0


def test_a_book_without_its_headings_says_what_to_do(folder):
    (folder / "puzzles.txt").write_text("CHAPTER 1.\n\nText.\n\n\nCHAPTER 2.\n")
    with pytest.raises(InputError, match=r"puzzles\.txt has no headings like those of puzzles.*its path as the corpus"):
        read_public("puzzles", folder)


# --- data sets


@pytest.fixture
def hub(monkeypatch):
    """Stand in for the Hub: `hub.rows` is what it holds, `hub.error` what it raises; `hub.asked` what was asked."""

    stand_in = SimpleNamespace(rows=[], error=None, asked=None)

    def load_dataset(**asked):
        stand_in.asked = asked
        if stand_in.error is not None:
            raise stand_in.error
        return {"text": stand_in.rows}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return stand_in


@pytest.mark.parametrize(("name", "split"), [("wikitext", "train"), ("wikitext_test", "test")])
def test_wikitext_is_asked_for_by_its_part_and_commit(hub, name, split):
    hub.rows = ["one"]
    assert read_public(name) == ["one"]
    assert hub.asked["path"] == "Salesforce/wikitext"
    assert hub.asked["name"] == "wikitext-2-raw-v1"
    assert hub.asked["split"] == split
    assert re.fullmatch("[0-9a-f]{40}", hub.asked["revision"])


def test_wikitext_of_the_hub_is_wikitext_as_a_file(hub, tmp_path):
    """The same articles as of the file that the rows were made of, in which blank lines hold a space."""
    hub.rows = ["", " = Valkyria = \n", "", " Text . \n", "", " = = Plot = = \n", "", " More . \n", "", " = Two = \n"]
    (tmp_path / "wiki.train.raw.txt").write_text("".join(row or " \n" for row in hub.rows))
    file = paragraphs(read_text(tmp_path / "wiki.train.raw.txt"))
    text = read_public("wikitext")
    assert text == file
    assert text == ["= Valkyria = \n \n Text . \n \n = = Plot = = \n \n More .", "= Two ="]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("no route\nto host"),
        ConnectionError(),
        FileNotFoundError("gone"),
        ValueError("bad configuration"),
    ],
)
def test_a_hub_that_cannot_be_reached_is_reported_with_what_works(hub, error):
    hub.error = error
    with pytest.raises(SourceError, match=r"without a network use docs, .*wikitext\.txt that HOWLINEAR_TEXTS"):
        read_public("wikitext")
