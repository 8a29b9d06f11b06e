"""The exercises of notebook 12."""

import howlinear as hl
from helpers.exercises import TestExercises  # noqa: F401
from howlinear.core.ceilings import fit, r2


def of_moments(train, test):
    """A function of a block: R² on some of its rows of the map of others."""

    def score(block):
        affine, _ = fit(sum(train(block)))
        return r2(affine, sum(test(block)))

    return score


def loud_feature(x, y):
    """A multiple of one input, as loud as the right answer's."""
    return 20 * y.norm(dim=-1).mean() * x[..., 0] / x[..., 0].std()


def changed(y, feature, value):
    copy = y.clone()
    copy[..., feature] = value
    return copy


def at_the_first_token(x, y):
    copy = y.clone()
    copy[:, 0, 3] += 300 * y.norm(dim=-1).mean()
    return copy


def map_of(moments):
    affine, _ = fit(moments)
    return affine


def one_mean_repaired(block):
    everything, ordinary = sum(block.train), sum(block.ordinary().train)
    slope = map_of(ordinary).weight
    return hl.AffineMap(slope, everything.mean_y - ordinary.mean_x @ slope)


def sinks(names):
    return names["planted_looks"]["sunk", names["planted_block"]].solved.massive_rows


WRONG = {
    "sink_size": {
        "without the root": lambda names: lambda length, r: length * r / (1 - r),
        "upside down": lambda names: lambda length, r: (length * (1 - r) / r) ** 0.5,
        "off by one": lambda names: lambda length, r: ((length - 1) * r / (1 - r)) ** 0.5,
        "the share alone": lambda names: lambda length, r: (length * r) ** 0.5,
    },
    "elsewhere": {
        "the map of ordinary rows": lambda names: of_moments(
            lambda block: block.ordinary().train, lambda block: block.ordinary().test
        ),
        "all held-out rows": lambda names: of_moments(lambda block: block.train, lambda block: block.test),
        "in sample": lambda names: of_moments(lambda block: block.train, lambda block: block.ordinary().train),
        "fitted on held-out rows": lambda names: of_moments(
            lambda block: block.test, lambda block: block.ordinary().test
        ),
        "the unexplained share": lambda names: lambda block: 1 - names["elsewhere"](block),
    },
    "enough": {
        "half of the sinks": lambda names: sinks(names) // 2,
        "one too few": lambda names: names["enough"] - 1,
        "one too many": lambda names: names["enough"] + 1,
        "all sinks": sinks,
    },
    "change": {
        "no change": lambda names: lambda x, y: y,
        "a sink": lambda names: at_the_first_token,
        "bent": lambda names: lambda x, y: changed(y, 3, loud_feature(x, y).abs()),
        "every feature": lambda names: lambda x, y: y + loud_feature(x, y)[..., None],
    },
    "repaired": {
        "the bug itself": lambda names: names["friends_map"],
        "one mean repaired": lambda names: one_mean_repaired,
        "all rows": lambda names: lambda block: map_of(sum(block.train)),
        "held-out rows": lambda names: lambda block: map_of(sum(block.ordinary().test)),
    },
}
