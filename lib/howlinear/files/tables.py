"""Results as tidy tables: written once, read by everyone.

`results/<run profile>/<notebook>/` holds one CSV per table, and a `run.json` with the settings and origin of the run.
A row is an observation: key columns first, then a column per quantity; an interval is `name`, `name_low`, `name_high`.
`columns.yaml`, next to this file, is the data dictionary: what each column means, its unit, its recorded digits, and by
how much it may differ between machines. Rounding, reading and the comparison of runs follow from it.

`python -m howlinear.files.tables OLD NEW` compares two folders of results and fails if a number left its tolerance.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pydantic
import yaml
from pydantic import ConfigDict

from howlinear.errors import InputError, SourceError, readable
from howlinear.files import atomic, paths
from howlinear.files.numbers import load, round_number, to_json

DICTIONARY = Path(__file__).with_name("columns.yaml")
COMMON = "common"
RUN = "run.json"
ENDS = ("_low", "_high")
"""Suffixes of the columns that hold the ends of an interval."""


def with_ends(name: str) -> list[str]:
    """Return the names of the three columns of a number with its interval."""
    return [name, *(name + end for end in ENDS)]


def stack(tables: Iterable[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Concatenate the tables of several models, in the given columns; without rows if no table has any."""
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True)[list(columns)] if filled else pd.DataFrame(columns=list(columns))


# --- the data dictionary


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Column:
    """Entry of the data dictionary for a column.

    Attributes:
        meaning: what the column holds, in words.
        unit: unit of its numbers, as in `R²`; empty for words and plain counts.
        type: type of its cells. Cells without a value are empty, except in key columns.
        key: whether it is one of the columns that identify a row.
        digits: significant digits that a number is recorded to.
        decimals: most decimal places that a number is recorded to.
        tolerance: by how much a number may differ between machines, relative to itself or to 1, whichever is larger.
            Rows are float32, so another processor rounds a forward pass differently, and searches amplify it.
        compared: whether runs are compared by it; false if it only says which of several near ties is the extreme.
    """

    meaning: str
    unit: str = ""
    type: Literal["number", "integer", "text", "flag"] = "number"
    key: bool = False
    digits: int = 4
    decimals: int = 4
    tolerance: float = 1e-3
    compared: bool = True


@cache
def dictionary() -> dict[str, dict[str, Column]]:
    """Read the data dictionary: `common` or a notebook → column name, or `table.column` → its entry."""
    sections = yaml.safe_load(DICTIONARY.read_text(encoding="utf-8"))
    return {
        section: {name: Column(**entry) for name, entry in (columns or {}).items()}
        for section, columns in sections.items()
    }


def describe_column(stem: str, table: str, name: str) -> Column:
    """Look up the entry of a column, or of the number whose interval it ends; a column without an entry is refused."""
    own, common = dictionary().get(stem, {}), dictionary()[COMMON]
    of_number = re.sub(f"({'|'.join(ENDS)})$", "", name)
    for candidate in dict.fromkeys((name, of_number)):
        for section, key in ((own, f"{table}.{candidate}"), (own, candidate), (common, candidate)):
            if key in section:
                return section[key]
    raise InputError(f"column {name!r} of table {table!r} of {stem} is not in {DICTIONARY.name}: say there what it is")


# --- rounding, once


def as_recorded(table: pd.DataFrame, stem: str, name: str) -> pd.DataFrame:
    """Return a table as it will be read back from disk: columns checked, numbers rounded by the data dictionary.

    The index is dropped. A column that the dictionary lacks, an infinite number, and keys that do not identify rows
    are refused.
    """
    described = {column: describe_column(stem, name, column) for column in table.columns}
    recorded = table.reset_index(drop=True)
    for column, about in described.items():
        if about.type == "number":
            numbers = pd.to_numeric(recorded[column]).astype("float64")
            if np.isinf(numbers).any():
                raise InputError(f"{stem}, table {name}: {column} is infinite in row {int(np.isinf(numbers).argmax())}")
            recorded[column] = [round_number(number, about.digits, about.decimals) for number in numbers]
    keys = [column for column, about in described.items() if about.key]
    if recorded.duplicated(keys or None).any():
        twice = recorded[recorded.duplicated(keys or None)].iloc[0].to_dict()
        raise InputError(f"{stem}, table {name}: two rows have the same {', '.join(keys) or 'content'}: {twice}")
    return _parse(_print(recorded), stem, name)


def _print(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, lineterminator="\n")


def _parse(text: str, stem: str, name: str) -> pd.DataFrame:
    types = {"number": "float64", "integer": "Int64", "text": "str", "flag": "boolean"}
    header = text.partition("\n")[0]
    dtypes = {column: types[describe_column(stem, name, column).type] for column in header.split(",")}
    # only an empty cell is missing: a text may well be "None" or "NA"
    table = pd.read_csv(io.StringIO(text), dtype=dtypes, keep_default_na=False, na_values=[""])
    for column in table.columns:  # plain types where there is no gap
        if isinstance(table[column].dtype, pd.Int64Dtype | pd.BooleanDtype) and not table[column].isna().any():
            table[column] = table[column].astype("int64" if dtypes[column] == "Int64" else "bool")
    return table


# --- reading and writing


