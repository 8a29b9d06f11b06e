"""How far a model's predictions move when one block is replaced: the measured side of a price.

KL(p ‖ q) between the next-token distributions of the model as it is and with one block replaced. Its second-order
expansion is the Fisher price (`price`). Unlike a difference of losses it is never negative and has little noise, so two
thousand tokens are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.instrument.swap_costs import swapped_passes
from howlinear.models.forward import logits


def divergences(
    model: PreTrainedModel,
    replacements: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 4,
) -> dict[int, float]:
    """KL(p ‖ q) per predicted token with each block alone replaced, in nats.

    What comes before a replaced block is computed once for all (`swap_costs.Recording`).

    Args:
        model: a causal model; left as it was.
        replacements: block → what stands in its place, as `swap` takes it.
        ids: token ids, shape (n, seq_len).
        batch_size: sequences in a pass.

    Raises:
        InputError: a model that predicts no next token, nothing to predict, or predictions that are not finite.
    """
    if not len(ids) or ids.shape[1] < 2:
        raise InputError(f"ids of shape {tuple(ids.shape)}: there is nothing to predict, so nothing diverges")
    whole = _Whole(model)
    swaps = {block: (block, replacement) for block, replacement in replacements.items()}
    _, parts = swapped_passes(model, swaps, ids, whole.divergence, batch_size)
    found = {block: float(torch.cat(of_block).mean()) for block, of_block in parts.items()}
    for block, divergence in found.items():
        if not divergence < float("inf"):
            raise InputError(f"predictions with block {block} replaced are not finite: the weights overflow")
    return found


class _Whole:
    """The predictions of the whole model for one batch, which those with a block replaced are held against."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.batch: Int64[Tensor, "n seq_len"] | None = None
        self.log_p: list[Float[Tensor, "predicted vocabulary"]] = []

    def divergence(self, batch: Int64[Tensor, "n seq_len"]) -> Float[Tensor, " n"]:
        """Mean KL per predicted token of each sequence; of a batch that is new, the predictions are kept."""
        log_q = [scores.float().log_softmax(-1) for scores in logits(self.model, batch)[:, :-1]]
        if batch is not self.batch:  # its first pass is that of the whole model
            self.batch = batch
            self.log_p = log_q
        pairs = zip(self.log_p, log_q, strict=True)
        # KL = Σ p (log p − log q)
        return torch.stack([(p.exp() * (p - q)).sum(-1).double().mean() for p, q in pairs]).cpu()
