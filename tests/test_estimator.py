import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from reference import normal
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.utils.estimator_checks import estimator_checks_generator

from howlinear.ceilings import ceiling
from howlinear.errors import InputError
from howlinear.estimator import AffineCeiling
from howlinear.moments import Moments

NOT_OURS = {
    "check_array_api_input",  # an experiment of scikit-learn's, off by default
    "check_regressor_multioutput",  # fits d + 1 rows, which are refused here
}
CHECKS = [
    pytest.param(check, id=check.func.__name__)
    for _, check in estimator_checks_generator(AffineCeiling())
    if check.func.__name__ not in NOT_OURS
]


def moments_of(x, y):
    return Moments(x.shape[1], y.shape[1]).update(torch.tensor(x), torch.tensor(y))


def regression(n=200, d=5, outputs=3):
    x, y = normal(n, d), normal(d, outputs, seed=1)
    return x.numpy(), (torch.tanh(x) @ y + 0.1 * normal(n, outputs, seed=2) + 4).numpy()


@pytest.mark.parametrize("flat", [False, True])
def test_estimator_agrees_with_linear_regression(flat):
    X, y = regression(outputs=1 if flat else 3)
    y = y[:, 0] if flat else y
    mine, theirs = AffineCeiling().fit(X[:150], y[:150]), LinearRegression().fit(X[:150], y[:150])
    predicted = theirs.predict(X[150:])
    assert mine.predict(X[150:]).shape == predicted.shape
    np.testing.assert_allclose(mine.predict(X[150:]), predicted, atol=1e-11)
    expected = r2_score(y[150:], predicted, multioutput="variance_weighted")
    assert mine.score(X[150:], y[150:]) == pytest.approx(expected, abs=1e-12)
    weights = np.linspace(0, 1, 50)
    expected = r2_score(y[150:], predicted, sample_weight=weights, multioutput="variance_weighted")
    assert mine.score(X[150:], y[150:], sample_weight=weights) == pytest.approx(expected, abs=1e-12)


def test_estimator_score_is_the_ceiling():
    X, y = regression()
    found = ceiling(moments_of(X[:150], y[:150]), moments_of(X[150:], y[150:]))
    estimator = AffineCeiling().fit(X[:150], y[:150])
    assert estimator.score(X[150:], y[150:]) == pytest.approx(found.r2, abs=1e-12)
    assert estimator.rank_ == found.rank


@pytest.mark.parametrize("chunk", [1, 3, 60, 200])
def test_partial_fit_in_chunks_equals_fit(chunk):
    """Chunks smaller than the width too: what cannot be solved yet is only counted."""
    X, y = regression()
    streamed, whole = AffineCeiling(), AffineCeiling().fit(X, y)
    for start in range(0, 200, chunk):
        assert streamed.partial_fit(X[start : start + chunk], y[start : start + chunk]) is streamed
    assert streamed.moments_.n == 200
    np.testing.assert_allclose(streamed.predict(X), whole.predict(X), atol=1e-11)
    assert streamed.score(X, y) == pytest.approx(whole.score(X, y), abs=1e-12)


def test_fit_forgets_what_was_fitted_before():
    X, y = regression()
    twice = AffineCeiling().fit(100 * X, y[::-1]).fit(X, y)
    assert twice.moments_.n == 200
    np.testing.assert_array_equal(twice.predict(X), AffineCeiling().fit(X, y).predict(X))


def test_estimator_refuses_too_few_rows():
    X, y = regression(n=6)
    with pytest.raises(InputError, match="6 train rows for 5 inputs"):
        AffineCeiling().fit(X, y).predict(X)


def test_a_failed_fit_leaves_no_half_fitted_estimator():
    X, y = regression(n=6)
    estimator = AffineCeiling()
    with pytest.raises(InputError):
        estimator.fit(X, y).predict(X)
    with pytest.raises((NotFittedError, InputError)):
        estimator.predict(X)


def test_estimator_takes_data_frames_and_does_not_warn():
    X, y = regression()
    frame = pd.DataFrame(X, columns=list("abcde"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator = AffineCeiling().fit(frame, pd.DataFrame(y))
        assert estimator.predict(frame).shape == y.shape
    assert list(estimator.feature_names_in_) == list("abcde")


@pytest.mark.parametrize("check", CHECKS)
def test_estimator_keeps_scikit_learns_contract(check):
    check(AffineCeiling())
