"""What a low-rank product of inputs adds to the straight line (arXiv 2606.19379, figure 3).

ŷ = W x + b + U[(A x) ⊙ (B x)] + an intercept, W and b seeded with the closed form. For given A and B the readout U is
a least-squares problem, so only A and B are searched for: variable projection (Golub & Pereyra 1973), by L-BFGS on
whitened inputs, stopped by a train fold that the fit does not see.

If rows are skewed, a product of two inputs has a linear part of its own, which W has to make room for. So W is
re-solved with U: each product's ridge regression on z is subtracted from it. Its strength d is best if about half of
the product's variance is linear, and costs little otherwise.

How far the numbers can be trusted: L-BFGS builds its steps from differences of nearby gradients, so rounding
differences between processors (1e-7 of a row) grow along the way, in float64 as much as in float32. They change the
gain by up to 5e-4, and the ends of its interval, which rest on three fits, by up to 5e-3. Only two decimals count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.optimize import minimize
from torch import Tensor

from howlinear.core.ceilings import fit, whitening
from howlinear.core.intervals import Estimate, half_width
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture, Sample

RIDGE = 1e-6  # on the correlation matrix of the features: two that coincide share their weight
ROWS_PER_RANK = 8
PATIENCE = 20  # iterations without improvement on the fold kept apart that end the fit


@dataclass(frozen=True)
class ProbeRows(Sample):
    """A block's sampled rows, as the probe sees them; float32."""

    z: Float[Tensor, "rows d"]  # inputs, centred and whitened by all train rows, without null directions
    e: Float[Tensor, "rows d_out"]  # what the affine map leaves, y − W x − b

    def split_train(self, seed: int) -> tuple[Int64[Tensor, " used"], Int64[Tensor, " apart"]]:
        """Split train rows into those to fit on and one fold, `seed` modulo their number, that decides when to stop."""
        folds = self.folds(test=False)
        apart = folds.pop(seed % len(folds))
        return torch.cat(folds).sort().values, apart


