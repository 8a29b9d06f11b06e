"""What it costs to put maps in the place of blocks, measured on held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.instrument.perplexity import change, held_out, losses
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows


def swap_cost(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    base: Float[Tensor, " n"],
) -> dict[str, float]:
    """What it costs to put maps in the place of blocks, all at once, as of `cost`."""
    scored = held_out(text)
    with swap(model, maps):
        after = losses(model, scored)
    return cost(base, after, scored.fold)


def timed_losses(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], batch_size: int
) -> tuple[Float[Tensor, " n"], float]:
    """The loss of each sequence, see `perplexity.losses`, and how many tokens a second that took, by the wall clock."""
    began = perf_counter()
    found = losses(model, ids, batch_size)
    return found, ids.numel() / (perf_counter() - began)


def cost(
    base: Float[Tensor, " n"], after: Float[Tensor, " n"], fold: Int64[Tensor, " n"] | None = None
) -> dict[str, float]:
    """The cost of a change, from the losses of the same sequences before and after.

    Returns:
        `nats`, what the loss rises by per token; `delta`, what perplexity rises by, with the ends `delta_low` and
        `delta_high` of its 95 % interval.
    """
    nats = float((after - base).mean())
    return {"nats": nats} | change(base, after, fold).columns("delta")
