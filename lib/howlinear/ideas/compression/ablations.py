"""What each part of own units buys: the same compressor with one part exchanged, to the same size.

Own units takes hidden units away one by one, by what is lost in the metric of the loss once the others are read out
anew, with a ridge, from moments of the whole model (`allocate`); at last it anchors the readouts (`own_units`). What
comes before it is what others exchange a part of, since an anchor for each would take most of the time (`ABLATIONS`).

Where units go by other prices, a block's are scaled so that all of it costs what it does by own units' (measured by a
swap a block): what differs is the choice within blocks, and how a price grows, not what a block is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from scipy import linalg
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.ideas.compression.allocate import (
    Thinned,
    allocate_budget,
    allocate_units,
    budget_for,
    costs_of,
    eliminations_of,
    has_constant,
    size_options,
    thinned,
)
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.own_units import anchor, before_anchor, own_units
from howlinear.ideas.compression.race import Compressor, check_known
from howlinear.ideas.compression.units import (
    RIDGES,
    Elimination,
    UnitMoments,
    covariance_of,
    eliminate,
    gram,
    mean_of,
    root_of,
    sweep_units,
    unit_moments,
    with_ridge,
)
from howlinear.models.ffn_sites import Site, device_of, sites, width_of
from howlinear.models.replace import copy_of
from howlinear.models.replace import replace as replace_blocks
from howlinear.models.swap import swap
from howlinear.models.units import readout, with_units, write


def by_scores(calibration: Calibration, share: float) -> PreTrainedModel:
    """The units of the largest variance times readout stay, in the metric of the loss, and are read out anew."""

    def order_by_scores(covariance: Float[Tensor, "m m"], weight: Float[Tensor, "m d"]) -> Elimination:
        scores = covariance.diagonal() * weight.square().sum(1)
        return in_order(covariance, weight, scores.argsort())

    return _exchanged(calibration, share, choose=order_by_scores)


def forwards(calibration: Calibration, share: float) -> PreTrainedModel:
    """The units that forward selection takes in first stay."""
    return _exchanged(calibration, share, choose=select)


def plain_squares(calibration: Calibration, share: float) -> PreTrainedModel:
    """Exact elimination where an error in any direction, at any position, counts alike."""
    model = calibration.model
    _, own = eliminations_of(calibration)
    every_position = torch.ones(calibration.ids.shape[1], dtype=torch.float64)
    unweighted = unit_moments(model, calibration.ids, dict.fromkeys(own, every_position))
    moments = {block: UnitMoments(gram(unweighted[block]), of_block.ridge) for block, of_block in own.items()}
    every_direction = torch.eye(width_of(model), dtype=torch.float64)
    return _exchanged(calibration, share, moments=moments, metrics=dict.fromkeys(own, every_direction))


def no_ridge(calibration: Calibration, share: float) -> PreTrainedModel:
    """Own units chosen and read out by plain least squares."""
    _, own = eliminations_of(calibration)
    moments = {block: replace(of_block, ridge=RIDGES[0]) for block, of_block in own.items()}
    return _exchanged(calibration, share, moments=moments)


def with_lines(calibration: Calibration, share: float) -> PreTrainedModel:
    """A line of a block's input stands beside fewer units where that is priced lower."""
    model = calibration.model
    chosen = sites(model)
    eliminations, moments = eliminations_of(calibration)
    joint = joint_moments(calibration)
    metrics = metrics_of(calibration)
    options = {}
    for site in chosen:
        block = site.block
        options[block] = options_beside(model, site, eliminations[block], joint[block], metrics[block])
    places = allocate_budget(options, budget_for(model, chosen, share))
    modules = {}
    for site in chosen:
        block = site.block
        option = options[block].iloc[places[block]]
        kept = eliminations[block].kept(int(option["units"]))
        rank = int(option["rank"])
        if rank:
            modules[block] = beside_line(model, site, kept, joint[block], metrics[block], rank)
        else:
            modules[block] = thinned(model, site, kept, moments[block])
    # the copy is taken while the smaller blocks stand in the model, so that those that go are not copied
    with swap(model, modules):
        return copy_of(model).to(model.dtype)


