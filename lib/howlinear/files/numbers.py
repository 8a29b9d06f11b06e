"""Numbers that last as JSON: small, sorted, rounded to what another machine would find too."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic

DIGITS = 4
PLACES = 4
"""A number is kept to four significant digits, and to no more than four places: what lies below is the processor's."""


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    named = {name: version(name) for name in ("howlinear", "numpy", "scipy", "torch", "transformers")}
    return named | {"python": platform.python_version()}


def save(path: Path | str, numbers: Mapping[str, Any], digits: Mapping[str, int] | None = None) -> Path:
    """Write numbers as JSON, the file in one step: sorted keys, rounded, finite only.

    They are nested mappings and sequences of numbers, strings, arrays or tensors; all else is refused, as are NaN and
    infinity, and the error says where. `digits`: key → significant digits of the numbers under it, however small.
    """
    atomic.write_text(path, to_json(_rounded(numbers, "numbers", dict(digits or {}), None)))
    return Path(path)


def to_json(content: Mapping[str, Any]) -> str:
    """JSON as the project keeps it: sorted keys, a line each."""
    return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def load(path: Path | str) -> dict[str, Any]:
    """Read what `save` wrote; a file that is not there, or no JSON, is refused."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read numbers from {path}: {error}; make them again with make figures") from error


def _rounded(value: Any, at: str, digits: Mapping[str, int], own: int | None) -> Any:
    """Plain values for JSON, each float rounded; `own` are the digits that are stated for where it lies."""
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
    """A number to so many significant digits, none of them beyond so many decimal places; no minus zero."""
    if number == 0 or not math.isfinite(number):
        return number + 0.0
    first = math.floor(math.log10(abs(number)))  # the place of its first digit: 0 for units, −1 for tenths
    places = digits - 1 - first
    return round(number, places if decimals is None else min(places, decimals)) + 0.0
