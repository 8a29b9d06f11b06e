"""One capture by several ranks: each runs its share of the batches, then every block's moments meet on one of them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from transformers import PreTrainedModel

from howlinear.capture import BlockCapture, capture, fold_of
from howlinear.distributed import ALONE, Ranks
from howlinear.inputs import Rows

OUTPUTS = "outputs"  # a key beside the folds


def pooled(
    model: PreTrainedModel,
    rows: Rows,
    only: list[Tensor],
    blocks: list[int] | None = None,
    progress: bool = False,
    ranks: Ranks = ALONE,
) -> dict[int, BlockCapture]:
    """Capture some of the batches of `rows`, all ranks together; every rank calls this with the same arguments.

    Args:
        model: the model, the same on every rank.
        rows: packed sequences with their split and folds.
        only: which `capture.batches` of them.
        blocks: which blocks; all by default.
        progress: show a bar, on rank 0.
        ranks: the processes of this run.

    Returns:
        Block → `BlockCapture` without a sample, equal to one process's to rounding in float64 (1e-12). Of several
        ranks, each gets its own blocks: the first block the first rank, the next the next, and round again.

    Raises:
        InputError: see `capture`.
        RankError: another rank is gone.
    """
    mine = ranks.share(only)
    found = capture(model, rows, blocks, only=mine, progress=progress and ranks.first) if mine else {}
    if ranks.size == 1:
        return found
    widths = ranks.gather(_widths(found))[0]  # the first rank has the first batch, so all blocks
    holders = _holders(rows, only, ranks)
    folds = [key for key in holders if key != OUTPUTS]
    seen = [key for key in folds if ranks.rank in holders[key]]
    met = {}
    for turn, (block, (d_in, d_out)) in enumerate(widths.items()):
        own = {}
        if kept := found.pop(block, None):
            own = dict(zip(seen, kept.train + kept.test, strict=True)) | {OUTPUTS: kept.outputs}
        like = dict.fromkeys(folds, (d_in, d_out)) | {OUTPUTS: (d_out, 0)}
        merged = ranks.merge(own, holders, turn % ranks.size, like)
        if merged:
            sides = [[merged[key] for key in folds if key[0] == held_out] for held_out in (False, True)]
            met[block] = BlockCapture(*sides, merged[OUTPUTS], None)
    return met


def added(kept: Mapping[int, BlockCapture], more: Mapping[int, BlockCapture]) -> dict[int, BlockCapture]:
    """Two captures of one model on different sequences of the same folds, as one; no sample."""
    return {
        block: BlockCapture(
            [a + b for a, b in zip(old.train, more[block].train, strict=True)],
            [a + b for a, b in zip(old.test, more[block].test, strict=True)],
            old.outputs + more[block].outputs,
            None,
        )
        for block, old in kept.items()
    }


def _widths(found: Mapping[int, BlockCapture]) -> dict[int, tuple[int, int]]:
    return {block: (kept.train or kept.test)[0].sxy.shape for block, kept in found.items()}


def _holders(rows: Rows, only: list[Tensor], ranks: Ranks) -> dict:
    """Fold → the ranks that see it, folds in order; and the ranks that see held-out rows at all."""
    holders: dict = {}
    for batch, rank in zip(only, ranks.deal(only), strict=True):
        holders.setdefault(fold_of(rows, batch), set()).add(rank)
    outputs = set().union(*(found for (held_out, _), found in holders.items() if held_out))
    return {key: sorted(found) for key, found in sorted(holders.items())} | {OUTPUTS: sorted(outputs)}
