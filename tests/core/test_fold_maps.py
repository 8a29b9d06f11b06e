import numpy as np
import pytest
import torch

from helpers.reference import held_out_r2, normal
from howlinear.core.ceilings import ceiling, r2
from howlinear.core.fold_maps import Scores, fit_folds, fold_spread, score_folds
from howlinear.core.moments import Moments


def folds(n=40):
    """Rows of three folds, with their moments."""
    rows = [(normal(n, 4, seed=i) + i, normal(n, 2, seed=10 + i)) for i in range(3)]
    return rows, [Moments(4, 2).update(x, y) for x, y in rows]


def test_a_map_that_is_taken_as_given_has_no_refits():
    _, moments = folds()
    assert fit_folds(moments[:1], refit=False).refits == []


def test_scores_are_those_of_the_ceiling_and_its_interval():
    _, train = folds()
    _, test = folds(n=20)
    found = score_folds(fit_folds(train), test)
    expected = ceiling(train, test)
    assert found.whole == pytest.approx(expected.r2)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((expected.r2_low, expected.r2_high))
    assert (len(found.refitted), len(found.rescored)) == (3, 3)


def test_what_two_scores_share_cancels_in_their_difference():
    one = Scores(0.5, np.array([0.4, 0.6]), np.array([0.3, 0.7]))
    other = Scores(0.2, one.refitted - 0.3, one.rescored - 0.3)
    difference = (one - other).estimate
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.3, 0.3, 0.3))
    mean = Scores.mean([one, other])
    assert mean.whole == pytest.approx(0.35)
    assert mean.refitted.tolist() == pytest.approx([0.25, 0.45])


def test_the_spread_over_folds_is_of_each_scored_by_the_map_of_the_others():
    rows, moments = [], []
    for i, noise in enumerate((0.5, 1.0, 2.0)):  # a line with noise of its own in every fold
        x = normal(400, 5, seed=i)
        y = x @ normal(5, 3, seed=50) + noise * normal(400, 3, seed=100 + i)
        rows.append((x, y))
        moments.append(Moments(5, 3).update(x, y))
    expected = []
    for i, fold in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        x, y = (np.concatenate([part[side] for part in others]) for side in (0, 1))
        expected.append(held_out_r2((x, y), fold))
    assert fold_spread(moments) == pytest.approx(np.std(expected, ddof=1), abs=1e-8)


def test_a_fold_whose_outputs_are_constant_has_no_part_in_the_spread():
    _, (one, other, _) = folds()
    silent = Moments(4, 2).update(normal(40, 4, seed=20), torch.ones(40, 2))
    scores = [r2(fit_folds([rest, silent]).whole, fold) for fold, rest in ((one, other), (other, one))]
    assert fold_spread([one, other, silent]) == pytest.approx(np.std(scores, ddof=1), abs=1e-8)
