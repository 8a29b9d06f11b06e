"""A race: several compressors on the same text, to the same sizes, judged by the same held-out perplexity.

Our compressor is `own_units`; its rivals are in `compressors` (`lines`, `drop`, `width`), each as its
paper describes it. None is trained. A budget is a share of *all* parameters of the model, embeddings and attention
included. A compressor that drops whole blocks or layers cannot fill a budget exactly and ends below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from scipy import linalg
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.files.tables import with_ends
from howlinear.ideas.compression.allocate import (
    Thinned,
    allocate_units,
    costs_of,
    eliminations_of,
    has_constant,
    least_share,
)
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import drop, lines, width
from howlinear.ideas.compression.costs import cost
from howlinear.ideas.compression.own_units import before_anchor, layout, own_units
from howlinear.ideas.compression.units import RIDGES, Elimination, UnitMoments, eliminate, gram_with_constant, root_of
from howlinear.instrument.perplexity import held_out, losses, perplexity, ratio_of
from howlinear.models.ffn_sites import sites, width_of
from howlinear.models.layers import parameters
from howlinear.models.load import is_causal
from howlinear.models.replace import replace as replace_blocks
from howlinear.models.units import readout
from howlinear.text.rows import TokenRows

Compressor = Callable[[float], PreTrainedModel]
"""Takes the share of all parameters to keep, and returns a copy of the model that holds no more."""


COMPRESSORS: dict[str, Callable[[Calibration, float], PreTrainedModel]] = {
    "own units": own_units,
    "own units, alike": partial(own_units, alike=True),
    "lines by R²": lines.by_r2,
    "lines by price": lines.by_price,
    "lines, mended": partial(lines.by_price, ordinary=True),
    "ShortGPT": drop.layers,
    "LLM-Drop, FFN": partial(drop.sub_layers, kinds=["ffn"]),
    "LLM-Drop, joint": partial(drop.sub_layers, kinds=["ffn", "attention"]),
    "ReplaceMe, LS": drop.replace_me,
    "magnitude": width.magnitude,
    "Wanda": width.wanda,
    "FLAP": width.flap,
    "GRAIL on Wanda": width.wanda_ridge,
    "GRAIL on FLAP": width.flap_ridge,
    "LLM Surgeon": width.surgeon,
}
"""Name → compressor."""


def check_shares(shares: Sequence[float]) -> None:
    """Refuse an empty list of shares, and shares that are not between 0 and 1."""
    if not shares or not all(0 < share < 1 for share in shares):
        raise InputError(f"shares of all parameters {list(shares)}: give at least one between 0 and 1, as 0.9")


def choose_shares(model: PreTrainedModel, shares: Sequence[float]) -> list[float]:
    """Select the shares of all parameters that a model can be reduced to; if there are none, choose one that it can."""
    if not is_causal(model):
        raise InputError("it predicts no next token")
    least = least_share(model)
    possible = [share for share in shares if share > least + 5e-4]  # a budget is counted in whole parameters
    return possible or [round((1 + least) / 2, 3)]


COLUMNS = [
    *("corpus", "method", "share", "kept", "perplexity_after"),
    *(*with_ends("ratio"), *with_ends("delta"), *with_ends("over_first"), "why"),
]
"""Columns of a race."""


def racers(
    calibration: Calibration,
    names: Sequence[str],
    known: Mapping[str, Callable[[Calibration, float], PreTrainedModel]] = COMPRESSORS,
) -> dict[str, Compressor]:
    """Bind some of the `known` compressors to one model and one text, ready to race."""
    check_known(names, known, "compressor")
    return {name: partial(known[name], calibration) for name in names}


def check_known(names: Sequence[str], known: Collection[str], kind: str) -> None:
    """Refuse names that are not known as a compressor, or as a part of one."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"no {kind} is called {', '.join(unknown)}: there are {', '.join(known)}")


