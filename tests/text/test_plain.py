import bz2
import csv
import gzip
import json
import lzma
import re

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from howlinear.errors import InputError, SourceError
from howlinear.text.plain import (
    column_of,
    paragraphs,
    pieces,
    read_path,
    read_text,
    sections,
    without_licence,
)

EBOOK = """The Project Gutenberg EBook of Toy

*** START OF {this} PROJECT GUTENBERG EBOOK TOY ***

one

two

*** END OF {this} PROJECT GUTENBERG EBOOK TOY ***

*** START: FULL LICENSE ***
"""
WIKITEXT = (
    """ \n = Valkyria = \n \n Text . \n More . \n \n = = Plot = = \n \n A = B . \n \n = Homarus = \n \n Text . \n"""
)
ARTICLES = ["= Valkyria = \n \n Text . \n More . \n \n = = Plot = = \n \n A = B .", "= Homarus = \n \n Text ."]


def put(path, content):
    """A file of these bytes or of this text; its path."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- texts


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        *(  # lines of white space separate documents
            (f"one\nstill one\n{blank}two\n", ["one\nstill one", "two"])
            for blank in ("\n", " \n", "\t \n", "\n\n\n", "\f\n", "\u00a0\n", " \n\n \n")
        ),
        *(  # lines end as on Unix, Windows and an old Macintosh
            ("one\nstill one\n\n \t\ntwo\n".replace("\n", end), ["one\nstill one", "two"])
            for end in ("\n", "\r\n", "\r")
        ),
        ("one\r\n\rtwo\n\r\nthree\r \rfour", ["one", "two", "three", "four"]),
        ("\ufeffone\n\n\ufefftwo", ["one", "two"]),  # byte-order marks, inside too where files were joined
        ("\ufeff = Title = \n \n Text . \n", ["= Title = \n \n Text ."]),
        *((WIKITEXT.replace("\n", end), ARTICLES) for end in ("\n", "\r\n")),
        ("Prose.\n\n = Title = \n\nMore.", ["Prose.", "= Title =", "More."]),  # no WikiText: it begins with no title
        *((EBOOK.format(this=this), ["one", "two"]) for this in ("THIS", "THE")),
        ("one\n\n*** END OF THE STORY ***", ["one", "*** END OF THE STORY ***"]),
        ("BZh and %PDF are words", ["BZh and %PDF are words"]),
    ],
)
def test_the_documents_of_a_file(tmp_path, content, documents):
    assert paragraphs(read_text(put(tmp_path / "f.txt", content))) == documents


LATIN = [b"one", "zw\u00f6lf".encode(), "caf\u00e9".encode("latin-1"), b"four"]
PACKED = {
    "gzip": gzip.compress(b"one", mtime=0),
    "bzip2": bz2.compress(b"one"),
    "xz": lzma.compress(b"one"),
    "zip": b"PK\x03\x04\x14\xff",
    "PDF": b"%PDF-1.7\n\xe2",
    "NumPy": b"\x93NUMPY\x01",
    "Parquet": b"PAR1\x15\xff",
    "Arrow": b"ARROW1\0\0\xff",
    "pickle": b"\x80\x04",
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (end.join(LATIN), r"f\.txt is not UTF-8 text: line 3 holds byte 0xe9.*iconv")
            for end in (b"\n", b"\r\n", b"\r")
        ),
        ("one\nzw\u00f6".encode()[:-1], "line 2 holds byte 0xc3"),  # a character that is cut off
        ("€ 20".encode("cp1252"), "iconv"),  # 0x80, as a pickle begins
        ("one".encode("utf-16"), "is not UTF-8 text: its first line begins as UTF-16"),
        ("one".encode("utf-32"), "is not UTF-8 text: its first line begins as UTF-32"),
        *((content, form) for form, content in PACKED.items()),
        (b"one\r\na\0b", r"holds NUL bytes \(line 2\)"),
        *(
            (f"one\n{text}\n".encode(encoding), "NUL bytes(?!.*iconv)")
            for text in ("one", "zw\u00f6lf")
            for encoding in ("utf-16-le", "utf-16-be", "utf-32-le")
        ),
    ],
)
def test_what_is_no_text_in_utf_8_is_named_as_what_it_is_or_by_its_line(tmp_path, content, message):
    with pytest.raises(SourceError, match=message):
        read_text(put(tmp_path / "f.txt", content))


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, "gz"), (bz2.compress, "BZ2"), (lzma.compress, "xz")])
def test_a_text_whose_name_says_that_it_is_packed_is_unpacked(tmp_path, pack, ending):
    path = put(tmp_path / f"mine.txt.{ending}", pack("one\r\nzw\u00f6".encode()))
    assert read_path(path) == read_path(tmp_path) == (["one\nzw\u00f6"], "")
    for damaged in (path.read_bytes()[:-4], b"one"):
        with pytest.raises(SourceError, match=r"cannot unpack .*mine\.txt"):
            read_path(put(path, damaged))


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read corpus file .*none\.txt: No such file"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(SourceError, match="is no regular file"):
        read_text(tmp_path)


# --- tables

ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]
BY_LINE = "\n".join(map(json.dumps, ROWS))
BOTH = ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        # every form
        ("t.ndjson", BY_LINE, BOTH),
        ("t.json", BY_LINE, BOTH),
        ("t.json", json.dumps(BOTH), BOTH),
        ("t.json", json.dumps(ROWS, indent=1), BOTH),
        ("t.json", json.dumps({"text": BOTH, "n": [1, 2]}), BOTH),
        ("t.json", pd.DataFrame(ROWS).to_json(), BOTH),
        ("t.json", json.dumps({"title": "a", "text": "one\n\ntwo"}), ["one\n\ntwo"]),  # one object is one row
        ("t.tsv", "text\tn\none\t1\ntwo\t2\n", BOTH),
        ("t.jsonl.gz", gzip.compress(BY_LINE.encode(), mtime=0), BOTH),
        ("t.CSV.GZ", gzip.compress(b"text,n\none,1\ntwo,2\n", mtime=0), BOTH),
        ("t.jsonl.bz2", bz2.compress(BY_LINE.encode()), BOTH),
        ("t.tsv.xz", lzma.compress(b"text\tn\none\t1\ntwo\t2\n"), BOTH),
        # cells as they are written; empty ones are none
        ("t.csv", 'text,n\n007,1\n2020-01-01,2\n"a\nb",3\nNA,4\n', ["007", "2020-01-01", "a\nb", "NA"]),
        (
            "t.jsonl",
            '{"text": "007"}\n{"text": "2020-01-01"}\n{"text": null}\n{"text": "a\\nb"}\n',
            ["007", "2020-01-01", "a\nb"],
        ),
        ("t.jsonl", '"one"\n\nnull\n"two"\n', BOTH),
        # quotes
        ("t.csv", '\ufefftext\r\n"Hello, world"\r\nplain\r\n', ["Hello, world", "plain"]),
        ("t.tsv", 'text\tn\n"one\t1\nsaid "two"\t2\nthree"\t3\n', ['"one', 'said "two"', 'three"']),
        ("t.tsv", 'text\tn\n"one\t1\ntwo\t2\n', ['"one', "two"]),
        ("t.tsv", 'text\tn\n"one\t1\ntwo"\t2\n', ['"one', 'two"']),
        ("t.tsv", 'text\tn\n"on""e"\t1\n"t\two\nthree\n"\t2\n', ['on"e', "t\two\nthree\n"]),
        ("t.csv", 'text,n\n"one,1\ntwo" and "three",2\n', ['"one', 'two" and "three"']),
        ("t.csv", 'text,n\n"on""e",1\n"tw,o\n",2\n', ['on"e', "tw,o\n"]),
        ("t.csv", f'text\n"{"long " * 100_000}"\n', ["long " * 100_000]),
        # a name over the only column is no text
        *(("t.csv", f"{name}\none\n", ["one"]) for name in ("review", "review_text", "Text", '""')),
    ],
)
def test_a_table_of_any_form_gives_the_texts_of_its_column(tmp_path, name, content, texts):
    put(tmp_path / name, content)
    assert read_path(tmp_path / name) == read_path(tmp_path) == (texts, "")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_cells_are_separated_by_what_separates_the_names_of_columns(tmp_path, name, sign):
    texts = ["one, two", "a; b | c", 'said "so"', "tabs\tinside\nlines"]
    table = pd.DataFrame({"id": range(4), "text": texts})
    table.to_csv(tmp_path / name, sep=sign, index=False)
    assert read_path(tmp_path / name) == (texts, "")
    if name == "t.tsv":  # of one column, where nothing is separated
        assert read_path(put(tmp_path / name, "text\n" + "\n".join(texts[:3]))) == (texts[:3], "")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((f"t.{kind}", content, rf"cannot read .*t\.{kind} as \.{kind}: ")
          for kind, content in (("csv", ""), ("jsonl", "{not json"), ("parquet", "no parquet"))),
        *((name, content, re.escape(name)) for name, content in (
            ("t.json", '{"width": 3, "blocks": {"n": 2}}'),
            ("t.json", "3"),
            ("t.json", "[[1, 2], [3]]"),
            ("t.json", "[" * 100_000),
            ("t.json", '["one", {"text": "two"}]'),
            ("t.jsonl", '{"text": "one"}\n"two"'),
            ("t.jsonl", ""),
            ("t.jsonl.gz", gzip.compress(b"text " * 99, mtime=0)[:-9]),
            ("t.csv.gz", "text\none\n"),
        )),
        *(("t.csv", content, r"t\.csv as \.csv")  # more cells than names
          for content in ("text\nHello, world\n", "text\none\nHello, world\n", "text,n\na,b,1\nc,d,2\n")),
        *((name, "text\ncafé\n".encode("latin-1"), "line 2.*iconv") for name in ("t.csv", "t.jsonl", "t.txt")),
        *(("t.csv", f'text,n\n"one\ntwo",1\n\n{quoted},2\nthree,3\n', r"t\.csv as \.csv: line 5 ")
          for quoted in ('"open', '"on"e', '"')),
        ("t.jsonl", '{"text": "one"}\n\n{"text": "tw', "line 3, column 10"),
        ("t.csv", "text,n,text\none,1,two\n", re.escape("t.csv")),
    ],
)  # fmt: skip
def test_a_table_that_is_damaged_or_without_texts_is_refused_in_one_line(tmp_path, name, content, message):
    longest = csv.field_size_limit()
    kinds = (InputError, SourceError) if message == re.escape(name) else SourceError
    with pytest.raises(kinds, match=message):
        read_path(put(tmp_path / name, content))
    assert csv.field_size_limit() == longest


def test_in_a_folder_json_that_is_no_text_is_passed_over(tmp_path):
    put(tmp_path / "a.txt", "one")
    put(tmp_path / "about.json", '{"width": 3, "blocks": 2}')
    texts, passed_over = read_path(tmp_path)
    assert texts == ["one"]
    assert passed_over.endswith(": 1")


def test_links_to_folders_are_followed_once(tmp_path):
    for folder, text in (("mine", "one"), ("more", "two")):
        (tmp_path / folder).mkdir()
        put(tmp_path / folder / f"{folder}.txt", text)
    (tmp_path / "mine" / "linked").symlink_to(tmp_path / "more")
    (tmp_path / "mine" / "twice").symlink_to(tmp_path / "more")
    (tmp_path / "mine" / "again").symlink_to(tmp_path / "mine")
    assert sorted(read_path(tmp_path / "mine")[0]) == ["one", "two"]


def test_a_saved_data_set_is_a_table_and_several_are_not(tmp_path):
    saved = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(tmp_path)
    assert read_path(tmp_path / "train") == (BOTH, "")
    with pytest.raises(InputError, match="test, train: give one of these"):
        read_path(tmp_path)
    put(tmp_path / "train" / "state.json", "{}")
    with pytest.raises(SourceError, match="as a data set"):
        read_path(tmp_path / "train")


@pytest.mark.parametrize("cells", [["one", "half \ud83d of it"], [["o", "n"], ["e"]], [np.array([1, 2])] * 2])
def test_cells_that_are_no_text_are_refused_with_their_place(tmp_path, cells):
    place = "place 1" if isinstance(cells[0], str) else "place 0"
    rows = [json.dumps({"text": cell}, default=np.ndarray.tolist) for cell in cells]
    with pytest.raises(InputError, match=place):
        read_path(put(tmp_path / "t.jsonl", "\n".join(rows)))
    with pytest.raises(InputError, match=place):
        column_of(pd.DataFrame({"text": pd.Series(cells, dtype=object)}), None, "a table")


def test_a_column_may_be_named_by_a_number():
    assert column_of(pd.DataFrame([[1, "one"], [2, "two"]]), 1, "it") == ["one", "two"]


def test_a_column_that_a_function_makes_or_that_is_there_twice_is_refused():
    table = datasets.Dataset.from_dict({"body": ["one"]}).with_transform(lambda rows: {"text": rows["body"]})
    with pytest.raises(InputError, match="gives no column 'body'"):
        column_of(table, "body", "it")
    with pytest.raises(InputError, match="2 columns 'text'"):
        column_of(pd.DataFrame([BOTH], columns=["text", "text"]), None, "a table")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "It was late.\nWe went home.\n"),
        ("t.csv", '"It was late."\n"We went home."\n'),
        ("t.tsv", "It was late.\nWe went home.\n"),
        ("t.csv.gz", gzip.compress(b"It was late.\r\nWe went home.\r\n", mtime=0)),
    ],
)
def test_the_first_text_of_a_column_without_a_name_is_read_and_it_is_said(tmp_path, name, content):
    put(tmp_path / name, content)
    for path in (tmp_path / name, tmp_path):
        texts, note = read_path(path)
        assert texts == ["It was late.", "We went home."]
        assert re.search(rf"{name} is read as a text, 'It was late\.'.*--text-column", note)
    assert read_path(tmp_path / name, "It was late.") == (["We went home."], "")


@pytest.mark.parametrize("first", ["It was", "Late!", "x" * 40, "昨日は雨だった。"])
def test_what_looks_like_a_text_is_no_name(tmp_path, first):
    texts, note = read_path(put(tmp_path / "t.csv", f"{first}\none\n"))
    assert texts == [first, "one"]
    assert note


def test_tables_of_a_folder_are_read_by_their_column(tmp_path):
    put(tmp_path / "a.jsonl", BY_LINE)
    (tmp_path / "below").mkdir()
    pd.DataFrame({"text": ["three"]}).to_parquet(tmp_path / "below" / "c.PARQUET")
    put(tmp_path / "d.txt", "four")
    assert read_path(tmp_path) == read_path(tmp_path, "text") == (["one", "two", "three", "four"], "")
    with pytest.raises(InputError, match=r"a\.jsonl has no column 'body'"):
        read_path(tmp_path, "body")
    put(tmp_path / "e.csv", "body,title\none,1\n")
    with pytest.raises(InputError, match=r"which column of .*e\.csv is text"):
        read_path(tmp_path)
    (tmp_path / "e.csv").rename(tmp_path / ".e.csv")
    put(tmp_path / "f.jsonl", "{no json")
    with pytest.raises(SourceError, match=r"f\.jsonl as \.jsonl"):
        read_path(tmp_path)


def test_a_column_of_what_has_none_is_refused(tmp_path):
    for path in (put(tmp_path / "t.txt", "one"), tmp_path):
        with pytest.raises(InputError, match="has no columns: leave text_column out"):
            read_path(path, "text")


# --- pieces


@given(st.lists(st.text(alphabet="ab \n", max_size=400), min_size=1, max_size=5))
def test_pieces_hold_every_character_that_is_not_blank_in_its_order(texts):
    cut = pieces(texts)
    assert "".join("".join(cut).split()) == "".join("".join(texts).split())
    size = max(1, sum(map(len, texts)) // 128)
    assert all(0 < len(piece) <= size and piece == piece.strip() for piece in cut)


# --- WikiText, Project Gutenberg, books


@pytest.mark.parametrize(
    ("line", "count"),
    [
        *((f" = {title} = ", 2) for title in ("A", "7", "A = B", "Ab", "Hawker ( film )")),
        *((line, 1) for line in (" = = Plot = = ", " = = = Deep = = = ", " a = b = c ", "=Plain=", " = ")),
    ],
)
def test_titles_of_any_length_begin_an_article_and_other_lines_do_not(line, count):
    assert len(paragraphs("\n".join([" = First = ", " Text . ", line, " Text . "]))) == count


def test_an_ebook_without_an_end_is_read_to_its_end():
    assert without_licence("a\n*** START OF THE PROJECT GUTENBERG EBOOK TOY ***\none\ntwo") == "one\ntwo"


def test_a_book_is_cut_at_headings_after_two_blank_lines_and_not_in_its_contents():
    chapter = re.compile(r"CHAPTER \d+\.")
    contents = "Title\n\nCONTENTS\n\nCHAPTER 1. A\n\nCHAPTER 2. B"
    first = "CHAPTER 1. A\n\nText.\n\nMore."
    second = "CHAPTER 2. B\n\nText of\nCHAPTER 9. of another book."
    book = f"{contents}\n\n\n{first}\n\n\n\n{second}\n"
    assert sections(book.split("\n"), chapter) == [contents, first, second]
    assert sections(["CHAPTER 1.", "Text."], chapter) == ["CHAPTER 1.\nText."]  # a book may begin with a heading
    assert sections([], chapter) == []
