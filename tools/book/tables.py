"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


def markdown(table: pd.DataFrame | Mapping[str, Any] | Sequence[Mapping[str, str]]) -> str:
    """A Markdown table of cells that are already text, from a data frame or anything pandas can make one from."""
    return pd.DataFrame(table).to_markdown(index=False, disable_numparse=True)
