"""How many tokens take the line in each block, and what that costs: tables of measurements on held-out text.

A gate saves no parameters: the block stays, and a line and d + 1 numbers are added. It saves arithmetic: the block's
multiplications for the tokens that take the line, less those of the line and of the score. The columns are described in
`files/columns.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.intervals import Estimate
from howlinear.files import tables
from howlinear.ideas.gate.fit import (
    GATE,
    ORACLE,
    RANDOM,
    BlockGate,
    BlockRows,
    Gated,
    Parts,
    block_rows,
    choose_shares,
    fit_gate,
)
from howlinear.instrument.capture import hooked
from howlinear.instrument.perplexity import losses, ratio_of
from howlinear.instrument.swap_costs import swap_losses
from howlinear.models.ffn_sites import Site, sites, width_of
from howlinear.models.pairs import ffn_module
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows

LIMIT = 0.01
"""The allowed relative rise of perplexity, as in arXiv 2603.03459."""

PUBLISHED = (0.25, 0.56)
"""Lowest and highest share of tokens on a line within that rise, over the GPT-2 blocks that arXiv 2603.03459 reports,
with a trained gate of d + 1 parameters."""

ALL = "all"
AS_MANY = "random, as many"
FIRST = "gate, first line"
"""The gate whose line is not refitted to the rows that take it; in curves only."""

KINDS = (GATE, ORACLE, RANDOM, AS_MANY, ALL)
"""What decides which tokens take the line: an affine score of x; the line's true error, which needs the FFN; chance, at
the same limit or with as many tokens as the gate; and all tokens on the line."""

AHEAD, BEHIND = "gate − random", "oracle − gate"
"""Differences of mean shares."""

Modules = Mapping[tuple[int, str], Gated]
"""(block, kind) → the module in the block's place."""

COLUMNS = {
    "blocks": "block score_r2 score_r2_low score_r2_high massive_rows massive_kept",
    "costs": "block kind chosen share share_low share_high rise rise_low rise_high saved",
    "means": "blocks kind share share_low share_high",
    "together": "share share_low share_high rise rise_low rise_high saved",
    "curves": "block kind share rise rise_low rise_high",
}
"""Table → its columns behind `model`."""


