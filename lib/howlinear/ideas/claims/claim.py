"""Claims as data, and the one rule that judges them.

`paper/claims.toml` states each finding of arXiv 2606.19379: what is said, in which section, the paper's own numbers,
and the number that it is judged by. The file was fixed before any model other than the embedded ones was run, and its
`fingerprint` goes into every result that is judged by it. `paper/claims_ours.toml` adds claims of our own on what the
paper leaves open; they are judged in the same way, and listed separately. A verdict is a function of that number's
95 % interval and the claim's threshold; none is set by hand. A two-sided claim ("r ≈ 0") is a test of equivalence: the
whole interval must lie inside the band (Schuirmann 1987, "A comparison of the two one-sided tests procedure"; we take
the 95 % interval, which is stricter than his 90 %).
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import AfterValidator, ConfigDict, StringConstraints, ValidationError, model_validator

from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.files import paths
from howlinear.ideas.claims.numbers import STATISTICS

SOURCE = paths.ROOT / "paper" / "claims.toml"
OURS = paths.ROOT / "paper" / "claims_ours.toml"

Direction = Literal["above", "below", "within"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)


@dataclass(frozen=True)
class Unit:
    """Format of numbers of a unit: multiplied by `factor`, with `digits` decimal places, followed by `suffix`."""

    factor: int = 1
    digits: int = 2
    suffix: str = ""

    def format(self, number: float) -> str:
        """Format a number without its suffix, as in `7.6` for 0.076 in per cent."""
        return f"{self.factor * number:z.{self.digits}f}"  # z: no negative zero


UNITS = {
    "R²": Unit(),
    "0.001 R²": Unit(digits=3),
    "r": Unit(),
    "share": Unit(factor=100, digits=0, suffix=" %"),
    "%": Unit(factor=100, digits=1, suffix=" %"),
    "rank": Unit(digits=0),
    "times": Unit(digits=1, suffix=" ×"),
    "PPL": Unit(digits=1),
}


class Verdict(StrEnum):
    """What a model's results say of a claim, for that model only: a small model cannot refute a claim about GPT-2."""

    HOLDS = "holds here"
    NOT = "does not hold here"
    MIXED = "mixed"
    UNTESTABLE = "not testable here"
    NO_POWER = "no power here"

    @property
    def symbol(self) -> str:
        """One character, for tables and figures."""
        return MARKS[self]


DECIDED = (Verdict.HOLDS, Verdict.NOT, Verdict.MIXED)
"""Verdicts based on an interval; the others say why there is none."""

MARKS = dict(zip((*DECIDED, Verdict.UNTESTABLE, Verdict.NO_POWER), "✓✗~–?", strict=True))


def _known(names: Iterable[str]) -> AfterValidator:
    """Return a validator that accepts only the given names."""

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return name

    return AfterValidator(check)


Text = Annotated[str, StringConstraints(pattern=r"\S")]

