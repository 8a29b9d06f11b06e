"""Of what degree is a block? A spectrum R²₁ ≤ R²₂ ≤ R²₃ ≤ R²₄ from the block's own neurons.

"Higher-order or distributed" is what arXiv 2606.19379 leaves open about the part of a block that no line explains. A
block is y = Vᵀ a(z) + b with pre-activations z affine in x (SwiGLU: Vᵀ (u ⊙ a(g))). Put in the place of a(z) the
polynomial of degree k that is nearest to it, neuron by neuron, and the output is a polynomial of degree k in x. So
least squares on x and on such outputs is a *lower bound* on what any polynomial of that degree reaches. It costs as
many features as x has, per degree, at any width.

Per-neuron polynomials are written in Hermite's, He_j of the standardised pre-activation, which for a Gaussian are
uncorrelated (O'Donnell, "Analysis of Boolean Functions", chapter 11). With `free`, every neuron's polynomial is a
feature of its own: a tighter bound, for more features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.capture import BlockCapture
from howlinear.ceilings import AffineMap, whitening
from howlinear.errors import InputError
from howlinear.hidden import Hidden, hermite
from howlinear.nested import CHUNK, RIDGE, Nested, folds_of, nested, rows_of

FIT_ROWS = 4_096  # for each neuron's polynomials, a few numbers each; spread evenly over the train rows


@dataclass(frozen=True)
class Features:
    """x ↦ (x without its null directions, what degree 2 adds, what degree 3 adds, …).

    Attributes:
        centre: input means, shape (d_in,).
        whiten: to the directions of x that vary, shape (d_in, rank).
        gate: x to standardised pre-activations.
        up: as in `Hidden`.
        adds: per degree from 2, coefficients in Hermite's polynomials of what it adds, shape (degree − 1, j, m).
        out: weights of the layer out, shape (m, d_out), which pool the neurons; None if each is a feature.
        order: neurons, the loudest in what degrees from 2 add first, shape (m,).
    """

    centre: Float[Tensor, " d_in"]
    whiten: Float[Tensor, "d_in rank"]
    gate: AffineMap
    up: AffineMap | None
    adds: Float[Tensor, "degrees j m"]
    out: Float[Tensor, "m d_out"] | None
    order: Tensor

    @property
    def sizes(self) -> list[int]:
        """How many features there are up to degree 1, 2 and so on."""
        each = len(self.order) if self.out is None else self.out.shape[1]
        return [self.whiten.shape[1] + each * k for k in range(len(self.adds) + 1)]

    def __call__(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n p"]:
        """The features of some rows, in their dtype."""
        parts = [(x - self.centre.to(x)) @ self.whiten.to(x)]
        terms = hermite(self.gate(x), self.adds.shape[1] - 1)
        if self.up is not None:
            terms = [term * self.up(x) for term in terms]
        for coefficients in self.adds.to(x):
            added = sum(row * term for row, term in zip(coefficients, terms, strict=True))
            parts.append(added[:, self.order] if self.out is None else added @ self.out.to(x))
        return torch.cat(parts, 1)


def features(kept: BlockCapture, block: Hidden, degree: int = 4, free: bool = False) -> Features:
    """Find each neuron's nearest polynomials on the train rows, and the features they make.

    Args:
        kept: a captured block with a sample.
        block: the same block taken apart.
        degree: the highest.
        free: every neuron a feature of its own, instead of all pooled by the layer out.

    Raises:
        InputError: no sample, or a degree below 2.
    """
    if degree < 2:
        raise InputError(f"degree {degree}: neurons add to the line from degree 2 on")
    sample, moments = rows_of(kept), sum(kept.train)
    mean, deviation = block.spread(moments)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    gate = AffineMap(block.gate.weight / deviation, (block.gate.bias - mean) / deviation)
    count = degree + 1 if block.up is None else degree  # u ⊙ He_j(g) has degree j + 1
    gram, cross = 0.0, 0.0
    train = torch.cat(folds_of(sample, test=False))
    for index in train[:: -(-len(train) // FIT_ROWS)].split(CHUNK):
        x = sample.x[index]
        up = 1.0 if block.up is None else block.up(x)
        terms = torch.stack([term * up for term in hermite(gate(x), count - 1)]).permute(2, 0, 1)
        target = (block.activation(block.gate(x)) * up).T.to(terms)
        gram = gram + (terms @ terms.mT).double()
        cross = cross + (terms @ target[..., None]).double()
    gram.diagonal(dim1=1, dim2=2).add_(1e-9 * gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True) + 1e-30)
    fits = []
    for used in range(count - degree + 1, count + 1):  # degree 1, 2, …, and 0 for what is not yet used
        fit = torch.linalg.solve(gram[:, :used, :used], cross[:, :used])[..., 0]
        fits.append(torch.nn.functional.pad(fit, (0, count - used)))
    adds = torch.stack(fits).diff(dim=0)
    loud = torch.einsum("kmi,mij,kmj->m", adds, gram, adds) * block.out.weight.square().sum(1)
    return Features(
        centre=moments.mean_x,
        whiten=whitening(moments),
        gate=gate,
        up=block.up,
        adds=adds.mT.contiguous(),
        out=None if free else block.out.weight,
        order=loud.argsort(descending=True, stable=True),
    )


def degrees(kept: BlockCapture, block: Hidden, degree: int = 4, free: bool = False, ridge: float = RIDGE) -> Nested:
    """The degree spectrum of a block: held-out R² of the line, and with neurons of degree 2, 3, … added.

    The first entry is R²_lin on the sampled rows. The intervals take the neurons' polynomials, a few numbers each, as
    given.

    Args:
        kept: a captured block whose sample holds all rows.
        block: the same block taken apart.
        degree: the highest.
        free: see `features`.
        ridge: see `nested`.
    """
    found = features(kept, block, degree, free)
    return nested(kept, found, found.sizes, ridge)


def loudest(kept: BlockCapture, block: Hidden, counts: Sequence[int], ridge: float = RIDGE) -> Nested:
    """The line with the degree-2 parts of the r loudest neurons, each weighed anew, for several r.

    Each is one product of two inputs and one vector out, as is each of a rank-r bilinear probe's: the best probe of
    that rank reaches at least as far.

    Args:
        kept: a captured block whose sample holds all rows.
        block: the same block taken apart.
        counts: numbers of neurons, ascending; 0 is the line.
        ridge: see `nested`.
    """
    found = features(kept, block, degree=2, free=True)
    return nested(kept, found, [found.sizes[0] + count for count in counts], ridge)
