"""R²_lin of every block of a model on a corpus: the whole instrument in one call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from howlinear.core.intervals import CONFIDENCE
from howlinear.errors import InputError
from howlinear.instrument.as_rows import rows_of
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.distributed import capture_together, current_group, gather, gather_blocks
from howlinear.instrument.layerwise import load_whole, measure_layers, open_model
from howlinear.instrument.perplexity import HeldOutLosses, if_finite
from howlinear.instrument.profile import Profile, defined, solve
from howlinear.instrument.stopping import MOST, batches_of, check_tolerance, judge, look_confidence, merged, schedule
from howlinear.instrument.swap_costs import swap_costs, swap_rows
from howlinear.instrument.token_split import Grouping, token_splits
from howlinear.models.checks import check_count, check_flags, name_of
from howlinear.models.ffn_sites import device_of, sites, width_of
from howlinear.models.layerwise import InseparableError
from howlinear.models.load import model_of
from howlinear.models.shards import is_on_disk

ROWS = 20_000  # to measure on by default


def measure(
    model: Any,
    corpus: Any,
    rows: int | None = None,
    seq_len: int = 128,
    seed: int = 0,
    blocks: int | Iterable[int] | None = None,
    batch_size: int = 16,
    progress: bool = False,
    tolerance: float | None = None,
    swap: bool = False,
    site: str = "ffn",
    tokens: bool = False,
    moments: bool = False,
    layerwise: bool | None = None,
    work: Path | str | None = None,
) -> Profile:
    """Measure R²_lin of every block.

    Within `distributed.joined`, all processes call this with the same arguments, share the work, and get the profile.

    Args:
        model: a model, or its name as `load_model` takes it; an encoder's profile has no perplexity. It is run in
            evaluation mode, and left as it was.
        corpus: a text by name or path, strings, a data set, a corpus, packed rows; token ids of shape
            (n_sequences, seq_len), each row its own document; what a tokenizer or image processor returns, keyword →
            tensor (padding is left out, see `rows.ModelInputs`), or a `DataLoader` of these (`as_rows.rows_of`).
        rows: tokens in all, a quarter of them held out; 20,000 by default. With a tolerance, the most that may be used;
            1,310,720 by default, or what the corpus has. Token ids and other inputs than text are used whole.
        seq_len: tokens in a sequence.
        seed: decides which documents are drawn.
        blocks: which blocks, or which one; all by default.
        batch_size: sequences in a forward pass, half as many for swaps; it affects only time and memory, unless the
            model draws something for each batch (ViT-MAE draws the patches that it hides).
        progress: show a bar.
        tolerance: stop as soon as the interval of every block is at most this much to either side, looking at 20,480
            rows or a little more and whenever they have doubled. The intervals are wide enough to hold despite the
            repeated looks (`instrument.stopping`); `Profile.stop` says how it ended, `Profile.rows` which rows were
            used.
        swap: also measure what each block's map costs in perplexity in the block's place (`swap_costs`). If losses are
            not finite, a warning says so, and the profile is without perplexity or costs.
        site: what to measure of each block: `ffn`, its feed-forward block; `attention`; or the whole `layer`, whose x
            is the residual stream before it and whose y is what it adds to that (`ffn_sites.KINDS`).
        tokens: also split R²_lin by the token (`core.token_split`): how much of the output's variance the token's
            identity decides, and R² of the map between token means and within tokens (NaN where nothing varies within:
            a first block may read the token alone). This runs the held-out rows once more, and keeps sums for every
            token that a held-out document fold has.
        moments: keep every block's moments (`Profile.moments`): gigabytes for a large model, and in a single process
            only. `Profile.save` writes them too, and every linear quantity follows from them without model or text.
        layerwise: read the model's weights from its files layer by layer, and take all rows through one layer before
            the next (`instrument.layerwise`): the same numbers, with memory for one layer, one block's moments and the
            residual streams. By default if a model given by name does not fit otherwise, with a warning. If layers
            cannot be called one by one, the model is measured as a whole, with a warning, if it fits.
        work: a folder that keeps the progress of a layerwise measurement, so that an interrupted run can be resumed.
            Each of several processes keeps its streams there, and as many must resume.

    Raises:
        InputError: too little text, unknown block or site, activations that are not finite, a tolerance out of (0, 1),
            a device without float64, rows that the model's forward pass fails on, or options that need all blocks at
            once with a layerwise measurement.
        SourceError: the model was loaded from somewhere and does not run at all.
        ProcessError: another process is gone.
    """
    batch_size = check_count("batch_size", batch_size)
    check_flags(progress=progress, swap=swap, tokens=tokens, moments=moments, layerwise=layerwise)
    possible = tolerance is None and not tokens and not moments
    if isinstance(model, str | Path):
        if layerwise is None:
            layerwise = True if work is not None else (None if possible else False)
        model = open_model(model, layerwise)
        layerwise = False  # unless its weights stay on disk; if they had to be loaded, `open_model` has warned
    model = model_of(model, on_disk=True)
    layerwise = layerwise or is_on_disk(model)
    if work is not None and not layerwise:
        raise InputError(
            "work keeps what is done layer by layer: leave it out, or give layerwise=True and a model's name"
        )
    if layerwise and not possible:
        raise InputError(
            "a tolerance, a split by the token and moments take all blocks at once, not layer by layer: leave them out"
        )
    if moments and not current_group().alone:
        raise InputError("several processes have a part of the moments each: leave moments out, or run one process")
    chosen = sites(model, blocks, site)  # refuses unknown blocks before a text is read
    blocks = [each.block for each in chosen]

    # Text → token rows in document folds, a quarter of them held out
    if tolerance is not None:
        check_tolerance(tolerance)
    usual = ROWS if tolerance is None else MOST
    packed = rows_of(corpus, model, usual if rows is None else rows, seq_len, seed)
    one_look = [torch.arange(len(packed.test), device="cpu")]  # at all sequences
    looks = one_look if tolerance is None else schedule(packed, width_of(model))
    if not current_group().alone and len(set(gather(packed.sha256))) > 1:
        raise InputError(
            "the processes differ in the text that they read: give all machines the same files and packages"
        )
    if tokens:
        Grouping.by_token(packed, held_out=True, site=chosen[0].name)  # raises before the model runs
    if swap:
        swap_rows(packed, model)  # likewise
    progress = progress and current_group().first
    if layerwise:
        try:
            return measure_layers(model, packed, blocks, batch_size, site, swap, work, progress)
        except InseparableError as reason:
            model = load_whole(model, reason)
    confidence = CONFIDENCE if tolerance is None else look_confidence(len(looks))

    losses = HeldOutLosses(model, packed)
    captured: dict[int, BlockCapture] = {}
    stop = None
    for look, added in enumerate(looks, 1):
        # Rows → moments of every block: only what this look adds is run, and each process runs its share of that
        every = batches_of(packed, added, batch_size)
        more = capture_together(model, packed, every, blocks=blocks, progress=progress, losses=losses, site=site)
        captured = merged(captured, more)

        # Moments → R²_lin and its interval, each process of its own blocks
        solved = gather_blocks(solve(captured, confidence, progress, device_of(model)))
        ceilings = defined(solved)  # raises if no block has an R²_lin
        if tolerance is not None:
            stop = judge(ceilings, tolerance, look, len(looks))
            if stop.reached:
                packed = packed.subset(torch.cat(looks[:look]).sort().values)
                break

    # The model ran through its head for held-out sequences: their losses are there already
    losses.parts = [part for of_process in gather(losses.parts) for part in of_process]
    perplexity = if_finite("perplexity", losses.perplexity)
    costs = None
    if swap and perplexity is not None:
        maps = {block: answer.ceiling.map for block, answer in solved.items()}
        size = max(1, batch_size // 2)
        costs = if_finite("costs of swaps", partial(swap_costs, model, maps, packed, size, progress, site))
    splits = None
    if tokens:
        splits = gather_blocks(token_splits(model, captured, packed, confidence, batch_size, progress, site))
    kept = {block: found.to("cpu") for block, found in captured.items()} if moments else None
    return Profile(name_of(model), packed, solved, perplexity, stop, costs, site, splits, kept)
