import numpy as np
import pytest
from scipy.stats import binom, multinomial, norm, ttest_1samp
from scipy.stats import t as student_t

from howlinear.core.intervals import Estimate, fold_means, half_width
from howlinear.errors import InputError


def test_half_a_width_is_students_t_times_the_standard_error():
    values = np.array([1.0, 2.0, 4.0, 7.0])
    ends = ttest_1samp(values, 0).confidence_interval(0.9)
    half = half_width(values.var(ddof=1) / 4, 3, confidence=0.9)
    assert half == pytest.approx((ends.high - ends.low) / 2, rel=1e-12)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = [3.0, 5.0, 10.0, 2.0]
    means = [(sum(values) - value) / 3 for value in values]
    found = Estimate.jackknife(5.0, means)
    assert found.half_width == pytest.approx(student_t.ppf(0.975, 3) * np.std(values, ddof=1) / 2)
    assert found.value == 5 == pytest.approx((found.low + found.high) / 2)


def test_the_smallest_set_has_the_fewest_degrees_of_freedom():
    found = Estimate.jackknife(1.0, [0.0, 1.0, 2.0, 3.0], [1.0, 1.0])
    # the variance of four values is 5/4, times 4 − 1; the second set of two adds nothing but its one degree
    assert found.half_width == pytest.approx(student_t.ppf(0.975, 1) * (3 * 1.25) ** 0.5)


def test_an_estimate_excludes_what_lies_outside_and_is_printed_and_three_cells_of_a_table():
    found = Estimate(0.36, 0.32, 0.40)
    assert [found.excludes(number) for number in (0.31, 0.32, 0.36, 0.40, 0.41)] == [True, False, False, False, True]
    assert str(found) == "0.36 [0.32, 0.40]"
    assert found.columns("r2") == {"r2": 0.36, "r2_low": 0.32, "r2_high": 0.40}


def test_means_without_each_fold_by_hand():
    values, fold = np.array([1.0, 2.0, 3.0, 10.0]), np.array([4, 4, 0, 7])
    # without fold 0: 13 / 3; without fold 4: 13 / 2; without fold 7: 6 / 3
    np.testing.assert_allclose(fold_means(values, fold), [13 / 3, 13 / 2, 2])
    assert Estimate.of_mean(values, fold) == Estimate.jackknife(4.0, [13 / 3, 13 / 2, 2])


@pytest.mark.parametrize("fold", [np.zeros(3, dtype=int), np.arange(2)])
@pytest.mark.usefixtures("unchecked")
def test_fewer_than_two_folds_cannot_be_left_out(fold):
    with pytest.raises(InputError, match="at least two"):
        fold_means(np.arange(3.0), fold)


# --- shares


def test_the_interval_of_a_share_solves_wilsons_equation():
    found = Estimate.of_share(np.arange(40) < 13)
    assert found.value == 13 / 40
    for p in (found.low, found.high):  # |p̂ − p| = z √(p (1 − p) / n)
        assert abs(13 / 40 - p) == pytest.approx(norm.ppf(0.975) * (p * (1 - p) / 40) ** 0.5)


def covered(intervals, truth, probabilities):
    return sum(p for each, p in zip(intervals, probabilities, strict=True) if not each.excludes(truth))


@pytest.mark.parametrize("p", [0.25, 0.6])
def test_the_interval_of_a_share_holds_the_truth_as_often_as_it_says(p):
    intervals = [Estimate.of_share(np.arange(50) < k) for k in range(51)]
    assert 0.93 < covered(intervals, p, binom.pmf(range(51), 50, p)) < 0.98


@pytest.mark.parametrize(("gained", "lost"), [(0.1, 0.2), (0.02, 0.1), (0.05, 0.05)])
def test_the_paired_interval_holds_the_truth_as_often_as_it_says(gained, lost):
    n = 40
    cases = [(g, k) for g in range(n + 1) for k in range(n + 1 - g)]
    place = np.arange(n)
    intervals = [Estimate.of_paired_shares((place >= g) & (place < g + k), place < g) for g, k in cases]
    chances = [multinomial.pmf([g, k, n - g - k], n, [gained, lost, 1 - gained - lost]) for g, k in cases]
    assert sum(chances) == pytest.approx(1)
    assert covered(intervals, gained - lost, chances) > 0.94


def test_no_change_has_an_interval_with_a_width():
    hits = np.arange(30) < 10
    found = Estimate.of_paired_shares(hits, hits)
    half = norm.ppf(0.975) * (2 / 32**2) ** 0.5  # of one case more each way
    assert found.value == 0
    assert (found.low, found.high) == pytest.approx((-half, half))
