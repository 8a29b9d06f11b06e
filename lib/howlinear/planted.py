"""Would the bilinear probe see a branch if there was one? Teachers planted on a block's own inputs.

A small gain means something only if the same probe, on the same rows, finds what is surely there, and does not find
what is not (arXiv 2606.19379 leaves this out). Every teacher has its straight part taken off it, as a residual has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.bilinear import Rows, branch, residual_rows
from howlinear.capture import BlockCapture
from howlinear.errors import InputError


@dataclass(frozen=True)
class Power:
    """Shares of held-out variance that the probe recovers, 1 if all of it.

    Attributes:
        planted: of a bilinear teacher of the probe's own rank.
        in_noise: of the same teacher, when the block's residual, rows shuffled, hides it.
        cubic: of a teacher that multiplies three inputs.
        shuffled: of the block's residual with its rows shuffled: nothing to be found.
    """

    planted: float
    in_noise: float
    cubic: float
    shuffled: float


def power(
    kept: BlockCapture, rank: int = 16, seeds: int = 3, planted: float = 0.25, seed: int = 0, steps: int = 100
) -> Power:
    """What the probe recovers of teachers on a block's own inputs, the mean over its starts as in `bilinear.probe`.

    A start may end in a local optimum that misses one of the products; a mean says how much that costs.

    Args:
        kept: a captured block with a sample.
        rank: of the teachers and of the probe.
        seeds: starts of the probe, each stopped by another train fold.
        planted: the teacher's share of the variance where it is hidden in noise, between 0 and 1.
        seed: of the teachers.
        steps: most L-BFGS iterations per fit.

    Raises:
        InputError: as for `bilinear.probe`, or a share that is none.
    """
    if seeds < 1:
        raise InputError(f"seeds={seeds}: the probe needs a start or more")
    rows = residual_rows(kept)
    targets = _targets(rows, rank, planted, seed)
    found = {
        name: [_recovered(rows, *pair, rank, start, steps) for start in range(seeds)] for name, pair in targets.items()
    }
    return Power(**{name: sum(shares) / seeds for name, shares in found.items()})


def hidden_teacher(kept: BlockCapture, rank: int = 16, planted: float = 0.25, seed: int = 0, steps: int = 100) -> float:
    """`Power.in_noise` alone, from one start; otherwise the same arguments and errors as `power`."""
    rows = residual_rows(kept)
    return _recovered(rows, *_targets(rows, rank, planted, seed)["in_noise"], rank, 0, steps)


def _targets(rows: Rows, rank: int, planted: float, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """What to fit, and what is to be recovered of it."""
    if not 0 < planted < 1:
        raise InputError(f"planted={planted}: the teacher's share of the variance lies between 0 and 1")
    generator = torch.Generator().manual_seed(seed)
    hidden = shuffled(rows, generator)
    products = {degree: teacher(rows, degree, rank, generator) for degree in (2, 3)}
    noise, signal = (part[~rows.test].square().sum() for part in (hidden, products[2]))
    weak = products[2] * (noise / signal * planted / (1 - planted)).sqrt()
    return {
        "planted": (products[2], products[2]),
        "in_noise": (weak + hidden, weak),
        "cubic": (products[3], products[3]),
        "shuffled": (hidden, hidden),
    }


def teacher(rows: Rows, degree: int, rank: int, generator: torch.Generator) -> Float[Tensor, "rows d_out"]:
    """Sums of `rank` products of `degree` random inputs, without their straight part.

    Args:
        rows: whose whitened inputs are multiplied, and whose outputs give the width.
        degree: how many inputs are multiplied.
        rank: number of products, mixed into the outputs at random.
        generator: draws the directions and the mixture.
    """
    z, d = rows.z, rows.z.shape[1]
    product = torch.ones(len(z), rank)
    for _ in range(degree):
        product = product * (z @ torch.randn(d, rank, generator=generator) / d**0.5)
    ones = torch.cat([torch.ones_like(z[:, :1]), z], 1).double()
    train = ones[~rows.test]
    ridge = torch.eye(d + 1, dtype=torch.float64).index_fill(0, torch.tensor([0]), 0) * d  # as the probe's
    straight = torch.linalg.solve(train.T @ train + ridge, train.T @ product[~rows.test].double())
    mixture = torch.randn(rank, rows.e.shape[1], generator=generator)
    return (product - (ones @ straight).float()) @ mixture


def shuffled(rows: Rows, generator: torch.Generator) -> Float[Tensor, "rows d_out"]:
    """The residual with its rows in another order, train and held-out rows each among themselves."""
    mixed = rows.e.clone()
    for side in (rows.test, ~rows.test):
        places = side.nonzero()[:, 0]
        mixed[places] = rows.e[places[torch.randperm(len(places), generator=generator)]]
    return mixed


def _recovered(rows: Rows, target: Tensor, truth: Tensor, rank: int, seed: int, steps: int) -> float:
    """R² of a branch fitted to the target as a guess of the truth, on held-out rows."""
    found = branch(replace(rows, e=target), rank, seed, steps)(rows.z)
    truth, found = truth[rows.test].double(), found[rows.test].double()
    return float(1 - (truth - found).square().sum() / (truth - truth.mean(0)).square().sum())
