"""The paper's texts, by name.

| name | what it is | its documents |
|---|---|---|
| `wikitext` | WikiText-2-raw, the train split (Merity et al. 2017) | articles |
| `wikitext_test` | its test split, on which the paper measures perplexities | articles |
| `moby_dick` | Herman Melville, Moby-Dick (1851), Project Gutenberg 2701 | chapters |
| `puzzles` | H. E. Dudeney, Amusements in Mathematics (1917), Project Gutenberg 16713 | puzzles, solutions |

WikiText comes from the Hub through `datasets`. The books are downloaded by `pooch` from GITenberg, a public mirror of
Project Gutenberg on GitHub, at an address with the commit: later releases of Gutenberg change nothing, and the SHA-256
below is that of the file in the commit. Both are cached and downloaded once.

Without a network, the texts can be put into a folder as `wikitext.txt`, `wikitext_test.txt`, `moby_dick.txt` and
`puzzles.txt` in UTF-8, the first two as WikiText is distributed (`wiki.train.raw`, `wiki.test.raw`). The caller names
the folder, or else the environment variable `HOWLINEAR_TEXTS`. Then all texts are read from there, and any edition will
do: results hold the hash of the rows made from it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pooch
import requests

from howlinear.errors import InputError, SourceError, first_line, in_one_line
from howlinear.models.sources import hub
from howlinear.text.documents import OFFLINE
from howlinear.text.plain import paragraphs, read_text, sections
from howlinear.text.streams import is_hub_id

FOLDER = "HOWLINEAR_TEXTS"  # an environment variable
RETRIES = 2  # after a first attempt that failed
TIMEOUT = 30  # seconds to wait for an answer of a server
LONGEST = 255  # most characters of a name


@dataclass(frozen=True)
class Book:
    """A book of Project Gutenberg.

    Attributes:
        address: address of a file that never changes.
        sha256: SHA-256 of the file.
        encoding: encoding of the file.
        heading: beginning of a line that starts a new document.
    """

    address: str
    sha256: str
    encoding: str
    heading: re.Pattern[str]


WIKITEXT = {
    "path": "Salesforce/wikitext",
    "name": "wikitext-2-raw-v1",
    "revision": "b08601e04326c79dfdd32d625aee71d232d685c3",
}
SPLITS = {"wikitext": "train", "wikitext_test": "test"}
GITENBERG = "https://raw.githubusercontent.com/GITenberg"
BOOKS = {
    "moby_dick": Book(
        f"{GITENBERG}/Moby-Dick--Or-The-Whale_2701/bdf1948e6cd00963730971e5624e764a35f238c3/2701-0.txt",
        sha256="baf9b04fcf6e0008f30eaaa6697277751448c1070b20175e0082f28cbb161fd3",
        encoding="utf-8",
        heading=re.compile(r"CHAPTER \d+\.|ETYMOLOGY|EXTRACTS|Epilogue"),
    ),
    "puzzles": Book(
        f"{GITENBERG}/Amusements-in-Mathematics_16713/5be68c7c66b622fda68915935a0547309fcdf594/16713-8.txt",
        sha256="b61f282f73193fcef3c96e99ea6f8d5d42d95911c7b4e77e0486f8c60e81cf42",
        encoding="latin-1",
        heading=re.compile(r"\d+\.--"),  # `1.--A POST-OFFICE PERPLEXITY.`, of the puzzle and of its solution
    ),
}
PAPERS = ("wikitext", "wikitext_test", "moby_dick", "puzzles")
BUILT_IN = (*OFFLINE, *PAPERS)


def check_known(name: str) -> None:
    """Refuse a name that is neither a corpus (built-in, public or on the Hub) nor an existing path."""
    if name in BUILT_IN or (name and os.path.exists(os.path.expanduser(name))) or is_hub_id(name):
        return
    if len(name) > LONGEST or "\n" in name:
        raise SourceError(
            f"no text by the name {name[:30]!r}… of {len(name):,} characters: if this is the text itself, give it in a "
            "list, [text]"
        )
    if Path(name).suffix or len(Path(name).parts) > 1:
        raise SourceError(f"cannot read corpus file {name}: No such file or directory; give the path of a text file")
    raise SourceError(
        f"unknown corpus {name!r}: use {', '.join(BUILT_IN)}, the path of a text file or a folder, or the "
        "id of a data set on the Hub, as owner/name"
    )


def read_public(name: str, folder: Path | None = None) -> list[str]:
    """Read the documents of a text of `PAPERS`, from a folder (or `HOWLINEAR_TEXTS`), the network or the cache."""
    text = read_whole(name, folder)
    where = _in_folder(name, folder) or name
    if name not in BOOKS:
        documents = paragraphs(text)
        if not documents:
            raise InputError(f"{where} is empty: it is to hold {name}")
        return documents
    documents = sections(text.split("\n"), BOOKS[name].heading)
    if len(documents) < 2:
        raise InputError(
            f"{where} has no headings like those of {name}, {BOOKS[name].heading.pattern}: "
            "give another edition, or its path as the corpus to have blank lines separate documents"
        )
    return documents


def read_whole(name: str, folder: Path | None = None) -> str:
    """Read one of the paper's texts, as it is in its file, as one string."""
    path = _in_folder(name, folder)
    if path is not None:
        return read_text(path)
    if name in BOOKS:
        return read_text(_fetched_book(name), BOOKS[name].encoding)
    # A row is a line of the file; a blank line, which holds a space there, is an empty row.
    return "".join(row or " \n" for row in _rows_of(name))


