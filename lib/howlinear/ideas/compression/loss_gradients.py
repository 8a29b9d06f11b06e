"""The gradient of the loss at blocks' outputs, which tells what an error there costs.

With g = ∂(Σ loss)/∂y, the gradient of a sequence's summed loss at one token of a block's output, and errors r of that
block at all tokens, to second order (Fisher information in the place of the Hessian),

    Δ Σ loss ≈ −Σ g·r + ½ Σ (g·r)².

Losses are per *predicted* token, and a sequence has one fewer of these than tokens, so every sum of products of g is
divided by the number of predicted tokens. (The last token predicts nothing; its g is 0 and adds nothing to the sum.)

If the model's weights stay on disk, the stream before each layer is saved to a file in the forward pass, and each layer
is computed once more in the backward pass.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, device_of, sites
from howlinear.models.forward import logits
from howlinear.models.layerwise import Layerwise
from howlinear.models.shards import is_on_disk
from howlinear.models.work import StreamFiles

Add = Callable[[int, Tensor, Tensor, Tensor], None]
"""Takes a block, its input, its output, and the gradient of the loss at the output."""


def loss_gradients(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    blocks: list[int],
    add: Add,
    batch_size: int,
    finish: Callable[[int], None] = lambda _: None,
) -> None:
    """Run forward and backward passes over a text; `add` gets each block's rows, then `finish` the block's number."""
    chosen = sites(model, blocks)
    batches = [batch.to(device_of(model)) for batch in ids.split(batch_size)]
    if is_on_disk(model):
        _layer_by_layer(model, batches, chosen, add, finish)
        return
    tap = _Tap(add)
    with torch.enable_grad(), hooked(chosen, tap.keep):
        for batch in batches:
            loss = _summed_loss(logits(model, batch), batch)
            gradients = torch.autograd.grad(loss, [tap.outputs[site.block] for site in chosen])
            for site, gradient in zip(chosen, gradients, strict=True):
                tap.give(site.block, gradient, len(batch))
    for site in chosen:
        finish(site.block)


def _layer_by_layer(
    model: PreTrainedModel,
    batches: list[Int64[Tensor, "_ seq_len"]],
    chosen: list[Site],
    add: Add,
    finish: Callable[[int], None],
) -> None:
    """Do the same with one layer's weights in memory at a time."""
    site_of = {site.block: site for site in chosen}
    tap = _Tap(add)
    with tempfile.TemporaryDirectory(prefix="howlinear-", ignore_cleanup_errors=True) as folder:
        text = Layerwise(model, batches)
        files = StreamFiles(Path(folder))
        for number in range(len(text.layers)):
            files.save(number, text.streams)
            text.advance()

        # gradients of the loss at the streams, first at those behind the last layer
        gradients = []
        with text.head() as predict, torch.enable_grad():
            for batch, stream in zip(batches, text.streams, strict=True):
                loss = _summed_loss(predict(batch, stream.requires_grad_()), batch)
                gradients += torch.autograd.grad(loss, [stream])
        for number in reversed(range(len(text.layers))):
            here = [site_of[number]] if number in site_of else []
            text.passed = number
            streams = files.load(number, text.streams[0].device)
            with text.layer() as run, torch.enable_grad(), hooked(here, tap.keep):
                for place, batch in enumerate(batches):
                    stream = streams[place].requires_grad_()
                    behind = run(place, stream)
                    wanted = [stream, *(tap.outputs.pop(number) for _ in here)]
                    gradients[place], *at_output = torch.autograd.grad(behind, wanted, gradients[place])
                    for gradient in at_output:
                        tap.give(number, gradient, len(batch))
            if here:
                finish(number)


def _summed_loss(
    predictions: Float[Tensor, "batch seq_len vocabulary"], batch: Int64[Tensor, "batch seq_len"]
) -> Float[Tensor, ""]:
    """Sum the loss over all tokens, without averaging, so that gradients are those of each sequence's whole loss."""
    scores = predictions[:, :-1].float().flatten(0, 1)
    expected = batch[:, 1:].flatten()
    return cross_entropy(scores, expected, reduction="sum")


class _Tap:
    """Inputs and outputs of blocks in the last pass, kept until the gradients there are known."""

    def __init__(self, add: Add):
        self.add = add
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}  # of inputs and outputs
        self.outputs: dict[int, Tensor] = {}  # in the graph

    def keep(self, site: Site, x: Tensor, y: Tensor) -> None:
        # in a frozen model nothing requires gradients, so the outputs start a graph of their own
        self.outputs[site.block] = y if y.requires_grad else y.requires_grad_()
        self.rows[site.block] = x.detach(), y.detach().clone()  # Falcon adds attention to y in place

    @torch.no_grad()
    def give(self, block: int, gradient: Tensor, sequences: int) -> None:
        g = gradient.view(sequences, -1, gradient.shape[-1]).double().cpu()
        if not g.isfinite().all():
            raise InputError(f"the loss gradient at block {block} is not finite: the model overflows")
        self.add(block, *self.rows.pop(block), g)
