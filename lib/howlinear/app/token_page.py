"""Self-contained HTML page of the tokens that the line misses: the text coloured by residual, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from howlinear.app.console import Column, percent, spelt
from howlinear.app.measurement import Measurement
from howlinear.errors import InputError
from howlinear.instrument.token_errors import TOP, missed_types, summarise_blocks
from howlinear.models.ffn_sites import KINDS

MOST = 8_192
"""Most tokens on a page: nobody reads more, and a browser is slow to colour them."""

LEVELS = ("below ½", "½ to 1", "1 to 2", "2 to 4", "4 to 8", "8 to 16", "16 and more")
"""Steps of the colour scale, in multiples of the mean token's residual."""


def render_tokens(texts: Sequence[tuple[pd.DataFrame, Measurement]]) -> str:
    """Render the page, on which the reader chooses the block and, if there are several, the text.

    Each text is given as the table of `token_errors` and the measurement whose maps it used; all are of one model.
    All texts have the same blocks. Everything is escaped, and more tokens than a page holds are refused.
    """
    first, measurement = texts[0]
    blocks = first["block"].unique().tolist()
    check_page(sum(len(errors) for errors, _ in texts) // len(blocks))
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters |= {"readable": _readable, "spelt": spelt, "percent": percent}
    return environment.get_template("token_page.html.jinja").render(
        model=measurement.model,
        measured=KINDS[measurement.profile.site],
        site=measurement.profile.site,
        texts=[_describe_text(errors, each) for errors, each in texts],
        blocks=blocks,
        least_linear=int(summarise_blocks(first)["r2"].argmin()),
        levels=LEVELS,
        data={"blocks": blocks, "texts": [_data(errors) for errors, _ in texts]},
    )


def _describe_text(errors: pd.DataFrame, measurement: Measurement) -> dict[str, Any]:
    """Collect what the page shows of one text: sentences and token types by block, and the text itself."""
    types = missed_types(errors)
    tokens = errors[errors["block"] == errors["block"].iloc[0]]
    ids = "⟨" + tokens["token"].astype(str) + "⟩ "  # stand for missing texts, as without a tokenizer
    tokens = tokens.assign(text=tokens["text"].where(tokens["text"].notna(), ids))
    return {
        "corpus": measurement.profile.rows.corpus,
        "settings": measurement.settings(),
        "blocks": [
            {
                "number": row["block"],
                "sentences": _sentences(row),
                "types": types[types["block"] == row["block"]].to_dict("records"),
            }
            for row in summarise_blocks(errors).to_dict("records")
        ],
        "sequences": [(number, list(table["text"])) for number, table in tokens.groupby("sequence")],
        "count": len(tokens),
    }


def _data(errors: pd.DataFrame) -> dict[str, list]:
    """The numbers of one text's tokens, block by block, to three digits."""
    tables = [table for _, table in errors.groupby("block", sort=False)]
    return {
        "token": tables[0]["token"].tolist(),
        "residual": [_significant(table["residual"]) for table in tables],
        "output": [_significant(table["output"]) for table in tables],
        "r2": [[None if np.isnan(r2) else round(r2, 3) for r2 in table["r2"]] for table in tables],
    }


def check_page(tokens: int) -> None:
    """Refuse more tokens than the `MOST` that a page holds."""
    if tokens > MOST:
        raise InputError(f"a page of {tokens:,} tokens: at most {MOST:,} can be shown; a table (--csv) takes more")


def token_columns(errors: pd.DataFrame) -> list[Column]:
    """Build the columns of the terminal's table, a row per block."""
    summary, types = summarise_blocks(errors), missed_types(errors)
    rows = list(summary.itertuples())
    missed = [", ".join(map(spelt, types.loc[types["block"] == row.block, "text"].head(4))) for row in rows]
    return [
        Column("\nblock", [str(row.block) for row in rows], worth=100),
        Column("R²_lin of\nthese tokens", [f"{row.r2:.3f}" for row in rows], worth=99),
        Column(f"{TOP} tokens\ncarry", [percent(row.top) for row in rows], worth=98),
        Column("half is of\ntokens", [f"{row.half:,}" for row in rows], worth=95),
        Column("position 0\ncarries", [percent(row.first) for row in rows], worth=97),
        Column("\nmissed most", missed, worth=96, justify="left"),
    ]


def _sentences(row: dict) -> list[str]:
    """Say which tokens carry a block's residual, given its row of `summarise_blocks`."""
    if not row["half"]:
        return [f"R²_lin is {row['r2']:.3f}: no residual beyond rounding, on these tokens the block is its affine map."]
    most = f"The {TOP} tokens that carry most have {percent(row['top'])} of the residual"
    return [
        f"R²_lin of these {row['tokens']:,} tokens is {row['r2']:.3f}.",
        f"{most}, {row['half']:,} have half of it.",
        f"The first position of the sequences carries {percent(row['first'])}.",
    ]


def _readable(text: str) -> Markup:
    """Make the line breaks in a token's text visible."""
    return escape(text.replace("\r\n", "\n")).replace("\n", Markup("<i>↵</i>\n"))


def _significant(numbers: pd.Series) -> list[float]:
    """Numbers to three significant digits."""
    return [float(f"{number:.3g}") for number in numbers]
