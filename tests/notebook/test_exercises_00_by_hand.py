"""The exercises of notebook 00."""

import torch

from helpers.exercises import TestExercises  # noqa: F401


def residual_over_spread(names, block, side):
    """1 − R² of feature 0, by hand once more."""
    x, y = names["blocks"][block]
    line = names["lines"][block][:, 0]
    residual = y[side, 0] - x[side] @ line[:-1] - line[-1]
    return float(residual.square().sum() / (y[side, 0] - y[side, 0].mean()).square().sum())


def of_squares(names, block, in_sample=False):
    x, y = names["blocks"][block]
    wider = torch.cat([x, x.square()], 1)
    fitted, scored = ~names["held_out"], names["held_out"]
    side = fitted if in_sample else scored
    return names["r_squared"](names["fit"](wider[fitted], y[fitted]), wider[side], y[side])


def neighbour(names):
    return names["bent"] - 1 if names["bent"] else 1


def friends_r_squared(line, x, y):
    """The bug itself."""
    return float(1 - (y - x @ line[:-1] - line[-1]).square().sum() / (y - y.mean()).square().sum())


def score(centre):
    """A function as exercise 4 asks for, with the outputs' mean taken as `centre` does."""

    def r_squared(line, x, y):
        residual = y - x @ line[:-1] - line[-1]
        return float(1 - residual.square().sum() / (y - centre(y)).square().sum())

    return r_squared


WRONG = {
    "of_one_feature": {
        "what is left": lambda names: residual_over_spread(names, names["bent"], names["held_out"]),
        "in sample": lambda names: 1 - residual_over_spread(names, names["bent"], ~names["held_out"]),
        "a neighbour's block": lambda names: 1 - residual_over_spread(names, neighbour(names), names["held_out"]),
        "all features": lambda names: names["r2"][names["bent"]],
    },
    "with_squares": {
        "a sign slip": lambda names: 2 - names["with_squares"],
        "in sample": lambda names: of_squares(names, names["bent"], in_sample=True),
        "a neighbour's block": lambda names: of_squares(names, neighbour(names)),
        "without squares": lambda names: names["r2"][names["bent"]],
    },
    "loss_added": {
        "a constant": lambda names: 0.0,
        "a sign slip": lambda names: -names["loss_added"],
        "another block": lambda names: names["losses"][names["bent"]],
        "the loss after": lambda names: float(names["without"]) + names["loss_added"],
    },
    "repaired": {
        "the bug itself": lambda names: friends_r_squared,
        "a sign slip": lambda names: lambda line, x, y: 2 - names["repaired"](line, x, y),
        "the mean of a row": lambda names: score(lambda y: y.mean(1, keepdim=True)),
        "no mean at all": lambda names: score(lambda y: 0.0),
    },
}
