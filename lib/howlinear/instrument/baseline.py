"""R²_lin of a model before training, on as many rows as that takes.

A block with random weights can be far from linear, and a map fitted on too few rows then does worse on held-out rows
than their mean does: R²_lin is below 0 because rows are few, not because of the block. On the train rows, the fit is
too good by about as much. On average the R² of infinitely many rows lies between the two, so both are kept, as a
bracket, and rows are doubled until they meet or the text ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import Ceiling, ceiling
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.distributed import capture_together, gather_blocks, own_share
from howlinear.instrument.layerwise import capture_layer, entered
from howlinear.instrument.stopping import batches_of, merged, schedule
from howlinear.models.checks import evaluating
from howlinear.models.ffn_sites import device_of, sites
from howlinear.models.forward import running
from howlinear.models.load import untrained
from howlinear.models.shards import is_on_disk
from howlinear.text.rows import Rows, batch_of, check

APART = 0.02  # difference of R² up to which in-sample and held-out values meet
BATCH = 16  # sequences in a forward pass


@dataclass(frozen=True)
class Baseline:
    """R²_lin of the blocks of a model with fresh weights, as a bracket.

    Attributes:
        held_out: R²_lin of each block, on average too low, shape (b,).
        in_sample: R² on the rows of the fit, on average too high, shape (b,).
        rows: rows of each block, both sides.
        blocks: block numbers.
    """

    held_out: Float[np.ndarray, " b"]
    in_sample: Float[np.ndarray, " b"]
    rows: int
    blocks: list[int]

    @property
    def apart(self) -> float:
        """The widest bracket of any block."""
        return float((self.in_sample - self.held_out).max())


def baseline(model: PreTrainedModel, rows: Rows, seed: int = 0, **options: Any) -> Baseline:
    """Measure R²_lin of a model with fresh weights, doubling rows until held-out and in-sample R² meet in every block.

    Options and errors are those of `brackets`.
    """
    for measured in brackets(model, rows, seed, **options):
        if measured.apart <= APART:
            break
    return measured


def brackets(
    model: PreTrainedModel,
    rows: Rows,
    seed: int = 0,
    first: int | None = None,
    site: str = "ffn",
    blocks: Sequence[int] | None = None,
) -> Iterator[Baseline]:
    """Yield R²_lin of some blocks of a model with fresh weights, by default all, on more and more rows.

    Only the model's configuration counts. If its weights stay on disk, the fresh weights are drawn layer by layer
    (`models.drawn`), which gives other numbers of the same distribution. The looks are those of `stopping.schedule`,
    which begins with `first` rows.

    Raises:
        InseparableError: weights stay on disk, and the layers cannot be called one by one.
        InputError: see `capture` and `ceiling`.
    """
    fresh = untrained(model, seed)
    by_layer = is_on_disk(fresh)
    if not by_layer:
        fresh = fresh.to(device_of(model))
    # no interval is needed, so a side is one fold: moments of every fold would take gigabytes for a deep model
    one_fold = replace(rows, fold=torch.zeros_like(rows.fold))
    looks = schedule(rows, first=first)
    captured: dict[int, BlockCapture] = {}
    for look, added_sequences in enumerate(looks, 1):
        if by_layer:
            own = _ceilings_by_layer(fresh, one_fold, torch.cat(looks[:look]).sort().values, site, blocks)
        else:
            more = capture_together(fresh, one_fold, batches_of(rows, added_sequences, BATCH), site=site, blocks=blocks)
            captured = merged(captured, more)
            own = _ceilings(captured)
        ceilings = gather_blocks(own)
        of_one = next(iter(ceilings.values()))
        yield Baseline(
            held_out=np.array([block.r2 for block in ceilings.values()]),
            in_sample=np.array([block.r2_train for block in ceilings.values()]),
            rows=of_one.rows_train + of_one.rows_test,
            blocks=list(ceilings),
        )


def _ceilings(captured: Mapping[int, BlockCapture]) -> dict[int, Ceiling]:
    """Block → its ceiling, without the map."""
    bare = {"map": None, "r2_per_feature": None}
    return {block: replace(ceiling(each.train, each.test), **bare) for block, each in captured.items()}


@torch.no_grad()
def _ceilings_by_layer(
    fresh: PreTrainedModel, rows: Rows, sequences: Int64[Tensor, " n"], site: str, blocks: Sequence[int] | None
) -> dict[int, Ceiling]:
    """Compute every block's ceiling on some sequences, for a model whose layers are loaded one at a time.

    No moments are kept for the next look, since there is no room for those of all blocks.
    """
    check(fresh, rows)
    chosen = {each.block: each for each in sites(fresh, blocks, site)}
    every = batches_of(rows, sequences, BATCH)
    ceilings: dict[int, Ceiling] = {}
    with running(fresh), evaluating(fresh):
        text = entered(fresh, (batch_of(fresh, rows, batch) for batch in own_share(every)), site)
        for _ in text.layers:
            ceilings |= _ceilings(capture_layer(text, rows, every, chosen))
    return ceilings
