"""The ceiling of degree 2 itself: ridge regression on all products of a block's inputs, streamed over the rows.

For d = 128 these are up to 8,256 features beside the line's 128, and want several rows each. No feature is stored: each
chunk of rows adds to one Gram matrix. Whitened inputs give products of mean 0 and variance about 1, so single precision
is enough within a chunk (its Gram is a symmetric rank-k update, half the work of a product); chunks are added up in
double. Single is also enough to factorise where the ridge is far above its rounding, and takes half the time. Notebook
10 holds its lower bounds against this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.blas import dsyr, ssyrk
from torch import Tensor

from howlinear.capture import BlockCapture, Sample
from howlinear.errors import InputError
from howlinear.kernels import Learned, Products, drawn, scored, tried
from howlinear.nested import folds_of, rows_of

CHUNK = 4_096  # rows in one single-precision sum
LIMIT = 16_384  # features: their Gram takes 2 GB, and as much again to solve
RIDGES = (1e-3, 1e-2, 1e-1)  # relative to unit variance of each feature
SINGLE = 1e-3  # ridges from here on are solved in single precision
FLAT = float(np.finfo(np.float32).eps)  # a product of variance below this, not about 1, varies by rounding alone


def quadratic(kept: BlockCapture, rows: Sequence[int], ridges: Sequence[float] = RIDGES) -> list[Learned]:
    """Held-out R² of the best polynomial of degree 2, on more and more train rows.

    The first train fold chooses the ridge and is never fitted on; the last number of rows takes the ridge of the one
    before, for time.

    Args:
        kept: a captured block whose sample holds all rows.
        rows: numbers of train rows, ascending.
        ridges: to choose among.

    Raises:
        InputError: no sample, fewer train rows than asked for, inputs too wide for all their products, or a ridge too
            small for products that coincide on the rows.
    """
    sample, features = rows_of(kept), Products.of(sum(kept.train))
    width = features.white.weight.shape[1] + features.count * (features.count + 1) // 2
    if width > LIMIT:
        raise InputError(f"{width} products of inputs, at most {LIMIT} fit: take leading directions, kernels.products")
    validation, order = drawn(sample, rows)
    sums, curve, done = _Sums(features, sample), [], 0
    held_out = folds_of(sample, test=True)
    for n in rows:
        sums.add(order[done:n])
        done, found = n, []
        for ridge in tried(ridges, rows, curve):
            weights = sums.solved(ridge)
            error = (sample.y[validation] - sums.guess(validation, *weights)).square().sum()
            found.append((float(error), ridge, weights))
        _, ridge, weights = min(found, key=lambda one: one[0])
        guess = [sums.guess(index, *weights) for index in held_out]
        curve.append(scored([sample.y[index] for index in held_out], guess, n, ridge))
    return curve


class _Sums:
    """Sums over rows of the features f (less the mean 1 of a whitened square) and the outputs."""

    def __init__(self, features: Products, sample: Sample):
        self.features, self.sample, self.n = features, sample, 0
        plain, (first, second) = len(features.white.bias), torch.tril_indices(features.count, features.count)
        self.level = torch.cat([torch.zeros(plain), (first == second).float()])[:, None]
        p, d_out = len(self.level), sample.y.shape[1]
        self.part = np.zeros((p, p), np.float32, order="F")  # of one chunk; its lower triangle is used
        self.gram, self.cross = np.zeros((p, p), order="F"), np.zeros((p, d_out))
        self.work = np.empty_like(self.gram)  # the same memory for every solution
        self.total, self.total_y = np.zeros(p), np.zeros(d_out)

    def rows(self, index: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Features, in float32, and outputs, in float64."""
        found = self.features(self.sample.x[index]).T.sub_(self.level)
        return found.T.numpy(), self.sample.y[index].double().numpy()

    def add(self, index: Tensor) -> None:
        for chunk in index.split(CHUNK):
            found, y = self.rows(chunk)
            self.part = ssyrk(1.0, found, beta=0.0, c=self.part, trans=1, lower=1, overwrite_c=1)
            self.gram += self.part
            self.cross += found.T @ y.astype(np.float32)
            self.total += found.sum(0, dtype=np.float64)
            self.total_y += y.sum(0)
        self.n += len(index)

    def solved(self, ridge: float) -> tuple[Float[np.ndarray, "p d_out"], Float[np.ndarray, " d_out"]]:
        """Weights and intercept, the features scaled to unit variance."""
        mean, mean_y = self.total / self.n, self.total_y / self.n
        np.divide(self.gram, self.n, out=self.work)
        centred = dsyr(-1.0, mean, a=self.work, lower=1, overwrite_a=1)
        variance = centred.diagonal().copy()
        scale = np.where(variance > FLAT, variance, np.inf) ** -0.5
        centred *= scale
        centred *= scale[:, None]
        np.fill_diagonal(centred, 1 + ridge)
        if ridge >= SINGLE:
            centred = centred.astype(np.float32)
        try:
            factor = cholesky(centred, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            what = f"on {self.n} rows some products all but coincide, and a ridge of {ridge} is too small: raise it"
            raise InputError(what) from None
        cross = scale[:, None] * (self.cross / self.n - np.outer(mean, mean_y))
        weight = scale[:, None] * cho_solve((factor, True), cross.astype(factor.dtype), check_finite=False)
        return weight, mean_y - mean @ weight

    def guess(self, index: Tensor, weight: np.ndarray, bias: np.ndarray) -> Float[Tensor, "n d_out"]:
        single = weight.astype(np.float32)  # as the features are
        parts = [self.rows(chunk)[0] @ single + bias for chunk in index.split(CHUNK)]
        return torch.from_numpy(np.concatenate(parts))