@dataclass(frozen=True)
class Branch:
    """z ↦ ((z A) ⊙ (z B) − level − z slope) U + intercept."""

    left: Float[Tensor, "d rank"]  # A
    right: Float[Tensor, "d rank"]  # B
    slope: Float[Tensor, "d rank"]  # the linear part of each product, which W takes over
    level: Float[Tensor, " rank"]  # the constant part of each product
    readout: Float[Tensor, "rank d_out"]  # U
    intercept: Float[Tensor, " d_out"]

    def __call__(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d_out"]:
        """Return what the branch adds to the affine map, in units of y."""
        products = (z @ self.left) * (z @ self.right)
        return (products - self.level - z @ self.slope) @ self.readout + self.intercept


@dataclass(frozen=True)
class Probe:
    """Gain of the branch over the affine map, on the held-out rows of the sample.

    The gain's interval adds the variance over held-out folds and, with two seeds or more, over train folds and starts.
    """

    gain: Estimate  # r2_poly − r2_lin, the mean over seeds
    r2_lin: float  # of the map fitted on all train rows, scored on the same rows as the branch
    r2_poly: float  # of the map with the branch
    branch: Branch  # fitted from the first seed

    @property
    def recovered(self) -> float:
        """Share of what the line leaves that the branch recovers: gain / (1 − r2_lin)."""
        return self.gain.value / (1 - self.r2_lin)


def probe(kept: BlockCapture, rank: int = 16, seeds: int = 3, steps: int = 100) -> Probe:
    """Measure the gain of a rank-`rank` bilinear branch over the affine map."""
    rows = residual_rows(kept)
    folds = len(rows.folds(test=False))
    if not 1 <= seeds <= folds:
        raise InputError(f"seeds must be 1 to {folds}, a train fold to stop by for each; got {seeds}")
    branches = []
    gains = []
    for seed in range(seeds):
        fitted = branch(rows, rank, seed, steps)
        line, poly = scores(rows, fitted(rows.z))
        branches.append(fitted)
        gains.append(poly - line)
    by_seed = np.array([gain[0] for gain in gains])
    left_out = np.mean([gain[1:] for gain in gains], axis=0)

    # Held-out folds: the delete-one-fold jackknife, (F − 1)/F Σ (gain without fold − their mean)²
    variances = np.array([(left_out.size - 1) * np.var(left_out)])
    degrees = np.array([left_out.size - 1])
    if seeds > 1:
        # Train folds and starts: the same sum, estimated from the folds that were left out
        variances = np.append(variances, (folds - 1) * np.var(by_seed, ddof=1))
        degrees = np.append(degrees, seeds - 1)

    # Degrees of freedom of the sum of variances (Welch–Satterthwaite): (Σ v)² / Σ (v² / degrees)
    half = 0.0
    if variances.any():
        pooled_degrees = variances.sum() ** 2 / (variances**2 / degrees).sum()
        half = half_width(variances.sum(), pooled_degrees)
    gain = float(by_seed.mean())
    r2_lin = float(line[0])
    return Probe(
        gain=Estimate(gain, gain - half, gain + half),
        r2_lin=r2_lin,
        r2_poly=r2_lin + gain,
        branch=branches[0],
    )


def fewest_rows(rank: int) -> int:
    """Return the fewest rows that a branch of a rank can be fitted on."""
    return ROWS_PER_RANK * (rank + 2)


def ranks_within(ranks: Sequence[int], blocks: Iterable[BlockCapture]) -> list[int]:
    """Return the ranks that all blocks have enough sampled rows for, whichever train fold decides when to stop."""
    used = []
    for kept in blocks:
        sizes = [len(fold) for fold in kept.rows().folds(test=False)]
        used.append(sum(sizes) - max(sizes))
    possible = [rank for rank in ranks if fewest_rows(rank) <= min(used)]
    if not possible:
        raise InputError(
            f"{min(used)} rows to fit on, and the least of the ranks {list(ranks)} needs {fewest_rows(min(ranks))}: "
            "sample more rows, or name a lower rank"
        )
    return possible


def residual_rows(kept: BlockCapture) -> ProbeRows:
    """Return a block's sample with whitened inputs and the residual of the closed-form map."""
    sample = kept.rows_in_folds()
    moments = sum(kept.train)
    affine, _ = fit(moments)
    x = sample.x.double()
    z = (x - moments.mean_x) @ whitening(moments)
    e = sample.y.double() - affine(x)
    return ProbeRows(**vars(sample), z=z.float(), e=e.float())


def branch(rows: ProbeRows, rank: int, seed: int = 0, steps: int = 100) -> Branch:
    """Fit the branch to `rows.e` on the train rows, without one fold that decides when to stop."""
    d = rows.z.shape[1]
    if not 1 <= rank <= d or steps < 1:
        raise InputError(f"rank={rank}, steps={steps} for inputs of rank {d}: take a rank of 1 to {d}, a step or more")
    used, apart = rows.split_train(seed)
    fewest = fewest_rows(rank)
    if len(used) < fewest:
        raise InputError(f"{len(used)} rows to fit rank {rank} on: use at least {fewest}, or a lower rank")
    objective = _Projected(rows.z[used], rows.e[used], rank)
    start = np.random.default_rng(seed).standard_normal(2 * d * rank) / d**0.5
    watch = _EarlyStopping(rows.z[apart], rows.e[apart], objective.branch(start))
    minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        callback=lambda flat: watch.update(objective.branch(flat)),
        options={"maxiter": steps, "maxcor": 20},
    )
    return watch.best


class _EarlyStopping:
    """Early stopping: keeps the branch that does best on rows not fitted, and ends a search that no longer improves."""

    def __init__(self, z: Tensor, e: Tensor, start: Branch):
        self.z, self.e = z, e
        self.best = replace(start, readout=0 * start.readout, intercept=0 * start.intercept)  # adds nothing
        self.least = e.norm()
        self.waited = 0
        self.update(start)

    def update(self, candidate: Branch) -> None:
        loss = (self.e - candidate(self.z)).norm()
        if loss < self.least:
            self.best, self.least = candidate, loss
            self.waited = 0
        else:
            self.waited += 1
        if self.waited == PATIENCE:
            raise StopIteration  # as `scipy.optimize.minimize` asks of a callback


