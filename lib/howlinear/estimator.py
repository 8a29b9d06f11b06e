"""The ceiling as a scikit-learn regressor that streams."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data

from howlinear.ceilings import AffineMap, fit
from howlinear.moments import Moments


class AffineCeiling(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Exact least squares from moments; rows may come in any chunks, and the map is solved when it is asked for.

    `score` is the pooled R² (scikit-learn's `variance_weighted`), so that it is R²_lin on held-out rows.

    Attributes:
        moments_: moments of all rows seen.
        map_: the affine map.
        rank_: rank of the inputs.
    """

    def fit(self, X, y):
        """Fit on rows X, shape (n, d_in), and y, shape (n, d_out) or (n,).

        Raises:
            InputError: too few rows for the width, or constant inputs.
        """
        self._add(X, y, anew=True, at_least=2)
        self._solve()
        return self

    def partial_fit(self, X, y):
        """Add rows to those already seen; fewer than the width are only counted."""
        return self._add(X, y, anew=not hasattr(self, "moments_"))

    def predict(self, X):
        """Outputs of the map for rows X, shape (n, d_in).

        Raises:
            InputError: too few rows were seen to solve for the map.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        predicted = self.map_(torch.tensor(X)).numpy()
        return predicted[:, 0] if self._flat else predicted

    def score(self, X, y, sample_weight=None):
        """Pooled R² on rows X, y."""
        return r2_score(y, self.predict(X), sample_weight=sample_weight, multioutput="variance_weighted")

    @property
    def map_(self) -> AffineMap:
        """The affine map of all rows seen."""
        return self._solve()[0]

    @property
    def rank_(self) -> int:
        """Input directions that are not null."""
        return self._solve()[1]

    def _add(self, X, y, anew, at_least=1):
        checks = {"dtype": np.float64, "multi_output": True, "y_numeric": True, "ensure_min_samples": at_least}
        X, y = validate_data(self, X, y, reset=anew, **checks)
        outputs = np.ascontiguousarray(y, dtype=np.float64).reshape(len(X), -1)
        if anew:
            self.moments_ = Moments(X.shape[1], outputs.shape[1])
        self._flat, self._solved = y.ndim == 1, None
        self.moments_.update(torch.tensor(X), torch.tensor(outputs))
        return self

    def _solve(self) -> tuple[AffineMap, int]:
        check_is_fitted(self)
        if self._solved is None:
            self._solved = fit(self.moments_)
        return self._solved
