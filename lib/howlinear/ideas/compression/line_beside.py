"""A line beside a block's own hidden units, of any rank: y ≈ R h_K + B A x + c, all of it in closed form.

Sparse transcoders with a skip are trained to this form (Paulo et al. 2025, "Transcoders beat sparse autoencoders for
interpretability", arXiv 2501.18823). Here K are the units that stay longest of own units' elimination (`units`), and
the best line of rank r beside them is reduced-rank regression (Izenman 1975) on what the units do not say: with x' the
part of the input x that no affine map of h_K gives, t' that of the output, and S the covariances, the singular values
of ::

    S_x'x'^(-1/2) S_x't' M^(1/2)

are, squared, what each direction of the line takes off the price in the metric M of the loss. A direction holds 2 d
numbers, where a unit of a gated block holds 3 d, and of any other 2 d; a line of full rank holds d², however many
directions it has. How many units and directions each block gets is one question for all blocks together (`budget`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.ideas.compression.budget import share_out
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.prune import budget_for, has_constant, thinned, ways_of
from howlinear.ideas.compression.units import UnitMoments, root_of
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, device_of, sites, width_of
from howlinear.models.forward import trunk
from howlinear.models.replace import copy_of
from howlinear.models.units import readout, unit_count, units_hooked, with_units, write

BETWEEN = 6
"""Of the numbers of units that a block may keep, every which one a line is tried beside."""

RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Ranks that a line is tried with, besides the full one."""


class BesideLine(nn.Module):
    """A block of fewer hidden units, and a linear map of its input beside them."""

    def __init__(self, units: nn.Module, line: nn.Module):
        """Hold both."""
        super().__init__()
        self.units = units
        self.line = line

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        """Their sum."""
        return self.units(x) + self.line(x)


def with_lines(calibration: Calibration, share: float) -> PreTrainedModel:
    """Own units, and in blocks where it is priced lower a line beside fewer of them.

    The copy is for measuring: no model folder can hold such a block.

    Args:
        calibration: the model and the text.
        share: of all parameters, what the copy may hold at most.

    Raises:
        InputError: the FFNs cannot give so much, or the model's hidden units cannot be reached.
    """
    model = calibration.model
    own, moments = calibration.eliminations
    chosen = sites(model)
    joint = moments_beside_inputs(calibration)  # 1.1 GB of SmolLM2
    ways = ways_beside(calibration, joint)
    places = share_out(ways, budget_for(model, chosen, share))

    modules = {}
    for site in chosen:
        block = site.block
        way = ways[block].iloc[places[block]]
        kept = own[block].kept(int(way["units"]))
        if way["rank"]:
            metric = calibration.stakes[block].metric
            modules[block] = beside_line(model, site, kept, joint[block], metric, int(way["rank"]))
        else:
            modules[block] = thinned(model, site, kept, moments[block])
    del joint  # before the copy is made

    smaller = copy_of(model)
    for site in sites(model):
        smaller.set_submodule(site.name, modules[site.block])
    return smaller


def ways_beside(calibration: Calibration, joint: Mapping[int, UnitMoments]) -> dict[int, pd.DataFrame]:
    """Block → the ways it can go: so many units, and a line of so many directions beside them.

    Args:
        calibration: the model and the text.
        joint: block → moments of units and inputs together, the units first.

    Returns:
        Of each block a row a way: `units`, the line's `rank` (0: no line), the block's `parameters`, and their `price`.
    """
    return {site.block: _ways_of_block(calibration, site, joint[site.block]) for site in sites(calibration.model)}


def _ways_of_block(calibration: Calibration, site: Site, joint: UnitMoments) -> pd.DataFrame:
    model = calibration.model
    all_own, all_moments = calibration.eliminations
    own, moments = all_own[site.block], all_moments[site.block]
    centred = has_constant(model, site)
    weight = readout(model, site).weight @ root_of(calibration.stakes[site.block].metric)
    # own units' prices are scaled to what a swap measured: without any unit the block would cost tr(βᵀ S β)
    unscaled = float((moments.covariance(centred) @ weight * weight).sum())
    factor = float(own.price[-1]) / unscaled if unscaled > 0 else 1.0

    alone = ways_of(model, site, own.price.numpy()).assign(rank=0)
    tried = alone.iloc[::BETWEEN]
    gains = gains_of_directions(joint.covariance(centred), weight, own.order, list(tried["units"]))
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
    covariance: Float[Tensor, "both both"],
    weight: Float[Tensor, "m d"],
    order: Int64[Tensor, " m"],
    counts: Sequence[int],
) -> dict[int, Float[Tensor, " directions"]]:
    """What each direction of a line takes off the price, beside the units that stay longest.

    With the units that stay longest first, S_hh = C Cᵀ, and what the first k of them say of inputs and output is the
    first k columns of F = S_xh C⁻ᵀ and rows of T = Cᵀ β: one factorisation serves every k.

    Args:
        covariance: of units and inputs together, the units first, positive definite.
        weight: the units' readout β times a root of the metric, shape (m, d).
        order: units, the first to go first, shape (m,).
        counts: how many units stay, each number tried.

    Returns:
        Number of units → the gains, falling, in the units that `weight` has when it is squared.
    """
    units = len(order)
    longest_first = order.flip(0)
    factor = torch.linalg.cholesky(covariance[:units, :units][longest_first][:, longest_first])
    with_inputs = covariance[:units, units:][longest_first]
    said_of_inputs = torch.linalg.solve_triangular(factor, with_inputs, upper=False).T  # F
    said_of_output = factor.T @ weight[longest_first]  # T

    gains = {}
    for count in counts:
        known = said_of_inputs[:, :count]
        inputs_left = covariance[units:, units:] - known @ known.T
        cross_left = said_of_inputs[:, count:] @ said_of_output[count:]
        root = torch.linalg.cholesky(inputs_left)
        whitened = torch.linalg.solve_triangular(root, cross_left, upper=False)
        squares = torch.linalg.eigvalsh(whitened.T @ whitened).flip(0).clamp_min(0)
        gains[int(count)] = squares
    return gains


