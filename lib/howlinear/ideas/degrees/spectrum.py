"""The polynomial degree of a block: a spectrum R²₁ ≤ R²₂ ≤ R²₃ ≤ R²₄ from the block's own neurons.

arXiv 2606.19379 leaves open whether the part of a block that no line explains is "higher-order or distributed". A block
is y = Vᵀ a(z) + b with pre-activations z affine in x (SwiGLU: Vᵀ (u ⊙ a(g))). If a(z) is replaced, neuron by neuron, by
the nearest polynomial of degree k, the output is a polynomial of degree k in x. So least squares on x and on such
outputs is a *lower bound* on what any polynomial of that degree reaches. Each degree adds as many features as x has, at
any width.

Per-neuron polynomials are expanded in Hermite polynomials He_j of the standardised pre-activation, which for a Gaussian
are uncorrelated (O'Donnell, "Analysis of Boolean Functions", chapter 11). With `free`, every neuron's polynomial is a
feature of its own: a tighter bound, for more features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from howlinear.core.ceilings import AffineMap, whitening
from howlinear.core.gaussian import Hidden, hermite
from howlinear.errors import InputError
from howlinear.ideas.degrees.nested import CHUNK, nested
from howlinear.instrument.capture import BlockCapture

FIT_ROWS = 4_096  # for each neuron's polynomials, a few numbers each; spread evenly over the train rows
JITTER = 1e-9  # on each neuron's normal equations, relative to their mean diagonal: a dead neuron's are singular


@dataclass(frozen=True)
class Features:
    """x ↦ (x without its null directions, what degree 2 adds, what degree 3 adds, …)."""

    centre: Float[Tensor, " d_in"]  # means of the inputs
    whiten: Float[Tensor, "d_in rank"]  # to the directions of x that vary
    gate: AffineMap  # x to standardised pre-activations
    up: AffineMap | None  # as in `Hidden`
    adds: Float[Tensor, "degrees j m"]  # per degree from 2, what it adds: coefficients in Hermite's polynomials
    out: Float[Tensor, "m d_out"] | None  # weights of the layer out, which pool the neurons; None if each is a feature
    order: Int64[Tensor, " m"]  # neurons, by how loud their terms of degree 2 and above are, loudest first

    @property
    def sizes(self) -> list[int]:
        """Numbers of features up to degree 1, 2 and so on."""
        per_degree = len(self.order) if self.out is None else self.out.shape[1]
        return [self.whiten.shape[1] + per_degree * k for k in range(len(self.adds) + 1)]

    def __call__(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n p"]:
        """The features of some rows, in their dtype."""
        centred = x - self.centre.to(x)
        parts = [centred @ self.whiten.to(x)]
        terms = _terms(self.gate, self.up, x, self.adds.shape[1])
        for coefficients in self.adds.to(x):
            # q_k − q_{k−1} of every neuron, then each by itself or all pooled as the block does
            added = sum(row * term for row, term in zip(coefficients, terms, strict=True))
            out = added[:, self.order] if self.out is None else added @ self.out.to(x)
            parts.append(out)
        return torch.cat(parts, 1)


def features(captured: BlockCapture, block: Hidden, degree: int = 4, free: bool = False) -> Features:
    """Find each neuron's nearest polynomials on the train rows, and the features they make."""
    if degree < 2:
        raise InputError(f"degree {degree}: neurons add to the line from degree 2 on")
    sample = captured.rows_in_folds()
    moments = sum(captured.train)
    mean, deviation = block.spread(moments)
    deviation = torch.where(deviation > 0, deviation, 1.0)  # a pre-activation that never moves stays at 0
    gate = AffineMap(block.gate.weight / deviation, (block.gate.bias - mean) / deviation)
    count = degree + 1 if block.up is None else degree  # terms of a neuron: u ⊙ He_j(g) has degree j + 1
    train = torch.cat(sample.folds(test=False))
    every = math.ceil(len(train) / FIT_ROWS)
    fitted = sample.x[train[::every]]
    gram, cross = _normal_equations(block, gate, fitted, count)

    # The nearest polynomial of degree k, neuron by neuron: least squares on its first terms
    fewest = count - degree + 1  # terms of degree 1 and below
    fits = []
    for used in range(fewest, count + 1):
        leading = gram[:, :used, :used]
        fit = torch.linalg.solve(leading, cross[:, :used])[..., 0]
        fits.append(torch.nn.functional.pad(fit, (0, count - used)))
    adds = torch.stack(fits).diff(dim=0)  # q_k − q_{k−1}, shape (degree − 1, m, j)

    # Loudness: Σ over rows and degrees of what a neuron adds, squared, times the squared length of its way out
    added = torch.einsum("kmi,mij,kmj->m", adds, gram, adds)
    loudness = added * block.out.weight.square().sum(1)
    return Features(
        centre=moments.mean_x,
        whiten=whitening(moments),
        gate=gate,
        up=block.up,
        adds=adds.mT.contiguous(),
        out=None if free else block.out.weight,
        order=loudness.argsort(descending=True, stable=True),
    )


