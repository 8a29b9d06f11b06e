"""A block that is a line on half of the tokens, planted into a model, so that the correct gate is known."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from howlinear.core.ceilings import AffineMap
from howlinear.ideas.gate.fit import GATE, BlockGate, BlockRows, Parts, RandomRank, block_rows, fit_gate, rise
from howlinear.ideas.gate.measure import cost_table, gated_modules
from howlinear.instrument.swap_costs import swap_losses
from howlinear.models.ffn_sites import sites
from howlinear.models.pairs import ffn_module
from howlinear.models.swap import swap

Straight = Callable[[Float[Tensor, "*batch d"]], Bool[Tensor, "*batch"]]
"""Takes inputs, and says which rows are on the line."""

HALF = 0.5
"""Share of tokens that are straight."""

TENTH = 0.1
"""Limit of planted gates, as a share of the cost of a line on all tokens, since straight tokens cost nothing."""

LEAST = 1e-6
"""The limit if a line on all tokens costs nothing: then all may take it."""


class HalfStraight(nn.Module):
    """A block that is a line on the rows that are `straight`, and on others the line with an error of one `size`."""

    def __init__(self, ffn: nn.Module, line: AffineMap, size: float, straight: Straight):
        super().__init__()
        self.ffn = ffn
        self.line = line
        self.size = size
        self.straight = straight

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return the line's output where rows are straight, the line's output plus an error elsewhere."""
        on_line = self.line(x)
        bent = on_line + self.size * normalize(self.ffn(x) - on_line, dim=-1)
        return torch.where(self.straight(x)[..., None], on_line, bent)


def draw_halves(rows: BlockRows, seed: int) -> dict[str, Straight]:
    """Two ways to draw half of a block's rows: by the side of a `plane` that x lies on, and at `random`."""
    direction = torch.randn(rows.x.shape[1], generator=torch.Generator().manual_seed(seed + 1))
    middle = (rows.x @ direction).median()
    rank = RandomRank.of(rows.x, seed + 2)

    def beyond_the_plane(x: Tensor) -> Tensor:
        return x @ direction > middle

    def at_random(x: Tensor) -> Tensor:
        return rank(x.flatten(0, -2)).view(x.shape[:-1]) < HALF

    return {"plane": beyond_the_plane, "random": at_random}


@torch.no_grad()
def planted_table(model: PreTrainedModel, block: int, parts: Parts, seed: int = 0) -> pd.DataFrame:
    """Measure what gate, oracle and random find in a block that is straight on half of its tokens; a row per case."""
    (site,) = sites(model, [block])
    ffn = ffn_module(model, site)
    own = block_rows(model, parts.fitting, [block])[block]
    line = fit_gate(ffn, own, own).line
    size = float(torch.linalg.vector_norm(own.y - line(own.x), dim=1).median())
    tables = []
    for case, straight in draw_halves(own, seed).items():
        half = HalfStraight(ffn, line, size, straight)
        with swap(model, {block: half}):
            rows = block_rows(model, parts.fitting, [block])
            held_out = block_rows(model, parts.judging, [block])
            gate = fit_gate(half, rows[block], held_out[block], seed)
            # the limit is a tenth of the cost of a line on all tokens
            before, after = swap_losses(model, {"all": (block, gate.gated(GATE, 1.0))}, parts.choosing)
            limit = max(TENTH * rise(before, after["all"]), LEAST)
            modules = gated_modules(model, {block: gate}, parts.choosing, limit)
            ranked = {name: module for name, module in modules.items() if name[1] in gate.ranks}
            costs = cost_table(model, ranked, parts.judging, held_out)
        x = held_out[block].x
        right = costs["kind"].map(straight_shares(gate, x, straight(x)))
        costs.insert(0, "case", case)
        tables.append(costs.assign(right=right, score_r2=gate.error_score_fit.r2, limit=limit))
    return pd.concat(tables, ignore_index=True)


def straight_shares(gate: BlockGate, x: Float[Tensor, "n d"], straight: Bool[Tensor, " n"]) -> dict[str, float]:
    """Kind of rank → the share of straight tokens among the half of all tokens that it ranks first."""
    shares = {}
    for kind, rank in gate.ranks.items():
        # half, not the share that keeps to a limit of perplexity: with an uninformative rank, that share may be only a
        # hundred tokens, and how many of so few are straight is chance
        first = rank(x) <= gate.threshold(kind, HALF)
        shares[kind] = float(straight[first].double().mean())
    return shares
