"""How many tokens take the line in each block, and what it costs: measured on held-out text, with intervals.

A gate saves no parameter: the block stays, and a line and d + 1 numbers come to it. What it saves is arithmetic, the
block's multiplications for the tokens that take the line, less the line's own and the score's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from howlinear.core.intervals import Estimate, fold_means
from howlinear.ideas.gate.fit import GATE, LOTS, ORACLE, BlockGate, fit_gate
from howlinear.ideas.gate.gated import Gated
from howlinear.ideas.gate.rows import BlockRows, Part, Parts, block_rows
from howlinear.ideas.gate.search import chosen_shares, losses_with
from howlinear.instrument.capture import hooked
from howlinear.instrument.perplexity import LOSS_BATCH, losses, ratio_of
from howlinear.models.ffn_sites import Site, sites, whole, width_of
from howlinear.models.swap import swap

LIMIT = 0.01
"""The rise of perplexity that is allowed, as a share of it: that of arXiv 2603.03459."""

PUBLISHED = (0.25, 0.56)
"""Shares of tokens on a line at no more than that rise, lowest and highest of the GPT-2 blocks that arXiv 2603.03459
reports, by a trained gate of d + 1 parameters."""

ALL = "all"
SAME = "lots, as many"
FIRST = "gate, first line"
"""The gate whose line is not fitted anew to the rows that take it; of curves alone."""

AHEAD, BEHIND = "gate − lots", "oracle − gate"
"""Differences of mean shares."""

KINDS = {
    GATE: "an affine score of x",
    ORACLE: "the line's true error, which needs the FFN",
    LOTS: "lots",
    SAME: "lots, as many tokens as the gate",
    ALL: "all tokens on the line",
}
"""Kind of rank → what decides which tokens take the line."""


def fit_gates(
    model: PreTrainedModel, parts: Parts, blocks: Sequence[int] | None = None, seed: int = 0
) -> tuple[dict[int, BlockGate], dict[int, BlockRows]]:
    """Fit the gate of every block, by one pass over the text to fit on and one over the held-out text.

    Args:
        model: the model; left as it was.
        parts: the text.
        blocks: which blocks; all by default.
        seed: of the lots.

    Returns:
        Block → its gate, and block → its held-out rows.

    Raises:
        InputError: a block that the model does not have, one whose first and last layer lie apart with who knows what
            between them, or too few rows for a line.
    """
    chosen = [site.block for site in sites(model, None if blocks is None else list(blocks))]
    rows = block_rows(model, parts.fitting, chosen)
    held_out = block_rows(model, parts.judging, chosen)
    gates = {}
    for site in sites(model, chosen):
        gates[site.block] = fit_gate(whole(model, site), rows[site.block], held_out[site.block], seed)
    return gates, held_out


def gate_shares(
    model: PreTrainedModel, gates: Mapping[int, BlockGate], choosing: Part, limit: float = LIMIT
) -> dict[tuple[int, str], float]:
    """`chosen_shares` of the gate, the oracle and lots; all tokens, and lots as many as the gate, beside them.

    Args:
        model: a causal model; left as it was.
        gates: block → its gate.
        choosing: text that nothing was fitted on, and nothing is judged by.
        limit: of the rise of perplexity, as a share of it.

    Raises:
        InputError: as `chosen_shares`.
    """
    shares = chosen_shares(model, gates, choosing, limit, [GATE, ORACLE, LOTS])
    for block in gates:
        shares[block, SAME] = shares[block, GATE]
        shares[block, ALL] = 1.0
    return shares


def modules(gates: Mapping[int, BlockGate], shares: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], Gated]:
    """(block, kind) → the module in the block's place.

    Args:
        gates: block → its gate.
        shares: (block, kind) → the share of tokens that takes the line.
    """
    rank_of = {SAME: LOTS, ALL: GATE}  # with all tokens on the line no rank decides
    found = {}
    for (block, kind), share in shares.items():
        found[block, kind] = gates[block].gated(rank_of.get(kind, kind), share)
    return found


def cost_table(
    model: PreTrainedModel,
    gated: Mapping[tuple[int, str], Gated],
    shares: Mapping[tuple[int, str], float],
    judging: Part,
    held_out: Mapping[int, BlockRows],
) -> pd.DataFrame:
    """How many held-out tokens take the line, and by how much perplexity rises, each block alone changed.

    Args:
        model: a causal model; left as it was.
        gated: (block, kind) → the module in the block's place.
        shares: (block, kind) → the share that was chosen for it.
        judging: held-out text.
        held_out: block → its rows there.

    Returns:
        A row per block and kind: the share that was `chosen`; `share`, what it is on this text; `rise` of perplexity,
        as a share of it; and `saved`, the share of the block's multiplications. Share and rise have the ends of their
        95 % intervals beside them (`share_low`, …), by a jackknife over document folds, that of the rise paired.

    Raises:
        InputError: a model that predicts no next token, or a loss that is not finite.
    """
    swaps = {}
    for (block, kind), module in gated.items():
        swaps[block, _measured_as(kind, shares[block, kind])] = (block, module)
    before, after = losses_with(model, swaps, judging)
    table = []
    for (block, kind), module in gated.items():
        chosen = shares[block, kind]
        share = share_taken(module, held_out[block], judging)
        row = {"block": block, "kind": kind, "chosen": chosen} | _columns("share", share)
        row |= _columns("rise", rise_of(before, after[block, _measured_as(kind, chosen)], judging.fold))
        table.append(row | {"saved": saved(share.value, module.ffn, width_of(model))})
    return pd.DataFrame(table)


@torch.no_grad()
def share_taken(module: Gated, rows: BlockRows, part: Part) -> Estimate:
    """The share of a block's rows on a text that take the line, with its interval over document folds."""
    takes = module.takes(rows.x).view(part.ids.shape).double().mean(1)
    return _over_folds(takes, part.fold)


