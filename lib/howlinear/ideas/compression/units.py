"""Which of a block's hidden units can go, if the others are read out anew: exact, from one Gram matrix.

A block is y = h V + b with m hidden units h. Keep k of them, K, and read them out by least squares: what is lost is the
part of the others' contribution h_D V_D that no affine map of h_K gives back. All of it follows from the second moments
of h alone, since y is linear in h. Unit by unit (backward elimination, as optimal brain surgeon does for weights;
Hassibi & Stork 1993), with P = S⁻¹ the precision of the units left and β their readout, the price of unit j is ::

    ‖β_j‖²_M / P_jj,    and once it is gone    β ← β − P_·j β_j / P_jj,    P ← P − P_·j P_j· / P_jj.

A readout of a thousand units is fitted to some ten thousand rows, and knows some of them by heart. So every variance
gets a ridge, chosen block by block on one half of the text for the other (`chosen_ridge`). It draws the new readout
towards the block's own: with K the units that stay and D those that go, the ridge regression of h_D V_D on h_K is added
to V_K.

Errors are weighed by what they cost in the loss, twice. Among directions of y, by M = E[g gᵀ], with g the gradient of
a sequence's loss at the block's output (`price`): that decides which units go, not how the others are read out. Among
tokens, by w, the mean of ‖g‖² at each position of a sequence over its mean at all: that decides both. First tokens are
the sinks that all later ones attend to; in SmolLM2-135M an error there costs up to sixty times as much in the blocks
before the sink is made, and a tenth in those behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy import linalg
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import add_gram
from howlinear.errors import InputError
from howlinear.ideas.compression.loss_gradients import loss_gradients
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.forward import trunk
from howlinear.models.units import unit_count, units_hooked

RIDGES = (1e-6, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
"""What may be added to the variance of every unit, as a share of it. The first keeps apart float32 units that are
copies of one another; which of them suits a block and the rows there are is told by `chosen_ridge`."""

TRIED_SHARE = 2 / 3
"""Of a block's units, those that ridges are tried with: as many as stay where SmolLM2 gives up a fifth of its own."""

PANEL = 64  # units that go before the matrices are brought up to date


@dataclass(frozen=True)
class Stakes:
    """What an error at a block's output costs.

    Attributes:
        metric: E[g gᵀ], shape (d, d); nats² per squared unit of y.
        weight: of each position of a sequence, shape (seq_len,), mean 1.
    """

    metric: Float[Tensor, "d d"]
    weight: Float[Tensor, " seq_len"]


@dataclass(frozen=True)
class Elimination:
    """The units of a block in the order in which they can go.

    Attributes:
        order: units, the cheapest first, shape (m,).
        price: what it costs that the first, the first two, … are gone, shape (m + 1,), from 0; in nats per token if the
            readout was given in the roots of nats.
    """

    order: Int64[Tensor, " m"]
    price: Float[Tensor, " m_and_none"]

    def kept(self, count: int) -> Int64[Tensor, " count"]:
        """The `count` units that stay longest, in the block's own order."""
        return self.order[len(self.order) - count :].sort().values


class UnitMoments:
    """Weighted second moments of a block's hidden units, and of a 1 for the constant.

    Attributes:
        halves: Σ w [h, 1] [h, 1]ᵀ, shape (m + 1, m + 1), float64: of either half of the text, or of all of it.
        rows: how many rows there were.
        ridge: what is added to the variance of every unit, as a share of it: one number, or one for each.
    """

    def __init__(self, units: int, halves: int = 1):
        """Start from no rows, with the least ridge; in two halves if a ridge is to be chosen (`chosen_ridge`)."""
        self.halves = [torch.zeros(units + 1, units + 1, dtype=torch.float64) for _ in range(halves)]
        self.rows = 0
        self.ridge = RIDGES[0]

    def update(self, h: Float[Tensor, "n m"], weight: Float[Tensor, " n"], half: int = 0) -> None:
        """Add rows, each with its weight, to the first half or to all (0), or to the second half (1).

        Raises:
            InputError: a row that is not finite.
        """
        root = weight.double().sqrt()[:, None]
        weighted = torch.cat([h.double().cpu() * root, root], 1)
        if not weighted.isfinite().all():
            raise InputError(f"NaN or infinity among {len(h)} rows of hidden units")
        add_gram(self.halves[half], weighted)
        self.rows += len(h)

    def join(self) -> None:
        """Keep the sum of the halves alone, which takes half the memory; it is all that is asked for later."""
        self.halves = [self.second]

    @property
    def second(self) -> Float[Tensor, "m_and_1 m_and_1"]:
        """Σ w [h, 1] [h, 1]ᵀ of all rows."""
        first, *others = self.halves
        return first + others[0] if others else first

    @property
    def mean(self) -> Float[Tensor, " m"]:
        """Weighted mean of the units, shape (m,)."""
        second = self.second
        return second[-1, :-1] / second[-1, -1]

    def covariance(self, centred: bool = True) -> Float[Tensor, "m m"]:
        """Weighted covariance of the units with the ridge, shape (m, m); not centred where there is no constant."""
        return with_ridge(covariance_of(self.second, centred), self.ridge)


