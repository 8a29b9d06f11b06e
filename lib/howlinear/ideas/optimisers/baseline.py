"""The trained linear baseline as the paper ran it, with nothing tuned.

A linear layer with torch's default initialisation, inputs and outputs unscaled, the mean squared error, 3,000 steps of
256 rows drawn with replacement, and a constant rate of 1e-3. The paper speaks of SGD (arXiv 2606.19379, section 5.1:
0.25 after 3,000 steps where the exact map has 0.95); its public driver uses AdamW without decay. So both are here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import SGD, AdamW

from howlinear.core.ceilings import AffineMap
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.ideas.optimisers.problem import Problem

BASELINES = ("SGD", "AdamW")
RATE = 1e-3
BATCH = 256
NOISE = 0.05  # of the variance of the planted outputs


def baseline(problem: Problem, optimiser: str = "AdamW", steps: int = 3_000, seed: int = 0) -> AffineMap:
    """Train the paper's linear baseline on a problem's rows."""
    if optimiser not in BASELINES or steps < 1:
        raise InputError(f"no baseline {optimiser!r} of {steps} steps: one of {', '.join(BASELINES)}, a step or more")
    x, y = problem.x, problem.y
    generator = torch.Generator().manual_seed(seed)
    bound = x.shape[1] ** -0.5
    weight = torch.empty(x.shape[1], y.shape[1]).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(y.shape[1]).uniform_(-bound, bound, generator=generator)
    if optimiser == "SGD":
        stepper = SGD([weight, bias], lr=RATE)
    else:
        stepper = AdamW([weight, bias], lr=RATE, weight_decay=0.0, fused=True)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        # The gradient of the mean of (x W + b − y)² over rows and features
        error = torch.addmm(bias, x[rows], weight) - y[rows]
        scaled = error * (2 / error.numel())
        weight.grad = x[rows].T @ scaled
        bias.grad = scaled.sum(0)
        stepper.step()
    if not (weight.isfinite().all() and bias.isfinite().all()):
        raise InputError(f"{optimiser} at a rate of {RATE} overflows on these inputs: they are too loud for it")
    return AffineMap(weight.double(), bias.double())


def planted(n: int = 8_000, d: int = 64, condition: float = 1e4, seed: int = 0) -> tuple[Problem, float]:
    """Plant an ill-conditioned problem whose directions explain equal parts; return it and R² of the exact map."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Float[Tensor, "*shape"]:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    # the loudness of directions falls by a factor `condition`, and y = z V + noise, with z the whitened inputs and V
    # orthogonal
    mixing = torch.linalg.qr(normal(d, d)).Q
    readout = torch.linalg.qr(normal(d, d)).Q
    loudness = torch.logspace(0, -float(torch.tensor(condition).log10()), d, dtype=torch.float64)
    z = normal(n, d)
    x = ((z * loudness) @ mixing).float()
    y = (1 - NOISE) ** 0.5 * (z @ readout) + NOISE**0.5 * normal(n, d)
    y[:, 0] *= 10  # one feature is ten times as loud as the others
    y = y.float()
    folds = [Moments(d, d).update(*rows) for rows in zip(x.chunk(8), y.chunk(8), strict=True)]
    used = 3 * n // 8
    problem = Problem(x[:used], y[:used], folds[:3], folds[3], folds[4:])
    return problem, 1 - NOISE