def with_lines_anchored(calibration: Calibration, share: float) -> PreTrainedModel:
    """`with_lines`, anchored towards the residual stream."""
    smaller = with_lines(calibration, share)
    anchor(calibration, _blocks_of(smaller))
    return smaller


def on_own_outputs(calibration: Calibration, share: float) -> PreTrainedModel:
    """Own units anchored towards each block's own output in the whole model, and not towards the residual stream."""
    smaller = before_anchor(calibration, share)
    anchor(calibration, _blocks_of(smaller), own_outputs=True)
    return smaller


def _blocks_of(model: PreTrainedModel) -> dict[int, nn.Module]:
    return {site.block: site.output for site in sites(model)}


ABLATIONS: dict[str, Callable[[Calibration, float], PreTrainedModel]] = {
    "own units before the anchor": before_anchor,
    "as many in every block": partial(before_anchor, alike=True),
    "by scores of single units": by_scores,
    "by forward selection": forwards,
    "by plain squares": plain_squares,
    "without a ridge": no_ridge,
    "with lines beside units": with_lines,
    "anchored on own outputs": on_own_outputs,
    "anchored on the stream": own_units,
    "with lines, anchored on the stream": with_lines_anchored,
}
"""Name → compressor; the first is the one whose parts the others exchange."""


def ablations(calibration: Calibration, names: Sequence[str] | None = None) -> dict[str, Compressor]:
    """Own units before the anchor, and variants of it, ready to race on one model and one text."""
    own, *variants = ABLATIONS
    names = variants if names is None else names
    check_known(names, variants, "part of own units")
    return {name: partial(ABLATIONS[name], calibration) for name in [own, *names]}


# --- Other choices of units


def _exchanged(
    calibration: Calibration,
    share: float,
    choose: Callable[[Float[Tensor, "m m"], Float[Tensor, "m d"]], Elimination] = eliminate,
    moments: Mapping[int, UnitMoments] | None = None,
    metrics: Mapping[int, Float[Tensor, "d d"]] | None = None,
) -> PreTrainedModel:
    """Own units before the anchor, chosen by something else, by other moments, or in other metrics."""
    model = calibration.model
    own, own_moments = eliminations_of(calibration)
    moments = moments or own_moments
    metrics = metrics or metrics_of(calibration)
    eliminations = {}
    for site in sites(model):
        block = site.block
        covariance = moments[block].covariance(has_constant(model, site))
        weight = readout(model, site).weight @ root_of(metrics[block])
        eliminations[block] = scaled_to(choose(covariance, weight), own[block])
    counts = allocate_units(model, eliminations, share)
    return replace_blocks(model, Thinned(model, eliminations, moments, counts))


def metrics_of(calibration: Calibration) -> dict[int, Float[Tensor, "d d"]]:
    """Block → the metric of the loss at its output."""
    return {block: cost.metric for block, cost in costs_of(calibration).items()}


def scaled_to(found: Elimination, own: Elimination) -> Elimination:
    """An elimination whose last price, of a block without units, is that of another."""
    total = float(found.price[-1])
    factor = float(own.price[-1]) / total if total > 0 else 1.0
    return replace(found, price=found.price * factor)


# --- Other orders of the units


def select(covariance: Float[Tensor, "m m"], readout: Float[Tensor, "m d"]) -> Elimination:
    """Take units in one after the other, each time the one that explains most of what is left to explain.

    Forward selection (orthogonal least squares; Chen, Billings & Luo 1989), greedy from the other end: with S for P and
    C = S β, the units' covariance with the output, for β, its steps are those of `eliminate`.

    Returns:
        The units in the order in which they go, the last one taken in first.
    """
    cross = covariance @ readout
    taken, gains = sweep_units(covariance.numpy().copy(), cross.numpy(), np.argmax)
    total = np.concatenate([[0.0], np.maximum(gains[::-1], 0).cumsum()])
    return Elimination(torch.tensor(taken[::-1].copy()), torch.tensor(total))


