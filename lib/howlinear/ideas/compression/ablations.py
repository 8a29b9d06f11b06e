"""What each part of own units buys: the same compressor with one part exchanged, to the same size.

Own units (`prune`) takes hidden units away one by one, by what is lost in the metric of the loss once the others are
read out anew, with a ridge, from moments of the whole model. Here are

- other choices of units: by scores that know nothing of the other units, and by forward selection;
- another metric: plain squares, all directions of the output and all positions alike;
- no ridge;
- readouts fitted once more, block after block, on what the smaller model really gives them;
- a larger family: an affine map of the block's input beside its units, where it is priced lower at equal parameters.
  Sparse transcoders with a skip are trained to that form (Paulo et al. 2025, "Transcoders beat sparse autoencoders for
  interpretability", arXiv 2501.18823).

Where units go by other prices, a block's are scaled so that all of it costs what it does by own units' (measured by a
swap a block): what differs is the choice within blocks, and how a price grows, not what a block is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.compression.budget import share_out
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.prune import budget_for, fewer_units, has_constant, thinned, units_for, ways_of
from howlinear.ideas.compression.race import Compressor, own_units
from howlinear.ideas.compression.units import (
    RIDGES,
    Elimination,
    UnitMoments,
    eliminate,
    in_order,
    priced,
    refit,
    root_of,
    select,
)
from howlinear.ideas.compression.width import gram
from howlinear.instrument.capture import hooked
from howlinear.models.ffn_sites import Site, device_of, sites, width_of
from howlinear.models.replace import copy_of
from howlinear.models.units import affine_of, readout, unit_count, unit_layers, units_hooked, with_units, write

TOGETHER = 10
"""Blocks whose moments of units and inputs are gathered in one pass: of SmolLM2 these take 0.7 GB."""


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


def refitted(calibration: Calibration, share: float) -> PreTrainedModel:
    """Own units, their readouts fitted once more on what the smaller model gives them (`refit_in_place`).

    Arguments and errors as of `by_scores`.
    """
    _, moments = calibration.eliminations
    smaller = own_units(calibration, share)
    weights = {block: of_block.weight for block, of_block in calibration.stakes.items()}
    ridges = {block: of_block.ridge for block, of_block in moments.items()}
    refit_in_place(calibration.model, smaller, calibration.ids, weights, ridges)
    return smaller


def with_lines(calibration: Calibration, share: float) -> PreTrainedModel:
    """Own units, and in blocks where it is priced lower a line beside fewer of them.

    The copy is for measuring: no model folder can hold such a block. Arguments and errors as of `by_scores`.
    """
    model = calibration.model
    own, moments = calibration.eliminations
    chosen = sites(model)
    beside = prices_beside_lines(calibration)
    ways = {}
    for site in chosen:
        alone = ways_of(model, site, own[site.block].price.numpy()).assign(line=False)
        joint = ways_of(model, site, beside[site.block].price.numpy()).assign(line=True)
        joint["parameters"] += line_size(model, site)
        ways[site.block] = pd.concat([alone, joint], ignore_index=True)
    places = share_out(ways, budget_for(model, chosen, share))
    picked = {block: ways[block].iloc[place] for block, place in places.items()}

    lined = [block for block, way in picked.items() if way["line"]]
    modules = {}
    for some in _groups(lined):
        joint_moments = moments_beside_inputs(calibration, some)
        for site in sites(model, some):
            kept = beside[site.block].kept(int(picked[site.block]["units"]))
            modules[site.block] = beside_line(model, site, kept, joint_moments[site.block])
    for site in chosen:
        if site.block not in modules:
            kept = own[site.block].kept(int(picked[site.block]["units"]))
            modules[site.block] = thinned(model, site, kept, moments[site.block])

    smaller = copy_of(model)
    for site in sites(model):
        smaller.set_submodule(site.name, modules[site.block])
    return smaller


ABLATIONS: dict[str, Callable[[Calibration, float], PreTrainedModel]] = {
    "own units": own_units,
    "by scores of single units": by_scores,
    "by forward selection": forwards,
    "by plain squares": plain_squares,
    "without a ridge": no_ridge,
    "fitted once more in place": refitted,
    "with lines beside units": with_lines,
}
"""Name → compressor; the first is the one whose parts the others exchange."""


def ablations(calibration: Calibration, names: Sequence[str] | None = None) -> dict[str, Compressor]:
    """Own units, and variants of it, ready to race on one model and one text.

    Args:
        calibration: the model and the text; what several of them ask for is computed once.
        names: which variants, each of them by default; own units stand before them.

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
    return scaled(found, own, float(found.price[-1]))


