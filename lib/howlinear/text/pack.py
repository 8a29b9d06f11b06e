"""Packing of documents into token rows: sequences of which three quarters are train and one quarter is held out.

Texts are tokenised here (except by `paper_rows`) as plain text: a special token spelled out in a document (`<s>` in
HTML, a page about `<|endoftext|>`) is read as ordinary characters. Rows contain only two kinds of control tokens. A
document ends with the end-of-text token (an encoder's separator); and if the tokenizer begins a text with its BOS, as
those of Llama and Gemma do, then so does every sequence. To measure other ids (a formatted chat), pass token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from howlinear.errors import InputError, in_one_line
from howlinear.text.documents import Document
from howlinear.text.rows import FOLDS, TRAIN_SHARE, TokenRows

LONGEST = 4  # sequences a document may fill, unless more are needed, so that no document dominates a fold
BATCH = 64  # documents that are tokenised together


class TooShortError(InputError):
    """An error for a text whose documents do not give every fold a sequence."""


def pack(
    documents: Iterator[tuple[Document, str]],
    tokenizer: PreTrainedTokenizerBase,
    corpus: str,
    rows: int,
    seq_len: int,
    folds: int = FOLDS,
) -> TokenRows:
    """Pack about `rows` tokens into sequences: three quarters train, one quarter held out.

    The first document of a group goes to the emptiest fold of its side and the others to the same fold. A document is
    cut where the fold is full; further documents of the group are then left out. The sequences of a document are
    consecutive pieces of it, all in the same fold. At first no document may fill more than four sequences, so that
    every fold has parts of many documents. If the text does not fill the folds of a side like that, documents may fill
    twice as much, and so on until they are whole. If that is not enough either, all folds of the side are cut to the
    length of the emptiest, and the note says so.

    `documents` come with their sides, `train` or `test`, and are read only as far as needed; sizes are as in
    `Corpus.rows`.
    """
    if seq_len < 2 or folds < 2 or rows < 4 * folds * seq_len:
        raise InputError(
            f"{rows} rows of {seq_len} tokens in 2 × {folds} folds: use at least {4 * folds * seq_len} rows "
            "and sequences of two tokens or more"
        )
    opening = opening_of(tokenizer)
    length = seq_len - len(opening)
    held_out = round(rows * (1 - TRAIN_SHARE) / seq_len)
    to_fit_on = round(rows / seq_len) - held_out
    sides = {"train": _Side(to_fit_on, length, folds), "test": _Side(held_out, length, folds)}

    # 1. Read until both sides are full; the rest of a long text is not tokenised.
    for document, side, ids in _encoded(documents, tokenizer):
        sides[side].add(document.group, ids)
        if all(side.full for side in sides.values()):
            break
    # 2. If the text has ended before, take more of each document.
    for side in sides.values():
        longest_document = max((len(ids) for _, ids in side.documents), default=0)
        while not side.full and side.longest < longest_document:
            side.deal_anew(2 * side.longest)
    # 3. If that is not enough, cut all folds of the side to the length of its emptiest.
    for side in sides.values():
        if not side.full:
            side.wanted = [min(side.wanted)] * folds
            side.deal_anew(side.longest)
    train, test = sides["train"], sides["test"]
    if not (train.shortest and test.shortest):
        raise TooShortError(
            f"corpus {corpus} is too short: of {len(train.documents):,} documents to fit on and "
            f"{len(test.documents):,} held out, which are dealt to {folds} folds on each side, the emptiest fold has "
            f"{min(train.fewest, test.fewest)} tokens, fewer than a sequence of {seq_len}; bring more text, cut it "
            "into more documents, or take shorter sequences"
        )
    train_ids, train_fold, train_spans = train.sequences()
    test_ids, test_fold, test_spans = test.sequences()
    ids = _opened(torch.cat([train_ids, test_ids]), opening)

    longest = max(train.longest, test.longest)
    notes = [f"{train.used + test.used:,} documents of {corpus}, at most {longest:,} tokens of each"]
    if len(ids) < to_fit_on + held_out:
        notes.append(f"{ids.numel():,} rows of the {rows:,} asked for, since the text has no more for even folds")
    fitted = {sequence.numpy().tobytes() for sequence in train_ids}
    shared = sum(sequence.numpy().tobytes() in fitted for sequence in test_ids)
    if shared:
        notes.append(
            f"{shared:,} of {len(test_ids):,} held-out sequences also stand among those to fit on, word for word, so "
            "R² may come out too high"
        )
    if opening:
        bos = tokenizer.convert_ids_to_tokens(opening[0])
        notes.append(f"each sequence begins with the BOS {bos}, as this tokenizer begins a text")
    return TokenRows(
        ids=ids,
        test=torch.arange(len(ids), device="cpu") >= len(train_ids),
        fold=torch.cat([train_fold, test_fold]),
        corpus=corpus,
        note="; ".join(notes),
        spans=torch.cat([train_spans, test_spans + train.used]),
    )


def pack_contiguous(
    documents: Iterator[tuple[Document, str]],
    tokenizer: PreTrainedTokenizerBase,
    corpus: str,
    rows: int,
    seq_len: int,
    tail: float,
) -> TokenRows:
    """Cut a text in its own order into sequences and hold out the last of them, as arXiv 2606.19379 does.

    Documents follow one another, each ended by the end-of-text token, and none is shortened. Neighbouring documents lie
    on one side, except at the border; a fold is a run of neighbouring sequences. `documents` come in the order of the
    text, and their sides are ignored; `tail` is the share of the sequences that is held out.
    """
    sequences = round(rows / seq_len)
    held_out = round(tail * sequences)
    train = sequences - held_out
    if seq_len < 2 or min(train, held_out) < FOLDS:
        raise InputError(
            f"{rows} rows of {seq_len} tokens with a tail of {tail}: each side needs {FOLDS} sequences or more, of two "
            "tokens or more"
        )
    opening = opening_of(tokenizer)
    length = seq_len - len(opening)
    pieces: list[np.ndarray] = []
    lacking = sequences * length
    for _, _, document in _encoded(documents, tokenizer):
        pieces.append(document[:lacking])
        lacking -= len(pieces[-1])
        if not lacking:
            break
    else:
        raise InputError(
            f"corpus {corpus} is too short: {sequences * length - lacking} tokens of the {sequences * length} that "
            f"{rows} rows take; ask for fewer rows or bring more text"
        )
    ids = torch.from_numpy(np.concatenate(pieces)).view(sequences, length)
    # a fold is a run of neighbours: sequence i of n lies in fold ⌊i · FOLDS / n⌋
    fold = torch.cat([torch.arange(side, device="cpu") * FOLDS // side for side in (train, held_out)])
    test = torch.arange(sequences, device="cpu") >= train
    spans = _spans_of(pieces, sequences * length, length)
    return TokenRows(_opened(ids, opening), test, fold, corpus, spans=spans)


def _encoded(
    documents: Iterator[tuple[Document, str]], tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[Document, str, np.ndarray]]:
    """Yield documents with their sides and token ids, the end-of-text token included; encoding is lazy."""
    end = _end_of_document(tokenizer)
    while batch := list(islice(documents, BATCH)):
        texts = [document.text for document, _ in batch]
        for (document, side), ids in zip(batch, encode(texts, tokenizer), strict=True):
            yield document, side, np.array([*ids, end])


def encode(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Tokenise texts, every one of them read as plain text."""
    return _called(tokenizer, texts, add_special_tokens=False, split_special_tokens=True)


