"""What Hermite's expansion says a block's degree spectrum is, from its weights and the covariance of its inputs alone.

If x is Gaussian, y splits into uncorrelated parts of degree 0, 1, 2, … (Wiener's chaos), the sum of the first k is the
best polynomial of degree k in x, and the part of one neuron is its activation's own Hermite coefficient times He_k of
its pre-activation. Correlated neurons follow from E[h_j(z) h_k(z')] = δ_jk ρ^k (Mehler 1866; O'Donnell, "Analysis of
Boolean Functions", 11.2). The first part is the best affine map: its slope is the mean slope E[∂y/∂x] (Stein 1981,
"Estimation of the mean of a multivariate normal distribution"). No row is looked at: where the prediction misses, the
inputs are not Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.degrees.neurons import Hidden
from howlinear.instrument.capture import BlockCapture

NODES = 100  # of Gauss–Hermite quadrature: exact for smooth activations
TERMS = 24  # degrees added up for the whole; what lies beyond is counted neuron by neuron, as if uncorrelated


def hermite(z: Float[Tensor, "*shape"], degree: int) -> list[Float[Tensor, "*shape"]]:
    """h_j = He_j / √j! for j = 0 … degree: orthonormal under a standard Gaussian."""
    return [torch.special.hermite_polynomial_he(z, j) / math.factorial(j) ** 0.5 for j in range(degree + 1)]


def predict_spectrum(block: Hidden, moments: Moments, degree: int = 4) -> np.ndarray:
    """R²₁ … R²_degree of the block if its inputs were Gaussian with these moments, shape (degree,)."""
    if not 1 <= degree <= TERMS:
        raise InputError(f"degree {degree}: ask for 1 to {TERMS}")
    expansion = _expand(block, moments)
    covariances = _covariances(block, moments)
    # Cov(y) = Vᵀ Cov(neurons) V, and its trace is ⟨Cov(neurons), V Vᵀ⟩
    pool = block.out.weight @ block.out.weight.T
    parts = []  # of Σ Var(y), by degree
    own = torch.zeros_like(covariances.up_mean)  # of each neuron's variance, what degrees up to TERMS explain
    # ρ^(k−2), ρ^(k−1) and ρ^k; at k = 1 the first is multiplied by 0
    before = torch.zeros_like(covariances.gate)
    below = torch.ones_like(covariances.gate)
    here = covariances.gate
    for k in range(1, TERMS + 1):
        covariance = _part_covariance(k, expansion.coefficients, covariances, (before, below, here))
        parts.append((covariance * pool).sum())
        own += covariance.diagonal()
        before, below, here = below, here, here * covariances.gate
    # What lies beyond TERMS, neuron by neuron as if uncorrelated
    beyond = _neuron_variance(expansion, covariances) - own
    whole = sum(parts) + beyond @ pool.diagonal()
    if not whole > 0:
        raise InputError("the outputs would be constant: there is no variance to share out")
    explained = torch.stack(parts[:degree]).cumsum(0)
    return (explained / whole).numpy()


def plant_teacher(captured: BlockCapture, block: Hidden, power: int) -> tuple[BlockCapture, Hidden]:
    """A pure teacher of one degree, to try methods on: the block's own inputs and weights, but every neuron He_power.

    Returns:
        The capture with the teacher's outputs, and the teacher.
    """
    mean, deviation = block.spread(sum(captured.train))

    def bend(z: Tensor) -> Tensor:
        standardised = (z - mean.to(z)) / deviation.to(z)
        return hermite(standardised, power)[power]

    teacher = replace(block, activation=bend, up=None)
    outputs = teacher(captured.sample.x.double()).float()
    sample = replace(captured.sample, y=outputs)
    return replace(captured, sample=sample), teacher


@dataclass(frozen=True)
class _Expansion:
    """Each neuron's activation at the nodes of Gauss–Hermite quadrature, and in Hermite's polynomials.

    Attributes:
        nodes: shape (nodes,).
        weights: of the nodes, sum 1, shape (nodes,).
        values: a(mean + node · deviation), shape (nodes, m).
        coefficients: E[a h_j] for j = 0 … TERMS + 1, shape (j, m).
    """

    nodes: Float[Tensor, " nodes"]
    weights: Float[Tensor, " nodes"]
    values: Float[Tensor, "nodes m"]
    coefficients: Float[Tensor, "j m"]


def _expand(block: Hidden, moments: Moments) -> _Expansion:
    mean, deviation = block.spread(moments)
    nodes, weights = (torch.from_numpy(part) for part in hermegauss(NODES))
    weights = weights / weights.sum()
    values = block.activation(mean + nodes[:, None] * deviation)
    # E[a h_j] = Σ over nodes of weight · h_j · a
    coefficients = [(weights * term) @ values for term in hermite(nodes, TERMS + 1)]
    return _Expansion(nodes, weights, values, torch.stack(coefficients))


@dataclass(frozen=True)
class _Covariances:
    """Second moments of what the neurons see: standardised pre-activations g and, in SwiGLU, their multipliers u.

    Attributes:
        up_mean: E[u], shape (m,); 1 in a plain block.
        gate: Cov(g_m, g_n), shape (m, m); the correlation ρ.
        up: Cov(u_m, u_n), shape (m, m); 0 in a plain block.
        cross: Cov(u_m, g_n), shape (m, m); 0 in a plain block.
    """

    up_mean: Float[Tensor, " m"]
    gate: Float[Tensor, "m m"]
    up: Float[Tensor, "m m"]
    cross: Float[Tensor, "m m"]


def _covariances(block: Hidden, moments: Moments) -> _Covariances:
    _, deviation = block.spread(moments)
    gate = block.gate.weight / torch.where(deviation > 0, deviation, 1.0)
    inputs = moments.sxx / moments.n
    gate_cov = gate.T @ inputs @ gate
    if block.up is None:
        nothing = torch.zeros_like(gate_cov)
        return _Covariances(torch.ones_like(deviation), gate_cov, nothing, nothing)
    up = block.up.weight
    return _Covariances(
        up_mean=moments.mean_x @ up + block.up.bias,
        gate=gate_cov,
        up=up.T @ inputs @ up,
        cross=up.T @ inputs @ gate,
    )


def _part_covariance(
    k: int,
    coefficients: Float[Tensor, "j m"],
    covariances: _Covariances,
    powers: tuple[Float[Tensor, "m m"], Float[Tensor, "m m"], Float[Tensor, "m m"]],
) -> Float[Tensor, "m m"]:
    """Covariances of the neurons' parts of degree k; `powers` are ρ^(k−2), ρ^(k−1) and ρ^k.

    With ũ = u − E[u] and a = Σ a_j h_j, a product of Gaussians lowers degree by pairing (Wick):
    ũ h_j(g) = :ũ h_j(g): + Cov(u, g) √j h_{j−1}(g). So the part of u a(g) of degree k is

        c :ũ h_{k−1}(g): + b h_k(g),   c = a_{k−1},   b = E[u] a_k + Cov(u, g) √(k+1) a_{k+1}.
    """
    before, below, here = powers
    own_cross = covariances.cross.diagonal()  # Cov(u_m, g_m)
    c = coefficients[k - 1]
    b = covariances.up_mean * coefficients[k] + own_cross * (k + 1) ** 0.5 * coefficients[k + 1]
    # Cov of b_m h_k(g_m) and b_n h_k(g_n): ρ^k
    gate_parts = torch.outer(b, b) * here
    if not covariances.up.any():
        return gate_parts
    # Cov of c_m :ũ_m h_{k−1}(g_m): and b_n h_k(g_n): u_m pairs with one of the k g_n, the others among themselves
    mixed_parts = torch.outer(c, b) * k**0.5 * covariances.cross * below
    # Cov of c_m :ũ_m h_{k−1}(g_m): and c_n :ũ_n h_{k−1}(g_n):, first with u_m and u_n paired …
    pairings = covariances.up * below
    # … then u_m with a g_n, and u_n with a g_m
    pairings = pairings + (k - 1) * covariances.cross * covariances.cross.T * before
    up_parts = torch.outer(c, c) * pairings
    return gate_parts + mixed_parts + mixed_parts.T + up_parts


def _neuron_variance(expansion: _Expansion, covariances: _Covariances) -> Float[Tensor, " m"]:
    """Var(u a(g)) of each neuron, all degrees together, by quadrature over g, shape (m,)."""
    slope = covariances.cross.diagonal()
    up_given_gate = covariances.up_mean + expansion.nodes[:, None] * slope  # E[u | g]
    up_left = covariances.up.diagonal() - slope.square()  # Var(u | g)
    # Var(u a) = E[E[u² | g] a²] − E[E[u | g] a]²
    up_square_given_gate = up_given_gate.square() + up_left
    second = expansion.weights @ (up_square_given_gate * expansion.values.square())
    first = expansion.weights @ (up_given_gate * expansion.values)
    return second - first.square()
