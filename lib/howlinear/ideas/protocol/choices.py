"""The choices that a number called R²_lin depends on, their levels, and the two protocols that have names.

The paper (arXiv 2606.19379) and this project choose differently. Every choice is a column of a table, and a universe is
one level of each (Steegen, Tuerlinckx, Gelman & Vanpaemel 2016, "Increasing transparency through a multiverse
analysis").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import pandas as pd

from howlinear.errors import InputError
from howlinear.text.rows import FOLDS

# what held-out outputs are compared with: one scalar, the mean of all of them, or each feature's own mean
DENOMINATORS = ("scalar", "feature")

# what is held out: the last fifth of the text, or every fourth document
SPLITS = ("tail", "documents")
# or runs of neighbouring sequences, which nobody chooses: they show how much it matters to keep documents whole
RUNS = "runs"

# train rows: a multiple of the width, all there are, or the limit of R²_lin with ever more rows (`core.limits`)
MOST = "most"
LIMIT = "limit"

# whether the first token of every sequence counts, in the fit and in the score
POSITIONS = ("in", "out")

# whether the loudest outputs count: the 1 % of rows of largest norm, or the one feature of largest variance
LOUD = ("in", "feature out", "rows out")

# eigenvalues of the inputs' correlation matrix below this share of the largest are left out of the fit; the middle one
# is `ceilings.NULL`
NULLS = ("1e-15", "1e-12", "1e-6")


@dataclass(frozen=True)
class Protocol:
    """One level of every choice."""

    denominator: str  # one of `DENOMINATORS`
    split: str  # one of `SPLITS`
    rows: str  # train rows over the inputs' width, as in `16`; or `MOST`, or `LIMIT`
    seq_len: int  # tokens in a sequence
    position_0: str  # one of `POSITIONS`
    loud: str  # one of `LOUD`
    null: str  # one of `NULLS`


CHOICES = [field.name for field in fields(Protocol)]


def named_protocol(name: str, seq_len: int = 128) -> Protocol:
    """Return the protocol called `paper` or `ours`, in sequences of `seq_len` tokens."""
    if name == "paper":
        # 12,000 train rows for 768 inputs; a solver that keeps every direction that float64 resolves
        return Protocol("scalar", "tail", "16", seq_len, "in", "in", "1e-15")
    if name == "ours":
        return Protocol("feature", "documents", MOST, seq_len, "in", "in", "1e-12")
    raise InputError(f"unknown protocol {name!r}: use paper or ours")


def one_away(table: pd.DataFrame, protocol: Protocol, choice: str | None = None) -> pd.DataFrame:
    """Select rows of a table with columns `CHOICES` that agree with a protocol in all choices but one, or in all."""
    agreeing = table
    for name, level in asdict(protocol).items():
        if name == choice:
            continue
        agreeing = agreeing[agreeing[name] == level]
        if agreeing.empty:
            known = ", ".join(str(other) for other in table[name].unique())
            raise InputError(f"nothing was measured with {name} = {level}: there is {known}")
    return agreeing


def factors_within(factors: Sequence[int], train_rows: int, widths: Sequence[int], seq_len: int) -> list[int]:
    """Select the multiples of the inputs' width that `train_rows` allow for models of these widths, ascending."""
    # each must add at least one sequence to every fold; if fewer than two do, half of the rows and all rows are used
    possible = []
    per_fold = 0
    for factor in sorted(factors):
        sequences = sequences_per_fold(factor, min(widths), seq_len)
        if factor * max(widths) <= train_rows and sequences > per_fold:
            possible.append(factor)
            per_fold = sequences
    if len(possible) > 1:
        return possible
    most = train_rows // max(widths)
    if most < 4:
        raise InputError(
            f"{train_rows} train rows for {max(widths)} inputs: a curve over rows needs four rows an input at least; "
            "use more rows"
        )
    return [most // 2, most]


def sequences_per_fold(factor: int, width: int, seq_len: int) -> int:
    """Count the sequences per fold that give `factor` rows per input over all folds."""
    return -(-factor * width // (FOLDS * seq_len))
