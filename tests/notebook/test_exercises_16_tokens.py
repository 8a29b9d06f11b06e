"""The exercises of notebook 16."""

from helpers.exercises import TestExercises  # noqa: F401
from howlinear.core.ceilings import r2
from howlinear.core.moments import Moments
from howlinear.ideas.tokens.table import table_alone


def of_pairs(z, fold, keep):
    """The mean of ⟨z_i, z_j⟩ over the pairs that `keep` picks."""
    pairs = [float(z[i] @ z[j]) for i in range(len(z)) for j in range(len(z)) if keep(i, j, fold)]
    return sum(pairs) / max(1, len(pairs))


def each_fold_by_itself(names):
    return lambda side: Moments.total([names["within"](only(side, fold)) for fold in side.rows])


def only(side, fold):
    for other in side.rows:
        side = side if other == fold else side.without(other)
    return side


def inputs_alone(names):
    def moments(side):
        rows = side.total()
        rows.sxx = names["within"](side).sxx
        return rows

    return moments


def each_token_once(side):
    """Token means that count once each, however many rows they have."""
    rows = side.total()
    types, kind = side.types
    count = side.count.new_zeros(len(types)).index_add_(0, kind, side.count)[:, None]
    off_x = side.sum_x.new_zeros(len(types), rows.d_in).index_add_(0, kind, side.sum_x) / count - rows.mean_x
    off_y = side.sum_y.new_zeros(len(types), rows.d_out).index_add_(0, kind, side.sum_y) / count - rows.mean_y
    rows.sxx -= off_x.T @ off_x
    rows.sxy -= off_x.T @ off_y
    rows.syy -= off_y.square().sum(0)
    return rows


WRONG = {
    "joined": {
        "between alone": lambda names: 0.8,
        "no share within": lambda names: 0.9 * 0.8,
        "the mean of both": lambda names: (0.8 - 0.2) / 2,
        "shares the other way round": lambda names: 0.1 * 0.8 - 0.9 * 0.2,
    },
    "square_of_mean": {
        "the own mean": lambda names: lambda z, fold: float(z.mean(0).square().sum()),
        "all pairs but a row with itself": lambda names: lambda z, fold: of_pairs(z, fold, lambda i, j, _: i != j),
        "pairs within a fold": lambda names: lambda z, fold: of_pairs(z, fold, lambda i, j, fold: fold[i] == fold[j]),
        "rows less their mean": lambda names: lambda z, fold: names["square_of_mean"](z - z.mean(0), fold),
    },
    "within": {
        "all rows": lambda names: lambda side: side.total(),
        "each fold by itself": each_fold_by_itself,
        "inputs alone": inputs_alone,
        "each token once": lambda names: each_token_once,
    },
    "repaired": {
        "the bug itself": lambda names: names["friends_r2"],
        "made of held-out rows": lambda names: lambda train, held_out: table_alone(held_out).r2(held_out),
        "the wrong way round": lambda names: lambda train, held_out: table_alone(held_out).r2(train),
        "no table": lambda names: lambda train, held_out: r2(table_alone(train).line, held_out.total()),
    },
}
