"""The exercises of notebook 15."""

import torch

import howlinear as hl
from helpers.exercises import TestExercises  # noqa: F401
from howlinear.ideas.gate.fit import GATE


def share_in_common(gates_half, oracles_half):
    """A function of scores and errors: the share of the one half that is in the other."""
    return lambda scores, errors: float(oracles_half(scores, errors)[gates_half(scores, errors)].float().mean())


def line_of(takes):
    """A function of a gate and a share: the least-squares line of some of its rows."""

    def fitted(gate, share):
        moments = gate.rows.moments(takes(gate, share))
        return hl.ceiling(moments, moments).map

    return fitted


def beyond_the_middle(names):
    return lambda x: x @ names["direction"] > names["middle"]


WRONG = {
    "saving": {
        "the share itself": lambda names: 0.5,
        "no line": lambda names: 0.5 - names["d"] / names["multiplications"],
        "no score": lambda names: names["saving"] + names["d"] / names["multiplications"],
        "the line for all tokens": lambda names: names["saving"] - 0.5 * names["d"] ** 2 / names["multiplications"],
        "a score for half of the tokens": lambda names: names["saving"] + 0.5 * names["d"] / names["multiplications"],
        "what is left": lambda names: 1 - names["saving"],
    },
    "common": {
        "the other half": lambda names: share_in_common(
            lambda scores, _: scores > scores.median(), lambda _, errors: errors <= errors.median()
        ),
        "of all rows": lambda names: lambda scores, errors: names["common"](scores, errors) / 2,
        "a correlation": lambda names: (
            lambda scores, errors: float(torch.corrcoef(torch.stack([scores, errors]))[0, 1])
        ),
        "the mean for the median": lambda names: share_in_common(
            lambda scores, _: scores <= scores.median(), lambda _, errors: errors <= errors.mean()
        ),
        "one threshold for both": lambda names: share_in_common(
            lambda scores, _: scores <= scores.median(), lambda scores, errors: errors <= scores.median()
        ),
    },
    "straight": {
        "no row": lambda names: lambda x: torch.zeros(len(x), dtype=torch.bool),
        "all rows": lambda names: lambda x: torch.ones(len(x), dtype=torch.bool),
        "beyond a plane": beyond_the_middle,
        "at random": lambda names: lambda x: (1_000 * (x @ names["direction"])).remainder(1) < 0.5,
        "far too near": lambda names: (
            lambda x: (x @ names["direction"] - names["middle"]).abs() < 0.1 * names["typical"]
        ),
        "about 0, not the middle": lambda names: lambda x: (x @ names["direction"] - 9 * names["typical"]) < 0,
    },
    "repaired": {
        "the bug itself": lambda names: names["friends_line"],
        "the first line": lambda names: lambda gate, share: gate.line,
        "all rows": lambda names: line_of(lambda gate, share: gate.ordinary),
        "another share": lambda names: line_of(
            lambda gate, share: gate.ranked[GATE] <= gate.threshold(GATE, 0.5 * share)
        ),
        "random rows": lambda names: line_of(
            lambda gate, share: gate.ranked["random"] <= gate.threshold("random", share)
        ),
        "the oracle's rows": lambda names: line_of(
            lambda gate, share: gate.ranked["oracle"] <= gate.threshold("oracle", share)
        ),
    },
}
