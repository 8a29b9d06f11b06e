"""The paper's pitfall: the same linear problem, given to optimisers instead of being solved.

"Trained linear baselines badly under-converge where the closed form does not" (arXiv 2606.19379). Here every
optimiser gets the rows, a start at the mean output and a tuned rate; all are scored on the same held-out moments.
Full-batch gradient descent needs no run: its error shrinks by (1 − ηλ) a step along each eigenvector of the inputs'
second moments: see `descent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howlinear.ceilings import AffineMap, fit, jackknife, left_out, r2
from howlinear.descent import second_moments
from howlinear.errors import InputError
from howlinear.moments import Moments
from howlinear.problem import Coordinates, Problem


@dataclass(frozen=True)
class Recipe:
    """An optimiser as torch ships it, and the rates to try.

    Attributes:
        make: (weight, bias, rate) → the torch optimisers that step together.
        rates: the grid.
        relative: whether rates are multiples of 1/λ₁, λ₁ the largest eigenvalue of the inputs' second moments.
    """

    make: Callable[[Tensor, Tensor, float], list[torch.optim.Optimizer]]
    rates: tuple[float, ...]
    relative: bool = False


OPTIMISERS = {
    "SGD": Recipe(lambda w, b, rate: [torch.optim.SGD([w, b], lr=rate)], (0.2, 0.6, 1.2, 1.9), True),
    "momentum": Recipe(lambda w, b, rate: [torch.optim.SGD([w, b], lr=rate, momentum=0.9)], (0.1, 0.3, 1.0, 3.0), True),
    "Adam": Recipe(lambda w, b, rate: [torch.optim.Adam([w, b], lr=rate, fused=True)], (0.01, 0.03, 0.1, 0.3)),
    "AdamW": Recipe(lambda w, b, rate: [torch.optim.AdamW([w, b], lr=rate, fused=True)], (0.01, 0.03, 0.1, 0.3)),
    "Muon": Recipe(  # for matrices only: the bias goes to Adam, as its authors advise; no decay, which would bias W
        lambda w, b, rate: [torch.optim.Muon([w], lr=rate, weight_decay=0.0), torch.optim.Adam([b], lr=rate)],
        (0.03, 0.1, 0.3),
    ),
    "L-BFGS": Recipe(
        lambda w, b, rate: [torch.optim.LBFGS([w, b], lr=rate, max_iter=5, line_search_fn="strong_wolfe")], (1.0,)
    ),
}


@dataclass(frozen=True)
class Path:
    """What an optimiser reached: held-out `r2` after each of `steps`, the last `map`, its R² on the validation fold."""

    rate: float
    steps: tuple[int, ...]
    r2: tuple[float, ...]
    map: AffineMap
    validation: float


def train(
    problem: Problem,
    optimiser: str,
    scaling: str,
    rate: float,
    steps: int = 500,
    batch: int | None = 256,
    at: Sequence[int] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    decay: bool = True,
) -> Path:
    """Fit an affine map by steps, as one trains a linear layer.

    The loss is half the squared error, summed over features and averaged over rows; y is divided by one number, its
    spread, so that one grid of rates serves every block. Weights start at 0, the bias at the mean of y: at R² ≈ 0.

    Args:
        problem: the rows.
        optimiser: a key of `OPTIMISERS`.
        scaling: one of `SCALINGS`.
        rate: learning rate, see `Recipe.relative`.
        steps: gradient steps. L-BFGS takes all rows at once and gets as many row visits, rounded up to its five
            iterations.
        batch: rows a step, without replacement within a pass; None, or as many as there are, takes them all.
        at: steps after which to score as well; the last is always scored. L-BFGS is scored every five iterations.
        seed: of the order of rows.
        dtype: of rows and weights.
        decay: let the rate fall linearly to 0 (L-BFGS keeps its own).

    Raises:
        InputError: no such optimiser or scaling, or no step to take.
    """
    if optimiser not in OPTIMISERS:
        raise InputError(f"no optimiser {optimiser!r}: one of {', '.join(OPTIMISERS)}")
    if steps < 1 or rate <= 0 or (batch is not None and batch < 1):
        raise InputError(f"steps, batch and rate must be positive, got {steps}, {batch} and {rate}")
    coordinates = Coordinates.of(problem.moments, scaling)
    spread = float((problem.moments.syy.mean() / problem.moments.n).sqrt())
    x, y = coordinates.rows(problem.x).to(dtype), (problem.y.double() / spread).to(dtype)
    layer = _Layer(x, y, torch.zeros(x.shape[1], y.shape[1], dtype=dtype), y.mean(0))
    unit = 1 / float(second_moments(Moments(x.shape[1]).update(x))[0][-1]) if OPTIMISERS[optimiser].relative else 1.0
    parts = OPTIMISERS[optimiser].make(layer.weight, layer.bias, rate * unit)
    batch = min(batch or len(x), len(x))
    if optimiser == "L-BFGS":
        taken = _whole_passes(layer, parts[0], steps, batch)
    else:
        taken = _steps(layer, parts, _batches(len(x), batch, steps, seed), steps if decay else None)
    scored: dict[int, float] = {}
    for step in taken:
        if step >= steps or step in at or optimiser == "L-BFGS":
            found = coordinates.undo(layer.weight * spread, layer.bias * spread)
            scored[step] = r2(found, problem.held_out)
    return Path(rate, tuple(scored), tuple(scored.values()), found, r2(found, problem.validation))


def tuned(problem: Problem, optimiser: str, scaling: str, rates: Sequence[float] | None = None, **settings) -> Path:
    """The best of a sweep over rates (the optimiser's own grid by default), by R² on the validation fold.

    Args:
        problem: the rows.
        optimiser: a key of `OPTIMISERS`.
        scaling: one of `SCALINGS`.
        rates: what to try.
        settings: as `train` takes them.

    Raises:
        InputError: as `train`; or at every rate the weights overflowed.
    """
    rates = rates or (OPTIMISERS[optimiser].rates if optimiser in OPTIMISERS else (1.0,))
    paths = [train(problem, optimiser, scaling, rate, **settings) for rate in rates]
    finite = [path for path in paths if math.isfinite(path.validation)]
    if not finite:
        raise InputError(f"{optimiser} on {scaling} inputs overflowed at every rate of {list(rates)}: try smaller ones")
    return max(finite, key=lambda path: path.validation)


@dataclass(frozen=True)
class Shortfall:
    """Held-out R² of the closed form on the same rows, minus a trained map's.

    Attributes:
        r2: of the trained map.
        gap: the shortfall; below 0 where the trained map does better.
        low: lower end of its 95 % interval, paired over held-out folds; both maps are taken as given.
        high: upper end.
    """

    r2: float
    gap: float
    low: float
    high: float


def shortfall(problem: Problem, trained: AffineMap) -> Shortfall:
    """How far a trained map stays behind the closed form, with its interval."""
    exact = fit(problem.moments)[0]

    def gap(test: Moments) -> float:
        return r2(exact, test) - r2(trained, test)

    whole = gap(problem.held_out)
    rescored = [gap(moments) for moments in left_out(problem.test)]
    return Shortfall(r2(trained, problem.held_out), whole, *jackknife(whole, rescored))


@dataclass(frozen=True)
class _Layer:
    """A linear layer with its rows."""

    x: Tensor
    y: Tensor
    weight: Tensor
    bias: Tensor

    def gradient(self, rows: Tensor | slice) -> Tensor:
        """Set the gradients of the loss over some rows; return the loss."""
        x = self.x[rows]
        error = torch.addmm(self.bias, x, self.weight) - self.y[rows]
        self.weight.grad, self.bias.grad = x.T @ error / len(x), error.mean(0)
        return error.square().sum() / (2 * len(x))


def _steps(layer: _Layer, parts: list[torch.optim.Optimizer], rows: Iterator, last: int | None) -> Iterator[int]:
    """Step, and say how many steps were taken; the rate falls to 0 at `last`."""
    rates = [part.param_groups[0]["lr"] for part in parts]
    for step, some in enumerate(rows):
        layer.gradient(some)
        for part, rate in zip(parts, rates, strict=True):
            part.param_groups[0]["lr"] = rate if last is None else rate * (1 - step / last)
            part.step()
        yield step + 1


def _whole_passes(layer: _Layer, part: torch.optim.Optimizer, steps: int, batch: int) -> Iterator[int]:
    """The same for an optimiser that asks for all rows as often as it likes; counted in steps of `batch` rows."""
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        return layer.gradient(slice(None))

    while passes * len(layer.x) < steps * batch:
        part.step(closure)
        yield round(passes * len(layer.x) / batch)


def _batches(size: int, batch: int, steps: int, seed: int) -> Iterator[Tensor | slice]:
    """Row numbers of each step: a fresh order every pass, a last part that is no full batch left out."""
    generator, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if batch == size:
            yield slice(None)
            continue
        if len(order) < batch:
            order = torch.randperm(size, generator=generator)
        yield order[:batch]
        order = order[batch:]
