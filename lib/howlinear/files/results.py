"""Numbers that last: small, sorted JSON, and a check that they have not moved.

`python -m howlinear.files.results OLD NEW` compares two folders of results and fails if a number left its tolerance.
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from howlinear.errors import InputError, SourceError
from howlinear.files import atomic

DIGITS = 4
FINEST = 1e-4
"""A number is recorded to four significant digits, and no finer than this: what lies below is the processor's."""

TOLERANCE = 1e-3
"""A recorded number may differ between machines by this much, relative to itself or to 1, whichever is larger.
The rows are float32, so a different processor rounds a forward pass differently; a result states a wider
tolerance of its own for keys that amplify this, and they are recorded no finer than that tolerance."""

NOTE = "note"
"""A key whose words are not compared. They say which block or pair an extreme is of: of two that lie as close as a
tolerance, another processor may find the other first. The extreme itself is compared."""


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    named = {name: version(name) for name in ("howlinear", "numpy", "scipy", "torch", "transformers")}
    return named | {"python": platform.python_version()}


def save(
    path: Path | str,
    numbers: Mapping[str, Any],
    tolerance: Mapping[str, float] | None = None,
    digits: Mapping[str, int] | None = None,
) -> Path:
    """Write `numbers` as JSON: sorted keys, `rounded`, finite only.

    Args:
        path: the file; replaced in one step.
        numbers: nested mappings and sequences of numbers, strings, arrays or tensors.
        tolerance: key → tolerance for numbers under that key, where `TOLERANCE` is too tight.
        digits: key → significant digits of numbers under that key, however small they are.

    Raises:
        InputError: a number is NaN or infinite; says where.
        SourceError: the file cannot be written.
    """
    content = rounded(_plain(numbers, "results"), tolerance, digits)
    if tolerance:
        content["tolerance"] = dict(tolerance)
    text = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False)
    with atomic.written_aside(path) as aside:
        aside.write_text(text + "\n", encoding="utf-8")
    return Path(path)


def rounded(
    values: Any,
    tolerance: Mapping[str, float] | float | None = None,
    digits: Mapping[str, int] | int | None = None,
) -> Any:
    """The same with numbers rounded to what another machine would find too, so that files and figures agree.

    A number keeps four significant digits, none of them below `FINEST`. A stated tolerance makes the steps coarser, to
    the power of ten that it allows; stated digits are counted from the number's own size, however small it is.

    Args:
        values: a number, an array, a data frame (its columns are the keys), or mappings and lists of these; anything
            else stays as it is. Integers are exact, and stay.
        tolerance: of all numbers, or key → of the numbers under that key, as `save` takes it; the tightest counts.
        digits: of all numbers, or by key; goes before tolerance.

    Returns:
        What came in, rounded; a copy.
    """
    if isinstance(values, Mapping):
        return {
            key: rounded(item, _under(key, tolerance, min), _under(key, digits, max)) for key, item in values.items()
        }
    if isinstance(values, list | tuple):
        return [rounded(item, tolerance, digits) for item in values]
    if isinstance(values, pd.DataFrame):
        if values.shape[1] == 0:
            return values.copy()
        columns = [rounded(values.iloc[:, i], tolerance, digits) for i in range(values.shape[1])]  # names may be twice
        return pd.concat(columns, axis=1).set_axis(values.columns, axis=1)
    if isinstance(values, pd.Series):
        numbers = rounded(values.to_numpy(), _under(values.name, tolerance, min), _under(values.name, digits, max))
        return pd.Series(numbers, index=values.index, name=values.name)
    if isinstance(values, torch.Tensor):
        return torch.from_numpy(rounded(values.numpy(), tolerance, digits))
    if isinstance(values, np.ndarray):
        if values.dtype == object:
            return np.array([rounded(item, tolerance, digits) for item in values], dtype=object)
        if not np.issubdtype(values.dtype, np.floating):
            return values.copy()
        flat = [rounded(float(item), tolerance, digits) for item in values.flat]
        return np.array(flat, dtype=values.dtype).reshape(values.shape)
    if isinstance(values, float | np.floating):
        # what is stated for other keys only is not meant for this number
        own_tolerance = None if isinstance(tolerance, Mapping) else tolerance
        own_digits = None if isinstance(digits, Mapping) else digits
        return _rounded(float(values), own_tolerance, own_digits)
    return values


