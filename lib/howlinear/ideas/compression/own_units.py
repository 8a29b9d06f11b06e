"""A smaller model without training: the dearest hidden units of every block stay, read out anew in closed form.

The paper (arXiv 2606.19379) puts an affine map in the place of a whole block. Here a block keeps some of its own hidden
units, so that it may give up a little instead of everything: y ≈ R h_K + c (`units`, `allocate`). At last the readouts
are fitted once more, block after block, so that the residual stream stays near the whole model's: the *anchor*.

Until then every block is fitted as if all others were whole. In the smaller model they are not: a block reads another
stream, and what the blocks before it have lost stays lost. So, from the first block to the last, with s the whole
model's stream behind a layer, ŝ the smaller model's as it is by now, at the same tokens, and h the units that stay, ::

    r = s − ŝ,    B = argmin Σ w ‖r − h B‖² + ridge,

and B is added to the block's readout. A block gives back what it has lost itself, as far as its units can tell it on
the inputs that they really get, and what those before it have lost.

How strong a ridge keeps B near 0 is chosen block by block: B is fitted on one half of the text, and judged on the other
in the metric of the loss. Where no B costs less there than none, the block stays as it is.

The other target that suggests itself, each block's own output in the whole model, would leave lost what is lost: each
block would strive for what it would have written to a stream that is no longer there.
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
    covariance_of,
    cross,
    gram,
    halves_of,
    root_of,
    weighted_rows,
    with_ridge,
)
from howlinear.models.disk_copy import copy_on_disk
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.layers import stack_of, writes_to_stream
from howlinear.models.layerwise import Layerwise
from howlinear.models.replace import replace, with_fewer_units
from howlinear.models.shards import ShardWriter, is_on_disk
from howlinear.models.swap import swap
from howlinear.models.units import affine_of, unit_layers, units_hooked, write
from howlinear.models.work import StreamFiles

ANCHOR_RIDGES = (1e-2, 0.3, 1.0, 3.0)
"""What the anchor may add to the variance of every unit, as a share of it."""


class Layout(NamedTuple):
    """What each block keeps.

    Attributes:
        units: block → how many of its hidden units.
        price: what that is predicted to cost on the text to fit on, nats per token.
    """

    units: dict[int, int]
    price: float


def layout(calibration: Calibration, share: float, alike: bool = False, multiple: int | None = None) -> Layout:
    """Allocate a budget among the blocks, in the calibration's multiples of units or in others."""
    eliminations, _ = eliminations_of(calibration)
    counts = allocate_units(calibration.model, eliminations, share, alike, multiple or calibration.multiple)
    price = sum(float(eliminations[block].price[-1 - count]) for block, count in counts.items())
    return Layout(counts, price)


def before_anchor(calibration: Calibration, share: float, alike: bool = False) -> PreTrainedModel:
    """Own units whose readouts are fitted in the whole model alone."""
    return replace(calibration.model, _thinned(calibration, share, alike))


def own_units(calibration: Calibration, share: float, alike: bool = False) -> PreTrainedModel:
    """A smaller copy: units chosen, read out anew, and anchored to the whole model's residual stream.

    Of a model whose weights stay in their files, so do those of the copy, in a folder that goes with it.
    """
    if is_on_disk(calibration.model):
        return _in_files(calibration, share, alike)
    return replace(calibration.model, _anchored(calibration, share, alike))


def _thinned(calibration: Calibration, share: float, alike: bool) -> Thinned:
    eliminations, moments = eliminations_of(calibration)
    return Thinned(calibration.model, eliminations, moments, layout(calibration, share, alike).units)


@once
def _anchored(calibration: Calibration, share: float, alike: bool) -> dict[int, nn.Module]:
    """Block → its units once anchored: it takes minutes, and other measurements ask for it again."""
    blocks = dict(_thinned(calibration, share, alike))
    anchor(calibration, blocks)
    return blocks


