"""What each part of own units contributes: the same compressor with one part exchanged, at the same size.

Own units removes hidden units one by one, by what is lost in the metric of the loss once the others are read out anew,
with a ridge, from moments of the whole model (`allocate`); finally it anchors the readouts (`own_units`). The variants
(`ABLATIONS`) exchange a part of what comes before the anchor, since anchoring each would take most of the time.

If a variant prices units differently, each block's prices are scaled so that removing all of it costs what it does in
own units. So variants differ in the choice within blocks and in how a price grows, not in what a block is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy import linalg
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.ideas.compression.allocate import Thinned, allocate_units, costs_of, eliminations_of, has_constant
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors.width import moments_of
from howlinear.ideas.compression.own_units import before_anchor, own_units
from howlinear.ideas.compression.race import Compressor, check_known
from howlinear.ideas.compression.units import RIDGES, Elimination, UnitMoments, eliminate, gram_with_constant, root_of
from howlinear.models.ffn_sites import sites, width_of
from howlinear.models.replace import replace as replace_blocks
from howlinear.models.units import readout


def by_scores(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units of largest variance times squared readout, in the metric of the loss, and read them out anew."""

    def order_by_scores(covariance: Float[Tensor, "m m"], weight: Float[Tensor, "m d"]) -> Elimination:
        scores = covariance.diagonal() * weight.square().sum(1)
        return in_order(covariance, weight, scores.argsort())

    return _exchanged(calibration, share, choose=order_by_scores)


def plain_squares(calibration: Calibration, share: float) -> PreTrainedModel:
    """Eliminate units exactly, with errors in all directions and at all positions weighted alike."""
    _, own = eliminations_of(calibration)
    unweighted = moments_of(calibration)
    moments = {
        block: UnitMoments(gram_with_constant(unweighted[block]), of_block.ridge) for block, of_block in own.items()
    }
    every_direction = torch.eye(width_of(calibration.model), dtype=torch.float64)
    return _exchanged(calibration, share, moments=moments, metrics=dict.fromkeys(own, every_direction))


def no_ridge(calibration: Calibration, share: float) -> PreTrainedModel:
    """Choose units and read them out by plain least squares, without a ridge."""
    _, own = eliminations_of(calibration)
    moments = {block: replace(of_block, ridge=RIDGES[0]) for block, of_block in own.items()}
    return _exchanged(calibration, share, moments=moments)


ABLATIONS: dict[str, Callable[[Calibration, float], PreTrainedModel]] = {
    "own units before the anchor": before_anchor,
    "as many in every block": partial(before_anchor, alike=True),
    "by scores of single units": by_scores,
    "by plain squares": plain_squares,
    "without a ridge": no_ridge,
    "anchored on the stream": own_units,
}
"""Name → compressor; the first is the one whose parts the others exchange."""


def ablations(calibration: Calibration, names: Sequence[str] | None = None) -> dict[str, Compressor]:
    """Bind own units before the anchor and its variants to one model and one text, ready to race."""
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
    """Make own units before the anchor with another way to `choose` units, other moments, or other metrics."""
    model = calibration.model
    own, own_moments = eliminations_of(calibration)
    moments = moments or own_moments
    metrics = metrics or {block: cost.metric for block, cost in costs_of(calibration).items()}
    eliminations = {}
    for site in sites(model):
        block = site.block
        covariance = moments[block].covariance(has_constant(model, site))
        weight = readout(model, site).weight @ root_of(metrics[block])
        eliminations[block] = scaled_to(choose(covariance, weight), own[block])
    counts = allocate_units(model, eliminations, share)
    return replace_blocks(model, Thinned(model, eliminations, moments, counts))


def scaled_to(found: Elimination, own: Elimination) -> Elimination:
    """Scale an elimination's prices so that the last one, for a block without units, equals that of `own`."""
    total = float(found.price[-1])
    factor = float(own.price[-1]) / total if total > 0 else 1.0
    return replace(found, price=found.price * factor)


def in_order(
    covariance: Float[Tensor, "m m"], readout: Float[Tensor, "m d"], order: Int64[Tensor, " m"]
) -> Elimination:
    """Price the removal of units in a given order, with the others read out anew each time."""
    # in reverse order and with S = L Lᵀ, the error without the last t units is the sum of the squares of the last t
    # rows of Lᵀ β, which stand for what the units before them do not explain
    last_first = order.flip(0)
    factor = linalg.cholesky(covariance[last_first][:, last_first].numpy(), lower=True)
    squares = np.square(factor.T @ readout[last_first].numpy()).sum(1)
    return Elimination(order, torch.tensor(np.concatenate([[0.0], squares[::-1].cumsum()])))
