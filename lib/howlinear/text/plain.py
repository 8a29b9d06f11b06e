"""The user's own texts (files, folders, tables), and the ways to cut a text into documents.

Text is UTF-8; lines may end as on Unix, Windows or an old Macintosh; a line of white space is blank; byte-order marks
are ignored. Only the part of a Project Gutenberg file between its START and END lines is read: the rest is the licence.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from numbers import Real
from pathlib import Path
from typing import Any

from howlinear.errors import HowlinearError, InputError, SourceError, in_one_line, readable

TITLE = re.compile(r"\s*= [^=](.*[^=])? =\s*")  # ` = Title = `; sections have more of them, ` = = History = = `
GUTENBERG_START = re.compile(r"\*\*\* ?START OF TH(E|IS) PROJECT GUTENBERG EBOOK.*")
GUTENBERG_END = re.compile(r"\*\*\* ?END OF TH(E|IS) PROJECT GUTENBERG EBOOK.*")
# Other encodings that a file's first bytes give away; UTF-32's mark begins with UTF-16's.
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
PACKED = {  # first bytes of files that may hold text, but not as plain text
    b"\x1f\x8b": "compressed by gzip",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard",
    b"PK\x03\x04": "a zip archive or an office document",
    b"%PDF": "a PDF",
    b"PAR1": "a table of Parquet without its ending",
    b"ARROW1": "a table of Arrow",
    b"\xff\xff\xff\xff": "a table of Arrow",
    b"\x93NUMPY": "an array of NumPy",
    b"\x80\x04": "a pickle",
    b"SQLite format 3\0": "an SQLite database",
}
TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}  # may follow any other ending
COLUMNS = ("text", "content")  # usual names of a text column
SENTENCE = re.compile(r"\S\s+\S|.{40}|[.!?…。！？]$")  # found in a text, but not in a usual column name
PIECES = 128  # fewest documents that a text is cut into
PIECE = 2_000  # most characters of such a document, some 500 tokens


# --- Files, folders, tables


def read_path(path: Path, column: str | None = None) -> tuple[list[str], str]:
    """Read the texts at a path, with a note on what was skipped or taken for a text; the note may be empty.

    A table gives one text per row of a column, a folder the texts of each of its files. A folder that `save_to_disk` of
    a `datasets.Dataset` wrote is a table.
    """
    if is_table(path):
        return _read_rows(path, column)
    if path.is_dir():
        return _read_folder(path, column)
    if column is not None:
        raise _without_columns(path)
    return [read_text(path)], ""


def check_not_blank(texts: Iterable[str], name: str) -> None:
    """Refuse texts that are all blank."""
    if not any(text.strip() for text in texts):
        raise InputError(f"{name} is empty: a corpus holds text")


def is_table(path: Path) -> bool:
    """Return whether a path is a table: a file by its ending, a folder by its `datasets` files; splits are refused."""
    if not path.is_dir():
        return _ending(path) in TABLES
    if (path / "dataset_dict.json").is_file():
        splits = sorted(split.parent.name for split in path.glob("*/state.json"))
        raise InputError(f"{path} holds a split in each of its folders {', '.join(splits)}: give one of these")
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def _ending(path: Path) -> str:
    """Return the ending of a file name in lower case, without the ending of a compression."""
    packed = path.suffix.lower() in UNPACK
    return (path.with_suffix("") if packed else path).suffix.lower()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    r"""Read the text of a file, with `\n` as line end, without byte-order marks and Project Gutenberg's licence."""
    return without_licence(decoded(_unpacked(path), str(path), encoding))


def _read_rows(path: Path, column: str | None) -> tuple[list[str], str]:
    """Read the texts of a table; if the only column's name looks like a text, it is included and a note says so."""
    table = read_table(path)
    texts = column_of(table, column, str(path))
    names = list(table.columns) if path.is_file() and _ending(path) in (".csv", ".tsv") else []
    # "Unnamed: 0" is what pandas calls a column whose name is empty
    if column is not None or len(names) != 1 or names[0] == "Unnamed: 0" or not SENTENCE.search(names[0]):
        return texts, ""
    first = f"{names[0]:.30}" + "…" * (len(names[0]) > 30)
    return [names[0], *texts], (
        f"the first line of {path.name} is read as a text, {first!r}: if it is the column's name, give it as "
        "text_column= (--text-column)"
    )