def read_as_the_paper(name: str, folder: Path | None = None) -> str:
    """Read one of the paper's texts as its code joins it: a book as it is, WikiText's rows with newlines in between.

    A row is a line with its own line end, or empty for a blank line, so there are three newlines between two
    paragraphs, and no space on the line between.
    """
    text = read_whole(name, folder)
    if name in BOOKS:
        return text
    lines = text.removesuffix("\n").split("\n")
    return "\n".join(f"{line}\n" if line.strip() else "" for line in lines)


def _in_folder(name: str, folder: Path | None) -> Path | None:
    """Return the path of one of the paper's texts in the folder of texts; None if no folder is named."""
    if folder is None and os.environ.get(FOLDER):
        folder = Path(os.environ[FOLDER])
    if folder is None:
        return None
    path = folder / f"{name}.txt"
    if not path.exists():
        names = ", ".join(f"{paper}.txt" for paper in PAPERS)
        raise SourceError(
            f"cannot read {name}: {path} is not there; put it there (the folder is to hold {names}), or name no "
            f"folder in {FOLDER} or the run profile to have it fetched"
        )
    return path


def _fetched_book(name: str) -> Path:
    """Return the file of a book, downloaded from its address or cached from an earlier download."""
    book = BOOKS[name]
    file = f"{name}.txt"
    cache = pooch.create(
        path=pooch.os_cache("howlinear"),
        base_url="",
        registry={file: f"sha256:{book.sha256}"},
        urls={file: book.address},
        retry_if_failed=RETRIES,
    )
    download = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)
    pooch.get_logger().setLevel(logging.WARNING)  # errors are reported once, below
    otherwise = f"put the text into a folder as {file} and name the folder in {FOLDER}"
    try:
        return Path(cache.fetch(file, downloader=download))
    except ValueError as error:  # pooch's message has both hashes
        raise SourceError(
            f"{book.address} is not the {name} that was pinned: {in_one_line(error)} Or {otherwise}"
        ) from error
    except OSError as error:  # errors of requests included
        raise SourceError(
            f"cannot fetch {name} from {book.address}: {_obstacle(error)}; without a network use "
            f"{', '.join(OFFLINE)}, a .txt file, or {otherwise}"
        ) from error


def _obstacle(error: OSError) -> str:
    """Say in a few words why a download failed: messages of `requests` go on for lines."""
    if isinstance(error, requests.HTTPError):
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return f"the server says nothing for {TIMEOUT} seconds"
    if isinstance(error, requests.RequestException):
        return "no connection, or it broke off"
    return error.strerror or in_one_line(error)


def _rows_of(name: str) -> list[str]:
    """Load the rows of a split of WikiText, from the Hub or its local cache."""
    from datasets import load_dataset  # slow to import, and needless for the offline corpora

    try:
        with hub():
            return list(load_dataset(**WIKITEXT, split=SPLITS[name])["text"])
    except (OSError, ValueError) as error:
        raise SourceError(
            f"cannot load {name} ({WIKITEXT['path']}) from the Hub or its cache: {first_line(error)}; without a "
            f"network use {', '.join(OFFLINE)}, a .txt file, or a folder with {name}.txt that {FOLDER} names"
        ) from error
