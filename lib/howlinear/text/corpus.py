"""A corpus: one interface for offline domains, public data sets and your own texts; `pack` makes rows from it.

A document's own hash decides whether the embedded models may train on it, so no measured document was trained on;
others of its file may have been. The measured documents are split into train and test by group, the folder of their
file (`documents.Document`), so that no file and no folder falls on two sides or into two folds. A document without a
file is a group of its own. Equal documents are read once.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from howlinear.errors import InputError
from howlinear.files.paths import printable
from howlinear.models.checks import check_count, check_number
from howlinear.models.load import model_of, tokenizer_of
from howlinear.text import plain
from howlinear.text.documents import OFFLINE, Document, offline_documents, seeded_hash
from howlinear.text.gathered import gathered
from howlinear.text.library import BUILT_IN, PAPERS, check_known, read_as_the_paper, read_public
from howlinear.text.pack import TooShortError, pack, pack_contiguous
from howlinear.text.rows import FOLDS, TRAIN_SHARE, Rows, TokenRows
from howlinear.text.streams import AHEAD, documents_of, is_hub_id, is_stream, open_hub, texts_of

TRAINED_ON = ("docs", "code")
MODEL_SHARE = 0.8  # of their documents, for training the embedded models
FIRST = 128  # rows of a stream to read before deciding whether its rows give enough documents


@dataclass(frozen=True)
class Corpus:
    """Documents and the tokenizer to read them with.

    Special tokens spelled out in a document (`<s>`, `<|endoftext|>`) are read as plain characters; see `text.pack` for
    the end of a document and the BOS.

    Attributes:
        name: name that it was loaded by.
        tokenizer: turns documents into ids.
        documents: the documents in the text's own order; or a function that yields them in an order that a seed
            decides, those of a file one after another. A string is a document without a file.
        reserved: share of the documents that embedded models may train on and that are never measured.
        note: how the documents were made from the text, in words; empty if there is nothing to say.
        whole: function that returns one of the paper's texts as its code reads it; None for other texts.
        otherwise: function that returns the corpus with its documents cut further, for folds that these do not fill;
            None if there is no other way.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    documents: Sequence[Document | str] | Callable[[int], Iterable[Document | str]] = field(repr=False)
    reserved: float = 0.0
    note: str = ""
    whole: Callable[[], str] | None = field(default=None, repr=False)
    otherwise: Callable[[], Corpus] | None = field(default=None, repr=False)

    def rows(self, rows: int = 20_000, seq_len: int = 128, seed: int = 0, folds: int = FOLDS) -> TokenRows:
        """Pack about `rows` tokens into sequences: three quarters train, one quarter held out; see `pack.pack`.

        Documents are drawn across files: one from each file in turn, then a second from each that has one, and so on. A
        text with fewer rows gives what it has; `note` of the returned rows says so.

        Args:
            rows: tokens in all, both sides; rounded to whole sequences.
            seq_len: tokens in a sequence.
            seed: decides which documents are drawn.
            folds: document folds on each side, for error bars.

        Raises:
            InputError: fewer rows are asked for than the folds need, or the text does not fill them.
        """
        for argument, given in (("rows", rows), ("seq_len", seq_len), ("folds", folds)):
            check_count(argument, given)
        check_count("seed", seed, least=0)
        documents = self.in_order(seed)
        if not callable(self.documents):  # whose order does not depend on the seed
            documents = sorted(documents, key=lambda document: seeded_hash(seed, document.text))
        drawn = _over_files(self._measured(documents), seed)
        try:
            packed = pack(drawn, self.tokenizer, self.name, rows, seq_len, folds)
        except TooShortError as error:
            if self.otherwise is None:
                texts = [] if callable(self.documents) else [document.text for document in self.in_order()]
                repeated = len(texts) - len({*texts})
                if repeated:
                    raise TooShortError(f"{error}; {repeated:,} others repeat these and are left out") from error
                raise
            return self.otherwise().rows(rows, seq_len, seed, folds)
        return replace(packed, note=f"{packed.note}; {self.note}") if self.note else packed

    def contiguous(self, rows: int = 20_000, seq_len: int = 128, tail: float = 0.2, seed: int = 0) -> TokenRows:
        """Take about `rows` tokens of the text in its own order, from where the seed says; see `pack.pack_contiguous`.

        Raises:
            InputError: a wrong argument, or the corpus is too small; the message says how many tokens it has.
        """
        for argument, given in (("rows", rows), ("seq_len", seq_len)):
            check_count(argument, given)
        check_count("seed", seed, least=0)
        check_number("tail", tail, "0.2")
        measured = self._measured(self.in_order(seed))
        return pack_contiguous(measured, self.tokenizer, self.name, rows, seq_len, tail)

    def beginning(self, characters: int, seed: int = 0) -> str:
        """Return about `characters` characters from where the text begins, or all; documents are joined by newlines."""
        if self.whole is not None:
            return self.whole()[:characters]
        taken: list[str] = []
        for document, _ in self._measured(self.in_order(seed)):
            taken.append(document.text)
            characters -= len(document.text) + 1
            if characters <= 0:
                break
        return "\n".join(taken)

    def in_order(self, seed: int = 0) -> Iterator[Document]:
        """Yield the documents in the text's own order; in built-in corpora the seed decides the order of files."""
        documents = self.documents(seed) if callable(self.documents) else self.documents
        for place, given in enumerate(documents):
            plain.check_strings([given.text if isinstance(given, Document) else given], f"corpus {self.name}", place)
            yield given if isinstance(given, Document) else Document(given)

    def _measured(self, documents: Iterable[Document]) -> Iterator[tuple[Document, str]]:
        """Yield documents with their sides, each once, without those reserved for training the embedded models."""
        return (sided for sided in _with_sides(documents, self.reserved) if sided[1] != "model")


