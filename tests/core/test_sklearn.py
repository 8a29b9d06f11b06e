import os
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from helpers.reference import normal
from howlinear.core.ceilings import ceiling, moments_of
from howlinear.core.sklearn import AffineCeiling
from howlinear.errors import InputError
from howlinear.files import paths


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32])
def test_tensors_are_rows_whatever_their_dtype_and_whether_they_have_gradients(dtype):
    X, y = (torch.as_tensor(8 * each).to(dtype) for each in regression())
    as_numbers = [each.double().numpy() for each in (X, y)]
    if dtype.is_floating_point:
        X.requires_grad_(), y.requires_grad_()
    mine = AffineCeiling().fit(X[:100], y[:100]).partial_fit(X[100:150], y[100:150])
    theirs = LinearRegression().fit(*(each[:150] for each in as_numbers))
    np.testing.assert_allclose(mine.predict(X[150:]), theirs.predict(as_numbers[0][150:]), atol=1e-9)
    expected = ceiling(X[:150], y[:150], X[150:], y[150:]).r2
    assert mine.score(X[150:], y[150:]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("constant", [False, True])
def test_estimator_score_is_the_ceiling(constant):
    """Also where an output is constant on the rows scored: its errors count. If all are, there is no score."""
    X, y = regression()
    y[150:, 1] = 0.5 if constant else y[150:, 1]
    found = ceiling(moments_of(X[:150], y[:150]), moments_of(X[150:], y[150:]))
    estimator = AffineCeiling().fit(X[:150], y[:150])
    assert estimator.score(X[150:], y[150:]) == pytest.approx(found.r2, abs=1e-12)
    assert estimator.rank_ == found.rank
    for constant_y in (1, 0.1):  # the mean of many 0.1 is not 0.1
        with pytest.raises(InputError, match="constant on these rows"):
            estimator.score(X[150:], np.full_like(y[150:], constant_y))
    with pytest.raises(InputError, match="constant on these rows"):  # but for a row without weight
        estimator.score(X[150:], np.r_[y[150:151], np.full((49, 3), 0.1)], np.arange(50) > 0)


@pytest.mark.parametrize(
    "bring",
    [lambda y: y[:, :1], lambda y: y[:, 0], lambda y: np.tile(y, (2, 1)), lambda y: np.where(y == y[0, 0], np.nan, y)],
)
def test_outputs_that_are_not_those_predicted_have_no_score(bring):
    """numpy would stretch some of them to fit, and score other rows."""
    X, y = regression()
    estimator = AffineCeiling().fit(X[:150], y[:150])
    assert estimator.score(X[150:], torch.tensor(y[150:])) == estimator.score(X[150:], y[150:])
    for weights in (None, np.ones(50)):
        with pytest.raises(ValueError, match=r"NaN|number"):
            estimator.score(X[150:], bring(y[150:]), weights)
    with pytest.raises(ValueError, match="NaN"):
        estimator.score(X[150:], y[150:], np.full(50, np.nan))


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
    np.testing.assert_allclose(twice.predict(X), AffineCeiling().fit(X, y).predict(X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [3, 6])
def test_too_few_rows_predict_with_a_warning_and_have_no_score(rows):
    X, y = regression()
    estimator = AffineCeiling()
    with pytest.warns(UserWarning, match=f"no ceiling: {rows} train rows for 5 inputs: .* use at least 7"):
        estimator.fit(X[:rows], y[:rows])
    np.testing.assert_allclose(estimator.predict(X[:rows]), y[:rows], atol=1e-9)  # it interpolates, no more
    with pytest.raises(InputError, match=f"{rows} train rows for 5 inputs"):
        estimator.score(X[100:], y[100:])
    estimator.partial_fit(X[rows:100], y[rows:100])
    whole = AffineCeiling().fit(X[:100], y[:100])
    assert estimator.score(X[100:], y[100:]) == pytest.approx(whole.score(X[100:], y[100:]), abs=1e-12)


def test_the_map_of_too_few_rows_is_the_shortest_in_scaled_inputs():
    X, y = regression()
    with pytest.warns(UserWarning, match="no ceiling"):
        estimator = AffineCeiling().fit(X[:4], y[:4])
    centred, scale = X[:4] - X[:4].mean(0), 1 / np.linalg.norm(X[:4] - X[:4].mean(0), axis=0)
    shortest = scale[:, None] * (np.linalg.pinv(centred * scale) @ (y[:4] - y[:4].mean(0)))
    np.testing.assert_allclose(estimator.map_.weight.numpy(), shortest, atol=1e-9)


@pytest.mark.filterwarnings("ignore:no ceiling")
@pytest.mark.parametrize("rows", [1, 40])
def test_a_failed_fit_leaves_no_half_fitted_estimator(rows):
    """One row, or many that are all alike."""
    X, y = np.ones((rows, 5)), regression(rows)[1]
    estimator = AffineCeiling().partial_fit(X, y)
    for _ in range(2):
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


@pytest.mark.long
def test_estimator_keeps_scikit_learns_contract():
    """All checks, none skipped: SCIPY_ARRAY_API is read at the first import. Without ours, which takes seconds."""
    code = f"""
import sys, types
for name in ("howlinear", "howlinear.core"):
    package = types.ModuleType(name)
    package.__path__ = [{str(paths.ROOT / "lib")!r} + "/" + name.replace(".", "/")]
    sys.modules[name] = package
from sklearn.utils.estimator_checks import check_estimator
from howlinear.core.sklearn import AffineCeiling
print({{one["status"] for one in check_estimator(AffineCeiling(), on_skip=None)}})
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
    )
    assert (ran.stdout.strip(), ran.returncode) == ("{'passed'}", 0), ran.stderr
