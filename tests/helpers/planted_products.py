"""Captured blocks with a known composition: a line, products of inputs, noise."""

import torch

from helpers.captures import capture_of
from helpers.reference import normal
from howlinear.instrument.capture import Sample

D, OUT = 10, 6


def skewed(n, d=D, seed=0):
    """Mixed inputs of unequal scale, with offset and skew, so that a product of two of them has a linear part."""
    x = normal(n, d, seed=seed)
    return (x + 0.3 * x.square()) * torch.logspace(0, 1, d) @ normal(d, d, seed=99) + 5


def line(x):
    return x @ normal(x.shape[1], OUT, seed=1) - 3


def products(x, count=2, rank=2):
    """Products of `count` random directions of standardised inputs, mixed into the outputs, without their mean."""
    z, out = (x - x.mean(0)) / x.std(0), torch.ones(len(x), rank, dtype=torch.float64)
    for i in range(count):
        out = out * (z @ normal(x.shape[1], rank, seed=20 + i))
    return (out - out.mean(0)) @ normal(rank, OUT, seed=30)


def kept_of(x, y, folds=4, test=0.25):
    """A block's capture as `capture` would leave it, with every row in the sample; folds are runs of rows."""
    x, y = x.float(), y.float()
    n = len(x)
    held_out = torch.arange(n) >= n - int(test * n)
    fold = torch.cat([torch.arange(count) * folds // count for count in (n - int(test * n), int(test * n))])
    zeros = torch.zeros(n, dtype=torch.long)
    return capture_of(Sample(x, y, zeros, zeros, held_out, fold))
