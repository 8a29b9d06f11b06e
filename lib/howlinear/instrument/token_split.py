"""The token split of every block: one pass over the held-out rows, added up by token (`core.token_split`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

from jaxtyping import Bool, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.fold_maps import fit_folds
from howlinear.core.intervals import Estimate
from howlinear.core.token_split import TokenSplit, TokenSums, token_split
from howlinear.errors import ConstantError, InputError
from howlinear.instrument.capture import BlockCapture, read_tokens
from howlinear.models.ffn_sites import Site, sites
from howlinear.text.rows import Rows, batches, fold_of


@dataclass(frozen=True)
class Grouping:
    """Which rows are added up, and by which label.

    Attributes:
        label: what each position is grouped by, such as its token, shape (n_sequences, seq_len).
        included: which positions take part, shape (n_sequences, seq_len).
    """

    label: Int64[Tensor, "n_sequences seq_len"]
    included: Bool[Tensor, "n_sequences seq_len"]

    @classmethod
    def by_token(cls, rows: Rows, held_out: bool, site: str = "") -> Grouping:
        """Group all rows of one side by their token.

        The tokens are those that `site` reads: in the decoder of an encoder-decoder, not the rows' own.
        """
        ids, mask = rows.read_by(site)
        if ids is None:
            raise InputError("rows are split by their token, and these inputs have no token ids: leave the split out")
        side = rows.test == held_out
        if held_out and len(rows.fold[side].unique()) < 2:
            raise InputError("a split by the token compares two held-out document folds or more: give more rows")
        included = side[:, None].expand(ids.shape)
        return cls(ids, included if mask is None else included & mask)


def token_sums(
    model: PreTrainedModel,
    rows: Rows,
    groupings: Sequence[Grouping],
    blocks: int | Iterable[int] | None = None,
    batch_size: int = 16,
    progress: bool = False,
    site: str = "ffn",
) -> dict[int, list[TokenSums]]:
    """Run the model over the rows of some groupings and add them up, on the CPU.

    Sequences without a position in any grouping are not run.

    Returns:
        Block → the sums of each grouping.
    """
    listened = sites(model, blocks, site)
    every_fold = rows.fold[:, None].expand_as(groupings[0].label)
    sums: dict[int, list[TokenSums]] = {}

    def keep(site: Site, x: Tensor, y: Tensor, sequence: Tensor, position: Tensor) -> None:
        x, y = x.cpu(), y.cpu()
        if site.block not in sums:
            sums[site.block] = [
                TokenSums.empty(each.label[each.included], every_fold[each.included], x.shape[1], y.shape[1])
                for each in groupings
            ]
        _, fold = fold_of(rows, sequence)
        for grouping, of_grouping in zip(groupings, sums[site.block], strict=True):
            inside = grouping.included[sequence, position]
            if inside.any():
                of_grouping.update(fold, grouping.label[sequence, position][inside], x[inside], y[inside])

    needed = [some for some in batches(rows, batch_size) if any(each.included[some].any() for each in groupings)]
    read_tokens(model, rows, listened, needed, keep, progress=progress)
    return {site.block: sums[site.block] for site in listened}


def token_splits(
    model: PreTrainedModel,
    captured: Mapping[int, BlockCapture],
    rows: Rows,
    confidence: float,
    batch_size: int,
    progress: bool,
    site: str,
) -> dict[int, TokenSplit]:
    """Split R²_lin of every captured block by the token: how much of it lies between token means, and within.

    This runs the held-out rows once more, and solves each block's map again with its refits. Returns block → split.
    """
    name = sites(model, None, site)[0].name  # all of them are of one stack
    held_out = Grouping.by_token(rows, held_out=True, site=name)
    sums = token_sums(model, rows, [held_out], list(captured), batch_size, progress, site) if captured else {}
    splits = {}
    for block, of_block in captured.items():
        (of_tokens,) = sums.pop(block)
        maps = fit_folds(of_block.train)
        try:
            splits[block] = token_split(maps.whole, maps.refits, of_tokens, confidence)
        except ConstantError:
            splits[block] = TokenSplit(*[Estimate.exact(nan)] * 3)
    return splits
