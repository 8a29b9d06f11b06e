"""Text to token rows: one interface for offline domains, public data sets and your own files.

A document's own hash decides whether the embedded models may train on it, or whether it is for fitting or for
scoring, so equal documents never fall on two sides and no document that is measured was trained on. Pieces of one
file are documents of their own and may fall on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.errors import InputError, SourceError
from howlinear.inputs import FOLDS, TokenRows
from howlinear.models import tokenizer_of
from howlinear.texts import HUB, OFFLINE, file_documents, hub_documents, offline_documents, seeded_hash

TRAINED_ON = ("docs", "code")
MODEL_SHARE = 0.8  # of their documents, for training the embedded models
TRAIN_SHARE = 0.75  # of the others, for fitting; the rest is held out
LONGEST = 4  # sequences a document may fill: no single one dominates a fold


@dataclass(frozen=True)
class Corpus:
    """Documents and the tokenizer to read them with.

    Attributes:
        name: what it was loaded as.
        tokenizer: turns documents into ids.
        documents: yields the documents in an order that the seed decides.
        reserved: share of the documents that embedded models may train on and nothing measures.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    documents: Callable[[int], Iterable[str]] = field(repr=False)
    reserved: float = 0.0

    def rows(
        self, rows: int = 20_000, seq_len: int = 128, seed: int = 0, folds: int = FOLDS, at_most: bool = False
    ) -> TokenRows:
        """Pack about `rows` tokens into sequences: three quarters to fit on, one quarter held out.

        Each document goes to the emptiest fold of its side, ends with the end-of-text token (an encoder's
        separator), and is cut where the fold is full or where it would fill more than four sequences.

        Args:
            rows: tokens in all, both sides; rounded to whole sequences.
            seq_len: tokens in a sequence.
            seed: decides which documents are drawn.
            folds: document folds on each side, for error bars.
            at_most: of a smaller corpus take what it has, in even folds.

        Raises:
            InputError: the corpus is too small; says how many rows it has.
        """
        if seq_len < 2 or folds < 2 or rows < 8 * folds * seq_len // 2:
            raise InputError(
                f"{rows} rows of {seq_len} tokens in 2 × {folds} folds: use at least {4 * folds * seq_len} rows "
                "and sequences of two tokens or more"
            )
        held_out = round(rows * (1 - TRAIN_SHARE) / seq_len)
        sides = {
            "train": _Side(round(rows / seq_len) - held_out, seq_len, folds),
            "test": _Side(held_out, seq_len, folds),
        }
        end = self.tokenizer.eos_token_id if self.tokenizer.eos_token_id is not None else self.tokenizer.sep_token_id
        if end is None:
            raise InputError(
                "this tokenizer has no end-of-text or separator token to end a document with: set tokenizer.eos_token"
            )
        for batch in _batches(self._measured(seed), 64):
            encoded = self.tokenizer([text for text, _ in batch], add_special_tokens=False, verbose=False)["input_ids"]
            for (_, side), ids in zip(batch, encoded, strict=True):
                sides[side].add([*ids[: LONGEST * seq_len - 1], end])
            if all(side.full for side in sides.values()):
                break
        else:
            least = min(sides["train"].least // 3, sides["test"].least)  # sequences of a held-out fold
            if not (at_most and least):
                raise self._too_short(rows, seq_len, sides)
            sides["train"].cut(3 * least)
            sides["test"].cut(least)
        train, test = sides["train"].sequences(), sides["test"].sequences()
        return TokenRows(
            ids=torch.cat([train[0], test[0]]),
            test=torch.arange(len(train[0]) + len(test[0])) >= len(train[0]),
            fold=torch.cat([train[1], test[1]]),
            corpus=self.name,
        )

    def _too_short(self, rows: int, seq_len: int, sides: dict[str, _Side]) -> InputError:
        have = min(sides["train"].filled / TRAIN_SHARE, sides["test"].filled / (1 - TRAIN_SHARE))
        usable = int(have * 0.9) // seq_len * seq_len
        return InputError(
            f"corpus {self.name} is too short: about {usable} rows of the {rows} asked for (a document counts "
            f"for at most {LONGEST * seq_len} tokens; in a .txt file blank lines separate documents); "
            "ask for fewer rows or bring more text"
        )

    def _measured(self, seed: int) -> Iterator[tuple[str, str]]:
        """Documents and their sides, each once, without those reserved for training."""
        seen = set()
        for document in self.documents(seed):
            digest, side = _split(document, self.reserved)
            if side != "model" and digest not in seen:
                seen.add(digest)
                yield document, side


def load_corpus(name: str, model: PreTrainedModel | PreTrainedTokenizerBase) -> Corpus:
    """Load a corpus by name, or a UTF-8 `.txt` file whose documents are separated by blank lines.

    Args:
        name: `docs`, `code` or `cpp` (offline); `wikitext`, `ag_news` or `codeparrot` (from the Hub); or a path.
        model: the model whose tokenizer reads it, or a tokenizer.

    Raises:
        SourceError: unknown name, unreadable or binary file, or the Hub cannot be reached.
        InputError: the file is empty.
    """
    tokenizer = model if isinstance(model, PreTrainedTokenizerBase) else tokenizer_of(model)
    if name in OFFLINE:
        reserved = MODEL_SHARE if name in TRAINED_ON else 0.0
        return Corpus(name, tokenizer, lambda seed: offline_documents(name, seed), reserved)
    if name in HUB:
        documents = hub_documents(name)
    elif str(name).endswith(".txt"):
        documents = file_documents(Path(name))
    else:
        raise SourceError(f"unknown corpus {name!r}: use {', '.join([*OFFLINE, *HUB])}, or a path to a .txt file")
    return Corpus(str(name), tokenizer, lambda seed: sorted(documents, key=lambda text: seeded_hash(seed, text)))


def _split(document: str, reserved: float) -> tuple[bytes, str]:
    """Digest of a document, and its side: `model`, `train` or `test`."""
    digest = hashlib.sha256(document.encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    if share < reserved:
        return digest, "model"
    return digest, "train" if share < reserved + TRAIN_SHARE * (1 - reserved) else "test"


def model_documents(name: str) -> Iterator[str]:
    """The documents of an offline corpus that the embedded models train on, each once."""
    if name not in TRAINED_ON:
        raise InputError(f"no model trains on {name!r}, it is measured whole: {', '.join(TRAINED_ON)}")
    seen = set()
    for document in offline_documents(name):
        digest, side = _split(document, MODEL_SHARE)
        if side == "model" and digest not in seen:
            seen.add(digest)
            yield document


class _Side:
    """The folds of one side, filled evenly."""

    def __init__(self, sequences: int, seq_len: int, folds: int):
        self.seq_len = seq_len
        self.wanted = [(sequences // folds + (i < sequences % folds)) * seq_len for i in range(folds)]
        self.tokens: list[list[int]] = [[] for _ in range(folds)]

    def add(self, ids: list[int]) -> None:
        room = [wanted - len(tokens) for wanted, tokens in zip(self.wanted, self.tokens, strict=True)]
        fold = max(range(len(room)), key=room.__getitem__)
        if room[fold] > 0:
            self.tokens[fold] += ids[: room[fold]]

    @property
    def filled(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def full(self) -> bool:
        return self.filled == sum(self.wanted)

    @property
    def least(self) -> int:
        """Whole sequences in the emptiest fold."""
        return min(map(len, self.tokens)) // self.seq_len

    def cut(self, sequences: int) -> None:
        """Leave each fold its first sequences."""
        self.tokens = [tokens[: sequences * self.seq_len] for tokens in self.tokens]

    def sequences(self) -> tuple[Tensor, Tensor]:
        ids = [torch.tensor(tokens).view(-1, self.seq_len) for tokens in self.tokens if tokens]
        fold = [torch.full((len(part),), i) for i, part in enumerate(ids)]
        return torch.cat(ids), torch.cat(fold)


def _batches(items: Iterable, size: int) -> Iterator[list]:
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch
