"""A gate, which leaves some tokens of a block to a line and the others to the FFN: what it is, its fit, its threshold.

A rank is a function of a row's input x; rows of low rank take the line, and a threshold says how low. The rank of a
gate is a score of d + 1 numbers. arXiv 2603.03459 trains one of as many; here nothing is trained. In this order:

1. massive rows (`instrument.massive`) are left to the FFN: no line is fitted to them;
2. the first line is the least-squares line of the ordinary rows;
3. the score is the least-squares affine function from x to the logarithm of the first line's squared error, fitted to
   all rows. The logarithm is used because errors range over decades and only their order counts; all rows are used
   because a massive row must be recognised by its x alone;
4. rows of low score take the line, which is then refitted to the ordinary rows among them.

Errors are weighted alike in all directions. We also tried to weight them by what they cost in the loss, by the metric
of notebook 06's prices, and to fit the squared error or its root instead of the logarithm: with half of the tokens on
the line, in three blocks each of mini-llama and mini-gpt2, nothing improved by more than the intervals resolve, and the
first variant needs a backward pass.

The same steps with the true error instead of the score make an oracle, and with random numbers instead of the score
they show what an uninformed gate achieves.

A gate decides row by row and its line is refitted to the rows that take it, so it is fitted to single rows and not to
moments. The text comes in three parts: to fit gates, to choose thresholds, to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap, Ceiling, ceiling, fit
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.massive import MULTIPLE
from howlinear.instrument.resample import rows_of_blocks
from howlinear.instrument.swap_costs import swap_losses
from howlinear.text.rows import TokenRows

# --- A text in three parts, and the rows of a block on one of them

CHOOSING = 4
"""One in this many training folds is set aside to choose thresholds on."""


class Parts(NamedTuple):
    """A text in three parts that have no document in common."""

    fitting: TokenRows  # lines and scores are fitted here
    choosing: TokenRows  # thresholds are chosen here
    judging: TokenRows  # held out; shares and costs are measured here


def split_in_three(rows: TokenRows, choose_rows: int | None = None, cost_rows: int | None = None) -> Parts:
    """Split a text in three, with thresholds chosen on the last quarter of the training folds."""
    folds = rows.fold[~rows.test].unique()
    if len(folds) < 3:
        raise InputError(
            f"{len(folds)} document folds to fit on: a gate needs three, two to fit it and one to choose its "
            "threshold; use more text"
        )
    chosen_folds = folds[-max(1, len(folds) // CHOOSING) :]
    chooses = ~rows.test & torch.isin(rows.fold, chosen_folds)
    fits = ~rows.test & ~chooses
    return Parts(
        fitting=rows.subset(fits.nonzero()[:, 0]),
        choosing=replace(rows, test=chooses).with_fewer_held_out(choose_rows).held_out,
        judging=rows.with_fewer_held_out(cost_rows).held_out,
    )


@dataclass(frozen=True)
class BlockRows:
    """A block's rows on one part of a text, as they were, sequence after sequence; float32."""

    x: Float[Tensor, "n d"]  # FFN inputs
    y: Float[Tensor, "n d"]  # FFN outputs
    fold: Int64[Tensor, " n"]  # the document fold of each row

    @property
    def massive(self) -> Bool[Tensor, " n"]:
        """Which rows write outputs beyond ten times the median norm (`instrument.massive`), shape (n,)."""
        norm = torch.linalg.vector_norm(self.y, dim=1)
        return norm > MULTIPLE * norm.median()

    def moments(self, which: Bool[Tensor, " n"]) -> Moments:
        """Moments of inputs and outputs of some of the rows."""
        width = self.x.shape[1]
        return Moments(width, width).update(self.x[which], self.y[which])

    def moments_with(self, target: Float[Tensor, " n"]) -> list[Moments]:
        """Compute moments of all inputs with one target number per row, for each document fold in order."""
        folds = [self.fold == number for number in self.fold.unique()]
        return [Moments(self.x.shape[1], 1).update(self.x[inside], target[inside, None]) for inside in folds]


def block_rows(model: PreTrainedModel, text: TokenRows, blocks: list[int]) -> dict[int, BlockRows]:
    """Collect the rows of some blocks by one forward pass without the head, in 8 d bytes per token and block."""
    fold = text.fold.repeat_interleave(text.ids.shape[1])
    return {block: BlockRows(x, y, fold) for block, (x, y) in rows_of_blocks(model, text, blocks).items()}


# --- The module, and three ways to rank the tokens

Rank = Callable[[Float[Tensor, "n d"]], Float[Tensor, " n"]]
"""Takes inputs, and returns one number per row; rows of the lowest numbers take the line first."""