def survey(
    model: PreTrainedModel,
    parts: Parts,
    blocks: list[int],
    limit: float = LIMIT,
    curve_shares: Sequence[float] = (0.5, 1.0),
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Gate blocks of a causal model, and make the tables of `COLUMNS`; the curve is of the costliest block alone."""
    gates, held_out = fit_gates(model, parts, blocks, seed)
    modules = gated_modules(model, gates, parts.choosing, limit)
    costs = cost_table(model, modules, parts.judging, held_out)
    of_all = costs[costs["kind"] == ALL].set_index("block")["rise"]
    dearest = int(of_all.idxmax())
    return {
        "blocks": block_table(gates, modules, held_out),
        "costs": costs,
        "means": mean_table(modules, parts.judging, held_out),
        "together": together_table(model, {block: modules[block, GATE] for block in gates}, parts.judging),
        "curves": curve_table(model, dearest, gates[dearest], curve_shares, parts.judging),
    }


def stack(name: str, surveys: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """Stack the table called `name` over all models; empty, with its columns, if no model has one."""
    of_models = (of_model[name].assign(model=model) for model, of_model in surveys.items())
    return tables.stack(of_models, ["model", *COLUMNS[name].split()])


# --- Gates and thresholds


def fit_gates(
    model: PreTrainedModel, parts: Parts, blocks: list[int], seed: int = 0
) -> tuple[dict[int, BlockGate], dict[int, BlockRows]]:
    """Fit gates by one pass over each text; return block → its gate, and block → its held-out rows."""
    listened = sites(model, blocks)
    rows = block_rows(model, parts.fitting, blocks)
    held_out = block_rows(model, parts.judging, blocks)
    gates = {}
    for site in listened:
        ffn = ffn_module(model, site)
        gates[site.block] = fit_gate(ffn, rows[site.block], held_out[site.block], seed)
    return gates, held_out


def gated_modules(
    model: PreTrainedModel, gates: Mapping[int, BlockGate], choosing: TokenRows, limit: float = LIMIT
) -> dict[tuple[int, str], Gated]:
    """(block, kind) → the module in the block's place, with the largest share on the line that keeps to the limit."""
    shares = choose_shares(model, gates, choosing, limit)
    modules = {}
    for block, gate in gates.items():
        for kind in gate.ranks:
            modules[block, kind] = gate.gated(kind, shares[block, kind])
        modules[block, AS_MANY] = gate.gated(RANDOM, shares[block, GATE])
        # with all tokens on the line, the rank does not matter
        modules[block, ALL] = gate.gated(GATE, 1.0)
    return modules


# --- Tables


@torch.no_grad()
def block_table(gates: Mapping[int, BlockGate], modules: Modules, held_out: Mapping[int, BlockRows]) -> pd.DataFrame:
    """Tabulate how much of the line's log error the score explains, held out, and how the gate treats massive rows."""
    table = []
    for block, gate in gates.items():
        rows = held_out[block]
        massive = rows.massive
        left_to_block = massive & ~modules[block, GATE].takes(rows.x)
        row = {"block": block}
        row |= gate.error_score_fit.interval.columns("score_r2")
        row |= {"massive_rows": int(massive.sum()), "massive_kept": int(left_to_block.sum())}
        table.append(row)
    return pd.DataFrame(table)


def cost_table(
    model: PreTrainedModel, modules: Modules, judging: TokenRows, held_out: Mapping[int, BlockRows]
) -> pd.DataFrame:
    """Measure the share of held-out tokens on the line and the rise of perplexity, with each block alone changed."""
    swaps = {}
    for (block, kind), module in modules.items():
        swaps[block, _measured_as(kind, module.share)] = (block, module)
    before, after = swap_losses(model, swaps, judging)
    width = width_of(model)
    table = []
    for (block, kind), module in modules.items():
        share = _over_folds(sequence_shares(module, held_out[block], judging), judging)
        rise = rise_of(before, after[block, _measured_as(kind, module.share)], judging)
        row = {"block": block, "kind": kind, "chosen": module.share}
        row |= share.columns("share")
        row |= rise.columns("rise")
        row |= {"saved": saved(share.value, module.ffn, width)}
        table.append(row)
    return pd.DataFrame(table)


def mean_table(modules: Modules, judging: TokenRows, held_out: Mapping[int, BlockRows]) -> pd.DataFrame:
    """Average shares of tokens on the line over blocks, by kind, and compare gate, oracle and random."""
    every_block = list(dict.fromkeys(block for block, _ in modules))
    dear = [block for block in every_block if modules[block, GATE].share < 1]
    table = []
    for name, blocks in {"all": every_block, "dear": dear}.items():
        if not blocks:
            continue
        # kind → each sequence's mean over blocks
        means = {}
        for kind in KINDS:
            shares = [sequence_shares(modules[block, kind], held_out[block], judging) for block in blocks]
            means[kind] = torch.stack(shares).mean(0)
        means[AHEAD] = means[GATE] - means[RANDOM]
        means[BEHIND] = means[ORACLE] - means[GATE]
        for kind, mean in means.items():
            table.append({"blocks": name, "kind": kind} | _over_folds(mean, judging).columns("share"))
    return pd.DataFrame(table)


def curve_table(
    model: PreTrainedModel, block: int, gate: BlockGate, shares: Sequence[float], text: TokenRows
) -> pd.DataFrame:
    """Measure what each share of tokens on the line costs in one block, by kind, the gate's first line included."""
    kinds = (GATE, FIRST, ORACLE, RANDOM)
    swaps = {}
    for kind, share in product(kinds, shares):
        rank = GATE if kind == FIRST else kind
        swaps[_measured_as(kind, share)] = (block, gate.gated(rank, share, anew=kind != FIRST))
    before, after = swap_losses(model, swaps, text)
    table = []
    for kind, share in product(kinds, shares):
        cost = rise_of(before, after[_measured_as(kind, share)], text)
        table.append({"block": block, "kind": kind, "share": share} | cost.columns("rise"))
    return pd.DataFrame(table)


@torch.no_grad()
def together_table(model: PreTrainedModel, modules: Mapping[int, Gated], text: TokenRows) -> pd.DataFrame:
    """Measure the cost of gating several blocks at once, and the share of tokens that then take their lines."""
    # once the blocks before it have changed, a block's inputs are no longer those that its gate was fitted on
    taken: dict[int, list[Float[Tensor, " n"]]] = {block: [] for block in modules}

    def keep(site: Site, x: Tensor, _: Tensor) -> None:
        takes = site.ffn.takes(x.flatten(0, -2))
        of_sequences = takes.view(-1, text.ids.shape[1]).double().mean(1)
        taken[site.block].append(of_sequences.cpu())

    before = losses(model, text.ids)
    with swap(model, modules), hooked(sites(model, list(modules)), keep):
        after = losses(model, text.ids)
    mean_over_blocks = torch.stack([torch.cat(batches) for batches in taken.values()]).mean(0)
    share = _over_folds(mean_over_blocks, text)

    width = width_of(model)
    saves = [saved(share.value, module.ffn, width) for module in modules.values()]
    row = share.columns("share")
    row |= rise_of(before, after, text).columns("rise")
    row |= {"saved": sum(saves) / len(saves)}
    return pd.DataFrame([row])


def side_by_side(costs: pd.DataFrame) -> pd.DataFrame:
    """Put shares and rises of every kind side by side, in per cent: a row per model and block."""
    if costs.empty:
        return costs
    table = costs.pivot_table(index=["model", "block"], columns="kind", values=["share", "rise"], sort=False)
    return (100 * table).reindex(columns=list(KINDS), level="kind")


# --- Numbers


@torch.no_grad()
def sequence_shares(module: Gated, rows: BlockRows, text: TokenRows) -> Float[Tensor, " n"]:
    """The share of a block's rows that take the line in each sequence of a text, shape (n,)."""
    return module.takes(rows.x).view(text.ids.shape).double().mean(1)


def rise_of(before: Float[Tensor, " n"], after: Float[Tensor, " n"], text: TokenRows) -> Estimate:
    """Estimate the relative rise of perplexity, paired, from the losses of each sequence in nats per token."""
    ratio = ratio_of(before, after, text.fold)
    return Estimate(ratio.value - 1, ratio.low - 1, ratio.high - 1)


def saved(share: float, ffn: nn.Module, width: int) -> float:
    """Compute the share of a block's multiplications that is saved if a share of the tokens takes the line."""
    # F multiplications a token in the block's matrices, d² in the line's, and d in the score's, of every token
    multiplications = sum(parameter.numel() for parameter in ffn.parameters() if parameter.ndim > 1)
    return share * (1 - width**2 / multiplications) - width / multiplications


def _over_folds(values: Float[Tensor, " n"], text: TokenRows) -> Estimate:
    """The mean of one number a sequence, with its interval over document folds."""
    return Estimate.of_mean(values.cpu().numpy(), text.fold.numpy())


def _measured_as(kind: str, share: float) -> tuple[str, float]:
    """Name the measurement for a kind: with all tokens on the line it is the same for all kinds."""
    return (ALL if share == 1 else kind, share)
