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
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import add_gram
from howlinear.errors import InputError
from howlinear.ideas.compression.prune import has_constant, ways_of
from howlinear.ideas.compression.units import Elimination, UnitMoments, covariance_of, root_of, with_ridge
from howlinear.instrument.capture import hooked
from howlinear.models.beside import BesideLine, line_layers
from howlinear.models.ffn_sites import Site, device_of, sites, width_of
from howlinear.models.forward import trunk
from howlinear.models.units import readout, units_hooked, with_units, write

BETWEEN = 6
"""Of the numbers of units that a block may keep, every which one a line is tried beside."""

RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Ranks that a line is tried with, besides the full one."""


class InputMoments:
    """Weighted second moments of a block's inputs x, and of its hidden units [h, 1] with them.

    Attributes:
        cross: Σ w [h, 1]ᵀ x, shape (m + 1, d), float64.
        second: Σ w xᵀ x, shape (d, d), float64.
    """

    def __init__(self, units: int, width: int):
        """Start from no rows."""
        self.cross = torch.zeros(units + 1, width, dtype=torch.float64)
        self.second = torch.zeros(width, width, dtype=torch.float64)

    def update(self, h: Float[Tensor, "n m"], x: Float[Tensor, "n d"], weight: Float[Tensor, " n"]) -> None:
        """Add rows, each with its weight.

        Raises:
            InputError: a row that is not finite.
        """
        root = weight.double().sqrt()[:, None]
        inputs = x.double() * root
        if not inputs.isfinite().all():
            raise InputError(f"NaN or infinity among {len(x)} rows of inputs")
        add_gram(self.second, inputs)
        self.cross[:-1] += (h.double() * root).T @ inputs
        self.cross[-1] += (root * inputs).sum(0)


@dataclass(frozen=True)
class Joint:
    """What a block's hidden units and inputs vary like together, the units first.

    Attributes:
        covariance: with own units' ridge on all of both, shape (m + d, m + d): a line is fitted to the same rows, and
            knows some of them by heart as well.
        mean: of both, shape (m + d,).
    """

    covariance: Float[Tensor, "both both"]
    mean: Float[Tensor, " both"]

    @staticmethod
    def of(units: UnitMoments, inputs: InputMoments, centred: bool) -> Joint:
        """From moments of the same rows with the same weights.

        Args:
            units: of the hidden units.
            inputs: of the inputs, and of the units with them.
            centred: whether the readout has a constant.
        """
        cross = inputs.cross[:-1]
        both = torch.cat([torch.cat([units.second[:-1, :-1], cross], 1), torch.cat([cross.T, inputs.second], 1)])
        sums = torch.cat([units.second[-1, :-1], inputs.cross[-1]])[:, None]
        weights = units.second[-1:, -1:]
        second = torch.cat([torch.cat([both, sums], 1), torch.cat([sums.T, weights], 1)])
        covariance = with_ridge(covariance_of(second, centred), units.ridge)
        return Joint(covariance, sums[:, 0] / weights[0, 0])


@torch.no_grad()
def input_moments(
    model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"], weights: Mapping[int, Float[Tensor, " seq_len"]]
) -> dict[int, InputMoments]:
    """Block → moments of its inputs, and of its hidden units with them, by one forward pass without the head.

    Args:
        model: the model; left as it was.
        ids: token ids, shape (n, seq_len).
        weights: block → weight of each position, shape (seq_len,).

    Raises:
        InputError: a family whose hidden units cannot be reached, or activations that are not finite.
    """
    listened = sites(model, list(weights))
    gathered: dict[int, InputMoments] = {}
    hidden: dict[int, Tensor] = {}

    def keep_units(site: Site, h: Tensor) -> None:
        hidden[site.block] = h.flatten(0, -2).cpu()

    def keep(site: Site, x: Tensor, _: Tensor) -> None:
        h = hidden.pop(site.block)
        if site.block not in gathered:
            gathered[site.block] = InputMoments(h.shape[1], x.shape[-1])
        gathered[site.block].update(h, x.flatten(0, -2).cpu(), weights[site.block].repeat(len(x)))

    with units_hooked(model, listened, keep_units), hooked(listened, keep):
        for batch in ids.split(8):
            trunk(model, batch)
    return gathered


def ways_beside(
    model: PreTrainedModel,
    site: Site,
    own: Elimination,
    joint: Joint,
    metric: Float[Tensor, "d d"],
) -> pd.DataFrame:
    """The ways that a block can go: so many units, and a line of so many directions beside them.

    Args:
        model: the model.
        site: of the block.
        own: the order in which its units go, and their prices.
        joint: of units and inputs together.
        metric: M, what errors cost, shape (d, d).

    Returns:
        A row a way: `units`, the line's `rank` (0: no line), the block's `parameters`, and their `price`. A block that
        has a line already keeps that one, and gets no other.
    """
    alone = ways_of(model, site, own.price.numpy()).assign(rank=0)
    if isinstance(site.output, BesideLine):
        return alone
    weight = readout(model, site).weight @ root_of(metric)
    units = len(weight)
    # own units' prices are scaled to what a swap measured: without any unit the block would cost tr(βᵀ S β)
    unscaled = float((joint.covariance[:units, :units] @ weight * weight).sum())
    factor = float(own.price[-1]) / unscaled if unscaled > 0 else 1.0

    tried = alone.iloc[::BETWEEN]
    gains = gains_of_directions(joint.covariance, weight, own.order, list(tried["units"]))
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


def beside_line(
    model: PreTrainedModel,
    site: Site,
    kept: Int64[Tensor, " k"],
    joint: Joint,
    metric: Float[Tensor, "d d"],
    rank: int,
) -> BesideLine:
    """A block with some of its units and a line beside them, both fitted together.

    Args:
        model: the model; left as it was.
        site: of the block.
        kept: the units that stay, shape (k,).
        joint: of units and inputs together.
        metric: M, what errors cost, shape (d, d); it decides which directions the line has.
        rank: of the line.
    """
    own = readout(model, site)
    units = len(own.weight)
    covariance = joint.covariance
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
    if has_constant(model, site):
        # the mean output stays what it was
        mean = joint.mean
        bias = bias + mean[:units] @ own.weight - mean[kept] @ weight - mean[units:] @ down @ up
    return BesideLine(with_units(model, site, kept, AffineMap(weight, bias)), _line(model, site, down, up))


def _line(model: PreTrainedModel, site: Site, down: Float[Tensor, "d_in r"], up: Float[Tensor, "r d"]) -> nn.Module:
    """The line x A B, as two layers, or as one where that holds fewer numbers."""
    inputs, rank = down.shape
    outputs = up.shape[1]
    full = rank * (inputs + outputs) > inputs * outputs
    with torch.device(device_of(site.output)):
        line = line_layers(inputs, None if full else rank).to(model.dtype)
    layers = [line] if full else line
    for layer, weight in zip(layers, [down @ up] if full else [down, up], strict=True):
        write(layer, AffineMap(weight, weight.new_zeros(weight.shape[1])))
    return line
