"""Perplexity, and how much a change of the model costs, with paired error bars.

Perplexity is exp(mean negative log-likelihood per predicted token), token-weighted over sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from howlinear.ceilings import jackknife
from howlinear.corpora import Corpus
from howlinear.distributed import ALONE, Ranks
from howlinear.errors import InputError
from howlinear.inputs import Rows
from howlinear.models import check_causal, swap
from howlinear.resume import Recording, resumable
from howlinear.swapping import device_of


@dataclass(frozen=True)
class Change:
    """A difference of perplexities on the same sequences, with its 95 % interval."""

    delta: float
    low: float
    high: float


def perplexity(
    model: PreTrainedModel, corpus: Corpus | Rows | Int64[Tensor, "n seq_len"], ranks: Ranks = ALONE, **rows
) -> float:
    """Perplexity of a model on held-out text.

    Args:
        model: a causal language model.
        corpus: a corpus, or rows (their held-out part is used, without padding), or token ids (all are used).
        ranks: the processes that share the work, see `distributed`; all of them call this.
        **rows: passed to `Corpus.rows`; to compare with a profile, pass its `rows` as the corpus instead.

    Raises:
        InputError: nothing to predict, a model that predicts no next token, or a loss that is not finite.
    """
    if rows and not isinstance(corpus, Corpus):
        raise InputError(f"{', '.join(rows)} given with rows that are packed already: leave them out")
    rows = corpus.rows(**rows) if isinstance(corpus, Corpus) else corpus
    ids, mask = (rows, None) if isinstance(rows, Tensor) else (rows.ids, rows.mask)
    if not isinstance(rows, Tensor) and ids is not None:
        ids, mask = ids[rows.test], None if mask is None else mask[rows.test]
    if ids is None or not len(ids) or ids.shape[1] < 2 or (mask is not None and not mask[:, 1:].any()):
        shape = None if ids is None else tuple(ids.shape)
        raise InputError(f"perplexity needs held out sequences of at least two tokens, got {shape}")
    if mask is None:
        return float(losses(model, ids, ranks=ranks).mean().exp())
    predicted = mask[:, 1:].sum(1)
    some = predicted > 0
    means = losses(model, ids[some], ranks=ranks, mask=mask[some])
    return float(((means * predicted[some]).sum() / predicted.sum()).exp())


@torch.inference_mode()
def losses(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 16,
    ranks: Ranks = ALONE,
    mask: Bool[Tensor, "n seq_len"] | None = None,
) -> Float[Tensor, " n"]:
    """Mean negative log-likelihood per predicted token of each sequence, in nats, shape (n,), float64.

    Args:
        model: a causal language model.
        ids: token ids, shape (n, seq_len).
        batch_size: sequences in a pass.
        ranks: the processes that share the work, see `distributed`; all of them call this.
        mask: which are tokens, shape (n, seq_len), padding on the right; all by default.

    Raises:
        InputError: a model that predicts no next token, or a loss that is not finite.
    """
    check_causal(model)
    targets = ids if mask is None else ids.masked_fill(~mask, -100)  # causal: no token sees the padding behind it
    pairs = ranks.share(list(zip(ids.split(batch_size), targets.split(batch_size), strict=True)))
    means = [_means(model, *pair) for pair in pairs]
    return _finite(ranks.gather(torch.cat([torch.empty(0, dtype=torch.float64), *means])))


def _means(
    model: PreTrainedModel, batch: Int64[Tensor, "n seq_len"], targets: Int64[Tensor, "n seq_len"]
) -> Float[Tensor, " n"]:
    """The same for one batch; a sequence's logits are read where they lie, a copy of all is as dear as a block."""
    logits = model(input_ids=batch.to(device_of(model)), use_cache=False).logits
    expected = targets[:, 1:].to(logits.device)
    pairs = zip(logits, expected, strict=True)
    tokens = [cross_entropy(scores[:-1].float(), ids, reduction="none", ignore_index=-100) for scores, ids in pairs]
    return (torch.stack(tokens).double().sum(1) / (expected != -100).sum(1)).cpu()


def _finite(means: list[Tensor]) -> Float[Tensor, " n"]:
    """The means of all batches, shape (n,), if none is NaN or infinite."""
    joined = torch.cat(means)
    if not joined.isfinite().all():
        sequence = int((~joined.isfinite()).nonzero()[0])
        raise InputError(f"the loss of sequence {sequence} is not finite: the weights or a swapped map overflow")
    return joined


def change(base: Float[Tensor, " n"], changed: Float[Tensor, " n"]) -> Change:
    """Perplexity after minus before, from the losses of the same sequences of one length.

    The interval is a delete-one-sequence jackknife of the difference, so what both share cancels. It takes the swapped
    map as given, and sequences as independent.
    """
    before, after = base.numpy(), changed.numpy()
    n = len(before)
    if n < 2 or len(after) != n:
        raise InputError(
            f"a paired interval needs the same sequences twice, at least two sequences: got {n} and {len(after)}"
        )
    delta = float(np.exp(after.mean()) - np.exp(before.mean()))
    leave_one_out = np.exp((after.sum() - after) / (n - 1)) - np.exp((before.sum() - before) / (n - 1))
    return Change(delta, *jackknife(delta, leave_one_out))


def swap_costs(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 16,
) -> dict[int, Change]:
    """What replacing each block alone by its map costs in perplexity, without fine-tuning (paper, figure 2).

    Args:
        model: the model; left as it was.
        maps: block → map, as `swap` takes it.
        ids: held-out token ids, shape (n, seq_len).
        batch_size: sequences in a pass.

    Returns:
        Block → the change of perplexity, paired over sequences.

    Raises:
        InputError: a loss is not finite, a block that the model does not have, or fewer than two sequences.
    """
    before, after = swap_losses(model, maps, ids, batch_size)
    return {block: change(before, means) for block, means in after.items()}


@torch.inference_mode()
def swap_losses(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 16,
) -> tuple[Float[Tensor, " n"], dict[int, Float[Tensor, " n"]]]:
    """`losses` of the model as it is, and with each block alone replaced by its map.

    What comes before a swapped block is computed once for all swaps, see `resume`; the losses are the same to the bit.

    Args:
        model: the model; left as it was.
        maps: block → map, as `swap` takes it.
        ids: token ids, shape (n, seq_len).
        batch_size: sequences in a pass.

    Raises:
        InputError: a model that predicts no next token, a loss that is not finite, or a block that it does not have.
    """
    check_causal(model)
    blocks = list(maps)
    recording = Recording(model, blocks) if blocks and resumable(model, blocks, ids[:1].to(device_of(model))) else None
    base, after = [], {block: [] for block in maps}
    for batch in ids.split(batch_size):
        with recording.record() if recording else nullcontext():
            base.append(_means(model, batch, batch))
        for block, replacement in maps.items():
            with swap(model, {block: replacement}), recording.resumed(block) if recording else nullcontext():
                after[block].append(_means(model, batch, batch))
    return _finite(base), {block: _finite(means) for block, means in after.items()}
