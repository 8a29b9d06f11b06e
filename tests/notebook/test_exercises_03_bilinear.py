"""The exercises of notebook 03."""

from dataclasses import replace

from helpers.exercises import TestExercises  # noqa: F401


def size(names, *parts):
    """The numbers in some parts of the branch, over those of the map."""
    return sum(getattr(names["fitted"], part).numel() for part in parts) / (names["d"] * names["d_out"])


def disguised(names, **parts):
    """The right answer but for some parts."""
    return replace(names["disguised"], **parts)


def centred(names, side):
    """R² of the branch where the line leaves what it leaves, about the mean."""
    rows, fitted = names["rows"], names["fitted"]
    e = rows.e[side]
    left = (e - fitted(rows.z[side])).square().sum()
    return 1 - float(left / (e - e.mean(0)).square().sum())


WRONG = {
    "relative_size": {
        "one factor": lambda names: size(names, "left", "readout"),
        "with each product's line": lambda names: size(names, "left", "right", "slope", "readout"),
        "a rank too many": lambda names: names["relative_size"] * (names["rank"] + 1) / names["rank"],
        "upside down": lambda names: 1 / names["relative_size"],
    },
    "disguised": {
        "nothing changed": lambda names: names["fitted"],
        "A alone": lambda names: replace(names["fitted"], left=10 * names["fitted"].left),
        "the slope forgotten": lambda names: disguised(names, slope=names["fitted"].slope),
        "the level forgotten": lambda names: disguised(names, level=names["fitted"].level),
    },
    "by_heart": {
        "in sample twice": lambda names: (names["seen"], names["seen"]),
        "held out twice": lambda names: (names["unseen"], names["unseen"]),
        "about the mean": lambda names: (centred(names, ~names["rows"].test), centred(names, names["rows"].test)),
        "gain in R²": lambda names: (names["seen"], names["poly"][0] - names["line"][0]),
    },
}
