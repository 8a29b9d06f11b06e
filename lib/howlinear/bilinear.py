"""What a low-rank product of inputs adds to the straight line (arXiv 2606.19379, figure 3).

ŷ = W x + b + U[(A x) ⊙ (B x)] + an intercept, W and b seeded with the closed form. For given A and B the readout U is
a least-squares problem, so only A and B are searched for: variable projection (Golub & Pereyra 1973), by L-BFGS on
whitened inputs, stopped by a train fold that the fit does not see.

Where rows are skewed, a product of two inputs has a straight part of its own, which W has to make room for. So W is
re-solved with U: each product's regression on z is taken off it, by ridge of strength d, which is best where about
half of the product's variance is straight, and costs little elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from scipy.optimize import minimize
from scipy.stats import t as student_t
from torch import Tensor

from howlinear.capture import BlockCapture
from howlinear.ceilings import CONFIDENCE, fit, whitening
from howlinear.errors import InputError

RIDGE = 1e-6  # on the correlation matrix of the features: two that coincide share their weight
ROWS_PER_RANK = 8
PATIENCE = 20  # iterations that may go by without doing better on the fold kept apart


@dataclass(frozen=True)
class Rows:
    """A block's sampled rows, as the probe sees them.

    Attributes:
        z: inputs, centred and whitened by all train rows, without null directions, shape (rows, d), float32.
        e: what the affine map leaves, y − W x − b, shape (rows, d_out), float32.
        y: outputs, shape (rows, d_out), float32.
        test: which rows are held out, shape (rows,).
        fold: document folds, shape (rows,).
    """

    z: Float[Tensor, "rows d"]
    e: Float[Tensor, "rows d_out"]
    y: Float[Tensor, "rows d_out"]
    test: Bool[Tensor, " rows"]
    fold: Int64[Tensor, " rows"]


@dataclass(frozen=True)
class Branch:
    """z ↦ ((z A) ⊙ (z B) − level − z slope) U + intercept.

    Attributes:
        left: A, shape (d, rank).
        right: B, shape (d, rank).
        slope: the straight part of each product, which W takes over, shape (d, rank).
        level: its constant part, shape (rank,).
        readout: U, shape (rank, d_out).
        intercept: shape (d_out,).
    """

    left: Float[Tensor, "d rank"]
    right: Float[Tensor, "d rank"]
    slope: Float[Tensor, "d rank"]
    level: Float[Tensor, " rank"]
    readout: Float[Tensor, "rank d_out"]
    intercept: Float[Tensor, " d_out"]

    def __call__(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n d_out"]:
        """What the branch adds to the affine map, in units of y."""
        return ((z @ self.left) * (z @ self.right) - self.level - z @ self.slope) @ self.readout + self.intercept


@dataclass(frozen=True)
class Probe:
    """What the branch gains, on the held-out rows of the sample.

    Attributes:
        gain: r2_poly − r2_lin, the mean over seeds.
        low: lower end of its 95 % interval: held-out folds and, with two seeds or more, train folds and starts.
        high: upper end.
        r2_lin: R²_lin of the map fitted on all train rows, scored on the very rows that score the branch.
        r2_poly: with the branch.
        by_seed: the gain of each seed, shape (seeds,).
    """

    gain: float
    low: float
    high: float
    r2_lin: float
    r2_poly: float
    by_seed: np.ndarray

    @property
    def recovered(self) -> float:
        """Share of what the line leaves that the branch recovers: gain / (1 − r2_lin)."""
        return self.gain / (1 - self.r2_lin)


def probe(kept: BlockCapture, rank: int = 16, seeds: int = 3, steps: int = 100) -> Probe:
    """Gain of a rank-`rank` bilinear branch over the affine map.

    Args:
        kept: a captured block with a sample.
        rank: number of products of two inputs; the paper's is 16.
        seeds: fits, each from another start and stopped by another train fold. As each leaves out one fold, their
            spread is a delete-one-fold jackknife of the train side, cut short at `seeds` folds.
        steps: most L-BFGS iterations per fit.

    Raises:
        InputError: no sample, too few rows, or a rank, number of seeds or of steps that cannot be.
    """
    rows = residual_rows(kept)
    folds = len(rows.fold[~rows.test].unique())
    if not 1 <= seeds <= folds:
        raise InputError(f"seeds must be 1 to {folds}, a train fold to stop by for each; got {seeds}")
    lines, polys = zip(*(scores(rows, branch(rows, rank, seed, steps)(rows.z)) for seed in range(seeds)), strict=True)
    gains = np.array(polys) - lines[0]
    by_seed, left_out = gains[:, 0], gains[:, 1:].mean(0)
    parts = [((left_out.size - 1) * np.var(left_out), left_out.size - 1)]
    if seeds > 1:
        parts.append(((folds - 1) * np.var(by_seed, ddof=1), seeds - 1))
    gain, line, half = float(by_seed.mean()), float(lines[0][0]), _half_width(parts)
    return Probe(gain, gain - half, gain + half, line, line + gain, by_seed)


def residual_rows(kept: BlockCapture) -> Rows:
    """The sample of a block, whitened, with the closed-form map taken off.

    Raises:
        InputError: nothing was sampled, or one side of it has fewer than two document folds.
    """
    sample = kept.sample
    if sample is None:
        raise InputError("the bilinear probe needs rows: capture with sample=4096 or more")
    for side, name in ((sample.test, "held-out"), (~sample.test, "train")):
        if len(sample.fold[side].unique()) < 2:
            raise InputError(f"the sample's {int(side.sum())} {name} rows need two document folds: sample more rows")
    moments = sum(kept.train)
    affine, _ = fit(moments)
    x = sample.x.double()
    z, e = (x - moments.mean_x) @ whitening(moments), sample.y.double() - affine(x)
    return Rows(z.float(), e.float(), sample.y, sample.test, sample.fold)


def branch(rows: Rows, rank: int, seed: int = 0, steps: int = 100) -> Branch:
    """Fit the branch to `rows.e` on the train rows, without one fold that decides when to stop.

    Args:
        rows: see `residual_rows`.
        rank: number of products.
        seed: of the start, and which train fold is kept apart (`seed` modulo their number).
        steps: most L-BFGS iterations; the one that does best on the fold kept apart is returned, which may be none, a
            branch that adds nothing.

    Raises:
        InputError: a rank below 1 or above the inputs', too few rows for it, or no steps.
    """
    folds, d = rows.fold[~rows.test].unique(), rows.z.shape[1]
    if not 1 <= rank <= d or steps < 1:
        raise InputError(f"rank={rank}, steps={steps} for inputs of rank {d}: take a rank of 1 to {d}, a step or more")
    apart = ~rows.test & (rows.fold == folds[seed % len(folds)])
    used = ~rows.test & ~apart
    if used.sum() < ROWS_PER_RANK * (rank + 2):
        raise InputError(
            f"{int(used.sum())} rows to fit rank {rank} on: use at least {ROWS_PER_RANK * (rank + 2)}, or a lower rank"
        )
    target = _Projected(rows.z[used], rows.e[used], rank)
    start = np.random.default_rng(seed).standard_normal(2 * d * rank) / d**0.5
    first = target.branch(start)
    unseen, left = rows.z[apart], rows.e[apart]
    best, least, waited = replace(first, readout=0 * first.readout, intercept=0 * first.intercept), left.norm(), 0

    def validate(flat: np.ndarray) -> None:
        nonlocal best, least, waited
        found = target.branch(flat)
        loss = (left - found(unseen)).norm()
        best, least, waited = (found, loss, 0) if loss < least else (best, least, waited + 1)
        if waited == PATIENCE:
            raise StopIteration

    validate(start)
    minimize(target, start, jac=True, method="L-BFGS-B", callback=validate, options={"maxiter": steps, "maxcor": 20})
    return best


class _Projected:
    """Share of the residual left by the best readout for given A and B, and its gradient (U held: envelope theorem)."""

    def __init__(self, z: Tensor, e: Tensor, rank: int):
        self.z, self.rank, self.intercept, self.centre = z, rank, e.mean(0), z.mean(0)
        self.e = e - self.intercept
        self.total = float(self.e.double().square().sum()) or 1.0
        rows = z - self.centre
        gram = (rows.T @ rows).double()
        gram.diagonal().add_(z.shape[1])  # a ridge of strength d: see above
        identity = torch.eye(z.shape[1], dtype=torch.float64)
        self.root = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), identity, upper=False).T.to(z)
        self.basis = torch.cat([torch.full_like(z[:, :1], len(z) ** -0.5), rows @ self.root], 1)
        self.last: tuple[np.ndarray, Branch] | None = None

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss and gradient at A and B, side by side and flattened."""
        both = torch.from_numpy(flat).to(self.z).view(-1, 2 * self.rank)
        left, right = (self.z @ both).chunk(2, dim=1)
        straight = self.basis.T @ (left * right)
        features = left * right - self.basis @ straight
        gram, cross = (features.T @ features).double(), (features.T @ self.e).double()
        scale = gram.diagonal().sqrt().clamp_min(1e-30)
        correlation = gram / scale[:, None] / scale + RIDGE * torch.eye(self.rank, dtype=torch.float64)
        readout = torch.linalg.solve(correlation, cross / scale[:, None]) / scale[:, None]
        explained, readout = float((readout * cross).sum()), readout.to(self.z)
        back = self.e @ readout.T - features @ (readout @ readout.T)
        back = back - self.basis @ (self.basis.T @ back)
        gradient = self.z.T @ torch.cat([back * right, back * left], 1)
        slope = self.root @ straight[1:]
        level = straight[0] * len(self.z) ** -0.5 - self.centre @ slope
        self.last = flat.copy(), Branch(*both.chunk(2, dim=1), slope, level, readout, self.intercept)
        return 1 - explained / self.total, (-2 / self.total * gradient.double()).numpy().ravel()

    def branch(self, flat: np.ndarray) -> Branch:
        """The branch with the best readout for A and B."""
        if self.last is None or not np.array_equal(self.last[0], flat):
            self(flat)
        return self.last[1]


