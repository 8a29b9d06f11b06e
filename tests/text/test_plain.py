import codecs
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from howlinear.errors import InputError, SourceError
from howlinear.text.plain import articles, decoded, read_plain, sections, without_licence
from howlinear.text.reading import LeftOut

EBOOK = """The Project Gutenberg EBook of Toy

*** START OF {this} PROJECT GUTENBERG EBOOK TOY ***

one

two

*** END OF {this} PROJECT GUTENBERG EBOOK TOY ***

*** START: FULL LICENSE ***
"""


@pytest.fixture
def read(tmp_path):
    """The documents of a file of these bytes."""

    def read(content):
        path = tmp_path / "f.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_plain(path)

    return read


# --- lines


@pytest.mark.parametrize("blank", ["\n", " \n", "\t \n", "\n\n\n", "\f\n", "\u00a0\n", " \n\n \n"])
def test_lines_of_white_space_separate_documents(read, blank):
    assert read(f"one\nstill one\n{blank}two\n").documents == ["one\nstill one", "two"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_unix_windows_and_an_old_macintosh_are_the_same(read, end):
    text = "one\nstill one\n\n \t\ntwo\n".replace("\n", end)
    assert read(text).documents == ["one\nstill one", "two"]


def test_line_ends_may_differ_within_a_file(read):
    assert read("one\r\n\rtwo\n\r\nthree\r \rfour").documents == ["one", "two", "three", "four"]


def test_byte_order_marks_are_nothing_wherever_files_were_joined(read):
    assert read("\ufeffone\n\n\ufefftwo").documents == ["one", "two"]
    assert read("\ufeff = Title = \n \n Text . \n").documents == ["= Title = \n \n Text ."]


@given(st.lists(st.sampled_from(["word", "ümlaut", " ", "", "= x", "\u2028", "\x1c"]), max_size=20))
@example(["= x", "", "word"])
def test_the_way_lines_end_never_matters(lines):
    unix = decoded("\n".join(lines).encode(), "f")
    for end in ("\r\n", "\r"):
        assert decoded(end.join(lines).encode(), "f") == unix


# --- encodings


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_wrong_encoding_is_named_with_its_line(read, end):
    content = end.join([b"one", "zw\u00f6lf".encode(), "caf\u00e9".encode("latin-1"), b"four"])
    with pytest.raises(SourceError, match=r"f\.txt is not UTF-8 text: line 3 holds byte 0xe9.*iconv"):
        read(content)


def test_a_character_that_is_cut_off_at_the_end_is_named_with_its_line(read):
    with pytest.raises(SourceError, match="line 2 holds byte 0xc3"):
        read("one\nzw\u00f6".encode()[:-1])


@pytest.mark.parametrize("name", ["utf-16", "utf-32"])
def test_encodings_that_mark_themselves_are_named(read, name):
    marks = {"utf-16": codecs.BOM_UTF16_LE, "utf-32": codecs.BOM_UTF32_LE}
    with pytest.raises(SourceError, match=f"is not UTF-8 text: its first line begins as {name.upper()}"):
        read(marks[name] + "one".encode(f"{name}-le"))


def test_nul_bytes_are_named_with_their_line(read):
    with pytest.raises(SourceError, match=r"holds NUL bytes \(line 2\)"):
        read(b"one\r\na\0b")


@pytest.mark.parametrize("content", [b"", b" \r\n\t\r", codecs.BOM_UTF8])
def test_an_empty_file_is_refused(read, content):
    with pytest.raises(InputError, match=r"f\.txt is empty"):
        read(content)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read corpus file .*none\.txt: No such file"):
        read_plain(tmp_path / "none.txt")
    with pytest.raises(SourceError, match="is no regular file"):
        read_plain(tmp_path)


def test_the_hash_is_of_the_bytes_as_they_are(read):
    hashes = {read(content).sha256 for content in ("one\n\ntwo", "one\r\n\r\ntwo", "\ufeffone\n\ntwo")}
    assert len(hashes) == 3
    assert read("one").sha256 == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"


# --- WikiText

WIKITEXT = (
    """ \n = Valkyria = \n \n Text . \n More . \n \n = = Plot = = \n \n A = B . \n \n = Homarus = \n \n Text . \n"""
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_wikitext_as_it_comes_is_read_by_articles(read, end):
    assert read(WIKITEXT.replace("\n", end)).documents == [
        "= Valkyria = \n \n Text . \n More . \n \n = = Plot = = \n \n A = B .",
        "= Homarus = \n \n Text .",
    ]


@pytest.mark.parametrize("title", ["A", "7", "A = B", "Ab", "Hawker ( film )"])
def test_titles_of_any_length_begin_an_article(title):
    assert len(articles([" = First = ", " Text . ", f" = {title} = ", " Text . "])) == 2


@pytest.mark.parametrize("line", [" = = Plot = = ", " = = = Deep = = = ", " a = b = c ", "=Plain=", " = "])
def test_other_lines_do_not(line):
    assert len(articles([" = First = ", " Text . ", line, " Text . "])) == 1


def test_a_file_that_does_not_begin_with_a_title_is_read_by_blank_lines(read):
    assert read("Prose.\n\n = Title = \n\nMore.").documents == ["Prose.", "= Title =", "More."]


# --- Project Gutenberg


@pytest.mark.parametrize("this", ["THIS", "THE"])
def test_of_an_ebook_what_stands_outside_is_left_out_and_counted(read, this):
    text = read(EBOOK.format(this=this))
    assert text.documents == ["one", "two"]
    assert text.left_out == (LeftOut(6, "lines", "of Project Gutenberg's header and licence"),)


def test_an_ebook_without_an_end_is_read_to_its_end():
    lines, left_out = without_licence(["a", "*** START OF THE PROJECT GUTENBERG EBOOK TOY ***", "one", "two"])
    assert (lines, [part.count for part in left_out]) == (["one", "two"], [2])


def test_of_any_other_file_nothing_is_left_out(read):
    assert read("one\n\n*** END OF THE STORY ***").left_out == ()


# --- books

CHAPTER = re.compile(r"CHAPTER \d+\.")


def test_a_book_is_cut_at_headings_after_two_blank_lines_and_not_in_its_contents():
    contents = "Title\n\nCONTENTS\n\nCHAPTER 1. A\n\nCHAPTER 2. B"
    first = "CHAPTER 1. A\n\nText.\n\nMore."
    second = "CHAPTER 2. B\n\nText of\nCHAPTER 9. of another book."
    book = f"{contents}\n\n\n{first}\n\n\n\n{second}\n"
    assert sections(book.split("\n"), CHAPTER) == [contents, first, second]


def test_a_book_may_begin_with_a_heading():
    assert sections(["CHAPTER 1.", "Text."], CHAPTER) == ["CHAPTER 1.\nText."]
    assert sections([], CHAPTER) == []


def test_a_files_source_is_its_path(tmp_path):
    (tmp_path / "mine.txt").write_text("one")
    assert read_plain(Path(tmp_path / "mine.txt")).source == str(tmp_path / "mine.txt")
