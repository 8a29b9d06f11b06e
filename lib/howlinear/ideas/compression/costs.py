"""The cost of replacing blocks by maps, measured on held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.instrument.perplexity import Change, change, held_out, losses
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a smaller model costs on held-out text.

    Attributes:
        base: perplexity before.
        perplexity: perplexity after.
        delta: after minus before, with its paired interval.
        speeds: tokens of held-out text per second before and after, as timed in this run.
    """

    base: float
    perplexity: float
    delta: Change
    speeds: tuple[float, float]

    @property
    def cost(self) -> str:
        """Both perplexities, and the change with its interval, in words."""
        return (
            f"perplexity {self.base:.2f} → {self.perplexity:.2f}, change {self.delta.delta:+.2f} (95 % interval "
            f"{self.delta.low:+.2f} to {self.delta.high:+.2f})"
        )


def swap_cost(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    text: TokenRows | Int64[Tensor, "n seq_len"],
    base: Float[Tensor, " n"],
) -> dict[str, float]:
    """Measure the cost of replacing several blocks by maps at once; for the keys see `cost`."""
    scored = held_out(text)
    with swap(model, maps):
        after = losses(model, scored)
    return cost(base, after, scored.fold)


def timed_losses(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], batch_size: int
) -> tuple[Float[Tensor, " n"], float]:
    """Compute the loss of each sequence (see `perplexity.losses`), and the speed in tokens per second of wall time."""
    began = perf_counter()
    found = losses(model, ids, batch_size)
    return found, ids.numel() / (perf_counter() - began)


def cost(
    base: Float[Tensor, " n"], after: Float[Tensor, " n"], fold: Int64[Tensor, " n"] | None = None
) -> dict[str, float]:
    """Compute the rise of the loss per token, `nats`, and of perplexity, `delta` with its interval, both paired."""
    nats = float((after - base).mean())
    return {"nats": nats} | change(base, after, fold).columns("delta")
