"""The book's page of data: the meaning of every column of every table in results/, from the data dictionary."""

from __future__ import annotations

import pandas as pd

from howlinear.files.tables import COMMON, Column, dictionary
from tools.book.tables import markdown


def page() -> str:
    """A table of columns for each notebook, after one with the columns that several notebooks record."""
    sections = []
    for section, columns in dictionary().items():
        if columns:
            heading = "In several notebooks" if section == COMMON else section
            table = pd.DataFrame([{"column": f"`{name}`"} | _described(column) for name, column in columns.items()])
            sections.append(f"## {heading}\n\n{markdown(table)}")
    return "\n\n".join(sections) + "\n"


def _described(column: Column) -> dict[str, str]:
    meaning = column.meaning.replace("|", "\\|")
    if column.key:
        meaning += " (key)"
    if column.type != "number":
        return {"what it is": meaning, "unit": column.type, "recorded to": "", "may differ by": ""}
    places = f"{column.digits} digits, at most {column.decimals} decimals"
    tolerance = f"{column.tolerance:g}" if column.compared else "not compared"
    return {"what it is": meaning, "unit": column.unit, "recorded to": places, "may differ by": tolerance}