def in_order(
    covariance: Float[Tensor, "m m"], readout: Float[Tensor, "m d"], order: Int64[Tensor, " m"]
) -> Elimination:
    """What it costs to take units away in a given order, the others read out anew each time.

    With the units that go first put last, S = L Lᵀ, and the error without the last t of them is the sum of the squares
    of the last t rows of Lᵀ β: those of L that stand for what the units before them do not explain.
    """
    last_first = order.flip(0)
    factor = linalg.cholesky(covariance[last_first][:, last_first].numpy(), lower=True)
    squares = np.square(factor.T @ readout[last_first].numpy()).sum(1)
    return Elimination(order, torch.tensor(np.concatenate([[0.0], squares[::-1].cumsum()])))


# --- Lines beside units
#
# A line beside a block's own hidden units, of any rank: y ≈ R h_K + B A x + c, all of it in closed form.
#
# Sparse transcoders with a skip are trained to this form (Paulo et al. 2025, "Transcoders beat sparse autoencoders for
# interpretability", arXiv 2501.18823). Here K are the units that stay longest of own units' elimination (`units`). The
# best line of rank r beside them is reduced-rank regression (Izenman 1975) on what the units do not say: with x' the
# part of the input x that no affine map of h_K gives, t' that of the output, and S the covariances, the singular values
# of ::
#
#     S_x'x'^(-1/2) S_x't' M^(1/2)
#
# are, squared, what each direction of the line takes off the price in the metric M of the loss. A direction holds 2 d
# numbers, where a unit of a gated block holds 3 d, and of any other 2 d; a line of full rank holds d², however many
# directions it has. How many units and directions each block gets is one question for all blocks together (`allocate`).

BETWEEN = 6
"""Of the numbers of units that a block may keep, every which one a line is tried beside."""

RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Ranks that a line is tried with, besides the full one."""


@once
def joint_moments(calibration: Calibration) -> dict[int, tuple[Float[Tensor, "both both"], Float[Tensor, " both"]]]:
    """Block → covariance and mean of its hidden units and its inputs together, the units first.

    Own units' ridge is on all of both: a line is fitted to the same rows, and knows some of them by heart as well.
    """
    model = calibration.model
    _, moments = eliminations_of(calibration)
    weights = {block: cost.weight for block, cost in costs_of(calibration).items()}
    of_both = unit_moments(model, calibration.ids, weights, with_inputs=True)
    found = {}
    for site in sites(model):
        second = gram(of_both.pop(site.block))  # Σ w [h, x, 1] [h, x, 1]ᵀ
        covariance = covariance_of(second, has_constant(model, site))
        found[site.block] = (with_ridge(covariance, moments[site.block].ridge), mean_of(second))
    return found


def options_beside(
    model: PreTrainedModel,
    site: Site,
    own: Elimination,
    joint: tuple[Float[Tensor, "both both"], Float[Tensor, " both"]],
    metric: Float[Tensor, "d d"],
) -> pd.DataFrame:
    """The ways that a block can go: so many units, and a line of so many directions beside them.

    Returns:
        A row a way: `units`, the line's `rank` (0: no line), the block's `parameters`, and their `price`.
    """
    alone = size_options(model, site, own.price.numpy()).assign(rank=0)
    covariance, _ = joint
    weight = readout(model, site).weight @ root_of(metric)
    units = len(weight)
    # own units' prices are scaled to what a swap measured: without any unit the block would cost tr(βᵀ S β)
    unscaled = float((covariance[:units, :units] @ weight * weight).sum())
    factor = float(own.price[-1]) / unscaled if unscaled > 0 else 1.0

    tried = alone.iloc[::BETWEEN]
    gains = {count: gains_of_directions(covariance, weight, own.kept(count)) for count in tried["units"]}
    tables = [alone]
    width = width_of(model)
    for rank in [*(rank for rank in RANKS if rank < width), width]:
        saved = [factor * float(gains[count][:rank].sum()) for count in tried["units"]]
        parameters = tried["parameters"] + line_size(width, weight.shape[1], rank)
        price = (tried["price"] - saved).clip(lower=0)
        tables.append(tried.assign(rank=rank, parameters=parameters, price=price))
    return pd.concat(tables, ignore_index=True)


def line_size(inputs: int, outputs: int, rank: int) -> int:
    """How many parameters a line has, as two matrices or one; its constant is in the units' readout, if anywhere."""
    return min(rank * (inputs + outputs), inputs * outputs)