class _Projected:
    """Share of the residual left by the best readout for given A and B, and its gradient."""

    def __init__(self, z: Float[Tensor, "n d"], e: Float[Tensor, "n d_out"], rank: int):
        n, d = z.shape
        self.z, self.rank = z, rank
        self.intercept = e.mean(0)
        self.e = e - self.intercept
        self.total = float(self.e.double().square().sum()) or 1.0
        self.centre = z.mean(0)
        # The linear part, as a smoother S = Q Qᵀ: Q = [1/√n, (Z − z̄) R], R Rᵀ = ((Z − z̄)ᵀ(Z − z̄) + d I)⁻¹
        centred = z - self.centre
        gram = (centred.T @ centred).double()
        gram.diagonal().add_(d)  # a ridge of strength d: see above
        identity = torch.eye(d, dtype=torch.float64)
        self.root = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), identity, upper=False).T.to(z)
        constant = torch.full_like(z[:, :1], n**-0.5)
        self.basis = torch.cat([constant, centred @ self.root], 1)
        self.last: tuple[np.ndarray, Branch] | None = None

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return loss and gradient at `flat`: A and B side by side, flattened."""
        both = torch.from_numpy(flat).to(self.z).view(-1, 2 * self.rank)
        left, right = (self.z @ both).chunk(2, dim=1)

        # F = (I − S) [(Z A) ⊙ (Z B)]: products without their linear part
        products = left * right
        straight = self.basis.T @ products
        features = products - self.basis @ straight

        # U = (FᵀF + ridge)⁻¹ Fᵀe, solved on the features' correlation matrix
        gram = (features.T @ features).double()
        cross = (features.T @ self.e).double()
        scale = gram.diagonal().sqrt().clamp_min(1e-30)
        correlation = gram / scale[:, None] / scale + RIDGE * torch.eye(self.rank, dtype=torch.float64)
        readout = torch.linalg.solve(correlation, cross / scale[:, None]) / scale[:, None]
        explained = float((readout * cross).sum())
        readout = readout.to(self.z)

        # ∂½‖e − F U‖² / ∂products = −(I − S)(e − F U) Uᵀ, and by the product rule back to A and B. U is taken as
        # constant: at the best U the loss does not change with it to first order (envelope theorem)
        back = self.e @ readout.T - features @ (readout @ readout.T)
        back = back - self.basis @ (self.basis.T @ back)
        gradient = self.z.T @ torch.cat([back * right, back * left], 1)

        # What S subtracted from each product, as an affine function of z
        slope = self.root @ straight[1:]
        level = straight[0] * len(self.z) ** -0.5 - self.centre @ slope
        factors = both.chunk(2, dim=1)
        self.last = flat.copy(), Branch(*factors, slope, level, readout, self.intercept)
        return 1 - explained / self.total, (-2 / self.total * gradient.double()).numpy().ravel()

    def branch(self, flat: np.ndarray) -> Branch:
        """Return the branch with the best readout for A and B."""
        if self.last is None or not np.array_equal(self.last[0], flat):
            self(flat)
        return self.last[1]


def scores(rows: ProbeRows, added: Float[Tensor, "rows d_out"]) -> tuple[np.ndarray, np.ndarray]:
    """Return held-out R² of the map alone and with `added` on top: of all rows first, then without each fold."""
    subsets = [rows.test, *(rows.test.index_fill(0, fold, False) for fold in rows.folds(test=True))]
    line, poly = [], []
    for subset in subsets:
        total = float(squares_about_mean(rows.y[subset]))
        if not total > 0:
            count = int(rows.test.sum())
            raise InputError(f"the outputs are constant over {count} held-out rows: R² is undefined; use more text")
        left_by_line = rows.e[subset]
        left_by_both = left_by_line - added[subset]
        line.append(1 - float(left_by_line.double().square().sum()) / total)
        poly.append(1 - float(left_by_both.double().square().sum()) / total)
    return np.array(line), np.array(poly)


def squares_about_mean(values: Float[Tensor, "n d_out"]) -> Float[Tensor, ""]:
    """Σ (y − ȳ)² over rows and features, in float64."""
    values = values.double()
    return (values - values.mean(0)).square().sum()


# --- Would the probe find a branch if there were one? Teachers planted on a block's own inputs
#
# A small gain means something only if the same probe, on the same rows, finds a branch that is there and none that is
# not (the paper leaves this out). The linear part of every teacher is removed, as it is from a residual.

HIDDEN = 0.25  # a hidden teacher's share of the variance


def power(kept: BlockCapture, rank: int = 16, seeds: int = 3, steps: int = 100) -> dict[str, float]:
    """Cells of table `power`: the share of each teacher that the probe recovers on a block's inputs."""
    if seeds < 1:
        raise InputError(f"seeds={seeds}: the probe needs a start or more")
    rows = residual_rows(kept)
    means = {}
    for name, (target, truth) in _tasks(rows, rank).items():
        # a start may end in a local optimum that misses one of the products; a mean says how much that costs
        shares = [_recovered(rows, target, truth, rank, start, steps) for start in range(seeds)]
        means[name] = sum(shares) / seeds
    return means


