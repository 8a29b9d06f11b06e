"""The least-squares map of a block, and its refits without each document fold: what intervals of maps are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from howlinear.core.ceilings import AffineMap, check_rows, decompose, refits
from howlinear.core.moments import Moments


@dataclass(frozen=True)
class FoldMaps:
    """Least-squares maps of a block.

    Attributes:
        whole: fitted on all train folds.
        refits: fitted without each train fold in turn; empty where the map is taken as given.
    """

    whole: AffineMap
    refits: list[AffineMap]


def fit_folds(train: Sequence[Moments], refit: bool = True) -> FoldMaps:
    """Fit the map of all train folds and, with `refit`, those without each in turn.

    Args:
        train: moments per document fold.
        refit: whether to fit without each fold too.

    Raises:
        InputError: as in `ceilings.fit`.
    """
    everything = sum(train)
    check_rows(everything)
    inputs = decompose(everything)
    without_each = refits(train, inputs) if refit else []
    return FoldMaps(inputs.solution(everything), [affine for affine, _ in without_each])
