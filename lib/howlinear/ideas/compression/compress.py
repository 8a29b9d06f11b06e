"""A smaller model within a budget of parameters or of perplexity, and its cost on held-out text.

The size that meets a budget of perplexity is not known in advance: prices are predicted on the training side, before
the anchor, while the budget is checked on held-out text. So a size is guessed by its price, made and measured, and its
cost corrects the next guess. Since the held-out text then decides where to stop, the rise may be larger on other text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, log1p
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.ideas.compression.allocate import budget_for, least_share
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.costs import Outcome, timed_losses
from howlinear.ideas.compression.own_units import layout, own_units
from howlinear.instrument.as_rows import rows_of
from howlinear.instrument.layerwise import open_given
from howlinear.instrument.perplexity import change
from howlinear.models.checks import check_count, check_flags, check_number, undisturbed
from howlinear.models.ffn_sites import sites
from howlinear.models.forward import running
from howlinear.models.load import check_causal
from howlinear.models.units import check_plain, unit_count
from howlinear.models.work import open_work
from howlinear.text.rows import TokenRows, check
from howlinear.text.unpad import without_padding

ROWS_A_UNIT = 4
"""Training rows per hidden unit, at least; with fewer, units cannot be told apart."""

GUESSES = 5
"""Sizes that are made and measured at most; on SmolLM2-135M each takes three minutes."""

AIM = 0.99
"""Share of the allowed rise that a guess aims at, so that a slightly costlier model is still within the budget."""

NEAR = 0.97
"""A size within the budget that costs at least this share of the allowed rise is near enough."""

FURTHER = 4
"""The next price to aim at is at most this many times the last one."""

STEP = 0.001
"""Step between the shares of all parameters that are considered."""


@dataclass(frozen=True)
class Compressed(Outcome):
    """A smaller model, and what it costs on held-out text, see `Outcome`.

    Attributes:
        model: the copy; an ordinary `transformers` model.
        units: block → how many hidden units it keeps.
        price: the cost predicted on the training side, before the anchor, nats per token.
        next_price: the cost predicted with another hundredth of all parameters removed; None if that is impossible.
        multiple: every block keeps a multiple of this number of hidden units.
        free_price: the cost predicted for the same budget with any number of units allowed, nats per token.
    """

    model: PreTrainedModel
    units: dict[int, int]
    price: float
    next_price: float | None
    multiple: int
    free_price: float

    def __repr__(self) -> str:
        return f"<Compressed: {self.model.num_parameters():,} parameters; {self.cost}>"

    @property
    def outlook(self) -> str:
        """The predicted cost of another hundredth, and of the same budget without multiples; a sentence each."""
        if self.next_price is None:
            sentence = "Its blocks cannot give another hundredth of all parameters."
        else:
            sentence = (
                f"Another hundredth of all parameters would cost {self.next_price - self.price:.3f} nats per token "
                f"more, by the price that said {self.price:.3f} for these."
            )
        if self.multiple == 1:
            return sentence
        return (
            f"{sentence} Blocks keep multiples of {self.multiple} units; of any numbers, as many parameters as were "
            f"allowed would be priced {self.free_price:.3f}."
        )


def compress(
    model: Any,
    rows: Any,
    max_parameters: float | None = None,
    max_dppl: float | None = None,
    alike: bool = False,
    progress: bool = False,
    blocks: int | Iterable[int] | None = None,
    batch_size: int = 16,
    multiple: int = 1,
    layerwise: bool | None = None,
    work: Path | str | None = None,
) -> Compressed:
    """Copy a model with smaller feed-forward blocks, without training.

    Every block keeps some of its hidden units, read out anew (`own_units`), within one budget: a share of all
    parameters, or a rise of perplexity. Readouts are fitted once more in the copy, but not in families that normalise
    the output of a block (Gemma 2 and 3, OLMo 2).

    Args:
        model: a causal language model, or its name; not changed.
        rows: a text, or sequences with their split (`as_rows.rows_of`): units are chosen and read out on the training
            side, and the cost is measured on the held-out side. At least four training rows per hidden unit of a block
            are needed; twenty are better.
        max_parameters: the largest share of all parameters that the copy may have, e.g. 0.9.
        max_dppl: the largest rise of perplexity on the held-out side, e.g. 1.0; the smallest copy found within it is
            returned.
        alike: keep equally many units in every block, so that `transformers` alone loads the folder; this costs more.
        progress: show bars.
        blocks: the block or blocks that may be changed; all by default.
        batch_size: sequences in a forward pass; a half or a quarter of it in passes that keep hidden units, logits or
            gradients.
        multiple: every block keeps a multiple of this number of units, e.g. 256 for `to_decilm`, which then pads none.
        layerwise: for a model given by name, leave the weights on disk and move the text through it layer by layer, as
            `measure` does; by default if they do not fit in memory. The copy's weights are then in temporary files,
            which are deleted with it: `save` it.
        work: a folder that keeps results layer by layer: an interrupted run is resumed, and a run with another budget
            reuses the prices. The copy's files stay in it.

    Raises:
        InputError: no budget or both given; the budget is invalid or cannot be met; the text is too short; the model
            predicts no next token, or its hidden units cannot be reached; or blocks are too narrow for the multiple.
    """
    if (max_parameters is None) == (max_dppl is None):
        raise InputError("give one budget: max_parameters, as 0.9 of all, or max_dppl, a rise of perplexity, as 1.0")
    for name, budget, example in (("max_parameters", max_parameters, "0.9"), ("max_dppl", max_dppl, "1.0")):
        if budget is not None:
            check_number(name, budget, example)
    if max_dppl is not None and max_dppl <= 0:
        raise InputError(f"a budget of {max_dppl:g}: give by how much perplexity may rise, as 1.0")
    if alike and blocks is not None:
        raise InputError("alike is about all blocks, so that one number in the config says it: leave blocks out")
    batch_size = check_count("batch_size", batch_size)
    check_count("multiple", multiple)
    check_flags(alike=alike, progress=progress, layerwise=layerwise)
    model = open_given(model, layerwise, work)
    check_causal(model)
    rows = without_padding(rows_of(rows, model))
    with running(model), undisturbed(model):
        calibration = Calibration(
            model, rows, progress=progress, blocks=blocks, batch_size=batch_size, multiple=multiple
        )
        check_possible(calibration, rows, max_parameters)
        if work is not None:
            about = {"rows": rows.sha256, "blocks": calibration.blocks, "batch_size": batch_size, "multiple": multiple}
            calibration.work = open_work(work, model, about)
        whole = timed_losses(model, rows.ids[rows.test], max(1, batch_size // 2))
        if max_dppl is not None:
            return _smallest_within(calibration, rows, max_dppl, alike, whole)
        return make_and_measure(calibration, rows, max_parameters, alike, whole)


def check_possible(calibration: Calibration, rows: TokenRows, max_parameters: float | None) -> None:
    """Refuse, before anything is computed, whatever cannot be compressed."""
    model, multiple = calibration.model, calibration.multiple
    chosen = sites(model, calibration.blocks)
    check_plain(model, chosen)
    check(model, rows)
    counts = [unit_count(model, site) for site in chosen]
    narrowest, widest = min(counts), max(counts)
    if narrowest < multiple or widest == multiple:
        raise InputError(
            f"a block of {narrowest:,} hidden units cannot keep fewer in multiples of {multiple}: leave out "
            "multiple (--decilm), or such blocks"
        )
    if max_parameters is not None:
        budget_for(model, chosen, max_parameters, multiple)
    train = rows.ids[~rows.test].numel()
    held_out = int(rows.test.sum())
    if train < ROWS_A_UNIT * widest or held_out < 2 or rows.ids.shape[1] < 2:
        raise InputError(
            f"{train:,} rows to fit on and {held_out} sequences held out are too few to choose among {widest:,} hidden "
            f"units by: give {ROWS_A_UNIT * widest:,} rows to fit on or more, and two sequences of two tokens held out"
        )


def make_and_measure(
    calibration: Calibration, rows: TokenRows, share: float, alike: bool, whole: tuple[Float[Tensor, " n"], float]
) -> Compressed:
    """Make a smaller model, and measure it on the held-out side of the rows, against the whole one."""
    losses, speed = whole
    smaller = own_units(calibration, share, alike)
    after, speed_after = timed_losses(smaller, rows.ids[rows.test], max(1, calibration.batch_size // 2))
    found = layout(calibration, share, alike)
    free_price = found.price if calibration.multiple == 1 else layout(calibration, share, alike, multiple=1).price
    kept = smaller.num_parameters() / calibration.model.num_parameters()
    try:
        next_price = layout(calibration, kept - 0.01, alike).price
    except InputError:
        next_price = None
    return Compressed(
        model=smaller,
        units=found.units,
        base=exp(losses.mean()),
        perplexity=exp(after.mean()),
        delta=change(losses, after, rows.fold[rows.test]),
        price=found.price,
        next_price=next_price,
        speeds=(speed, speed_after),
        multiple=calibration.multiple,
        free_price=free_price,
    )


# --- The smallest model within a budget of perplexity


def _smallest_within(
    calibration: Calibration, rows: TokenRows, max_dppl: float, alike: bool, whole: tuple[Float[Tensor, " n"], float]
) -> Compressed:
    """Search for the smallest copy within a rise of perplexity."""
    losses, _ = whole
    allowed = log1p(max_dppl / exp(losses.mean()))  # nats per token
    best: tuple[float, Compressed] | None = None
    tried: dict[float, tuple[float, float]] = {}  # share → price and measured cost, nats per token
    price = AIM * allowed
    while len(tried) < GUESSES:
        share = share_priced(calibration, price, alike)
        if share is None or share in tried:
            break
        found = make_and_measure(calibration, rows, share, alike, whole)
        if found.delta.delta <= max_dppl and (best is None or share < best[0]):
            best = (share, found)
        cost = log1p(found.delta.delta / found.base)
        tried[share] = found.price, cost
        if NEAR * allowed <= cost <= allowed:
            break
        price = next_price(list(tried.values()), AIM * allowed)
    if best is None:
        raise InputError(
            f"of {len(tried)} sizes tried none is within {max_dppl:g} of perplexity: allow more, or give more rows"
        )
    return best[1]


def next_price(measured: Sequence[tuple[float, float]], allowed: float) -> float:
    """Extrapolate the price to aim at next, by a power law through the last two sizes or in proportion to one."""
    price, cost = measured[-1]
    furthest = FURTHER * price
    if cost <= 0:
        return furthest
    power = 1.0
    if len(measured) > 1:
        price_before, cost_before = measured[-2]
        if cost_before > 0 and price not in (0, price_before):
            power = log(cost / cost_before) / log(price / price_before)
    # if costs are near one another, noise decides the power
    power = min(max(power, 0.5), 3.0)
    return min(price * (allowed / cost) ** (1 / power), furthest)


def share_priced(calibration: Calibration, price: float, alike: bool = False) -> float | None:
    """Find the smallest share of all parameters, in steps of `STEP`, priced within a budget; None if there is none."""
    least = least_share(calibration.model, calibration.blocks, calibration.multiple)
    shares = [round(number * STEP, 3) for number in range(int(least / STEP) + 1, round(1 / STEP))]
    # prices fall as shares rise
    place = bisect_left(shares, -price, key=lambda share: -layout(calibration, share, alike).price)
    return shares[place] if place < len(shares) else None
