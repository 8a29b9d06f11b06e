"""A block taken apart: the pre-activations it bends, what it bends them with, and the polynomials to say how.

A feed-forward block is y = Vᵀ a(z) + b with z affine in x; SwiGLU's is Vᵀ (u ⊙ a(g)). What is asked of single neurons,
in `degrees` and `hermite`, is asked of this. Hermite's polynomials of a standardised Gaussian are uncorrelated
(O'Donnell, "Analysis of Boolean Functions", chapter 11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.models import sites
from howlinear.moments import Moments

LAYERS = {  # model_type: (layer under the activation, layer beside it, activation, layer out)
    "gpt2": ("c_fc", None, "act", "c_proj"),
    "gpt_neox": ("dense_h_to_4h", None, "act", "dense_4h_to_h"),
    "llama": ("gate_proj", "up_proj", "act_fn", "down_proj"),
}


@dataclass(frozen=True)
class Hidden:
    """A block taken apart: y = out(a(gate(x)) ⊙ up(x)).

    Attributes:
        gate: x to the m pre-activations under the activation (z of a plain block, g of SwiGLU).
        up: x to what multiplies the activations; None in a plain block.
        activation: a, elementwise.
        out: the m hidden values to y.
    """

    gate: AffineMap
    up: AffineMap | None
    activation: Callable[[Tensor], Tensor]
    out: AffineMap

    def __call__(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_out"]:
        """The block itself."""
        values = self.activation(self.gate(x))
        return self.out(values if self.up is None else values * self.up(x))

    def spread(self, moments: Moments) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Mean and standard deviation of the pre-activations, from moments of x alone, each of shape (m,)."""
        weight = self.gate.weight
        variance = ((moments.sxx @ weight) * weight).sum(0) / moments.n
        return moments.mean_x @ weight + self.gate.bias, variance.clamp_min(0).sqrt()


def hidden(model: PreTrainedModel, block: int) -> Hidden:
    """Take a block apart, its weights in float64.

    Raises:
        InputError: unknown family, no such block, or one whose layers are not there (a replaced block is linear).
    """
    site = sites(model, [block])[0]
    family = model.config.model_type
    missing = [name for name in LAYERS[family] if name and not hasattr(site.output, name)] if family in LAYERS else []
    if family not in LAYERS or missing:
        why = f"{site.name} has no {', '.join(missing)}" if missing else f"no layers are known for {family!r} models"
        raise InputError(f"cannot take block {block} apart: {why}; known are {', '.join(LAYERS)} with their own blocks")
    gate, up, activation, out = (getattr(site.output, name) if name else None for name in LAYERS[family])
    return Hidden(_affine(gate), None if up is None else _affine(up), activation, _affine(out))


def hermite(z: Float[Tensor, "*shape"], degree: int) -> list[Float[Tensor, "*shape"]]:
    """He_0 … He_degree of z over √j!, so of variance 1 for a standard Gaussian: h_{j+1} √(j+1) = z h_j − √j h_{j−1}."""
    terms = [torch.ones_like(z), z]
    for j in range(1, degree):
        terms.append((z * terms[j] - j**0.5 * terms[j - 1]) / (j + 1) ** 0.5)
    return terms[: degree + 1]


def _affine(layer: torch.nn.Module) -> AffineMap:
    """A layer's map; nn.Linear keeps its weight as (out, in), GPT-2's Conv1D as (in, out)."""
    weight = layer.weight.detach().double().cpu()
    weight = weight.T if isinstance(layer, torch.nn.Linear) else weight
    bias = torch.zeros(weight.shape[1], dtype=torch.float64)
    return AffineMap(weight, bias if layer.bias is None else layer.bias.detach().double().cpu())
