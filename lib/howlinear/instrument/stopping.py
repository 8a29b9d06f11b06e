"""How many rows are enough: measure, look at the intervals, double the rows, until all are narrow or the text ends.

Looking again and again and stopping at the first narrow interval favours intervals that are narrow by luck, which miss
the truth more often than they say (Armitage, McPherson & Rowe 1969, "Repeated significance tests on accumulating
data"). So the error of 5 % is spent in advance over all K looks that are possible, evenly: each look has an interval of
confidence 1 − 0.05 / K (Bonferroni; the simplest of the spending rules of Lan & DeMets 1983, "Discrete sequential
boundaries for clinical trials"). All K cover the truth at once with 95 %, so the one we stop at does, whatever made us
stop. The price is width: 1.6 times at the seven looks from 20,480 rows to 1,310,720, with 8 folds.

Each look takes a longer beginning of every document fold, so no row changes its fold or side, and the sums of earlier
looks remain valid. As always, the interval is about which documents were drawn; that more rows give a better map shows
as R²_lin rising from look to look, by about (1 − R²_lin) · width / rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Int64
from torch import Tensor

from howlinear.core.ceilings import Ceiling
from howlinear.core.intervals import CONFIDENCE
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.massive import HeavyRows
from howlinear.instrument.profile import Stop
from howlinear.models.checks import check_number
from howlinear.text.rows import Rows, batches

FIRST = 20_480  # rows of the first look: what one measures without a tolerance, in whole sequences
MOST = FIRST * 2**6
ROWS_PER_INPUT = 16  # the first look has this many rows for each input of a wide block


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that no interval of R² can have."""
    check_number("tolerance", tolerance, "0.005")
    if not 0 < tolerance < 1:
        raise InputError(f"a tolerance of {tolerance}: give the half-width of an interval of R², as in 0.005")


def look_confidence(looks: int) -> float:
    """Confidence of each of `looks` intervals that all hold at once with 95 %: 1 − 0.05 / looks."""
    return 1 - (1 - CONFIDENCE) / looks


def schedule(rows: Rows, width: int = 0, first: int | None = None) -> list[Int64[Tensor, " new"]]:
    """Plan the sequences that each look adds: rows double from look to look, and the last takes all.

    The first look has `first` rows or more, by default `FIRST`, and `ROWS_PER_INPUT` for each input of a block.

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
    """Split some sequences into `batches`, as indices into all of `rows`."""
    return [sequences[batch] for batch in batches(rows.subset(sequences), size)]


def merged(before: Mapping[int, BlockCapture], more: Mapping[int, BlockCapture]) -> dict[int, BlockCapture]:
    """Merge captures of different sequences of the same folds, without samples; `before` is empty at the first look."""
    if not before:
        return dict(more)
    both = {}
    for block, old in before.items():
        new = more[block]
        train = [a + b for a, b in zip(old.train, new.train, strict=True)]
        test = [a + b for a, b in zip(old.test, new.test, strict=True)]
        heavy = HeavyRows.merged([old.heavy_rows(), new.heavy_rows()])
        both[block] = BlockCapture(train, test, old.outputs + new.outputs, None, heavy)
    return both


def judge(ceilings: Mapping[int, Ceiling], tolerance: float, look: int, looks: int) -> Stop:
    """Judge one look: whether the interval of every block that has an R²_lin is narrow enough."""
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
