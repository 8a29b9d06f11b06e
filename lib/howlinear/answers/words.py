"""Numbers, intervals and lists in the middle of a sentence."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from math import floor, log10, sqrt
from typing import TypeVar

Answer = TypeVar("Answer", bound=Hashable)

Number = int | float
"""As JSON has them."""

Question = tuple[str, str]
"""What is asked, in plain text, and the answer to it, in Markdown."""

SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def number(value: Number, digits: int = 2, signed: bool = False) -> str:
    """A number with so many decimal places and a minus sign as it is printed; no minus zero."""
    text = f"{round(value, digits) + 0.0:{'+' if signed else ''},.{digits}f}"
    return text.replace("-", "−")


def significant(value: Number, digits: int = 2, signed: bool = False) -> str:
    """A number to so many significant digits, for what may be large or small."""
    places = _places(digits, value)
    return number(round(value, places), max(0, places), signed)


def _places(digits: int, *values: Number) -> int:
    """Decimal places that show the largest of some numbers to so many significant digits."""
    largest = max(abs(value) for value in values)
    if largest == 0:
        return digits
    return digits - 1 - floor(log10(largest))


def percent(share: Number) -> str:
    """A share in whole per cent; what is not nothing, and what is not all, does not read as if it were."""
    if 0 < share < 0.005:
        return "less than 1 %"
    if 0.995 <= share < 1:
        return "more than 99 %"
    return f"{number(100 * share, 0)} %"


def span(values: Iterable[Number], digits: int = 2, signed: bool = False) -> str:
    """Lowest to highest; one number where these read the same."""
    values = list(values)
    low = number(min(values), digits, signed)
    high = number(max(values), digits, signed)
    return low if low == high else f"{low} to {high}"


def percents(shares: Iterable[Number]) -> str:
    """Lowest to highest share."""
    shares = list(shares)
    low = percent(min(shares))
    high = percent(max(shares))
    if low == high:
        return low
    return f"at least {low}" if high.startswith("more than") else f"{low} to {high}"


def estimate(value: Number, low: Number, high: Number, digits: int = 2, signed: bool = False) -> str:
    """A number and, in square brackets, its interval."""
    return f"{number(value, digits, signed)} [{number(low, digits)}, {number(high, digits)}]"


def cost(delta: Number, low: Number, high: Number) -> str:
    """A change with its sign and its interval, to three significant digits of the largest of the three."""
    digits = max(0, _places(3, delta, low, high))
    return estimate(delta, low, high, digits, signed=True)


def joined(parts: Iterable[str]) -> str:
    """A list in words: "a, b and c"; "a; b; and c" where a part has a comma or an "and" of its own."""
    parts = list(parts)
    if len(parts) < 2:
        return "".join(parts)
    unbracketed = [re.sub(r"\(.*?\)|\[.*?\]", "", part) for part in parts]
    if any("," in part or " and " in part for part in unbracketed):
        return f"{'; '.join(parts[:-1])}; and {parts[-1]}"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(count: Number, noun: str) -> str:
    """How many of something: "no block", "one block", "three blocks", "16 blocks"."""
    word = SMALL[int(count)] if count < len(SMALL) else f"{int(count):,}"
    return f"{word} {noun if count <= 1 else noun + 's'}"


def blocks(numbers: Iterable[int]) -> str:
    """Blocks by number: "block 3", "blocks 0, 3 and 11"."""
    named = [str(number) for number in numbers]
    return f"block{'s' if len(named) > 1 else ''} {joined(named)}"


def opened(text: str) -> str:
    """The same with a capital letter."""
    return text[0].upper() + text[1:]


def per_model(clauses: Mapping[str, str], preposition: str = "in") -> str:
    """One clause a model: "0.6 to 0.9 in a and 0.3 to 0.7 in b"; models that share a clause stand together."""
    parts = []
    for clause, models in together(clauses).items():
        each = "each of " if preposition == "of" and len(models) > 1 else ""  # counts are of one model, not of all
        parts.append(f"{clause} {preposition} {each}{joined(models)}")
    return joined(parts)


def together(answers: Mapping[str, Answer]) -> dict[Answer, list[str]]:
    """Answer → the models that share it, in the order in which the answers come."""
    models: dict[Answer, list[str]] = {}
    for model, answer in answers.items():
        models.setdefault(answer, []).append(model)
    return models


def chance(count: int) -> float:
    """The size that a rank correlation of so many pairs has by chance in one of twenty cases, about 1.96 / √(n − 1)."""
    return 1.96 / sqrt(max(1, count - 1))


def no_loss(models: Iterable[str]) -> str:
    """That these models predict no next token."""
    models = list(models)
    verb = "predict" if len(models) > 1 else "predicts"
    return f"{joined(models)} {verb} no next token, so no swap of a block has a cost in perplexity."
