"""The exercises of notebook 04."""

import torch

import howlinear as hl
from helpers.exercises import TestExercises  # noqa: F401
from howlinear.core.ceilings import fit
from howlinear.core.ceilings import r2 as r2_of
from howlinear.core.fold_maps import fit_folds
from howlinear.ideas.rank import rows as token_rows
from howlinear.ideas.rank import scores


def median_along(block, in_sample=False, directions_of_test=False):
    """The median along directions, on the rows and along the directions that are asked for."""
    sample = block.rows()
    scored = sample.select(sample.test != in_sample)
    basis = scores.directions(sample.y[sample.test == directions_of_test])
    return scores.score_rows(fit_folds(block.train, refit=False), scored, basis).whole.median()


def planted(names, outputs):
    return token_rows.planted_block(names["x"], outputs)


def crowd(names, loud):
    """So many loud straight features among bent ones."""
    return torch.cat([10 * names["x"][:, :loud], names["bent"][:, loud:]], 1)


def chosen_by(names, rows, scored=lambda test: test):
    """A function as exercise 4 asks for: which rows choose the inputs, and which are scored."""

    def r2(x, y, test):
        kept = x[:, names["correlated"](x[rows(test)], y[rows(test)])]
        line, _ = fit(hl.Moments(10, 1).update(kept[~test], y[~test, None]))
        return r2_of(line, hl.Moments(10, 1).update(kept[scored(test)], y[scored(test), None]))

    return r2


def every(test):
    return torch.ones_like(test)


WRONG = {
    "variance": {
        "the smaller root": lambda names: lambda d: (d - 1) - (2 * (d - 1) ** 2 - 2 * (d - 1)) ** 0.5,
        "off by one": lambda names: lambda d: names["variance"](d + 1),
        "the standard deviation": lambda names: lambda d: names["variance"](d) ** 0.5,
        "about": lambda names: lambda d: 2.4 * d,
    },
    "turned_median": {
        "pooled": lambda names: names["along_directions"].r2(),
        "in sample": lambda names: median_along(names["middle_block"], in_sample=True),
        "directions of the held-out rows": lambda names: median_along(names["middle_block"], directions_of_test=True),
        "a neighbour's block": lambda names: median_along(names["blocks"][len(names["blocks"]) // 2 - 1]),
    },
    "crowd": {
        "bent throughout": lambda names: planted(names, names["bent"]),
        "one loud feature": lambda names: planted(names, crowd(names, 1)),
        "too few loud features": lambda names: planted(names, crowd(names, 6)),
        "most features straight": lambda names: planted(names, crowd(names, 30)),
    },
    "repaired": {
        "the bug itself": lambda names: chosen_by(names, every),
        "chosen by the held-out rows": lambda names: chosen_by(names, lambda test: test),
        "in sample": lambda names: chosen_by(names, lambda test: ~test, scored=lambda test: ~test),
        "scored on all rows": lambda names: chosen_by(names, lambda test: ~test, scored=every),
    },
}