def load_corpus(
    text: Any,
    model: Any,
    text_column: str | None = None,
    documents: str = "auto",
    folder: Path | str | None = None,
) -> Corpus:
    """Load a corpus by name, or a text of your own.

    Args:
        text: `docs`, `code` or `cpp` (offline); `wikitext`, `wikitext_test`, `moby_dick` or `puzzles` (the paper's;
            see `text.library` for where from); the path of a UTF-8 text file, of a folder of them, or of a table
            (.jsonl, .json, .csv, .tsv, .parquet), which a folder may hold too, packed or not (.gz, .bz2, .xz); the id
            of any data set on the Hub, of which only what is needed is fetched (`text.streams`); strings, or rows as
            dicts, in anything iterable, or a dict of columns; a `datasets.Dataset` or `IterableDataset`; a table of
            pandas, polars or pyarrow.
        model: the model whose tokenizer reads the text, also given by name, or a tokenizer.
        text_column: text column of a table or a data set; by default `text`, `content` or the only one, which in a .csv
            or .tsv needs no name.
        documents: what counts as a document in a text of your own. `file`: a file, a string, a row of a table; `blank`:
            what blank lines separate (in WikiText, an article); `line`: a line. `auto`: the first of these that gives
            enough for eight folds on each side. If there are too few, or too short ones, texts are cut into pieces that
            serve as documents, and the note of the corpus or of its rows says so.
        folder: folder with the paper's texts, each as `<name>.txt`; by default the folder that the environment variable
            `HOWLINEAR_TEXTS` names, and if there is none, they are downloaded.

    Raises:
        SourceError: unknown name, unreadable or binary file, no network, a gated data set, or a text that is not the
            one that was pinned.
        InputError: nothing but blanks, something other than text, or a missing column.
    """
    tokenizer = model if isinstance(model, PreTrainedTokenizerBase) else tokenizer_of(model_of(model, on_disk=True))
    plain.check_way(documents)
    name = str(text)
    if isinstance(text, str | Path):
        check_known(name)
        name = printable(name)
        is_name = isinstance(text, str)  # a `Path` is never the name of a corpus
        text = os.path.expanduser(text)
        if is_name and name in BUILT_IN and (documents, text_column) != ("auto", None):
            raise InputError(f"{name} has its own documents and no columns: leave documents and text_column out")
        if is_name and name in OFFLINE:
            reserved = MODEL_SHARE if name in TRAINED_ON else 0.0
            return Corpus(name, tokenizer, partial(offline_documents, name), reserved)
        if is_name and name in PAPERS:
            folder = None if folder is None else Path(folder)
            whole = partial(read_as_the_paper, name, folder)
            return Corpus(name, tokenizer, read_public(name, folder), whole=whole)
        if is_name and not Path(text).exists():
            text = open_hub(name)
    passed_over = ""
    if is_stream(text):
        name = name if is_hub_id(name) else "a stream"
        first = list(islice(texts_of(text, text_column, name), FIRST))
        way = "file" if documents == "auto" else documents
        if len(first) == FIRST and _enough([document for each in first for document in plain.WAYS[way](each)]):
            read = partial(documents_of, text, text_column, name, way)
            return Corpus(name, tokenizer, read, note=f"read as far as needed, shuffled {AHEAD:,} rows ahead")
        texts = list(texts_of(text, text_column, name))
    elif isinstance(text, str | Path):
        texts, passed_over = plain.read_path(Path(text), text_column)
    elif text_column is not None and isinstance(text, list | tuple) and all(isinstance(each, str) for each in text):
        raise InputError("strings have no columns: leave text_column out")
    else:
        name, texts = _strings(gathered(text, text_column), text_column)
    plain.check_not_blank(texts, name)
    corpus = Corpus(name, tokenizer, texts, note=passed_over)
    return _cut(corpus, texts, [*plain.WAYS] if documents == "auto" else [documents], {})


