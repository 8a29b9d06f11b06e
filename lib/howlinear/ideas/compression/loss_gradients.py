"""The gradient of the loss at blocks' outputs, from which it is known what an error there costs.

With g = ∂(Σ loss)/∂y, the gradient of a sequence's summed loss at one token of a block's output, and errors r of that
block at all tokens, to second order (Fisher information in the place of the Hessian),

    Δ Σ loss ≈ −Σ g·r + ½ Σ (g·r)².

Losses are told per *predicted* token, of which a sequence has one fewer than tokens: so every sum of products of g is
divided by the number of predicted tokens. (The last token predicts nothing; its g is 0 and adds nothing to the sum.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, device_of, sites
from howlinear.models.forward import logits
from howlinear.models.load import check_causal


def loss_gradients(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    blocks: list[int],
    add: Callable[[int, Tensor, Tensor, Tensor], None],
    batch_size: int = 8,
) -> int:
    """Run a text through a model and its loss back, and give `add` what a block read and wrote, and its gradient.

    Returns:
        How many tokens were predicted: what sums of products of g are divided by.
    """
    if not len(ids) or ids.shape[1] < 2:
        raise InputError(f"ids of shape {tuple(ids.shape)}: there is nothing to predict, so no error costs anything")
    check_causal(model)
    chosen = sites(model, blocks)
    inputs: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}

    def keep(site: Site, x: Tensor, y: Tensor) -> None:
        # of a frozen model nothing asks for gradients, so its outputs start a graph of their own
        outputs[site.block] = y if y.requires_grad else y.requires_grad_()
        inputs[site.block] = x.detach()
        values[site.block] = y.detach().clone()  # Falcon adds attention to y in place

    with torch.enable_grad(), hooked(chosen, keep):
        for batch in ids.split(batch_size):
            batch = batch.to(device_of(model))
            predictions = logits(model, batch)[:, :-1].float()
            # summed, not averaged: g is the gradient of a sequence's whole loss
            loss = cross_entropy(predictions.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
            gradients = torch.autograd.grad(loss, [outputs[site.block] for site in chosen])
            for site, gradient in zip(chosen, gradients, strict=True):
                g = gradient.view(len(batch), -1, gradient.shape[-1]).double().cpu()
                if not g.isfinite().all():
                    raise InputError(f"the loss gradient at block {site.block} is not finite: the model overflows")
                with torch.no_grad():
                    add(site.block, inputs[site.block], values[site.block], g)
    return ids[:, 1:].numel()