def scores(rows: Rows, added: Float[Tensor, "rows d_out"]) -> tuple[np.ndarray, np.ndarray]:
    """Held-out R² of the affine map, and with `added` on top: of all rows, then less each fold, (1 + folds,).

    Raises:
        InputError: the outputs are constant.
    """
    test = rows.test
    y, line, poly, fold = (part[test] for part in (rows.y.double(), rows.e, rows.e - added, rows.fold))
    masks = [torch.ones_like(fold, dtype=torch.bool), *(fold != i for i in fold.unique())]
    totals = [float((y[mask] - y[mask].mean(0)).square().sum()) for mask in masks]
    if not min(totals) > 0:
        raise InputError(f"the outputs are constant over {len(y)} held-out rows: R² is undefined; use more text")
    left = [[float(part[mask].double().square().sum()) for mask in masks] for part in (line, poly)]
    return tuple(1 - np.array(side) / np.array(totals) for side in left)


def _half_width(parts: list[tuple[float, int]]) -> float:
    """Half of the 95 % interval for a sum of variances with their degrees of freedom (Welch–Satterthwaite)."""
    total = sum(variance for variance, _ in parts)
    squares = sum(variance**2 / freedom for variance, freedom in parts)
    return float(student_t.ppf((1 + CONFIDENCE) / 2, total**2 / squares) * total**0.5) if total else 0.0
