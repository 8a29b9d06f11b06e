import numpy as np
import pytest
from scipy.stats import norm, pearsonr, spearmanr

from howlinear.core.correlation import correlation, fisher
from howlinear.errors import InputError


def test_it_is_scipys_with_scipys_interval():
    x, y = np.random.default_rng(0).normal(size=(2, 12))
    found, known = correlation(x, y), pearsonr(x, y)
    interval = known.confidence_interval()
    assert (found.r.value, found.r.low, found.r.high) == pytest.approx((known.statistic, interval.low, interval.high))
    assert correlation(x, y, order=True).r.value == pytest.approx(spearmanr(x, y).statistic)


def test_a_line_is_a_line_whichever_block_is_left_out():
    found = correlation(np.arange(8), -2 * np.arange(8))
    assert (found.r.value, found.inner, found.lowest, found.highest) == pytest.approx((-1, -1, -1, -1))
    assert -1 <= found.r.low <= found.r.high <= 1


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (range(5), range(5), "5 and 5 blocks: a correlation needs 6"),
        (range(7), range(6), "7 and 6 blocks"),
        ([1.0] * 8, range(8), "does not vary"),
        (range(8), [1.0] * 8, "does not vary"),
        ([2, 1, 1, 1, 1, 1, 1], range(7), "does not vary"),
    ],
)
def test_what_has_no_correlation_is_refused(x, y, match):
    with pytest.raises(InputError, match=match):
        correlation(np.array(x, dtype=float), np.array(y, dtype=float))


@pytest.mark.parametrize(("order", "scipys"), [(False, pearsonr), (True, spearmanr)])
def test_what_hangs_on_which_blocks_is_scipys_too(order, scipys):
    """A block far out, at the first place and at the last, that makes r and one that unmakes it."""
    drawn = np.random.default_rng(1).normal(size=(2, 9))
    drawn[:, 0] = 4
    for x, y in (drawn, drawn[:, ::-1], drawn * [[1], [-1]], drawn[:, ::-1] * [[1], [-1]]):
        found = correlation(x, y, order)
        left_out = [scipys(np.delete(x, i), np.delete(y, i)).statistic for i in range(9)]
        assert (found.lowest, found.highest) == pytest.approx((min(left_out), max(left_out)))
        assert found.inner == pytest.approx(scipys(x[1:-1], y[1:-1]).statistic)
        assert found.r == fisher(found.r.value, 9, order)


def test_ranks_have_the_wider_interval_by_hand():
    half = norm.ppf(0.975) * (1.18 / 9) ** 0.5  # 1 + 0.6² / 2
    found = fisher(0.6, 12, order=True)
    assert (found.low, found.high) == pytest.approx(tuple(np.tanh(np.arctanh(0.6) + half * np.array([-1, 1]))))


def test_six_blocks_are_enough():
    assert correlation(np.arange(6.0), np.array([0, 1, 2, 3, 5, 4.0])).r.value > 0.9
