"""The ledger: every claim beside what the recorded results say of it, and nothing typed by hand.

`claim` holds the claims and the rule for a verdict, `statistics` the numbers. Only `results/` is read, no model and no
text. A claim is *not testable here* where a result file is absent or `statistics` states a rule for it; a file that
lacks what it should hold is an error, for a ledger that drops rows in silence would be worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from howlinear.core.estimates import Estimate
from howlinear.errors import SourceError
from howlinear.files import results as record
from howlinear.ideas.claims.claim import MARKS, UNITS, Claim, Verdict, load_claims, together
from howlinear.ideas.claims.numbers import STATISTICS, TOGETHER, Reading, UntestableError

ALL = "all"
"""The name under which a claim's verdict over all its readings stands."""

TOLERANCE = {
    "bilinear-uncorrelated": 0.1,
    "bilinear-small": 0.02,
    "optimiser-pitfall": 0.02,
    "two-regimes-outlier": 0.01,
    "two-regimes-broad": 0.01,
    "compress-safe": 0.02,
    "compress-unsafe": 0.02,
    "learned-twins": 0.02,
}
"""Claim → how far its numbers may differ between processors, where `results.TOLERANCE` is too tight."""

DIGITS = {"bilinear-uncorrelated": 2, "compress-safe": 3, "compress-unsafe": 3}
"""Claim → significant digits of its numbers, where that tolerance would leave fewer than the ledger shows."""