def _read_folder(folder: Path, column: str | None) -> tuple[list[str], str]:
    """Read the texts of every file below a folder, in order of names, without hidden files and files without text.

    Many folders hold a `.json` that describes their files and is no text itself; it is skipped.
    """
    texts = []
    notes = []
    others = 0
    try:
        of_folder = sorted(files_below(folder))
    except OSError as error:
        raise SourceError(f"cannot list {folder}: {error.strerror or error}; give the folder of the texts") from error
    paths = [path for path in of_folder if not any(p.startswith(".") for p in path.relative_to(folder).parts)]
    if column is not None and not any(map(is_table, paths)):
        raise _without_columns(folder)
    for path in paths:
        try:
            read, note = _read_rows(path, column) if is_table(path) else ([read_text(path)], "")
        except HowlinearError:
            if is_table(path) and _ending(path) != ".json":
                raise
            others += 1
            continue
        texts += read
        notes += [note] if note else []
    if others:
        notes.append(f"files that hold no text, or not in UTF-8, and were passed over: {others:,}")
    return texts, "; ".join(notes)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, also below links to folders; each folder is entered once."""
    entered: set[str] = set()

    def fail(error: OSError) -> None:
        raise error

    for below, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        folders.sort()
        if os.path.realpath(below) in entered:
            folders.clear()
            continue
        entered.add(os.path.realpath(below))
        yield from (path for name in files if (path := Path(below, name)).is_file())


def _without_columns(path: Path) -> InputError:
    return InputError(f"{path} has no columns: leave text_column out, or give a file that ends in {', '.join(TABLES)}")


def read_table(path: Path) -> Any:
    """Read a table with pandas, or a saved data set with `datasets`, its cells as they are written."""
    import pandas as pd

    ending = _ending(path)
    if not path.is_dir():
        read_bytes(path, most=1)  # a missing file raises the same error as for any text
    binary = path.is_dir() or ending == ".parquet"
    text = "" if binary else decoded(_unpacked(path), str(path))
    try:
        if path.is_dir():
            from datasets import load_from_disk  # slow to import, and needless for other tables

            return load_from_disk(str(path))
        if ending == ".parquet":
            return pd.read_parquet(path)
        if ending in (".csv", ".tsv"):
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header: commas in a text
                separator = _separator(text, "\t" if ending == ".tsv" else ",")
                as_written = {"dtype": str, "keep_default_na": False, "index_col": False}
                as_written |= {"sep": separator, "quoting": _quoting(text, separator)}
                table = pd.read_csv(io.StringIO(text), **as_written)
                header = pd.read_csv(io.StringIO(text), header=None, nrows=1, **as_written).iloc[0]
                # pandas renames a repeated column, which would hide that there are two
                twice = (header.duplicated(keep=False) & (header != "")).to_numpy()
                return table.set_axis(table.columns.where(~twice, header), axis=1)
        return pd.DataFrame(_json_rows(text, ending), dtype=object)
    except (ValueError, OSError, LookupError, RecursionError, pd.errors.ParserWarning) as error:  # of damaged files
        raise SourceError(f"cannot read {path} as {ending or 'a data set'}: {in_one_line(error)}") from error


def _separator(text: str, usual: str) -> str:
    """Find the separator of a table's cells: the usual one, unless its first line lacks it but has another."""
    header = text.lstrip("\n").partition("\n")[0]
    return next((sign for sign in (usual, ",", ";", "\t", "|") if sign in header), usual)


def _quoting(text: str, separator: str) -> int:
    """Decide whether quotes around a table's cells are csv syntax or, as in most .tsv, part of the texts.

    They are part of the texts if every line then has as many cells as the first, and if as syntax they would leave a
    cell without an end or, in a .tsv, let it span tabs and lines. If they can be neither, the error names the line.
    """
    lines = [line for line in text.split("\n") if line]
    stand_alone = len({line.count(separator) for line in lines}) == 1
    as_csv = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    longest = csv.field_size_limit(len(text) + 1)  # applies to all readers until it is reset
    read, count = 0, 0  # lines read; rows, blank ones left out
    try:
        for row in as_csv:
            read, count = as_csv.line_num, count + bool(row)
    except csv.Error as error:
        if stand_alone:
            return csv.QUOTE_NONE
        raise ValueError(
            f'line {read + 1} has a cell that begins with a quote and ends with none; write "" for each quote inside it'
        ) from error
    finally:
        csv.field_size_limit(longest)
    joins_cells = separator == "\t" and stand_alone and separator in lines[0] and count < len(lines)
    return csv.QUOTE_NONE if joins_cells else csv.QUOTE_MINIMAL


