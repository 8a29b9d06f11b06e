import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from howlinear.core.correlation import correlation, fisher
from howlinear.errors import InputError


def test_it_is_scipys_with_scipys_interval():
    x, y = np.random.default_rng(0).normal(size=(2, 12))
    found, known = correlation(x, y), pearsonr(x, y)
    interval = known.confidence_interval()
    assert (found.r.value, found.r.low, found.r.high) == pytest.approx((known.statistic, interval.low, interval.high))
    assert correlation(x, y, order=True).r.value == pytest.approx(spearmanr(x, y).statistic)


def test_what_hangs_on_single_blocks_is_seen():
    """A cloud without a slope, and one last block far out."""
    x = np.array([0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 0.5, 3.0])
    y = np.array([0.1, 0.2, 0.2, 0.3, 0.1, 0.1, 0.2, 2.0])
    found = correlation(x, y)
    assert found.r.value > 0.95
    assert abs(found.inner) < 0.3
    assert found.lowest == pytest.approx(pearsonr(x[:-1], y[:-1]).statistic)
    assert found.highest > 0.95


def test_a_line_is_a_line_whichever_block_is_left_out():
    found = correlation(np.arange(8), -2 * np.arange(8))
    assert (found.r.value, found.inner, found.lowest, found.highest) == pytest.approx((-1, -1, -1, -1))
    assert -1 <= found.r.low <= found.r.high <= 1


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")  # hundreds of small calls: to check shapes would take most of the time
@pytest.mark.parametrize("rho", [0.0, 0.6])
@pytest.mark.parametrize("order", [False, True])
def test_the_interval_holds_the_truth_as_often_as_it_says(rho, order):
    random, held = np.random.default_rng(3), 0
    truth = 6 / np.pi * np.arcsin(rho / 2) if order else rho  # Spearman's of a normal pair
    for _ in range(400):
        x, noise = random.normal(size=(2, 12))
        found = correlation(x, rho * x + (1 - rho**2) ** 0.5 * noise, order).r
        held += found.low <= truth <= found.high
    assert 0.92 <= held / 400 <= 0.985


def test_twelve_blocks_fill_a_band_of_seven_tenths_and_no_narrower_round_one():
    """The ledger's line of all correlations."""
    assert 0.5 < fisher(0.0, 12).high < 0.7


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (range(5), range(5), "5 and 5 blocks: a correlation needs 6"),
        (range(7), range(6), "7 and 6 blocks"),
        ([1.0] * 8, range(8), "does not vary"),
        ([2, 1, 1, 1, 1, 1, 1], range(7), "does not vary"),
    ],
)
def test_what_has_no_correlation_is_refused(x, y, match):
    with pytest.raises(InputError, match=match):
        correlation(np.array(x, dtype=float), np.array(y, dtype=float))