@dataclass(frozen=True)
class Row:
    """A claim beside what the results say. Its verdict is computed; there is no way to set one.

    Attributes:
        claim: the claim.
        readings: model → its number; `numbers.TOGETHER` for what belongs to no single model. Empty if untestable.
        reason: why it is not testable, else empty.
    """

    claim: Claim
    readings: Mapping[str, Reading] = field(default_factory=dict)
    reason: str = ""

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict of each reading."""
        return {name: self.claim.verdict(reading.estimate) for name, reading in self.readings.items()}

    @property
    def verdict(self) -> Verdict:
        """All readings together."""
        return together(self.verdicts.values())

    def at(self, factor: float) -> Row:
        """The same readings against `factor` times the threshold."""
        return replace(self, claim=replace(self.claim, threshold=factor * self.claim.threshold))


# Judging


def evaluate(results: Path, claims: Sequence[Claim] | None = None) -> list[Row]:
    """Judge claims on a folder of results, as `paths.results("minis")`.

    Raises:
        SourceError: a result that lacks what a claim reads, or holds it in another form.
    """
    if claims is None:
        claims = load_claims()
    return [judge(claim, results) for claim in claims]


def judge(claim: Claim, results: Path) -> Row:
    """One claim on a folder of results; not testable only where a file is absent or `statistics` has a rule for it.

    Raises:
        SourceError: as `evaluate`.
    """
    path = results / f"{claim.notebook}.json"
    if not path.exists():
        return Row(claim, reason=f"no {path.name} in this profile's results")
    numbers = record.load(path)
    try:
        readings = STATISTICS[claim.statistic](numbers)
        unsound = [name for name, reading in readings.items() if not _is_interval(reading.estimate)]
    except UntestableError as error:
        return Row(claim, reason=str(error))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SourceError(
            f"{path} does not hold what claim {claim.id!r} reads ({claim.statistic}: {problem}): "
            f"run notebook {claim.notebook} again, or mend statistics.{claim.statistic}"
        ) from error
    if unsound or not readings:
        whose = ", ".join(unsound) or "any model"
        raise SourceError(f"{path}: {claim.statistic} gives no finite interval for {whose}")
    return Row(claim, readings)


def _is_interval(estimate: Estimate) -> bool:
    """Whether all three numbers are finite and the ends in order."""
    finite = all(math.isfinite(number) for number in (estimate.value, estimate.low, estimate.high))
    return finite and estimate.low <= estimate.high


def changes(row: Row, factors: Sequence[float]) -> dict[float, Verdict]:
    """The verdict under each of several multiples of the threshold."""
    return {factor: row.at(factor).verdict for factor in factors}


def steady(moves: Mapping[str, Mapping[float, Verdict]]) -> list[str]:
    """Of what `changes` says of several claims: those whose verdict is the same under every multiple, and is one."""
    same = []
    for name, verdicts in moves.items():
        different = set(verdicts.values())
        if len(different) == 1 and Verdict.UNTESTABLE not in different:
            same.append(name)
    return same


# Recording


def contents(ledger: Sequence[Row], moves: Mapping[str, Mapping[float, Verdict]]) -> dict[str, Any]:
    """What the results of notebook 12 hold.

    Args:
        ledger: all rows.
        moves: claim → what `changes` says of it.

    Returns:
        `claims`: `numbers` of every row; `thresholds_moved`: claim → multiple → verdict; `units` and `marks`: how
        numbers and verdicts are shown, for whoever shows them.
    """
    return {
        "claims": {row.claim.id: numbers(row) for row in ledger},
        "thresholds_moved": {
            name: {str(factor): verdict.value for factor, verdict in verdicts.items()}
            for name, verdicts in moves.items()
        },
        "units": {name: asdict(unit) for name, unit in UNITS.items()},
        "marks": {verdict.value: symbol for verdict, symbol in MARKS.items()},
    }


def numbers(row: Row) -> dict[str, Any]:
    """A row as `results.save` takes it."""
    cells = {
        name: {**asdict(reading.estimate), "note": reading.note, "verdict": row.verdicts[name].value}
        for name, reading in row.readings.items()
    }
    judged = {"verdict": row.verdict.value, "threshold": row.claim.threshold, "cells": cells}
    if row.reason:
        judged["reason"] = row.reason
    return judged


# Tables


def cells(ledger: Sequence[Row]) -> pd.DataFrame:
    """The board: a row a reading, and one a claim for all its readings.

    Returns:
        Columns `claim` (its id), `asked`, `column` (a model, `TOGETHER` or `ALL`), `verdict`, `symbol`, and `number`,
        the value in the claim's unit, empty for `ALL`.
    """
    rows = []
    for row in ledger:
        for name, verdict in row.verdicts.items():
            rows.append((row, name, verdict, row.claim.show_value(row.readings[name].estimate)))
        rows.append((row, ALL, row.verdict, ""))
    return pd.DataFrame(
        {
            "claim": row.claim.id,
            "asked": row.claim.asked,
            "column": name,
            "verdict": verdict.value,
            "symbol": verdict.symbol,
            "number": number,
        }
        for row, name, verdict, number in rows
    )


def answers(ledger: Sequence[Row], models: Sequence[str]) -> pd.DataFrame:
    """What was asked, and the answers with their intervals: a row a claim, a column a model and one for `TOGETHER`."""
    columns = [*models, TOGETHER]
    rows = {}
    for row in ledger:
        shown = {name: row.claim.show(reading.estimate) for name, reading in row.readings.items()}
        rows[row.claim.id] = {"asked": row.claim.question} | {name: shown.get(name, "") for name in columns}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["asked", *columns])


def summary(ledger: Sequence[Row]) -> pd.DataFrame:
    """The paper's value, this run's verdict, and why the threshold is what it is: a row a claim."""
    rows = {
        row.claim.id: {
            "the paper": row.claim.paper,
            "this run": f"{row.verdict.symbol} {row.verdict}",
            "why this threshold": row.claim.why,
        }
        for row in ledger
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("claim")


def tally(ledger: Sequence[Row]) -> str:
    """How many rows have each verdict, as in `6 reproduced, 5 not reproduced, 4 mixed, 0 not testable here`."""
    counts = pd.Series([row.verdict for row in ledger], dtype=object).value_counts()
    return ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in Verdict)


def to_markdown(ledger: Sequence[Row]) -> str:
    """The ledger as a table for a text that lies at the project's root."""
    table = pd.DataFrame(
        {
            "claim": f"**{row.claim.id}**: {row.claim.sentence}",
            "verdict": f"{row.verdict.symbol} {row.verdict}",
            "here, with 95 % intervals": _here(row),
            "the paper": row.claim.paper,
            "shown by": _notebook(row),
        }
        for row in ledger
    )
    # stralign=None: the cells are long, and are not padded to the longest of their column
    lines = table.to_markdown(index=False, tablefmt="github", stralign=None, disable_numparse=True)
    claims = [row for row in ledger if not row.claim.falsifies]
    falsifiers = [row for row in ledger if row.claim.falsifies]
    counted = f"{len(claims)} claims: {tally(claims)}."
    if falsifiers:
        marks = [f"{row.claim.id.removeprefix('falsifier-')} {row.verdict.symbol}" for row in falsifiers]
        counted += f" Falsifiers: {', '.join(marks)}."
    return f"{lines}\n\n{counted}"


def _here(row: Row) -> str:
    """What was asked, and each model's answer, a line each."""
    if row.reason:
        return row.reason
    lines = [row.claim.question]
    for name, reading in row.readings.items():
        symbol = row.verdicts[name].symbol
        model = "" if name == TOGETHER else f"{name} "
        note = f" ({reading.note})" if reading.note else ""
        lines.append(f"{symbol} {model}{row.claim.show(reading.estimate)}{note}")
    return "<br>".join(lines)


def _notebook(row: Row) -> str:
    """The notebook that shows a claim, with a link where it has results."""
    stem = row.claim.notebook
    return f"[{stem}](notebooks/{stem}.py)" if row.readings else stem