FLOOR = 1e-6
"""Squared errors below this share of their mean are raised to it: smaller ones are rounding, which a logarithm would
magnify."""

FINE = 256.0
"""How often a random rank cycles over one unit of a projection of x: too fine for an affine score to follow, and coarse
enough that rounding differences of x between processors change almost no rank."""


def log_error(y: Float[Tensor, "n d"], line: Float[Tensor, "n d"], floor: float) -> Float[Tensor, " n"]:
    """Compute the logarithm of each row's squared error ‖y − line‖², raised to at least `floor`; float64."""
    squared = (y.double() - line.double()).square().sum(1)
    return squared.clamp_min(floor).log()


@torch.no_grad()
def true_error(ffn: nn.Module, line: AffineMap, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Compute the true squared error of a line at each row: an oracle, since it needs the FFN."""
    error = _as_one_sequence(ffn, x) - line(x)
    return error.square().sum(1)


@dataclass(frozen=True)
class RandomRank:
    """A random number for each row, uniform in [0, 1), and the same for the same row in every call.

    It is the fractional part of a large multiple of a random projection of x, so no smooth function of x predicts it.
    """

    direction: Float[Tensor, " d"]  # of the projection, float64, scaled so that x along it has variance 1

    @classmethod
    def of(cls, x: Float[Tensor, "n d"], seed: int = 0) -> RandomRank:
        """Draw a direction for rows like these."""
        direction = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(seed)).double()
        spread = (x.cpu().double() @ direction).std()
        return cls(direction / spread)

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The random number of each row."""
        along = x.double() @ self.direction.to(x.device)
        return (FINE * along).remainder(1.0).to(x)


class Gated(nn.Module):
    """A line in the place of an FFN for rows of low rank; the FFN is computed for the other rows only."""

    def __init__(self, ffn: nn.Module, line: AffineMap, rank: Rank, threshold: float, share: float = float("nan")):
        super().__init__()
        self.ffn = ffn
        self.line = line
        self.rank = rank
        self.threshold = threshold  # rows of at most this rank take the line
        self.share = share  # of the training rows that does

    def takes(self, x: Float[Tensor, "n d"]) -> Bool[Tensor, " n"]:
        """Which rows take the line, shape (n,)."""
        return self.rank(x) <= self.threshold

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return the line's output for rows that take it, the FFN's for all others."""
        rows = x.flatten(0, -2)
        takes = self.takes(rows)
        y = torch.empty_like(rows)
        y[takes] = self.line(rows[takes])
        y[~takes] = _as_one_sequence(self.ffn, rows[~takes])
        return y.view(x.shape)


def _as_one_sequence(ffn: nn.Module, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Apply a block to rows, as one sequence, since some blocks need an axis of sequences."""
    return ffn(rows[None])[0]


# --- The fit


GATE, ORACLE, RANDOM = "gate", "oracle", "random"

FEWEST = 2
"""Rows per input below which the line is not refitted: on fewer, the new line's estimation error, a share of about
d / n more, is as large as the gain."""


@dataclass(frozen=True)
class BlockGate:
    """A block with its fitted gate; a threshold turns it into a module."""

    ffn: nn.Module
    rows: BlockRows  # its training rows
    ordinary: Bool[Tensor, " n"]  # which of them are not massive
    line: AffineMap  # the first line
    error_score_fit: Ceiling  # of the score to the log error, held out; its `map` is the score
    ranks: Mapping[str, Rank]  # kind → the rank by which rows take the line
    ranked: Mapping[str, Float[Tensor, " n"]]  # kind → the rank of each training row

    def threshold(self, kind: str, share: float) -> float:
        """Find the rank that a share of the training rows does not exceed; infinite if all or none take the line."""
        if not 0 <= share <= 1:
            raise InputError(f"a share of {share} of the tokens on the line: give a number from 0 to 1")
        if share == 1:
            return float("inf")
        count = round(share * len(self.ordinary))
        if count == 0:
            return float("-inf")
        return float(self.ranked[kind].kthvalue(count).values)

    def refitted(self, kind: str, threshold: float) -> AffineMap:
        """Refit the line to the ordinary rows of at most this rank; return the first line if these are too few."""
        takes = self.ordinary & (self.ranked[kind] <= threshold)
        if int(takes.sum()) < FEWEST * (self.rows.x.shape[1] + 2):
            return self.line
        affine, _ = fit(self.rows.moments(takes))
        return affine

    def gated(self, kind: str, share: float, anew: bool = True) -> Gated:
        """Build the module for the block's place, with the line refitted to the rows that take it, or the first line.

        This share of the training rows takes the line; on other text the share will be about the same.
        """
        threshold = self.threshold(kind, share)
        line = self.refitted(kind, threshold) if anew else self.line
        return Gated(self.ffn, line, self.ranks[kind], threshold, share)


@torch.no_grad()
def fit_gate(ffn: nn.Module, rows: BlockRows, held_out: BlockRows, seed: int = 0) -> BlockGate:
    """Fit a block's gate, and see how much of the error its score explains on held-out rows."""
    # the first line, of ordinary rows: min ‖y − x W − b‖²
    ordinary = ~rows.massive
    line, _ = fit(rows.moments(ordinary))
    predicted = line(rows.x.double())
    squared = (rows.y.double() - predicted).square().sum(1)

    # the score, of all rows: the affine function of x nearest to log ‖y − x W − b‖²
    floor = FLOOR * float(squared.mean())
    of_fit = log_error(rows.y, predicted, floor)
    of_others = log_error(held_out.y, line(held_out.x.double()), floor)
    error_score_fit = ceiling(rows.moments_with(of_fit), held_out.moments_with(of_others))

    ranks = {
        # d + 1 numbers: all that is computed in addition to the line
        GATE: lambda x: error_score_fit.map(x)[:, 0],
        ORACLE: partial(true_error, ffn, line),
        RANDOM: RandomRank.of(rows.x, seed),
    }
    ranked = {
        GATE: ranks[GATE](rows.x),
        # needs no call of the block, since the outputs of training rows are stored
        ORACLE: squared.to(rows.x),
        RANDOM: ranks[RANDOM](rows.x),
    }
    return BlockGate(ffn, rows, ordinary, line, error_score_fit, ranks, ranked)


# --- The largest share of tokens on the line that costs no more than allowed, found by a few measurements


HALVINGS = 4
"""How often the bracket of a share is halved: it ends a sixteenth wide, and the share is interpolated in it."""


def rise(before: Float[Tensor, " n"], after: Float[Tensor, " n"]) -> float:
    """Compute the relative rise of perplexity: exp(mean loss after − mean loss before) − 1."""
    return float(torch.expm1((after - before).mean()))


def choose_shares(
    model: PreTrainedModel, gates: Mapping[int, BlockGate], text: TokenRows, limit: float
) -> dict[tuple[int, str], float]:
    """(block, kind) → the largest share of tokens that may take the line, with that block alone changed."""
    if not limit > 0:
        raise InputError(f"a rise of at most {limit:.2%}: every change costs something, give more than 0")
    everything = {block: (block, gate.gated(GATE, 1.0)) for block, gate in gates.items()}
    before, after = swap_losses(model, everything, text)
    # If all tokens on the line cost more than the limit, the share is bracketed: half of the tokens, then a quarter or
    # three quarters of them, and so on. It is interpolated between the ends of the last bracket.
    brackets = {}
    for block, losses in after.items():
        of_all = rise(before, losses)
        for kind in gates[block].ranks:
            brackets[block, kind] = Bracket(of_all, limit)
    for _ in range(HALVINGS):
        swaps = {}
        for (block, kind), bracket in brackets.items():
            if not bracket.closed:
                swaps[block, kind] = (block, gates[block].gated(kind, bracket.middle))
        if not swaps:
            break
        before, after = swap_losses(model, swaps, text)
        for name, losses in after.items():
            brackets[name].halve(rise(before, losses))
    return {name: bracket.share for name, bracket in brackets.items()}


@dataclass
class Bracket:
    """Two shares, one that costs no more than the limit and one that costs more, and what was measured at both."""

    high_rise: float  # at first of all tokens on the line
    limit: float
    low: float = 0.0  # no token on the line, which costs nothing
    low_rise: float = 0.0
    high: float = 1.0

    @property
    def closed(self) -> bool:
        """Whether nothing is left to look for: all tokens on the line cost no more than the limit."""
        return self.high_rise <= self.limit

    @property
    def middle(self) -> float:
        """The share to measure next."""
        return (self.low + self.high) / 2

    def halve(self, rise: float) -> None:
        """Replace an end of the bracket by its middle, given the rise measured there."""
        if rise <= self.limit:
            self.low, self.low_rise = self.middle, rise
        else:
            self.high, self.high_rise = self.middle, rise

    @property
    def share(self) -> float:
        """The share at the limit, interpolated between the ends of the bracket."""
        if self.closed:
            return 1.0
        return self.low + (self.high - self.low) * (self.limit - self.low_rise) / (self.high_rise - self.low_rise)
