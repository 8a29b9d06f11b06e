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

The other target that suggests itself, each block's own output in the whole model, leaves lost what is lost: each
block strives for what it would have written to a stream that is no longer there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.ideas.compression.allocate import allocate_units, costs_of, eliminations_of, fewer_units
from howlinear.ideas.compression.calibration import Calibration, once
from howlinear.ideas.compression.units import (
    ErrorCost,
    covariance_of,
    cross,
    gram,
    root_of,
    weighted_rows,
    with_ridge,
)
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, sites
from howlinear.models.layers import writes_to_stream
from howlinear.models.layerwise import Layerwise
from howlinear.models.units import affine_of, unit_layers, units_hooked, write

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
    eliminations, moments = eliminations_of(calibration)
    return fewer_units(calibration.model, eliminations, moments, layout(calibration, share, alike).units)


def own_units(calibration: Calibration, share: float, alike: bool = False) -> PreTrainedModel:
    """A smaller copy: units chosen, read out anew, and anchored to the whole model's residual stream."""
    smaller = before_anchor(calibration, share, alike)
    for site in sites(smaller, calibration.blocks):
        unit_layers(smaller, site)[-1].load_state_dict(_anchored(calibration, share, alike)[site.block])
    return smaller


@once
def _anchored(calibration: Calibration, share: float, alike: bool) -> dict[int, dict[str, Tensor]]:
    """Block → the state of its readout once anchored: it takes minutes, and other measurements ask for it again."""
    smaller = before_anchor(calibration, share, alike)
    batch_size = max(1, calibration.batch_size // 2)
    anchor(calibration.model, smaller, calibration.ids, costs_of(calibration), False, calibration.progress, batch_size)
    changed = sites(smaller, calibration.blocks)
    return {site.block: copy.deepcopy(unit_layers(smaller, site)[-1].state_dict()) for site in changed}


@torch.no_grad()
def anchor(
    model: PreTrainedModel,
    smaller: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    costs: Mapping[int, ErrorCost],
    own_outputs: bool = False,
    progress: bool = False,
    batch_size: int = 8,
) -> None:
    """Fit the readouts of a smaller model once more, block after block, each on what those before it now give.

    Both models move layer by layer through the text. Behind each layer all rows are there: its readout is fitted, and
    the smaller model's streams go on with what the new readout gives. A family that norms what its FFNs write
    (`layers.writes_to_stream`) stays as it is: what a readout adds there is not what the stream gets.
    """
    if not writes_to_stream(model):
        return
    first, second = ids.tensor_split(2)
    of_first = first.split(batch_size) if len(first) else ()
    of_second = second.split(batch_size) if len(second) else ()
    batches = [*of_first, *of_second]
    half_of = [0] * len(of_first) + [1] * len(of_second)  # of each batch
    whole = Layerwise(model, batches)
    small = Layerwise(smaller, batches)
    site_of = {site.block: site for site in sites(smaller, list(costs))}
    for number in tqdm(range(len(small.layers)), disable=not progress, unit="block"):
        if number not in site_of:
            whole.advance()
            small.advance()
            continue
        # h, and what the block writes in the smaller model and in the whole one
        site = site_of[number]
        hidden: list[Tensor] = []
        written: list[Tensor] = []
        targets: list[Tensor] = []
        with units_hooked(smaller, [site], _keep(hidden)), hooked([site], _keep(written)):
            small.advance()
        with hooked(sites(model, [site.block]), _keep(targets)):
            whole.advance()
        if not own_outputs:
            written = small.streams
            targets = whole.streams

        # √w [h, 1] and √w r, with r = s − ŝ, half by half
        layer = unit_layers(smaller, site)[-1]
        cost = costs[site.block]
        halves = [Moments(hidden[0].shape[-1] + 1, targets[0].shape[-1]) for _ in range(2)]
        for h, target, now, half in zip(hidden, targets, written, half_of, strict=True):
            weight = cost.weight.repeat(len(h))
            r = (target - now).flatten(0, -2).double().cpu()
            halves[half].update(weighted_rows(h.flatten(0, -2), weight), weight.sqrt()[:, None] * r)
        added = fit_correction(halves, cost.metric, centred=layer.bias is not None)
        if added is None:
            continue

        # B is added to the readout, and the streams go on as if it had been there
        slope = added[:-1]
        constant = added[-1]
        before = affine_of(layer)
        write(layer, AffineMap(before.weight + slope, before.bias + constant))
        for stream, h in zip(small.streams, hidden, strict=True):
            stream += h @ slope.to(h) + constant.to(h)


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


def _keep(rows: list[Tensor]) -> Callable[..., None]:
    """A listener that appends the last of what it hears to a list."""

    def keep(*heard: Site | Tensor) -> None:
        rows.append(heard[-1].clone())

    return keep
