"""The paper's pitfall: the same linear problem, given to optimisers instead of being solved.

"Trained linear baselines badly under-converge where the closed form does not" (arXiv 2606.19379). Here every
optimiser gets the rows, a start at the mean output and a tuned rate; all are scored on the same held-out moments.
Full-batch gradient descent needs no run: its error shrinks by (1 − ηλ) a step along each eigenvector of the inputs'
second moments: see `gradient_descent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import LBFGS, SGD, Adam, AdamW, Muon, Optimizer

from howlinear.core.batches import shuffled_batches
from howlinear.core.ceilings import AffineMap, fit, r2
from howlinear.core.intervals import Estimate, left_out
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.optimisers.gradient_descent import second_moments
from howlinear.ideas.optimisers.problem import Coordinates, Problem


@dataclass(frozen=True)
class Recipe:
    """An optimiser as torch ships it, and the rates to try."""

    make: Callable[[Tensor, Tensor, float], list[Optimizer]]  # (weight, bias, rate) → those that step together
    rates: tuple[float, ...]  # the grid
    relative: bool = False  # rates are multiples of 1/λ₁, λ₁ the largest eigenvalue of the inputs' second moments
    dtype: torch.dtype = torch.float32  # of rows and weights


def _muon(weight: Tensor, bias: Tensor, rate: float) -> list[Optimizer]:
    # Muon is for matrices only: the bias goes to Adam, as its authors advise. No decay, which would bias W.
    return [Muon([weight], lr=rate, weight_decay=0.0), Adam([bias], lr=rate)]


OPTIMISERS = {
    "SGD": Recipe(lambda weight, bias, rate: [SGD([weight, bias], lr=rate)], (0.2, 0.6, 1.2, 1.9), relative=True),
    "momentum": Recipe(
        lambda weight, bias, rate: [SGD([weight, bias], lr=rate, momentum=0.9)], (0.1, 0.3, 1.0, 3.0), relative=True
    ),
    "Adam": Recipe(lambda weight, bias, rate: [Adam([weight, bias], lr=rate, fused=True)], (0.01, 0.03, 0.1, 0.3)),
    "AdamW": Recipe(lambda weight, bias, rate: [AdamW([weight, bias], lr=rate, fused=True)], (0.01, 0.03, 0.1, 0.3)),
    "Muon": Recipe(_muon, (0.03, 0.1, 0.3)),
    # Secants of nearby gradients amplify rounding: in float32, R² on raw inputs varies between processors by 1e-3.
    "L-BFGS": Recipe(
        lambda weight, bias, rate: [LBFGS([weight, bias], lr=rate, max_iter=5, line_search_fn="strong_wolfe")],
        (1.0,),
        dtype=torch.float64,
    ),
}


@dataclass(frozen=True)
class Path:
    """What an optimiser reached."""

    rate: float  # see `Recipe.relative`
    steps: tuple[int, ...]  # after which it was scored
    r2: tuple[float, ...]  # held out, after each of these
    map: AffineMap  # after the last step
    validation: float  # R² of that map on the validation fold


def train(
    problem: Problem,
    optimiser: str,
    scaling: str,
    rate: float,
    steps: int = 500,
    batch: int | None = 256,
    at: Sequence[int] = (),
    seed: int = 0,
    decay: bool = True,
) -> Path:
    """Fit an affine map by steps, as one trains a linear layer."""
    if optimiser not in OPTIMISERS:
        raise InputError(f"no optimiser {optimiser!r}: one of {', '.join(OPTIMISERS)}")
    if steps < 1 or rate <= 0 or (batch is not None and batch < 1):
        raise InputError(f"steps, batch and rate must be positive, got {steps}, {batch} and {rate}")
    # The loss is half the squared error, summed over features and averaged over rows; y is divided by its spread, one
    # number, so that a single grid of rates serves every block. Weights start at 0, and the bias at the mean of y.
    recipe = OPTIMISERS[optimiser]
    coordinates = Coordinates.of(problem.moments, scaling)
    spread = float((problem.moments.syy.mean() / problem.moments.n).sqrt())
    x = coordinates.rows(problem.x).to(recipe.dtype)
    y = (problem.y.double() / spread).to(recipe.dtype)
    start = torch.zeros(x.shape[1], y.shape[1], dtype=x.dtype)
    layer = _Layer(x, y, weight=start, bias=y.mean(0))
    if recipe.relative:
        eigenvalues, _ = second_moments(Moments(x.shape[1]).update(x))
        optimisers = recipe.make(layer.weight, layer.bias, rate / float(eigenvalues[-1]))
    else:
        optimisers = recipe.make(layer.weight, layer.bias, rate)

    batch = min(batch or len(x), len(x))
    whole = optimiser == "L-BFGS"
    if whole:
        progress = _whole_passes(layer, optimisers[0], steps, batch)
    else:
        every_row = repeat(slice(None), steps)  # in their order
        batches = every_row if batch == len(x) else shuffled_batches(len(x), batch, steps, seed)
        progress = _steps(layer, optimisers, batches, steps if decay else None)
    scores: dict[int, float] = {}
    for step in progress:
        if whole or step in at or step >= steps:
            affine = coordinates.undo(layer.weight * spread, layer.bias * spread)
            scores[step] = r2(affine, problem.held_out)
    return Path(rate, tuple(scores), tuple(scores.values()), affine, r2(affine, problem.validation))


def tuned(problem: Problem, optimiser: str, scaling: str, rates: Sequence[float], **settings) -> Path:
    """Train with each rate, and return the path with the best R² on the validation fold."""
    paths = [train(problem, optimiser, scaling, rate, **settings) for rate in rates]
    finite = [path for path in paths if math.isfinite(path.validation)]
    if not finite:
        raise InputError(f"{optimiser} on {scaling} inputs overflowed at every rate of {list(rates)}: try smaller ones")
    return max(finite, key=lambda path: path.validation)


def shortfall(problem: Problem, trained: AffineMap) -> Estimate:
    """How far a trained map's held-out R² stays behind the closed form's on the same rows; below 0 if it is better.

    The interval is paired over held-out folds and takes both maps as given: it holds the mean over new documents in 92
    to 96 of 100 simulated measurements, and in 86 where each document has one massive row (`benchmarks/coverage.py`).
    """
    exact, _ = fit(problem.moments)

    def gap(test: Moments) -> float:
        return r2(exact, test) - r2(trained, test)

    return Estimate.jackknife(gap(problem.held_out), [gap(test) for test in left_out(problem.test)])


@dataclass(frozen=True)
class _Layer:
    """A linear layer with its rows."""

    x: Float[Tensor, "n k"]
    y: Float[Tensor, "n d_out"]
    weight: Float[Tensor, "k d_out"]
    bias: Float[Tensor, " d_out"]

    def gradient(self, rows: Tensor | slice) -> Float[Tensor, ""]:
        """Set the gradients of the loss over some rows; return the loss."""
        x = self.x[rows]
        # ½ ‖X W + 1 b − Y‖² / n, by W: Xᵀ error / n; by b: the mean error
        error = torch.addmm(self.bias, x, self.weight) - self.y[rows]
        self.weight.grad = x.T @ error / len(x)
        self.bias.grad = error.mean(0)
        return error.square().sum() / (2 * len(x))


def _steps(
    layer: _Layer, optimisers: list[Optimizer], batches: Iterator[Tensor | slice], last: int | None
) -> Iterator[int]:
    """Take steps, and yield their number so far; the rate falls linearly to 0 at `last`."""
    peaks = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
    for step, rows in enumerate(batches):
        layer.gradient(rows)
        share = 1 if last is None else 1 - step / last
        for optimiser, peak in zip(optimisers, peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * share
            optimiser.step()
        yield step + 1


def _whole_passes(layer: _Layer, optimiser: Optimizer, steps: int, batch: int) -> Iterator[int]:
    """Do the same for an optimiser that calls for all rows as often as it likes; counted in steps of `batch` rows."""
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        return layer.gradient(slice(None))

    while passes * len(layer.x) < steps * batch:
        optimiser.step(closure)
        yield round(passes * len(layer.x) / batch)
