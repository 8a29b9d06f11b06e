"""The paper's own numbers, put to the same questions: `published.csv` in the form of the notebooks' results.

A claim's statistic is applied to the paper's own numbers as it is to a run's. A claim whose threshold they fail is not
the paper's but a misreading of it, and the tests forbid it. What the paper gives in its text alone stands in
`claims.toml` (`quoted`), and so does why it publishes nothing to compare with (`unpublished`).
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.files import tables
from howlinear.files.published import load_published
from howlinear.ideas.claims.claim import Claim, Verdict
from howlinear.ideas.claims.contrasts import Reading, UntestableError
from howlinear.ideas.claims.numbers import STATISTICS

TEXTS = {"wikitext": "r2_lin", "math_puzzles": "r2_lin_math_puzzles", "moby_dick": "r2_lin_moby_dick"}


def as_results(notebook: str, table: pd.DataFrame) -> dict[str, Any] | tables.Results:
    """What the paper publishes, as a notebook's results hold it; no number has an interval.

    Args:
        notebook: its stem, as `02_ceilings`.
        table: as `load_published` gives it.

    Raises:
        InputError: the paper publishes nothing that this notebook measures.
    """
    match notebook.split("_")[1]:
        case "ceilings":
            return {"blocks": _ceilings(table)}
        case "bilinear":
            return _bilinear(table)
        case "rank":
            return _rank(table)
        case "corpora":
            return _corpora(table)
    raise InputError(f"the paper's figures hold nothing that notebook {notebook} measures: quote its text")


def own_numbers(claim: Claim, table: pd.DataFrame | None = None) -> dict[str, float]:
    """The claim's statistic on the paper's own numbers: model, or what the text quotes → value.

    Empty where the paper publishes none (`claim.unpublished` says why); a model that the statistic cannot be taken of
    is left out.

    Raises:
        InputError: neither quoted nor in the figures, and no reason given.
    """
    if claim.quoted or claim.unpublished:
        return dict(claim.quoted)
    results = as_results(claim.notebook, load_published() if table is None else table)
    try:
        readings = STATISTICS[claim.statistic](results)
    except UntestableError as error:
        raise InputError(f"claim {claim.id!r}: {error}; quote the paper's text, or say why there is none") from error
    return {name: reading.estimate.value for name, reading in readings.items() if isinstance(reading, Reading)}


def own_verdict(claim: Claim, table: pd.DataFrame | None = None) -> Verdict:
    """The verdict of the paper's own numbers on a claim, taken without intervals, since it publishes none."""
    values = own_numbers(claim, table).values()
    return claim.together(claim.verdict(Estimate(value, value, value)) for value in values)


def _ceilings(table: pd.DataFrame) -> pd.DataFrame:
    blocks = table.sort_values("block", kind="stable")[["model", "block"]].copy()
    for name, column in (("r2", "r2_lin"), ("dppl", "dppl_linear")):
        for end in ("", "_low", "_high"):
            blocks[name + end] = table[column]
    return blocks


def _bilinear(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    blocks = table.sort_values("block", kind="stable")
    keys = blocks[["model", "block"]]
    gain = {f"gain{end}": blocks["bilinear_gain_r16"] for end in ("", *tables.ENDS)}
    costs = {f"dppl{end}": blocks["dppl_linear"] for end in ("", *tables.ENDS)}
    costs |= {f"dppl_poly{end}": blocks["dppl_poly"] for end in ("", *tables.ENDS)}
    return {
        "blocks": keys.assign(r2=blocks["r2_lin"], **gain),
        "recipe": keys.assign(gain=blocks["bilinear_gain_r16"]),
        "layers": keys.assign(**costs),
    }


def _rank(table: pd.DataFrame) -> tables.Results:
    exact = {
        f"{name}{end}": table[column]
        for name, column in (("r2", "r2_lin"), ("median_r2", "r2_perfeature_median"))
        for end in ("", *tables.ENDS)
    }
    blocks = table[["model", "block"]].assign(**exact, rank_90=table["rrr_rank90"])
    return tables.Results("04_rank", {"blocks": blocks}, {"settings": {"models": list(table["model"].unique())}})


def _corpora(published: pd.DataFrame) -> tables.Results:
    main, *others = TEXTS
    profiles, agreement = [], []
    for model, blocks in published.groupby("model", sort=False):
        for text, column in TEXTS.items():
            r2 = blocks[column]
            curve = {"model": model, "corpus": text, "block": blocks["block"]}
            profiles.append(pd.DataFrame(curve | {"r2": r2, "r2_low": r2, "r2_high": r2}))
        for other in others:
            r = float(blocks[TEXTS[main]].corr(blocks[TEXTS[other]]))
            pair = {"model": model, "corpus": main, "other": other}
            agreement.append(pair | {"r": r, "r_low": r, "r_high": r})
    found = {"profiles": pd.concat(profiles), "agreement": pd.DataFrame(agreement)}
    settings = {"models": list(published["model"].unique()), "corpora": list(TEXTS)}
    return tables.Results("05_corpora", found, {"settings": settings})
