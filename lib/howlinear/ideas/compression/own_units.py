"""A smaller model without training: every block keeps its most valuable hidden units, read out anew in closed form.

The paper (arXiv 2606.19379) replaces a whole block by an affine map. Here a block keeps some of its own hidden units,
so that it can give up a little instead of everything: y ≈ R h_K + c (`units`, `allocate`). Finally the readouts are
fitted once more, block after block, so that the residual stream stays near the whole model's: the *anchor*.

Before the anchor, every block is fitted as if all others were whole. In the smaller model they are not: a block reads a
different stream, and nothing makes up for what earlier blocks have lost. So, from the first block to the last, with s
the whole model's stream behind a layer, ŝ the smaller model's at the same tokens, and h the units that stay, ::

    r = s − ŝ,    B = argmin Σ w ‖r − h B‖² + ridge,

and B is added to the block's readout. So a block makes up for its own loss, as far as its units predict it from the
inputs that they actually get, and for the losses of the blocks before it.

The strength of the ridge is chosen block by block: B is fitted on one half of the text, and judged on the other in the
metric of the loss. If no B lowers the cost there, the block stays as it is.

The obvious other target, each block's own output in the whole model, would not repair earlier losses: each block would
aim at what it would have written to a stream that no longer exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.ideas.compression.allocate import Thinned, allocate_units, costs_of, eliminations_of
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.units import (
    costs_beyond,
    cross,
    gram,
    halves_of,
    ridge_regression,
    root_of,
    weighted_rows,
)
from howlinear.models.disk_copy import copy_on_disk
from howlinear.models.ffn_sites import Site, placed, sites
from howlinear.models.layers import share_written, stack_of
from howlinear.models.layerwise import Layerwise
from howlinear.models.replace import replace, with_fewer_units
from howlinear.models.shards import ShardWriter, is_on_disk
from howlinear.models.swap import swap
from howlinear.models.units import affine_of, unit_layers, units_hooked, write
from howlinear.models.work import StreamFiles

ANCHOR_RIDGES = (1e-2, 0.3, 1.0, 3.0)
"""Ridges that the anchor tries, as a share of every unit's variance."""


class Layout(NamedTuple):
    """What each block keeps."""

    units: dict[int, int]  # block → how many of its hidden units
    price: float  # the cost of that predicted on the training side, nats per token


def layout(calibration: Calibration, share: float, alike: bool = False, multiple: int | None = None) -> Layout:
    """Allocate a budget among the blocks, in multiples of `multiple` units, by default the calibration's."""
    eliminations, _ = eliminations_of(calibration)
    counts = allocate_units(calibration.model, eliminations, share, alike, multiple or calibration.multiple)
    return Layout(counts, sum(float(eliminations[block].price[-1 - count]) for block, count in counts.items()))


def before_anchor(calibration: Calibration, share: float, alike: bool = False) -> PreTrainedModel:
    """Make a smaller copy by own units without the anchor: readouts are fitted in the whole model alone."""
    return replace(calibration.model, _thinned(calibration, share, alike))


def own_units(calibration: Calibration, share: float, alike: bool = False) -> PreTrainedModel:
    """Make a smaller copy: units chosen, read out anew, and anchored to the whole model's residual stream."""
    # then the copy stays on disk too: in the work folder, or in one deleted with the copy
    if is_on_disk(calibration.model):
        return _in_files(calibration, share, alike)
    return replace(calibration.model, _anchored(calibration, share, alike))


def _thinned(calibration: Calibration, share: float, alike: bool) -> Thinned:
    eliminations, moments = eliminations_of(calibration)
    return Thinned(calibration.model, eliminations, moments, layout(calibration, share, alike).units)


@once
def _anchored(calibration: Calibration, share: float, alike: bool) -> dict[int, nn.Module]:
    """Anchor every block's units; remembered, since it takes minutes and other measurements need it again."""
    blocks = dict(_thinned(calibration, share, alike))
    anchor(calibration, blocks)
    return blocks


def _in_files(calibration: Calibration, share: float, alike: bool) -> PreTrainedModel:
    """Write the smaller copy of a model on disk layer by layer; in a work folder it is kept and can be resumed."""
    model = calibration.model
    blocks = _thinned(calibration, share, alike)
    stack = stack_of(model)
    folder = None if calibration.work is None else calibration.work / f"smaller-{share}{'-alike' if alike else ''}"

    def write(files: ShardWriter) -> PreTrainedModel:
        def finish(number: int, block: nn.Module | None) -> None:
            files.write(f"{stack}.{number}", {} if block is None else placed(blocks.site_of[number], block))

        anchor(calibration, blocks, finish=finish, work=folder)
        return with_fewer_units(model, blocks.data)

    return copy_on_disk(model, write, folder)


