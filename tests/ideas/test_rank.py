import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.captures import moments_of
from helpers.planted_ranks import FOLDS, broad, held_out, one_loud_direction, sample_of, sides
from helpers.reference import half_width, held_out_r2, least_squares, normal, pooled_r2, r2_by_feature
from howlinear.core.ceilings import AffineMap, fit
from howlinear.core.fold_maps import FoldMaps, fit_folds
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments, effective_rank
from howlinear.errors import InputError
from howlinear.ideas.rank import scores
from howlinear.ideas.rank.measure import RankView
from howlinear.ideas.rank.rows import frequency_bands, planted_block
from howlinear.ideas.rank.scores import Score, estimate, rise, score_moments, score_rows, without_loudest
from howlinear.ideas.rank.spread import output_rank, prediction_covariance, prediction_rank, rank_estimate, spread
from howlinear.instrument.capture import Sample


@pytest.mark.parametrize(
    ("covariance", "expected"),
    [
        (torch.tensor([1.0, 0.0, 3.0]).diag(), (np.exp(-0.25 * np.log(0.25) - 0.75 * np.log(0.75)), 0.75)),
        (torch.eye(5), (5, 0.2)),
        (torch.ones(5, 5), (1, 1)),
    ],
)
def test_spread_by_hand(covariance, expected):
    assert dataclasses.astuple(spread(covariance)) == pytest.approx(expected)


def test_the_medians_interval_equals_a_loop_of_refits_on_rows():
    sample = one_loud_direction(640)
    train, test = (sample.select(sample.test == side) for side in (False, True))

    def median(kept_train, kept_test):
        weight, bias, _ = least_squares(train.x[kept_train], train.y[kept_train])
        return np.median(r2_by_feature(test.x[kept_test], test.y[kept_test], weight, bias))

    refitted = [median(train.fold != i, test.fold >= 0) for i in range(FOLDS)]
    rescored = [median(train.fold >= 0, test.fold != i) for i in range(FOLDS)]
    # torch's quantile of 12 features interpolates halfway, as the median does
    whole = median(train.fold >= 0, test.fold >= 0)
    half = half_width(refitted, rescored)
    found = estimate(Score.median, score_moments(fit_folds(sides(sample)[0]), sides(sample)[1]))
    assert (found.value, found.low, found.high) == pytest.approx((whole, whole - half, whole + half), abs=1e-9)


@given(seed=st.integers(0, 2**31), cuts=st.tuples(st.integers(1, 24), st.integers(25, 49)), shift=st.floats(-100, 100))
@settings(deadline=None, max_examples=25)
def test_scores_of_folds_of_any_size_and_offset_agree_between_moments_and_rows(seed, cuts, shift):
    x, y = normal(50, 3, seed=seed), normal(50, 2, seed=seed + 1) + shift
    whole, refit = (AffineMap(normal(3, 2, seed=seed + i), normal(2, seed=seed + i + 1)) for i in (2, 4))
    maps = FoldMaps(whole, [refit])
    row = torch.arange(50)
    sample = dataclasses.replace(sample_of(x, y), fold=(row >= cuts[0]).long() + (row >= cuts[1]).long())
    test = [moments_of(sample.x[sample.fold == i], sample.y[sample.fold == i]) for i in range(3)]
    by_moments, by_rows = score_moments(maps, test), score_rows(maps, sample)
    assert by_rows.whole.n == 50
    assert by_rows.without(1).n == 50 - (cuts[1] - cuts[0])
    pairs = [(by_moments.whole, by_rows.whole), *zip(by_moments.refitted, by_rows.refitted, strict=True)]
    pairs += [(by_moments.without(fold), by_rows.without(fold)) for fold in range(3)]
    for one, other in pairs:
        assert one.n == other.n
        for name in ("mean", "squares", "residual"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-8)


def test_leaving_out_features_equals_least_squares_on_the_other_columns():
    sample = one_loud_direction(640)
    train, test = sides(sample)
    order = scores.loudest(train)
    rows = [sample.select(sample.test == side) for side in (False, True)]
    assert order.tolist() == np.argsort(-rows[0].y.double().var(0).numpy()).tolist()  # held-out rows have no say
    counts = [0, 1, 3, 11]
    for k, found in zip(counts, without_loudest(score_moments(fit_folds(train), test), order, counts), strict=True):
        kept = order[k:]
        assert found.value == pytest.approx(held_out_r2(*((side.x, side.y[:, kept]) for side in rows)), abs=1e-9)
        assert found.low < found.value < found.high


