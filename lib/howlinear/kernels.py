"""All products of inputs, not those of a block's own neurons alone: degree 2, degree 3, and no degree at all.

Full degree 2 means d(d+1)/2 products: 8,256 for d = 128. Ridge regression on them needs none of them written down: the
kernel (1 + x·x')² has the same functions (Schölkopf & Smola, "Learning with Kernels", 2.1), and n rows cost n³/3. A
Gaussian kernel bounds no degree, and is the reference. Fits on few rows lie below the ceiling: look at the learning
curve before reading its last point as one. `Products` writes the products of the leading directions down instead,
where all rows can be used; `quadratic` does so for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from howlinear.capture import BlockCapture, Sample
from howlinear.ceilings import AffineMap, ceiling, jackknife, spectrum, whitening
from howlinear.errors import InputError
from howlinear.moments import Moments
from howlinear.nested import RIDGE, Nested, folds_of, left_out_r2, nested, rows_of

Kernel = Callable[[Tensor, Tensor], Tensor]
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # of the kernel's mean diagonal


def polynomial(degree: int) -> Kernel:
    """(1 + x·x')^degree: all polynomials up to that degree.

    Raises:
        InputError: a degree below 1.
    """
    if degree < 1:
        raise InputError(f"degree {degree}: a polynomial kernel has 1 or more")
    return lambda a, b: (a @ b.T).add_(1).pow_(degree)


def gaussian(a: Float[Tensor, "n d"], b: Float[Tensor, "k d"]) -> Float[Tensor, "n k"]:
    """exp(−‖x − x'‖²/2): no bound on the degree."""
    return torch.cdist(a, b).square_().mul_(-0.5).exp_()


@dataclass(frozen=True)
class Learned:
    """What a kernel adds to the line, from a number of rows.

    Attributes:
        rows: train rows of the kernel.
        r2: held-out R² of line and kernel together.
        low: lower end of its 95 % interval over held-out document folds; it takes the fit as given.
        high: upper end.
        ridge: chosen on validation documents.
    """

    rows: int
    r2: float
    low: float
    high: float
    ridge: float


def learning_curve(
    kept: BlockCapture, kernel: Kernel, rows: Sequence[int] = (750, 1_500, 3_000), ridges: Sequence[float] = RIDGES
) -> list[Learned]:
    """Kernel ridge regression on what the line leaves, on more and more train rows.

    The line is fitted on all train rows. Inputs are centred, scaled to unit variance, and divided by √d. The first
    train fold chooses the ridge and is never fitted on; the last number of rows takes the ridge of the one before, for
    time, so give the numbers in steps of two or so.

    Args:
        kept: a captured block with a sample.
        kernel: `polynomial(2)`, `polynomial(3)`, `gaussian`, or any kernel of two sets of rows.
        rows: numbers of train rows, ascending; a train row serves every number from the first that it is in.
        ridges: to choose among.

    Raises:
        InputError: no sample, or fewer train rows than asked for.
    """
    sample, line = rows_of(kept), ceiling(sum(kept.train), sum(kept.test)).map
    validation, fitted_on = drawn(sample, rows)
    scaled, left = _scaled(sample, sum(kept.train)), sample.y.double() - line(sample.x.double())
    held_out = folds_of(sample, test=True)
    test, curve = torch.cat(held_out), []
    for n in rows:
        used = fitted_on[:n]
        weights, ridge = _best(scaled, left, used, validation, kernel, tried(ridges, rows, curve))
        added = kernel(scaled[test], scaled[used]) @ weights
        guess = (line(sample.x[test].double()) + added).split([len(index) for index in held_out])
        curve.append(scored([sample.y[index] for index in held_out], guess, n, ridge))
    return curve


def drawn(sample: Sample, rows: Sequence[int]) -> tuple[Int64[Tensor, " v"], Int64[Tensor, " n"]]:
    """The first train fold's rows, to choose a ridge on, and the others' in a random order, to fit on.

    Raises:
        InputError: `rows`, how many to fit on in turn, do not ascend or are more than there are.
    """
    validation, *others = folds_of(sample, test=False)
    order = torch.cat(others)
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    if list(rows) != sorted(set(rows)) or not rows or not 2 <= rows[0] <= rows[-1] <= len(order):
        raise InputError(f"rows {list(rows)}: give ascending numbers from 2 to the {len(order)} rows there are")
    return validation, order


def tried(ridges: Sequence[float], rows: Sequence[int], curve: Sequence[Learned]) -> Sequence[float]:
    """Ridges to choose among for the next number of rows: all; for the last only the one before it took, for time."""
    return ridges if len(curve) < max(1, len(rows) - 1) else [curve[-1].ridge]


def _best(
    scaled: Tensor, left: Tensor, used: Tensor, validation: Tensor, kernel: Kernel, ridges: Sequence[float]
) -> tuple[Tensor, float]:
    """Dual weights with the ridge that leaves least on the validation rows."""
    gram, beside = kernel(scaled[used], scaled[used]), kernel(scaled[validation], scaled[used])
    level, found, before = gram.diagonal().mean(), [], 0.0
    for ridge in ridges:
        gram.diagonal().add_((ridge - before) * level)
        before = ridge
        weights = torch.cholesky_solve(left[used], torch.linalg.cholesky(gram))
        found.append((float((left[validation] - beside @ weights).square().sum()), ridge, weights))
    _, ridge, weights = min(found, key=lambda one: one[0])
    return weights, ridge


def scored(
    truth: Sequence[Float[Tensor, "_ d_out"]], guess: Sequence[Float[Tensor, "_ d_out"]], n: int, ridge: float
) -> Learned:
    """Held-out R² of a guess, and its interval, from truth and guess per held-out document fold."""
    y, found = torch.cat(list(truth)).double(), torch.cat(list(guess))
    value = float(1 - (y - found).square().sum() / (y - y.mean(0)).square().sum())
    return Learned(n, value, *jackknife(value, left_out_r2(truth, guess)), ridge)


def _scaled(sample: Sample, moments: Moments) -> Float[Tensor, "n d"]:
    scale = spectrum(moments)[0] * (moments.n / moments.d_in) ** 0.5  # 0 for an input that is constant but for rounding
    return (sample.x.double() - moments.mean_x) * scale


@dataclass(frozen=True)
class Products:
    """x ↦ (x without its null directions, products of pairs of its leading principal directions).

    Pairs are in order of the later direction, so the products of the first k directions come first.

    Attributes:
        white: centred and whitened inputs, the quietest direction first.
        count: how many directions are multiplied, k: k(k+1)/2 products.
    """

    white: AffineMap
    count: int

    @classmethod
    def of(cls, moments: Moments, directions: int | None = None) -> Products:
        """All products of the leading directions of these inputs; by default of all that vary."""
        whiten = whitening(moments)
        count = whiten.shape[1] if directions is None else directions
        return cls(AffineMap(whiten, -moments.mean_x @ whiten), count)

    def __call__(self, x: Float[Tensor, "n d_in"]) -> Float[Tensor, "n p"]:
        """The features of some rows, in their dtype; a feature's rows lie side by side in memory, for speed."""
        white = self.white(x).T
        loud = white.flip(0)
        return torch.cat([white, *(loud[: i + 1] * loud[i] for i in range(self.count))]).T


def products(kept: BlockCapture, directions: Sequence[int], ridge: float = RIDGE) -> Nested:
    """The line with all products of the k leading principal directions of x, for several k.

    Args:
        kept: a captured block whose sample holds all rows.
        directions: numbers k, ascending; k = rank is full degree 2.
        ridge: see `nested.nested`.

    Raises:
        InputError: no sample, more directions than the inputs have, or too few rows.
    """
    moments = sum(kept.train)
    rank = whitening(moments).shape[1]
    if (
        list(directions) != sorted(set(directions))
        or not directions
        or not 0 <= directions[0] <= directions[-1] <= rank
    ):
        raise InputError(f"directions {list(directions)}: give ascending numbers from 0 to the {rank} that vary")
    found = Products.of(moments, directions[-1])
    return nested(kept, found, [rank + k * (k + 1) // 2 for k in directions], ridge)
