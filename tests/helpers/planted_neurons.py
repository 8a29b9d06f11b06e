"""Blocks of a few neurons of known degree, and captures of their rows."""

import torch

from helpers.captures import capture_of
from helpers.reference import normal
from howlinear.core.ceilings import AffineMap
from howlinear.core.gaussian import Hidden, hermite
from howlinear.instrument.capture import Sample


def block_of(activation, d=5, m=7, out=4, gated=False, seed=0, bias=0.3):
    gate = AffineMap(normal(d, m, seed=seed) / d**0.5, bias * normal(m, seed=seed + 1))
    up = AffineMap(normal(d, m, seed=seed + 2) / d**0.5, bias * normal(m, seed=seed + 3)) if gated else None
    return Hidden(gate, up, activation, AffineMap(normal(m, out, seed=seed + 4), normal(out, seed=seed + 5)))


def power(k):
    """The Hermite polynomial of this degree as an activation."""
    return lambda z: hermite(z, k)[k]


def sample_of(x, y, folds=4):
    """Rows as a sample: every fourth is held out, and folds take turns."""
    row = torch.arange(len(x))
    return Sample(x.float(), y.float(), row, row, row % 4 == 3, row // 4 % folds)


def captured(x, y, folds=4):
    """These rows as a capture holds them."""
    return capture_of(sample_of(x, y, folds))


def sides_of(kept, change=lambda x: x):
    """Train and held-out rows in float64, with `change` applied to the inputs."""
    s = kept.sample
    return [(change(s.x[mask].double()), s.y[mask].double()) for mask in (~s.test, s.test)]
