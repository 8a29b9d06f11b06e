"""The exercises of notebook 01."""

import howlinear as hl
from helpers.exercises import TestExercises  # noqa: F401


def moments_of(names, *rows):
    """The sum of the moments of slices of the sampled rows."""
    sample = names["sample"]
    parts = [hl.Moments(names["d_in"], names["d_out"]).update(sample.x[part], sample.y[part]) for part in rows]
    return hl.Moments.total(parts)


def unit(v):
    return v / v.norm()


def neighbours_gain(names):
    return names["run"].model(names["first"]).transformer.h[names["block"] + 1].ln_2.weight.detach().double()


WRONG = {
    "breakeven": {
        "one mean": lambda names: lambda d: (1 + 2 * d + 2 * d**2) / (2 * d),
        "one matrix": lambda names: lambda d: (1 + 3 * d + d**2) / (2 * d),
        "without n": lambda names: lambda d: (3 * d + 2 * d**2) / (2 * d),
        "rows of x alone": lambda names: lambda d: 2 * names["breakeven"](d),
    },
    "both": {
        "one half": lambda names: names["upper"],
        "a half twice": lambda names: names["upper"] + names["upper"],
        "a row twice": lambda names: moments_of(names, slice(names["half"] + 1), slice(names["half"], None)),
        "a row missing": lambda names: moments_of(names, slice(names["half"]), slice(names["half"] + 1, None)),
    },
    "v": {
        "the gain": lambda names: unit(names["gain"]),
        "one over its square": lambda names: unit(names["gain"] ** -2),
        "a neighbour's block": lambda names: unit(1 / neighbours_gain(names)),
        "not of length 1": lambda names: 1 / names["gain"],
    },
}