def with_ridge(covariance: Float[Tensor, "m m"], ridge: float | Float[Tensor, " m"]) -> Float[Tensor, "m m"]:
    """A covariance with a share of every unit's variance added to it, of all units the same or each its own.

    A readout solved by it keeps nearer to the block's own: its change is what ridge regression makes of the units that
    go, from those that stay.
    """
    # a unit that never fires has no variance; as the others' smallest numbers it costs nothing and goes first
    variance = covariance.diagonal()
    floor = variance.max().clamp_min(torch.finfo(torch.float64).tiny) * 1e-12
    return covariance + torch.diag(ridge * variance + floor)


def covariance_of(second: Float[Tensor, "m_and_1 m_and_1"], centred: bool) -> Float[Tensor, "m m"]:
    """Of Σ w [h, 1] [h, 1]ᵀ, the weighted covariance of h, about its mean or about 0."""
    covariance = second[:-1, :-1] / second[-1, -1]
    if not centred:
        return covariance
    mean = second[-1, :-1] / second[-1, -1]
    return covariance.addr(mean, mean, alpha=-1)


def stakes(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], blocks: list[int], batch_size: int = 4
) -> dict[int, Stakes]:
    """What errors cost, by one forward and one backward pass.

    Args:
        model: the model; left as it was.
        ids: token ids, shape (n, seq_len).
        blocks: which blocks.
        batch_size: sequences in a pass.

    Raises:
        InputError: nothing to predict, or gradients that are not finite.
    """
    width = width_of(model)
    metric = {block: torch.zeros(width, width, dtype=torch.float64) for block in blocks}  # Σ g gᵀ
    squares = {block: torch.zeros(ids.shape[1], dtype=torch.float64) for block in blocks}  # Σ ‖g‖², by position

    def add(block: int, _: Tensor, __: Tensor, g: Tensor) -> None:
        add_gram(metric[block], g.flatten(0, 1).contiguous())
        squares[block] += g.square().sum((0, 2))

    predicted = loss_gradients(model, ids, blocks, add, batch_size)
    return {block: Stakes(metric[block] / predicted, smoothed(squares[block])) for block in blocks}


def smoothed(squares: Float[Tensor, " seq_len"]) -> Float[Tensor, " seq_len"]:
    """Weights of positions: means over 0, 1, 2 to 3, 4 to 7, …, over the mean of all.

    A token's own gradient is too noisy a weight, and what positions have in common is not: the first is a sink, early
    ones are read by many.
    """
    seq_len = len(squares)
    # the last position predicts nothing: it counts like the one before it
    squares = torch.cat([squares[:-1], squares[-2:-1]])
    means = torch.empty(seq_len, dtype=torch.float64)
    start, end = 0, 1
    while start < seq_len:
        means[start:end] = squares[start:end].mean()
        start, end = end, 2 * end
    if not means.any():
        return torch.ones(seq_len, dtype=torch.float64)
    return means / means.mean()


