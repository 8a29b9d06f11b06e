"""Which of a block's hidden units can go if the others are read out anew: exactly, from one Gram matrix.

A block is y = h V + b with m hidden units h. Keep k of them, K, and read them out by least squares: what is lost is the
part of the others' contribution h_D V_D that no affine map of h_K gives back. All of it follows from the second moments
of h alone, since y is linear in h. Unit by unit (backward elimination, as optimal brain surgeon does for weights;
Hassibi & Stork 1993), with P = S⁻¹ the precision of the units left and β their readout, the price of unit j is ::

    ‖β_j‖²_M / P_jj,    and once it is gone    β ← β − P_·j β_j / P_jj,    P ← P − P_·j P_j· / P_jj.

A readout of a thousand units, fitted to some ten thousand rows, overfits. So every variance gets a ridge, chosen block
by block by fitting on one half of the text and scoring on the other (`choose_ridge`). It draws the new readout towards
the block's own: with K the units that stay and D those that go, the ridge regression of h_D V_D on h_K is added to V_K.

Errors are weighted by what they cost in the loss, in two ways. Directions of y are weighted by M = E[g gᵀ], with g the
gradient of a sequence's loss at the block's output (`loss_gradients`): this decides which units go, not how the others
are read out. Tokens are weighted by w, the mean of ‖g‖² at each position of a sequence over its mean at all positions:
this decides both. First tokens are the sinks that all later ones attend to; in SmolLM2-135M an error there costs up to
sixty times as much in the blocks before the sink is made, and a tenth in those behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy import linalg
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.layerwise import Layerwise
from howlinear.models.units import unit_count, units_hooked
from howlinear.models.work import StreamFiles

RIDGES = (1e-6, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
"""Ridges to choose from, as a share of every unit's variance. The first keeps apart float32 units that are copies of
one another; `choose_ridge` picks the one that suits a block and its number of rows."""

TRIED_SHARE = 2 / 3
"""The share of a block's units that ridges are tried with: what stays if SmolLM2 gives up a fifth of its parameters."""

Halves = tuple[Float[Tensor, "m_and_1 m_and_1"], Float[Tensor, "m_and_1 m_and_1"]]
"""Second moments of a block's units on the two halves of a text."""

PANEL = 64  # units removed before the matrices are updated


@dataclass(frozen=True)
class ErrorCost:
    """What an error at a block's output costs."""

    metric: Float[Tensor, "d d"]  # E[g gᵀ], nats² per squared unit of y
    weight: Float[Tensor, " seq_len"]  # of each position of a sequence, mean 1


@dataclass(frozen=True)
class Elimination:
    """The units of a block in the order in which they can go, the cheapest first.

    Prices are in nats per token if the readout was multiplied by `root_of` the metric.
    """

    order: Int64[Tensor, " m"]
    price: Float[Tensor, " m_and_none"]  # cost of removing none, the first, the first two, … units

    def kept(self, count: int) -> Int64[Tensor, " count"]:
        """The `count` units that stay longest, in the block's own order."""
        return self.order[len(self.order) - count :].sort().values


@dataclass(frozen=True)
class UnitMoments:
    """Weighted second moments of a block's hidden units, and of a 1 for the constant."""

    second: Float[Tensor, "m_and_1 m_and_1"]  # Σ w [h, 1] [h, 1]ᵀ, float64
    ridge: float = RIDGES[0]  # what is added to the variance of every unit, as a share of it

    def covariance(self, centred: bool) -> Float[Tensor, "m m"]:
        """Compute the weighted covariance of the units with the ridge, shape (m, m), about their mean or about 0."""
        return with_ridge(covariance_of(self.second, centred), self.ridge)


def weighted_rows(h: Float[Tensor, "n m"], weight: Float[Tensor, " n"]) -> Float[Tensor, "n m_and_1"]:
    """Build rows √w [h, 1], float64, whose plain moments are the weighted moments and sums of h."""
    root = weight.double().sqrt()[:, None]
    return torch.cat([h.double().cpu() * root, root], 1)


def gram(moments: Moments) -> Float[Tensor, "d d"]:
    """Compute Σ x xᵀ of the inputs, not centred."""
    return moments.sxx + moments.n * torch.outer(moments.mean_x, moments.mean_x)


def gram_with_constant(moments: Moments) -> Float[Tensor, "d_and_1 d_and_1"]:
    """Compute Σ [x, 1] [x, 1]ᵀ of the inputs."""
    rows = torch.cat([gram(moments), moments.n * moments.mean_x[None]])
    total = torch.full_like(moments.mean_x[:1], moments.n)
    return torch.cat([rows, torch.cat([rows[-1], total])[:, None]], 1)


def cross(moments: Moments) -> Float[Tensor, "d_in d_out"]:
    """Compute Σ x yᵀ, not centred."""
    return moments.sxy + moments.n * torch.outer(moments.mean_x, moments.mean_y)


