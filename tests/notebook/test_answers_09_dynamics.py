"""What notebook 09 says of its tables, and where results that turn round turn it round."""

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.notebook.prose import describe


def made_up(peak=0.9, lags=((0.1, 0.3), (0.1, 0.3))):
    """Two trainings of two blocks that start and end at 0.5; the ends of the mean lag's interval, by two cuts."""
    runs = pd.DataFrame({"run": ["a", "b"], "start": 0.5, "peak": [peak, 0.5], "end": 0.5, "peak_loss": 6.0})
    passages = pd.DataFrame({"run": ["a", "a", "b", "b"], "block": [0, 1, 0, 1], "leaves": [4.0, 2.0, 3.0, None]})
    votes = pd.DataFrame({"cut": ["whole run", "from the peak"], "share": 0.9, "p": 0.01, "lag": 0.2})
    orders = pd.DataFrame({"event": ["leaves", "settles"], "group": "recorded", "rho": [0.8, 0.3]})
    return {
        "runs": runs,
        "passages": passages.assign(settles=[40.0, 80.0, 40.0, 40.0]),
        "votes": votes.assign(lag_low=[low for low, _ in lags], lag_high=[high for _, high in lags]),
        "orders": orders,
        "unigram": pd.DataFrame({"loss": [6.7]}),
        "live": pd.DataFrame({"step": [0, 1, 2], "loss": [8.0, 7.0, 6.0], "rank": [0.4, 0.1, 0.2]}),
        "live_blocks": pd.DataFrame({"step": [0, 1, 2], "block": 0, "r2": [0.9, 0.99, 0.7]}),
    }


def said(found):
    settings = {"models": ["a"], "corpora": ["docs"], "share": 0.9, "patience": 2}
    return describe(tables.Results("09_dynamics", found, {"settings": settings}))


def test_detours_and_the_straightest_step_are_said():
    prose = said(made_up())
    assert "1 of 2 trainings" in prose.answer[0]
    assert "0.990" in prose.answer[1]
    assert "10 % of the width, down from 40 %" in prose.answer[1]
    assert "in 1 of 2 trainings, after it in 1" in prose.replies[1]  # a block that never leaves comes last
    assert "7.00 nats per token, down from 8.00" in prose.questions[0][1]
    assert "of 2 trainings" in said(made_up(peak=0.505)).answer[0]


@pytest.mark.parametrize(
    ("lags", "words"),
    [
        ([(0.1, 0.3), (0.1, 0.3)], "after the loss, however"),
        ([(-0.3, -0.1), (-0.3, -0.1)], "before the loss, however"),
        ([(0.1, 0.3), (-0.1, 0.3)], "after the loss by some"),
        ([(-0.3, -0.1), (-0.1, 0.3)], "before the loss by some"),
        ([(-0.3, -0.1), (0.1, 0.3)], "cannot tell"),
        ([(-0.3, 0.1), (-0.1, 0.3)], "cannot tell"),
    ],
)
def test_whether_r2_or_the_loss_settles_first_hangs_on_the_intervals(lags, words):
    prose = said(made_up(lags=lags))
    assert words in prose.answer[2]
    decided = sum(low * high > 0 for low, high in lags)
    assert f"in {decided} of those that the interval decides" in prose.questions[4][1]