@torch.no_grad()
def moments_beside_inputs(calibration: Calibration) -> dict[int, UnitMoments]:
    """Block → moments of its hidden units and its inputs together, the units first, in one pass.

    Both have own units' ridge: a line is fitted to the same rows, and knows some of them by heart as well.
    """
    model = calibration.model
    _, own_moments = calibration.eliminations
    listened = sites(model)
    width = width_of(model)
    gathered = {}
    for site in listened:
        gathered[site.block] = UnitMoments(unit_count(model, site) + width)
        gathered[site.block].ridge = own_moments[site.block].ridge
    hidden: dict[int, Tensor] = {}

    def keep_units(site: Site, h: Tensor) -> None:
        hidden[site.block] = h.flatten(0, -2)

    def keep(site: Site, x: Tensor, _: Tensor) -> None:
        rows = torch.cat([hidden.pop(site.block), x.flatten(0, -2)], 1)
        weight = calibration.stakes[site.block].weight.repeat(len(rows) // calibration.ids.shape[1])
        gathered[site.block].update(rows, weight)

    with units_hooked(model, listened, keep_units), hooked(listened, keep):
        for batch in calibration.ids.split(8):
            trunk(model, batch)
    return gathered


def beside_line(
    model: PreTrainedModel,
    site: Site,
    kept: Int64[Tensor, " k"],
    joint: UnitMoments,
    metric: Float[Tensor, "d d"],
    rank: int,
) -> BesideLine:
    """A block with some of its units and a line beside them, both fitted together.

    Args:
        model: the model; left as it was.
        site: of the block.
        kept: the units that stay, shape (k,).
        joint: moments of units and inputs together, the units first.
        metric: M, what errors cost, shape (d, d); it decides which directions the line has.
        rank: of the line.
    """
    own = readout(model, site)
    units = len(own.weight)
    centred = has_constant(model, site)
    covariance = joint.covariance(centred)
    of_units = torch.linalg.cholesky(covariance[kept][:, kept])
    with_output = covariance[:, :units] @ own.weight
    from_units = torch.cholesky_solve(covariance[kept][:, units:], of_units)  # S_KK⁻¹ S_Kx

    # x' and t': what the units that stay do not say of inputs and output
    inputs_left = covariance[units:, units:] - covariance[units:, kept] @ from_units
    cross_left = with_output[units:] - from_units.T @ with_output[kept]
    root = torch.linalg.cholesky(inputs_left)
    whitened = torch.linalg.solve_triangular(root, cross_left, upper=False)
    leading = torch.linalg.svd(whitened @ root_of(metric), full_matrices=False).U[:, :rank]
    down = torch.linalg.solve_triangular(root.T, leading, upper=True)  # A
    up = leading.T @ whitened  # B

    weight = torch.cholesky_solve(with_output[kept], of_units) - from_units @ down @ up
    bias = own.bias
    if centred:
        # the mean output stays what it was
        mean = joint.mean
        bias = bias + mean[:units] @ own.weight - mean[kept] @ weight - mean[units:] @ down @ up
    return BesideLine(with_units(model, site, kept, AffineMap(weight, bias)), _line(model, site, down, up))


def _line(model: PreTrainedModel, site: Site, down: Float[Tensor, "d_in r"], up: Float[Tensor, "r d"]) -> nn.Module:
    """The line x A B, as two layers, or as one where that holds fewer numbers."""
    inputs, rank = down.shape
    outputs = up.shape[1]
    if rank * (inputs + outputs) > inputs * outputs:
        return _linear(model, site, down @ up)
    return nn.Sequential(_linear(model, site, down), _linear(model, site, up))


def _linear(model: PreTrainedModel, site: Site, weight: Float[Tensor, "d_in d_out"]) -> nn.Linear:
    layer = nn.Linear(*weight.shape, bias=False, device=device_of(site.output), dtype=model.dtype)
    write(layer, AffineMap(weight, weight.new_zeros(weight.shape[1])))
    return layer.requires_grad_(False)