def _in_files(calibration: Calibration, share: float, alike: bool) -> PreTrainedModel:
    """The smaller copy of a model on disk, written layer by layer; in a folder of work it stays, and goes on there."""
    model = calibration.model
    blocks = _thinned(calibration, share, alike)
    stack = stack_of(model)
    folder = None if calibration.work is None else calibration.work / f"smaller-{share}{'-alike' if alike else ''}"

    def write(files: ShardWriter) -> PreTrainedModel:
        def finish(number: int, block: nn.Module | None) -> None:
            files.write(f"{stack}.{number}", {} if block is None else {blocks.site_of[number].name: block})

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
    """Fit the readouts of smaller blocks once more, block after block, each on what those before it now give.

    The text moves through the model layer by layer, as it is, and with the smaller blocks in their places. Behind each
    layer all rows are there: its readout is fitted, and the smaller model's streams go on with what the new readout
    gives. In a family that norms what its FFNs write (`layers.writes_to_stream`) readouts stay as they are: what one
    adds there is not what the stream gets.

    A block is asked for when its layer's turn has come, and its readout is written over. `finish` gets every layer's
    number when it is done, and its smaller block; None where there is none, or where an ended run has done it. A folder
    of `work` keeps the streams behind the last layer that is done.
    """
    model = calibration.model
    fits = writes_to_stream(model)
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
    left = range(whole.passed, len(whole.layers))
    for number in tqdm(left, disable=not calibration.progress, unit="block"):
        hidden: list[Tensor] = []  # h
        with whole.layer() as run:
            smaller = {number: blocks[number]} if number in blocks else {}
            with swap(model, smaller):
                thin = sites(model, [number]) if smaller else []
                with units_hooked(model, thin, _keep(hidden)):
                    streams = [run(place, stream) for place, stream in enumerate(streams)]
            whole.advance()
        if smaller and fits:
            # √w [h, 1] and √w r, with r = s − ŝ, half by half
            layer = unit_layers(model, thin[0])[-1]
            cost = costs[number]
            halves = [Moments(hidden[0].shape[-1] + 1, streams[0].shape[-1]) for _ in range(2)]
            for h, aim, now, half in zip(hidden, whole.streams, streams, half_of, strict=True):
                weight = cost.weight.repeat(len(h))
                r = (aim - now).flatten(0, -2).double().cpu()
                halves[half].update(weighted_rows(h.flatten(0, -2), weight), weight.sqrt()[:, None] * r)
            added = fit_correction(halves, cost.metric, centred=layer.bias is not None)
            if added is not None:
                # B is added to the readout, and the streams go on as if it had been there
                slope = added[:-1]
                constant = added[-1]
                before = affine_of(layer)
                write(layer, AffineMap(before.weight + slope, before.bias + constant))
                for stream, h in zip(streams, hidden, strict=True):
                    stream += h @ slope.to(h) + constant.to(h)
        finish(number, smaller.get(number))
        kept.replace(whole.passed, [*whole.streams, *streams])


def fit_correction(
    halves: list[Moments], metric: Float[Tensor, "d d"], centred: bool
) -> Float[Tensor, "k_and_1 d"] | None:
    """What is to be added to the readout of [h, 1], shape (k + 1, d).

    Returns:
        None where the other half gains by no ridge, or where a half has no rows.
    """
    weights = [gram(half)[-1, -1] for half in halves]
    if not all(weight > 0 for weight in weights):
        return None
    # E [h, 1] [h, 1]ᵀ and E [h, 1] rᵀ of each half
    seconds = [gram(half) / weight for half, weight in zip(halves, weights, strict=True)]
    crosses = [cross(half) / weight for half, weight in zip(halves, weights, strict=True)]
    root = root_of(metric)
    costs = torch.zeros(len(ANCHOR_RIDGES), dtype=torch.float64)
    for fitted, other in ((0, 1), (1, 0)):
        missing = crosses[other] @ root
        for place, ridge in enumerate(ANCHOR_RIDGES):
            added = ridge_regression(seconds[fitted], crosses[fitted] @ root, ridge, centred)
            # E‖(r − [h, 1] B) root‖² − E‖r root‖²
            costs[place] += ((seconds[other] @ added - 2 * missing) * added).sum()
    best = int(costs.argmin())
    if costs[best] >= 0:
        return None
    # all rows are twice as many as those of a half, and take half of its ridge
    second = sum(gram(half) for half in halves) / sum(weights)
    missing = sum(cross(half) for half in halves) / sum(weights)
    return ridge_regression(second, missing, ANCHOR_RIDGES[best] / 2, centred)


def ridge_regression(
    second: Float[Tensor, "k_and_1 k_and_1"], cross: Float[Tensor, "k_and_1 d"], ridge: float, centred: bool
) -> Float[Tensor, "k_and_1 d"]:
    """B of the least E‖r − [h, 1] B‖² plus a ridge on the rows of h."""
    mean = second[-1, :-1]
    mean_missing = cross[-1]
    towards = cross[:-1]
    if centred:
        towards = towards.addr(mean, mean_missing, alpha=-1)
    factor = torch.linalg.cholesky(with_ridge(covariance_of(second, centred), ridge))
    change = torch.cholesky_solve(towards, factor)
    constant = mean_missing - mean @ change if centred else torch.zeros_like(mean_missing)
    return torch.cat([change, constant[None]])


def _keep(hidden: list[Tensor]) -> Callable[[Site, Tensor], None]:
    """A listener that appends the hidden units that it hears to a list."""

    def keep(_: Site, h: Tensor) -> None:
        hidden.append(h.clone())

    return keep
