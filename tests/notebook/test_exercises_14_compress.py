"""The exercises of notebook 14."""

import torch

from helpers.exercises import TestExercises  # noqa: F401
from howlinear.ideas.compression.compressors import width


def left_of(names, for_each_block, blocks=None):
    """The share that is left if so many numbers come in the place of each block, or of the first so many."""
    sites = names["blocks"][:blocks]
    own = sum(parameter.numel() for site in sites for parameter in site.parameters())
    return (names["whole"] - own + len(sites) * for_each_block) / names["whole"]


def best(names, scores):
    """A choice that is no lot: the units of the highest scores."""
    return lambda share: width.evenly(names["calibration"], share, scores)


def softest(names):
    return {block: -loudness for block, loudness in width.loudness(names["calibration"]).items()}


def with_repetitions(names):
    def draw(share):
        generator = torch.Generator().manual_seed(0)
        lots = names["drawn"](share)
        return {block: torch.randint(len(units), (len(units),), generator=generator) for block, units in lots.items()}

    return draw


def mixed(names, share, noise):
    """Two units, and so much of their sum with so much noise."""
    one, other = names["one"], names["other"]
    return torch.stack([one, other, share * (one + other) + noise * names["noise"]], 1)


WRONG = {
    "least": {
        "no lines": lambda names: left_of(names, 0),
        "no biases": lambda names: left_of(names, names["d"] ** 2),
        "one block too few": lambda names: left_of(names, names["d"] ** 2 + names["d"], blocks=-1),
        "what goes": lambda names: 1 - names["least"],
    },
    "drawn": {
        "Wanda's": lambda names: best(names, width.loudness(names["calibration"])),
        "the softest": lambda names: best(names, softest(names)),
        "another share": lambda names: lambda share: names["drawn"](share + 0.1),
        "with repetitions": with_repetitions,
    },
    "misleading": {
        "three that know nothing of each other": lambda names: mixed(names, 0.0, 1.0),
        "a mix larger than its parts": lambda names: mixed(names, 2.0, 0.05),
        "a mix with much noise": lambda names: mixed(names, 0.5, 0.5),
        "silent units": lambda names: 0 * names["misleading"],
        "two units": lambda names: names["misleading"][:, :2],
    },
}
