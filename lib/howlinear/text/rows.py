"""Rows: sequences that a model reads, which of them are held out, and the document fold of each.

A sequence lies wholly inside one fold, and so does a group of documents (all those of a folder of files), so that error
bars over folds are error bars over documents that are not copied from one another. `pack` makes rows of documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.models.calls import PERCEIVED, perceives
from howlinear.models.checks import as_ids, as_tensor, check_count, check_inputs
from howlinear.models.ffn_sites import device_of

FOLDS = 8
TRAIN_SHARE = 0.75  # of the tokens, for fitting; the rest is held out


class Rows:
    """Sequences that a model reads, each wholly on one side and inside one document fold.

    Attributes:
        inputs: what the model reads, keyword → tensor, with sequences along the first axis.
        ids: token ids, shape (n_sequences, seq_len); None if the model reads something else.
        test: which sequences are held out, shape (n_sequences,).
        fold: document fold within its side, 0 … folds − 1, shape (n_sequences,).
        corpus: name of the text.
        note: how the rows were made from a text, in a sentence; empty if there is nothing to say.
    """

    inputs: Mapping[str, Tensor]
    ids: Int64[Tensor, "n_sequences seq_len"] | None
    test: Bool[Tensor, " n_sequences"]
    fold: Int64[Tensor, " n_sequences"]
    corpus: str
    note: str = ""
    by_length = False  # see `ModelInputs`

    @property
    def mask(self) -> Bool[Tensor, "n_sequences seq_len"] | None:
        """Mask of the places that are tokens; None if all are."""
        mask = self.inputs.get("attention_mask")
        return None if mask is None else mask.bool()

    @property
    def count(self) -> int:
        """Number of tokens without padding; for images, the number of images."""
        if self.mask is not None:
            return int(self.mask.sum())
        return len(self.test) if self.ids is None else self.ids.numel()

    @property
    def seq_len(self) -> int | None:
        """Tokens in a sequence; None for inputs without token ids."""
        return None if self.ids is None else self.ids.shape[1]

    @property
    def predicted(self) -> Int64[Tensor, " n_sequences"] | None:
        """Number of tokens that each sequence predicts, all but its first; None if the number is the same for all."""
        return None if self.mask is None else self.mask[:, 1:].sum(1)

    def __eq__(self, other: object) -> bool:
        """Whether the content is the same, also as a file describes it."""
        return self.sha256 == other.sha256 if isinstance(other, Rows | RowsOnRecord) else NotImplemented

    def __repr__(self) -> str:
        sides = f"{len(self.test):,} sequences, {int(self.test.sum()):,} of them held out"
        return f"<{type(self).__name__} of {self.corpus}: {self.count:,} rows in {sides}>"

    def __hash__(self) -> int:
        """Hash the content."""
        return hash(self.sha256)

    def read_by(self, site: str) -> tuple[Tensor | None, Tensor | None]:
        """Return the token ids and the mask that a site's stack reads: a decoder has its own, images have no ids."""
        if "decoder" in site.split(".") and self.inputs.keys() & {"decoder_input_ids", "decoder_inputs_embeds"}:
            mask = self.inputs.get("decoder_attention_mask")
            return self.inputs.get("decoder_input_ids"), None if mask is None else mask.bool()
        perceived = any(tensor.is_floating_point() for tensor in self.inputs.values())
        beside_text = self.ids is not None and perceived and perceives(site)
        if self.ids is not None and not beside_text:
            return self.ids, self.mask
        masks = [self.inputs[name] for name in PERCEIVED if name in self.inputs]
        if self.mask is not None and not beside_text:
            masks.append(self.mask)
        return None, masks[0].bool().flatten(1) if masks else None

    def folds(self, test: bool) -> list[Int64[Tensor, " some"]]:
        """Return the indices of the sequences of each document fold of one side, folds in order."""
        return fold_indices(self.test, self.fold, test)

    def thinned(self, most: int | None) -> Rows:
        """Select whole sequences of about `most` tokens, at least one of every document fold, in proportion.

        None stands for all tokens.
        """
        if most is None or most >= self.count:
            return self
        share = most / self.count
        folds = [*self.folds(test=False), *self.folds(test=True)]
        sequences = [spread(members, max(1, round(share * len(members)))) for members in folds]
        return self.subset(torch.cat(sequences).sort().values)


