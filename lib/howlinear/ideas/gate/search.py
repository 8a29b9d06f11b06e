"""The largest share of tokens on the line that costs no more than allowed, found by a few measurements."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.ideas.gate.fit import GATE, BlockGate
from howlinear.instrument.swap_costs import swap_losses
from howlinear.text.rows import TokenRows

HALVINGS = 4
"""How often the bracket of a share is halved: it ends a sixteenth wide, and the share is interpolated in it."""


def rise(before: Float[Tensor, " n"], after: Float[Tensor, " n"]) -> float:
    """Compute the relative rise of perplexity: exp(mean loss after − mean loss before) − 1."""
    return float(torch.expm1((after - before).mean()))


def choose_shares(
    model: PreTrainedModel, gates: Mapping[int, BlockGate], text: TokenRows, limit: float
) -> dict[tuple[int, str], float]:
    """Find the largest share of tokens that may take the line in each block, with that block alone changed.

    First all tokens are put on the line. If that costs more than the limit, the share is bracketed: half of the tokens,
    then a quarter or three quarters of them, and so on. It is interpolated between the ends of the last bracket.

    Returns:
        (block, kind) → share.
    """
    if not limit > 0:
        raise InputError(f"a rise of at most {limit:.2%}: every change costs something, give more than 0")
    everything = {block: (block, gate.gated(GATE, 1.0)) for block, gate in gates.items()}
    before, after = swap_losses(model, everything, text)
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


class Bracket:
    """Two shares, one that costs no more than the limit and one that costs more, and what was measured at both."""

    def __init__(self, of_all: float, limit: float):
        """Start from no token on the line, which costs nothing, and from all tokens, which costs `of_all`."""
        self.limit = limit
        self.low, self.high = 0.0, 1.0
        self.rises = {0.0: 0.0, 1.0: of_all}

    @property
    def closed(self) -> bool:
        """Whether nothing is left to look for: all tokens on the line cost no more than the limit."""
        return self.rises[1.0] <= self.limit

    @property
    def middle(self) -> float:
        """The share to measure next."""
        return (self.low + self.high) / 2

    def halve(self, rise: float) -> None:
        """Replace an end of the bracket by its middle, given the rise measured there."""
        self.rises[self.middle] = rise
        if rise <= self.limit:
            self.low = self.middle
        else:
            self.high = self.middle

    @property
    def share(self) -> float:
        """The share at the limit, interpolated between the ends of the bracket."""
        if self.closed:
            return 1.0
        cheap, dear = self.rises[self.low], self.rises[self.high]
        return self.low + (self.high - self.low) * (self.limit - cheap) / (dear - cheap)