class Results(dict[str, pd.DataFrame]):
    """Results of a notebook: its tables by name.

    Attributes:
        stem: stem of the notebook, as in `02_ceilings`.
        run: content of `run.json`: `settings`, and the origin of the numbers.
    """

    def __init__(self, stem: str, tables: Mapping[str, pd.DataFrame], run: Mapping[str, Any] | None = None):
        super().__init__(tables)
        self.stem, self.run = stem, run or {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the run: `models`, `corpora`, `rows`, `seq_len`, `seed` and the notebook's own."""
        return self.run.get("settings", {})

    def __missing__(self, name: str) -> pd.DataFrame:
        raise SourceError(f"{self.stem} has no table {name!r}: {', '.join(sorted(self))}")


def write(folder: Path, tables: Mapping[str, pd.DataFrame], settings: Mapping[str, Any]) -> None:
    """Write a notebook's results, with tables from `as_recorded`, to `folder`, atomically.

    The origin of the numbers in `run.json` is kept; `provenance.record` rewrites it if the numbers have changed.
    """
    run = load(folder / RUN) if (folder / RUN).is_file() else {}
    with atomic.folder_aside(folder) as aside:
        for name, table in tables.items():
            (aside / f"{name}.csv").write_text(_print(table), encoding="utf-8")
        (aside / RUN).write_text(to_json(run | {"settings": dict(settings)}), encoding="utf-8")


def read(folder: Path) -> Results:
    """Read the results that `write` left in a folder; if they are missing or damaged, the error says what to run."""
    if not (folder / RUN).is_file():
        raise SourceError(f"no results in {folder}: run notebook {folder.name} first, or make figures")
    with readable(f"results in {folder}", "make them again with make figures"):
        texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.csv"))}
        return from_texts(folder.name, texts, load(folder / RUN))


def from_texts(stem: str, texts: Mapping[str, str], run: Mapping[str, Any]) -> Results:
    """Build results from the content of their CSV files, given by table name."""
    return Results(stem, {name: _parse(text, stem, name) for name, text in texts.items()}, run)


def results(profile: str | Path, stem: str) -> Results:
    """Load what a notebook found on a run profile: `results("public", "02_ceilings")["blocks"]` is a data frame.

    Args:
        profile: a folder that holds results of this notebook, or the name of a run profile.
        stem: stem of the notebook, as in `02_ceilings`.

    Raises:
        SourceError: no such results.
        InputError: `profile` is neither a name nor a folder, or `stem` is not a string.
    """
    if not isinstance(profile, str | Path) or not isinstance(stem, str):
        raise InputError(f"results of {profile!r} and {stem!r}: give a run profile or a folder, and a notebook's stem")
    folder = Path(os.path.expanduser(profile)) / stem  # a name like ~x stays as it is
    if isinstance(profile, str) and not os.path.isfile(folder / RUN):  # False for a name that no file can have
        folder = paths.results(profile) / stem
    return read(folder)


# --- comparing two runs


def differences(old: Results, new: Results) -> list[str]:
    """List where two results differ beyond a column's tolerance, one line each; rows are matched by their keys."""
    lines = [f"{name}: gone" for name in old.keys() - new.keys()] + [f"{name}: new" for name in new.keys() - old.keys()]
    for name in sorted(old.keys() & new.keys()):
        lines += _table_differences(old.stem, name, old[name], new[name])
    return lines


def _table_differences(stem: str, name: str, old: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    if set(old.columns) != set(new.columns):
        return [f"{name}: columns {', '.join(old.columns)} → {', '.join(new.columns)}"]
    described = {column: describe_column(stem, name, column) for column in old.columns}
    keys = [column for column, about in described.items() if about.key]
    old, new = (table.set_index(keys) if keys else table for table in (old, new))
    lines = [f"{name}, {_at(key)}: gone" for key in old.index.difference(new.index)]
    lines += [f"{name}, {_at(key)}: new" for key in new.index.difference(old.index)]
    both = old.index.intersection(new.index)
    for column in old.columns:
        about = described[column]
        if about.compared:
            pairs = zip(both, old.loc[both, column], new.loc[both, column], strict=True)
            lines += [
                f"{name}, {_at(key)}, {column}: {before} → {after}"
                for key, before, after in pairs
                if not _same(before, after, about.tolerance)
            ]
    return lines


def _at(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _same(before: Any, after: Any, tolerance: float) -> bool:
    if pd.isna(before) or pd.isna(after):
        return bool(pd.isna(before) and pd.isna(after))
    if isinstance(before, str | bool | np.bool_):
        return bool(before == after)
    # a number recorded in steps of its tolerance may be one step off: in floats, 0.71 − 0.7 is above 0.01
    return bool(abs(before - after) <= tolerance * max(1.0, abs(before)) * (1 + 1e-9))


def main(old: str, new: str) -> int:
    """Compare the results of every notebook in two folders; print what moved and return 1 if anything did."""
    stems = sorted({path.parent.name for folder in (old, new) for path in Path(folder).glob(f"*/{RUN}")})
    lines = []
    for stem in stems:
        missing = [f"{folder}/{stem} is missing" for folder in (old, new) if not (Path(folder) / stem / RUN).is_file()]
        moved = missing or differences(read(Path(old) / stem), read(Path(new) / stem))
        lines += [f"{stem}: {line}" for line in moved]
    print("\n".join(lines) or f"{len(stems)} results agree within their tolerance")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
