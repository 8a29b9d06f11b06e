"""Perplexity, and how much a change of the model costs, with paired error bars.

Perplexity is exp(mean negative log-likelihood per predicted token), token-weighted over sequences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from howlinear.core.intervals import Estimate, fold_means
from howlinear.errors import InputError, LossError
from howlinear.instrument.as_rows import gathered, is_text, rows_of
from howlinear.models.checks import as_ids, as_tensor, check_count, check_ids, evaluating
from howlinear.models.forward import running
from howlinear.models.layerwise import predictions
from howlinear.models.load import check_causal, is_causal, model_of
from howlinear.text.rows import Rows, TokenRows, batch_of

Found = TypeVar("Found")
NO_TARGET = -100  # what `cross_entropy` does not count

LOSS_BATCH = 8
"""Sequences in a pass through the head: the logits of more exceed 32 MB even for a small vocabulary, and memory of that
size is requested from the system anew in every pass, which costs 8 to 33 % of it."""


@dataclass(frozen=True)
class Change(Estimate):
    """A difference of perplexities on the same sequences: after minus before, with its 95 % interval."""

    @property
    def delta(self) -> float:
        """Perplexity after minus before."""
        return self.value


def perplexity(model: Any, text: Any, batch_size: int = LOSS_BATCH, **rows) -> float:
    """Measure the perplexity of a model on held-out text.

    Args:
        model: a causal language model, or its name.
        text: a text, a corpus or rows, whose held-out part counts, without padding; or token ids or a tokenizer's
            output, all of which count (`as_rows.rows_of`).
        batch_size: sequences in a forward pass.
        **rows: of a text or a corpus, passed to `Corpus.rows`; to compare with a profile, pass its `rows` as the text.

    Raises:
        InputError: nothing to predict, a model that predicts no next token, or a loss that is not finite.
    """
    model = model_of(model, on_disk=True)
    scored = scored_of(text, model, **rows)
    check_causal(model)
    return mean_perplexity(_losses(model, scored, batch_size), scored.predicted)


class HeldOutLosses:
    """The losses of held-out sequences, batch by batch, and the perplexity that follows.

    A capture runs the model over these sequences anyway, so that their perplexity costs the head alone.

    Attributes:
        rows: the rows, whose held-out part counts.
        predicts: whether there is a perplexity: the model predicts next tokens, and there are held-out ones to predict.
        targets: the tokens to predict, see `targets_of`; None if there is no perplexity.
        parts: for each batch, its sequences that have tokens to predict, and the mean loss of each.
    """

    def __init__(self, model: PreTrainedModel, rows: Rows):
        self.rows = rows
        self.predicts = is_causal(model) and rows.ids is not None and bool(_scored(rows).any())
        self.targets = targets_of(rows) if self.predicts else None
        self.parts: list[tuple[Int64[Tensor, " b"], Float[Tensor, " b"]]] = []

    def wants(self, sequences: Int64[Tensor, " b"]) -> bool:
        """Whether some sequences, all of one side, are held out and have a loss."""
        return self.predicts and bool(self.rows.test[sequences[0]])

    def update(self, sequences: Int64[Tensor, " b"], predictions: Float[Tensor, "b seq_len vocabulary"]) -> None:
        """Add a batch: the indices of its sequences, and the model's logits of them."""
        targets = self.targets[sequences]
        longer = (targets[:, 1:] != NO_TARGET).any(dim=1)
        self.parts.append((sequences[longer], mean_losses(predictions, targets)[longer]))

    def perplexity(self) -> float | None:
        """Compute the perplexity of all sequences added, in any order; None if there is nothing to predict.

        Raises:
            LossError: a loss or the perplexity is not finite.
        """
        if not self.predicts:
            return None
        sequences, means = map(torch.cat, zip(*self.parts, strict=True))
        order = sequences.argsort()
        predicted = self.rows.predicted
        counts = None if predicted is None else predicted[sequences[order]]
        return mean_perplexity(finite_losses([means[order]]), counts)


def if_finite(name: str, compute: Callable[[], Found]) -> Found | None:
    """Compute something from losses; if they are not finite, warn that R²_lin comes without it, and return None."""
    try:
        return compute()
    except LossError as reason:
        warnings.warn(f"R²_lin is measured without {name}: {reason}", stacklevel=3)
        return None