def _unpacked(path: Path) -> bytes:
    """Read the content of a file, decompressed if its ending is that of a compression."""
    content = read_bytes(path)
    ending = path.suffix.lower()
    try:
        return UNPACK[ending](content) if ending in UNPACK else content
    except (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise SourceError(f"cannot unpack {path}: {error}; is it a whole {ending} file?") from error


def _json_rows(text: str, ending: str) -> list[Any] | dict[str, Any]:
    """Parse the rows or columns of a JSON table: one row per line, or a single list or object."""
    try:
        whole = json.loads(text) if ending == ".json" else None
    except json.JSONDecodeError:
        whole = None  # many .json files have one row per line
    if isinstance(whole, dict):
        of_columns = any(all(isinstance(cells, kind) for cells in whole.values()) for kind in (list, dict))
        return whole if of_columns else [whole]
    rows = [_json_row(*line) for line in enumerate(text.split("\n"), 1) if line[1].strip()] if whole is None else whole
    rows = filled(rows) if isinstance(rows, list) else None
    if rows is None or len({len(row) if isinstance(row, list) else type(row) for row in rows}) > 1:
        raise ValueError("it is no table: give a list of texts or of objects, or an object of columns")
    return rows


def _json_row(number: int, line: str) -> Any:
    """Parse a row that has its own line."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from error


def column_of(table: Any, column: str | None, source: str) -> list[str]:
    """Return the texts in a column of a table of `datasets`, pandas, polars or pyarrow, without empty cells."""
    names = names_of(table)
    column = check_column([str(name) for name in names], None if column is None else str(column), source)
    cells = filled(cells_of(table, next(name for name in names if str(name) == column)))
    check_strings(cells, f"column {column!r} of {source}")
    return cells


def names_of(table: Any) -> list[Any]:
    """Return the names of a table's columns; empty for anything that is not a table."""
    names = getattr(table, "column_names", None)
    return list(getattr(table, "columns", ()) if names is None else names)


def cells_of(table: Any, name: Any) -> list[Any]:
    """Return the cells in a column of a table of `datasets`, pandas, polars or pyarrow."""
    try:
        return as_list(table[name])
    except (TypeError, KeyError) as error:  # a lazy frame, or a data set computed from other columns
        raise InputError(f"a {type(table).__name__} gives no column {name!r}: collect it first, or map it") from error


def as_list(column: Any) -> list[Any]:
    """Convert a column of any library to a list of Python objects."""
    for way in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, way):
            return getattr(column, way)()
    return list(column)


def filled(cells: list[Any]) -> list[Any]:
    """Drop empty cells: None, NA and NaN."""
    empty = ("NoneType", "NAType")
    return [
        cell for cell in cells if type(cell).__name__ not in empty and not (isinstance(cell, Real) and cell != cell)
    ]


def check_not_splits(given: Any) -> None:
    """Refuse a mapping of several splits, since none of them is chosen silently."""
    if isinstance(given, Mapping) and given and all(hasattr(part, "column_names") for part in given.values()):
        names = [str(name) for name in given]
        raise InputError(
            f"a {type(given).__name__} of the splits {', '.join(names)}: give one split of it, as data[{names[0]!r}]"
        )


def check_column(names: list[str], column: str | None, source: str) -> str:
    """Return the text column of a table: the one that was named, or `text`, `content`, or the only one."""
    if not names:
        raise InputError(f"{source} is empty: a corpus holds text")
    there = ", ".join(f"{name:.30}" for name in names[:12]) + (", …" if len(names) > 12 else "")
    if column is None:
        column = usual_column(names)
        if column is None:
            raise InputError(
                f"which column of {source} is text? say it, load_corpus(text, model, text_column=…) or --text-column, "
                f"one of {there}"
            )
    if column not in names:
        raise InputError(f"{source} has no column {column!r}: give one of {there}")
    if names.count(column) > 1:
        raise InputError(f"{source} has {names.count(column)} columns {column!r}: give a table with one of them")
    return column


def usual_column(names: list[str]) -> str | None:
    """Return the text column if none is named: `text`, `content` or the only one; None if it cannot be told."""
    return next((name for name in COLUMNS if name in names), names[0] if len(names) == 1 else None)


def listed(given: Iterable[Any]) -> list[Any]:
    """List the items of an iterable; a set, whose order differs between processes, is sorted."""
    return sorted(given, key=str) if isinstance(given, Set) else list(given)


def check_strings(cells: list[Any], source: str, start: int = 0) -> None:
    """Refuse cells that are not text; places are counted from `start`."""
    for place, cell in enumerate(cells, start):
        if not isinstance(cell, str):
            raise InputError(f"{source} holds {type(cell).__name__} at place {place}: give strings")
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            around = cell[max(0, error.start - 20) : error.start + 20]
            raise InputError(
                f"{source} holds half a character, a lone surrogate, at place {place} in {around!a}: no tokenizer "
                "reads it; text.encode(errors='replace').decode() puts a ? in its place"
            ) from error


