"""The paper's own numbers, judged like our results: `published.csv` as tables of the notebooks' results.

A claim's statistic is applied to the paper's own numbers as it is to a run's. A claim whose threshold they fail is not
the paper's but a misreading of it, and the tests forbid it. Numbers that only the paper's text gives are in
`claims.toml` (`quoted`), and so is the reason why it publishes nothing to compare with (`unpublished`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from howlinear.core.intervals import Estimate
from howlinear.errors import InputError
from howlinear.files.published import load_published
from howlinear.files.tables import Results, with_ends
from howlinear.ideas.claims.claim import Claim, Verdict
from howlinear.ideas.claims.contrasts import Reading, UntestableError
from howlinear.ideas.claims.numbers import STATISTICS

TEXTS = {"wikitext": "r2_lin", "math_puzzles": "r2_lin_math_puzzles", "moby_dick": "r2_lin_moby_dick"}
"""The paper's texts, the main one first → column of `published.csv` with R²_lin on each."""


def as_results(notebook: str, published: pd.DataFrame) -> Results:
    """Return what the paper publishes in the form of a notebook's results; no number has an interval."""
    published = published.sort_values("block", kind="stable").assign(saved=_share_saved)
    names = {"r2": "r2_lin", "dppl": "dppl_linear", "saved": "saved", "median_r2": "r2_perfeature_median"}
    blocks = _exact(published, **names, gain="bilinear_gain_r16").assign(rank_90=published["rrr_rank90"])
    profiles = [_exact(published, r2=column).assign(corpus=text) for text, column in TEXTS.items()]
    tables = {
        **dict.fromkeys(("blocks", "recipe", "layers"), blocks),
        "profiles": pd.concat(profiles),
        "agreement": pd.DataFrame(_agreement(published)),
    }
    settings = {"models": list(published["model"].unique()), "corpora": list(TEXTS)}
    return Results(notebook, tables, {"settings": settings})


def own_numbers(claim: Claim, published: pd.DataFrame) -> dict[str, float]:
    """Take the claim's statistic of the paper's own numbers, if it publishes any: model, or a quoted name → value."""
    if claim.quoted or claim.unpublished:
        return dict(claim.quoted)
    results = as_results(claim.notebook, published)
    try:
        readings = STATISTICS[claim.statistic](results)
    except UntestableError as error:
        raise InputError(f"claim {claim.id!r}: {error}; quote the paper's text, or say why there is none") from error
    return {name: reading.estimate.value for name, reading in readings.items() if isinstance(reading, Reading)}


def own_verdict(claim: Claim, published: pd.DataFrame | None = None) -> Verdict:
    """Judge a claim by the paper's own numbers, taken without intervals, since it publishes none."""
    values = own_numbers(claim, load_published() if published is None else published).values()
    return claim.together(claim.verdict(Estimate.exact(value)) for value in values)


def _exact(published: pd.DataFrame, **names: str) -> pd.DataFrame:
    """Select some of the paper's numbers under the names in results, with intervals of zero width."""
    numbers = {column: published[own] for name, own in names.items() for column in with_ends(name)}
    return published[["model", "block"]].assign(**numbers)


def _share_saved(published: pd.DataFrame) -> pd.Series:
    """Return the share of the line's cost that products save in the paper; NaN where the line costs nothing."""
    costly = published["dppl_linear"].where(published["dppl_linear"] > 0)
    return 1 - published["dppl_poly"] / costly


def _agreement(published: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the correlation over blocks of every model's profiles on the main text and on another."""
    main, *others = TEXTS
    for model, blocks in published.groupby("model", sort=False):
        for other in others:
            r = blocks[TEXTS[main]].corr(blocks[TEXTS[other]])
            yield {"model": model, "corpus": main, "other": other} | dict.fromkeys(with_ends("r"), r)