@dataclass(frozen=True, eq=False, repr=False)
class TokenRows(Rows):
    """Token ids in sequences of one length, without padding.

    Attributes:
        ids: token ids, shape (n_sequences, seq_len); the rest as in `Rows`.
        spans: first and last document of the text in each sequence, shape (n_sequences, 2); None for ids without
            documents.
    """

    ids: Int64[Tensor, "n_sequences seq_len"]
    test: Bool[Tensor, " n_sequences"]
    fold: Int64[Tensor, " n_sequences"]
    corpus: str = "token ids"
    note: str = ""
    spans: Int64[Tensor, "n_sequences 2"] | None = None

    def __post_init__(self) -> None:
        """Convert ids, sides and folds to tensors, and check that they belong together."""
        if not isinstance(self.ids, Tensor) or self.ids.dtype != torch.long or self.ids.ndim != 2:
            object.__setattr__(self, "ids", as_ids(self.ids))
        _settle_split(self, len(self.ids))

    @property
    def documents(self) -> int | None:
        """Number of documents of the text that the rows hold parts of; None for ids without documents."""
        if self.spans is None:
            return None
        return len({document for first, last in self.spans.tolist() for document in range(first, last + 1)})

    @property
    def held_out(self) -> TokenRows:
        """The held-out sequences alone."""
        return self.subset(self.test.nonzero()[:, 0])

    @classmethod
    def from_ids(cls, ids: Any, folds: int = FOLDS) -> TokenRows:
        """Take each sequence as a document (`split_sequences`).

        Args:
            ids: token ids of any integer type, shape (n_sequences, seq_len): a tensor, an array or lists.
            folds: document folds on each side.

        Raises:
            InputError: `ids` are not integers or not of that shape, or `folds` is not a count.
        """
        sequences = as_ids(ids)
        return cls(sequences, *split_sequences([sequences], folds))

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Inputs of the model, by keyword."""
        return {"input_ids": self.ids}

    @property
    def sha256(self) -> str:
        """Hash of the content: the ids and how they are split."""
        columns = torch.cat([self.ids, self.test[:, None].long(), self.fold[:, None]], 1)
        return hashlib.sha256(columns.contiguous().numpy().tobytes()).hexdigest()

    def subset(self, indices: Int64[Tensor, " some"]) -> TokenRows:
        """Select some of the sequences, with their sides and folds."""
        spans = None if self.spans is None else self.spans[indices]
        return replace(self, ids=self.ids[indices], test=self.test[indices], fold=self.fold[indices], spans=spans)

    def with_fewer_held_out(self, most: int | None) -> TokenRows:
        """Select all train sequences and about `most` held-out tokens, equally many from every document fold.

        Within a fold they come from as many documents as possible; every fold keeps at least one sequence. None stands
        for all tokens.
        """
        if most is None:
            return self
        held_out = self.folds(test=True)
        of_each_fold = max(1, most // (len(held_out) * self.ids.shape[1]))
        chosen = [self._over_documents(members, of_each_fold) for members in held_out]
        return self.subset(torch.cat([*self.folds(test=False), *chosen]).sort().values)

    def _over_documents(self, members: Int64[Tensor, " n"], count: int) -> Int64[Tensor, " some"]:
        """Select `count` of a fold's sequences, evenly spread, or equally many per document if that misses documents.

        A sequence belongs to the document that it begins in.
        """
        even = spread(members, count)
        if self.spans is None:
            return even
        document = self.spans[members, 0]
        if len(self.spans[even, 0].unique()) == min(count, len(document.unique())):
            return even
        # the first of each document, then the second, and so on
        rank = (document[:, None] == document).tril(-1).sum(1)
        taken = document[rank.argsort(stable=True)[:count]]
        numbers, counts = (found.tolist() for found in taken.unique(return_counts=True))
        return torch.cat(
            [spread(members[document == number], few) for number, few in zip(numbers, counts, strict=True)]
        )


@dataclass(frozen=True, eq=False, repr=False)
class ModelInputs(Rows):
    """Inputs of a model, as its tokenizer or image processor returns them: padded text, images.

    Attributes:
        inputs: keyword → tensor, with sequences along the first axis; an `attention_mask` tells tokens from padding.
            The rest is as in `Rows`.
        by_length: whether the model reads sequences of one length together and without padding, as one needs that does
            not mask it.
    """

    inputs: Mapping[str, Tensor]
    test: Bool[Tensor, " n_sequences"]
    fold: Int64[Tensor, " n_sequences"]
    corpus: str = "model inputs"
    by_length: bool = False

    def __post_init__(self) -> None:
        """Check that the tensors belong together, and that padding stands on the right."""
        if not isinstance(self.inputs, Mapping):
            kind = type(self.inputs).__name__
            raise InputError(f"inputs is a {kind}: give keyword → tensor, as a tokenizer returns them")
        tensors = {name: as_tensor(given, name) for name, given in self.inputs.items()}
        object.__setattr__(self, "inputs", tensors)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        count = len(as_tensor(self.test, "test").flatten())
        if not shapes or any(shape[:1] != (count,) for shape in shapes.values()):
            raise InputError(f"inputs of shapes {shapes} for {count} sequences: the first axis is theirs")
        _settle_split(self, count)
        for prefix in ("", "decoder_"):
            given = self.inputs.get(f"{prefix}attention_mask")
            if given is not None:
                _check_mask(f"{prefix}attention_mask", given, self.inputs.get(f"{prefix}input_ids"))

    @classmethod
    def of(cls, inputs: Mapping[str, Any], folds: int = FOLDS) -> ModelInputs:
        """Take each sequence as a document (`split_sequences`).

        Args:
            inputs: keyword → tensor, array or lists, such as `tokenizer(texts, padding=True)` returns.
            folds: document folds on each side.

        Raises:
            InputError: tensors that do not belong together, padding on the left, or ids that are not integers.
        """
        # labels are for training; a model does not read them here
        read = {str(name): given for name, given in inputs.items() if name != "labels" and given is not None}
        tensors = {name: as_tensor(given, name) for name, given in read.items()}
        for name in ("input_ids", "decoder_input_ids"):
            if name in tensors:
                as_ids(tensors[name])
        for name, tensor in tensors.items():  # some tokenizers give 1.0 for 1
            if name.endswith("attention_mask") and ((tensor == 0) | (tensor == 1)).all():
                tensors[name] = tensor.long()
        scalars = [name for name, tensor in tensors.items() if tensor.ndim == 0]
        if scalars:
            raise InputError(f"{scalars[0]} is a single number: the first axis of every input is that of sequences")
        if tensors and not any(map(len, tensors.values())):
            raise InputError(f"{', '.join(tensors)} without a sequence: give one or more")
        return cls(tensors, *split_sequences(list(tensors.values()), folds))

    @property
    def note(self) -> str:
        """What the model does with padding, if it does not mask it."""
        return "this model does not mask padding, so sequences of each length ran without it" if self.by_length else ""

    @property
    def ids(self) -> Int64[Tensor, "n_sequences seq_len"] | None:
        """Token ids; None if the model reads something else."""
        return self.inputs.get("input_ids")

    @property
    def sha256(self) -> str:
        """Hash of the content: the inputs and how they are split."""
        digest = hashlib.sha256()
        tensors = {**self.inputs, "test": self.test, "fold": self.fold}
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def subset(self, indices: Int64[Tensor, " some"]) -> ModelInputs:
        """Select some of the sequences, with their sides and folds."""
        inputs = {name: tensor[indices] for name, tensor in self.inputs.items()}
        return replace(self, inputs=inputs, test=self.test[indices], fold=self.fold[indices])


@dataclass(frozen=True, eq=False)
class RowsOnRecord:
    """Description of rows in a file that does not hold the rows themselves.

    Attributes:
        corpus: name of the text.
        sha256: hash of the content.
        count: number of tokens.
        seq_len: tokens in a sequence; None for inputs without token ids.
        note: how the rows were made from a text, in a sentence.
    """

    corpus: str
    sha256: str
    count: int
    seq_len: int | None
    note: str = ""

    __eq__ = Rows.__eq__
    __hash__ = Rows.__hash__


def _settle_split(rows: TokenRows | ModelInputs, count: int) -> None:
    """Convert `test` and `fold` to tensors, and refuse lengths other than the number of sequences."""
    for name, dtype in (("test", torch.bool), ("fold", torch.long)):
        tensor = as_tensor(getattr(rows, name), name)
        if tensor.shape != (count,) or tensor.is_floating_point():
            shape, kind = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{name} of shape {shape} and {kind} for {count} sequences: give one of each")
        object.__setattr__(rows, name, tensor.to(dtype))


def _check_mask(name: str, given: Tensor, ids: Tensor | None) -> None:
    """Refuse a mask that does not fit its ids, has other values than 0 and 1 or no token, or pads before a token."""
    if given.ndim != 2 or (ids is not None and given.shape != ids.shape):
        shapes = f"{tuple(given.shape)}" + ("" if ids is None else f" for ids of shape {tuple(ids.shape)}")
        raise InputError(f"{name} of shape {shapes}: give (n_sequences, seq_len)")
    if not ((given == 0) | (given == 1)).all():  # NaN is neither
        raise InputError(f"{name} holds something else than 1 for a token and 0 for padding")
    mask = given.bool()
    empty = (~mask.any(dim=1)).nonzero()[:, 0]
    if len(empty):
        raise InputError(f"sequence {int(empty[0])} holds no token, padding alone: leave it out")
    padding_before_token = (mask.int().diff(dim=1) > 0).any(dim=1).nonzero()[:, 0]
    if len(padding_before_token):
        raise InputError(
            f"sequence {int(padding_before_token[0])} has padding before a token, which moves it to "
            'another position: pad on the right (tokenizer.padding_side = "right")'
        )


def spread(members: Int64[Tensor, " n"], count: int) -> Int64[Tensor, " some"]:
    """Select `count` of a fold's sequences, evenly spread, since neighbours tend to come from the same document."""
    count = min(count, len(members))
    return members[torch.arange(count, device="cpu") * len(members) // count]


def split_in_turn(n: int, folds: int) -> tuple[Bool[Tensor, " n"], Int64[Tensor, " n"]]:
    """Hold out every fourth of n documents, and deal the documents of each side to its folds in turn."""
    folds = check_count("folds", folds)
    document = torch.arange(n, device="cpu")
    test = document % 4 == 3
    held_out_before = document // 4
    place_on_its_side = torch.where(test, held_out_before, document - held_out_before)
    return test, place_on_its_side % folds


def split_sequences(inputs: list[Tensor], folds: int) -> tuple[Bool[Tensor, " n"], Int64[Tensor, " n"]]:
    """Decide which sequences are held out, and the fold of each; equal sequences are one document, on one side."""
    flat = [tensor.reshape(len(tensor), *tensor.shape[1:], 1).flatten(1).contiguous() for tensor in inputs]
    as_bytes = [tensor.view(torch.uint8).numpy() for tensor in flat]
    numbers: dict[bytes, int] = {}  # hash of a document → its number
    document = []
    for place in range(max(map(len, as_bytes), default=0)):
        content = b"".join(part[place : place + 1].tobytes() for part in as_bytes)
        document.append(numbers.setdefault(hashlib.blake2b(content).digest(), len(numbers)))
    test, fold = split_in_turn(len(numbers), folds)
    return test[document], fold[document]


def fold_indices(test: Bool[Tensor, " n"], fold: Int64[Tensor, " n"], held_out: bool) -> list[Int64[Tensor, " some"]]:
    """Return the indices of the sequences or rows of each document fold of one side, folds in order."""
    side = test == held_out
    return [(side & (fold == number)).nonzero()[:, 0] for number in fold[side].unique()]


def batches(rows: Rows, size: int) -> list[Tensor]:
    """Return batches of sequence indices, each from one fold, the train side first."""
    folds = [*rows.folds(test=False), *rows.folds(test=True)]
    if rows.by_length:
        folds = [members[rows.mask[members].sum(1).argsort(stable=True)] for members in folds]
    every = [batch for sequences in folds for batch in in_batches(rows, sequences, size)]
    # If every batch had as many sequences as a sequence has positions, `flat` could not tell the two axes apart.
    lengths = {tensor.shape[1] for tensor in rows.inputs.values() if tensor.ndim > 1 and tensor.shape[1] > 1}
    counts = {len(batch) for batch in every}
    if len(counts) == 1 and counts <= lengths:
        every[:1] = every[0].tensor_split([1])
    return every


def in_batches(rows: Rows, sequences: Int64[Tensor, " n"], size: int) -> list[Int64[Tensor, " batch"]]:
    """Split sequences into batches in their order; if the rows go by length, each batch is of one length."""
    if not rows.by_length:
        return list(sequences.split(size))
    _, counts = rows.mask[sequences].sum(1).unique_consecutive(return_counts=True)
    return [batch for of_one_length in sequences.split(counts.tolist()) for batch in of_one_length.split(size)]


def fold_of(rows: Rows, batch: Tensor) -> tuple[bool, int]:
    """Return the (held out?, fold) of a batch."""
    return bool(rows.test[batch[0]]), int(rows.fold[batch[0]])


def folds_of(rows: Rows, some: Iterable[Tensor]) -> list[tuple[bool, int]]:
    """Return the distinct (held out?, fold) pairs of some batches, in order."""
    return sorted({fold_of(rows, batch) for batch in some})


# --- What a model reads of them


def check(model: PreTrainedModel, rows: Rows) -> None:
    """Refuse rows that a model would fail at, and say what is wrong with them."""
    if not len(rows.test) or rows.test.all() or not rows.test.any():
        sides = f"{int((~rows.test).sum())} to fit on, {int(rows.test.sum())} held out"
        raise InputError(f"both sides need sequences, there are {sides}: give more; equal ones are one document")
    check_inputs(model, rows.inputs)


def batch_of(model: PreTrainedModel, rows: Rows, indices: Tensor) -> dict[str, Tensor | bool]:
    """Build a model's keyword arguments for some sequences, on the device where it starts and in its precision."""
    device = device_of(model)
    keywords: dict[str, Tensor | bool] = {}
    for name, tensor in rows.inputs.items():
        dtype = model.dtype if tensor.is_floating_point() else tensor.dtype
        keywords[name] = _cut(rows, indices, tensor[indices]).to(device, dtype, non_blocking=True)
    if "input_ids" in keywords:
        keywords["use_cache"] = False
    return keywords


def _cut(rows: Rows, indices: Tensor, of_batch: Tensor) -> Tensor:
    """Cut what a batch has for each token to its longest sequence, if the rows go by length; images are no such."""
    of_tokens = rows.by_length and not of_batch.is_floating_point() and of_batch.shape[1:2] == (rows.seq_len,)
    return of_batch[:, : int(rows.mask[indices].sum(1).max())] if of_tokens else of_batch


def tokens_of(
    rows: Rows, indices: Tensor, site: str, x: Float[Tensor, "*places d_in"], y: Float[Tensor, "*others d_out"]
) -> tuple[Float[Tensor, "m d_in"], Float[Tensor, "m d_out"], Int64[Tensor, " m"], Int64[Tensor, " m"]]:
    """Select the rows that a site read and wrote for some sequences, without padding, one sequence after another.

    Returns:
        The rows of x and of y, both on the device of x; and in main memory, of each its sequence, as `indices` count
        them, and its position in there.
    """
    ids, mask = (None if read is None else _cut(rows, indices, read[indices]) for read in rows.read_by(site))
    n, seq_len = len(indices), None if ids is None else ids.shape[1]
    for each in (x, y):
        if n != seq_len and each.shape[:-1] == (seq_len, n):
            raise InputError(f"{site} reads positions of sequences, not sequences of positions: build it batch_first")
    x, y = x.flatten(0, -2), y.to(x.device).flatten(0, -2)
    if ids is not None and len(x) != ids.numel():
        in_batch = ids.numel()
        raise InputError(
            f"{site} saw {len(x)} rows, not the {in_batch} of the batch: "
            + (
                "the model adds places of its own; where they fill its attention's window or blocks up, give sequences "
                "of a multiple of that length"
                if len(x) > in_batch
                else "the model shortens its sequences, or reads them in chunks: set chunk_size_feed_forward in its "
                "config to 0, or name other sites"
            )
        )
    if mask is not None and len(x) != mask.numel():
        if not mask.all():
            raise InputError(
                f"{site} saw {len(x)} rows of what a mask of {mask.numel()} places describes, so which are "
                "padding cannot be told: give what has one length, without a mask"
            )
        mask = None  # there is no padding to leave out
    positions = len(x) // n
    places = torch.arange(len(x), device="cpu")
    if mask is not None:
        # by index and not by mask, whose number of rows would have to be waited for on a device
        places = mask.flatten().nonzero()[:, 0]
        tokens = places.to(x.device, non_blocking=True)
        x, y = x[tokens], y[tokens]
    return x, y, indices[places // positions], places % positions


def draw(rows: Rows, sample: int, seed: int) -> tuple[Int64[Tensor, " k"], Int64[Tensor, "n s"]]:
    """Draw tokens, never padding; return their places over all sequences, in order, and each place's index or −1."""
    if rows.ids is None and sample:
        raise InputError(f"a sample of {sample} rows keeps their token ids, and these inputs have none: ask for none")
    if "decoder_input_ids" in rows.inputs and sample:
        raise InputError(f"a sample of {sample} rows is of one sequence a text, and here are two: ask for none")
    if not sample:
        return torch.empty(0, dtype=torch.long, device="cpu"), torch.empty(0, 0, dtype=torch.long, device="cpu")
    mask = torch.ones_like(rows.ids, dtype=torch.bool) if rows.mask is None else rows.mask
    tokens = mask.flatten().nonzero()[:, 0]
    shuffled = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed), device="cpu")
    places = tokens[shuffled[:sample]].sort().values
    slot = torch.full((rows.ids.numel(),), -1, device="cpu")
    slot[places] = torch.arange(len(places), device="cpu")
    return places, slot.view(rows.ids.shape)
