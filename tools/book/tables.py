"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A table of cells that are already text.

    Args:
        rows: head of a column → cell, the same heads in every row.
    """
    return pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True)
