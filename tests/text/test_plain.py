import bz2
import codecs
import csv
import gzip
import json
import lzma
import re

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from howlinear.errors import InputError, SourceError
from howlinear.text.plain import (
    articles,
    column_of,
    decoded,
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


@pytest.fixture
def read(tmp_path):
    """The documents of a file of these bytes."""

    def read(content):
        path = tmp_path / "f.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return paragraphs(read_text(path))

    return read


# --- lines


@pytest.mark.parametrize("blank", ["\n", " \n", "\t \n", "\n\n\n", "\f\n", "\u00a0\n", " \n\n \n"])
def test_lines_of_white_space_separate_documents(read, blank):
    assert read(f"one\nstill one\n{blank}two\n") == ["one\nstill one", "two"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_unix_windows_and_an_old_macintosh_are_the_same(read, end):
    text = "one\nstill one\n\n \t\ntwo\n".replace("\n", end)
    assert read(text) == ["one\nstill one", "two"]


def test_line_ends_may_differ_within_a_file(read):
    assert read("one\r\n\rtwo\n\r\nthree\r \rfour") == ["one", "two", "three", "four"]


def test_byte_order_marks_are_nothing_wherever_files_were_joined(read):
    assert read("\ufeffone\n\n\ufefftwo") == ["one", "two"]
    assert read("\ufeff = Title = \n \n Text . \n") == ["= Title = \n \n Text ."]


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


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, "gz"), (bz2.compress, "BZ2"), (lzma.compress, "xz")])
def test_a_text_whose_name_says_that_it_is_packed_is_unpacked(tmp_path, pack, ending):
    path = tmp_path / f"mine.txt.{ending}"
    path.write_bytes(pack("one\r\nzw\u00f6".encode()))
    assert read_path(path) == (["one\nzw\u00f6"], "")
    assert read_path(tmp_path) == (["one\nzw\u00f6"], "")
    for damaged in (path.read_bytes()[:-4], b"one"):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"cannot unpack .*mine\.txt"):
            read_path(path)


@pytest.mark.parametrize(
    ("form", "content"),
    {
        "gzip": gzip.compress(b"one", mtime=0),
        "bzip2": bz2.compress(b"one"),
        "xz": lzma.compress(b"one"),
        "zip": b"PK\x03\x04\x14\xff",
        "PDF": b"%PDF-1.7\n\xe2",
        "NumPy": b"\x93NUMPY\x01",
        "Parquet": b"PAR1\x15\xff",
        "Arrow": b"ARROW1\0\0\xff",
        "pickle": b"\x80\x04",
    }.items(),
    ids=str,
)
def test_text_that_is_packed_is_named_as_what_it_is(read, form, content):
    with pytest.raises(SourceError, match=form):
        read(content)
    assert read(b"BZh and %PDF are words") == ["BZh and %PDF are words"]
    with pytest.raises(SourceError, match="iconv"):  # a price, in Windows-1252
        read("€ 20".encode("cp1252"))


def test_nul_bytes_are_named_with_their_line(read):
    with pytest.raises(SourceError, match=r"holds NUL bytes \(line 2\)"):
        read(b"one\r\na\0b")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read corpus file .*none\.txt: No such file"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(SourceError, match="is no regular file"):
        read_text(tmp_path)


# --- tables


@pytest.mark.parametrize(("suffix", "content"), [("csv", ""), ("jsonl", "{not json"), ("parquet", "no parquet")])
def test_a_damaged_table_is_refused_in_one_line(tmp_path, suffix, content):
    path = tmp_path / f"t.{suffix}"
    path.write_text(content)
    with pytest.raises(SourceError, match=rf"cannot read .*t\.{suffix} as \.{suffix}: ") as error:
        read_path(path)
    assert "\n" not in str(error.value)