def hidden_teacher(kept: BlockCapture, rank: int, steps: int = 100) -> float:
    """Return the share of the hidden teacher that the probe recovers, from one start."""
    rows = residual_rows(kept)
    target, truth = _tasks(rows, rank)["hidden"]
    return _recovered(rows, target, truth, rank, 0, steps)


def _tasks(rows: ProbeRows, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return name in `power` → the target that the probe fits, and the part of it that it should recover."""
    generator = torch.Generator().manual_seed(0)
    noise = shuffled(rows, generator)
    bilinear = teacher(rows, 2, rank, generator)
    cubic = teacher(rows, 3, rank, generator)
    # signal / (signal + noise) = HIDDEN, in Σ² over the train rows
    train = ~rows.test
    ratio = noise[train].square().sum() / bilinear[train].square().sum()
    weak = bilinear * (ratio * HIDDEN / (1 - HIDDEN)).sqrt()
    return {
        "planted": (bilinear, bilinear),
        "hidden": (weak + noise, weak),
        "cubic": (cubic, cubic),
        "shuffled": (noise, noise),
    }


def teacher(rows: ProbeRows, degree: int, rank: int, generator: torch.Generator) -> Float[Tensor, "rows d_out"]:
    """Return random sums of `rank` products of `degree` random inputs, without their linear part."""
    n, d = rows.z.shape
    products = torch.ones(n, rank)
    for _ in range(degree):
        directions = torch.randn(d, rank, generator=generator)
        products = products * (rows.z @ directions / d**0.5)
    # The linear part, by ridge of strength d on all but the constant, as in the probe
    ones = torch.cat([torch.ones(n, 1), rows.z], 1).double()
    ridge = torch.eye(d + 1, dtype=torch.float64) * d
    ridge[0, 0] = 0
    train = ones[~rows.test]
    cross = train.T @ products[~rows.test].double()
    straight = torch.linalg.solve(train.T @ train + ridge, cross)
    bent = products - (ones @ straight).float()
    mixture = torch.randn(rank, rows.e.shape[1], generator=generator)
    return bent @ mixture


def shuffled(rows: ProbeRows, generator: torch.Generator) -> Float[Tensor, "rows d_out"]:
    """Shuffle the rows of the residual, train and held-out rows separately."""
    mixed = rows.e.clone()
    for side in (rows.test, ~rows.test):
        places = side.nonzero()[:, 0]
        order = torch.randperm(len(places), generator=generator)
        mixed[places] = rows.e[places[order]]
    return mixed


def _recovered(rows: ProbeRows, target: Tensor, truth: Tensor, rank: int, seed: int, steps: int) -> float:
    """Fit a branch to `target` and return its R² as a prediction of `truth`, on held-out rows."""
    fitted = branch(replace(rows, e=target), rank, seed, steps)
    held_out = truth[rows.test].double()
    guess = fitted(rows.z)[rows.test].double()
    error = (held_out - guess).square().sum()
    return float(1 - error / squares_about_mean(held_out))