def read_bytes(path: Path, most: int = -1) -> bytes:
    """Read the content of a corpus file, or its first `most` bytes."""
    if os.path.exists(path) and not path.is_file():
        raise SourceError(f"cannot read corpus file {path}: it is no regular file; give the path of a text file")
    with readable(f"corpus file {path}", "give the path of a text file"), path.open("rb") as file:
        return file.read(most)


def decoded(content: bytes, source: str, encoding: str = "utf-8") -> str:
    r"""Decode bytes to text with `\n` as line end, without byte-order marks; errors name the line that is no text."""
    for mark, written_as in MARKS.items():
        if content.startswith(mark):
            raise SourceError(f"{source} is not UTF-8 text: its first line begins as {written_as}; convert it first")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        for mark, form in PACKED.items():
            if content.startswith(mark):
                raise SourceError(f"{source} is {form}, no plain text: unpack it, or save its text, first") from error
        _check_no_nul(content.decode("latin-1"), source)  # of UTF-16 without its mark, or of no text at all
        line = len(_unix(content[: error.start].decode(encoding)).split("\n"))
        raise SourceError(
            f"{source} is not UTF-8 text: line {line} holds byte 0x{content[error.start]:02x}, as in Latin-1 or "
            "Windows-1252; convert it first, as with iconv -f WINDOWS-1252 -t UTF-8"
        ) from error
    text = _unix(text).replace("\ufeff", "")  # inside too, where files were joined
    _check_no_nul(text, source)
    return text


def _check_no_nul(text: str, source: str) -> None:
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise SourceError(f"{source} holds NUL bytes (line {line}): it looks binary or UTF-16; give a UTF-8 text file")


def _unix(text: str) -> str:
    """Convert all line ends of a text to those of Unix."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def without_licence(text: str) -> str:
    """Cut a Project Gutenberg eBook to the part between its START and END lines; any other text stays whole."""
    lines = text.split("\n")
    start = 0
    end = len(lines)
    for number, line in enumerate(lines):
        if GUTENBERG_START.match(line):
            start = number + 1
        if GUTENBERG_END.match(line):
            end = number
            break
    return "\n".join(lines[start:end])


# --- Texts to documents


def paragraphs(text: str) -> list[str]:
    """Split a text into documents at blank lines, or WikiText as it is distributed into articles.

    WikiText is recognised by its first line that is not blank, `= Title =` with a space at either end. A formula on its
    own line that looks the same, `= 1 henry and capacitance C =`, is taken for a title, since nothing distinguishes
    them: 2 of 62 in the test part of WikiText-2.
    """
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if TITLE.fullmatch(first):
        return _cut_before(lines, lambda line, _: TITLE.fullmatch(line) is not None)
    return _not_blank(re.split(r"\n\s*\n", text))


def sections(lines: Iterable[str], heading: re.Pattern[str]) -> list[str]:
    """Split a book into sections, each with its heading.

    A heading follows two blank lines or more, which tells it from the same line in a table of contents.
    """
    return _cut_before(lines, lambda line, blank_lines: blank_lines >= 2 and heading.match(line) is not None)


def _cut_before(lines: Iterable[str], begins: Callable[[str, int], bool]) -> list[str]:
    """Cut a text before every line that begins a document, told it and how many blank lines are above it."""
    collected: list[list[str]] = [[]]
    blank_lines = 2  # a book may begin with a heading
    for line in lines:
        if begins(line, blank_lines):
            collected.append([])
        blank_lines = 0 if line.strip() else blank_lines + 1
        collected[-1].append(line)
    return _not_blank("\n".join(document) for document in collected)


def pieces(texts: list[str]) -> list[str]:
    """Cut texts that are too few to be documents into 128 or more pieces of at most 2,000 characters each.

    Pieces end at the end of a word, if there is white space.
    """
    size = max(1, min(PIECE, sum(len(text) for text in texts) // PIECES))
    piece = re.compile(rf"\S.{{0,{size - 1}}}(?=\s|\Z)|\S.{{0,{size - 1}}}", re.DOTALL)
    return _not_blank(found for text in texts for found in piece.findall(text))


WAYS = {
    "file": lambda text: _not_blank([text]),
    "blank": paragraphs,
    "line": lambda text: _not_blank(text.split("\n")),
}
"""The ways to cut a text into documents, the longest documents first."""


def check_way(way: str) -> None:
    """Refuse an unknown way to cut a text into documents."""
    if not isinstance(way, str) or (way != "auto" and way not in WAYS):
        raise InputError(f"documents={way!r}: use auto, {', '.join(WAYS)}")


def _not_blank(documents: Iterable[str]) -> list[str]:
    stripped = [document.strip() for document in documents]
    return [document for document in stripped if document]