def test_cells_are_read_as_they_are_written_and_empty_ones_are_none(tmp_path):
    (tmp_path / "t.csv").write_text('text,n\n007,1\n2020-01-01,2\n"a\nb",3\nNA,4\n')
    (tmp_path / "t.jsonl").write_text('{"text": "007"}\n{"text": "2020-01-01"}\n{"text": null}\n{"text": "a\\nb"}\n')
    assert read_path(tmp_path / "t.csv") == (["007", "2020-01-01", "a\nb", "NA"], "")
    assert read_path(tmp_path / "t.jsonl") == (["007", "2020-01-01", "a\nb"], "")
    (tmp_path / "t.jsonl").write_text('"one"\n\nnull\n"two"\n')
    assert read_path(tmp_path / "t.jsonl") == (["one", "two"], "")


ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]
BY_LINE = "\n".join(map(json.dumps, ROWS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.ndjson", BY_LINE),
        ("t.json", BY_LINE),
        ("t.json", json.dumps(["one", "two"])),
        ("t.json", json.dumps(ROWS, indent=1)),
        ("t.json", json.dumps({"text": ["one", "two"], "n": [1, 2]})),
        ("t.json", pd.DataFrame(ROWS).to_json()),
        ("t.tsv", "text\tn\none\t1\ntwo\t2\n"),
        ("t.jsonl.gz", gzip.compress(BY_LINE.encode(), mtime=0)),
        ("t.CSV.GZ", gzip.compress(b"text,n\none,1\ntwo,2\n", mtime=0)),
        ("t.jsonl.bz2", bz2.compress(BY_LINE.encode())),
        ("t.tsv.xz", lzma.compress(b"text\tn\none\t1\ntwo\t2\n")),
    ],
)
def test_a_table_of_any_form_gives_the_texts_of_its_column(tmp_path, name, content):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read_path(tmp_path / name) == (["one", "two"], "")
    assert read_path(tmp_path) == (["one", "two"], "")