def with_ridge(covariance: Float[Tensor, "m m"], ridge: float) -> Float[Tensor, "m m"]:
    """Add a share of every unit's variance to a covariance."""
    # a readout solved with it stays nearer to the block's own: its change is the ridge regression of the units that go
    # on those that stay
    # a unit that never fires has no variance; with this floor it costs next to nothing and goes first
    variance = covariance.diagonal()
    floor = variance.max().clamp_min(torch.finfo(torch.float64).tiny) * 1e-12
    return covariance + torch.diag(ridge * variance + floor)


def covariance_of(second: Float[Tensor, "m_and_1 m_and_1"], centred: bool) -> Float[Tensor, "m m"]:
    """Compute the weighted covariance of h from Σ w [h, 1] [h, 1]ᵀ, about its mean or about 0."""
    covariance = second[:-1, :-1] / second[-1, -1]
    if not centred:
        return covariance
    mean = mean_of(second)
    return covariance.addr(mean, mean, alpha=-1)


def mean_of(second: Float[Tensor, "m_and_1 m_and_1"]) -> Float[Tensor, " m"]:
    """Compute the weighted mean of h from Σ w [h, 1] [h, 1]ᵀ."""
    return second[-1, :-1] / second[-1, -1]


def ridge_regression(
    second: Float[Tensor, "k_and_1 k_and_1"], towards: Float[Tensor, "k_and_1 d"], ridge: float, centred: bool
) -> Float[Tensor, "k_and_1 d"]:
    """Solve for the B that minimises E‖r − [h, 1] B‖² plus a ridge on the rows of h; `towards` is E [h, 1] rᵀ."""
    # without a constant, both are taken about 0
    mean_h, mean_r = second[-1, :-1] * centred, towards[-1] * centred
    factor = torch.linalg.cholesky(with_ridge(covariance_of(second, centred), ridge))
    slope = torch.cholesky_solve(towards[:-1].addr(mean_h, mean_r, alpha=-1), factor)
    return torch.cat([slope, (mean_r - mean_h @ slope)[None]])


def costs_beyond(
    seconds: Sequence[Float[Tensor, "k_and_1 k_and_1"]],
    towards: Sequence[Float[Tensor, "k_and_1 d"]],
    ridges: Sequence[float],
    centred: bool,
) -> Float[Tensor, " ridges"]:
    """Compute what B costs on the half of a text that it is not fitted on, with each ridge, summed over both halves.

    That is E‖r − [h, 1] B‖² less E‖r‖²; arguments are those of `ridge_regression`, for each half.
    """
    costs = torch.zeros(len(ridges), dtype=torch.float64, device="cpu")
    for fitted, other in ((0, 1), (1, 0)):
        for place, ridge in enumerate(ridges):
            added = ridge_regression(seconds[fitted], towards[fitted], ridge, centred)
            costs[place] += ((seconds[other] @ added - 2 * towards[other]) * added).sum()
    return costs


def position_weights(squares: Float[Tensor, " seq_len"]) -> Float[Tensor, " seq_len"]:
    """Weight positions by the means over 0, 1, 2 to 3, 4 to 7, …, divided by the mean of all."""
    # The gradient of a single token is too noisy a weight; its mean over similar positions is not. The first position
    # is a sink, and early ones are read by many.
    seq_len = len(squares)
    # the last position predicts nothing: it counts like the one before it
    squares = torch.cat([squares[:-1], squares[-2:-1]])
    means = torch.empty(seq_len, dtype=torch.float64, device="cpu")
    start, end = 0, 1
    while start < seq_len:
        means[start:end] = squares[start:end].mean()
        start, end = end, 2 * end
    if not means.any():
        return torch.ones(seq_len, dtype=torch.float64, device="cpu")
    return means / means.mean()


def halves_of(ids: Int64[Tensor, "n seq_len"], batch_size: int) -> tuple[list[Int64[Tensor, "_ seq_len"]], list[int]]:
    """Batch a text's first and second half, so that few documents are in both; also return which half each is in."""
    batches = [half.split(batch_size) if len(half) else () for half in ids.tensor_split(2)]
    half_of = [0] * len(batches[0]) + [1] * len(batches[1])
    return [*batches[0], *batches[1]], half_of


@torch.no_grad()
def unit_grams(
    model: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    weights: Mapping[int, Float[Tensor, " seq_len"]],
    batch_size: int,
    work: Path | None,
) -> Iterator[tuple[Site, Halves]]:
    """Yield Σ w [h, 1] [h, 1]ᵀ of both halves of a text, block after block, as all of it passes a layer."""
    batches, half_of = halves_of(ids, batch_size)
    text = Layerwise(model, batches)
    kept = StreamFiles(work)
    if kept.passed():
        text.resume(max(kept.passed()), kept)
    # of a model on disk, a block's weights are in memory until the next block is requested: by then the block is done
    for site in sites(model, list(weights)):
        while text.passed < site.block:
            text.advance()
        with text.layer():
            yield site, _next_grams(text, site, weights[site.block], half_of)
        kept.replace(text.passed, text.streams)