def _strings(given: Any, column: str | None) -> tuple[str, list[str]]:
    """Return a name for strings, or for a table with a column of them, and the strings."""
    if hasattr(given, "columns") or isinstance(getattr(given, "column_names", None), list):
        texts = plain.column_of(given, column, "the data set")
        return f"a data set of {len(texts):,} rows", texts
    if isinstance(given, Tensor | Mapping | Rows) or not isinstance(given, Iterable):
        raise InputError(
            f"a {type(given).__name__} is no text: give a name, a path, strings or a datasets.Dataset (one split of "
            "it); token ids and what a tokenizer returns go to measure as they are"
        )
    texts = plain.listed(given)
    plain.check_strings(texts, f"a {type(given).__name__}")
    return f"{len(texts):,} strings", texts


def _cut(corpus: Corpus, texts: list[str], ways: list[str], counts: dict[str, int]) -> Corpus:
    """Cut a user's texts into documents in the first way that gives enough; `counts` are of ways tried before."""
    note, otherwise = "", None
    for place, way in enumerate(ways, 1):
        documents = [document for text in texts for document in plain.WAYS[way](text)]
        counts = {**counts, way: len(documents)}
        if _enough(documents):
            if way == "line" and "blank" in counts:
                note = f"each line is a document: blank lines give {counts['blank']:,}, too few or too short ones"
            otherwise = partial(_cut, corpus, documents, ways[place:], counts)
            break
    else:
        found = " or ".join(f"{count:,} by {tried}" for tried, count in counts.items())
        documents = plain.pieces(texts)
        note = (
            f"documents were too few or too short for the folds ({found}), so {len(documents):,} pieces of the text "
            "serve as documents: neighbours may lie on both sides, and R² may come out too high"
        )
    notes = "; ".join(each for each in (note, corpus.note) if each)
    return replace(corpus, documents=documents, note=notes, otherwise=otherwise)


def _enough(documents: list[str]) -> bool:
    """Return whether there is a document for every fold of both sides."""
    sides = Counter(side for _, side in _with_sides(map(Document, documents), 0.0))
    return min(sides["train"], sides["test"]) >= FOLDS


def model_documents(name: str) -> Iterator[str]:
    """Yield the documents of an offline corpus that the embedded models train on, each once."""
    if name not in TRAINED_ON:
        raise InputError(f"no model trains on {name!r}, it is measured whole: {', '.join(TRAINED_ON)}")
    for document, side in _with_sides(offline_documents(name), MODEL_SHARE):
        if side == "model":
            yield document.text


def _over_files(measured: Iterable[tuple[Document, str]], seed: int) -> Iterator[tuple[Document, str]]:
    """Deal documents that come file by file: one from each file, then a second from each that has one, and so on.

    The rest of a file waits for its next turn, so files are read only as far as documents are asked for.
    """
    waiting = deque()
    for _, of_file in groupby(measured, key=lambda drawn: drawn[0].file or drawn[0].text):
        # not in the file's own order, in which a module's own docstring would come first
        shuffled = deque(sorted(of_file, key=lambda drawn: seeded_hash(seed, drawn[0].text)))
        yield shuffled.popleft()
        if shuffled:
            waiting.append(shuffled)
    while waiting:
        rest = waiting.popleft()
        yield rest.popleft()
        if rest:
            waiting.append(rest)


def _with_sides(documents: Iterable[Document], reserved: float) -> Iterator[tuple[Document, str]]:
    """Yield documents with their sides, each text once."""
    seen = set()
    for document in documents:
        digest, side = _split(document, reserved)
        if digest not in seen:
            seen.add(digest)
            yield document, side


def _split(document: Document, reserved: float) -> tuple[bytes, str]:
    """Return a text's digest and its document's side: `model` by the text alone, else `train` or `test` by group."""
    digest = hashlib.sha256(document.text.encode()).digest()
    share = _share(digest)
    if share < reserved:
        return digest, "model"
    if document.file is None:
        of_rest = (share - reserved) / (1 - reserved)  # uniform in [0, 1) again
    else:
        of_rest = _share(hashlib.sha256(document.group.encode()).digest())
    return digest, "train" if of_rest < TRAIN_SHARE else "test"


def _share(digest: bytes) -> float:
    """Map a digest to a number that is uniform in [0, 1) over hashes."""
    return int.from_bytes(digest[:8], "big") / 2**64