def scored_of(text: Any, model: PreTrainedModel, **rows) -> Rows:
    """Return the sequences to score for a perplexity, from a text, rows, token ids or a tokenizer's output.

    Of a text, a corpus or rows, the held-out part counts; token ids or a tokenizer's output count in full, each
    sequence as a document of its own. `rows` are passed to `Corpus.rows`.

    Raises:
        InputError: there is nothing to predict, or `text` is none of these.
    """
    unknown = sorted(rows.keys() - {"rows", "seq_len", "seed", "folds"})
    if unknown:
        raise InputError(
            f"a perplexity takes no {unknown[0]}: give rows, seq_len, seed or folds; load_corpus(text, model, …) says "
            "how a text is read"
        )
    text = gathered(text)
    if rows and not is_text(text):
        raise InputError(f"{', '.join(rows)} given with rows or token ids: leave them out")
    found = rows_of(text, model, **rows)
    if not (is_text(text) or isinstance(text, Rows)):
        found = replace(found, test=torch.ones_like(found.test), fold=torch.arange(len(found.test), device="cpu"))
    return held_out(found)


def held_out(rows: Rows | Int64[Tensor, "n seq_len"]) -> Rows:
    """Return the sequences to score: the held-out ones of rows, or all of token ids, each its own document.

    A sequence of a single token predicts nothing, and is left out.

    Raises:
        InputError: there is nothing to predict, or what is given is neither rows nor token ids.
    """
    if not isinstance(rows, Rows):
        ids = as_ids(rows)
        each = torch.arange(len(ids), device="cpu")
        rows = TokenRows(ids, torch.ones_like(each, dtype=torch.bool), each)
    if rows.ids is None:
        raise InputError(f"a perplexity is of token ids, input_ids, and these are {', '.join(rows.inputs)}")
    scored = _scored(rows)
    if not scored.any():
        shape = tuple(rows.ids[rows.test].shape)
        raise InputError(f"perplexity needs held out sequences of at least two tokens, got {shape}")
    return rows.subset(scored.nonzero()[:, 0])


def _scored(rows: Rows) -> Bool[Tensor, " n"]:
    """Which sequences are held out and predict a token."""
    predicted = rows.predicted
    return rows.test & (rows.seq_len > 1 if predicted is None else predicted > 0)


def mean_perplexity(losses: Float[Tensor, " n"], predicted: Int64[Tensor, " n"] | None = None) -> float:
    """Compute exp of the mean loss, each sequence weighted by its number of predicted tokens, by default equal."""
    losses = losses.double()
    predicted = torch.ones_like(losses) if predicted is None else predicted
    nats = (losses * predicted).sum() / predicted.sum()
    found = float(nats.exp())
    _check_finite(float(nats), found)
    return found


def _check_finite(nats: float, *found: Any) -> None:
    """Refuse results of losses that are too large to be exponentiated."""
    if not all(np.isfinite(each).all() for each in found):
        raise LossError(
            f"a mean loss of {nats:.4g} nats is no finite perplexity: the weights or a swapped map overflow or hold "
            "NaN, or no token is predicted"
        )


def losses(
    model: Any,
    ids: Any,
    batch_size: int = LOSS_BATCH,
) -> Float[Tensor, " n"]:
    """Compute the mean negative log-likelihood per predicted token of each sequence, in nats, shape (n,), float64.

    Args:
        model: a causal language model.
        ids: token ids, shape (n, seq_len), all of which count; or what `perplexity` takes.
        batch_size: sequences in a forward pass.

    Raises:
        InputError: a model that predicts no next token, nothing to predict, or a loss that is not finite.
    """
    model = model_of(model, on_disk=True)
    check_causal(model)
    return _losses(model, scored_of(ids, model), batch_size)


@torch.inference_mode()
def _losses(model: PreTrainedModel, scored: Rows, batch_size: int) -> Float[Tensor, " n"]:
    """Compute the losses of sequences with all that the model reads with them, as a measurement does."""
    batch_size = check_count("batch_size", batch_size)
    check_ids(model, scored.ids)
    targets = targets_of(scored)
    with evaluating(model), running(model):
        batches = torch.arange(len(targets), device="cpu").split(batch_size)
        predicted = predictions(model, (batch_of(model, scored, some) for some in batches))
        return finite_losses(
            [mean_losses(found, targets[some]) for found, some in zip(predicted, batches, strict=True)]
        )


def targets_of(rows: Rows) -> Int64[Tensor, "n seq_len"]:
    """The tokens to predict, and `NO_TARGET` for padding."""
    return rows.ids if rows.mask is None else rows.ids.masked_fill(~rows.mask, NO_TARGET)


@torch.inference_mode()
def mean_losses(
    predictions: Float[Tensor, "n seq_len vocabulary"], targets: Int64[Tensor, "n seq_len"]
) -> Float[Tensor, " n"]:
    """Average the negative log-likelihoods of each sequence's tokens after the first, float64; NaN if it has none."""
    predicted = (targets[:, 1:] != NO_TARGET).sum(1)
    return token_losses(predictions, targets).sum(1) / predicted.cpu()