@torch.no_grad()
def mean_shares(
    gated: Mapping[tuple[int, str], Gated], blocks: Sequence[int], judging: Part, held_out: Mapping[int, BlockRows]
) -> dict[str, dict[str, float]]:
    """The share of tokens on the line as a mean over some blocks, by kind, and how far gate, oracle and lots lie apart.

    Args:
        gated: (block, kind) → the module in the block's place.
        blocks: which blocks, at least one.
        judging: held-out text.
        held_out: block → its rows there.

    Returns:
        Kind → share with the ends of its interval over document folds; and under `AHEAD` the gate's share less that of
        lots, under `BEHIND` the oracle's less the gate's, paired.
    """
    means: dict[str, Tensor] = {}  # kind → the mean over blocks, of each sequence
    for kind in KINDS:
        taken = [gated[block, kind].takes(held_out[block].x).view(judging.ids.shape) for block in blocks]
        means[kind] = torch.stack(taken).double().mean((0, 2))
    means[AHEAD] = means[GATE] - means[LOTS]
    means[BEHIND] = means[ORACLE] - means[GATE]
    return {name: _columns("share", _over_folds(shares, judging.fold)) for name, shares in means.items()}


def dear_blocks(shares: Mapping[tuple[int, str], float]) -> list[int]:
    """The blocks where all tokens on the line would cost more than is allowed.

    Args:
        shares: (block, kind) → the share that was chosen for it.
    """
    return [block for (block, kind), share in shares.items() if kind == GATE and share < 1]


def rise_of(before: Float[Tensor, " n"], after: Float[Tensor, " n"], fold: Int64[Tensor, " n"]) -> Estimate:
    """By what share of itself perplexity rises, with its paired interval.

    Args:
        before: loss of each sequence before, nats per token, shape (n,).
        after: the same after.
        fold: the document fold of each sequence, shape (n,).
    """
    ratio, low, high = ratio_of(before, after, fold)
    return Estimate(ratio - 1, low - 1, high - 1)


def saved(share: float, ffn: nn.Module, width: int) -> float:
    """The share of a block's multiplications that is saved where a share of the tokens takes the line.

    With F multiplications a token in the block's matrices and d² in the line's: share · (1 − d² / F), less the score of
    every token, d / F. No parameter is saved.

    Args:
        share: of the tokens on the line.
        ffn: the block.
        width: d.
    """
    multiplications = sum(parameter.numel() for parameter in ffn.parameters() if parameter.ndim > 1)
    return share * (1 - width**2 / multiplications) - width / multiplications


@torch.no_grad()
def told_table(
    gates: Mapping[int, BlockGate], gated: Mapping[tuple[int, str], Gated], held_out: Mapping[int, BlockRows]
) -> pd.DataFrame:
    """How much of the line's log error the score tells, held out, and what the gate does with massive rows.

    Args:
        gates: block → its gate.
        gated: (block, kind) → the module in the block's place.
        held_out: block → its held-out rows.

    Returns:
        A row per block: `told`, R² of the log error, with its ends; `massive_rows`, how many held-out rows are massive,
        and `massive_kept`, how many of these the gate leaves to the block.
    """
    table = []
    for block, gate in gates.items():
        rows = held_out[block]
        kept = rows.massive & ~gated[block, GATE].takes(rows.x)
        row = {"block": block, "told": gate.told.r2, "told_low": gate.told.r2_low, "told_high": gate.told.r2_high}
        table.append(row | {"massive_rows": int(rows.massive.sum()), "massive_kept": int(kept.sum())})
    return pd.DataFrame(table)