def race(
    model: PreTrainedModel,
    compressors: Mapping[str, Compressor],
    shares: Sequence[float],
    texts: Mapping[str, TokenRows],
) -> pd.DataFrame:
    """Compress a model in several ways to several sizes, and measure what is left on held-out text; table `race`."""
    scored = {name: held_out(text) for name, text in texts.items()}
    before = {name: losses(model, sequences) for name, sequences in scored.items()}
    whole = parameters(model)
    first: dict[tuple[float, str], Float[Tensor, " n"]] = {}  # losses of the first compressor's copies
    rows = []
    for method, compress in compressors.items():
        for share in shares:
            try:
                smaller = compress(share)
            except InputError as error:
                rows += [{"corpus": name, "method": method, "share": share, "why": str(error)} for name in texts]
                continue
            held = parameters(smaller)
            if held > round(share * whole):
                raise InputError(f"{method} leaves {held} of {whole} parameters, more than {share:.0%}")
            for name, sequences in scored.items():
                after, fold = losses(smaller, sequences), sequences.fold
                row = {"corpus": name, "method": method, "share": share, "kept": held / whole}
                row |= {"perplexity_after": float(after.mean().exp())}
                row |= ratio_of(before[name], after, fold).columns("ratio") | cost(before[name], after, fold)
                if method == next(iter(compressors)):
                    first[share, name] = after
                if (share, name) in first:
                    row |= ratio_of(first[share, name], after, fold).columns("over_first")
                rows.append(row | {"why": ""})
            del smaller  # before the next copy is made
    return pd.DataFrame(rows, columns=COLUMNS)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Put races on one text side by side: a row per method, a column per model and share, NaN without a copy."""
    return table.pivot_table(index="method", columns=["model", "share"], values="ratio", sort=False)


def whole_perplexities(model: PreTrainedModel, texts: Mapping[str, TokenRows]) -> pd.DataFrame:
    """Perplexity of the whole model on the held-out side of texts: a row a text, `corpus` and `perplexity`."""
    return pd.DataFrame([{"corpus": name, "perplexity": perplexity(model, text)} for name, text in texts.items()])


# --- What keeps own units from costing less
#
# Each number is a perplexity over that of the whole model. If a model costs no more than the sum of its blocks' prices,
# taken before the anchor, these add up, and `allocate` leaves nothing to gain among blocks. A readout costs least on
# rows that it has seen, so the cost with unlimited text lies between that on the text fitted on and the held-out one.
# If more rows to fit on do not lower it, the rest is due to the units themselves.

FITTED_TOKENS = 2048  # training tokens on which own units are measured as well
WHAT = ("by the blocks' prices", "on the text fitted on", "held out")
"""The numbers of `limits`, in order; those after a fit to other numbers of rows follow."""


def limits(
    model: PreTrainedModel,
    rows: TokenRows,
    calibration: Calibration,
    shares: Sequence[float],
    held_out: TokenRows,
    raced: pd.DataFrame,
    others: Sequence[TokenRows],
) -> pd.DataFrame:
    """Measure the `ratio` of own units by each of `WHAT`, and fitted to each of `others`; the price has no interval."""
    seen = {WHAT[1]: fitted_on(rows, FITTED_TOKENS)}
    found = [race(model, {"": partial(own_units, calibration)}, shares, seen), raced.assign(corpus=WHAT[2])]
    for other in others:
        refitted = Calibration(model, other, calibration.priced)
        name = f"held out, fitted on {refitted.ids.numel():,} rows"
        found.append(race(model, {"": partial(own_units, refitted)}, shares, {name: held_out}))
    measured = pd.concat(found).rename(columns={"corpus": "what"})
    table = []
    for share in shares:
        price = layout(calibration, share).price
        table.append({"share": share, "what": WHAT[0], "ratio": float(np.exp(price))})
        table += measured[measured["share"] == share].to_dict("records")
    return pd.DataFrame(table, columns=["share", "what", *with_ends("ratio")])


def fitted_on(rows: TokenRows, tokens: int) -> TokenRows:
    """Return the training side as if it were held out, cut to the first sequences of every document fold."""
    return replace(rows, test=~rows.test).with_fewer_held_out(tokens).held_out


# --- What each part of own units contributes: the same compressor with one part exchanged, at the same size
#
# Own units removes hidden units one by one, by what is lost in the metric of the loss once the others are read out
# anew, with a ridge, from moments of the whole model (`allocate`); finally it anchors the readouts (`own_units`). A
# variant exchanges a part of what comes before the anchor, since anchoring each would take most of the time. If it
# prices units differently, each block's prices are scaled so that removing all of it costs what it does in own units.
# So variants differ in the choice within blocks and in how a price grows, not in what a block is worth.


def by_scores(calibration: Calibration, share: float) -> PreTrainedModel:
    """Keep the units of largest variance times squared readout, in the metric of the loss, and read them out anew."""

    def order_by_scores(covariance: Float[Tensor, "m m"], weight: Float[Tensor, "m d"]) -> Elimination:
        scores = covariance.diagonal() * weight.square().sum(1)
        return in_order(covariance, weight, scores.argsort())

    return _exchanged(calibration, share, choose=order_by_scores)


def plain_squares(calibration: Calibration, share: float) -> PreTrainedModel:
    """Eliminate units exactly, with errors in all directions and at all positions weighted alike."""
    _, own = eliminations_of(calibration)
    unweighted = width.moments_of(calibration)
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
