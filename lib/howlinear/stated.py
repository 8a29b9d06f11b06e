"""Claims as data, and the one rule that judges them.

`paper/claims.toml` states each claim of arXiv 2606.19379: what is said, where, and the number it is judged by. A
verdict is a function of that number's 95 % interval and the claim's threshold; nothing sets one by hand. A two-sided
claim ("r ≈ 0") is a test of equivalence: the whole interval must lie inside the band (Schuirmann 1987, "A comparison of
the two one-sided tests procedure"; ours takes the 95 % interval, which is stricter than his 90 %).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from howlinear import paths
from howlinear.contrasts import Reading
from howlinear.errors import InputError, SourceError
from howlinear.evidence import STATISTICS

SOURCE = paths.ROOT / "paper" / "claims.toml"
DIRECTIONS = ("above", "below", "within")
UNITS = {"R²": (1, 2, ""), "r": (1, 2, ""), "share": (100, 0, " %"), "%": (100, 1, " %"), "rank": (1, 1, "")}
"""Unit → what a number is multiplied by to show it, its digits, and what follows it."""


class Verdict(StrEnum):
    """What the results say of a claim."""

    REPRODUCED = "reproduced"
    NOT = "not reproduced"
    MIXED = "mixed"
    UNTESTABLE = "not testable here"

    @property
    def symbol(self) -> str:
        """One character, for tables and figures."""
        return dict(zip(Verdict, "✓✗~–", strict=True))[self]


@dataclass(frozen=True)
class Claim:
    """One row of the ledger, as `claims.toml` states it.

    Attributes:
        id: its short name.
        sentence: what is claimed.
        where: where it is said.
        paper: the paper's value, in words.
        notebook: stem of the notebook that shows it, whose results are read.
        statistic: name of the number in `evidence.STATISTICS`.
        asks: what that number is, in words.
        threshold: what it must clear.
        direction: `above`, `below`, or `within` ± threshold.
        unit: one of `UNITS`.
        why: why this threshold.
    """

    id: str
    sentence: str
    where: str
    paper: str
    notebook: str
    statistic: str
    asks: str
    threshold: float
    direction: str
    unit: str
    why: str

    def __post_init__(self):
        bad = [each.name for each in fields(self) if each.type == "str" and not str(getattr(self, each.name)).strip()]
        known = {"statistic": STATISTICS, "direction": DIRECTIONS, "unit": UNITS}
        bad += [f"{key} = {getattr(self, key)!r}" for key, names in known.items() if getattr(self, key) not in names]
        if not re.fullmatch(r"\d\d_\w+", self.notebook):
            bad.append(f"notebook = {self.notebook!r}")
        positive = self.direction != "within" or self.threshold > 0
        if not (math.isfinite(self.threshold) and positive):
            bad.append(f"threshold = {self.threshold} with direction {self.direction}")
        if bad:
            raise InputError(f"claim {self.id!r}: cannot use {'; '.join(bad)}; see the head of {SOURCE.name}")

    @property
    def falsifies(self) -> bool:
        """Whether it speaks against the paper where it holds, by its id."""
        return self.id.startswith("falsifier")

    def verdict(self, reading: Reading) -> Verdict:
        """`verdict` of a reading against this claim's threshold."""
        return verdict(reading.low, reading.high, self.threshold, self.direction)

    def shown(self, reading: Reading) -> str:
        """A reading in the claim's unit, as in `0.36 [0.32, 0.40]`."""
        factor, digits, unit = UNITS[self.unit]
        value, low, high = (f"{factor * end:z.{digits}f}" for end in (reading.value, reading.low, reading.high))
        return f"{value}{unit} [{low}, {high}]"

    @property
    def asked(self) -> str:
        """Its threshold as a sentence's end, as in `above 0.25`."""
        factor, digits, unit = UNITS[self.unit]
        sign = "± " if self.direction == "within" else ""
        return f"{self.direction} {sign}{factor * self.threshold:.{digits}f}{unit}"


def verdict(low: float, high: float, threshold: float, direction: str) -> Verdict:
    """Reproduced if the whole interval clears the threshold, not reproduced if it all lies beyond it the other way.

    Args:
        low: lower end of the interval.
        high: upper end.
        threshold: what it must clear; for `within`, half of the band around 0.
        direction: `above`, `below` or `within`.

    Raises:
        InputError: an unknown direction, or ends that are no interval.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"direction {direction!r} is none of {', '.join(DIRECTIONS)}")
    if not low <= high:
        raise InputError(f"no interval runs from {low} to {high}")
    clears, fails = {
        "above": (low > threshold, high < threshold),
        "below": (high < threshold, low > threshold),
        "within": (-threshold < low and high < threshold, low > threshold or high < -threshold),
    }[direction]
    return Verdict.REPRODUCED if clears else Verdict.NOT if fails else Verdict.MIXED


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for several: theirs if they agree, else mixed; not testable if there are none."""
    found = set(verdicts) or {Verdict.UNTESTABLE}
    return found.pop() if len(found) == 1 else Verdict.MIXED


def parse(text: str) -> list[Claim]:
    """Claims from TOML.

    Raises:
        InputError: no TOML, an unknown or missing key, a value that cannot be, or an id that comes twice.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the claims are no TOML: {error}") from error
    tables = tree.get("claim")
    if set(tree) != {"claim"} or not isinstance(tables, list):
        raise InputError(f"the claims must be [[claim]] tables and nothing else; found {', '.join(tree) or 'nothing'}")
    found = [_claim(table) for table in tables]
    twice = {one.id for i, one in enumerate(found) if one.id in {other.id for other in found[:i]}}
    if twice:
        raise InputError(f"claims that come twice: {', '.join(sorted(twice))}; give each an id of its own")
    return found


def _claim(table: Any) -> Claim:
    if not isinstance(table, dict):
        raise InputError(f"a claim must be a [[claim]] table, not {table!r}")
    kinds = {each.name: float if each.type == "float" else str for each in fields(Claim)}
    name = table.get("id", "without an id")
    if "verdict" in table:
        raise InputError(f"claim {name!r} sets a verdict: verdicts are computed from results; remove it")
    if wrong := sorted(table.keys() ^ kinds.keys()):
        what = (f"{key} is {'unknown' if key in table else 'missing'}" for key in wrong)
        raise InputError(f"claim {name!r}: {', '.join(what)}; every claim has {', '.join(kinds)}")
    table = {key: float(value) if type(value) is int else value for key, value in table.items()}
    if odd := [f"{key} = {value!r}" for key, value in table.items() if type(value) is not kinds[key]]:
        raise InputError(f"claim {name!r}: {', '.join(odd)}: threshold is a number, all else text")
    return Claim(**table)


def load_claims(path: Path = SOURCE) -> list[Claim]:
    """The claims in a file; errors as in `parse`, and `SourceError` where it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"cannot read claims {path}: {error.strerror}; they lie in paper/claims.toml") from error
