"""The exercises of notebook 08."""

from helpers.exercises import TestExercises  # noqa: F401
from howlinear.core.gaussian import predict_spectrum
from howlinear.ideas.controls.inputs import recolour
from howlinear.ideas.controls.weights import respond, sample_ceiling


def closed_form(names, spread=1.0, mean=1.0):
    """R² of the first block on normal rows with so much of the spread and of the mean of its own."""
    moments = names["moments"].copy()
    moments.sxx *= spread**2
    moments.mean_x *= mean
    return predict_spectrum(names["taken"], moments, 1)[0]


def turned(names, seeds=range(5), block=None, anew=True):
    """R² of turned rows, which the middle block, or another, answers anew or not."""
    sample, colour = names["sample"], names["colour"]
    ffn = names["ffn"] if block is None else names["ffns"][names["first"]][block]
    rows = [recolour(sample.x, colour, colour, turn=seed) for seed in seeds]
    outputs = [respond(ffn, x) if anew else sample.y for x in rows]
    return [sample_ceiling(x, y, sample, intervals=False).r2 for x, y in zip(rows, outputs, strict=True)]


WRONG = {
    "enough": {
        "no row for the mean": lambda names: 100 * names["rank"],
        "a sign slip": lambda names: 100 * names["rank"] - 1,
        "one direction more": lambda names: 100 * (names["rank"] + 1) + 1,
        "the rows there are": lambda names: names["floors"].rows[0],
    },
    "quiet": {
        "the limit": lambda names: 1.0,
        "as it was": lambda names: closed_form(names),
        "not squared": lambda names: closed_form(names, 0.1**0.5),
        "squared twice": lambda names: closed_form(names, 0.1**2),
        "the mean as well": lambda names: closed_form(names, 0.1, mean=0.1),
    },
    "turns": {
        "not turned": lambda names: [names["untouched"]] * 5,
        "one seed five times": lambda names: turned(names, [0] * 5),
        "four seeds": lambda names: turned(names, range(4)),
        "the old outputs": lambda names: turned(names, anew=False),
        "a neighbour's block": lambda names: turned(names, block=names["middle"] - 1),
    },
}
