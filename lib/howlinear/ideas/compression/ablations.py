"""What each part of own units buys: the same compressor with one part exchanged, to the same size.

Own units takes hidden units away one by one, by what is lost in the metric of the loss once the others are read out
anew, with a ridge, from moments of the whole model (`prune`); at last it anchors the readouts (`anchor`). What comes
before the anchor is what others exchange a part of, since an anchor for each would take most of the time. Here are

- another sharing-out: as many units in every block;
- other choices of units: by scores that know nothing of the other units, and by forward selection;
- another metric: plain squares, all directions of the output and all positions alike;
- no ridge;
- a larger family: a line of the block's input beside its units, of any rank, where that is priced lower at equal
  parameters (`line_beside`);
- the anchor: readouts fitted once more on what the smaller model really gives them, towards the whole model's residual
  stream, or towards each block's own output;
- both, lines and the anchor on the stream: whether what each buys adds up.

Where units go by other prices, a block's are scaled so that all of it costs what it does by own units' (measured by a
swap a block): what differs is the choice within blocks, and how a price grows, not what a block is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.anchor import anchor
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.own_units import before_anchor, own_units
from howlinear.ideas.compression.prune import fewer_units, has_constant, units_for
from howlinear.ideas.compression.race import Compressor
from howlinear.ideas.compression.units import (
    Elimination,
    UnitMoments,
    in_order,
    priced,
    root_of,
    select,
)
from howlinear.ideas.compression.width import gram
from howlinear.models.ffn_sites import sites
from howlinear.models.units import readout


def by_scores(calibration: Calibration, share: float) -> PreTrainedModel:
    """The units of the largest variance times readout stay, in the metric of the loss, and are read out anew.

    Args:
        calibration: the model and the text.
        share: of all parameters, what the copy may hold at most.

    Raises:
        InputError: the FFNs cannot give so much, or the model's hidden units cannot be reached.
    """

    def order_by_scores(covariance: Float[Tensor, "m m"], weight: Float[Tensor, "m d"]) -> Elimination:
        scores = covariance.diagonal() * weight.square().sum(1)
        return in_order(covariance, weight, scores.argsort())

    return _chosen_by(calibration, share, order_by_scores)


def forwards(calibration: Calibration, share: float) -> PreTrainedModel:
    """The units that forward selection takes in first stay; arguments and errors as of `by_scores`."""
    return _chosen_by(calibration, share, select)


def plain_squares(calibration: Calibration, share: float) -> PreTrainedModel:
    """Exact elimination where an error in any direction, at any position, counts alike.

    Arguments and errors as of `by_scores`.
    """
    _, own = calibration.eliminations
    moments = {block: unweighted(calibration.units[block], of_block.ridge) for block, of_block in own.items()}
    alike = {
        block: torch.eye(len(of_block.metric), dtype=torch.float64) for block, of_block in calibration.stakes.items()
    }
    return _eliminated(calibration, share, moments, alike)


def no_ridge(calibration: Calibration, share: float) -> PreTrainedModel:
    """Own units chosen and read out by plain least squares; arguments and errors as of `by_scores`."""
    _, own = calibration.eliminations
    moments = {}
    for block, of_block in own.items():
        moments[block] = UnitMoments(len(of_block.mean))
        moments[block].halves = of_block.halves
    metrics = {block: of_block.metric for block, of_block in calibration.stakes.items()}
    return _eliminated(calibration, share, moments, metrics)


def on_own_outputs(calibration: Calibration, share: float) -> PreTrainedModel:
    """Own units anchored towards each block's own output in the whole model, and not towards the residual stream.

    Arguments and errors as of `by_scores`.
    """
    smaller = before_anchor(calibration, share)
    anchor(calibration.model, smaller, calibration.ids, calibration.stakes, own_outputs=True)
    return smaller


ABLATIONS: dict[str, Callable[[Calibration, float], PreTrainedModel]] = {
    "own units before the anchor": before_anchor,
    "as many in every block": partial(before_anchor, alike=True),
    "by scores of single units": by_scores,
    "by forward selection": forwards,
    "by plain squares": plain_squares,
    "without a ridge": no_ridge,
    "with lines beside units": partial(before_anchor, lines=True),
    "anchored on own outputs": on_own_outputs,
    "anchored on the stream": own_units,
    "with lines, anchored on the stream": partial(own_units, lines=True),
}
"""Name → compressor; the first is the one whose parts the others exchange."""


def ablations(calibration: Calibration, names: Sequence[str] | None = None) -> dict[str, Compressor]:
    """Own units before the anchor, and variants of it, ready to race on one model and one text.

    Args:
        calibration: the model and the text; what several of them ask for is computed once.
        names: which variants, each of them by default; own units before the anchor stand before them.

    Raises:
        InputError: an unknown name.
    """
    own, *variants = ABLATIONS
    names = variants if names is None else names
    unknown = [name for name in names if name not in variants]
    if unknown:
        raise InputError(f"no part of own units is called {', '.join(unknown)}: there are {', '.join(variants)}")
    return {name: partial(ABLATIONS[name], calibration) for name in [own, *names]}


# --- Other choices of units


def _chosen_by(
    calibration: Calibration,
    share: float,
    choose: Callable[[Float[Tensor, "m m"], Float[Tensor, "m d"]], Elimination],
) -> PreTrainedModel:
    """Own units, chosen by something else in the same metric."""
    model = calibration.model
    own, moments = calibration.eliminations
    eliminations = {}
    for site in sites(model):
        covariance = moments[site.block].covariance(has_constant(model, site))
        weight = readout(model, site).weight @ root_of(calibration.stakes[site.block].metric)
        eliminations[site.block] = scaled_to(choose(covariance, weight), own[site.block])
    return fewer_units(model, eliminations, moments, units_for(model, eliminations, share))


def _eliminated(
    calibration: Calibration,
    share: float,
    moments: Mapping[int, UnitMoments],
    metrics: Mapping[int, Float[Tensor, "d d"]],
) -> PreTrainedModel:
    """Own units by other moments, in other metrics."""
    model = calibration.model
    own, _ = calibration.eliminations
    eliminations = {}
    for site in sites(model):
        block = site.block
        found = priced(moments[block], readout(model, site), metrics[block], has_constant(model, site))
        eliminations[block] = scaled_to(found, own[block])
    return fewer_units(model, eliminations, moments, units_for(model, eliminations, share))


def scaled_to(found: Elimination, own: Elimination) -> Elimination:
    """An elimination whose last price, of a block without units, is that of another."""
    total = float(found.price[-1])
    factor = float(own.price[-1]) / total if total > 0 else 1.0
    return replace(found, price=found.price * factor)


def unweighted(moments: Moments, ridge: float) -> UnitMoments:
    """The moments of hidden units, all rows alike, in the form that `refit` takes.

    Args:
        moments: of the units, as inputs alone.
        ridge: what is to be added to the variance of every unit, as a share of it.
    """
    sums = moments.n * moments.mean_x
    gathered = UnitMoments(moments.d_in)
    second = gathered.second
    second[:-1, :-1] = gram(moments)
    second[:-1, -1] = sums
    second[-1, :-1] = sums
    second[-1, -1] = moments.n
    gathered.rows = moments.n
    gathered.ridge = ridge
    return gathered
