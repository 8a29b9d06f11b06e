"""Would the bilinear probe find a branch if there were one? Teachers planted on a block's own inputs.

A small gain means something only if the same probe, on the same rows, finds a branch that is there and none that is
not (arXiv 2606.19379 leaves this out). The linear part of every teacher is removed, as it is from a residual.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from howlinear.errors import InputError
from howlinear.ideas.bilinear.probe import ProbeRows, branch, residual_rows, squares_about_mean
from howlinear.instrument.capture import BlockCapture

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


def hidden_teacher(kept: BlockCapture, rank: int = 16, steps: int = 100) -> float:
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
    ratio = noise[~rows.test].square().sum() / bilinear[~rows.test].square().sum()
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
