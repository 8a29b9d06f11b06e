"""The exercises of notebook 13."""

from scipy.stats import norm

from helpers.exercises import TestExercises  # noqa: F401
from howlinear.ideas.claims.claim import Verdict, load_claims, verdict

CLAIMS = {claim.id: claim for claim in load_claims()}


def that_turn(names, stretch):
    """What turns if both sides of every interval are as long as the longer one, times a factor."""
    turned = set()
    for row in names["readings"].itertuples():
        reach = stretch * max(row.value_high - row.value, row.value - row.value_low)
        claim = CLAIMS[row.claim]
        if verdict(row.value - reach, row.value + reach, claim.threshold, claim.direction) != row.verdict:
            turned.add((row.claim, row.model))
    return turned


def all_mixed(names):
    """What is mixed before anything is stretched."""
    mixed = names["readings"][names["readings"].verdict == Verdict.MIXED]
    return set(zip(mixed.claim, mixed.model, strict=True))


def stated_with(names, threshold):
    return names["mine"].replace("threshold = 0.99", f"threshold = {threshold}")


def between_models(names):
    """A threshold that some models clear and others do not."""
    lowest = names["verdicts"].query("claim == 'falsifier-linear'").value
    return (lowest.min() + lowest.max()) / 2


WRONG = {
    "generous": {
        "as it is stated": lambda names: CLAIMS["products-small"].threshold,
        "a hundredth more": lambda names: round(names["generous"] + 0.01, 2),
        "a hundredth less": lambda names: round(names["generous"] - 0.01, 2),
        "all digits": lambda names: names["highest"] + 1e-6,
    },
    "stretch": {
        "one side": lambda names: norm.ppf(1 - 0.05 / names["count"]) / norm.ppf(0.975),
        "standard errors": lambda names: norm.ppf(1 - 0.025 / names["count"]),
        "claims counted, not models": lambda names: norm.ppf(1 - 0.025 / len(CLAIMS)) / norm.ppf(0.975),
        "upside down": lambda names: 1 / names["stretch"],
    },
    "turned": {
        "one missing": lambda names: set(sorted(names["turned"])[1:]),
        "those that were mixed as well": lambda names: names["turned"] | all_mixed(names),
        "hardly longer": lambda names: that_turn(names, 1.2),
        "three times as long": lambda names: that_turn(names, 3.0),
    },
    "mine": {
        "it is mixed": lambda names: stated_with(names, between_models(names)),
        "not testable": lambda names: names["mine"].replace('"lowest"', '"scale_probe"'),
        "a claim that is there": lambda names: names["mine"].replace("all-linear", "heterogeneous"),
        "two claims": lambda names: names["mine"] + names["mine"].replace("all-linear", "once-more"),
    },
}
