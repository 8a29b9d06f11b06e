"""R²_lin and the degree spectrum of a block on Gaussian inputs, from its weights and the inputs' moments alone.

A feed-forward block is y = Vᵀ a(g) + b with pre-activations g affine in x; a gated one (SwiGLU, GEGLU, ReGLU) is
y = Vᵀ (u ⊙ a(g)) + b. If x is Gaussian, so are g and u, and y splits into uncorrelated parts of degree 0, 1, 2, …
(Wiener 1938, "The homogeneous chaos"). The sum of the parts up to degree k is the best polynomial of degree k in x. No
row is used: where the prediction fails, the inputs are not Gaussian.

The sum up to degree 1 is the best affine map. Its slope is the mean slope, so a unit passes E[a'(g)] times its
pre-activation on (Stein 1981, "Estimation of the mean of a multivariate normal distribution"; Bussgang 1952,
"Crosscorrelation functions of amplitude-distorted Gaussian signals"). With a(g) = Σ a_k h_k(ĝ) in Hermite's polynomials
of the standardised ĝ, the coefficient a_1 is E[a'(g)] times the spread of g.

The whole is Σ Var(y) = ⟨Cov(units), V Vᵀ⟩, and E[h_j(ĝ) h_k(ĝ')] = δ_jk ρ^k for two units of correlation ρ (Mehler
1866; O'Donnell, "Analysis of Boolean Functions", 11.2), so that Cov(a(g), a'(g')) = Σ a_k a'_k ρ^k. Its derivative in ρ
is the same sum for the slopes (Price 1958, "A useful theorem for nonlinear devices having Gaussian inputs"), and for
ReLU it is the arc-cosine kernel (Cho & Saul 2009, "Kernel methods for deep learning").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.errors import InputError

TERMS = 24
"""Number of degrees that are added up; the variance beyond is added unit by unit, as if uncorrelated. ReLU, the slowest
to converge, leaves a thousandth of a unit's variance there."""

REACH = 9.0
NODES = 1_001
"""Expectations over one ĝ are sums over NODES evenly spaced points from −REACH to REACH. For a smooth function this is
exact to rounding; a kink costs 1e-5, since the step is 0.018 (Gauss's own nodes lie ten times as far apart)."""