def degrees(captured: BlockCapture, block: Hidden, degree: int = 4) -> pd.DataFrame:
    """Compute the degree spectrum of a block, a row per degree: R² of the line, then with degrees 2, 3, … added."""
    polynomials = features(captured, block, degree)  # a few numbers for each neuron; intervals take them as given
    return nested(captured, polynomials, polynomials.sizes)


def loudest(captured: BlockCapture, block: Hidden, counts: Sequence[int]) -> pd.DataFrame:
    """Fit the line and the degree-2 parts of the r loudest neurons, each with a weight of its own, for several r."""
    # Each part is a product of two inputs times one output vector, as is each term of a rank-r bilinear probe. So the
    # best probe of that rank reaches at least the same R².
    squares = features(captured, block, degree=2, free=True)
    line = squares.sizes[0]
    return nested(captured, squares, [line + count for count in counts])


def plant_teacher(captured: BlockCapture, block: Hidden, power: int) -> tuple[BlockCapture, Hidden]:
    """Plant a teacher of one degree: the block's own weights, but every neuron He_power; return its rows and itself."""
    mean, deviation = block.spread(sum(captured.train))

    def bend(z: Tensor) -> Tensor:
        standardised = (z - mean.to(z)) / deviation.to(z)
        return hermite(standardised, power)[power]

    teacher = replace(block, activation=bend, up=None)
    outputs = teacher(captured.sample.x.double()).float()
    sample = replace(captured.sample, y=outputs)
    return replace(captured, sample=sample), teacher


def _terms(gate: AffineMap, up: AffineMap | None, x: Float[Tensor, "n d_in"], count: int) -> list[Float[Tensor, "n m"]]:
    """He_0 … He_{count − 1} of standardised pre-activations, times u in SwiGLU."""
    terms = hermite(gate(x), count - 1)
    if up is None:
        return terms
    multiplier = up(x)
    return [term * multiplier for term in terms]


def _normal_equations(
    block: Hidden, gate: AffineMap, x: Float[Tensor, "n d_in"], count: int
) -> tuple[Float[Tensor, "m j j"], Float[Tensor, "m j 1"]]:
    """Each neuron's Σ t tᵀ and Σ t a, with t its terms and a its value; float64, summed over chunks."""
    neurons = block.neurons
    gram = torch.zeros(neurons, count, count, dtype=torch.float64)
    cross = torch.zeros(neurons, count, 1, dtype=torch.float64)
    for part in x.split(CHUNK):
        values = block.activation(block.gate(part))
        if block.up is not None:
            values = values * block.up(part)
        terms = torch.stack(_terms(gate, block.up, part, count)).permute(2, 0, 1)  # (m, j, n)
        values = values.T.to(terms)[..., None]  # (m, n, 1)
        gram += (terms @ terms.mT).double()
        cross += (terms @ values).double()
    diagonal = gram.diagonal(dim1=1, dim2=2)
    jitter = JITTER * diagonal.mean(1, keepdim=True)
    diagonal.add_(jitter + 1e-30)
    return gram, cross
