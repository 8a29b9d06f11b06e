"""A corpus: one interface for offline domains, public data sets and your own files; `rows.pack` makes rows of it.

A document's own hash decides whether the embedded models may train on it, so no document that is measured was trained
on; others of its file may have been. What is measured is for fitting or for scoring by its group, the folder of its
file (`documents.Document`), so that no file and no folder falls on two sides or into two folds. A document that comes
of no file is a group of its own. Equal documents are read once.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.errors import InputError
from howlinear.models.load import tokenizer_of
from howlinear.text.documents import OFFLINE, Document, offline_documents, seeded_hash
from howlinear.text.library import NAMES, check_known, read_public
from howlinear.text.plain import read_plain
from howlinear.text.reading import LeftOut, Reading, Text
from howlinear.text.rows import FOLDS, TRAIN_SHARE, ModelInputs, Rows, TokenRows, pack, pack_contiguous

TRAINED_ON = ("docs", "code")
MODEL_SHARE = 0.8  # of their documents, for training the embedded models


@dataclass(frozen=True)
class Corpus:
    """Documents and the tokenizer to read them with.

    Attributes:
        name: what it was loaded as.
        tokenizer: turns documents into ids.
        documents: yields the documents in an order that the seed decides, those of a file one after another; a string
            is a document that comes of no file.
        reserved: share of the documents that embedded models may train on and nothing measures.
        text: what was read whole; None of documents that are read only as far as they are needed.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    documents: Callable[[int], Iterable[Document | str]] = field(repr=False)
    reserved: float = 0.0
    text: Text | None = field(default=None, repr=False)

    def rows(
        self, rows: int = 20_000, seq_len: int = 128, seed: int = 0, folds: int = FOLDS, at_most: bool = False
    ) -> TokenRows:
        """Pack about `rows` tokens into sequences: three quarters to fit on, one quarter held out; see `rows.pack`.

        Documents are drawn over the files: one of each file in turn, then a second of each that has one, and so on.
        `TokenRows.reading` of what comes back says what was read, and what was left out of it.

        Args:
            rows: tokens in all, both sides; rounded to whole sequences.
            seq_len: tokens in a sequence.
            seed: decides which documents are drawn.
            folds: document folds on each side, for error bars.
            at_most: of a smaller corpus take what it has, in even folds.

        Raises:
            InputError: the corpus is too small; says how many rows it has.
        """
        passed_over: Counter[str] = Counter()
        drawn = _over_files(self._measured(seed, passed_over), seed)
        packed = pack(drawn, self.tokenizer, self.name, rows, seq_len, folds, at_most)
        return replace(packed, reading=self._reading(packed.reading, passed_over))

    def in_order(self, seed: int = 0) -> Iterator[Document]:
        """The documents in the text's own order; built-in corpora are made of files, which come as in `documents`."""
        return _as_documents(self.documents(seed) if self.text is None else self.text.documents)

    def contiguous(
        self, rows: int = 20_000, seq_len: int = 128, tail: float = 0.2, seed: int = 0, folds: int = FOLDS
    ) -> TokenRows:
        """Take about `rows` tokens of the text in its own order and hold out its tail; see `rows.pack_contiguous`.

        Args:
            rows: tokens in all, both sides; rounded to whole sequences.
            seq_len: tokens in a sequence.
            tail: share of the sequences that is held out.
            seed: decides where the text begins.
            folds: runs of neighbouring sequences on each side, for error bars.

        Raises:
            InputError: the corpus is too small; says how many rows it has.
        """
        ordered = replace(self, documents=self.in_order)
        documents = (document.text for document, _ in ordered._measured(seed, Counter()))
        return pack_contiguous(documents, self.tokenizer, self.name, rows, seq_len, tail, folds)

    def _measured(self, seed: int, passed_over: Counter[str]) -> Iterator[tuple[Document, str]]:
        """Documents and their sides, each once, without those reserved for training; counts what is passed over."""
        seen = set()
        for document in _as_documents(self.documents(seed)):
            digest, side = _split(document, self.reserved)
            if side == "model":
                passed_over["that embedded models may have trained on"] += 1
            elif digest in seen:
                passed_over["equal to others"] += 1
            else:
                seen.add(digest)
                yield document, side

    def _reading(self, packed: Reading, passed_over: Counter[str]) -> Reading:
        """What the rows were read from, given what packing says of the documents that came to it."""
        left_out = [LeftOut(count, "documents", why) for why, count in passed_over.items()]
        if self.text is None:
            return replace(packed, left_out=(*left_out, *packed.left_out))
        unused = len(self.text.documents) - passed_over.total() - packed.documents
        if unused:
            left_out.append(LeftOut(unused, "documents", "that these rows had no room for"))
        return Reading(
            source=self.text.source,
            sha256=self.text.sha256,
            documents=packed.documents,
            left_out=(*self.text.left_out, *left_out, *packed.left_out),
        )