def test_directions_are_orthonormal_and_fall_in_loudness():
    y = normal(300, 6) @ normal(6, 6, seed=1)
    basis = scores.directions(y)
    torch.testing.assert_close(basis.T @ basis, torch.eye(6, dtype=torch.float64))
    variances = (y @ basis).var(0)
    assert (variances.diff() <= 0).all()
    torch.testing.assert_close(variances.sum(), y.var(0).sum())
    assert variances[0] == pytest.approx(np.linalg.svd((y - y.mean(0)).numpy())[1][0] ** 2 / 299)


def test_ranks_of_predictions_and_outputs_equal_a_loop_over_rows():
    sample = broad(640)
    train, test = sides(sample)
    rows = held_out(sample)

    def participation(y):
        values = np.linalg.eigvalsh(np.cov(np.asarray(y, np.float64).T))
        return values.sum() ** 2 / np.square(values).sum()

    def rank_of(kept_train, kept_test):
        fitted = fit(sum(part for i, part in enumerate(train) if i in kept_train))[0]
        mask = torch.isin(rows.fold, torch.tensor(sorted(kept_test)))
        return participation(fitted(rows.x[mask].double()))

    everything = set(range(FOLDS))
    groups = [
        np.log([rank_of(everything - {i}, everything) for i in everything]),
        np.log([rank_of(everything, everything - {i}) for i in everything]),
    ]
    for found, value, spreads in (
        (prediction_rank(fit_folds(train), test), rank_of(everything, everything), groups),
        (
            output_rank(Moments(12).update(rows.y), rows),
            participation(rows.y),
            [np.log([participation(rows.y[rows.fold != i]) for i in everything])],
        ),
    ):
        half = half_width(*spreads)
        assert found.value == pytest.approx(value, rel=1e-9)
        assert (found.low, found.high) == pytest.approx((value * np.exp(-half), value * np.exp(half)), rel=1e-7)


def test_predictions_of_a_rank_one_map_have_rank_one():
    affine = AffineMap(normal(4, 1) @ normal(1, 5, seed=1), torch.zeros(5, dtype=torch.float64))
    covariance = prediction_covariance(affine, moments_of(normal(80, 4), normal(80, 5)))
    assert effective_rank(covariance) == pytest.approx(1)
    assert rank_estimate(covariance, [covariance, torch.eye(5, dtype=torch.float64)]).low == 1


def test_shares_by_hand():
    # outputs 0, 2 | 4, 10 predicted as 0, 0 | 4, 4: ȳ = 4, total 16 + 4 + 0 + 36 = 56, errors 4 and 36
    x = torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None]
    y = torch.tensor([0.0, 2.0, 4.0, 10.0])[:, None]
    maps = FoldMaps(AffineMap(torch.tensor([[4.0]]).double(), torch.zeros(1).double()), [])
    rows = Sample(x, y, *(torch.arange(4),) * 2, torch.ones(4).bool(), torch.tensor([0, 1, 0, 1]))
    whole = score_rows(maps, rows).whole
    part = score_rows(maps, rows.select(rows.x[:, 0] == 1)).whole
    assert scores.share_of_variance(part, whole) == pytest.approx(36 / 56)
    assert scores.share_of_error(part, whole) == pytest.approx(36 / 40)
    assert part.r2() == pytest.approx(1 - 36 / 18)  # about its own mean, 7
    assert whole.r2() == pytest.approx(1 - 40 / 56)


def test_a_paired_interval_equals_a_loop_over_rows():
    sample = one_loud_direction(640)
    rows, found = held_out(sample), fit_folds(sides(sample)[0], refit=False)
    part = rows.select(rows.position > 2)

    def by_rows(fold):
        numbers = (np.asarray(found.whole.weight), np.asarray(found.whole.bias))
        one, other = ((kept.x[kept.fold != fold], kept.y[kept.fold != fold]) for kept in (part, rows))
        return pooled_r2(*one, *numbers) - pooled_r2(*other, *numbers)

    mine = estimate(rise, score_rows(found, part), score_rows(found, rows))
    half = half_width([by_rows(i) for i in range(FOLDS)])
    assert found.refits == []
    assert mine.value == pytest.approx(by_rows(-1), abs=1e-9)
    assert (mine.low, mine.high) == pytest.approx((mine.value - half, mine.value + half), abs=1e-9)