def token_losses(
    predictions: Float[Tensor, "n seq_len vocabulary"], targets: Int64[Tensor, "n seq_len"]
) -> Float[Tensor, "n predicted"]:
    """Compute the negative log-likelihood of every token after the first, in nats, float64; 0 at padding."""
    expected = targets[:, 1:].to(predictions.device)
    # Sequence by sequence, each read where it lies: a copy of all logits is as costly as a block.
    nats = [
        cross_entropy(scores[:-1].float(), tokens, reduction="none", ignore_index=NO_TARGET)
        for scores, tokens in zip(predictions, expected, strict=True)
    ]
    return torch.stack(nats).double().cpu()


def finite_losses(batches: list[Float[Tensor, " _"]]) -> Float[Tensor, " n"]:
    """Join the losses of all batches, shape (n,); one that is not finite is refused, naming its sequence."""
    joined = torch.cat(batches)
    wrong = (~joined.isfinite()).nonzero()
    if len(wrong):
        raise LossError(
            f"the loss of sequence {int(wrong[0])} is not finite: the weights or a swapped map overflow, or hold NaN"
        )
    return joined


def change(
    base: Any,
    changed: Any,
    fold: Any = None,
    predicted: Any = None,
) -> Change:
    """Compute perplexity after minus before, from the losses of the same sequences.

    The interval is a jackknife of the difference, so what both share cancels. It leaves out whole document folds:
    neighbouring sequences are often from one document, whose losses are correlated. With 8 folds of 5 sequences,
    correlated by 0.4 within a document, it covers the truth in 95 of 100 simulated measurements, while leaving out
    single sequences covers it in 84; if losses have heavy tails as well, the jackknife covers it in 91
    (`benchmarks/coverage.py`). It takes the swapped map as given.

    Args:
        base: mean loss of each sequence before, shape (n,), see `losses`: a tensor, an array or numbers.
        changed: the same after.
        fold: the document fold of each sequence, shape (n,), see `held_out`; by default each is its own.
        predicted: how many tokens each sequence predicts, shape (n,); by default equally many.

    Raises:
        InputError: fewer than two folds, not the same number of sequences before and after, counts of tokens that are
            negative or all zero, or losses whose exponential is not finite.
    """
    before = _numbers("base", base).astype(float)  # in less than float64 an exponential overflows early
    after = _numbers("changed", changed).astype(float)
    n = len(before)
    if n < 2 or len(after) != n:
        raise InputError(
            f"a paired interval needs the same sequences twice, at least two sequences: got {n} and {len(after)}"
        )
    places = np.arange(n) if fold is None else _numbers("fold", fold)
    if len(places) != n or (predicted is not None and len(_numbers("predicted", predicted)) != n):
        raise InputError(f"fold and predicted are of the same {n} sequences, got {len(places)} folds")
    # Δ = exp(mean after) − exp(mean before), of all sequences and of all but each fold's. Where sequences predict n_i
    # tokens each, a mean is Σ n_i loss_i / Σ n_i.
    tokens = np.ones(n) if predicted is None else _numbers("predicted", predicted).astype(float)
    rest = fold_means(tokens, places)
    if (tokens < 0).any() or not (rest > 0).all():
        raise InputError(
            "predicted is how many tokens each sequence predicts: give counts of 0 or more, above 0 in two folds"
        )
    means = [np.average(nats, weights=tokens) for nats in (before, after)]
    with np.errstate(over="ignore", invalid="ignore"):
        delta = float(np.exp(means[1]) - np.exp(means[0]))
        without = np.exp(fold_means(after * tokens, places) / rest) - np.exp(fold_means(before * tokens, places) / rest)
        _check_finite(max(means), delta, without)
        found = Change.jackknife(delta, without)
    _check_finite(max(means), found.low, found.high)  # squares overflow earlier
    return found


def _numbers(name: str, given: Any) -> np.ndarray:
    """Convert a tensor, an array or a list to one number per sequence."""
    numbers = as_tensor(given, name)
    if numbers.ndim != 1 or not numbers.isfinite().all():
        raise InputError(f"{name} of shape {tuple(numbers.shape)}: give a finite number for each sequence")
    return (numbers.double() if numbers.is_floating_point() else numbers).numpy()  # numpy has no bfloat16


def ratio_of(base: Float[Tensor, " n"], changed: Float[Tensor, " n"], fold: Int64[Tensor, " n"]) -> Estimate:
    """Compute perplexity after over before, from the losses of the same sequences.

    It is the exponential of the mean rise of the loss, with a paired interval as in `change`.
    """
    nats = (changed - base).numpy()
    rise = Estimate.of_mean(nats, fold.numpy())
    return Estimate(*(float(np.exp(nats)) for nats in (rise.value, rise.low, rise.high)))
