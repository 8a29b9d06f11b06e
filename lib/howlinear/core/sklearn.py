"""The ceiling as a scikit-learn regressor that streams."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import mean_squared_error
from sklearn.utils.validation import check_is_fitted, validate_data

from howlinear.core.ceilings import AffineMap, check_rows, decompose
from howlinear.core.moments import Moments, check_unmasked
from howlinear.errors import InputError


class AffineCeiling(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Exact least squares from moments: rows may come in chunks of any size, and the map is solved when needed.

    `score` is the pooled R², which is R²_lin on held-out rows: scikit-learn's `variance_weighted`, but the errors of
    outputs that are constant on these rows count too. A map fits d_in + 1 rows or fewer exactly: then the map of
    minimum norm predicts, with a warning, and `score` raises.

    Attributes:
        moments_: moments of all rows seen.
        map_: the affine map.
        rank_: rank of the inputs.
    """

    def fit(self, X, y):
        """Fit on rows X, shape (n, d_in), and y, shape (n, d_out) or (n,).

        Raises:
            InputError: constant inputs, or values that are not finite.
        """
        self._add(X, y, anew=True, at_least=2)
        self._solve()
        return self

    def partial_fit(self, X, y):
        """Add rows to those already seen; nothing is solved yet, so chunks may be of any size."""
        return self._add(X, y, anew=not hasattr(self, "moments_"))

    def predict(self, X):
        """Predict the outputs for rows X, shape (n, d_in).

        Raises:
            InputError: fewer than two rows were seen, or no input varied.
        """
        check_is_fitted(self)
        X = validate_data(self, _array(X), reset=False, dtype=np.float64)
        predicted = self.map_(torch.tensor(np.ascontiguousarray(X), device="cpu")).numpy()
        return predicted[:, 0] if self._flat else predicted

    def score(self, X, y, sample_weight=None):
        """Compute the pooled R² on rows X, y.

        Raises:
            InputError: too few rows were seen for a ceiling.
        """
        check_is_fitted(self)
        check_rows(self.moments_)
        outputs, predicted = np.asarray(_array(y), dtype=float), self.predict(X)
        error = partial(mean_squared_error, outputs, sample_weight=sample_weight)  # refuses y of another shape, and NaN
        left = error(predicted)
        seen = outputs if sample_weight is None else outputs[np.asarray(sample_weight) != 0]
        if not np.ptp(seen, axis=0).any():  # their variance about a rounded mean need not be 0
            raise InputError("no score: the outputs are constant on these rows")
        mean = np.average(outputs, axis=0, weights=sample_weight)
        return float(1 - left / error(np.broadcast_to(mean, outputs.shape)))

    @property
    def map_(self) -> AffineMap:
        """The affine map of all rows seen."""
        return self._solve()[0]

    @property
    def rank_(self) -> int:
        """Number of input directions that are not null."""
        return self._solve()[1]

    def _add(self, X, y, anew, at_least=1):
        """Add `at_least` or more rows to those seen, or to none if `anew`."""
        X, y = validate_data(
            self,
            _array(X),
            _array(y),
            reset=anew,
            dtype=[np.float64, np.float32],  # unchanged: moments record the precision of their rows
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=at_least,
        )
        self._flat = y.ndim == 1
        outputs = np.ascontiguousarray(y, dtype=y.dtype if y.dtype == np.float32 else np.float64).reshape(len(X), -1)
        if anew:
            self.moments_ = Moments(X.shape[1], outputs.shape[1])
        self.moments_.update(torch.tensor(np.ascontiguousarray(X), device="cpu"), torch.tensor(outputs, device="cpu"))
        self._solved = None  # it was the solution for fewer rows
        return self

    def _solve(self) -> tuple[AffineMap, int]:
        """Solve for the map and its rank, once for the rows seen."""
        check_is_fitted(self)
        if self._solved is None:
            try:
                check_rows(self.moments_)
            except InputError as error:
                warnings.warn(f"no ceiling: {error}", stacklevel=3)
            inputs = decompose(self.moments_)
            self._solved = inputs.solution(self.moments_), inputs.rank
        return self._solved


def _array(given: Any) -> Any:
    """Convert a tensor to an array, which knows neither gradients nor bfloat16; other rows stay as they are.

    Raises:
        InputError: some elements are masked, which scikit-learn reads as if they were not.
    """
    check_unmasked(given)
    if not isinstance(given, torch.Tensor):
        return given
    rows = given.detach().cpu()
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()
