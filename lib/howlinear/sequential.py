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

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from howlinear.ceilings import CONFIDENCE, Ceiling
from howlinear.errors import InputError
from howlinear.inputs import Rows

FIRST = 20_480  # rows of the first look: what one measures without a tolerance, in whole sequences
MOST = FIRST * 2**6
ROWS_PER_INPUT = 16  # the first look has this many rows for each input of a wide block


@dataclass(frozen=True)
class Stop:
    """Why a measurement of growing size ended.

    Attributes:
        tolerance: half-width that was asked for.
        reached: whether every block's interval is that narrow; if not, the rows ended first.
        half_width: of the widest interval.
        block: whose that is.
        look: looks taken.
        looks: looks that could have come.
        confidence: of each look's interval; together they hold with 95 %.
    """

    tolerance: float
    reached: bool
    half_width: float
    block: int
    look: int
    looks: int
    confidence: float

    def __str__(self) -> str:
        """One line for people."""
        widest = f"the widest interval, of block {self.block}, is ± {self.half_width:.2g}"
        looks = f"look {self.look} of at most {self.looks}, intervals of {self.confidence:.2%} for 95 % over all looks"
        if self.reached:
            return f"stopped within the tolerance of {self.tolerance:g}: {widest} ({looks})"
        return f"no more rows, and the tolerance of {self.tolerance:g} is not reached: {widest} ({looks})"


def look_confidence(looks: int) -> float:
    """Confidence of each of `looks` intervals that all hold at once with 95 %: 1 − 0.05 / looks."""
    return 1 - (1 - CONFIDENCE) / looks


def checked(tolerance: float | None) -> float | None:
    """A tolerance that an interval of R² can have, or none.

    Raises:
        InputError: not between 0 and 1.
    """
    if tolerance is not None and not 0 < tolerance < 1:
        raise InputError(f"a tolerance of {tolerance}: give the half-width of an interval of R², as in 0.005")
    return tolerance


def judged(ceilings: Mapping[int, Ceiling], tolerance: float, look: int, looks: int) -> Stop:
    """What one look says: whether every interval is narrow enough.

    Raises:
        InputError: there are no intervals, for want of folds.
    """
    if any(found.r2_low is None for found in ceilings.values()):
        raise InputError("a tolerance needs intervals, and they need two document folds or more on each side")
    halves = {block: (found.r2_high - found.r2_low) / 2 for block, found in ceilings.items()}
    block = max(halves, key=halves.__getitem__)
    return Stop(tolerance, halves[block] <= tolerance, halves[block], block, look, looks, look_confidence(looks))


def schedule(rows: Rows, width: int = 0) -> list[Int64[Tensor, " new"]]:
    """The sequences that each look adds: rows double from look to look, and the last takes all.

    Args:
        rows: all there is to look at.
        width: inputs of a block; the first look has `FIRST` rows or more, and `ROWS_PER_INPUT` for each of them.

    Returns:
        Indices of sequences, ascending, a tensor for each look; every look adds to every fold.
    """
    first = max(FIRST, ROWS_PER_INPUT * width)
    folds = [
        ((rows.test == side) & (rows.fold == fold)).nonzero()[:, 0]
        for side, fold in set(zip(rows.test.tolist(), rows.fold.tolist(), strict=True))
    ]
    looks = 1
    while rows.count >= first * 2**looks and min(map(len, folds)) >= 2**looks:
        looks += 1
    plan, before = [], [0] * len(folds)
    for left in reversed(range(looks)):  # 1 / 2^left of every fold
        until = [-(-len(members) // 2**left) for members in folds]
        new = [members[start:stop] for members, start, stop in zip(folds, before, until, strict=True)]
        plan.append(torch.cat(new).sort().values)
        before = until
    return plan


def taken(rows: Rows, indices: Int64[Tensor, " some"]) -> Rows:
    """Some of the sequences, with their sides and folds."""
    return rows.taken(indices)