@torch.no_grad()
def unit_moments(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], weights: dict[int, Float[Tensor, " seq_len"]]
) -> dict[int, UnitMoments]:
    """Moments of the hidden units of blocks, by one forward pass without the head.

    Args:
        model: the model; left as it was.
        ids: token ids, shape (n, seq_len).
        weights: block → weight of each position, shape (seq_len,).

    Raises:
        InputError: a family whose hidden units cannot be reached, or activations that are not finite.
    """
    listened = sites(model, list(weights))
    gathered = {site.block: UnitMoments(unit_count(model, site), halves=2) for site in listened}
    halves = ids.tensor_split(2)  # first and second half of the text, so that few documents are in both

    for half, of_half in enumerate(halves):

        def keep(site: Site, h: Tensor, half: int = half) -> None:
            rows = h.flatten(0, -2)
            gathered[site.block].update(rows, weights[site.block].repeat(len(rows) // ids.shape[1]), half)

        with units_hooked(model, listened, keep):
            for batch in of_half.split(8):
                trunk(model, batch)
    return gathered


def chosen_ridge(moments: UnitMoments, readout: AffineMap, metric: Float[Tensor, "d d"], centred: bool) -> float:
    """The ridge by which a readout fitted on one half of the text costs least on the other, and the other way round.

    It is tried where the loudest units stay, `TRIED_SHARE` of all: those of the largest variance times readout, a
    choice that needs no regression. All rows are twice as many as those of a half, and take half of its ridge.

    Args:
        moments: of the units, in two halves.
        readout: the block's own.
        metric: M, what errors cost.
        centred: whether the new readout has a constant.

    Returns:
        One of `RIDGES`, halved, or the least of them where a half has no rows.

    Raises:
        InputError: the moments are not in halves.
    """
    if len(moments.halves) != 2:
        raise InputError("a ridge is chosen by two halves of the text: gather the moments with halves=2")
    if not all(half[-1, -1] > 0 for half in moments.halves):
        return RIDGES[0]
    weight = readout.weight @ root_of(metric)
    own_covariance = covariance_of(moments.second, centred)
    loudness = own_covariance.diagonal() * weight.square().sum(1)
    by_loudness = loudness.argsort(descending=True)
    count = round(TRIED_SHARE * len(loudness))
    stay, go = by_loudness[:count], by_loudness[count:]

    costs = torch.zeros(len(RIDGES), dtype=torch.float64)
    for fitted, judged in (moments.halves, reversed(moments.halves)):
        covariance = covariance_of(fitted, centred)
        # second moments of the other half about the mean of this one: a constant is fitted here as well
        beyond = covariance_of(judged, centred=False)
        if centred:
            mean = fitted[-1, :-1] / fitted[-1, -1]
            shift = judged[-1, :-1] / judged[-1, -1] - mean
            beyond = covariance_of(judged, centred=True).addr(shift, shift)
        towards = covariance[stay][:, go] @ weight[go]
        for place, ridge in enumerate(RIDGES):
            factor = torch.linalg.cholesky(with_ridge(covariance, ridge)[stay][:, stay])
            # what is left of h V: the units that go, less what the others take over of them
            left = torch.empty_like(weight)
            left[go] = weight[go]
            left[stay] = -torch.cholesky_solve(towards, factor)
            costs[place] += ((beyond @ left) * left).sum()
    best = int(costs.argmin())
    return RIDGES[best] / 2 if best else RIDGES[0]


def eliminate(covariance: Float[Tensor, "m m"], readout: Float[Tensor, "m d"], panel: int = PANEL) -> Elimination:
    """Take units away one after the other, each time the one that costs least, the others read out anew.

    Exact (backward elimination).

    Args:
        covariance: S of the units, positive definite, shape (m, m).
        readout: β, shape (m, d), times a root of the metric where errors are weighed by one.
        panel: units that go before P and β are brought up to date.

    Raises:
        InputError: a covariance that is not positive definite.
    """
    m = len(covariance)
    try:
        factor = linalg.cho_factor(covariance.numpy())
    except linalg.LinAlgError as error:
        raise _not_positive_definite(m) from error
    precision = linalg.cho_solve(factor, np.eye(m))
    order, prices = _one_by_one(precision, readout.numpy().copy(), panel, np.argmin)
    total = np.concatenate([[0.0], np.maximum(prices, 0).cumsum()])
    return Elimination(torch.tensor(order), torch.tensor(total))


def select(covariance: Float[Tensor, "m m"], readout: Float[Tensor, "m d"], panel: int = PANEL) -> Elimination:
    """Take units in one after the other, each time the one that explains most of what is left to explain.

    Forward selection (orthogonal least squares; Chen, Billings & Luo 1989), greedy from the other end: with S for P and
    C = S β, the units' covariance with the output, for β, its steps are those of `eliminate`. Arguments as there.

    Returns:
        The units in the order in which they go, the last one taken in first.
    """
    cross = covariance @ readout
    taken, gains = _one_by_one(covariance.numpy().copy(), cross.numpy(), panel, np.argmax)
    total = np.concatenate([[0.0], np.maximum(gains[::-1], 0).cumsum()])
    return Elimination(torch.tensor(taken[::-1].copy()), torch.tensor(total))


def in_order(
    covariance: Float[Tensor, "m m"], readout: Float[Tensor, "m d"], order: Int64[Tensor, " m"]
) -> Elimination:
    """What it costs to take units away in a given order, the others read out anew each time.

    With the units that go first put last, S = L Lᵀ, and the error without the last t of them is the sum of the squares
    of the last t rows of Lᵀ β: those of L that stand for what the units before them do not explain.

    Args:
        covariance: S of the units, positive definite, shape (m, m).
        readout: β, shape (m, d), times a root of the metric where errors are weighed by one.
        order: units, the first to go first, shape (m,).

    Raises:
        InputError: a covariance that is not positive definite.
    """
    last_first = order.flip(0)
    try:
        factor = linalg.cholesky(covariance[last_first][:, last_first].numpy(), lower=True)
    except linalg.LinAlgError as error:
        raise _not_positive_definite(len(covariance)) from error
    squares = np.square(factor.T @ readout[last_first].numpy()).sum(1)
    return Elimination(order, torch.tensor(np.concatenate([[0.0], squares[::-1].cumsum()])))


def _not_positive_definite(m: int) -> InputError:
    return InputError(f"the covariance of {m} units is not positive definite: give more rows")


def _one_by_one(
    matrix: np.ndarray, rows: np.ndarray, panel: int, pick: Callable[[np.ndarray], np.intp]
) -> tuple[np.ndarray, np.ndarray]:
    """Sweep a symmetric matrix P, and rows β beside it, by one unit after the other, chosen by ‖β_j‖² / P_jj.

    A rank-one change of P and β a unit would move all of both through memory; so changes are collected, P − L Lᵀ and
    β − L W, and only the one row that is asked for is brought up to date, until a panel of them is full.

    Args:
        matrix: P, shape (m, m).
        rows: β, shape (m, d).
        panel: units that are swept before P and β are brought up to date.
        pick: the place of the unit among those left, by their ‖β_j‖² / P_jj.

    Returns:
        The units in their order and each one's ‖β_j‖² / P_jj when its turn came, both of shape (m,).
    """
    units = np.arange(len(matrix))
    order = []
    ratios = []
    while len(units):
        steps = min(panel, len(units))
        columns = np.zeros((len(units), steps))  # L
        changes = np.zeros((steps, rows.shape[1]))  # W
        squares = np.square(rows).sum(1)  # ‖β_i‖² of every unit, kept up to date
        diagonal = matrix.diagonal().copy()  # P_ii, likewise
        left = np.ones(len(units), dtype=bool)
        for step in range(steps):
            places = np.flatnonzero(left)
            ratio = squares[places] / diagonal[places]
            picked = pick(ratio)
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


def priced(moments: UnitMoments, readout: AffineMap, metric: Float[Tensor, "d d"], centred: bool) -> Elimination:
    """The elimination of a block's units in nats per token: ½ tr(M E[w r rᵀ]) for the errors r that are left.

    Args:
        moments: of the units.
        readout: the block's own.
        metric: M, what errors cost.
        centred: whether the new readout has a constant.
    """
    return eliminate(moments.covariance(centred), readout.weight @ root_of(metric))


def root_of(metric: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """A root of half the metric: y times it has a square in nats."""
    values, vectors = torch.linalg.eigh(metric / 2)
    return vectors * values.clamp_min(0).sqrt()


def refit(moments: UnitMoments, readout: AffineMap, kept: Int64[Tensor, " k"], centred: bool) -> AffineMap:
    """The least-squares readout of some units, towards what all of them gave.

    Args:
        moments: of all units.
        readout: the block's own, y = h V + b.
        kept: the units that stay, shape (k,).
        centred: whether the new readout has a constant; without one its bias is the block's own.
    """
    covariance = moments.covariance(centred)
    towards = covariance[kept] @ readout.weight
    factor = torch.linalg.cholesky(covariance[kept][:, kept])
    weight = torch.cholesky_solve(towards, factor)
    bias = readout.bias
    if centred:
        # the mean output stays what it was
        bias = bias + moments.mean @ readout.weight - moments.mean[kept] @ weight
    return AffineMap(weight, bias)
