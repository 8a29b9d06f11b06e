"""Perplexity, and how much a change of the model costs, with paired error bars.

Perplexity is exp(mean negative log-likelihood per predicted token), token-weighted over sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from howlinear.ceilings import AffineMap, jackknife
from howlinear.corpora import Corpus
from howlinear.distributed import ALONE, Ranks
from howlinear.errors import InputError
from howlinear.inputs import Rows
from howlinear.models import check_causal, swap
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
    means, device = [torch.empty(0, dtype=torch.float64)], device_of(model)
    for batch, expected in ranks.share(list(zip(ids.split(batch_size), targets.split(batch_size), strict=True))):
        logits = model(input_ids=batch.to(device), use_cache=False).logits[:, :-1]
        expected = expected[:, 1:].to(logits.device)
        tokens = cross_entropy(logits.float().flatten(0, 1), expected.flatten(), reduction="none", ignore_index=-100)
        means.append((tokens.view(len(batch), -1).double().sum(1) / (expected != -100).sum(1)).cpu())
    means = torch.cat(ranks.gather(torch.cat(means)))
    if not means.isfinite().all():
        sequence = int((~means.isfinite()).nonzero()[0])
        raise InputError(f"the loss of sequence {sequence} is not finite: the weights or a swapped map overflow")
    return means


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
    model: PreTrainedModel, maps: Mapping[int, AffineMap], ids: Int64[Tensor, "n seq_len"]
) -> dict[int, Change]:
    """What replacing each block alone by its map costs in perplexity, without fine-tuning (paper, figure 2).

    Args:
        model: the model; left as it was.
        maps: block → map.
        ids: held-out token ids, shape (n, seq_len).

    Returns:
        Block → the change of perplexity, paired over sequences.
    """
    base = losses(model, ids)
    costs = {}
    for block, replacement in maps.items():
        with swap(model, {block: replacement}):
            costs[block] = change(base, losses(model, ids))
    return costs