def test_bands_hold_equal_mass_and_send_the_unseen_to_the_rarest():
    ids = torch.tensor([[5] * 6, [2] * 3 + [9] * 2 + [0]])
    assert frequency_bands(ids, torch.tensor([5, 2, 9, 0, 7, 11]), 2).tolist() == [0, 1, 1, 1, 1, 1]
    assert frequency_bands(ids, torch.tensor([5, 2, 9, 0, 7, 11]), 4).tolist() == [1, 2, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("r2", "median", "rank", "thresholds", "word"),
    [
        (0.89, 0.1, 1.0, {}, "below"),
        (0.9, 0.8, 9.0, {}, "broad"),
        (0.95, 0.7, 2.0, {}, "concentrated"),
        (0.95, 0.71, 2.0, {}, "mixed"),
        (0.95, 0.7, 2.1, {}, "mixed"),
        (0.95, 0.9, 2.1, {}, "broad"),
        (0.8, 0.7, 4.0, {"high": 0.8, "few": 4.0, "gap": 0.05}, "concentrated"),
    ],
)
def test_the_regimes_words_and_thresholds(r2, median, rank, thresholds, word):
    view = RankView(*map(Estimate.exact, (r2, median, rank)), [], [], [], {})
    assert view.regime(**thresholds) == word


def test_a_constant_feature_has_no_r2_and_its_errors_count():
    score = Score(9, torch.tensor([0.0, 5.0, 0.0]), torch.tensor([4.0, 1e-12, 8.0]), torch.tensor([1.0, 3.0, 4.0]))
    assert score.r2() == pytest.approx(1 - 8 / 12)
    assert score.r2(torch.tensor([1])) == pytest.approx(1 - 5 / 12)
    assert score.median() == pytest.approx((0.75 + 0.5) / 2)


@pytest.mark.parametrize("count", [12, -1])
def test_leaving_out_every_feature_is_refused(count):
    train, test = sides(broad(640))
    with pytest.raises(InputError, match=rf"cannot leave out {count} of 12 features: k runs from 0 to 11"):
        without_loudest(score_moments(fit_folds(train), test), scores.loudest(train), [3, count])


def test_what_does_not_vary_is_refused():
    still = Score(9, torch.ones(2), torch.tensor([1.0, 0.0]), torch.ones(2))
    with pytest.raises(InputError, match="no feature that is kept varies over 9 rows"):
        still.r2(torch.tensor([0]))


def test_rows_of_one_fold_are_refused():
    sample = broad(640)
    alone = sample.select(sample.test & (sample.fold == 1))
    train, test = sides(sample)
    found = fit_folds(train)
    with pytest.raises(InputError, match="two document folds, got"):
        estimate(Score.r2, score_moments(found, [sum(test)]))
    with pytest.raises(InputError, match="from two document folds, got 1: use more rows"):
        estimate(Score.r2, score_rows(found, alone))
    with pytest.raises(InputError, match="varies over 0 rows"):
        estimate(lambda one, other: one.r2(), score_rows(found, alone), score_rows(found, held_out(sample)))
    with pytest.raises(InputError, match="two document folds, got 1: sample more rows"):
        output_rank(Moments(12).update(alone.y), alone)


def test_a_share_of_rows_from_one_fold_is_gone_without_it():
    sample = broad(640)
    alone, found = sample.select(sample.test & (sample.fold == 1)), fit_folds(sides(sample)[0], refit=False)
    part, whole = score_rows(found, alone), score_rows(found, held_out(sample))
    left_out = [0.0 if i == 1 else scores.share_of_error(part.whole, whole.without(i)) for i in range(FOLDS)]
    share = estimate(scores.share_of_error, part, whole)
    assert 0 < share.value < 1
    assert share.half_width == pytest.approx(half_width(left_out))


@pytest.mark.parametrize(("ids", "bands"), [(torch.zeros(0).long(), 4), (torch.arange(5), 1)])
def test_bands_that_cannot_be_cut_are_refused(ids, bands):
    with pytest.raises(InputError, match=f"cannot cut {len(ids)} token ids into {bands} bands"):
        frequency_bands(ids, torch.arange(3), bands)


def test_a_score_of_no_rows_is_nothing():
    empty = Score.of_rows(torch.zeros(0, 3).double(), torch.zeros(0, 3).double())
    whole = Score.of_rows(normal(9, 3), normal(9, 3, seed=1))
    assert empty.n == 0
    assert scores.share_of_error(empty, whole) == scores.share_of_variance(empty, whole) == 0


def test_a_planted_block_is_what_a_capture_keeps_of_the_same_rows():
    x, y = normal(512, 3), normal(512, 2, seed=1)
    block = planted_block(x, y, folds=4)
    rows = block.rows()
    assert len(block.train) == len(block.test) == 4
    assert sum(moments.n for moments in block.train) == 3 * sum(moments.n for moments in block.test) == 384
    assert [len(part) for part in rows.folds(test=True)] == [32, 32, 32, 32]
    whole = moments_of(rows.x[~rows.test], rows.y[~rows.test])
    torch.testing.assert_close(sum(block.train).sxy, whole.sxy)
    torch.testing.assert_close(block.outputs.sxx.diagonal(), sum(block.test).syy)
    assert rows.position[:17].tolist() == [*range(16), 0]
    assert rows.test[:80].nonzero().flatten().tolist() == list(range(48, 64))
