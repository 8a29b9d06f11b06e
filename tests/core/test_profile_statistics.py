import numpy as np
import pytest

from howlinear.core import profile_statistics as statistics
from howlinear.core.intervals import Estimate

PROFILE = np.array([0.9, 0.5, 0.6, 0.8, 0.7])


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        (statistics.spread, 0.4),  # 0.9 − 0.5
        (statistics.largest_step, 0.4),  # down from 0.9 to 0.5
        (statistics.smaller_turn, 0.3),  # falls by 0.4, rises from 0.5 to 0.8
        (statistics.later_less_earlier, 0.7 - 0.7),  # (0.6 + 0.8 + 0.7) / 3 − (0.9 + 0.5) / 2
        (statistics.lowest, 0.5),
    ],
)
def test_statistics_by_hand(statistic, expected):
    assert statistic(PROFILE) == pytest.approx(expected)


def test_the_largest_step_may_be_upwards():
    assert statistics.largest_step(np.array([0.3, 0.8, 0.7])) == pytest.approx(0.5)


def test_halves_of_an_even_number_of_blocks():
    assert statistics.later_less_earlier(np.array([0.1, 0.2, 0.6, 0.9])) == pytest.approx(0.75 - 0.15)


@pytest.mark.parametrize(("profile", "turn"), [([0.1, 0.2, 0.4], -0.1), ([0.4, 0.2, 0.1], -0.1), ([0.5, 0.5], 0)])
def test_a_monotone_profile_has_no_turn(profile, turn):
    """The least rise of one that falls only is its smallest fall, with the sign turned."""
    assert statistics.smaller_turn(np.array(profile)) == pytest.approx(turn)


def test_a_single_block_has_no_differences():
    alone = np.array([0.5])
    for statistic in (
        statistics.spread,
        statistics.largest_step,
        statistics.smaller_turn,
        statistics.later_less_earlier,
    ):
        assert np.isnan(statistic(alone))
    assert statistics.lowest(alone) == 0.5


@pytest.mark.parametrize(
    ("statistic", "low", "high"),
    [
        (statistics.spread, 0.3, 0.7),  # 0.8 − 0.5, and 1.0 − 0.3
        (statistics.largest_step, 0.3, 0.7),  # 0.8 − 0.5 downwards, and 1.0 − 0.3
        (statistics.smaller_turn, 0.1, 0.5),  # of the rise: 0.6 − 0.5, and 0.8 − 0.3
        (statistics.later_less_earlier, -0.55, -0.15),  # (0.4 + 0.7) / 2 − 0.9, ± 0.2
        (statistics.lowest, 0.3, 0.5),
    ],
)
def test_an_interval_is_of_the_worst_ends(statistic, low, high):
    value = np.array([0.9, 0.4, 0.7])
    estimate = statistics.with_interval(statistic, value, value - 0.1, value + 0.1)
    assert (estimate.low, estimate.high) == pytest.approx((low, high))
    assert estimate.value == statistic(value)
    assert isinstance(estimate, Estimate)


def test_few_rows_decide_from_a_tenth_on():
    assert statistics.few_rows_decide(0.75, 0.5)
    assert not statistics.few_rows_decide(0.75, 0.7)
    r2, ordinary = np.array([0.5, 0.5, 0.5]), np.array([0.7, 0.45, 0.3])
    assert statistics.few_rows_decide(r2, ordinary).tolist() == [True, False, True]