def _next_grams(text: Layerwise, site: Site, weight: Float[Tensor, " seq_len"], half_of: list[int]) -> Halves:
    """Move a text through the next layer, and compute these matrices for its block."""
    moments = [Moments(unit_count(text.model, site) + 1) for _ in range(2)]
    begun: list[int] = []

    def keep(_: Site, h: Tensor) -> None:
        rows = h.flatten(0, -2).cpu()
        moments[half_of[begun[-1]]].update(weighted_rows(rows, weight.repeat(len(rows) // len(weight))))

    with units_hooked(text.model, [site], keep):
        text.advance(begun.append)
    return gram(moments[0]), gram(moments[1])


def choose_ridge(halves: Halves, readout: AffineMap, metric: Float[Tensor, "d d"], centred: bool) -> float:
    """Choose the ridge with which a readout fitted on one half of the text costs least on the other, and vice versa."""
    if not all(half[-1, -1] > 0 for half in halves):
        return RIDGES[0]
    # Ridges are tried with the loudest units: those of the largest variance times squared readout, a choice that needs
    # no regression. The whole text has twice the rows of a half, so it takes half of the ridge.
    weight = readout.weight @ root_of(metric)
    loudness = covariance_of(sum(halves), centred).diagonal() * weight.square().sum(1)
    by_loudness = loudness.argsort(descending=True)
    kept, gone = by_loudness.tensor_split([round(TRIED_SHARE * len(loudness))])
    stay = torch.cat([kept, torch.tensor([len(weight)], device="cpu")])  # and the constant
    moments = [half / half[-1, -1] for half in halves]
    seconds = [second[stay][:, stay] for second in moments]
    # what the units that go contribute is to be had from those that stay
    towards = [second[stay][:, gone] @ weight[gone] for second in moments]
    best = int(costs_beyond(seconds, towards, RIDGES, centred).argmin())
    return RIDGES[best] / 2 if best else RIDGES[0]


def eliminate(covariance: Float[Tensor, "m m"], readout: Float[Tensor, "m d"]) -> Elimination:
    """Remove units one by one, each time the cheapest, with the others read out anew: exact backward elimination."""
    precision = linalg.cho_solve(linalg.cho_factor(covariance.numpy()), np.eye(len(covariance)))
    order, prices = sweep_units(precision, readout.numpy().copy())
    total = np.concatenate([[0.0], np.maximum(prices, 0).cumsum()])
    return Elimination(torch.tensor(order, device="cpu"), torch.tensor(total, device="cpu"))


def sweep_units(matrix: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sweep P and rows β by one unit after the other, of the least ‖β_j‖² / P_jj; return units and these ratios."""
    # A rank-one change of P and β for every unit would move both through memory each time. So changes are collected, as
    # P − L Lᵀ and β − L W, and only the row needed next is brought up to date, until there are `PANEL` of them.
    units = np.arange(len(matrix))
    order = []
    ratios = []
    while len(units):
        steps = min(PANEL, len(units))
        columns = np.zeros((len(units), steps))  # L
        changes = np.zeros((steps, rows.shape[1]))  # W
        squares = np.square(rows).sum(1)  # ‖β_i‖² of every unit, kept up to date
        diagonal = matrix.diagonal().copy()  # P_ii, likewise
        left = np.ones(len(units), dtype=bool)
        for step in range(steps):
            places = np.flatnonzero(left)
            ratio = squares[places] / diagonal[places]
            picked = ratio.argmin()
            j = places[picked]
            order.append(units[j])
            ratios.append(ratio[picked])
            # l = P_·j / √P_jj and w = β_j / √P_jj, as they are after the steps so far
            so_far = columns[j, :step]
            root = np.sqrt(diagonal[j])
            column = (matrix[j] - columns[:, :step] @ so_far) / root
            row = (rows[j] - so_far @ changes[:step]) / root
            # ‖β_i − l_i w‖² = ‖β_i‖² − 2 l_i β_i·w + l_i² ‖w‖²
            along = rows @ row - columns[:, :step] @ (changes[:step] @ row)
            squares += np.square(column) * (row @ row) - 2 * column * along
            diagonal -= np.square(column)
            left[j] = False
            columns[:, step] = column
            changes[step] = row
        matrix = (matrix - columns @ columns.T)[np.ix_(left, left)]
        rows = (rows - columns @ changes)[left]
        units = units[left]
    return np.array(order), np.array(ratios)


def root_of(metric: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """Compute a root of half the metric: the squared length of y times this root is in nats."""
    values, vectors = torch.linalg.eigh(metric / 2)
    return vectors * values.clamp_min(0).sqrt()


def refit(moments: UnitMoments, readout: AffineMap, kept: Int64[Tensor, " k"], centred: bool) -> AffineMap:
    """Fit the readout of the `kept` units to the output of all units, by least squares."""
    covariance = moments.covariance(centred)
    towards = covariance[kept] @ readout.weight
    factor = torch.linalg.cholesky(covariance[kept][:, kept])
    weight = torch.cholesky_solve(towards, factor)
    bias = readout.bias
    if centred:
        # the mean output stays what it was
        mean = mean_of(moments.second)
        bias = bias + mean @ readout.weight - mean[kept] @ weight
    return AffineMap(weight, bias)