@dataclass(frozen=True)
class Hidden:
    """The parts of a block: y = out(a(gate(x)) ⊙ up(x)).

    Attributes:
        gate: map from x to the m pre-activations g.
        up: map from x to the factors u of the activations; None in a plain block.
        activation: a, elementwise.
        out: map from the m hidden values to y.
    """

    gate: AffineMap
    up: AffineMap | None
    activation: Callable[[Tensor], Tensor]
    out: AffineMap

    @property
    def neurons(self) -> int:
        """Number of hidden units, m."""
        return len(self.gate.bias)

    def __call__(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_out"]:
        """Apply the block."""
        values = self.activation(self.gate(x))
        if self.up is not None:
            values = values * self.up(x)
        return self.out(values)

    def spread(self, moments: Moments) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Compute mean and standard deviation of the pre-activations from moments of x alone, each of shape (m,)."""
        weight = self.gate.weight
        mean = moments.mean_x @ weight + self.gate.bias
        # Var(g_m) = w_mᵀ Σ w_m; along a null direction rounding may leave it below 0
        variance = ((moments.sxx @ weight) * weight).sum(0) / moments.n
        return mean, variance.clamp_min(0).sqrt()


def hermite(z: Float[Tensor, "*shape"], degree: int) -> list[Float[Tensor, "*shape"]]:
    """Evaluate h_j = He_j / √j! at z, for j = 0 … degree: orthonormal under a standard Gaussian."""
    return [torch.special.hermite_polynomial_he(z, j) / math.factorial(j) ** 0.5 for j in range(degree + 1)]


def predict_spectrum(block: Hidden, moments: Moments, degree: int = 4) -> np.ndarray:
    """Predict R²₁ … R²_degree of the block for Gaussian inputs with these moments; the first is R²_lin.

    Against a million drawn rows, R²_lin is accurate to 1e-3 with GELU, ReLU, SiLU, plain or gated. Null directions of
    the inputs need no care, since nothing is inverted. Moments of the outputs are not used. Time grows as d m² and
    `TERMS` · m².

    Returns:
        R² of the best polynomial of each degree in x, pooled over features, shape (degree,).

    Raises:
        InputError: a degree outside 1 … `TERMS`, or outputs that would be constant.
    """
    if not 1 <= degree <= TERMS:
        raise InputError(f"degree {degree}: ask for 1 to {TERMS}")
    units = _Units.of(block, moments)
    pool = block.out.weight @ block.out.weight.T
    parts = units.variance_by_degree(pool)
    # What lies beyond TERMS, unit by unit as if uncorrelated
    beyond = units.variance - units.own_variance_by_degree().sum(0)
    whole = parts.sum() + beyond @ pool.diagonal()
    if not whole > 0:
        raise InputError("the outputs would be constant: there is no variance to share out")
    return (parts[:degree].cumsum(0) / whole).numpy()


@dataclass(frozen=True)
class _Units:
    """Second-order statistics of the hidden units u a(g), with ĝ the standardised g; in a plain block u = 1.

    A product of Gaussians lowers degree by pairing (Wick 1950): with ũ = u − E[u],
    ũ h_j(ĝ) = :ũ h_j(ĝ): + Cov(u, ĝ) √j h_{j−1}(ĝ). So a unit's part of degree k is

        c_k :ũ h_{k−1}(ĝ): + b_k h_k(ĝ),   c_k = a_{k−1},   b_k = E[u] a_k + Cov(u, ĝ) √(k+1) a_{k+1}.

    Attributes:
        c: c_k for k = 1 … TERMS, shape (TERMS, m).
        b: b_k for the same k, shape (TERMS, m).
        variance: Var(u a(g)), all degrees together, shape (m,).
        gate: Cov(ĝ_i, ĝ_j), shape (m, m); the correlation ρ.
        up: Cov(u_i, u_j), shape (m, m); None in a plain block.
        cross: Cov(u_i, ĝ_j), shape (m, m); None in a plain block.
        up_variance: Cov(u_i, u_i), shape (m,); 0 in a plain block.
        slope: Cov(u_i, ĝ_i), shape (m,); 0 in a plain block.
    """

    c: Float[Tensor, "terms m"]
    b: Float[Tensor, "terms m"]
    variance: Float[Tensor, " m"]
    gate: Float[Tensor, "m m"]
    up: Float[Tensor, "m m"] | None
    cross: Float[Tensor, "m m"] | None
    up_variance: Float[Tensor, " m"]
    slope: Float[Tensor, " m"]

    @classmethod
    def of(cls, block: Hidden, moments: Moments) -> _Units:
        # Second moments of ĝ and u
        mean, deviation = block.spread(moments)
        gate_weight = block.gate.weight / torch.where(deviation > 0, deviation, 1.0)
        seen = moments.sxx @ gate_weight / moments.n
        if block.up is None:
            up, cross = None, None
            up_mean = torch.ones_like(mean)
            up_variance = slope = torch.zeros_like(mean)
        else:
            up = block.up.weight.T @ (moments.sxx @ block.up.weight) / moments.n
            cross = block.up.weight.T @ seen
            up_mean = moments.mean_x @ block.up.weight + block.up.bias
            up_variance, slope = up.diagonal(), cross.diagonal()

        # a_k = E[a(g) h_k(ĝ)] for k = 0 … TERMS + 1
        nodes = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
        weights = (-nodes.square() / 2).exp()
        weights = weights / weights.sum()
        values = block.activation(mean + nodes[:, None] * deviation)
        a = (weights * torch.stack(hermite(nodes, TERMS + 1))) @ values
        root = torch.arange(2, TERMS + 2, dtype=torch.float64).sqrt()[:, None]  # √(k+1)

        # Var(u a) = E[E[u² | ĝ] a²] − E[E[u | ĝ] a]²
        up_given_gate = up_mean + nodes[:, None] * slope
        up_squared_given_gate = up_given_gate.square() + (up_variance - slope.square())
        second = weights @ (up_squared_given_gate * values.square())
        first = weights @ (up_given_gate * values)
        return cls(
            c=a[:TERMS],
            b=up_mean * a[1:-1] + slope * root * a[2:],
            variance=second - first.square(),
            gate=gate_weight.T @ seen,
            up=up,
            cross=cross,
            up_variance=up_variance,
            slope=slope,
        )

    def variance_by_degree(self, pool: Float[Tensor, "m m"]) -> Float[Tensor, " terms"]:
        """Compute ⟨Cov(units), pool⟩ by degree, shape (TERMS,)."""
        parts = torch.zeros(TERMS, dtype=torch.float64)
        # b_i h_k(ĝ_i) and b_j h_k(ĝ_j) have covariance b_i b_j ρ^k
        gates = pool.clone()
        for k, b in enumerate(self.b, 1):
            gates *= self.gate  # pool ∘ ρ^k
            parts[k - 1] += b @ gates @ b
        if self.up is None:
            return parts

        # c_i :ũ_i h_{k−1}(ĝ_i): and b_j h_k(ĝ_j): u_i pairs with one of the k ĝ_j, the other ĝ among themselves
        mixed = pool * self.cross
        # c_i :ũ_i h_{k−1}(ĝ_i): and c_j :ũ_j h_{k−1}(ĝ_j): u_i pairs with u_j …
        ups = pool * self.up
        # … or with one of the k − 1 ĝ_j, and u_j with one of the k − 1 ĝ_i
        crossed = mixed * self.cross.T
        for k, (b, c) in enumerate(zip(self.b, self.c, strict=True), 1):
            parts[k - 1] += 2 * k**0.5 * (c @ mixed @ b) + c @ ups @ c
            mixed *= self.gate  # pool ∘ Cov(u, ĝ) ∘ ρ^k
            ups *= self.gate
            if k > 1:
                parts[k - 1] += (k - 1) * (c @ crossed @ c)
                crossed *= self.gate
        return parts

    def own_variance_by_degree(self) -> Float[Tensor, "terms m"]:
        """Compute each unit's own variance by degree, the case ρ = 1, shape (TERMS, m)."""
        k = torch.arange(1, TERMS + 1, dtype=torch.float64)[:, None]
        of_up = self.up_variance + (k - 1) * self.slope.square()
        return self.b.square() + 2 * k.sqrt() * self.c * self.b * self.slope + self.c.square() * of_up
