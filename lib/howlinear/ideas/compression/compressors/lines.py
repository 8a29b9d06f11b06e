"""Rival compressors that replace whole FFNs by affine maps, as the paper (2606.19379) suggests.

Blocks are replaced by their affine maps one after another until the copy is small enough, in the order of R²_lin, the
most linear first, as the paper would have it, or in the order of the map's price in the loss, the cheapest first. Maps
are fitted by least squares to all rows or, where a few massive rows decide them (notebook 12), to all other rows, with
one constant output at position 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.signals import price
from howlinear.instrument.capture import hooked
from howlinear.instrument.massive import HeavyRowsKeeper
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.forward import trunk
from howlinear.models.replace import copy_of
from howlinear.models.swap import swap


def by_r2(calibration: Calibration, share: float) -> PreTrainedModel:
    """Replace the most linear blocks by least-squares maps."""
    lines = lines_of(calibration)
    order = sorted(lines, key=lambda block: -lines[block].r2)
    return _straightened(calibration, share, _maps(calibration, ordinary=False), order)


def by_price(calibration: Calibration, share: float, ordinary: bool = False) -> PreTrainedModel:
    """Replace the blocks that are cheapest in the loss by least-squares maps, of all rows or of ordinary ones."""
    prices = line_prices(calibration, ordinary)
    return _straightened(calibration, share, _maps(calibration, ordinary), sorted(prices, key=prices.__getitem__))


def _straightened(
    calibration: Calibration, share: float, maps: Mapping[int, AffineMap | ConstantFirst], order: Sequence[int]
) -> PreTrainedModel:
    """Copy the model with maps in the place of the first blocks of an order, as few as make it small enough."""
    model = calibration.model
    savings = {}
    for site in sites(model):
        line = maps[site.block]
        tensors = line.parameters() if isinstance(line, ConstantFirst) else (line.weight, line.bias)
        own = sum(parameter.numel() for parameter in site.parameters())
        savings[site.block] = own - sum(tensor.numel() for tensor in tensors)
    gone = calibration.take_enough(share, order, savings, "maps in the place of all blocks")
    chosen = {block: maps[block] for block in gone}
    # the copy is taken while the maps stand in the model, so that the FFNs that go are not copied
    with swap(model, chosen):
        copied = copy_of(model)
    for site in sites(copied):
        if site.block in chosen:
            site.output.to(model.dtype)  # and not the whole copy, which would round RoPE's frequencies too
    if any(isinstance(replacement, ConstantFirst) for replacement in chosen.values()):
        copied.config.use_cache = False  # a constant at position 0 needs whole sequences
    return copied


# --- The maps and their prices


@once
def line_prices(calibration: Calibration, ordinary: bool) -> dict[int, float]:
    """Block → the price of its least-squares map, or of the one refitted without massive rows, nats per token."""
    if ordinary and not any(of_block.massive_rows for of_block in lines_of(calibration).values()):
        return line_prices(calibration, False)  # the maps are the same
    spread = calibration.ids[:: -(-len(calibration.ids) // calibration.priced)]
    prices = price(calibration.model, _maps(calibration, ordinary), spread)
    return {block: found.cost for block, found in prices.items()}


def _maps(calibration: Calibration, ordinary: bool) -> dict[int, AffineMap | ConstantFirst]:
    """Block → its least-squares map, or the one refitted without massive rows."""
    lines = lines_of(calibration)
    return {block: of_block.ordinary if ordinary else of_block.all_rows for block, of_block in lines.items()}


class ConstantFirst(nn.Module):
    """An affine map with a constant output at position 0, where its input must begin: run it without a cache."""

    def __init__(self, line: AffineMap, first: Float[Tensor, " d"]):
        """Hold the map of all later positions, and the output at position 0, shape (d,)."""
        super().__init__()
        self.weight = nn.Parameter(line.weight.clone(), requires_grad=False)
        self.bias = nn.Parameter(line.bias.clone(), requires_grad=False)
        self.first = nn.Parameter(first.clone(), requires_grad=False)

    def forward(self, x: Float[Tensor, "batch seq_len d"]) -> Float[Tensor, "batch seq_len d"]:
        """Return the constant at position 0, and the map's output elsewhere."""
        if x.ndim == 2:
            raise InputError("blocks of this model read the rows of all sequences as one, without their positions")
        y = x @ self.weight + self.bias
        first = self.first.expand(len(x), 1, -1)
        return torch.cat([first, y[:, 1:]], dim=1)


@dataclass(frozen=True)
class Lines:
    """The affine maps of a block, by least squares.

    That of ordinary rows has the block's mean output at position 0 as the constant there; if no row is massive
    (`instrument.massive`), it is the map of all rows.
    """

    all_rows: AffineMap
    r2: float  # of that map on the rows that it was fitted on; a compressor must not see held-out rows
    massive_rows: int
    ordinary: AffineMap | ConstantFirst


@once
@torch.no_grad()
def lines_of(calibration: Calibration) -> dict[int, Lines]:
    """Fit the affine maps of every block, in one pass."""
    model = calibration.model
    width = width_of(model)
    listened = sites(model)
    moments = {site.block: Moments(width, width) for site in listened}
    firsts = {site.block: Moments(width) for site in listened}  # of the outputs at position 0
    heavy = {site.block: HeavyRowsKeeper() for site in listened}

    def keep(site: Site, x: Tensor, y: Tensor) -> None:
        n, seq_len, _ = x.shape
        sequence = torch.arange(n).repeat_interleave(seq_len)
        position = torch.arange(seq_len).repeat(n)
        firsts[site.block].update(y[:, 0].cpu())
        x = x.flatten(0, -2).cpu()
        y = y.flatten(0, -2).cpu()
        moments[site.block].update(x, y)
        heavy[site.block].update(x, y, sequence, position, test=False, fold=0)

    with hooked(listened, keep):
        for batch in calibration.ids.split(calibration.batch_size):
            trunk(model, batch, listened[-1])

    found = {}
    for block, of_all in moments.items():
        line, _ = fit(of_all)
        massive = heavy[block].finish().beyond()
        ordinary: AffineMap | ConstantFirst = line
        if len(massive):
            later, _ = fit(of_all - massive.moments(test=False, fold=0))
            ordinary = ConstantFirst(later, firsts[block].mean_x)
        found[block] = Lines(line, r2(line, of_all), len(massive), ordinary)
    return found
