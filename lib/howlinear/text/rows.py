"""Text becomes token rows (`pack`): what a model reads, and which rows are held out.

Rows are packed token ids, or sequences by keyword (padded ids, token types, the pixels of images).

Rows know which sequences are held out and which document fold each belongs to; `folds` gives the indices of every fold.
A sequence lies wholly inside one fold, and so does a group of documents (all those of a folder of files), so that error
bars over folds are error bars over documents that are not copied from one another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howlinear.errors import InputError
from howlinear.models.checks import as_ids, as_tensor, check_inputs
from howlinear.models.ffn_sites import device_of
from howlinear.text.documents import Document
from howlinear.text.reading import LeftOut, Reading

FOLDS = 8
TRAIN_SHARE = 0.75  # of the tokens, for fitting; the rest is held out
LONGEST = 4  # sequences a document may fill, unless more are needed: no single one dominates a fold
BATCH = 64  # documents that are tokenised together


@dataclass(frozen=True)
class TokenRows:
    """Packed sequences, each wholly inside one document fold.

    Attributes:
        ids: token ids, shape (n_sequences, seq_len).
        test: which sequences are held out, shape (n_sequences,).
        fold: document fold within its side, 0 … folds − 1, shape (n_sequences,).
        corpus: name of the corpus.
        reading: what was read, and what was left out of it; None of rows that were not packed from a text.
    """

    ids: Int64[Tensor, "n_sequences seq_len"]
    test: Bool[Tensor, " n_sequences"]
    fold: Int64[Tensor, " n_sequences"]
    corpus: str = "token ids"
    reading: Reading | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the model reads, by keyword."""
        return {"input_ids": self.ids}

    @property
    def mask(self) -> None:
        """Which places are tokens: all, see `rows.ModelInputs` for padding."""
        return None

    @property
    def count(self) -> int:
        """How many tokens there are."""
        return self.ids.numel()

    def folds(self, test: bool) -> list[Int64[Tensor, " some"]]:
        """Indices of the sequences of each document fold of one side, folds in order."""
        return fold_indices(self.test, self.fold, test)

    def subset(self, indices: Int64[Tensor, " some"]) -> TokenRows:
        """Some of the sequences, with their sides and folds."""
        return replace(self, ids=self.ids[indices], test=self.test[indices], fold=self.fold[indices])

    def thinned(self, most: int | None) -> TokenRows:
        """Whole sequences of about `most` tokens, the first of every document fold of both sides, in their shares.

        Args:
            most: tokens; of every fold there is a sequence at least. None: all there are.
        """
        if most is None or most >= self.count:
            return self
        share = most / self.count
        sequences = []
        for test in (False, True):
            for members in self.folds(test):
                fewer = max(1, round(share * len(members)))
                sequences.append(members[:fewer])
        return self.subset(torch.cat(sequences).sort().values)

    def with_fewer_held_out(self, most: int | None) -> TokenRows:
        """All that is there to fit on, and about `most` held-out tokens, the first sequences of every document fold.

        Args:
            most: held-out tokens; of every fold there is a sequence at least. None: all there are.
        """
        if most is None:
            return self
        held_out = self.folds(test=True)
        of_each_fold = max(1, most // (len(held_out) * self.ids.shape[1]))
        sequences = [*self.folds(test=False), *(members[:of_each_fold] for members in held_out)]
        return self.subset(torch.cat(sequences).sort().values)

    @property
    def sha256(self) -> str:
        """Hash of the content: the ids and how they are split."""
        columns = torch.cat([self.ids, self.test[:, None].long(), self.fold[:, None]], 1)
        return hashlib.sha256(columns.contiguous().numpy().tobytes()).hexdigest()

    @classmethod
    def from_ids(cls, ids: Any, folds: int = FOLDS) -> TokenRows:
        """Take each sequence as a document: every fourth is held out, folds are dealt in turn.

        Args:
            ids: token ids, shape (n_sequences, seq_len): a tensor, an array, or lists.
            folds: document folds on each side.

        Raises:
            InputError: no whole numbers, or not a row a sequence.
        """
        ids = as_ids(ids)
        test, fold = split_in_turn(len(ids), folds)
        return cls(ids, test, fold)


def split_in_turn(n: int, folds: int) -> tuple[Bool[Tensor, " n"], Int64[Tensor, " n"]]:
    """Which of n documents are held out, every fourth, and their folds, in turn on each side.

    Returns:
        Held out?, shape (n,); and the fold of each within its side, shape (n,).
    """
    document = torch.arange(n)
    test = document % 4 == 3
    held_out_before = document // 4
    place_on_its_side = torch.where(test, held_out_before, document - held_out_before)
    return test, place_on_its_side % folds


@dataclass(frozen=True)
class ModelInputs:
    """What to pass to a model, as its tokenizer or image processor returns it; `TokenRows` for packed token ids.

    Attributes:
        inputs: keyword → tensor, the first axis of each the sequences; an `attention_mask` tells tokens from padding.
        test: which sequences are held out, shape (n_sequences,).
        fold: document fold within its side, shape (n_sequences,).
        corpus: what to call them.
    """

    inputs: Mapping[str, Tensor]
    test: Bool[Tensor, " n_sequences"]
    fold: Int64[Tensor, " n_sequences"]
    corpus: str = "model inputs"

    def __post_init__(self) -> None:
        """Check that the tensors belong together, and that padding stands on the right."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self.inputs.items()}
        if not shapes or any(shape[:1] != (len(self.test),) for shape in shapes.values()):
            raise InputError(f"inputs of shapes {shapes} for {len(self.test)} sequences: the first axis is theirs")
        if self.mask is None:
            return
        if self.mask.ndim != 2 or (self.ids is not None and self.mask.shape != self.ids.shape):
            raise InputError(f"inputs of shapes {shapes}: an attention_mask has shape (n_sequences, seq_len)")
        empty = ~self.mask.any(dim=1)
        padding_before_token = (self.mask.int().diff(dim=1) > 0).any(dim=1)
        wrong = empty | padding_before_token
        if wrong.any():
            raise InputError(
                f"sequence {int(wrong.nonzero()[0])} is empty or has padding before a token, which moves it to "
                'another position: pad on the right (tokenizer.padding_side = "right")'
            )

    @classmethod
    def of(cls, inputs: Mapping[str, Any], folds: int = FOLDS) -> ModelInputs:
        """Take each sequence as a document: every fourth is held out, folds are dealt in turn.

        Args:
            inputs: keyword → tensor, array or lists, such as `tokenizer(texts, padding=True, return_tensors="pt")`.
            folds: document folds on each side.

        Raises:
            InputError: tensors that do not belong together, or padding on the left.
        """
        tensors = {name: as_tensor(given, name) for name, given in inputs.items()}
        if "input_ids" in tensors:
            as_ids(tensors["input_ids"])
        n = max((len(tensor) for tensor in tensors.values()), default=0)  # of tensors of other lengths the check says
        test, fold = split_in_turn(n, folds)
        return cls(tensors, test, fold)

    @property
    def ids(self) -> Int64[Tensor, "n_sequences seq_len"] | None:
        """Token ids, if these are what the model reads."""
        return self.inputs.get("input_ids")

    @property
    def mask(self) -> Bool[Tensor, "n_sequences seq_len"] | None:
        """Which places are tokens; None if all are."""
        if "attention_mask" not in self.inputs:
            return None
        return self.inputs["attention_mask"].bool()

    @property
    def count(self) -> int:
        """How many tokens there are, without padding; of images, how many there are of these."""
        if self.mask is not None:
            return int(self.mask.sum())
        if self.ids is not None:
            return self.ids.numel()
        return len(self.test)

    def folds(self, test: bool) -> list[Int64[Tensor, " some"]]:
        """Indices of the sequences of each document fold of one side, folds in order."""
        return fold_indices(self.test, self.fold, test)

    def subset(self, indices: Int64[Tensor, " some"]) -> ModelInputs:
        """Some of the sequences, with their sides and folds."""
        inputs = {name: tensor[indices] for name, tensor in self.inputs.items()}
        return replace(self, inputs=inputs, test=self.test[indices], fold=self.fold[indices])

    @property
    def sha256(self) -> str:
        """Hash of the content: the inputs and how they are split."""
        digest = hashlib.sha256()
        tensors = {**self.inputs, "test": self.test, "fold": self.fold}
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


Rows = TokenRows | ModelInputs


def check(model: PreTrainedModel, rows: Rows) -> None:
    """Say what is wrong with rows before a model fails at them.

    Raises:
        InputError: an empty side, or inputs, ids or sequences that the model cannot read.
    """
    if not len(rows.test) or rows.test.all() or not rows.test.any():
        sides = f"{int((~rows.test).sum())} to fit on, {int(rows.test.sum())} held out"
        raise InputError(f"both sides need sequences, there are {sides}: give more rows")
    check_inputs(model, rows.inputs)


def batch_of(model: PreTrainedModel, rows: Rows, indices: Tensor) -> dict[str, Tensor | bool]:
    """A model's keywords for some sequences, on the device where it starts and in its precision."""
    device = device_of(model)
    keywords: dict[str, Tensor | bool] = {}
    for name, tensor in rows.inputs.items():
        dtype = model.dtype if tensor.is_floating_point() else tensor.dtype
        keywords[name] = tensor[indices].to(device, dtype, non_blocking=True)
    if rows.ids is not None:
        keywords["use_cache"] = False
    return keywords


def tokens_of(
    rows: Rows, indices: Tensor, site: str, x: Float[Tensor, "n d_in"], y: Float[Tensor, "n d_out"]
) -> tuple[Float[Tensor, "m d_in"], Float[Tensor, "m d_out"], Int64[Tensor, " m"]]:
    """The rows that a site saw of some sequences, without padding; and which of the n they are.

    Raises:
        InputError: the site did not see all at once, so which rows are padding cannot be told.
    """
    if rows.ids is not None and len(x) != rows.ids[indices].numel():
        in_batch = rows.ids[indices].numel()
        raise InputError(
            f"{site} saw {len(x)} rows, not the {in_batch} of the batch: load the model with "
            "chunk_size_feed_forward 0 in its config, or name other sites"
        )
    if rows.mask is None:
        return x, y, torch.arange(len(x))
    # by index and not by mask: a mask's number of rows would have to be waited for on a device
    places = rows.mask[indices].flatten().nonzero()[:, 0]
    tokens = places.to(x.device, non_blocking=True)
    return x[tokens], y[tokens], places


def draw(rows: Rows, sample: int, seed: int) -> tuple[Int64[Tensor, " k"], Int64[Tensor, "n s"]]:
    """Draw tokens without replacement, none of padding.

    Returns:
        The places drawn, in order, counted through all sequences; and per place which of these it is, or −1.

    Raises:
        InputError: rows without token ids, which a sample keeps.
    """
    if rows.ids is None and sample:
        raise InputError(f"a sample of {sample} rows keeps their token ids, and these inputs have none: ask for none")
    if not sample:
        return torch.empty(0, dtype=torch.long), torch.empty(0, 0, dtype=torch.long)
    mask = torch.ones_like(rows.ids, dtype=torch.bool) if rows.mask is None else rows.mask
    tokens = mask.flatten().nonzero()[:, 0]
    shuffled = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    places = tokens[shuffled[:sample]].sort().values
    slot = torch.full((rows.ids.numel(),), -1)
    slot[places] = torch.arange(len(places))
    return places, slot.view(rows.ids.shape)


def fold_indices(test: Bool[Tensor, " n"], fold: Int64[Tensor, " n"], held_out: bool) -> list[Int64[Tensor, " some"]]:
    """Where each document fold of one side lies, folds in order.

    Args:
        test: which of n sequences or rows are held out, shape (n,).
        fold: the document fold of each within its side, shape (n,).
        held_out: which side.

    Returns:
        Indices, a tensor per fold.
    """
    side = test == held_out
    return [(side & (fold == number)).nonzero()[:, 0] for number in fold[side].unique()]


def batches(rows: Rows, size: int) -> Iterator[Tensor]:
    """Indices of sequences, every batch from one fold; the rows to fit on first."""
    for held_out in (False, True):
        for sequences in rows.folds(test=held_out):
            yield from sequences.split(size)


def fold_of(rows: Rows, batch: Tensor) -> tuple[bool, int]:
    """The (held out?, fold) of a batch."""
    return bool(rows.test[batch[0]]), int(rows.fold[batch[0]])


# --- Text to rows


def pack(
    documents: Iterator[tuple[Document, str]],
    tokenizer: PreTrainedTokenizerBase,
    corpus: str,
    rows: int,
    seq_len: int,
    folds: int = FOLDS,
    at_most: bool = False,
) -> TokenRows:
    """Pack about `rows` tokens into sequences: three quarters to fit on, one quarter held out.

    Each document goes to the fold of its group, or the first of a group to the emptiest fold of its side, ends with the
    end-of-text token (an encoder's separator), and is cut where the fold is full; further documents of the group are
    then left out. The sequences of a document are consecutive pieces of it, and all of them lie in that fold. First no
    document may fill more than four sequences, so that many documents have a part in every fold; if the text does not
    fill the folds like that, eight, and so on until it does, or documents are whole.

    Args:
        documents: documents, each with its side, `train` or `test`; read only as far as needed.
        tokenizer: turns them into ids.
        corpus: what to call them.
        rows: tokens in all, both sides; rounded to whole sequences.
        seq_len: tokens in a sequence.
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
    to_fit_on = round(rows / seq_len) - held_out
    encoded = _Encoded(documents, tokenizer)
    train = _filled(encoded, "train", to_fit_on, seq_len, folds)
    test = _filled(encoded, "test", held_out, seq_len, folds)

    if train.full and test.full:
        return _rows(train, test, corpus)

    # The text has ended. In folds of one length, three quarters of the rows to fit on, it has fewer:
    for length in range(min(train.shortest // 3, test.shortest), 0, -1):  # of a held-out fold, in sequences
        train = _filled(encoded, "train", 3 * length * folds, seq_len, folds)
        test = _filled(encoded, "test", length * folds, seq_len, folds)
        if train.full and test.full:
            break
    usable = sum(train.wanted) + sum(test.wanted) if train.full and test.full else 0
    if not usable or not at_most:
        raise _too_short(corpus, rows, usable, encoded, folds)
    return _rows(train, test, corpus)


def _filled(encoded: _Encoded, name: str, sequences: int, seq_len: int, folds: int) -> _Side:
    """A side with as little of each document as fills it, but four sequences or more; with all there is, if need be."""
    longest = LONGEST * seq_len
    side = _Side(sequences, seq_len, folds)
    side.fill(encoded.of(name), longest)
    while not side.full and longest < encoded.longest:
        longest *= 2
        side = _Side(sequences, seq_len, folds)
        side.fill(encoded.of(name), longest)
    return side


def _rows(train: _Side, test: _Side, corpus: str) -> TokenRows:
    """The sequences of both sides, those to fit on first."""
    train_ids, train_fold = train.sequences()
    test_ids, test_fold = test.sequences()
    ids = torch.cat([train_ids, test_ids])
    left_out = (
        LeftOut(train.beyond_longest, "tokens", f"beyond the first {train.longest:,} of a document to fit on"),
        LeftOut(test.beyond_longest, "tokens", f"beyond the first {test.longest:,} of a held-out document"),
        LeftOut(train.without_room + test.without_room, "tokens", "for which their fold had no room"),
        LeftOut(train.excluded + test.excluded, "documents", "whose group's fold was full"),
    )
    return TokenRows(
        ids=ids,
        test=torch.arange(len(ids)) >= len(train_ids),
        fold=torch.cat([train_fold, test_fold]),
        corpus=corpus,
        reading=Reading(
            source=corpus,
            sha256=None,
            documents=train.documents + test.documents,
            left_out=tuple(part for part in left_out if part.count),
        ),
    )


def _too_short(corpus: str, rows: int, usable: int, encoded: _Encoded, folds: int) -> InputError:
    """What to say of a corpus that has fewer rows than were asked for."""
    to_fit_on = len(list(encoded.of("train")))
    held_out = len(list(encoded.of("test")))
    return InputError(
        f"corpus {corpus} is too short: it has {usable} rows of the {rows} asked for, in {to_fit_on} documents to fit "
        f"on and {held_out} held out (each side needs {folds} or more, to be dealt to {folds} folds; in a .txt file "
        "blank lines separate documents); ask for fewer rows or bring more text"
    )


def pack_contiguous(
    documents: Iterator[str],
    tokenizer: PreTrainedTokenizerBase,
    corpus: str,
    rows: int,
    seq_len: int,
    tail: float = 0.2,
    folds: int = FOLDS,
) -> TokenRows:
    """Cut a text in its own order into sequences and hold out the last of them, as arXiv 2606.19379 does.

    Documents follow one another, each ended by the end-of-text token, and none is cut short. What neighbours share lies
    on one side, but for the document at the border; a fold is a run of neighbouring sequences.

    Args:
        documents: in the order of the text.
        tokenizer: turns them into ids.
        corpus: what to call them.
        rows: tokens in all, both sides; rounded to whole sequences.
        seq_len: tokens in a sequence.
        tail: share of the sequences that is held out, between 0 and 1.
        folds: runs on each side, for error bars.

    Raises:
        InputError: the corpus is too small, or there is not a sequence for every fold.
    """
    sequences = round(rows / seq_len)
    held_out = round(tail * sequences)
    train = sequences - held_out
    if seq_len < 2 or folds < 2 or min(train, held_out) < folds:
        raise InputError(
            f"{rows} rows of {seq_len} tokens with a tail of {tail}: each side needs {folds} sequences or more, of two "
            "tokens or more"
        )
    end = _end_of_document(tokenizer)
    tokens: list[int] = []
    while len(tokens) < sequences * seq_len:
        batch = list(islice(documents, BATCH))
        if not batch:
            raise InputError(
                f"corpus {corpus} is too short: {len(tokens)} rows of the {rows} asked for; "
                "ask for fewer rows or bring more text"
            )
        for ids in tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]:
            tokens += [*ids, end]
    ids = torch.tensor(tokens[: sequences * seq_len], dtype=torch.long).view(sequences, seq_len)
    fold = torch.cat([torch.arange(train) * folds // train, torch.arange(held_out) * folds // held_out])
    return TokenRows(ids=ids, test=torch.arange(sequences) >= train, fold=fold, corpus=corpus)


def _end_of_document(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that a document ends with."""
    if tokenizer.eos_token_id is not None:
        return tokenizer.eos_token_id
    if tokenizer.sep_token_id is not None:  # an encoder's
        return tokenizer.sep_token_id
    raise InputError(
        "this tokenizer has no end-of-text or separator token to end a document with: set tokenizer.eos_token"
    )


class _Encoded:
    """Documents as token ids, read and encoded when they are first asked for, and kept for the next time.

    Attributes:
        end: the token that a document ends with.
        longest: tokens that the longest document fills of those read so far, its end with them.
    """

    def __init__(self, documents: Iterator[tuple[Document, str]], tokenizer: PreTrainedTokenizerBase):
        self.end = _end_of_document(tokenizer)
        self.longest = 0
        self._documents = documents
        self._tokenizer = tokenizer
        self._read: list[tuple[str, str, np.ndarray]] = []

    def of(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """The group of each document of a side, and its ids, its end with them, in order."""
        position = 0
        while position < len(self._read) or self._read_on():
            side, group, ids = self._read[position]
            if side == name:
                yield group, ids
            position += 1

    def _read_on(self) -> bool:
        """Encode some more documents; False if there are none."""
        batch = list(islice(self._documents, BATCH))
        if not batch:
            return False
        texts = [document.text for document, _ in batch]
        encoded = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        for (document, side), ids in zip(batch, encoded, strict=True):
            self.longest = max(self.longest, len(ids) + 1)
            self._read.append((side, document.group, np.array([*ids, self.end])))
        return True


class _Side:
    """The folds of one side, filled evenly.

    Attributes:
        seq_len: tokens in a sequence.
        wanted: tokens that each fold is to hold, whole sequences; the first folds hold one more if it does not come out
            even.
        room: tokens that each fold still lacks.
        pieces: what each fold holds, a piece per document.
        longest: tokens that a document may fill.
        fold_of: group of documents → the fold that all of them go to.
        documents: how many have a piece here.
        excluded: how many have none, since the fold of their group was full.
        beyond_longest: tokens of theirs that are more than a document may fill.
        without_room: tokens of theirs that their fold had no room for.
    """

    def __init__(self, sequences: int, seq_len: int, folds: int):
        self.seq_len = seq_len
        each, left_over = divmod(sequences, folds)
        self.wanted = [(each + (fold < left_over)) * seq_len for fold in range(folds)]
        self.room = list(self.wanted)
        self.pieces: list[list[np.ndarray]] = [[] for _ in range(folds)]
        self.longest = 0
        self.fold_of: dict[str, int] = {}
        self.documents = 0
        self.excluded = 0
        self.beyond_longest = 0
        self.without_room = 0

    def fill(self, documents: Iterator[tuple[str, np.ndarray]], longest: int) -> None:
        """Put each group's documents into one fold, the emptiest when the first came, and drop what has no room there.

        Args:
            documents: the group of each, and its ids with its end.
            longest: tokens that a document may fill; its end is always among them.
        """
        self.longest = longest
        while not self.full:
            document = next(documents, None)
            if document is None:
                return
            group, ids = document
            emptiest = self.room.index(max(self.room))
            fold = self.fold_of.setdefault(group, emptiest)
            if not self.room[fold]:
                self.excluded += 1
                continue
            beginning = np.append(ids[: longest - 1], ids[-1]) if len(ids) > longest else ids
            piece = beginning[: self.room[fold]]
            self.pieces[fold].append(piece)
            self.room[fold] -= len(piece)
            self.documents += 1
            self.beyond_longest += len(ids) - len(beginning)
            self.without_room += len(beginning) - len(piece)

    @property
    def full(self) -> bool:
        """Whether every fold holds what it should."""
        return not any(self.room)

    @property
    def shortest(self) -> int:
        """Whole sequences in the emptiest fold."""
        held = [wanted - room for wanted, room in zip(self.wanted, self.room, strict=True)]
        return min(held) // self.seq_len

    def sequences(self) -> tuple[Int64[Tensor, "n seq_len"], Int64[Tensor, " n"]]:
        """Token ids, fold after fold, shape (n, seq_len); and the fold of each sequence, shape (n,)."""
        ids = []
        folds = []
        for fold, pieces in enumerate(self.pieces):
            sequences = torch.from_numpy(np.concatenate(pieces)).view(-1, self.seq_len)
            ids.append(sequences)
            folds.append(torch.full((len(sequences),), fold))
        return torch.cat(ids), torch.cat(folds)