def test_one_object_is_one_row(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"title": "a", "text": "one\n\ntwo"}))
    assert read_path(tmp_path / "t.json") == (["one\n\ntwo"], "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.json", b'{"width": 3, "blocks": {"n": 2}}'),
        ("t.json", b"3"),
        ("t.json", b"[[1, 2], [3]]"),
        ("t.json", b"[" * 100_000),
        ("t.json", b'["one", {"text": "two"}]'),
        ("t.jsonl", b'{"text": "one"}\n"two"'),
        ("t.jsonl", b""),
        ("t.jsonl.gz", gzip.compress(b"text " * 99, mtime=0)[:-9]),
        ("t.csv.gz", b"text\none\n"),
    ],
)
def test_a_table_without_texts_is_refused_in_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((InputError, SourceError)) as error:
        read_path(tmp_path / name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_in_a_folder_json_that_is_no_text_is_passed_over(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "about.json").write_text('{"width": 3, "blocks": 2}')
    texts, passed_over = read_path(tmp_path)
    assert texts == ["one"]
    assert passed_over.endswith(": 1")


def test_a_saved_data_set_is_a_table_and_several_are_not(tmp_path):
    saved = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(tmp_path)
    assert read_path(tmp_path / "train") == (["one", "two"], "")
    with pytest.raises(InputError, match="test, train: give one of these"):
        read_path(tmp_path)
    (tmp_path / "train" / "state.json").write_text("{}")
    with pytest.raises(SourceError, match="as a data set"):
        read_path(tmp_path / "train")


@pytest.mark.parametrize("cells", [["one", "half \ud83d of it"], [["o", "n"], ["e"]], [np.array([1, 2])] * 2])
def test_cells_that_are_no_text_are_refused_with_their_place(tmp_path, cells):
    place = "place 1" if isinstance(cells[0], str) else "place 0"
    rows = [json.dumps({"text": cell}, default=np.ndarray.tolist) for cell in cells]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    with pytest.raises(InputError, match=place):
        read_path(tmp_path / "t.jsonl")
    with pytest.raises(InputError, match=place):
        column_of(pd.DataFrame({"text": pd.Series(cells, dtype=object)}), None, "a table")


def test_a_column_that_a_function_makes_is_refused():
    table = datasets.Dataset.from_dict({"body": ["one"]}).with_transform(lambda rows: {"text": rows["body"]})
    with pytest.raises(InputError, match="gives no column 'body'"):
        column_of(table, "body", "it")


def test_of_two_columns_of_one_name_none_is_taken():
    with pytest.raises(InputError, match="2 columns 'text'"):
        column_of(pd.DataFrame([["one", "two"]], columns=["text", "text"]), None, "a table")


@pytest.mark.parametrize("rows", ["text\nHello, world\n", "text\none\nHello, world\n", "text,n\na,b,1\nc,d,2\n"])
def test_a_row_with_more_fields_than_the_header_is_refused(tmp_path, rows):
    (tmp_path / "t.csv").write_text(rows)
    with pytest.raises(SourceError, match=r"t\.csv as \.csv"):
        read_path(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.txt"])
def test_bytes_that_are_no_utf_8_are_refused_with_their_line(tmp_path, name):
    (tmp_path / name).write_bytes("text\ncafé\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"line 2.*iconv"):
        read_path(tmp_path / name)


def test_commas_in_quotes_are_read(tmp_path):
    (tmp_path / "t.csv").write_text('\ufefftext\r\n"Hello, world"\r\nplain\r\n')
    assert read_path(tmp_path / "t.csv") == (["Hello, world", "plain"], "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"It was late.\nWe went home.\n"),
        ("t.csv", b'"It was late."\n"We went home."\n'),
        ("t.tsv", b"It was late.\nWe went home.\n"),
        ("t.csv.gz", gzip.compress(b"It was late.\r\nWe went home.\r\n", mtime=0)),
    ],
)
def test_the_first_text_of_a_column_without_a_name_is_read_and_it_is_said(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        texts, note = read_path(path)
        assert texts == ["It was late.", "We went home."]
        assert re.search(rf"{name} is read as a text, 'It was late\.'.*--text-column", note)
    assert read_path(tmp_path / name, "It was late.") == (["We went home."], "")


@pytest.mark.parametrize("first", ["It was", "Late!", "x" * 40, "昨日は雨だった。"])
def test_what_looks_like_a_text_is_no_name(tmp_path, first):
    (tmp_path / "t.csv").write_text(f"{first}\none\n")
    texts, note = read_path(tmp_path / "t.csv")
    assert texts == [first, "one"]
    assert note


@pytest.mark.parametrize("name", ["review", "review_text", "Text", '""'])
def test_a_name_over_the_only_column_is_no_text(tmp_path, name):
    (tmp_path / "t.csv").write_text(f"{name}\none\n")
    assert read_path(tmp_path / "t.csv") == (["one"], "")


def test_tables_of_a_folder_are_read_by_their_column(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one", "n": 1}\n{"text": "two", "n": 2}\n')
    (tmp_path / "below").mkdir()
    pd.DataFrame({"text": ["three"]}).to_parquet(tmp_path / "below" / "c.PARQUET")
    (tmp_path / "d.txt").write_text("four")
    assert read_path(tmp_path) == read_path(tmp_path, "text") == (["one", "two", "three", "four"], "")
    with pytest.raises(InputError, match=r"a\.jsonl has no column 'body'"):
        read_path(tmp_path, "body")
    (tmp_path / "e.csv").write_text("body,title\none,1\n")
    with pytest.raises(InputError, match=r"which column of .*e\.csv is text"):
        read_path(tmp_path)
    (tmp_path / "e.csv").rename(tmp_path / ".e.csv")
    (tmp_path / "f.jsonl").write_text("{no json")
    with pytest.raises(SourceError, match=r"f\.jsonl as \.jsonl"):
        read_path(tmp_path)


def test_a_column_of_what_has_none_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("one")
    for path in (tmp_path / "t.txt", tmp_path):
        with pytest.raises(InputError, match="has no columns: leave text_column out"):
            read_path(path, "text")


# --- pieces


@given(st.lists(st.text(alphabet="ab \n", max_size=400), min_size=1, max_size=5))
def test_pieces_hold_every_character_that_is_not_blank_in_its_order(texts):
    cut = pieces(texts)
    assert "".join("".join(cut).split()) == "".join("".join(texts).split())
    size = max(1, sum(map(len, texts)) // 128)
    assert all(0 < len(piece) <= size and piece == piece.strip() for piece in cut)


# --- WikiText

WIKITEXT = (
    """ \n = Valkyria = \n \n Text . \n More . \n \n = = Plot = = \n \n A = B . \n \n = Homarus = \n \n Text . \n"""
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_wikitext_as_it_comes_is_read_by_articles(read, end):
    assert read(WIKITEXT.replace("\n", end)) == [
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
    assert read("Prose.\n\n = Title = \n\nMore.") == ["Prose.", "= Title =", "More."]


# --- Project Gutenberg


@pytest.mark.parametrize("this", ["THIS", "THE"])
def test_of_an_ebook_what_stands_outside_is_left_out(read, this):
    text = read(EBOOK.format(this=this))
    assert text == ["one", "two"]


def test_an_ebook_without_an_end_is_read_to_its_end():
    assert without_licence("a\n*** START OF THE PROJECT GUTENBERG EBOOK TOY ***\none\ntwo") == "one\ntwo"


def test_of_any_other_file_nothing_is_left_out(read):
    assert read("one\n\n*** END OF THE STORY ***") == ["one", "*** END OF THE STORY ***"]


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


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("t.tsv", 'text\tn\n"one\t1\nsaid "two"\t2\nthree"\t3\n', ['"one', 'said "two"', 'three"']),
        ("t.tsv", 'text\tn\n"one\t1\ntwo\t2\n', ['"one', "two"]),
        ("t.tsv", 'text\tn\n"on""e"\t1\n"t\two\nthree\n"\t2\n', ['on"e', "t\two\nthree\n"]),
        ("t.csv", 'text,n\n"one,1\ntwo" and "three",2\n', ['"one', 'two" and "three"']),
        ("t.csv", 'text,n\n"on""e",1\n"tw,o\n",2\n', ['on"e', "tw,o\n"]),
        ("t.csv", f'text\n"{"long " * 100_000}"\n', ["long " * 100_000]),
    ],
)
def test_quotes_that_no_cell_is_within_are_of_the_texts(tmp_path, name, content, texts):
    (tmp_path / name).write_text(content)
    assert read_path(tmp_path / name, "text") == (texts, "")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("text", ["one", "zw\u00f6lf"])
def test_utf_16_without_its_mark_is_no_latin_1(read, encoding, text):
    with pytest.raises(SourceError, match="NUL bytes") as error:
        read(f"one\n{text}\n".encode(encoding))
    assert "iconv" not in str(error.value)


def test_a_row_of_json_that_is_cut_off_is_named_by_its_line(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "one"}\n\n{"text": "tw')
    with pytest.raises(SourceError, match="line 3, column 10"):
        read_path(tmp_path / "t.jsonl")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_cells_are_separated_by_what_separates_the_names_of_columns(tmp_path, name, sign):
    texts = ["one, two", "a; b | c", 'said "so"', "tabs\tinside\nlines"]
    table = pd.DataFrame({"id": range(4), "text": texts})
    table.to_csv(tmp_path / name, sep=sign, index=False)
    assert read_path(tmp_path / name) == (texts, "")
    (tmp_path / name).write_text("text\n" + "\n".join(texts[:3]))
    if name == "t.tsv":  # of one column, where nothing is separated
        assert read_path(tmp_path / name) == (texts[:3], "")


@pytest.mark.parametrize("quoted", ['"open', '"on"e', '"'])
def test_a_cell_that_a_quote_leaves_open_is_refused_by_its_line(tmp_path, quoted):
    longest = csv.field_size_limit()
    (tmp_path / "t.csv").write_text(f'text,n\n"one\ntwo",1\n\n{quoted},2\nthree,3\n')
    with pytest.raises(SourceError, match=r"t\.csv as \.csv: line 5 "):
        read_path(tmp_path / "t.csv", "text")
    assert csv.field_size_limit() == longest