def load_corpus(name: str, model: PreTrainedModel | PreTrainedTokenizerBase, texts: Path | str | None = None) -> Corpus:
    """Load a corpus by name, or a UTF-8 `.txt` file whose documents are separated by blank lines.

    Args:
        name: `docs`, `code` or `cpp` (offline); `wikitext`, `moby_dick` or `puzzles` (the paper's; see `text.library`
            for where from), `ag_news` or `codeparrot` (from the Hub); or a path. WikiText is known in a file too, see
            `text.plain`.
        model: the model whose tokenizer reads it, or a tokenizer.
        texts: a folder with the paper's texts, `<name>.txt` each; by default the one that the environment variable
            `HOWLINEAR_TEXTS` names, and if there is none, they are fetched.

    Raises:
        SourceError: unknown name, unreadable or binary file, no network, or a text that is not the one that was pinned.
        InputError: the file is empty.
    """
    name = str(name)
    check_known(name)
    tokenizer = model if isinstance(model, PreTrainedTokenizerBase) else tokenizer_of(model)
    if name in OFFLINE:
        reserved = MODEL_SHARE if name in TRAINED_ON else 0.0
        return Corpus(name, tokenizer, partial(offline_documents, name), reserved)
    folder = None if texts is None else Path(texts)
    text = read_public(name, folder) if name in NAMES else read_plain(Path(name))

    def shuffled(seed: int) -> list[str]:
        return sorted(text.documents, key=lambda document: seeded_hash(seed, document))

    return Corpus(name, tokenizer, shuffled, text=text)


def rows_of(
    corpus: Corpus | Rows | Int64[Tensor, "n_sequences seq_len"] | Mapping[str, Tensor],
    rows: int = 20_000,
    seq_len: int = 128,
    seed: int = 0,
    at_most: bool = False,
) -> Rows:
    """What a model reads, from whatever a user brings.

    Args:
        corpus: a corpus, which is packed; rows, which are taken as they are; token ids, or what a tokenizer or image
            processor returns, of which each sequence is a document of its own.
        rows: tokens in all to take of a corpus.
        seq_len: tokens in a sequence of a corpus.
        seed: decides which documents of a corpus are drawn.
        at_most: of a smaller corpus take what it has.

    Raises:
        InputError: too little text, or tensors that do not belong together.
    """
    if isinstance(corpus, Corpus):
        return corpus.rows(rows, seq_len, seed, at_most=at_most)
    if isinstance(corpus, Mapping):
        return ModelInputs.of(corpus)
    if isinstance(corpus, TokenRows | ModelInputs):
        return corpus
    return TokenRows.from_ids(corpus)


def model_documents(name: str) -> Iterator[str]:
    """The documents of an offline corpus that the embedded models train on, each once."""
    if name not in TRAINED_ON:
        raise InputError(f"no model trains on {name!r}, it is measured whole: {', '.join(TRAINED_ON)}")
    seen = set()
    for document in offline_documents(name):
        digest, side = _split(document, MODEL_SHARE)
        if side == "model" and digest not in seen:
            seen.add(digest)
            yield document.text


def _as_documents(given: Iterable[Document | str]) -> Iterator[Document]:
    """Documents as such, where strings may be among them."""
    return (Document(document) if isinstance(document, str) else document for document in given)


def _over_files(measured: Iterable[tuple[Document, str]], seed: int) -> Iterator[tuple[Document, str]]:
    """Documents that come file by file, in turn: one of each file, then a second of each that has one, and so on.

    What is left of a file waits for the next turn, so files are read only as far as documents are asked for.
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


def _split(document: Document, reserved: float) -> tuple[bytes, str]:
    """Digest of a document's text, and its side: `model` by that text alone, or else `train` or `test` by its group."""
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
    """A number that is uniform in [0, 1) over hashes."""
    return int.from_bytes(digest[:8], "big") / 2**64