def scaled(found: Elimination, own: Elimination, total: float) -> Elimination:
    """An elimination in the nats that own units are priced in.

    Args:
        found: the elimination.
        own: own units' of the same block.
        total: what a block without units costs in the units of `found`.
    """
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
    second = gathered.halves[0]
    second[:-1, :-1] = gram(moments)
    second[:-1, -1] = sums
    second[-1, :-1] = sums
    second[-1, -1] = moments.n
    gathered.rows = moments.n
    gathered.ridge = ridge
    return gathered


# --- Fitted once more in place


@torch.no_grad()
def refit_in_place(
    model: PreTrainedModel,
    smaller: PreTrainedModel,
    ids: Int64[Tensor, "n seq_len"],
    weights: Mapping[int, Float[Tensor, " seq_len"]],
    ridges: Mapping[int, float],
) -> None:
    """Readouts of a smaller model fitted anew, block after block, each on what those before it now give.

    All rows go through the smaller model in one pass. Where a block is about to read its units out, these are all
    there: with r what its readout leaves of the whole model's output at the same tokens, the ridge regression of r on
    them is added to it, and the pass goes on with the new readout.

    Args:
        model: the whole model; left as it was.
        smaller: a copy with fewer hidden units; its readouts change.
        ids: token ids to fit on, shape (n, seq_len).
        weights: block → weight of each position, shape (seq_len,).
        ridges: block → what is added to the variance of every unit, as a share of it.
    """
    targets = _outputs(model, ids)

    def read_anew(site: Site, h: Float[Tensor, "n seq_len k"]) -> None:
        layer = unit_layers(smaller, site)[-1]
        current = affine_of(layer)
        rows = h.flatten(0, -2).double().cpu()
        weight = weights[site.block].repeat(len(ids))
        r = targets.pop(site.block).double() - current(rows)
        centred = layer.bias is not None

        gathered = UnitMoments(rows.shape[1])
        gathered.ridge = ridges[site.block]
        gathered.update(rows, weight)
        towards = rows.T @ (weight[:, None] * r) / weight.sum()
        mean_r = weight @ r / weight.sum()
        if centred:
            towards = towards.addr(gathered.mean, mean_r, alpha=-1)
        change = torch.cholesky_solve(towards, torch.linalg.cholesky(gathered.covariance(centred)))
        bias = current.bias
        if centred:
            bias = bias + mean_r - gathered.mean @ change
        write(layer, AffineMap(current.weight + change, bias))

    with units_hooked(smaller, sites(smaller), read_anew):
        smaller.base_model(input_ids=ids.to(device_of(smaller)), use_cache=False)


def _outputs(model: PreTrainedModel, ids: Int64[Tensor, "n seq_len"]) -> dict[int, Float[Tensor, "rows d"]]:
    """Block → its output rows in the whole model."""
    parts: dict[int, list[Tensor]] = {site.block: [] for site in sites(model)}

    def keep(site: Site, _: Tensor, y: Tensor) -> None:
        parts[site.block].append(y.flatten(0, -2).cpu())

    with hooked(sites(model), keep):
        for batch in ids.split(8):
            model.base_model(input_ids=batch.to(device_of(model)), use_cache=False)
    return {block: torch.cat(rows) for block, rows in parts.items()}


# --- A line beside the units


class BesideLine(nn.Module):
    """A block of fewer hidden units, and an affine map of its input beside them."""

    def __init__(self, units: nn.Module, line: nn.Linear):
        """Hold both."""
        super().__init__()
        self.units = units
        self.line = line

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        """Their sum."""
        return self.units(x) + self.line(x)


def line_size(model: PreTrainedModel, site: Site) -> int:
    """How many parameters a line beside a block's units has; its constant is in the units' readout, if anywhere."""
    width = width_of(model)
    return width * readout(model, site).weight.shape[1]


