"""The ledger: every claim beside what the recorded results say of it, and nothing typed by hand.

`stated` holds the claims and the rule for a verdict, `evidence` the numbers. Only `results/` is read, no model and no
text. A claim is *not testable here* where a result file is absent or `evidence` states a rule for it; a file that lacks
what it should hold is an error, for a ledger that drops rows in silence would be worse than none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from howlinear import paths, record
from howlinear.contrasts import Reading, UntestableError
from howlinear.errors import InputError, SourceError
from howlinear.evidence import STATISTICS, TOGETHER
from howlinear.stated import Claim, Verdict, load_claims, together

MARKS = "<!-- claims -->", "<!-- end -->"


@dataclass(frozen=True)
class Row:
    """A claim beside what the results say. Its verdict is computed; there is no way to set one.

    Attributes:
        claim: the claim.
        readings: model → its number; `evidence.TOGETHER` for what belongs to no single model. Empty if untestable.
        reason: why it is not testable, else empty.
    """

    claim: Claim
    readings: Mapping[str, Reading] = field(default_factory=dict)
    reason: str = ""

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict of each reading."""
        return {name: self.claim.verdict(reading) for name, reading in self.readings.items()}

    @property
    def verdict(self) -> Verdict:
        """All readings together."""
        return together(self.verdicts.values())

    def at(self, factor: float) -> Row:
        """The same readings against `factor` times the threshold."""
        return replace(self, claim=replace(self.claim, threshold=factor * self.claim.threshold))


def evaluate(results: Path, claims: Sequence[Claim] | None = None) -> list[Row]:
    """Judge claims on a folder of results, as `paths.results("minis")`.

    Raises:
        SourceError: a result that lacks what a claim reads, or holds it in another form.
    """
    return [judge(claim, results) for claim in (load_claims() if claims is None else claims)]


def judge(claim: Claim, results: Path) -> Row:
    """One claim on a folder of results; not testable only where a file is absent or `evidence` has a rule for it."""
    path = results / f"{claim.notebook}.json"
    if not path.exists():
        return Row(claim, reason=f"no {path.name} in this profile's results")
    numbers = record.load(path)
    try:
        readings = STATISTICS[claim.statistic](numbers)
        odd = [name for name, found in readings.items() if not _sound(found)]
    except UntestableError as error:
        return Row(claim, reason=str(error))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SourceError(
            f"{path} does not hold what claim {claim.id!r} reads ({claim.statistic}: {problem}): "
            f"run notebook {claim.notebook} again, or mend evidence.{claim.statistic}"
        ) from error
    if odd or not readings:
        raise SourceError(f"{path}: {claim.statistic} gives no finite interval for {', '.join(odd) or 'any model'}")
    return Row(claim, readings)


def _sound(reading: Reading) -> bool:
    return reading.low <= reading.high and all(map(math.isfinite, (reading.value, reading.low, reading.high)))


def changes(row: Row, factors: Sequence[float]) -> dict[float, Verdict]:
    """The verdict under each of several multiples of the threshold."""
    return {factor: row.at(factor).verdict for factor in factors}


def numbers(row: Row) -> dict[str, Any]:
    """A row as `record.save` takes it."""
    cells = {name: vars(reading) | {"verdict": row.verdicts[name].value} for name, reading in row.readings.items()}
    judged = {"verdict": row.verdict.value, "threshold": row.claim.threshold, "cells": cells}
    return judged | ({"reason": row.reason} if row.reason else {})


def to_markdown(ledger: Sequence[Row]) -> str:
    """The ledger as a table for a text that lies at the project's root."""
    lines = ["| claim | verdict | here, with 95 % intervals | the paper | shown by |", "|---|---|---|---|---|"]
    for row in ledger:
        claim = row.claim
        shown = f"[{claim.notebook}](notebooks/{claim.notebook}.py)" if row.readings else claim.notebook
        cells = f"**{claim.id}**: {claim.sentence}", f"{row.verdict.symbol} {row.verdict}", _here(row)
        lines.append(f"| {' | '.join((*cells, claim.paper, shown))} |")
    said, against = ([row for row in ledger if row.claim.falsifies is side] for side in (False, True))
    counts = ", ".join(f"{sum(row.verdict is kind for row in said)} {kind}" for kind in Verdict)
    ids = ", ".join(f"{row.claim.id.removeprefix('falsifier-')} {row.verdict.symbol}" for row in against)
    return "\n".join([*lines, "", f"{len(said)} claims: {counts}." + (f" Falsifiers: {ids}." if ids else "")])


def _here(row: Row) -> str:
    """What was asked, and each model's answer, a line each."""
    if row.reason:
        return row.reason
    lines = [f"{row.claim.asks}, {row.claim.asked}?"]
    for name, reading in row.readings.items():
        whose = "" if name == TOGETHER else f"{name} "
        note = f" ({reading.note})" if reading.note else ""
        lines.append(f"{row.verdicts[name].symbol} {whose}{row.claim.shown(reading)}{note}")
    return "<br>".join(lines)


def between_marks(text: str) -> str:
    """What lies between the ledger's two marks in a text.

    Raises:
        InputError: the marks are not there, or there twice.
    """
    start, end = MARKS
    found = re.search(rf"{start}\n(.*?)\n?{end}", text, re.DOTALL)
    if text.count(start) != 1 or found is None or "<!--" in found[1]:
        raise InputError(f"the ledger belongs between one line {start} and the next line {end}: put both into the text")
    return found[1]


def write_table(path: Path, ledger: Sequence[Row]) -> None:
    """Put the ledger's table between the marks of a file, and leave all else, and a file that is right, as it was.

    Raises:
        InputError: as `between_marks`.
        SourceError: the file cannot be read or written.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(
            f"cannot read {path}: {error.strerror}; the ledger's table goes into a text with marks"
        ) from error
    table, (start, end) = to_markdown(ledger), MARKS
    if between_marks(text) != table:
        before, _, after = text.partition(f"{start}\n")
        with paths.written_aside(path) as aside:
            aside.write_text(f"{before}{start}\n{table}\n{end}{after.partition(end)[2]}", encoding="utf-8")
