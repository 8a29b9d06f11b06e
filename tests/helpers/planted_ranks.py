"""Planted blocks of twelve features whose R²_lin is known to be carried by all features, or by a single one."""

import dataclasses

import torch

from helpers.captures import capture_of
from helpers.reference import normal
from howlinear.instrument.capture import Sample

FOLDS = 4


def sample_of(x, y):
    """A sample of sequences of sixteen rows, every fourth of them held out, dealt to folds."""
    i = torch.arange(len(x))
    return Sample(x.float(), y.float(), i % 16, i % 7, (i // 16) % 4 == 3, (i // 64) % FOLDS)


def sides(sample):
    """Train and held-out moments per fold."""
    block = capture_of(sample)
    return block.train, block.test


def held_out(sample):
    return sample.select(sample.test)


def curved(x, seed=0):
    """Products of two projections: no linear part at all."""
    return (x @ normal(len(x.T), 12, seed=seed + 5)) * (x @ normal(len(x.T), 12, seed=seed + 6)) / len(x.T)


def broad(n=3_200):
    x = normal(n, 12)
    return sample_of(x, x @ normal(12, 12, seed=1) + 0.3 * curved(x))


def one_loud_feature(n=3_200):
    x = normal(n, 12)
    y = curved(x)
    y[:, 7] = 40 * x[:, 0]
    return sample_of(x, y)


def one_loud_direction(n=3_200):
    """The same block with rotated outputs: no single feature stands out."""
    found = one_loud_feature(n)
    return dataclasses.replace(found, y=(found.y.double() @ torch.linalg.qr(normal(12, 12, seed=3)).Q).float())


def loud_but_straight(n=3_200):
    x = normal(n, 12)
    y = x @ normal(12, 12, seed=1) + 0.1 * curved(x)
    y[:, 7] *= 40
    return sample_of(x, y)
