"""The exercises of notebook 13."""

from scipy.stats import norm

from helpers.exercises import Exercises
from howlinear.ideas.claims.claim import SOURCE, Verdict, verdict


def ends(names, end):
    """One end of the interval of every model, of the claim of exercise 1."""
    return [getattr(reading.estimate, end) for reading in names["small"].readings.values()]


def that_turn(names, stretch):
    """What turns if both sides of every interval are as long as the longer one, times a factor."""
    turned = set()
    for row in names["ledger"]:
        for model, reading in row.readings.items():
            estimate = reading.estimate
            reach = stretch * max(estimate.high - estimate.value, estimate.value - estimate.low)
            strict = verdict(estimate.value - reach, estimate.value + reach, row.claim.threshold, row.claim.direction)
            if strict is not row.verdicts[model]:
                turned.add((row.claim.id, model))
    return turned


def all_mixed(names):
    """What is mixed before anything is stretched."""
    verdicts = {(row.claim.id, model): mark for row in names["ledger"] for model, mark in row.verdicts.items()}
    return {pair for pair, mark in verdicts.items() if mark is Verdict.MIXED}


def stated_with(names, threshold):
    return names["mine"].replace("threshold = 0.99", f"threshold = {threshold}")


def between_models(names):
    """A threshold that some models clear and others do not."""
    lowest = [reading.estimate.value for reading in names["own"].readings.values()]
    return (min(lowest) + max(lowest)) / 2


WRONG = {
    "generous": {
        "a constant": lambda names: 0.5,
        "as it is stated": lambda names: names["small"].claim.threshold,
        "the highest value": lambda names: round(max(ends(names, "value")), 2),
        "the highest lower end": lambda names: round(max(ends(names, "low")), 2),
        "one model": lambda names: round(min(ends(names, "high")) + 0.01, 2),
        "a hundredth more": lambda names: round(names["generous"] + 0.01, 2),
        "a hundredth less": lambda names: round(names["generous"] - 0.01, 2),
        "all digits": lambda names: names["highest"] + 1e-6,
    },
    "stretch": {
        "a constant": lambda names: 2.0,
        "one side": lambda names: norm.ppf(1 - 0.05 / names["count"]) / norm.ppf(0.975),
        "standard errors": lambda names: norm.ppf(1 - 0.025 / names["count"]),
        "claims counted, not models": lambda names: norm.ppf(1 - 0.025 / len(names["ledger"])) / norm.ppf(0.975),
        "a sign slip": lambda names: -names["stretch"],
        "upside down": lambda names: 1 / names["stretch"],
    },
    "turned": {
        "none": lambda names: set(),
        "one missing": lambda names: set(sorted(names["turned"])[1:]),
        "all that are mixed": all_mixed,
        "those that were mixed as well": lambda names: names["turned"] | all_mixed(names),
        "hardly longer": lambda names: that_turn(names, 1.2),
        "three times as long": lambda names: that_turn(names, 3.0),
    },
    "mine": {
        "it holds": lambda names: stated_with(names, -1e9),
        "it is mixed": lambda names: stated_with(names, between_models(names)),
        "not testable": lambda names: names["mine"].replace('"lowest"', '"scale_probe"'),
        "a claim that is there": lambda names: names["mine"].replace("all-linear", "heterogeneous"),
        "two claims": lambda names: names["mine"] + names["mine"].replace("all-linear", "once-more"),
        "the paper's": lambda names: SOURCE.read_text(encoding="utf-8"),
    },
}


class TestExercises(Exercises):
    stem = "13_claims"
    wrong = WRONG
