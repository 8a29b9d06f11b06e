"""The exercises of notebook 16."""

from helpers.exercises import Exercises
from howlinear.core.ceilings import r2
from howlinear.ideas.tokens.table import all_rows, table_alone, table_and_line


def of_pairs(z, fold, keep):
    """The mean of ⟨z_i, z_j⟩ over the pairs that `keep` picks."""
    pairs = [float(z[i] @ z[j]) for i in range(len(z)) for j in range(len(z)) if keep(i, j, fold)]
    return sum(pairs) / max(1, len(pairs))


WRONG = {
    "joined": {
        "between alone": lambda names: 0.8,
        "no share within": lambda names: 0.9 * 0.8,
        "the mean of both": lambda names: (0.8 - 0.2) / 2,
        "shares the other way round": lambda names: 0.1 * 0.8 - 0.9 * 0.2,
        "a sign": lambda names: 0.9 * 0.8 + 0.1 * 0.2,
    },
    "square_of_mean": {
        "the own mean": lambda names: lambda z, fold: float(z.mean(0).square().sum()),
        "all pairs but a row with itself": lambda names: lambda z, fold: of_pairs(z, fold, lambda i, j, _: i != j),
        "pairs within a fold": lambda names: lambda z, fold: of_pairs(z, fold, lambda i, j, fold: fold[i] == fold[j]),
        "a sum and no mean": lambda names: lambda z, fold: names["square_of_mean"](z, fold) * len(z),
        "rows less their mean": lambda names: lambda z, fold: names["square_of_mean"](z - z.mean(0), fold),
    },
    "repaired": {
        "the bug itself": lambda names: names["friends_r2"],
        "made of held-out rows": lambda names: lambda train, held_out: table_alone(held_out).r2(held_out),
        "the wrong way round": lambda names: lambda train, held_out: table_alone(held_out).r2(train),
        "a line as well": lambda names: lambda train, held_out: table_and_line(train).r2(held_out),
        "no table": lambda names: lambda train, held_out: r2(table_alone(train).line, all_rows(held_out)),
    },
}


class TestExercises(Exercises):
    stem = "16_tokens"
    wrong = WRONG