def gains_of_directions(
    covariance: Float[Tensor, "both both"], weight: Float[Tensor, "m d"], kept: Int64[Tensor, " k"]
) -> Float[Tensor, " directions"]:
    """What each direction of a line beside some units takes off the price, falling, as squares of `weight`'s scale."""
    _, _, whitened = unsaid(covariance, weight, kept)
    return torch.linalg.eigvalsh(whitened.T @ whitened).flip(0).clamp_min(0)


def unsaid(
    covariance: Float[Tensor, "both both"], weight: Float[Tensor, "m d"], kept: Int64[Tensor, " k"]
) -> tuple[Float[Tensor, "k d_in"], Float[Tensor, "d_in d_in"], Float[Tensor, "d_in d"]]:
    """What some units do not say of a block's inputs and output.

    Returns:
        The map by which the units say what they do of the inputs, S_KK⁻¹ S_Kx; with x' and t' what they leave, the root
        R of S_x'x' = R Rᵀ; and R⁻¹ S_x't'.
    """
    units = len(weight)
    of_units = torch.linalg.cholesky(covariance[kept][:, kept])
    from_units = torch.cholesky_solve(covariance[kept][:, units:], of_units)
    with_output = covariance[:, :units] @ weight
    inputs_left = covariance[units:, units:] - covariance[units:, kept] @ from_units
    cross_left = with_output[units:] - from_units.T @ with_output[kept]
    root = torch.linalg.cholesky(inputs_left)
    return from_units, root, torch.linalg.solve_triangular(root, cross_left, upper=False)


def beside_line(
    model: PreTrainedModel,
    site: Site,
    kept: Int64[Tensor, " k"],
    joint: tuple[Float[Tensor, "both both"], Float[Tensor, " both"]],
    metric: Float[Tensor, "d d"],
    rank: int,
) -> nn.Module:
    """A block with some of its units and a line beside them, both fitted together."""
    own = readout(model, site)
    units = len(own.weight)
    covariance, mean = joint
    from_units, root, whitened = unsaid(covariance, own.weight, kept)
    leading = torch.linalg.svd(whitened @ root_of(metric), full_matrices=False).U[:, :rank]
    down = torch.linalg.solve_triangular(root.T, leading, upper=True)  # A
    up = leading.T @ whitened  # B

    # S_KK⁻¹ (S_Kh β − S_Kx A B)
    with_output = covariance[kept][:, :units] @ own.weight
    weight = torch.linalg.solve(covariance[kept][:, kept], with_output) - from_units @ down @ up
    bias = own.bias
    if has_constant(model, site):
        # the mean output stays what it was
        bias = bias + mean[:units] @ own.weight - mean[kept] @ weight - mean[units:] @ down @ up
    ffn = with_units(model, site, kept, AffineMap(weight, bias))
    ffn.line = _line(model, site, down, up)
    ffn.register_forward_hook(_add_line)
    return ffn


def _add_line(ffn: nn.Module, args: tuple[Tensor], y: Tensor) -> Tensor:
    return y + ffn.line(args[0])


def _line(model: PreTrainedModel, site: Site, down: Float[Tensor, "d_in r"], up: Float[Tensor, "r d"]) -> nn.Module:
    """The line x A B, as two layers, or as one where that holds fewer numbers."""
    inputs, rank = down.shape
    outputs = up.shape[1]
    weights = [down, up] if line_size(inputs, outputs, rank) < inputs * outputs else [down @ up]
    with torch.device(device_of(site.output)):
        layers = [nn.Linear(*weight.shape, bias=False).to(model.dtype) for weight in weights]
    for layer, weight in zip(layers, weights, strict=True):
        write(layer, AffineMap(weight, weight.new_zeros(weight.shape[1])))
    return nn.Sequential(*layers)
