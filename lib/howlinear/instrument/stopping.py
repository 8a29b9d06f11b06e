"""How many rows are enough: measure, look at the intervals, double the rows, until all are narrow or the text ends.

Whoever looks again and again and stops at the first narrow interval stops too often on one that is narrow by luck, and
it then misses the truth more often than it says (Armitage, McPherson & Rowe 1969, "Repeated significance tests on
accumulating data"). So the error of 5 % is spent in advance over all K looks that could come, evenly: each look has an
interval of confidence 1 − 0.05 / K (Bonferroni; the simplest of the spending rules of Lan & DeMets 1983, "Discrete
sequential boundaries for clinical trials"). All K cover the truth at once with 95 %, so the one we stop at does,
whatever made us stop. The price is width: 1.6 times at the seven looks from 20,480 rows to 1,310,720, with 8 folds.

Looks take longer and longer beginnings of every document fold, so no row changes its fold or side, and what earlier
looks have added up stays. As before, the interval is about which documents were drawn; that a map fitted on more rows
is a better one shows as R²_lin rising from look to look, about (1 − R²_lin) · width / rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.core.ceilings import Ceiling
from howlinear.core.intervals import CONFIDENCE
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, capture_batches
from howlinear.instrument.massive import HeavyRows
from howlinear.instrument.perplexity import Pass
from howlinear.instrument.profile import Profile, Stop, name_of, solve
from howlinear.models.ffn_sites import width_of
from howlinear.models.sources import running
from howlinear.text.corpus import Corpus, rows_of
from howlinear.text.rows import Rows, batches

FIRST = 20_480  # rows of the first look: what one measures without a tolerance, in whole sequences
MOST = FIRST * 2**6
ROWS_PER_INPUT = 16  # the first look has this many rows for each input of a wide block


@dataclass(frozen=True)
class Steps:
    """What a measurement does with its rows; several processes that share the work put their own steps in here.

    Attributes:
        capture: `capture_batches`, or what takes the same arguments.
        solve: `solve`, likewise.
        perplexity: `Pass.perplexity`, likewise.
    """

    capture: Callable = capture_batches
    solve: Callable = solve
    perplexity: Callable = Pass.perplexity


def measure_until(
    model: PreTrainedModel,
    corpus: Corpus | Rows | Int64[Tensor, "n_sequences seq_len"] | Mapping[str, Tensor],
    tolerance: float,
    rows: int | None = None,
    seq_len: int = 128,
    seed: int = 0,
    blocks: list[int] | None = None,
    batch_size: int = 16,
    progress: bool = False,
) -> Profile:
    """`measure` until the interval of every block is narrow, or the text ends.

    Args:
        model: as for `measure`, and so are the others that are not here.
        corpus: what to read.
        tolerance: half-width of an interval that is narrow enough.
        rows: the most that may be used; 1,310,720 by default, or what the corpus has.
        seq_len: tokens in a sequence.
        seed: decides which documents are drawn.
        blocks: which blocks; all by default.
        batch_size: sequences in a forward pass.
        progress: show a bar.

    Raises:
        InputError: a tolerance out of (0, 1), no document folds, or what `measure` raises.
    """
    check_tolerance(tolerance)
    packed = rows_of(corpus, MOST if rows is None else rows, seq_len, seed)
    return look_until(model, packed, tolerance, blocks, batch_size, progress)


def look_until(
    model: PreTrainedModel,
    rows: Rows,
    tolerance: float,
    blocks: list[int] | None = None,
    batch_size: int = 16,
    progress: bool = False,
    steps: Steps = Steps(),
) -> Profile:
    """`measure_until` of rows that are packed, by steps that may be shared.

    Args:
        model: the model.
        rows: the most to look at.
        tolerance: half-width of an interval that is narrow enough.
        blocks: which blocks; all by default.
        batch_size: sequences in a forward pass.
        progress: show a bar.
        steps: how to capture, solve and read off the perplexity.
    """
    name = name_of(model)
    looks = schedule(rows, width_of(model))
    confidence = look_confidence(len(looks))
    run = Pass(model, rows)
    captured: dict[int, BlockCapture] = {}
    for look, added_sequences in enumerate(looks, 1):
        # Only what this look adds is run; what earlier looks have added up stays.
        with running(name):
            added = batches_of(rows, added_sequences, batch_size)
            more = steps.capture(model, rows, added, blocks=blocks, progress=progress, run=run)
        captured = merged(captured, more) if captured else more
        solved = steps.solve(captured, confidence)
        stop = judge({block: answer.ceiling for block, answer in solved.items()}, tolerance, look, len(looks))
        if stop.reached:
            break
    used = rows.subset(torch.cat(looks[: stop.look]).sort().values)
    return Profile(name, used, solved, steps.perplexity(run), stop)


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that no interval of R² can have.

    Raises:
        InputError: not between 0 and 1.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"a tolerance of {tolerance}: give the half-width of an interval of R², as in 0.005")


def look_confidence(looks: int) -> float:
    """Confidence of each of `looks` intervals that all hold at once with 95 %: 1 − 0.05 / looks."""
    return 1 - (1 - CONFIDENCE) / looks


def schedule(rows: Rows, width: int = 0, first: int | None = None) -> list[Int64[Tensor, " new"]]:
    """The sequences that each look adds: rows double from look to look, and the last takes all.

    Args:
        rows: all there is to look at.
        width: inputs of a block; the first look has `ROWS_PER_INPUT` rows or more for each of them.
        first: rows that the first look has at least, `FIRST` by default.

    Returns:
        Indices of sequences, ascending, a tensor for each look; every look adds to every fold.
    """
    first = max(FIRST if first is None else first, ROWS_PER_INPUT * width)
    folds = rows.folds(test=False) + rows.folds(test=True)
    shortest = min(len(members) for members in folds)
    looks = 1
    while rows.count >= first * 2**looks and shortest >= 2**looks:
        looks += 1

    added = []
    start = [0] * len(folds)
    for look in range(1, looks + 1):
        # After this look 1 / 2^(looks − look) of every fold, rounded up, has been seen.
        left = 2 ** (looks - look)
        stop = [-(-len(members) // left) for members in folds]
        new = [members[i:j] for members, i, j in zip(folds, start, stop, strict=True)]
        added.append(torch.cat(new).sort().values)
        start = stop
    return added


def batches_of(rows: Rows, sequences: Int64[Tensor, " some"], size: int) -> list[Int64[Tensor, " batch"]]:
    """The `batches` of some sequences, as indices of all of `rows`."""
    return [sequences[batch] for batch in batches(rows.subset(sequences), size)]


def merged(before: Mapping[int, BlockCapture], more: Mapping[int, BlockCapture]) -> dict[int, BlockCapture]:
    """Two captures of one model on different sequences of the same folds, as one; no sample."""
    both = {}
    for block, old in before.items():
        new = more[block]
        train = [a + b for a, b in zip(old.train, new.train, strict=True)]
        test = [a + b for a, b in zip(old.test, new.test, strict=True)]
        heavy = HeavyRows.merged([old.heavy_rows(), new.heavy_rows()])
        both[block] = BlockCapture(train, test, old.outputs + new.outputs, None, heavy)
    return both


def judge(ceilings: Mapping[int, Ceiling], tolerance: float, look: int, looks: int) -> Stop:
    """What one look says: whether every interval is narrow enough.

    Raises:
        InputError: there are no intervals, for want of folds.
    """
    half_widths = {}
    for block, measured in ceilings.items():
        if measured.interval is None:
            raise InputError("a tolerance needs intervals, and they need two document folds or more on each side")
        half_widths[block] = measured.interval.half_width
    widest = max(half_widths, key=half_widths.__getitem__)
    return Stop(
        tolerance=tolerance,
        reached=half_widths[widest] <= tolerance,
        half_width=half_widths[widest],
        block=widest,
        look=look,
        looks=looks,
        confidence=look_confidence(looks),
    )
