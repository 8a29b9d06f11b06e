"""Numbers kept as JSON: sorted, and for a record rounded to what another machine would find too."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from howlinear.errors import InputError, readable
from howlinear.files import atomic

DIGITS = 4
PLACES = 4
"""Numbers keep four significant digits and at most four decimal places; further digits depend on the processor."""

ALL = 17
"""As many significant digits tell any two numbers of float64 apart."""


def versions() -> dict[str, str]:
    """Return the versions of the packages that the numbers depend on."""
    named = {name: version(name) for name in ("howlinear", "numpy", "scipy", "torch", "transformers")}
    return named | {"python": platform.python_version()}


def save(
    path: Path | str, numbers: Mapping[str, Any], digits: Mapping[str, int] | None = None, exact: bool = False
) -> Path:
    """Write numbers as JSON, atomically: sorted keys, rounded unless `exact`, finite only.

    `numbers` nests mappings and sequences of numbers, strings, arrays or tensors; anything else, NaN and infinity are
    refused by an error that says where. `digits`: key → significant digits of the numbers under it, however small.
    """
    atomic.write_text(path, to_json(_rounded(numbers, "numbers", dict(digits or {}), ALL if exact else None)))
    return Path(path)


def to_json(content: Mapping[str, Any]) -> str:
    """Format as JSON with sorted keys, one per line."""
    return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def load(path: Path | str) -> dict[str, Any]:
    """Read what `save` wrote; a missing file or invalid JSON raises `SourceError`."""
    with readable(f"numbers from {path}", "make them again with make figures"):
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))  # Windows may put a BOM first
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, and numbers have names")
        return content


def _rounded(value: Any, at: str, digits: Mapping[str, int], own: int | None) -> Any:
    """Convert to plain JSON values, floats rounded; `own` is the number of digits given for this place, if any."""
    if isinstance(value, Mapping):
        return {str(key): _rounded(item, f"{at}.{key}", digits, digits.get(key, own)) for key, item in value.items()}
    if hasattr(value, "tolist"):  # a tensor, an array or one of its numbers
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_rounded(item, f"{at}[{place}]", digits, own) for place, item in enumerate(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{at} is {value}: only finite numbers are kept")
        return round_number(value, DIGITS, PLACES) if own is None else round_number(value, own)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise InputError(f"{at} is a {type(value).__name__}, not a number, text, list or mapping")


def round_number(number: float, digits: int, decimals: int | None = None) -> float:
    """Round to `digits` significant digits and at most `decimals` decimal places, without minus zero."""
    if number == 0 or not math.isfinite(number):
        return number + 0.0
    first = math.floor(math.log10(abs(number)))  # the place of its first digit: 0 for units, −1 for tenths
    places = digits - 1 - first
    return round(number, places if decimals is None else min(places, decimals)) + 0.0
