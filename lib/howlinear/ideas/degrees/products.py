"""All products of inputs, not only those of a block's own neurons: degree 2, degree 3, and unbounded degree.

Full degree 2 means d(d+1)/2 products: 8,256 for d = 128. There are two ways to fit them. On few rows they stay
implicit: ridge regression with the kernel (1 + x·x')² has the same functions (Schölkopf & Smola, "Learning with
Kernels", 2.1), and n rows cost n³/3 (`learning_curve`). The reference is a Gaussian kernel, which bounds no degree.
Fits on few rows lie below the ceiling: check that the learning curve is flat before reading its last point as the
ceiling. On many rows the products are computed (`Products`) and their moments streamed: exact least squares on all of
them (`quadratic`), or on those of the leading directions, with error bars (`products`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from torch import Tensor

from howlinear.core.ceilings import AffineMap, fit, whitening
from howlinear.core.intervals import Estimate
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.degrees.nested import CHUNK, add_features, ascends, left_out_r2, nested, prefix_maps
from howlinear.instrument.capture import BlockCapture, Sample

Kernel = Callable[[Tensor, Tensor], np.ndarray]
KERNEL_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # of the kernel's mean diagonal
FEATURE_RIDGES = (1e-3, 1e-2, 1e-1)  # relative to unit variance of each feature
STREAM = 4_096  # rows multiplied at a time: few large updates of such a large matrix cost less than many small ones
FLAT = float(np.finfo(np.float32).eps)  # a square of mean 1 and variance below this varies by rounding alone


@dataclass(frozen=True)
class Learned:
    """A point of a learning curve: what a fit on some number of rows explains.

    The interval of R², over held-out document folds, takes the fit as given. It contains the mean over new documents in
    92 to 94 of 100 simulated measurements, in 90 if outputs have heavy tails (`benchmarks/coverage.py`).
    """

    rows: int  # fitted on
    r2: Estimate  # held out, pooled
    ridge: float  # chosen on validation documents


# On few rows, by kernels


def polynomial(degree: int) -> Kernel:
    """(1 + x·x')^degree: all polynomials up to that degree."""
    return partial(polynomial_kernel, degree=degree, gamma=1, coef0=1)


gaussian: Kernel = partial(rbf_kernel, gamma=0.5)
"""exp(−‖x − x'‖²/2): no bound on the degree."""


def learning_curve(
    captured: BlockCapture,
    kernel: Kernel,
    rows: Sequence[int],
    ridges: Sequence[float] = KERNEL_RIDGES,
) -> list[Learned]:
    """Fit the residuals of the line by kernel ridge regression, on more and more train rows."""
    sample = captured.rows_in_folds()
    validation, order = split_train(sample, rows)
    moments = sum(captured.train)
    line, inputs = fit(moments)
    left = sample.y.double() - line(sample.x.double())
    # mean 0 and variance 1 / d; 0 for an input that is constant but for rounding
    centred = sample.x.double() - moments.mean_x
    scaled = centred * inputs.scale * (moments.n / moments.d_in) ** 0.5
    held_out = sample.folds(test=True)
    truth = [sample.y[index] for index in held_out]
    # the last number of rows takes the ridge of the one before, so let the numbers grow by a factor of about two
    curve = []
    for n in rows:
        used = order[:n]
        gram = kernel(scaled[used], scaled[used])
        beside = kernel(scaled[validation], scaled[used])
        level = gram.diagonal().mean()
        regressions = {}
        errors = {}
        for ridge in ridges_to_try(ridges, rows, curve):
            # α = (K + λI)⁻¹ Y
            regressions[ridge] = KernelRidge(alpha=ridge * level, kernel="precomputed")
            regressions[ridge].fit(gram, left[used].numpy())
            error = left[validation].numpy() - regressions[ridge].predict(beside)
            errors[ridge] = np.square(error).sum()
        best = min(errors, key=errors.get)
        guess = []
        for index in held_out:
            beside = kernel(scaled[index], scaled[used])
            added = torch.from_numpy(regressions[best].predict(beside))
            guess.append(line(sample.x[index].double()) + added)
        curve.append(Learned(n, score(truth, guess), best))
    return curve


# On many rows, written down


@dataclass(frozen=True)
class Products:
    """x ↦ (x without its null directions, products of pairs of its leading principal directions).

    Pairs are in order of the later direction, so the products of the first k directions come first.
    """

    white: AffineMap  # to centred and whitened inputs, the quietest direction first
    count: int  # of directions that are multiplied, k: k(k+1)/2 products

    @classmethod
    def of(cls, moments: Moments, directions: int | None = None) -> Products:
        """All products of the leading directions of these inputs; by default of all that vary."""
        whiten = whitening(moments)
        count = whiten.shape[1] if directions is None else directions
        return cls(AffineMap(whiten, -moments.mean_x @ whiten), count)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.white.bias) + self.count * (self.count + 1) // 2

    def __call__(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n p"]:
        """Compute the features of some rows, in their dtype; each feature is contiguous in memory, for speed."""
        white = self.white(x).T
        loudest_first = white.flip(0)
        squares_and_pairs = [loudest_first[: i + 1] * loudest_first[i] for i in range(self.count)]
        return torch.cat([white, *squares_and_pairs]).T


def products(captured: BlockCapture, directions: Sequence[int]) -> pd.DataFrame:
    """Fit the line and all products of the k leading principal directions of x, for several k."""
    moments = sum(captured.train)
    rank = whitening(moments).shape[1]
    if not ascends(directions, 0, rank):
        raise InputError(f"directions {list(directions)}: give ascending numbers from 0 to the {rank} that vary")
    features = Products.of(moments, directions[-1])
    return nested(captured, features, [rank + k * (k + 1) // 2 for k in directions])


def quadratic(captured: BlockCapture, rows: Sequence[int], ridges: Sequence[float] = FEATURE_RIDGES) -> list[Learned]:
    """Measure held-out R² of the best polynomial of degree 2, fitted on more and more train rows."""
    sample = captured.rows_in_folds()
    features = Products.of(sum(captured.train))
    validation, order = split_train(sample, rows)
    held_out = sample.folds(test=True)
    truth = [sample.y[index] for index in held_out]
    # for 180 inputs the Gram matrix of all products takes 2 GB, and solving it twice as much again
    moments = Moments(features.width, sample.y.shape[1])
    curve = []
    for n in rows:
        add_features(moments, sample, order[moments.n : n], features, STREAM)
        maps = {}
        errors = {}
        for ridge in ridges_to_try(ridges, rows, curve):
            (maps[ridge],) = prefix_maps(moments, [features.width], ridge, null=FLAT)
            guess = _answer(maps[ridge], features, sample.x[validation])
            errors[ridge] = float((sample.y[validation] - guess).square().sum())
        best = min(errors, key=errors.get)
        guess = [_answer(maps[best], features, sample.x[index]) for index in held_out]
        curve.append(Learned(n, score(truth, guess), best))
    return curve


def _answer(affine: AffineMap, features: Products, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_out"]:
    """Apply a map to the products of some rows in single precision; the bias, maybe large, is added in double."""
    weight = affine.weight.float()
    return torch.cat([features(part) @ weight + affine.bias for part in x.split(CHUNK)])


# What both ways share


def split_train(sample: Sample, rows: Sequence[int]) -> tuple[Int64[Tensor, " v"], Int64[Tensor, " n"]]:
    """Return the first train fold's rows, to choose a ridge on, and all others in random order, to fit on."""
    validation, *others = sample.folds(test=False)
    order = torch.cat(others)
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    if not ascends(rows, 2, len(order)):
        raise InputError(f"rows {list(rows)}: give ascending numbers from 2 to the {len(order)} rows there are")
    return validation, order


def ridges_to_try(ridges: Sequence[float], rows: Sequence[int], curve: Sequence[Learned]) -> Sequence[float]:
    """List the ridges to try: all, but for the last number of rows only the one chosen before it, to save time."""
    is_last_of_several = len(curve) == len(rows) - 1 and len(rows) > 1
    return [curve[-1].ridge] if is_last_of_several else ridges


def score(truth: Sequence[Float[Tensor, "_ d_out"]], guess: Sequence[Float[Tensor, "_ d_out"]]) -> Estimate:
    """Held-out R² of a guess, and its interval, from truth and guess per held-out document fold."""
    y = torch.cat(list(truth)).double()
    error = (y - torch.cat(list(guess))).square().sum()
    value = float(1 - error / (y - y.mean(0)).square().sum())
    return Estimate.jackknife(value, left_out_r2(truth, guess))
