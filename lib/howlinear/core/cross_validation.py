"""R²_lin of folds that were left out of the fit, each in turn: how much it spreads over the data.

The paper (arXiv 2606.19379, section 5.7) gives a standard deviation over five folds of consecutive text. Ours are the
document folds that moments are kept by: whole documents too, eight of them and dealt at random, so each is smaller and
scatters a little more by its size, and a little less by its topic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.core.ceilings import fit, r2
from howlinear.core.intervals import left_out
from howlinear.core.moments import Moments
from howlinear.errors import InputError


def fold_scores(folds: Sequence[Moments]) -> Float[Tensor, " folds"]:
    """R²_lin on each fold of the map fitted on all others, float64.

    Args:
        folds: moments per document fold.

    Raises:
        InputError: fewer than two folds, or a fit that `ceilings.fit` refuses.
    """
    if len(folds) < 2:
        raise InputError(f"cross-validation needs two document folds or more, got {len(folds)}: use more rows")
    scores = []
    for fold, others in zip(folds, left_out(folds), strict=True):
        affine, _ = fit(others)
        scores.append(r2(affine, fold))
    return torch.tensor(scores, dtype=torch.float64)


def fold_spread(folds: Sequence[Moments]) -> float:
    """Standard deviation of `fold_scores`, with n − 1."""
    return float(fold_scores(folds).std())
