"""Other inputs for the same weights: another model's, normal ones, standardised ones.

A referee of arXiv 2606.19379 asked whether a profile comes from a block's weights or from what the block is fed. Here
rows of one model are dressed in another's mean and covariance, or drawn from the normal distribution that has both.
For a plain two-layer block on normal inputs everything is known without a fit: Stein (1981, "Estimation of the mean
of a multivariate normal distribution") gives the map, Mehler's expansion (1866) the variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from howlinear.capture import BlockCapture
from howlinear.ceilings import AffineMap, spectrum
from howlinear.controls import recovered, respond
from howlinear.errors import InputError
from howlinear.moments import Moments

DEGREES = 16
"""Terms of the expansion between two hidden units; each unit's own variance is exact."""
_NODES = 100  # Gauss–Hermite


@dataclass(frozen=True)
class Colour:
    """Mean and covariance of rows, factorised: x = mean + (white coordinates) · `root`.

    Attributes:
        mean: shape (d,).
        vectors: eigenvectors of the correlation matrix without null directions, shape (d, rank).
        unroot: whitens centred rows, shape (d, rank).
        root: the way back, shape (rank, d).
    """

    mean: Float[Tensor, " d"]
    vectors: Float[Tensor, "d rank"]
    unroot: Float[Tensor, "d rank"]
    root: Float[Tensor, "rank d"]

    @classmethod
    def of(cls, moments: Moments) -> Colour:
        """The colour of the rows in `moments`; `InputError` if no input varies."""
        scale, values, vectors = spectrum(moments)
        spread = (values / moments.n).sqrt()
        width = torch.where(scale > 0, 1 / scale, 0)
        return cls(moments.mean_x, vectors, scale[:, None] * vectors / spread, spread[:, None] * vectors.T * width)

    def white(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n rank"]:
        """Rows of this colour to rows of mean 0 and covariance 1, float64."""
        return (x.double() - self.mean) @ self.unroot


def recoloured(
    x: Float[Tensor, "n d"], source: Colour, target: Colour, turn: int | None = None
) -> Float[Tensor, "n d"]:
    """Rows of one colour in another: whitened, then given the target's mean and covariance.

    Covariances say nothing of how white rows are to be turned. By default they are turned as little as the two sets of
    null directions allow (the polar factor; without null directions, not at all), in coordinates scaled to unit
    variance. Null directions of the target stay null; where the source has fewer directions, some of the target's stay
    empty.

    Args:
        x: rows, shape (n, d).
        source: their colour.
        target: the colour to give them.
        turn: a seed to turn white rows at random first: then no direction keeps its meaning, only the shape stays.

    Raises:
        InputError: widths differ.
    """
    width, other = len(source.mean), len(target.mean)
    if not x.shape[1] == width == other:
        raise InputError(f"rows of width {x.shape[1]} from a model of {width} to one of {other}: widths must agree")
    turned = source.vectors.T
    if turn is not None:
        generator = torch.Generator().manual_seed(turn)
        turned = turned @ torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
    left, _, right = torch.linalg.svd(turned @ target.vectors, full_matrices=False)
    return (target.mean + source.white(x) @ (left @ (right @ target.root))).to(x.dtype)


def transplants(
    kept: Sequence[BlockCapture], ffns: Sequence[nn.Module], all_three: bool = True
) -> Float[np.ndarray, "shapes colours weights"]:
    """R²_lin of one block of several models on one another's rows.

    Args:
        kept: each model's rows at this block.
        ffns: each model's FFN there.
        all_three: False: only where weights and colour are of one model (what the referee asked for); the rest is NaN.

    Returns:
        R² on held-out rows, by whose rows, whose mean and covariance, and whose weights.

    Raises:
        InputError: no rows were sampled, a block for each is not there, or widths differ.
    """
    samples = [block.sample for block in kept if block.sample is not None]
    if not len(samples) == len(kept) == len(ffns):
        raise InputError(f"{len(samples)} samples of {len(kept)} blocks for {len(ffns)} FFNs: give each model's")
    colours = [Colour.of(sum(block.train)) for block in kept]
    r2 = np.full([len(samples)] * 3, np.nan)
    for i, sample in enumerate(samples):
        for j, target in enumerate(colours):
            x = recoloured(sample.x, colours[i], target)
            for k in range(len(ffns)) if all_three else [j]:
                r2[i, j, k] = recovered(x, respond(ffns[k], x), sample, intervals=False).r2
    return r2


def gaussian(colour: Colour, n: int, seed: int = 0) -> Float[Tensor, "n d"]:
    """Normal rows of a colour: its mean, its covariance and nothing else, shape (n, d), float32."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(n, len(colour.mean), generator=generator, dtype=torch.float64)
    return (colour.mean + white @ (colour.vectors @ colour.root)).float()


def standardised(x: Float[Tensor, "n d"], moments: Moments) -> Float[Tensor, "n d"]:
    """Rows with every feature at mean 0 and variance 1 (constant ones at 0), by the train rows' moments."""
    scale, _, _ = spectrum(moments)
    return ((x.double() - moments.mean_x) * scale * moments.n**0.5).to(x.dtype)


@dataclass(frozen=True)
class Plain:
    """A block y = φ(x A + a) C + c.

    Attributes:
        inner: A, shape (d_in, hidden), float64; `shift` is a, shape (hidden,).
        outer: C, shape (hidden, d_out), float64; `offset` is c, shape (d_out,).
        activation: φ.
    """

    inner: Float[Tensor, "d_in hidden"]
    shift: Float[Tensor, " hidden"]
    outer: Float[Tensor, "hidden d_out"]
    offset: Float[Tensor, " d_out"]
    activation: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, ffn: nn.Module) -> Plain:
        """Read it off a module.

        Raises:
            InputError: not two layers with an activation `act` between them; a gated block is not.
        """
        layers = [layer for layer in ffn.modules() if isinstance(layer, nn.Linear | Conv1D)]
        if len(layers) != 2 or not hasattr(ffn, "act"):
            raise InputError(
                f"{type(ffn).__name__} is no plain block: {len(layers)} layers, where the closed form needs two and "
                "an activation between them; fit it on normal rows instead"
            )
        parts: list[Tensor] = []
        for layer in layers:
            weight = layer.weight.detach().double()
            parts.append(weight.T if isinstance(layer, nn.Linear) else weight)
            parts.append(weight.new_zeros(parts[-1].shape[1]) if layer.bias is None else layer.bias.detach().double())
        return cls(*parts, activation=ffn.act)


