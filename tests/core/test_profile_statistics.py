import numpy as np
import pytest

from howlinear.core import profile_statistics as statistics
from howlinear.core.intervals import Estimate

TURNING = [0.9, 0.5, 0.6, 0.8, 0.7]
DIFFERENCES = (statistics.spread, statistics.largest_step, statistics.smaller_turn, statistics.later_less_earlier)


@pytest.mark.parametrize(
    ("statistic", "profile", "expected"),
    [
        (statistics.spread, TURNING, 0.4),  # 0.9 − 0.5
        (statistics.largest_step, TURNING, 0.4),  # down from 0.9 to 0.5
        (statistics.largest_step, [0.3, 0.8, 0.7], 0.5),  # up
        (statistics.smaller_turn, TURNING, 0.3),  # falls by 0.4, rises from 0.5 to 0.8
        (statistics.smaller_turn, [0.1, 0.2, 0.4], -0.1),  # its least rise, with the sign turned, is its largest fall
        (statistics.smaller_turn, [0.4, 0.2, 0.1], -0.1),
        (statistics.smaller_turn, [0.5, 0.5], 0),
        (statistics.later_less_earlier, TURNING, 0.7 - 0.7),  # (0.6 + 0.8 + 0.7) / 3 − (0.9 + 0.5) / 2
        (statistics.later_less_earlier, [0.1, 0.2, 0.6, 0.9], 0.75 - 0.15),
        (statistics.lowest, TURNING, 0.5),
        (statistics.lowest, [0.5], 0.5),
        *((statistic, [0.5], np.nan) for statistic in DIFFERENCES),  # a single block has none
    ],
)
def test_statistics_by_hand(statistic, profile, expected):
    assert statistic(np.array(profile)) == pytest.approx(expected, nan_ok=True)


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
