"""Results as tidy tables: written once, read by everyone.

`results/<run profile>/<notebook>/` holds one CSV per table, and a `run.json` with the settings and origin of the run.
A row is an observation: key columns first, then a column per quantity; an interval is `name`, `name_low`, `name_high`.
`columns.yaml`, next to this file, is the data dictionary: what each column means, its unit, its recorded digits, and by
how much it may differ between machines. Rounding, reading and the comparison of runs follow from it.

`python -m howlinear.files.tables OLD NEW` compares two folders of results and fails if a number left its tolerance.
"""

from __future__ import annotations

import csv
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
    low, high = ENDS
    return [name, name + low, name + high]


def stack(tables: Iterable[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Concatenate the tables of several models, in the given columns; without rows if no table has any."""
    columns = list(columns)
    filled = [table for table in tables if len(table)]
    if not filled:
        return pd.DataFrame(columns=columns)
    return pd.concat(filled, ignore_index=True)[columns]


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
    described: dict[str, dict[str, Column]] = {}
    for section, columns in yaml.safe_load(DICTIONARY.read_text(encoding="utf-8")).items():
        described[section] = {}
        for name, entry in (columns or {}).items():
            described[section][name] = Column(**entry)
    return described


def describe_column(stem: str, table: str, name: str) -> Column:
    """Look up the entry of a column, or of the number whose interval it ends; a column without an entry is refused."""
    own = dictionary().get(stem, {})
    common = dictionary()[COMMON]
    ends = "|".join(ENDS)
    of_number = re.sub(f"({ends})$", "", name)
    # a column has an entry of its own, or that of its number; the notebook's stand before the common ones
    for candidate in (name, of_number):
        in_table = f"{table}.{candidate}"
        found = own.get(in_table) or own.get(candidate) or common.get(candidate)
        if found is not None:
            return found
    raise InputError(f"column {name!r} of table {table!r} of {stem} is not in {DICTIONARY.name}: say there what it is")


# --- rounding, once


def as_recorded(table: pd.DataFrame, stem: str, name: str) -> pd.DataFrame:
    """Return a table as it will be read back from disk: columns checked, numbers rounded by the data dictionary.

    The index is dropped. A column that the dictionary lacks, an infinite number, and keys that do not identify rows
    are refused.
    """
    recorded = table.reset_index(drop=True)
    for column in table.columns:
        about = describe_column(stem, name, column)
        if about.type == "number":
            recorded[column] = _rounded(recorded[column], about, f"{stem}, table {name}")
    return _parse(_print(recorded), stem, name)


def _rounded(column: pd.Series, about: Column, place: str) -> list[float | None]:
    """Round the numbers of a column as the dictionary says; one that is infinite is refused."""
    numbers = pd.to_numeric(column).astype("float64")
    infinite = np.isinf(numbers)
    if infinite.any():
        raise InputError(f"{place}: {column.name} is infinite in row {int(infinite.argmax())}")
    return [round_number(number, about.digits, about.decimals) for number in numbers]


def _print(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, lineterminator="\n")


_TYPES = {"number": "float64", "integer": "Int64", "text": "str", "flag": "boolean"}
_WITHOUT_GAPS = {"Int64": "int64", "boolean": "bool"}
"""pandas' types of columns in which a cell may be missing → the plain types of those in which none is."""


def _parse(text: str, stem: str, name: str) -> pd.DataFrame:
    header = text.partition("\n")[0]
    types, keys = {}, []
    for column in header.split(","):
        about = describe_column(stem, name, column)
        types[column] = _TYPES[about.type]
        if about.key:
            keys.append(column)
    widths = {len(row) for row in csv.reader(io.StringIO(text)) if row}
    if len(widths) > 1:  # pandas would fill up the rest of a row that is cut off
        raise InputError(f"{stem}, table {name}: a row has fewer or more cells than the header")
    # only an empty cell is missing: a text may well be "None" or "NA"
    table = pd.read_csv(io.StringIO(text), dtype=types, keep_default_na=False, na_values=[""])
    again = table.duplicated(keys or None)
    if again.any():
        twice = table[again].iloc[0].to_dict()
        same = ", ".join(keys) or "content"
        raise InputError(f"{stem}, table {name}: two rows have the same {same}: {twice}")
    full = table.columns[table.notna().all()]
    plain = {column: _WITHOUT_GAPS[types[column]] for column in full if types[column] in _WITHOUT_GAPS}
    return table.astype(plain)


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
        texts = {}
        for path in sorted(folder.glob("*.csv")):
            text = path.read_text(encoding="utf-8-sig")  # Excel puts a BOM first
            if not text.endswith("\n"):
                raise ValueError(f"the last row of {path.name} is cut off")
            texts[path.stem] = text
        return from_texts(folder.name, texts, load(folder / RUN))


def from_texts(stem: str, texts: Mapping[str, str], run: Mapping[str, Any]) -> Results:
    """Build results from the content of their CSV files, given by table name."""
    tables = {}
    for name, text in texts.items():
        tables[name] = _parse(text, stem, name)
    return Results(stem, tables, run)


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
    lines = [f"{name}: gone" for name in old.keys() - new.keys()]
    lines += [f"{name}: new" for name in new.keys() - old.keys()]
    for name in sorted(old.keys() & new.keys()):
        lines += _table_differences(old.stem, name, old[name], new[name])
    return lines


def _table_differences(stem: str, name: str, old: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    if set(old.columns) != set(new.columns):
        return [f"{name}: columns {', '.join(old.columns)} → {', '.join(new.columns)}"]
    described = {column: describe_column(stem, name, column) for column in old.columns}
    keys = [column for column, about in described.items() if about.key]
    if keys:
        old = old.set_index(keys)
        new = new.set_index(keys)

    lines = [f"{name}, {_at(key)}: gone" for key in old.index.difference(new.index)]
    lines += [f"{name}, {_at(key)}: new" for key in new.index.difference(old.index)]
    both = old.index.intersection(new.index)
    for column in old.columns:
        about = described[column]
        if not about.compared:
            continue
        for key, before, after in zip(both, old.loc[both, column], new.loc[both, column], strict=True):
            if not _same(before, after, about.tolerance):
                lines.append(f"{name}, {_at(key)}, {column}: {before} → {after}")
    return lines


def _at(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _same(before: Any, after: Any, tolerance: float) -> bool:
    if pd.isna(before) or pd.isna(after):
        return bool(pd.isna(before) and pd.isna(after))
    if isinstance(before, str | bool | np.bool_):
        return bool(before == after)
    # a number recorded in steps of its tolerance may be one step off: in floats, 0.71 − 0.7 is above 0.01
    allowed = tolerance * max(1.0, abs(before)) * (1 + 1e-9)
    return bool(abs(before - after) <= allowed)


def main(old: str, new: str) -> int:
    """Compare the results of every notebook in two folders; print what moved and return 1 if anything did."""
    folders = Path(old), Path(new)
    stems = {path.parent.name for folder in folders for path in folder.glob(f"*/{RUN}")}
    lines = []
    for stem in sorted(stems):
        missing = [folder / stem for folder in folders if not (folder / stem / RUN).is_file()]
        if missing:
            lines += [f"{stem}: {folder} is missing" for folder in missing]
            continue
        before, after = (read(folder / stem) for folder in folders)
        lines += [f"{stem}: {line}" for line in differences(before, after)]
    print("\n".join(lines) or f"{len(stems)} results agree within their tolerance")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