@dataclass(frozen=True)
class Stein:
    """A plain block on normal inputs, in closed form.

    Attributes:
        map: the best affine map: W = Σ⁻¹ cov(x, y) = E[∂y/∂x] = A diag(E φ'(z)) C.
        explained: tr(Wᵀ Σ W), variance of a row.
        total: variance of a row of y, summed over features.
        degrees: share of that variance of each degree of polynomial in x, shape (`DEGREES`,); the first is R²_lin.
    """

    map: AffineMap
    explained: float
    total: float
    degrees: Float[Tensor, " degrees"]

    @property
    def r2(self) -> float:
        """R²_lin with endless rows."""
        return self.explained / self.total


def stein(ffn: nn.Module, moments: Moments) -> Stein:
    """R²_lin of a plain block on normal inputs with the mean and covariance of `moments`, without rows.

    With z = xA + a normal, mean m and standard deviations s: cov(φ(zᵢ), φ(zⱼ)) = Σ_k cᵢₖ cⱼₖ ρᵢⱼᵏ over k ≥ 1, where
    cᵢₖ = E[φ(mᵢ + sᵢ t) hₖ(t)] for normalised Hermite polynomials hₖ and t standard normal.

    Raises:
        InputError: the block is not plain, or its width is not that of the moments.
    """
    block = Plain.of(ffn)
    if len(block.inner) != moments.d_in:
        raise InputError(f"moments of width {moments.d_in} for a block of width {len(block.inner)}: widths must agree")
    covariance = moments.sxx / moments.n
    hidden = block.inner.T @ covariance @ block.inner
    mean, spread = moments.mean_x @ block.inner + block.shift, hidden.diagonal().clamp_min(1e-30).sqrt()
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(_NODES))
    weights = weights / weights.sum()
    z = (mean[:, None] + spread[:, None] * nodes).requires_grad_()
    with torch.enable_grad():
        bent = block.activation(z)
        (slope,) = torch.autograd.grad(bent.sum(), z)
    bent = bent.detach()
    weight = block.inner @ ((slope @ weights)[:, None] * block.outer)
    level = bent @ weights
    affine = AffineMap(weight, level @ block.outer + block.offset - moments.mean_x @ weight)
    parts = _by_degree((bent * weights) @ _hermite(nodes).T, hidden / spread / spread[:, None], block.outer)
    own = ((bent - level[:, None]).square() @ weights) @ block.outer.square().sum(1)
    total = own + parts[1].sum()
    explained = float((weight * (covariance @ weight)).sum())
    return Stein(affine, explained, float(total), parts.sum(0) / total)


def _hermite(nodes: Float[Tensor, " nodes"]) -> Float[Tensor, "degrees nodes"]:
    """Normalised Hermite polynomials of degree 1 to `DEGREES` at the nodes."""
    found = [torch.ones_like(nodes), nodes]
    for k in range(1, DEGREES):
        found.append((nodes * found[k] - k**0.5 * found[k - 1]) / (k + 1) ** 0.5)
    return torch.stack(found[1:])


def _by_degree(
    coefficients: Float[Tensor, "hidden degrees"], rho: Float[Tensor, "hidden hidden"], outer: Float[Tensor, "hidden d"]
) -> Float[Tensor, "2 degrees"]:
    """Output variance per degree: from units alone, and from pairs of different units."""
    gram = outer @ outer.T
    own = coefficients.square().T @ gram.diagonal()
    gram.fill_diagonal_(0)
    pairs = []
    for column in coefficients.T:
        gram *= rho
        pairs.append(column @ gram @ column)
    return torch.stack([own, torch.stack(pairs)])
