"""The smallest model whose perplexity rises by no more than is allowed.

How many parameters that takes is not known beforehand: prices are predicted on the text to fit on, before the anchor,
and a budget of perplexity is met on held-out text. So a size is guessed by its price, made and measured, and what it
costs corrects the next guess. The held-out text has then said where to stop: on other text the rise may be larger.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, log, log1p

from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.costs import timed_losses
from howlinear.ideas.compression.own_units import Compressed, judged, layout, own_units, prepared
from howlinear.ideas.compression.prune import least_share
from howlinear.models.load import check_causal
from howlinear.text.rows import TokenRows

GUESSES = 5
"""Sizes that are made and measured at most; on SmolLM2-135M each takes three minutes."""

AIM = 0.99
"""Of what is allowed, what a guess aims at, so that one a little too small is still within."""

NEAR = 0.97
"""A size that costs this share of what is allowed, or more, is near enough."""

FURTHER = 4
"""A price is at most so many times the one before."""

STEP = 0.001
"""Shares of all parameters that differ by less are one size."""


def compress_within(
    model: PreTrainedModel,
    rows: TokenRows,
    max_dppl: float,
    alike: bool = False,
    lines: bool = False,
    progress: bool = False,
) -> Compressed:
    """The smallest copy of a model that is found within a budget of perplexity; nothing is trained.

    Args:
        model: a causal language model; left as it was.
        rows: packed sequences with their split, as for `own_units.compress`.
        max_dppl: by how much perplexity on the held-out side may rise.
        alike: every block keeps as many units, so that the folder loads in `transformers` alone; it costs more.
        lines: a block may have a line beside its units, where that is priced lower.
        progress: show bars.

    Raises:
        InputError: a budget that is none, or within which no hidden unit can go; and as of `own_units.compress`.
    """
    if not 0 < max_dppl < float("inf"):
        raise InputError(f"a budget of {max_dppl:g}: give by how much perplexity may rise, as 1.0")
    check_causal(model)
    least = (int(least_share(model) / STEP) + 1) * STEP
    calibration = prepared(model, rows, least, progress)
    before = timed_losses(model, rows.ids[rows.test])
    losses, _ = before
    allowed = log1p(max_dppl / exp(losses.mean()))  # nats per token

    best: tuple[float, Compressed] | None = None
    measured: list[tuple[float, float]] = []  # of each size, its price and what it costs, nats per token
    tried: set[float] = set()
    price = AIM * allowed
    for _ in range(GUESSES):
        share = share_priced(calibration, price, least, alike, lines)
        if share is None or share in tried:
            break
        tried.add(share)
        smaller = own_units(calibration, share, alike, lines, progress)
        found = judged(calibration, smaller, rows, share, alike, lines, before)
        if found.delta.delta <= max_dppl and (best is None or share < best[0]):
            best = (share, found)
        cost = log1p(found.delta.delta / found.base)
        if NEAR * allowed <= cost <= allowed:
            break
        measured.append((found.price, cost))
        price = next_price(measured, AIM * allowed)
    if best is None:
        raise InputError(
            f"of {len(tried)} sizes tried none is within {max_dppl:g} of perplexity: allow more, or give more rows"
        )
    return best[1]


def next_price(measured: Sequence[tuple[float, float]], allowed: float) -> float:
    """The price to aim at next: a power law through the last two sizes, or in proportion to the only one.

    Args:
        measured: of each size so far, its price and what it costs, nats per token.
        allowed: what it may cost.
    """
    price, cost = measured[-1]
    furthest = FURTHER * price
    if cost <= 0:
        return furthest
    power = 1.0
    if len(measured) > 1:
        price_before, cost_before = measured[-2]
        if cost_before > 0 and price not in (0, price_before):
            power = log(cost / cost_before) / log(price / price_before)
    # costs may be so near one another that chance decides
    power = min(max(power, 0.5), 3.0)
    return min(price * (allowed / cost) ** (1 / power), furthest)


def share_priced(
    calibration: Calibration, price: float, least: float, alike: bool = False, lines: bool = False
) -> float | None:
    """The smallest share of all parameters that is priced within a budget, to a `STEP`; None if there is none.

    Args:
        calibration: the model and the text.
        price: what it may be predicted to cost, nats per token.
        least: the smallest share that there is.
        alike: every block keeps as many units.
        lines: a block may have a line beside its units.
    """
    shares = [round(steps * STEP, 3) for steps in range(round(least / STEP), round(1 / STEP))]
    # prices fall as shares rise
    place = bisect_left(shares, -price, key=lambda share: -layout(calibration, share, alike, lines).price)
    return shares[place] if place < len(shares) else None
