"""Perplexity, and how much a change of the model costs, with paired error bars.

Perplexity is exp(mean negative log-likelihood per predicted token), token-weighted over sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from howlinear.ceilings import AffineMap, jackknife
from howlinear.corpora import Corpus, TokenRows
from howlinear.distributed import ALONE, Ranks
from howlinear.errors import InputError
from howlinear.models import swap


@dataclass(frozen=True)
class Change:
    """A difference of perplexities on the same sequences, with its 95 % interval."""

    delta: float
    low: float
    high: float


def perplexity(
    model: PreTrainedModel, corpus: Corpus | TokenRows | Int64[Tensor, "n seq_len"], ranks: Ranks = ALONE, **rows
) -> float:
    """Perplexity of a model on held-out text.

    Args:
        model: a causal language model.
        corpus: a corpus, or packed rows (their held-out part is used), or token ids (all are used).
        ranks: the processes that share the work, see `distributed`; all of them call this.
        **rows: passed to `Corpus.rows`; to compare with a profile, pass its `rows` as the corpus instead.

    Raises:
        InputError: nothing to predict, or the loss is not finite.
    """
    if rows and not isinstance(corpus, Corpus):
        raise InputError(f"{', '.join(rows)} given with rows that are packed already: leave them out")
    rows = corpus.rows(**rows) if isinstance(corpus, Corpus) else corpus
    ids = rows.ids[rows.test] if isinstance(rows, TokenRows) else rows
    if not len(ids) or ids.shape[1] < 2:
        raise InputError(f"perplexity needs held out sequences of at least two tokens, got {tuple(ids.shape)}")
    return float(losses(model, ids, ranks=ranks).mean().exp())


@torch.inference_mode()
def losses(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], batch_size: int = 16, ranks: Ranks = ALONE
) -> Float[Tensor, " n"]:
    """Mean negative log-likelihood per predicted token of each sequence, in nats, shape (n,), float64.

    Raises:
        InputError: a loss is not finite.
    """
    means = [torch.empty(0, dtype=torch.float64)]
    for batch in ranks.share(ids.split(batch_size)):
        batch = batch.to(model.device)
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
        tokens = cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        means.append(tokens.view(len(batch), -1).double().mean(1).cpu())
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