def _under(key: Any, stated: Mapping | float | int | None, pick: Callable) -> Mapping | float | int | None:
    """What is stated for the numbers under a key: a value of its own, or what was stated for all around it."""
    if not isinstance(stated, Mapping):
        return stated
    parts = key if isinstance(key, tuple) else (key,)
    own = [stated[part] for part in parts if part in stated]
    return pick(own) if own else stated


def _rounded(number: float, tolerance: float | None, digits: int | None) -> float:
    """A number to as many decimal places as `rounded` says."""
    if number == 0 or not math.isfinite(number):
        return number
    exponent = math.floor(math.log10(abs(number)))  # of its first digit
    if digits is not None:
        places = digits - 1 - exponent
    else:
        places = min(DIGITS - 1 - exponent, _places(FINEST))
        if tolerance is not None:
            step = tolerance * max(1.0, 10.0**exponent)  # a tolerance is relative to the number or to 1
            places = min(places, _places(step))
    return round(number, places) + 0.0  # and no minus zero


def _places(step: float) -> int:
    """Decimal places at which the last digit counts at most `step`; of 1e-4 four, though its logarithm may be below."""
    return -math.floor(math.log10(step) + 1e-9)


def load(path: Path | str) -> dict[str, Any]:
    """Read what `save` wrote.

    Raises:
        SourceError: no such file, or not JSON; says which notebook makes it.
    """
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourceError(f"no results at {path}: run notebook {path.stem} first, or make figures") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read results {path}: {error}; make them again with make figures") from error


def moved(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two results beyond the tolerance that the old one states, a line each."""
    before = _numbers(old)
    after = _numbers(new)
    stated = old.get("tolerance", {})
    lines = [f"{'.'.join(key)}: gone" for key in before.keys() - after.keys()]
    lines += [f"{'.'.join(key)}: new" for key in after.keys() - before.keys()]
    for key in before.keys() & after.keys():
        tolerance = min((stated[part] for part in key if part in stated), default=TOLERANCE)
        if not _same(before[key], after[key], tolerance):
            lines.append(f"{'.'.join(key)}: {before[key]} → {after[key]}")
    return sorted(lines)


def _numbers(results: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Everything that is compared, by its keys from the top down: no version, no tolerance, and no note."""
    content = {key: value for key, value in results.items() if key not in ("versions", "tolerance")}
    return {at: value for at, value in _leaves(content) if at[-1] != NOTE}


def _same(before: Any, after: Any, tolerance: float) -> bool:
    if isinstance(before, float) or isinstance(after, float):
        # what is recorded in steps of its tolerance may be a step off: 0.71 − 0.7 is above 0.01 as floats have it
        most = tolerance * max(1.0, abs(before)) * (1 + 1e-9)
        return isinstance(after, int | float) and abs(before - after) <= most
    return before == after


def _leaves(tree: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*at, str(key)))
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from _leaves(value, (*at, str(i)))
    else:
        yield at, tree


def _plain(value: Any, at: str) -> Any:
    """The same as JSON's own types, and finite."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{at}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{at}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{at} is {value}: only finite numbers are recorded")
        return value
    if value is None or isinstance(value, str | int | bool):
        return value
    raise InputError(f"{at} is a {type(value).__name__}: only numbers, strings, lists and mappings are recorded")


def main(old: str, new: str) -> int:
    """Compare two folders of results; print what moved; 1 if anything did."""
    names = sorted({path.name for folder in (old, new) for path in Path(folder).glob("*.json")})
    lines = []
    for name in names:
        lines += [f"{name}: {line}" for line in _compare_files(Path(old) / name, Path(new) / name)]
    if lines:
        print("\n".join(lines))
    else:
        print(f"{len(names)} results agree within their tolerance")
    return 1 if lines else 0


def _compare_files(old: Path, new: Path) -> list[str]:
    missing = [f"{path} is missing" for path in (old, new) if not path.exists()]
    if missing:
        return missing
    return moved(load(old), load(new))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
