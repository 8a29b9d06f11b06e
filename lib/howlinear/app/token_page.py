"""Which tokens the line misses, as one page of HTML: the text coloured by it, block by block. It loads nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from howlinear.app.console import Column, percent, spelt
from howlinear.app.measurement import Measurement
from howlinear.errors import InputError
from howlinear.instrument.token_errors import missed_types, summarise_blocks
from howlinear.models.ffn_sites import KINDS

MOST = 8_192
"""Tokens on a page: more of them than this nobody reads, and a browser is slow to colour them."""

LEVELS = ("below ½", "½ to 1", "1 to 2", "2 to 4", "4 to 8", "8 to 16", "16 and more")
"""Steps of the colour scale, in multiples of the mean token's residual."""


def render_tokens(errors: pd.DataFrame, measurement: Measurement) -> str:
    """The page.

    Args:
        errors: of `token_errors`.
        measurement: the profile whose maps these are, and how it came about.

    Returns:
        HTML with style, script and numbers in it; whatever it is given is shown as text.

    Raises:
        InputError: more tokens than a page holds.
    """
    blocks = [int(block) for block in errors["block"].unique()]
    tokens = errors[errors["block"] == blocks[0]]
    check_page(len(tokens))
    by_block = errors.groupby("block", sort=False)
    summary = summarise_blocks(errors)
    types = missed_types(errors)
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters |= {"readable": _readable, "spelt": spelt, "percent": percent}
    return environment.get_template("token_page.html.jinja").render(
        model=measurement.model,
        corpus=measurement.profile.rows.corpus,
        measured=KINDS[measurement.profile.site],
        site=measurement.profile.site,
        settings=measurement.settings(),
        blocks=[
            {"number": block, "sentences": _sentences(row), "types": types[types["block"] == block].to_dict("records")}
            for block, row in zip(blocks, summary.to_dict("records"), strict=True)
        ],
        least_linear=int(summary["r2"].argmin()),
        sequences=[(number, list(table["text"])) for number, table in _readings(tokens).groupby("sequence")],
        count=len(tokens),
        levels=LEVELS,
        data={
            "blocks": blocks,
            "token": tokens["token"].tolist(),
            "residual": [_significant(table["residual"]) for _, table in by_block],
            "output": [_significant(table["output"]) for _, table in by_block],
            "r2": [[None if np.isnan(r2) else round(r2, 3) for r2 in table["r2"]] for _, table in by_block],
        },
    )


def check_page(tokens: int) -> None:
    """Refuse more tokens than a page holds.

    Raises:
        InputError: more than `MOST`.
    """
    if tokens > MOST:
        raise InputError(f"a page of {tokens:,} tokens: at most {MOST:,} can be shown; a table (--csv) takes more")


def token_columns(errors: pd.DataFrame) -> list[Column]:
    """What the terminal shows of each block."""
    summary, types = summarise_blocks(errors), missed_types(errors)
    rows = list(summary.itertuples())
    missed = [", ".join(map(spelt, types.loc[types["block"] == row.block, "text"].head(4))) for row in rows]
    return [
        Column("\nblock", [str(row.block) for row in rows], worth=100),
        Column("R²_lin of\nthese tokens", [f"{row.r2:.3f}" for row in rows], worth=99),
        Column("5 tokens\ncarry", [percent(row.top) for row in rows], worth=98),
        Column("half is of\ntokens", [f"{row.half:,}" for row in rows], worth=95),
        Column("position 0\ncarries", [percent(row.first) for row in rows], worth=97),
        Column("\nmissed most", missed, worth=96, justify="left"),
    ]


def _sentences(row: dict) -> list[str]:
    """Which tokens carry a block's residual, of its row of `summarise_blocks`."""
    if not row["half"]:
        return [f"R²_lin is {row['r2']:.3f}: no residual beyond rounding, on these tokens the block is its affine map."]
    return [
        f"R²_lin of these {row['tokens']:,} tokens is {row['r2']:.3f}.",
        f"The 5 tokens that carry most have {percent(row['top'])} of the residual, {row['half']:,} have half of it.",
        f"The first position of the sequences carries {percent(row['first'])}.",
    ]


def _readings(tokens: pd.DataFrame) -> pd.DataFrame:
    """The tokens with something to read in the place of every text: their ids where there is no tokenizer."""
    return tokens.assign(text=tokens["text"].where(tokens["text"].notna(), "⟨" + tokens["token"].astype(str) + "⟩ "))


def _readable(text: str) -> Markup:
    """A token's text with line breaks that can be seen."""
    return escape(text.replace("\r\n", "\n")).replace("\n", Markup("<i>↵</i>\n"))


def _significant(numbers: pd.Series) -> list[float]:
    """Numbers to three significant digits."""
    return [float(f"{number:.3g}") for number in numbers]
