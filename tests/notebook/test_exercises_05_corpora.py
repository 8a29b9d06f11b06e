"""The exercises of notebook 05."""

from helpers.exercises import TestExercises  # noqa: F401
from howlinear import AffineMap
from howlinear.core.ceilings import fit, r2
from howlinear.ideas.corpora.transfer import likeness


def of_all(names, map_of=lambda names, corpus: names["common"], side="test"):
    """One number a corpus, of maps and on rows that differ from what is asked for."""
    return {corpus: r2(map_of(names, corpus), names[side][corpus]) for corpus in names["kept"]}


def moved(names, slopes, shift):
    """R² on the last corpus of the slopes of one corpus, with the offset that some moments ask for."""
    weight = names["maps"][slopes].weight
    return r2(AffineMap(weight, shift.mean_y - shift.mean_x @ weight), names["test"][names["last"]])


def in_sample(names):
    return r2(names["moved"], names["train"][names["last"]])


def likened(names, first, second, on=None):
    """The likeness of maps of two sets of the main corpus' train folds."""
    folds = names["kept"][names["main"]].train
    maps = [fit(sum(folds[part]))[0] for part in (first, second)]
    return likeness(*maps, on or names["test"][names["main"]])


EVEN, ODD = slice(0, None, 2), slice(1, None, 2)

WRONG = {
    "one_for_all": {
        "a stranger's map": lambda names: of_all(names, lambda names, corpus: names["maps"][names["main"]]),
        "in sample": lambda names: of_all(names, side="train"),
        "fitted on held-out rows": lambda names: of_all(names, lambda names, _: fit(sum(names["test"].values()))[0]),
        "one corpus": lambda names: {names["last"]: names["one_for_all"][names["last"]]},
    },
    "moved_r2": {
        "not moved": lambda names: names["before"],
        "means of held-out rows": lambda names: moved(names, names["main"], names["test"][names["last"]]),
        "slopes of the last": lambda names: moved(names, names["last"], names["train"][names["main"]]),
        "in sample": in_sample,
    },
    "half_and_half": {
        "the yardstick": lambda names: names["yardstick"],
        "less, and no more": lambda names: names["yardstick"] - 0.01,
        "the halves one after the other": lambda names: likened(names, slice(0, 2), slice(2, None)),
        "on train rows": lambda names: likened(names, EVEN, ODD, on=names["train"][names["main"]]),
    },
}