@torch.no_grad()
def anchor(
    calibration: Calibration,
    blocks: Mapping[int, nn.Module],
    finish: Callable[[int, nn.Module | None], None] = lambda *_: None,
    work: Path | None = None,
) -> None:
    """Fit the readouts of smaller blocks once more, block after block, each on the output of those before it.

    The text moves layer by layer through the whole model and through the smaller one. When all rows have passed a
    layer, its readout is fitted, and the smaller model's streams continue with the output of the new readout. Where a
    norm stands behind the FFN (`layers.share_written`) the readout stays as it is: what is added to it there is not
    what reaches the stream.

    A block is looked up when its layer's turn comes, and its readout is overwritten. `finish` is called after every
    layer with its number and its smaller block, or None if there is none or an interrupted run has done it. A `work`
    folder keeps the streams behind the last finished layer.
    """
    model = calibration.model
    costs = costs_of(calibration)
    batches, half_of = halves_of(calibration.ids, max(1, calibration.batch_size // 2))
    whole = Layerwise(model, batches)
    streams = [stream.clone() for stream in whole.streams]  # the smaller model's
    kept = StreamFiles(work)
    if kept.passed():
        whole.resume(max(kept.passed()), kept)
        streams, whole.streams = whole.streams[len(streams) :], whole.streams[: len(streams)]
    for number in range(whole.passed):
        finish(number, None)
    hidden: list[Tensor] = []  # h, of the layer whose turn it is

    def keep(_: Site, h: Tensor) -> None:
        hidden.append(h.clone())

    left = range(whole.passed, len(whole.layers))
    for number in tqdm(left, disable=not calibration.progress, unit="block"):
        hidden.clear()
        with whole.layer() as run:
            smaller = {number: blocks[number]} if number in blocks else {}
            share = None
            if smaller:
                share = share_written(*sites(model, [number]), lambda run=run: run(0, whole.streams[0].clone()))
            with swap(model, smaller):
                thin = sites(model, [number]) if smaller else []
                with units_hooked(model, thin, keep):
                    streams = [run(place, stream) for place, stream in enumerate(streams)]
            whole.advance()
        if share is not None:
            # √w [h, 1] and √w r, with r = s − ŝ, half by half
            layer = unit_layers(model, thin[0])[-1]
            cost = costs[number]
            widths = hidden[0].shape[-1] + 1, streams[0].shape[-1]
            halves = [Moments(*widths) for _ in range(2)]
            for h, aim, now, half in zip(hidden, whole.streams, streams, half_of, strict=True):
                r = (aim - now).flatten(0, -2).double().cpu()
                weight = cost.weight.repeat(len(r) // len(cost.weight))
                units = weighted_rows(h.flatten(0, -2), weight)
                halves[half].update(units, weight.sqrt()[:, None] * r)
            added = fit_correction(halves, cost.metric, centred=layer.bias is not None)
            if added is not None:
                # add B to the readout, by the share of it that reaches the stream, and to the streams as it is
                slope, constant = added[:-1], added[-1]
                before = affine_of(layer)
                write(layer, AffineMap(before.weight + slope / share, before.bias + constant / share))
                for stream, h in zip(streams, hidden, strict=True):
                    stream += h @ slope.to(h) + constant.to(h)
        finish(number, smaller.get(number))
        kept.replace(whole.passed, [*whole.streams, *streams])


def fit_correction(
    halves: list[Moments], metric: Float[Tensor, "d d"], centred: bool
) -> Float[Tensor, "k_and_1 d"] | None:
    """Fit the B that is added to the readout; None if no ridge lowers the cost on the other half, or one is empty."""
    grams, crosses = [gram(half) for half in halves], [cross(half) for half in halves]
    weights = [of_half[-1, -1] for of_half in grams]
    if not all(weight > 0 for weight in weights):
        return None
    # E [h, 1] [h, 1]ᵀ and E [h, 1] rᵀ of each half, the latter in the metric
    root = root_of(metric)
    seconds = [of_half / weight for of_half, weight in zip(grams, weights, strict=True)]
    towards = [of_half / weight @ root for of_half, weight in zip(crosses, weights, strict=True)]
    costs = costs_beyond(seconds, towards, ANCHOR_RIDGES, centred)
    best = int(costs.argmin())
    if costs[best] >= 0:
        return None
    # the whole text has twice the rows of a half, so it takes half of the ridge
    whole = sum(weights)
    return ridge_regression(sum(grams) / whole, sum(crosses) / whole, ANCHOR_RIDGES[best] / 2, centred)