Scope = Literal["every model", "some model"]
Kind = Literal["finding", "falsifier", "press", "ours"]


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Claim:
    """One row of the ledger, as `claims.toml` states it; a `ValueError` says what is wrong with a value."""

    id: Text
    section: Text  # where the paper says it, as `§5.3`; for others' claims, who they are; or `ours`
    sentence: Text  # what is claimed, in our words and with the paper's scope
    paper: Text  # what the paper gives for it, in words
    notebook: Annotated[str, StringConstraints(pattern=r"^\d\d_\w+$")]  # stem of the notebook whose results are read
    statistic: Annotated[str, _known(STATISTICS)]  # the number that it is judged by
    asks: Text  # what that number is, in words
    threshold: float  # value that the number must clear
    direction: Direction  # `within` is ± threshold
    unit: Annotated[str, _known(UNITS)]
    why: Text  # reason for this threshold
    scope: Scope = "every model"  # whether the paper says it of every model or shows it in some
    kind: Kind = "finding"  # a finding of the paper, a falsifier of its main one, the press's claim, or our own
    quoted: dict[str, float] = field(default_factory=dict)  # the paper's own values, if only its text gives them
    unpublished: str = ""  # why the paper publishes no number to compare with; empty if it does

    @model_validator(mode="after")
    def _findings_have_a_section(self) -> Claim:
        if self.kind == "finding" and not self.section.startswith(("§", "title")):
            raise ValueError(f"section = {self.section!r} of a finding: give it as §5.3, or title")
        if self.quoted and self.unpublished:
            raise ValueError("both quoted and unpublished: the paper gives a number or it does not")
        return self

    @model_validator(mode="after")
    def _threshold_can_be_cleared(self) -> Claim:
        if not math.isfinite(self.threshold) or (self.direction == "within" and self.threshold <= 0):
            raise ValueError(f"threshold = {self.threshold} with direction {self.direction}")
        return self

    def verdict(self, estimate: Estimate) -> Verdict:
        """Judge a number against this claim's threshold."""
        return verdict(estimate.low, estimate.high, self.threshold, self.direction)

    def together(self, verdicts: Iterable[Verdict]) -> Verdict:
        """Combine the verdicts of several models: theirs if they agree, not testable if there are none, else mixed.

        A claim of scope `some model` holds if it holds in one of them.
        """
        different = set(verdicts)
        if not different:
            return Verdict.UNTESTABLE
        if self.scope == "some model" and Verdict.HOLDS in different:
            return Verdict.HOLDS
        return different.pop() if len(different) == 1 else Verdict.MIXED

    def show(self, estimate: Estimate) -> str:
        """Format a number in the claim's unit, as in `0.36 [0.32, 0.40]`; without an interval if it has none."""
        if estimate.low == estimate.high:
            return self.show_number(estimate.value)
        unit = UNITS[self.unit]
        return f"{self.show_number(estimate.value)} [{unit.format(estimate.low)}, {unit.format(estimate.high)}]"

    def show_number(self, value: float) -> str:
        """Format a bare number in the claim's unit, as in `7.6 %`."""
        unit = UNITS[self.unit]
        return f"{unit.format(value)}{unit.suffix}"

    @property
    def asked(self) -> str:
        """Threshold as the end of a sentence, as in `above 0.25`."""
        unit = UNITS[self.unit]
        sign = "± " if self.direction == "within" else ""
        return f"{self.direction} {sign}{unit.format(self.threshold)}{unit.suffix}"

    @property
    def question(self) -> str:
        """What the number is and what it must clear, as in `largest gain of any block, below 0.05?`."""
        return f"{self.asks}, {self.asked}?"


def margin(low: float, high: float, threshold: float, direction: str) -> tuple[float, float]:
    """Return how far both ends of an interval lie beyond a threshold, towards the side on which the claim holds."""
    if not low <= high:
        raise InputError(f"no interval runs from {low} to {high}")
    match direction:
        case "above":
            return low - threshold, high - threshold
        case "below":
            return threshold - high, threshold - low
        case "within":
            nearest = max(low, -high, 0.0)  # the least |x| of the interval, 0 if it holds 0
            farthest = max(-low, high)
            return threshold - farthest, threshold - nearest
    raise InputError(f"direction {direction!r} is none of {', '.join(DIRECTIONS)}")


def verdict(low: float, high: float, threshold: float, direction: str) -> Verdict:
    """Judge an interval: holds if all of it clears the threshold, does not hold if none of it does, else mixed."""
    worst, best = margin(low, high, threshold, direction)
    if worst > 0:
        return Verdict.HOLDS
    if best < 0:
        return Verdict.NOT
    return Verdict.MIXED  # the interval straddles the threshold


def fingerprint(path: Path = SOURCE) -> str:
    """Return the SHA-256 of the file of claims, with line ends as in the repository."""
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()  # any line end is read as a newline


def load_claims() -> list[Claim]:
    """Load the paper's claims, followed by ours."""
    return [*parse(SOURCE.read_text(encoding="utf-8")), *parse(OURS.read_text(encoding="utf-8"))]


def parse(text: str) -> list[Claim]:
    """Parse claims from TOML."""
    (tables,) = tomllib.loads(text).values()  # [[claim]] and nothing else
    claims = [_claim(table) for table in tables]
    count = Counter(claim.id for claim in claims)
    twice = sorted(name for name, times in count.items() if times > 1)
    if twice:
        raise InputError(f"claims that come twice: {', '.join(twice)}; give each an id of its own")
    return claims


def _claim(table: dict[str, Any]) -> Claim:
    """Make a claim from its table in the file; an `InputError` says in one line what is wrong with it."""
    try:
        return Claim(**table)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()]
        name = table.get("id", "without an id")
        raise InputError(f"claim {name!r}: {'; '.join(faults).replace(': Value error,', '')}") from error
