"""The price of a block's error in the loss: a prediction of swap costs from one backward pass.

Put r = y − (xW + b) for the error of a map, and g = ∂(Σ loss)/∂y for the gradient of a sequence's summed loss at the
block's output. Swapping adds −r at every token, so to second order, with the Fisher information in the place of the
Hessian and errors taken as independent between tokens,

    Δ loss per token ≈ −E[g·r] + ½ E[(g·r)²] ≈ ½ tr(E[g gᵀ] E[r rᵀ]).

The first term has no sign to rely on in a trained model; the last form asks for second moments alone, so it prices any
other map too. Empirical Fisher: gradients at the labels of the text (Kunstner, Balles & Hennig 2019 on its limits).
Our choice: the paper ranks blocks by R²_lin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.moments import add_gram
from howlinear.errors import InputError
from howlinear.ideas.compression.loss_gradients import loss_gradients
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.load import check_causal


@dataclass(frozen=True)
class Price:
    """What one backward pass says of a block and its map.

    Attributes:
        metric: E[g gᵀ], the second moment of the loss gradient at the output, shape (d_out, d_out); nats²
            per squared unit of y.
        error: E[r rᵀ], the second moment of the map's error, shape (d_out, d_out).
        paired: ½ E[(g·r)²], nats per token: as `cost`, with g and r of the same token.
        slope: −E[g·r], nats per token: the first-order term.
        stream: variance of the residual stream after the block, summed over features.
    """

    metric: Float[Tensor, "d_out d_out"]
    error: Float[Tensor, "d_out d_out"]
    paired: float
    slope: float
    stream: float

    @property
    def cost(self) -> float:
        """½ tr(E[g gᵀ] E[r rᵀ]): the predicted cost of the swap, nats per token."""
        return float((self.metric * self.error).sum() / 2)

    @property
    def residual(self) -> float:
        """E‖r‖²: the same error, every direction weighed alike."""
        return float(self.error.trace())


def price(
    model: PreTrainedModel,
    maps: Mapping[int, Callable[[Tensor], Tensor]],
    ids: Int64[Tensor, "n seq_len"],
    batch_size: int = 8,
) -> dict[int, Price]:
    """Predict what swapping each block for its map would cost, without swapping any.

    Args:
        model: the model; left as it was.
        maps: block → an `AffineMap`, or any function of float64 rows.
        ids: token ids of the text to fit on, shape (n, seq_len); one forward and one backward pass over them.
        batch_size: sequences in a pass.

    Returns:
        Block → `Price`.

    Raises:
        InputError: no map, nothing to predict, a model that predicts no next token, or gradients that are not finite.
    """
    if not maps:
        raise InputError("no map to price: give at least one")
    check_causal(model)
    priced = sites(model, list(maps))
    sums = {site.block: _Sums(maps[site.block], width_of(model)) for site in priced}

    def add(block: int, x: Tensor, y: Tensor, g: Tensor) -> None:
        sums[block].add(x, y, g)

    layers = [_layer_of(model, site) for site in priced]
    hooks = [
        layer.register_forward_hook(sums[site.block].add_stream) for layer, site in zip(layers, priced, strict=True)
    ]
    try:
        predicted = loss_gradients(model, ids, list(maps), add, batch_size)
    finally:
        for hook in hooks:
            hook.remove()
    return {block: sums[block].price(predicted) for block in maps}


def _layer_of(model: PreTrainedModel, site: Site) -> nn.Module:
    """The transformer layer that a block stands in: what it returns is the residual stream after the block."""
    layer, _, _ = site.name.rpartition(".")
    return model.get_submodule(layer)


class _Sums:
    """Running sums of one block, float64."""

    def __init__(self, affine: Callable[[Tensor], Tensor], width: int):
        self.map = affine
        self.metric = torch.zeros(width, width, dtype=torch.float64)  # Σ g gᵀ
        self.error = torch.zeros(width, width, dtype=torch.float64)  # Σ r rᵀ
        self.slope = 0.0  # Σ g·r
        self.paired = 0.0  # Σ (g·r)²
        # of the residual stream h
        self.count = 0  # rows
        self.total = torch.zeros(width, dtype=torch.float64)  # Σ h
        self.squares = torch.zeros(width, dtype=torch.float64)  # Σ h², by feature

    def add_stream(self, layer: nn.Module, inputs: tuple, output: Tensor | tuple) -> None:
        """Add what a layer returned; a forward hook."""
        hidden = output if isinstance(output, Tensor) else output[0]
        hidden = hidden.detach().flatten(0, -2).double().cpu()
        self.count += len(hidden)
        self.total += hidden.sum(0)
        self.squares += hidden.square().sum(0)

    def add(self, x: Tensor, y: Tensor, g: Tensor) -> None:
        """Add a batch's rows and the gradient at them."""
        g = g.flatten(0, -2)
        # r = y − (xW + b)
        error = y.double() - self.map(x.double())
        r = error.flatten(0, -2).cpu()
        add_gram(self.metric, g)
        add_gram(self.error, r)
        # g·r, token by token
        along = (g * r).sum(1)
        self.slope += float(along.sum())
        self.paired += float(along.square().sum())

    def price(self, predicted: int) -> Price:
        """The means: of what has a gradient over the tokens predicted, of the others over all tokens."""
        mean = self.total / self.count
        variance = self.squares / self.count - mean.square()
        return Price(
            metric=self.metric / predicted,
            error=self.error / self.count,
            paired=self.paired / predicted / 2,
            slope=-self.slope / predicted,
            stream=float(variance.sum()),
        )
