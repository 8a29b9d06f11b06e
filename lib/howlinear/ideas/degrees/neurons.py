"""A block taken apart: the pre-activations it bends, what it bends them with, and the layer that adds them up.

A feed-forward block is y = Vᵀ a(z) + b with z affine in x; SwiGLU's is Vᵀ (u ⊙ a(g)). What is asked of single neurons,
in `spectrum` and `hermite`, is asked of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.models.ffn_sites import activation_beside, sites
from howlinear.models.units import affine_of, unit_layers

ACTIVATIONS = ("act", "act_fn")  # what FFN modules call what they bend by


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

    @property
    def neurons(self) -> int:
        """How many neurons there are, m."""
        return len(self.gate.bias)

    def __call__(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_out"]:
        """The block itself."""
        values = self.activation(self.gate(x))
        if self.up is not None:
            values = values * self.up(x)
        return self.out(values)

    def spread(self, moments: Moments) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Mean and standard deviation of the pre-activations, from moments of x alone, each of shape (m,)."""
        weight = self.gate.weight
        mean = moments.mean_x @ weight + self.gate.bias
        # Var(z_m) = w_mᵀ Σ w_m; along a null direction rounding may leave it below 0
        variance = ((moments.sxx @ weight) * weight).sum(0) / moments.n
        return mean, variance.clamp_min(0).sqrt()


def take_apart(model: PreTrainedModel, block: int) -> Hidden:
    """Take a block of a model apart, its weights in float64."""
    site = sites(model, [block])[0]
    between = None if site.ffn is not None else activation_beside(model, site)
    if between is not None:  # a pair of layers, as in BERT
        return Hidden(gate=affine_of(site.input), up=None, activation=between, out=affine_of(site.output))
    gate, *beside, out = [affine_of(layer) for layer in unit_layers(model, site)]
    (activation,) = [getattr(site.output, name) for name in ACTIVATIONS if hasattr(site.output, name)]
    return Hidden(gate=gate, up=beside[0] if beside else None, activation=activation, out=out)