def prices_beside_lines(calibration: Calibration) -> dict[int, Elimination]:
    """Block → the order in which its units can go at which price, a line beside them."""
    model = calibration.model
    own, own_moments = calibration.eliminations
    found = {}
    for some in _groups([site.block for site in sites(model)]):
        joint = moments_beside_inputs(calibration, some)
        for site in sites(model, some):
            block = site.block
            weight = readout(model, site).weight @ root_of(calibration.stakes[block].metric)
            centred = has_constant(model, site)
            # without units and without a line the block would cost tr(βᵀ S β)
            total = float((own_moments[block].covariance(centred) @ weight * weight).sum())
            order = eliminate(beyond_line(joint[block], len(weight), centred), weight)
            found[block] = scaled(order, own[block], total)
    return found


def beyond_line(joint: UnitMoments, units: int, centred: bool) -> Float[Tensor, "m m"]:
    """The covariance of what no line of the inputs gives of the units: S_hh − S_hx S_xx⁻¹ S_xh.

    Args:
        joint: moments of units and inputs together, the units first.
        units: how many units there are.
        centred: whether there is a constant.
    """
    covariance = joint.covariance(centred)
    of_inputs = torch.linalg.cholesky(covariance[units:, units:])
    explained = torch.linalg.solve_triangular(of_inputs, covariance[units:, :units], upper=False)
    return covariance[:units, :units] - explained.T @ explained


@torch.no_grad()
def moments_beside_inputs(calibration: Calibration, blocks: Sequence[int]) -> dict[int, UnitMoments]:
    """Block → moments of its hidden units and its inputs together, the units first, in one pass.

    The units have own units' ridge, the inputs, of which there are fewer, the least of all.
    """
    model = calibration.model
    _, own_moments = calibration.eliminations
    listened = sites(model, list(blocks))
    width = width_of(model)
    gathered = {}
    for site in listened:
        units = unit_count(model, site)
        gathered[site.block] = UnitMoments(units + width)
        of_units = torch.full((units,), own_moments[site.block].ridge, dtype=torch.float64)
        of_inputs = torch.full((width,), RIDGES[0], dtype=torch.float64)
        gathered[site.block].ridge = torch.cat([of_units, of_inputs])
    hidden: dict[int, Tensor] = {}

    def keep_units(site: Site, h: Tensor) -> None:
        hidden[site.block] = h.flatten(0, -2)

    def keep(site: Site, x: Tensor, _: Tensor) -> None:
        rows = torch.cat([hidden.pop(site.block), x.flatten(0, -2)], 1)
        weight = calibration.stakes[site.block].weight.repeat(len(rows) // calibration.ids.shape[1])
        gathered[site.block].update(rows, weight)

    with units_hooked(model, listened, keep_units), hooked(listened, keep):
        for batch in calibration.ids.split(8):
            model.base_model(input_ids=batch.to(device_of(model)), use_cache=False)
    return gathered


def beside_line(model: PreTrainedModel, site: Site, kept: Int64[Tensor, " k"], joint: UnitMoments) -> BesideLine:
    """A block with some of its units and a line beside them, both fitted together.

    Args:
        model: the model; left as it was.
        site: of the block.
        kept: the units that stay, shape (k,).
        joint: moments of units and inputs together, the units first.
    """
    own = readout(model, site)
    units, outputs = own.weight.shape
    width = width_of(model)
    # an input is a unit that the block does not read out yet
    padded = AffineMap(torch.cat([own.weight, own.weight.new_zeros(width, outputs)]), own.bias)
    places = torch.cat([kept, torch.arange(units, units + width)])
    new = refit(joint, padded, places, has_constant(model, site))
    thin = with_units(model, site, kept, AffineMap(new.weight[: len(kept)], new.bias))
    line = nn.Linear(width, outputs, bias=False, device=device_of(site.output), dtype=model.dtype)
    write(line, AffineMap(new.weight[len(kept) :], new.bias))
    return BesideLine(thin, line)


def _groups(blocks: Sequence[int]) -> list[Sequence[int]]:
    return [blocks[start : start + TOGETHER] for start in range(0, len(blocks), TOGETHER)]
