"""How often intervals hold the truth, as the book's table: what `benchmarks/coverage.py` simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tools.book.tables import markdown

FEWEST = 0.92
"""Below this share an interval of 95 % is said to hold the truth too seldom."""


def table(measured: Mapping[str, Any]) -> str:
    """A row a kind of interval and truth, a column a case; bold where an interval holds the truth too seldom.

    Args:
        measured: what `benchmarks/coverage.py` wrote.
    """
    simulated = pd.DataFrame(measured["rows"])
    cases = list(simulated["case"].unique())
    rows = []
    for (interval, truth), cells in simulated.groupby(["interval", "of"], sort=False):
        row = {"interval": interval, "of": truth}
        by_case = cells.set_index("case")
        for case in cases:
            row[case] = _cell(by_case.loc[case]) if case in by_case.index else "–"
        row["replicates"] = str(cells["replicates"].max())
        rows.append(row)
    return markdown(rows)


def _cell(found: pd.Series) -> str:
    shown = f"{found['coverage']:.2f} ± {found['error']:.2f}"
    return f"**{shown}**" if found["coverage"] < FEWEST else shown
