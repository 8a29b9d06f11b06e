"""The exercises of notebook 11."""

import numpy as np

from helpers.exercises import Exercises

WRONG = {
    "tends_to": {
        "a constant": lambda names: 0.5,
        "the arithmetic mean": lambda names: (0.80 + 0.55) / 2,
        "the geometric mean of what is explained": lambda names: (0.80 * 0.55) ** 0.5,
        "in sample": lambda names: 0.80,
        "held out": lambda names: 0.55,
        "a sign slip": lambda names: 1 + (0.20 * 0.45) ** 0.5,
        "what is left": lambda names: (0.20 * 0.45) ** 0.5,
    },
    "rows_that_count_as_one": {
        "a constant": lambda names: 1.0,
        "rows of a document": lambda names: 4.0,
        "the inputs' share alone": lambda names: 1 + 3 / 2,
        "upside down": lambda names: 1 / names["rows_that_count_as_one"],
        "not divided": lambda names: np.mean(names["optimism"]),
        "the ratio without its root": lambda names: (
            np.mean([1 - (1 - one) ** 2 for one in names["optimism"]]) / (11 / 160)
        ),
        "a sign slip": lambda names: -names["rows_that_count_as_one"],
    },
}


class TestExercises(Exercises):
    stem = "11_protocol"
    wrong = WRONG
