"""A race: several compressors on the same text, to the same sizes, judged by the same held-out perplexity.

Our compressor is `own_units`; its rivals are in `compressors` (`lines`, `drop`, `replace_me`, `width`), each as its
paper describes it. None is trained. A budget is a share of *all* parameters of the model, embeddings and attention
included. A compressor that drops whole blocks or layers cannot fill a budget exactly and ends below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from howlinear.errors import InputError
from howlinear.files.tables import with_ends
from howlinear.ideas.compression.allocate import least_share
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import drop, lines, replace_me, width
from howlinear.ideas.compression.costs import cost
from howlinear.ideas.compression.own_units import layout, own_units
from howlinear.instrument.perplexity import held_out, losses, perplexity, ratio_of
from howlinear.models.layers import parameters
from howlinear.models.load import is_causal
from howlinear.text.rows import TokenRows

Compressor = Callable[[float], PreTrainedModel]
"""Takes the share of all parameters to keep, and returns a copy of the model that holds no more."""


COMPRESSORS: dict[str, Callable[[Calibration, float], PreTrainedModel]] = {
    "own units": own_units,
    "own units, alike": partial(own_units, alike=True),
    "lines by R²": lines.by_r2,
    "lines by price": lines.by_price,
    "lines, mended": partial(lines.by_price, ordinary=True),
    "ShortGPT": drop.layers,
    "LLM-Drop, FFN": partial(drop.sub_layers, kinds=["ffn"]),
    "LLM-Drop, joint": partial(drop.sub_layers, kinds=["ffn", "attention"]),
    "ReplaceMe, LS": replace_me.least_squares,
    "magnitude": width.magnitude,
    "Wanda": width.wanda,
    "FLAP": width.flap,
    "GRAIL on Wanda": width.wanda_ridge,
    "GRAIL on FLAP": width.flap_ridge,
    "LLM Surgeon": width.surgeon,
}
"""Name → compressor."""


def check_shares(shares: Sequence[float]) -> None:
    """Refuse an empty list of shares, and shares that are not between 0 and 1."""
    if not shares or not all(0 < share < 1 for share in shares):
        raise InputError(f"shares of all parameters {list(shares)}: give at least one between 0 and 1, as 0.9")


def choose_shares(model: PreTrainedModel, shares: Sequence[float]) -> list[float]:
    """Select the shares of all parameters that a model can be reduced to; if there are none, choose one that it can."""
    if not is_causal(model):
        raise InputError("it predicts no next token")
    least = least_share(model)
    possible = [share for share in shares if share > least + 5e-4]  # a budget is counted in whole parameters
    return possible or [round((1 + least) / 2, 3)]


COLUMNS = [
    *("corpus", "method", "share", "kept", "perplexity_after"),
    *(*with_ends("ratio"), *with_ends("delta"), *with_ends("over_first"), "why"),
]
"""Columns of a race."""


def racers(calibration: Calibration, names: Sequence[str] = tuple(COMPRESSORS)) -> dict[str, Compressor]:
    """Bind compressors to one model and one text, ready to race."""
    check_known(names, COMPRESSORS, "compressor")
    return {name: partial(COMPRESSORS[name], calibration) for name in names}


def check_known(names: Sequence[str], known: Collection[str], kind: str) -> None:
    """Refuse names that are not known as a compressor, or as a part of one."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"no {kind} is called {', '.join(unknown)}: there are {', '.join(known)}")


def race(
    model: PreTrainedModel,
    compressors: Mapping[str, Compressor],
    shares: Sequence[float],
    texts: Mapping[str, TokenRows],
) -> pd.DataFrame:
    """Compress a model in several ways to several sizes, and measure what is left on held-out text; table `race`."""
    scored = {name: held_out(text) for name, text in texts.items()}
    before = {name: losses(model, sequences) for name, sequences in scored.items()}
    whole = parameters(model)
    first: dict[tuple[float, str], Float[Tensor, " n"]] = {}  # losses of the first compressor's copies
    rows = []
    for method, compress in compressors.items():
        for share in shares:
            try:
                smaller = compress(share)
            except InputError as error:
                rows += [{"corpus": name, "method": method, "share": share, "why": str(error)} for name in texts]
                continue
            held = parameters(smaller)
            if held > round(share * whole):
                raise InputError(f"{method} leaves {held} of {whole} parameters, more than {share:.0%}")
            for name, sequences in scored.items():
                after, fold = losses(smaller, sequences), sequences.fold
                row = {"corpus": name, "method": method, "share": share, "kept": held / whole}
                row |= {"perplexity_after": float(after.mean().exp())}
                row |= ratio_of(before[name], after, fold).columns("ratio") | cost(before[name], after, fold)
                if method == next(iter(compressors)):
                    first[share, name] = after
                if (share, name) in first:
                    row |= ratio_of(first[share, name], after, fold).columns("over_first")
                rows.append(row | {"why": ""})
            del smaller  # before the next copy is made
    return pd.DataFrame(rows, columns=COLUMNS)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Put races on one text side by side: a row per method, a column per model and share, NaN without a copy."""
    return table.pivot_table(index="method", columns=["model", "share"], values="ratio", sort=False)


def whole_perplexities(model: PreTrainedModel, texts: Mapping[str, TokenRows]) -> pd.DataFrame:
    """Perplexity of the whole model on the held-out side of texts: a row a text, `corpus` and `perplexity`."""
    return pd.DataFrame([{"corpus": name, "perplexity": perplexity(model, text)} for name, text in texts.items()])


# --- What keeps own units from costing less
#
# Each number is a perplexity over that of the whole model. If a model costs no more than the sum of its blocks' prices,
# taken before the anchor, these add up, and `allocate` leaves nothing to gain among blocks. A readout costs least on
# rows that it has seen, so the cost with unlimited text lies between that on the text fitted on and the held-out one.
# If more rows to fit on do not lower it, the rest is due to the units themselves.

FITTED_TOKENS = 2048  # training tokens on which own units are measured as well
WHAT = ("by the blocks' prices", "on the text fitted on", "held out")
"""The numbers of `limits`, in order; those after a fit to other numbers of rows follow."""


def limits(
    model: PreTrainedModel,
    rows: TokenRows,
    calibration: Calibration,
    shares: Sequence[float],
    held_out: TokenRows,
    raced: pd.DataFrame,
    others: Sequence[TokenRows],
) -> pd.DataFrame:
    """Measure the `ratio` of own units by each of `WHAT`, and fitted to each of `others`; the price has no interval."""
    seen = {WHAT[1]: fitted_on(rows, FITTED_TOKENS)}
    found = [race(model, {"": partial(own_units, calibration)}, shares, seen), raced.assign(corpus=WHAT[2])]
    for other in others:
        refitted = Calibration(model, other, calibration.priced)
        name = f"held out, fitted on {refitted.ids.numel():,} rows"
        found.append(race(model, {"": partial(own_units, refitted)}, shares, {name: held_out}))
    measured = pd.concat(found).rename(columns={"corpus": "what"})
    table = []
    for share in shares:
        price = layout(calibration, share).price
        table.append({"share": share, "what": WHAT[0], "ratio": float(np.exp(price))})
        table += measured[measured["share"] == share].to_dict("records")
    return pd.DataFrame(table, columns=["share", "what", *with_ends("ratio")])


def fitted_on(rows: TokenRows, tokens: int) -> TokenRows:
    """Return the training side as if it were held out, cut to the first sequences of every document fold."""
    return replace(rows, test=~rows.test).with_fewer_held_out(tokens).held_out
