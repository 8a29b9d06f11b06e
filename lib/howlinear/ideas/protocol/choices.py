"""The choices that a number called R²_lin hangs on, their levels, and the two protocols that have names.

The paper (arXiv 2606.19379) and this project choose differently. Every choice is a column of the tables in
`multiverse`, and a universe is one level of each (Steegen, Tuerlinckx, Gelman & Vanpaemel 2016, "Increasing
transparency through a multiverse analysis").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from howlinear.errors import InputError

DENOMINATORS = ("scalar", "feature")
"""What held-out outputs are compared with: one scalar, the mean of all of them, or each feature's own mean."""

SPLITS = ("tail", "documents")
"""What is held out: the last fifth of the text, or every fourth document."""

POSITIONS = ("in", "out")
"""Whether the first token of every sequence counts, in the fit and in the score."""

LOUD = ("in", "rows out", "feature out")
"""Whether the loudest outputs count: the 1 % of rows of largest norm, or the one feature of largest variance."""

NULLS = ("1e-15", "1e-12", "1e-6")
"""Eigenvalues of the inputs' correlation matrix below this share of the largest are left out of the fit. Written as
text, so that nothing rounds them; `ceilings.NULL` is the middle one."""

MOST = "most"
"""All train rows that there are."""

LIMIT = "limit"
"""What R²_lin tends to with ever more rows, told from all that there are (`core.limits`)."""

COLUMNS = ["denominator", "split", "rows", "seq_len", "position_0", "loud", "null"]


@dataclass(frozen=True)
class Protocol:
    """One level of every choice.

    Attributes:
        denominator: one of `DENOMINATORS`.
        split: one of `SPLITS`.
        rows: train rows over the inputs' width, as in `16`; or `MOST`, or `LIMIT`.
        seq_len: tokens in a sequence.
        position_0: one of `POSITIONS`.
        loud: one of `LOUD`.
        null: one of `NULLS`.
    """

    denominator: str
    split: str
    rows: str
    seq_len: int
    position_0: str
    loud: str
    null: str


PROTOCOLS = {
    # 12,000 train rows for 768 inputs; a solver that keeps every direction that float64 resolves
    "paper": Protocol("scalar", "tail", "16", 128, "in", "in", "1e-15"),
    "ours": Protocol("feature", "documents", MOST, 128, "in", "in", "1e-12"),
}


def named(name: str) -> Protocol:
    """The protocol of a name.

    Raises:
        InputError: there is none of this name.
    """
    if name not in PROTOCOLS:
        raise InputError(f"unknown protocol {name!r}: use {' or '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def universe(table: pd.DataFrame, protocol: Protocol) -> pd.DataFrame:
    """The rows of a table that were made under a protocol.

    Args:
        table: with the columns `COLUMNS`.
        protocol: which.

    Raises:
        InputError: there are none; names the choice.
    """
    chosen = table
    for choice, level in asdict(protocol).items():
        chosen = chosen[chosen[choice] == level]
        if chosen.empty:
            known = ", ".join(str(other) for other in table[choice].unique())
            raise InputError(f"nothing was measured with {choice} = {level}: there is {known}")
    return chosen


def one_away(table: pd.DataFrame, protocol: Protocol, choice: str) -> pd.DataFrame:
    """The rows of a table that agree with a protocol in every choice but one.

    Args:
        table: with the columns `COLUMNS`.
        protocol: to stay close to.
        choice: the one to vary, of `COLUMNS`.
    """
    fixed = {name: level for name, level in asdict(protocol).items() if name != choice}
    agrees = pd.Series(True, index=table.index)
    for name, level in fixed.items():
        agrees &= table[name] == level
    return table[agrees]


def factors_within(factors: Sequence[int], train_rows: int, width: int) -> list[int]:
    """Those multiples of a width that so many train rows allow.

    Raises:
        InputError: not even the two smallest.
    """
    possible = [factor for factor in sorted(factors) if factor * width <= train_rows]
    if len(possible) < 2:
        raise InputError(
            f"{train_rows} train rows for {width} inputs: a curve over rows needs {sorted(factors)[:2]} rows an input; "
            "use more rows"
        )
    return possible
