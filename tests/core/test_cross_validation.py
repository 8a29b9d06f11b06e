import numpy as np
import pytest

from helpers.reference import held_out_r2, normal
from howlinear.core.cross_validation import fold_scores, fold_spread
from howlinear.core.moments import Moments
from howlinear.errors import InputError


def folds_of(*noises, n=400, d=5):
    """A line with noise of its own in every fold."""
    rows = []
    for i, noise in enumerate(noises):
        x = normal(n, d, seed=i)
        rows.append((x, x @ normal(d, 3, seed=50) + noise * normal(n, 3, seed=100 + i)))
    return rows, [Moments(d, 3).update(x, y) for x, y in rows]


def test_each_fold_is_scored_by_the_map_of_the_others():
    rows, folds = folds_of(0.5, 1.0, 2.0)
    expected = []
    for i, fold in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        x, y = (np.concatenate([part[side] for part in others]) for side in (0, 1))
        expected.append(held_out_r2((x, y), fold))
    np.testing.assert_allclose(fold_scores(folds), expected, atol=1e-10)
    assert fold_spread(folds) == pytest.approx(np.std(expected, ddof=1))


def test_one_fold_is_refused():
    _, folds = folds_of(1.0)
    with pytest.raises(InputError, match="two document folds or more, got 1"):
        fold_scores(folds)
