"""Full-batch gradient descent on a linear problem, predicted from the moments alone.

With rows [x, 1] and the loss ½ ‖Y − XW − 1b‖² / n, a step of rate η multiplies the error of (W, b) along each
eigenvector of H = [X 1]ᵀ[X 1] / n by (1 − ηλ). So the result of any number of steps is known without taking one
(Goodfellow, Bengio & Courville, "Deep Learning", 2016, section 7.8). Optimisers that must be run are in `training`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.core.ceilings import AffineMap, fit
from howlinear.core.moments import Moments
from howlinear.errors import InputError

LONGEST = 2**50  # steps; beyond, nothing is learned that float64 could tell


@dataclass(frozen=True)
class Descent:
    """A descent from the mean output (W = 0, b = ȳ) towards the least-squares map, in d_in + 1 modes.

    A mode's share of the train rows' output variance is what it explains; they add up to R² on the train rows.
    """

    rate: float  # η
    values: Float[Tensor, " modes"]  # eigenvalues λ of the inputs' second moments, ascending
    vectors: Float[Tensor, "modes modes"]  # eigenvectors u, columns; the last row belongs to the bias
    target: Float[Tensor, "modes d_out"]  # the least-squares map, b below W
    error: Float[Tensor, "modes d_out"]  # uᵀ(start − target)
    shares: Float[Tensor, " modes"]

    def left(self, steps: int) -> Float[Tensor, " modes"]:
        """(1 − ηλ)^steps: the part of each mode that is still to be learned."""
        return (1 - self.rate * self.values) ** steps

    def after(self, steps: int) -> AffineMap:
        """Return the map after `steps` steps."""
        # W_t = W* + Σ (1 − ηλ)^t u uᵀ(W_0 − W*)
        both = self.target + self.vectors @ (self.left(steps)[:, None] * self.error)
        return AffineMap(both[:-1], both[-1])

    def learned(self, affine: AffineMap) -> Float[Tensor, " modes"]:
        """Compute the part of each mode that a map has learned: 0 at the start, 1 at the target; 1 − `left` in descent.

        NaN if a mode has nothing to learn.
        """
        both = torch.cat([affine.weight, affine.bias[None]])
        error = self.vectors.T @ (both - self.target)
        # 1 − ⟨error now, error at the start⟩ / ‖error at the start‖², mode by mode
        return 1 - (error * self.error).sum(1) / self.error.square().sum(1)

    def unlearned(self, steps: int) -> float:
        """Compute the share of the train rows' output variance that the target explains and `steps` steps do not."""
        # Σ s (1 − ηλ)^2t
        return float((self.shares * self.left(steps).square()).sum())

    def steps_to(self, gap: float) -> int:
        """Find the fewest steps after which the unlearned share is at most `gap`."""
        if self.unlearned(LONGEST) > gap:
            raise InputError(
                f"a rate of {self.rate:.3g} leaves {self.unlearned(LONGEST):.3g}, more than {gap}, for good"
            )
        return bisect_left(range(LONGEST), True, key=lambda steps: self.unlearned(steps) <= gap)


def descent(moments: Moments, rate: float | None = None) -> Descent:
    """Predict gradient descent on the rows behind `moments`, by default at the rate 1/λ₁."""
    affine, _ = fit(moments)
    values, vectors = second_moments(moments)
    largest = float(values[-1])
    if rate is None:
        rate = 1 / largest
    if not 0 < rate < 2 / largest:
        raise InputError(f"at rate {rate:.3g} descent diverges: these inputs need one between 0 and {2 / largest:.3g}")
    variance = moments.syy.sum() / moments.n
    if not variance > 0:
        raise InputError(f"the outputs are constant over {moments.n} rows: there is nothing to learn")

    # W*, with b* below it, and the start: W_0 = 0, b_0 = ȳ
    target = torch.cat([affine.weight, affine.bias[None]])
    start = torch.zeros_like(target)
    start[-1] = moments.mean_y

    # s = λ ‖uᵀ(W_0 − W*)‖² / variance of y
    error = vectors.T @ (start - target)
    shares = values * error.square().sum(1) / variance
    return Descent(rate, values, vectors, target, error, shares)


def second_moments(moments: Moments) -> tuple[Float[Tensor, " modes"], Float[Tensor, "modes modes"]]:
    """Compute eigenvalues (ascending, none below 0) and eigenvectors of [X 1]ᵀ[X 1] / n, uncentred as in training."""
    # E[x xᵀ] = Cov(x) + x̄ x̄ᵀ, bordered by x̄ and 1
    mean = torch.cat([moments.mean_x, torch.ones(1).to(moments.mean_x)])
    both = mean.outer(mean)
    both[:-1, :-1] += moments.sxx / moments.n
    values, vectors = torch.linalg.eigh(both)
    return values.clamp_min(0), vectors
