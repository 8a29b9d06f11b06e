"""Rival compressors that make whole FFNs straight: affine maps in their place, what the paper (2606.19379) suggests.

Blocks are replaced by their affine maps one after another until the copy is small enough, in the order of R²_lin, the
most linear first, as the paper would have it, or in the order of the map's price in the loss, the cheapest first. Maps
are those of least squares; or mended where a few massive rows decide them (notebook 12): fitted to all other rows, with
one constant output at position 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Anchored, Calibration
from howlinear.models.ffn_sites import sites
from howlinear.models.layers import parameters
from howlinear.models.replace import copy_of
from howlinear.models.swap import swap


def by_r2(calibration: Calibration, share: float) -> PreTrainedModel:
    """Least-squares maps in the place of the most linear blocks.

    Args:
        calibration: the model and the text.
        share: of all parameters, what the copy may hold at most.

    Raises:
        InputError: maps in the place of all blocks hold more than that.
    """
    lines = calibration.lines
    order = sorted(lines, key=lambda block: -lines[block].r2)
    return _straightened(calibration, share, {block: lines[block].all_rows for block in lines}, order)


def by_price(calibration: Calibration, share: float) -> PreTrainedModel:
    """Least-squares maps where these are cheapest in the loss; arguments and errors as of `by_r2`."""
    lines, prices = calibration.lines, calibration.line_prices
    order = sorted(lines, key=prices.__getitem__)
    return _straightened(calibration, share, {block: lines[block].all_rows for block in lines}, order)


def mended(calibration: Calibration, share: float) -> PreTrainedModel:
    """Mended maps where these are cheapest in the loss; arguments and errors as of `by_r2`."""
    lines, prices = calibration.lines, calibration.mended_prices
    order = sorted(lines, key=prices.__getitem__)
    return _straightened(calibration, share, {block: lines[block].mended for block in lines}, order)


def _straightened(
    calibration: Calibration, share: float, maps: Mapping[int, AffineMap | Anchored], order: Sequence[int]
) -> PreTrainedModel:
    """A copy with maps in the place of the first blocks of an order, of as few as make it small enough."""
    model = calibration.model
    allowed = calibration.allowed(share)
    held = parameters(model)
    sizes = {site.block: sum(parameter.numel() for parameter in site.parameters()) for site in sites(model)}
    chosen: dict[int, AffineMap | Anchored] = {}
    for block in order:
        if held <= allowed:
            break
        chosen[block] = maps[block]
        held -= sizes[block] - _numbers(maps[block])
    if held > allowed:
        raise InputError(f"with maps in the place of all blocks {held} parameters are left, {allowed} are allowed")
    # the copy is taken while the maps stand in the model, so that the FFNs that go are not copied
    with swap(model, chosen):
        copied = copy_of(model).to(model.dtype)
    if any(isinstance(replacement, Anchored) for replacement in chosen.values()):
        copied.config.use_cache = False  # an anchored map must see whole sequences
    return copied


def _numbers(replacement: AffineMap | Anchored) -> int:
    """How many numbers a map holds."""
    if isinstance(replacement, Anchored):
        return parameters(replacement)
    return replacement.weight.numel() + replacement.bias.numel()
