"""Numbers that last: small, sorted JSON with the versions that made them, and a check that they have not moved.

`python -m howlinear.record OLD NEW` compares two folders of results and fails if a number left its tolerance.
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from howlinear import paths
from howlinear.errors import InputError, SourceError

DIGITS = 7
TOLERANCE = 1e-3
"""A recorded number may differ between machines by this much, relative to itself or to 1, whichever is larger.
The rows are float32, so a different processor rounds a forward pass differently; a result states a wider
tolerance of its own for keys that amplify this."""


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    named = {name: version(name) for name in ("howlinear", "numpy", "scipy", "torch", "transformers")}
    return named | {"python": platform.python_version()}


def save(path: Path | str, numbers: Mapping[str, Any], tolerance: Mapping[str, float] | None = None) -> Path:
    """Write `numbers` as JSON: sorted keys, seven significant digits, finite only.

    Args:
        path: the file; replaced in one step.
        numbers: nested mappings and sequences of numbers, strings, arrays or tensors.
        tolerance: key → tolerance for numbers under that key, where `TOLERANCE` is too tight.

    Raises:
        InputError: a number is NaN or infinite; says where.
        SourceError: the file cannot be written.
    """
    content = {**numbers, "versions": versions()} | ({"tolerance": dict(tolerance)} if tolerance else {})
    text = json.dumps(_plain(content, "results"), sort_keys=True, indent=1, ensure_ascii=False)
    with paths.written_aside(path) as aside:
        aside.write_text(text + "\n", encoding="utf-8")
    return Path(path)


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
    tolerance = old.get("tolerance", {})
    skip = ("versions", "tolerance")
    before, after = (dict(_leaves({k: v for k, v in tree.items() if k not in skip})) for tree in (old, new))
    lines = [f"{'.'.join(key)}: gone" for key in before.keys() - after.keys()]
    lines += [f"{'.'.join(key)}: new" for key in after.keys() - before.keys()]
    for key in before.keys() & after.keys():
        if not _same(
            before[key], after[key], min((tolerance[part] for part in key if part in tolerance), default=TOLERANCE)
        ):
            lines.append(f"{'.'.join(key)}: {before[key]} → {after[key]}")
    return sorted(lines)


def _same(before: Any, after: Any, tolerance: float) -> bool:
    if isinstance(before, float) or isinstance(after, float):
        return isinstance(after, int | float) and abs(before - after) <= tolerance * max(1.0, abs(before))
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
    """The same as JSON's own types, finite and rounded."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{at}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{at}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{at} is {value}: only finite numbers are recorded")
        return float(f"{value:.{DIGITS}g}")
    if value is None or isinstance(value, str | int | bool):
        return value
    raise InputError(f"{at} is a {type(value).__name__}: only numbers, strings, lists and mappings are recorded")


def main(old: str, new: str) -> int:
    """Compare two folders of results; print what moved; 1 if anything did."""
    stems = sorted({path.name for folder in (old, new) for path in Path(folder).glob("*.json")})
    lines = [f"{name}: {line}" for name in stems for line in _compare_files(Path(old) / name, Path(new) / name)]
    print("\n".join(lines) or f"{len(stems)} results agree within their tolerance")
    return 1 if lines or not stems else 0


def _compare_files(old: Path, new: Path) -> list[str]:
    missing = [f"{path} is missing" for path in (old, new) if not path.exists()]
    return missing or moved(load(old), load(new))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
