"""Text files as people have them, cut into documents.

UTF-8; lines end as on Unix, Windows or an old Macintosh; a line of white space is blank; a byte-order mark is nothing.
What documents are depends on the file:

- WikiText as it is distributed, known by its first line that is not blank, `= Title =` with a space at either end:
  every article is a document. A formula on a line of its own that looks the same, `= 1 henry and capacitance C =`, is
  taken for a title, since nothing tells them apart: 2 of 62 in the test part of WikiText-2.
- In any other file blank lines separate documents.

Of a file of Project Gutenberg only what stands between its START and END lines is read: the rest is their licence.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from howlinear.errors import InputError, SourceError
from howlinear.text.reading import LeftOut, Text

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


def read_plain(path: Path) -> Text:
    """Read a text file and find its documents.

    Raises:
        SourceError: the file cannot be read, or is not UTF-8 text; names the line.
        InputError: it is empty.
    """
    content = read_bytes(path)
    text = decoded(content, str(path))
    lines, left_out = without_licence(text.rstrip("\n").split("\n"))
    documents = articles(lines) if _is_wikitext(lines) else paragraphs(lines)
    if not documents:
        raise InputError(f"{path} is empty: a corpus file holds text, with blank lines between documents")
    return Text(documents, str(path), hashlib.sha256(content).hexdigest(), left_out)


def read_bytes(path: Path) -> bytes:
    """The content of a corpus file.

    Raises:
        SourceError: there is no such file, or it cannot be read.
    """
    if os.path.exists(path) and not path.is_file():
        raise SourceError(f"cannot read corpus file {path}: it is no regular file; give the path of a .txt file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"cannot read corpus file {path}: {error.strerror}; give the path of a .txt file") from error


def decoded(content: bytes, source: str, encoding: str = "utf-8") -> str:
    r"""Bytes as text, every line end `\n`, without byte-order marks.

    Args:
        content: the bytes.
        source: what to call them.
        encoding: how they were written.

    Raises:
        SourceError: they are something else; names the line.
    """
    for mark, written_as in MARKS.items():
        if content.startswith(mark):
            raise SourceError(f"{source} is not UTF-8 text: its first line begins as {written_as}; convert it first")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = len(_unix(content[: error.start].decode(encoding)).split("\n"))
        raise SourceError(
            f"{source} is not UTF-8 text: line {line} holds byte 0x{content[error.start]:02x}, as in Latin-1 or "
            "Windows-1252; convert it first, as with iconv -f WINDOWS-1252 -t UTF-8"
        ) from error
    text = _unix(text).replace("\ufeff", "")  # inside too, where files were joined
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise SourceError(f"{source} holds NUL bytes (line {line}): it looks binary; give a UTF-8 text file")
    return text


def _unix(text: str) -> str:
    """A text whose lines all end as on Unix."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def without_licence(lines: list[str]) -> tuple[list[str], tuple[LeftOut, ...]]:
    """The lines of an eBook of Project Gutenberg between its START and END lines; of anything else all lines.

    Returns:
        The lines; and what was left out.
    """
    start = 0
    end = len(lines)
    for number, line in enumerate(lines):
        if GUTENBERG_START.match(line):
            start = number + 1
        if GUTENBERG_END.match(line):
            end = number
            break
    outside = len(lines) - len(lines[start:end])
    if not outside:
        return lines, ()
    return lines[start:end], (LeftOut(outside, "lines", "of Project Gutenberg's header and licence"),)


def paragraphs(lines: Iterable[str]) -> list[str]:
    """Documents that blank lines separate."""
    pieces = [piece.strip() for piece in re.split(r"\n\s*\n", "\n".join(lines))]
    return [piece for piece in pieces if piece]


def articles(lines: Iterable[str]) -> list[str]:
    """WikiText's articles, each from its title on; what stands before the first title is one too."""
    collected: list[list[str]] = []
    for line in lines:
        if not collected or TITLE.fullmatch(line):
            collected.append([])
        collected[-1].append(line)
    documents = ["\n".join(article).strip() for article in collected]
    return [document for document in documents if document]


def sections(lines: Iterable[str], heading: re.Pattern[str]) -> list[str]:
    """What stands between the headings of a book, each with its heading.

    A heading follows two blank lines or more, and so is told from the same line in a table of contents. What stands
    before the first is a document too.
    """
    collected: list[list[str]] = [[]]
    blank_lines = 2  # a book may begin with a heading
    for line in lines:
        if not line.strip():
            blank_lines += 1
        else:
            if blank_lines >= 2 and heading.match(line):
                collected.append([])
            blank_lines = 0
        collected[-1].append(line)
    documents = ["\n".join(section).strip() for section in collected]
    return [document for document in documents if document]


def _is_wikitext(lines: Iterable[str]) -> bool:
    """Whether the first line that is not blank is a title of WikiText."""
    first = next((line for line in lines if line.strip()), "")
    return bool(TITLE.fullmatch(first))