def _called(tokenizer: PreTrainedTokenizerBase, text: str | list[str], **options: bool) -> list[Any]:
    """Call a tokenizer and return its token ids."""
    try:
        return tokenizer(text, verbose=False, **options)["input_ids"]
    except Exception as error:  # the `tokenizers` library raises plain Exceptions
        raise InputError(f"this tokenizer fails at a text: {in_one_line(error)}") from error


def _end_of_document(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that a document ends with."""
    for end in (tokenizer.eos_token_id, tokenizer.sep_token_id):  # the latter is an encoder's
        if end is not None:
            return end
    raise InputError(
        "this tokenizer has no end-of-text or separator token to end a document with: set tokenizer.eos_token"
    )


def opening_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the opening of a sequence: the BOS if the tokenizer begins a text with it, or else nothing."""
    bos = tokenizer.bos_token_id
    begins = _called(tokenizer, "a")[:1]
    return begins if bos is not None and begins == [bos] else []


def _opened(ids: Int64[Tensor, "n length"], opening: list[int]) -> Int64[Tensor, "n seq_len"]:
    """Prepend the opening to every sequence."""
    before = torch.tensor(opening, dtype=torch.long, device="cpu").expand(len(ids), -1)
    return torch.cat([before, ids], 1)


class _Side:
    """The folds of one side, filled evenly by documents.

    Attributes:
        length: tokens in a sequence, without its opening.
        wanted: tokens that each fold should hold, whole sequences.
        documents: group of each document of this side, and its token ids with the end-of-text token.
        longest: most tokens that a document may fill.
        room: tokens that each fold still lacks.
        pieces: what each fold holds, a piece per document.
        fold_of: group of documents → the fold that all of them go to.
    """

    def __init__(self, sequences: int, length: int, folds: int):
        self.length = length
        each, left_over = divmod(sequences, folds)
        # if the sequences do not divide evenly, the first folds hold one more
        self.wanted = [(each + (fold < left_over)) * length for fold in range(folds)]
        self.documents: list[tuple[str, np.ndarray]] = []
        self.deal_anew(LONGEST * length)

    def deal_anew(self, longest: int) -> None:
        """Deal all documents again, at most `longest` tokens of each."""
        self.longest = longest
        self.room = list(self.wanted)
        self.pieces: list[list[np.ndarray]] = [[] for _ in self.wanted]
        self.fold_of: dict[str, int] = {}
        for group, ids in self.documents:
            self._deal(group, ids)

    def add(self, group: str, ids: np.ndarray) -> None:
        """Deal one more document."""
        self.documents.append((group, ids))
        self._deal(group, ids)

    def _deal(self, group: str, ids: np.ndarray) -> None:
        """Put a document into the fold of its group, or of a new group into the emptiest; drop what does not fit."""
        emptiest = self.room.index(max(self.room))
        fold = self.fold_of.setdefault(group, emptiest)
        if len(ids) > self.longest:
            ids = np.append(ids[: self.longest - 1], ids[-1])  # the end-of-text token is kept
        piece = ids[: self.room[fold]]
        if len(piece):
            self.pieces[fold].append(piece)
            self.room[fold] -= len(piece)

    @property
    def full(self) -> bool:
        """Whether every fold holds what it should."""
        return not any(self.room)

    @property
    def used(self) -> int:
        """Number of documents that have a piece here."""
        return sum(len(pieces) for pieces in self.pieces)

    @property
    def fewest(self) -> int:
        """Tokens in the emptiest fold."""
        return min(wanted - room for wanted, room in zip(self.wanted, self.room, strict=True))

    @property
    def shortest(self) -> int:
        """Whole sequences in the emptiest fold."""
        return self.fewest // self.length

    def sequences(self) -> tuple[Int64[Tensor, "n length"], Int64[Tensor, " n"], Int64[Tensor, "n 2"]]:
        """Return token ids, fold after fold, each sequence's fold, and its first and last document of this side."""
        ids, folds, spans = [], [], []
        before = 0  # documents of earlier folds
        for fold, pieces in enumerate(self.pieces):
            tokens = self.wanted[fold] if self.full else self.shortest * self.length
            sequences = torch.from_numpy(np.concatenate(pieces)[:tokens]).view(-1, self.length)
            ids.append(sequences)
            folds.append(torch.full((len(sequences),), fold, device="cpu"))
            spans.append(before + _spans_of(pieces, tokens, self.length))
            before += len(pieces)
        return torch.cat(ids), torch.cat(folds), torch.cat(spans)


def _spans_of(pieces: Sequence[np.ndarray], tokens: int, length: int) -> Int64[Tensor, "n 2"]:
    """Find the piece of the first and of the last token of each sequence, for consecutive pieces."""
    document = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])[:tokens]
    return torch.from_numpy(document).view(-1, length)[:, [0, -1]]
