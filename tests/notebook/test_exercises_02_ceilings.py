"""The exercises of notebook 02."""

import torch

import howlinear as hl
from helpers.exercises import TestExercises  # noqa: F401
from howlinear.core.ceilings import fit, r2


def neighbour(names):
    return names["blocks"][len(names["blocks"]) // 2 - 1]


def ablation(train, held):
    return r2(hl.AffineMap.constant(train), held)


def moments(x, y):
    return hl.Moments(x.shape[1], y.shape[1]).update(x, y)


def mixed_by(names, to_fit_on, held_out):
    """The moments of both sides, each with a matrix of its own."""
    sample = names["sample"]
    sides = ((~sample.test, to_fit_on), (sample.test, held_out))
    return [moments(sample.x[side].double() @ matrix, sample.y[side]) for side, matrix in sides]


def flattening(names):
    """A matrix that cannot be undone: half of the inputs are lost."""
    matrix = names["mix"].clone()
    matrix[:, names["d_in"] // 2 :] = 0
    return matrix


def friends_r2(x, y, test):
    """The bug itself."""
    few = x.shape[1] + 8
    rows = moments(x[~test][:few], y[~test][:few])
    return r2(fit(rows)[0], rows)


def in_sample(x, y, test):
    rows = moments(x[~test], y[~test])
    return r2(fit(rows)[0], rows)


def of_few_rows(x, y, test):
    few = x.shape[1] + 8
    return r2(fit(moments(x[~test][:few], y[~test][:few]))[0], moments(x[test], y[test]))


def of_all_rows(x, y, test):
    return r2(fit(moments(x[~test], y[~test]))[0], moments(x, y))


WRONG = {
    "in_sample": {
        "held out": lambda names: hl.ceiling(names["kept"].train, names["kept"].test).r2,
        "the held-out rows' own": lambda names: r2(fit(names["held"])[0], names["held"]),
        "one fold": lambda names: hl.ceiling(names["kept"].train[0], names["kept"].train[0]).r2,
        "a neighbour's block": lambda names: hl.ceiling(neighbour(names).train, sum(neighbour(names).train)).r2,
    },
    "ablated": {
        "in sample": lambda names: ablation(names["train"], names["train"]),
        "the sides swapped": lambda names: ablation(names["held"], names["train"]),
        "a neighbour's block": lambda names: ablation(sum(neighbour(names).train), sum(neighbour(names).test)),
        "off by one": lambda names: names["ablated"] * (names["held"].n - 1) / names["held"].n,
    },
    "mixed": {
        "not mixed": lambda names: names["plain"],
        "a matrix for each side": lambda names: mixed_by(names, names["mix"], names["mix"].T),
        "train rows alone": lambda names: mixed_by(names, names["mix"], torch.eye(names["d_in"]).double()),
        "no inverse": lambda names: mixed_by(names, flattening(names), flattening(names)),
        "the sides swapped": lambda names: names["mixed"][::-1],
    },
    "repaired": {
        "the bug itself": lambda names: friends_r2,
        "in sample, of all rows": lambda names: in_sample,
        "held out, of few rows": lambda names: of_few_rows,
        "scored on all rows": lambda names: of_all_rows,
    },
}
