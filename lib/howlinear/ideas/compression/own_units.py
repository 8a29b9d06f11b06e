"""A smaller model without training: the dearest hidden units of every block stay, read out anew in closed form.

The paper (arXiv 2606.19379) puts an affine map in the place of a whole block. Here a block keeps some of its own hidden
units, so that it may give up a little instead of everything: y ≈ R h_K + c (`units`, `prune`). At last the readouts are
fitted once more, block after block, so that the residual stream stays near the whole model's (`anchor`). Everything is
chosen on the text to fit on; what it costs is measured on held-out text.

If asked, a block may have a line of its input beside fewer units, y ≈ R h_K + A x + c, of any rank, where that is
priced lower (`line_beside`). On SmolLM2-135M that costs less without the anchor, and as much with it (notebook 14).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import exp

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.ideas.compression.anchor import anchor
from howlinear.ideas.compression.budget import share_out
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.costs import timed_losses
from howlinear.ideas.compression.line_beside import beside_line
from howlinear.ideas.compression.prune import budget_for, check_rows, fewer_units, thinned, total_price, units_for
from howlinear.instrument.perplexity import Change, change
from howlinear.models.ffn_sites import sites
from howlinear.models.load import check_causal
from howlinear.models.replace import replace
from howlinear.models.units import unit_layers
from howlinear.text.rows import TokenRows


@dataclass(frozen=True)
class Layout:
    """What each block keeps.

    Attributes:
        units: block → how many of its hidden units.
        lines: block → rank of the line beside them, of blocks that have one.
        price: what that is predicted to cost on the text to fit on, nats per token.
    """

    units: dict[int, int]
    lines: dict[int, int]
    price: float


def layout(calibration: Calibration, share: float, alike: bool = False, lines: bool = False) -> Layout:
    """Share a budget out among the blocks.

    Args:
        calibration: the model and the text.
        share: of all parameters, what the copy may hold at most.
        alike: every block keeps as many units.
        lines: a block may have a line beside its units.

    Raises:
        InputError: the FFNs cannot give so much, or the model's hidden units cannot be reached; lines in blocks that
            are to be alike.
    """
    if alike and lines:
        raise InputError("alike=True is for transformers alone, which knows no lines beside units: ask for one of both")
    model = calibration.model
    if not lines:
        eliminations, _ = calibration.eliminations
        counts = units_for(model, eliminations, share, alike)
        return Layout(counts, {}, total_price(eliminations, counts))
    budget = budget_for(model, sites(model), share)
    ways = calibration.ways_beside
    chosen = {block: ways[block].iloc[place] for block, place in share_out(ways, budget).items()}
    return Layout(
        units={block: int(way["units"]) for block, way in chosen.items()},
        lines={block: int(way["rank"]) for block, way in chosen.items() if way["rank"]},
        price=sum(float(way["price"]) for way in chosen.values()),
    )


def before_anchor(calibration: Calibration, share: float, alike: bool = False, lines: bool = False) -> PreTrainedModel:
    """Own units whose readouts are fitted in the whole model alone; arguments and errors as of `layout`."""
    model = calibration.model
    eliminations, moments = calibration.eliminations
    found = layout(calibration, share, alike, lines)
    if not found.lines:
        return fewer_units(model, eliminations, moments, found.units)
    modules = {}
    for site in sites(model):
        block = site.block
        kept = eliminations[block].kept(found.units[block])
        if block in found.lines:
            joint = calibration.joint(block)
            metric = calibration.stakes[block].metric
            modules[block] = beside_line(model, site, kept, joint, metric, found.lines[block])
        else:
            modules[block] = thinned(model, site, kept, moments[block])
    return replace(model, modules)


def own_units(
    calibration: Calibration, share: float, alike: bool = False, lines: bool = False, progress: bool = False
) -> PreTrainedModel:
    """A smaller copy: units chosen, read out anew, and anchored to the whole model's residual stream.

    Args:
        calibration: the model and the text; it keeps the readouts, since an anchor takes minutes.
        share: of all parameters, what the copy may hold at most.
        alike: every block keeps as many units.
        lines: a block may have a line beside its units.
        progress: show a bar.

    Raises:
        InputError: as of `layout`.
    """
    smaller = before_anchor(calibration, share, alike, lines)
    layers = {site.block: unit_layers(smaller, site)[-1] for site in sites(smaller)}
    known = calibration.anchored.get((share, alike, lines))
    if known is None:
        anchor(calibration.model, smaller, calibration.ids, calibration.stakes, progress=progress)
        readouts = {block: copy.deepcopy(layer.state_dict()) for block, layer in layers.items()}
        calibration.anchored[share, alike, lines] = readouts
    else:
        for block, layer in layers.items():
            layer.load_state_dict(known[block])
    return smaller


@dataclass(frozen=True)
class Compressed:
    """A smaller model, and what it costs on held-out text.

    Attributes:
        model: the copy; an ordinary `transformers` model.
        units: block → how many hidden units it keeps.
        lines: block → rank of the line beside them, of blocks that have one.
        base: perplexity before.
        perplexity: perplexity after.
        delta: after minus before, with its paired interval.
        price: what was predicted on the text to fit on, before the anchor, nats per token.
        next_price: what is predicted for one part in a hundred of all parameters less; None where that cannot be.
        speeds: tokens of held-out text per second before and after, by the clock of this machine at this hour.
    """

    model: PreTrainedModel
    units: dict[int, int]
    lines: dict[int, int]
    base: float
    perplexity: float
    delta: Change
    price: float
    next_price: float | None
    speeds: tuple[float, float]

    @property
    def outlook(self) -> str:
        """One sentence: what the next step would have cost."""
        if self.next_price is None:
            return "Its blocks cannot give another hundredth of all parameters."
        return (
            f"Another hundredth of all parameters would cost {self.next_price - self.price:.3f} nats per token more, "
            f"by the price that said {self.price:.3f} for these."
        )


def compress(
    model: PreTrainedModel,
    rows: TokenRows,
    max_parameters: float,
    alike: bool = False,
    lines: bool = False,
    progress: bool = False,
) -> Compressed:
    """A copy of a model with smaller feed-forward blocks; nothing is trained.

    Readouts are fitted once more in the copy (`anchor`), but not in families that norm what a block writes (Gemma 2 and
    3, OLMo 2).

    Args:
        model: a causal language model; left as it was.
        rows: packed sequences with their split: units are chosen and read out anew on one side, the other says what
            that costs. Four rows to fit on for every hidden unit of a block are the least, twenty are better.
        max_parameters: the share of all parameters that the copy may have at most, as 0.9.
        alike: every block keeps as many units, so that the folder loads in `transformers` alone; it costs more.
        lines: a block may have a line beside its units, where that is priced lower.
        progress: show bars.

    Raises:
        InputError: a share that is none or that cannot be met, a text too short, a model that predicts no next token,
            or one whose hidden units cannot be reached; lines in blocks that are to be alike.
    """
    calibration = prepared(model, rows, max_parameters, progress)
    smaller = own_units(calibration, max_parameters, alike, lines, progress)
    before = timed_losses(model, rows.ids[rows.test])
    return judged(calibration, smaller, rows, max_parameters, alike, lines, before)


def prepared(model: PreTrainedModel, rows: TokenRows, max_parameters: float, progress: bool = False) -> Calibration:
    """What a compression starts from, after everything that can be refused before anything is computed.

    Args:
        model: a causal language model.
        rows: packed sequences with their split.
        max_parameters: the smallest share of all parameters that may be asked for.
        progress: show bars.

    Raises:
        InputError: a share that is none or that cannot be met, a text too short, a model that predicts no next token,
            or one whose hidden units cannot be reached.
    """
    check_causal(model)
    chosen = sites(model)
    budget_for(model, chosen, max_parameters)
    check_rows(model, chosen, rows)
    return Calibration(model, rows, progress=progress)


def judged(
    calibration: Calibration,
    smaller: PreTrainedModel,
    rows: TokenRows,
    share: float,
    alike: bool,
    lines: bool,
    before: tuple[Float[Tensor, " n"], float],
) -> Compressed:
    """A smaller model on the held-out side of the rows, beside the whole one.

    Args:
        calibration: the whole model and the text to fit on.
        smaller: what `own_units` made of it.
        rows: packed sequences with their split.
        share: of all parameters, what the copy may hold at most.
        alike: every block keeps as many units.
        lines: a block may have a line beside its units.
        before: the whole model's losses there, and its speed, as of `costs.timed_losses`.
    """
    losses, speed = before
    after, speed_after = timed_losses(smaller, rows.ids[rows.test])
    found = layout(calibration, share, alike, lines)
    try:
        next_price = layout(calibration, share - 0.01, alike, lines).price
    except InputError:
        next_price = None
    return Compressed(
        model=smaller,
        units=found.units,
        lines=found.lines,
        base=exp(losses.mean()),
        perplexity=exp(after.mean()),
        delta=change(losses, after, rows.fold[rows.test]),
        price=found.price,
        next_price=next_price,
        speeds=(speed, speed_after),
    )
