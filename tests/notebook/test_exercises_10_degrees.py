"""The exercises of notebook 10."""

from dataclasses import replace

from helpers.exercises import TestExercises  # noqa: F401
from howlinear.core.ceilings import AffineMap
from howlinear.core.gaussian import predict_spectrum
from howlinear.ideas.degrees.spectrum import degrees
from howlinear.instrument.capture import Sample
from howlinear.models.units import take_apart

FEWER = 5_000  # rows, for time


def spectrum(names, x, block=None):
    """The spectrum of other inputs, and of the middle block or another."""
    parts = names["parts"] if block is None else take_apart(names["model"], block)
    fewer = {key: value[:FEWER] for key, value in vars(names["drawn"]).items()}
    fewer |= {"x": x[:FEWER].float(), "y": parts(x[:FEWER]).float(), "fold": fewer["fold"] % 2}
    return degrees(replace(names["captured"], sample=Sample(**fewer)), parts, names["degree"]).r2


def square_of_the_covariance(names):
    """The eigenvalues as they are, in the place of their roots."""
    return names["moments"].mean_x + names["noise"] @ (names["vectors"] * names["values"]).T


def with_bias(names, bias):
    """The predicted spectrum with another bias under the activation."""
    parts = names["parts"]
    return predict_spectrum(replace(parts, gate=AffineMap(parts.gate.weight, bias)), names["moments"], 3)


WRONG = {
    "absent": {
        "the even ones": lambda names: {2, 4},
        "all odd ones": lambda names: {1, 3, 5},
        "one too few": lambda names: {3},
        "those that are there": lambda names: {1, 2, 4},
    },
    "without_means": {
        "as it is": lambda names: names["with_means"],
        "no bias": lambda names: with_bias(names, 0 * names["means"]),
        "the means for a bias": lambda names: with_bias(names, -names["means"]),
        "the line alone": lambda names: names["without_means"][:1],
    },
    "gaussian_r2": {
        "the prediction": lambda names: names["wanted"],
        "no mean": lambda names: spectrum(names, names["x"] - names["moments"].mean_x),
        "no root": lambda names: spectrum(names, square_of_the_covariance(names)),
        "a neighbour's block": lambda names: spectrum(names, names["x"], names["middle"][names["first"]] - 1),
    },
}
