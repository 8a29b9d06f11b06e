"""What a model reads: packed token ids, or sequences by keyword (padded ids, token types, the pixels of images)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.swapping import device_of

FOLDS = 8


@dataclass(frozen=True)
class TokenRows:
    """Packed sequences, each wholly inside one document fold.

    Attributes:
        ids: token ids, shape (n_sequences, seq_len).
        test: which sequences are held out, shape (n_sequences,).
        fold: document fold within its side, 0 … folds − 1, shape (n_sequences,).
        corpus: name of the corpus.
    """

    ids: Int64[Tensor, "n_sequences seq_len"]
    test: Bool[Tensor, " n_sequences"]
    fold: Int64[Tensor, " n_sequences"]
    corpus: str = "token ids"

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the model reads, by keyword."""
        return {"input_ids": self.ids}

    @property
    def mask(self) -> None:
        """Which places are tokens: all, see `inputs.ModelInputs` for padding."""
        return None

    @property
    def count(self) -> int:
        """How many tokens there are."""
        return self.ids.numel()

    def taken(self, indices: Int64[Tensor, " some"]) -> TokenRows:
        """Some of the sequences, with their sides and folds."""
        return replace(self, ids=self.ids[indices], test=self.test[indices], fold=self.fold[indices])

    @property
    def sha256(self) -> str:
        """Hash of the content: the ids and how they are split."""
        columns = torch.cat([self.ids, self.test[:, None].long(), self.fold[:, None]], 1)
        return hashlib.sha256(columns.contiguous().numpy().tobytes()).hexdigest()

    @classmethod
    def from_ids(cls, ids: Int64[Tensor, "n_sequences seq_len"], folds: int = FOLDS) -> TokenRows:
        """Take each sequence as a document: every fourth is held out, folds are dealt in turn."""
        return cls(ids, *dealt(len(ids), folds))


def dealt(n: int, folds: int) -> tuple[Bool[Tensor, " n"], Int64[Tensor, " n"]]:
    """Which of n documents are held out, every fourth, and their folds, dealt in turn on each side."""
    order = torch.arange(n)
    test = order % 4 == 3
    return test, torch.where(test, order // 4, order - order // 4) % folds


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
        padded_left = (self.mask.int().diff(dim=1) > 0).any(1) | ~self.mask.any(1)
        if padded_left.any():
            raise InputError(
                f"sequence {int(padded_left.nonzero()[0])} is empty or has padding before a token, which moves it to "
                'another position: pad on the right (tokenizer.padding_side = "right")'
            )

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor], folds: int = FOLDS) -> ModelInputs:
        """Take each sequence as a document: every fourth is held out, folds are dealt in turn.

        Args:
            inputs: keyword → tensor, such as `tokenizer(texts, padding=True, return_tensors="pt")`.
            folds: document folds on each side.

        Raises:
            InputError: tensors that do not belong together, or padding on the left.
        """
        return cls(dict(inputs), *dealt(max((len(tensor) for tensor in inputs.values()), default=0), folds))

    @property
    def ids(self) -> Int64[Tensor, "n_sequences seq_len"] | None:
        """Token ids, if these are what the model reads."""
        return self.inputs.get("input_ids")

    @property
    def mask(self) -> Bool[Tensor, "n_sequences seq_len"] | None:
        """Which places are tokens; None if all are."""
        return self.inputs["attention_mask"].bool() if "attention_mask" in self.inputs else None

    @property
    def count(self) -> int:
        """How many tokens there are, without padding; of images, how many there are of these."""
        if self.mask is not None:
            return int(self.mask.sum())
        return len(self.test) if self.ids is None else self.ids.numel()

    def taken(self, indices: Int64[Tensor, " some"]) -> ModelInputs:
        """Some of the sequences, with their sides and folds."""
        some = {name: tensor[indices] for name, tensor in self.inputs.items()}
        return replace(self, inputs=some, test=self.test[indices], fold=self.fold[indices])

    @property
    def sha256(self) -> str:
        """Hash of the content: the inputs and how they are split."""
        found = hashlib.sha256()
        for name, tensor in sorted({**self.inputs, "test": self.test, "fold": self.fold}.items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            found.update(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


Rows = TokenRows | ModelInputs


def check(model: PreTrainedModel, rows: Rows) -> None:
    """Say what is wrong with rows before a model fails at them.

    Raises:
        InputError: an empty side, or inputs, ids or sequences that the model cannot read.
    """
    if not len(rows.test) or rows.test.all() or not rows.test.any():
        sides = f"{int((~rows.test).sum())} to fit on, {int(rows.test.sum())} held out"
        raise InputError(f"both sides need sequences, there are {sides}: give more rows")
    reads = model.main_input_name
    if reads not in rows.inputs:
        raise InputError(f"{type(model).__name__} reads {reads}, not {', '.join(rows.inputs)}: give {{{reads!r}: …}}")
    if getattr(model.config, "is_encoder_decoder", False) and len(rows.inputs) == 1:
        raise InputError(
            f"{type(model).__name__} is an encoder and a decoder, one input is not enough for both: give all that it "
            "reads by keyword, or measure model.get_encoder()"
        )
    if rows.ids is None:
        return
    longest = _longest(model)
    if longest is not None and rows.ids.shape[1] > longest:
        raise InputError(
            f"sequences of {rows.ids.shape[1]} tokens, but the model reads at most {longest}: shorten them"
        )
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if not 0 <= int(rows.ids.min()) <= int(rows.ids.max()) < vocabulary:
        raise InputError(
            f"token ids run from {rows.ids.min()} to {rows.ids.max()}, the model knows 0 to {vocabulary - 1}"
        )


def _longest(model: PreTrainedModel) -> int | None:
    """How many tokens a model reads at once; None: any number. RoBERTa's positions start behind that of padding."""
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.num_embeddings - module.padding_idx - 1
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def batch_of(model: PreTrainedModel, rows: Rows, indices: Tensor) -> dict[str, Tensor | bool]:
    """A model's keywords for some sequences, on the device where it starts and in its precision."""
    device, named = device_of(model), {name: tensor[indices] for name, tensor in rows.inputs.items()}
    dtypes = {name: model.dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in named.items()}
    found = {name: tensor.to(device, dtypes[name], non_blocking=True) for name, tensor in named.items()}
    return found | ({} if rows.ids is None else {"use_cache": False})


def tokens_of(
    rows: Rows, indices: Tensor, site: str, x: Float[Tensor, "n d_in"], y: Float[Tensor, "n d_out"]
) -> tuple[Float[Tensor, "m d_in"], Float[Tensor, "m d_out"]]:
    """The rows that a site saw of some sequences, without padding.

    Raises:
        InputError: the site did not see all at once, so which rows are padding cannot be told.
    """
    if rows.ids is not None and len(x) != rows.ids[indices].numel():
        raise InputError(
            f"{site} saw {len(x)} rows, not the {rows.ids[indices].numel()} of the batch: load the model with "
            "chunk_size_feed_forward 0 in its config, or name other sites"
        )
    if rows.mask is None:
        return x, y
    tokens = rows.mask[indices].flatten().nonzero()[:, 0].to(x.device, non_blocking=True)  # by a mask, x would wait
    return x[tokens], y[tokens]


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
    places = torch.arange(rows.ids.numel()) if rows.mask is None else rows.mask.flatten().nonzero()[:, 0]
    drawn = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:sample]].sort().values
    slot = torch.full((rows.ids.numel(),), -1).index_put((drawn,), torch.arange(len(drawn)))
    return drawn, slot.view(rows.ids.shape)
