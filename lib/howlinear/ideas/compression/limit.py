"""What keeps own units from costing less: the sharing-out among blocks, the text to fit on, or the units themselves.

Numbers for one smaller model, each a perplexity over that of the whole model:

- *by the blocks' prices*: exp of the sum of its blocks' prices, which are before the anchor. Where the model costs no
  more, prices of single blocks add up, so the knapsack over them (`budget`) has found what is to be found among blocks;
- *on the text fitted on*: what any amount of text would leave lies between this and the next, since a readout costs
  least on the rows that it has seen;
- *held out*: what it costs;
- *held out, fitted on … rows*: the same, chosen and read out anew on fewer or on more rows. Where more rows buy no
  more, what is left is the units' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.own_units import layout, own_units
from howlinear.ideas.compression.race import race
from howlinear.text.rows import TokenRows

WHAT = ("by the blocks' prices", "on the text fitted on", "held out")
"""The numbers of `limits`, in order; those after a fit to other numbers of rows follow."""


def after(fitted: int) -> str:
    """The name of the number that is held out, after a fit to so many rows."""
    return f"held out, fitted on {fitted:,} rows"


def limits(
    model: PreTrainedModel,
    rows: TokenRows,
    calibration: Calibration,
    shares: Sequence[float],
    judged: TokenRows,
    raced: pd.DataFrame,
    others: Sequence[TokenRows] = (),
    tokens: int = 2048,
) -> pd.DataFrame:
    """Own units, priced, on the text that they were fitted on, and held out; and fitted to less or more text.

    Args:
        model: the model; left as it was.
        rows: what `calibration` was made from.
        calibration: the model and the text that it is compressed on.
        shares: of all parameters, what a copy may hold at most.
        judged: rows whose held-out side counts.
        raced: what own units came to there, as of `race.race`: `share`, `ratio`, `low` and `high`.
        others: fewer rows, or more, to fit the same on.
        tokens: of the text fitted on, that count.

    Returns:
        A row per share and each of `WHAT` and of `others` (`after`): `share`, `what`, `ratio`, and the ends of its 95 %
        interval over document folds, `low` and `high`, NaN where it is priced.

    Raises:
        InputError: a share that cannot be met, or a text too short.
    """
    columns = ["share", "what", "ratio", "low", "high"]
    found = [
        race(model, {"": partial(own_units, calibration)}, shares, {WHAT[1]: fitted_on(rows, tokens)}),
        raced.assign(text=WHAT[2]),
    ]
    for other in others:
        refitted = Calibration(model, other, calibration.priced)
        name = after(refitted.ids.numel())
        found.append(race(model, {"": partial(own_units, refitted)}, shares, {name: judged}))
    measured = pd.concat(found).rename(columns={"text": "what"})[columns]
    table = []
    for share in shares:
        price = layout(calibration, share).price
        table.append({"share": share, "what": WHAT[0], "ratio": float(np.exp(price)), "low": np.nan, "high": np.nan})
        table += measured[measured["share"] == share].to_dict("records")
    return pd.DataFrame(table)


def fitted_on(rows: TokenRows, tokens: int) -> TokenRows:
    """The side of rows to fit on as if it were held out, the first sequences of every document fold.

    Args:
        rows: the rows.
        tokens: about so many of them.
    """
    turned = replace(rows, test=~rows.test)
    thinned = turned.with_fewer_held_out(tokens)
    return thinned.subset(torch.nonzero(thinned.test).flatten())