def joined(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The tables of several models in one, with a column `model`; empty where there is no model.

    Args:
        tables: model → its table.
    """
    if not tables:
        return pd.DataFrame(columns=["model", "block", "kind"])
    return pd.concat([table.assign(model=model) for model, table in tables.items()], ignore_index=True)


def beside(costs: pd.DataFrame) -> pd.DataFrame:
    """Shares and rises of every kind beside one another, in per cent.

    Args:
        costs: as `cost_table` makes it, with a column `model`.

    Returns:
        A row a model and block, a column for share and rise by kind.
    """
    if costs.empty:
        return costs
    table = costs.pivot_table(index=["model", "block"], columns="kind", values=["share", "rise"], sort=False)
    return (100 * table).reindex(columns=list(KINDS), level="kind")


def curve_table(
    model: PreTrainedModel, block: int, gate: BlockGate, shares: Sequence[float], part: Part
) -> pd.DataFrame:
    """What each share of tokens on the line costs in one block, by each rank, and with the first line.

    Args:
        model: a causal model; left as it was.
        block: which block.
        gate: its gate.
        shares: of the tokens, above 0 and at most 1.
        part: held-out text.

    Returns:
        A row per kind (`GATE`, `FIRST`, `ORACLE` and `LOTS`) and share: `block`, `kind`, `share`, and `rise` with its
        ends.

    Raises:
        InputError: a share that is none, a model that predicts no next token, or a loss that is not finite.
    """
    swaps = {}
    for kind in (GATE, FIRST, ORACLE, LOTS):
        for share in shares:
            rank = GATE if kind == FIRST else kind
            swaps[_measured_as(kind, share)] = (block, gate.gated(rank, share, anew=kind != FIRST))
    before, after = losses_with(model, swaps, part)
    table = []
    for kind in (GATE, FIRST, ORACLE, LOTS):
        for share in shares:
            row = {"block": block, "kind": kind, "share": share}
            changed = after[_measured_as(kind, share)]
            table.append(row | _columns("rise", rise_of(before, changed, part.fold)))
    return pd.DataFrame(table)


def _measured_as(kind: str, share: float) -> tuple[str, float]:
    """What is measured for a kind: where all tokens take the line it is one and the same line, whoever decides."""
    return (ALL if share == 1 else kind, share)


@torch.no_grad()
def together(
    model: PreTrainedModel, gated: Mapping[int, Gated], part: Part, batch_size: int = LOSS_BATCH
) -> dict[str, float]:
    """What it costs to gate several blocks at once, and how many tokens take their lines then.

    A block's inputs are no longer what its gate was fitted on, once the blocks before it have changed.

    Args:
        model: a causal model; left as it was.
        gated: block → the module in its place.
        part: held-out text.
        batch_size: sequences in a pass.

    Returns:
        `share`, the mean over blocks and tokens, and `rise`, with their ends, and `saved`, of these blocks'
        multiplications.

    Raises:
        InputError: a model that predicts no next token, or a loss that is not finite.
    """
    taken: list[Float[Tensor, " n"]] = []  # a batch and block: the share of every sequence

    def keep(site: Site, x: Tensor, _: Tensor) -> None:
        takes: Bool[Tensor, " n"] = site.ffn.takes(x.flatten(0, -2))
        taken.append(takes.view(-1, part.ids.shape[1]).double().mean(1).cpu())

    before = losses(model, part.ids, batch_size)
    with swap(model, gated), hooked(sites(model, list(gated)), keep):
        after = losses(model, part.ids, batch_size)
    of_batches = [torch.stack(taken[i : i + len(gated)]).mean(0) for i in range(0, len(taken), len(gated))]
    share = _over_folds(torch.cat(of_batches), part.fold)
    saves = [saved(share.value, module.ffn, width_of(model)) for module in gated.values()]
    row = _columns("share", share) | _columns("rise", rise_of(before, after, part.fold))
    return row | {"saved": sum(saves) / len(saves)}


def _over_folds(values: Float[Tensor, " n"], fold: Int64[Tensor, " n"]) -> Estimate:
    """The mean of one number a sequence, with its interval over document folds."""
    return Estimate.jackknife(float(values.mean()), fold_means(values.cpu().numpy(), fold.numpy()))


def _columns(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as three columns of a table."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
