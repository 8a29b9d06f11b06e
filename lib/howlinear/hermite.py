"""What Hermite's expansion says a block's degree spectrum is, from its weights and the covariance of its inputs alone.

If x is Gaussian, y splits into uncorrelated parts of degree 0, 1, 2, … (Wiener's chaos), the sum of the first k is the
best polynomial of degree k in x, and the part of one neuron is its activation's own Hermite coefficient times He_k of
its pre-activation. Correlated neurons follow from E[h_j(z) h_k(z')] = δ_jk ρ^k (Mehler 1866; O'Donnell, "Analysis of
Boolean Functions", 11.2). The first part is the best affine map: its slope is the mean slope E[∂y/∂x] (Stein 1981,
"Estimation of the mean of a multivariate normal distribution"). No row is looked at: where the prediction misses, the
inputs are not Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from howlinear.capture import BlockCapture
from howlinear.errors import InputError
from howlinear.hidden import Hidden, hermite
from howlinear.moments import Moments

NODES = 100  # of Gauss–Hermite quadrature: exact for smooth activations
TERMS = 24  # degrees added up for the whole; what lies beyond is counted neuron by neuron, as if uncorrelated


def predicted(block: Hidden, moments: Moments, degree: int = 4) -> np.ndarray:
    """R²₁ … R²_degree of the block if its inputs were Gaussian with these moments, shape (degree,).

    Args:
        block: a block taken apart, see `degrees.hidden`.
        moments: of its inputs.
        degree: the highest, up to `TERMS`.

    Raises:
        InputError: a degree out of range, or outputs that would be constant.
    """
    if not 1 <= degree <= TERMS:
        raise InputError(f"degree {degree}: ask for 1 to {TERMS}")
    pool = block.out.weight @ block.out.weight.T
    mean, deviation = block.spread(moments)
    values, coefficients, nodes, weights = _expanded(block.activation, mean, deviation)
    gate = block.gate.weight / torch.where(deviation > 0, deviation, 1.0)
    inputs = moments.sxx / moments.n
    gg = gate.T @ inputs @ gate
    if block.up is None:
        level, uu, ug = torch.ones_like(mean), torch.zeros_like(gg), torch.zeros_like(gg)
    else:
        level = moments.mean_x @ block.up.weight + block.up.bias
        uu, ug = block.up.weight.T @ inputs @ block.up.weight, block.up.weight.T @ inputs @ gate
    shares, own, powers = [], torch.zeros_like(mean), [torch.zeros_like(gg), torch.ones_like(gg), gg]
    for k in range(1, TERMS + 1):
        part = _covariance(k, coefficients, level, powers, uu, ug)
        shares.append((part * pool).sum())
        own += part.diagonal()
        powers = [*powers[1:], powers[2] * gg]
    slope = ug.diagonal()
    given = level + nodes[:, None] * slope  # E[u | g]
    square = weights @ ((given.square() + uu.diagonal() - slope.square()) * values.square())
    beyond = square - (weights @ (given * values)).square() - own
    whole = sum(shares) + beyond @ pool.diagonal()
    if not whole > 0:
        raise InputError("the outputs would be constant: there is no variance to share out")
    return (torch.stack(shares[:degree]).cumsum(0) / whole).numpy()


def taught(kept: BlockCapture, block: Hidden, power: int) -> tuple[BlockCapture, Hidden]:
    """A pure teacher of one degree, to try methods on: the block's own inputs and weights, but every neuron He_power.

    Returns:
        The capture with the teacher's outputs, and the teacher.
    """
    mean, spread = block.spread(sum(kept.train))
    teacher = replace(block, activation=lambda z: hermite((z - mean.to(z)) / spread.to(z), power)[power], up=None)
    return replace(kept, sample=replace(kept.sample, y=teacher(kept.sample.x.double()).float())), teacher


def _expanded(
    activation: Callable[[Tensor], Tensor], mean: Float[Tensor, " m"], deviation: Float[Tensor, " m"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The activation at the nodes, (nodes, m); its Hermite coefficients E[a h_j], (j, m); nodes and weights."""
    nodes, weights = (torch.from_numpy(part) for part in hermegauss(NODES))
    weights = weights / weights.sum()
    values = activation(mean + nodes[:, None] * deviation)
    return values, torch.stack([(weights * term) @ values for term in hermite(nodes, TERMS + 1)]), nodes, weights


def _covariance(
    k: int,
    coefficients: Float[Tensor, "j m"],
    level: Float[Tensor, " m"],
    powers: list[Tensor],
    uu: Float[Tensor, "m m"],
    ug: Float[Tensor, "m m"],
) -> Float[Tensor, "m m"]:
    """Covariances of the neurons' parts of degree k; `level` is E[u], and `powers` are ρ^(k−2), ρ^(k−1) and ρ^k.

    The part of u a(g) of degree k is (c u h_{k−1}(g) + b h_k(g)), u's own mean taken off and products taken in Wick's
    sense: c = E[a h_{k−1}], and b = E[u] E[a h_k] + Cov(u, g) √(k+1) E[a h_{k+1}].
    """
    before, below, here = powers
    c, b = coefficients[k - 1], level * coefficients[k] + ug.diagonal() * (k + 1) ** 0.5 * coefficients[k + 1]
    found = torch.outer(b, b) * here
    if not uu.any():
        return found
    mixed = torch.outer(c, b) * ug * below * k**0.5
    products = uu * below + (k - 1) * ug * ug.T * before
    return found + mixed + mixed.T + torch.outer(c, c) * products
