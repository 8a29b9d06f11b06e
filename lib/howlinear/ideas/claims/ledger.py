"""The ledger: every claim with what the recorded results say of it, and nothing typed by hand.

`claim` holds the claims and the rule for a verdict, `numbers` the statistics. Only `results/` is read, no model and no
text. Verdicts are given model by model. A claim is *not testable here* if a result is missing, or a measure or a kind
of block that it is about; there is *no power* if a search finds little and misses what is planted. Results that lack
what every run has are an error, since a ledger that silently drops rows would be worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from howlinear.core.intervals import Estimate
from howlinear.errors import InputError, SourceError
from howlinear.files import tables
from howlinear.files.published import load_published
from howlinear.files.tables import Results, with_ends
from howlinear.ideas.claims.claim import DECIDED, UNITS, Claim, Verdict, fingerprint, margin, verdict
from howlinear.ideas.claims.contrasts import TOGETHER, Reading, Readings, UntestableError
from howlinear.ideas.claims.numbers import STATISTICS

VERDICTS = [
    *("claim", "model", "verdict", *with_ends("value"), "note"),
    *("inner_verdict", *with_ends("inner"), "ordinary_verdict", *with_ends("ordinary")),
    *("one_out_low", "one_out_high", "reason"),
]

TEXTS = {"wikitext": "r2_lin", "math_puzzles": "r2_lin_math_puzzles", "moby_dick": "r2_lin_moby_dick"}
"""The paper's texts, the main one first → column of `published.csv` with R²_lin on each."""


# Judging


def evaluate(results: Path, claims: Sequence[Claim]) -> pd.DataFrame:
    """Judge claims on a folder of results: a row per claim and model, or under `TOGETHER` if it belongs to none."""
    read = cache(lambda stem: tables.read(results / stem) if (results / stem).is_dir() else None)
    rows = []
    for claim in claims:
        readings = _read_statistic(claim, results, read(claim.notebook))
        rows += [{"claim": claim.id, "model": name} | _judge(claim, said) for name, said in readings.items()]
    return pd.DataFrame(rows, columns=VERDICTS)


def evaluate_other_texts(results: Path, claims: Sequence[Claim], other: str | None) -> pd.DataFrame:
    """Judge claims about texts on those of another run profile of the same models, if any; its name is `profile`."""
    about_texts = [claim for claim in claims if claim.notebook == "05_corpora"]
    found = evaluate(results.parent / other, about_texts) if other else pd.DataFrame(columns=VERDICTS)
    return found.assign(profile=other)


def _read_statistic(claim: Claim, results: Path, found: tables.Results | None) -> Readings:
    """Read a claim's statistic of every model; not testable only without results, or by a rule in `numbers`."""
    if found is None:
        return {TOGETHER: f"no results of {claim.notebook} in this run profile"}
    try:
        readings = STATISTICS[claim.statistic](found)
    except UntestableError as error:
        return {TOGETHER: str(error)}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SourceError(
            f"{results / claim.notebook} does not hold what claim {claim.id!r} reads ({claim.statistic}: {problem}): "
            f"run notebook {claim.notebook} again, or mend numbers.{claim.statistic}"
        ) from error
    estimates = {name: said.estimate for name, said in readings.items() if isinstance(said, Reading)}
    unsound = [name for name, estimate in estimates.items() if not np.isfinite(astuple(estimate)).all()]
    if unsound or not readings:
        whose = ", ".join(unsound) or "any model"
        raise SourceError(f"{results / claim.notebook}: {claim.statistic} gives no finite interval for {whose}")
    return readings


def _judge(claim: Claim, said: Reading | str) -> dict[str, Any]:
    """Return the cells of a row from one model's reading."""
    if isinstance(said, str):
        return {"verdict": str(Verdict.UNTESTABLE), "reason": said}
    found = claim.verdict(said.estimate)
    row = {"verdict": str(found), "note": said.note} | said.estimate.columns("value")
    # a search may miss much, but what it finds exists: too large a gain refutes a claim even without power
    if said.no_power and not (found is Verdict.NOT and claim.direction == "below"):
        return row | {"verdict": str(Verdict.NO_POWER), "reason": said.no_power}
    for name, without in (("inner", said.inner), ("ordinary", said.ordinary)):
        if without is not None:
            row |= {f"{name}_verdict": str(claim.verdict(without))} | without.columns(name)
    if said.one_out is not None:
        row |= dict(zip(("one_out_low", "one_out_high"), said.one_out, strict=True))
    return row


def depends_on_ends(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Select rows of models in which a claim holds only with the first and the last block."""
    holds = verdicts["verdict"] == Verdict.HOLDS
    without = verdicts["inner_verdict"]
    return verdicts[holds & without.notna() & (without != Verdict.HOLDS)]


def depends_on_massive_rows(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Select rows of models whose verdict differs on ordinary rows, whether or not the claim holds."""
    without = verdicts["ordinary_verdict"]
    return verdicts[without.notna() & (without != verdicts["verdict"])]


# The paper's own numbers, judged like our results: `published.csv` as tables of the notebooks' results
#
# A claim's statistic is applied to the paper's own numbers as it is to a run's. A claim whose threshold they fail is
# not the paper's but a misreading of it, and the tests forbid it. Numbers that only the paper's text gives are in
# `claims.toml` (`quoted`), and so is the reason why it publishes nothing to compare with (`unpublished`).


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


# Moving the thresholds, and what the paper's own numbers say


def move_thresholds(verdicts: pd.DataFrame, claims: Sequence[Claim], factors: Sequence[float]) -> pd.DataFrame:
    """Return the verdicts under several multiples of every threshold: a row per claim, model and `factor`."""
    by_id = {claim.id: claim for claim in claims}
    rows = []
    for row in verdicts[verdicts["verdict"].isin(DECIDED)].itertuples():
        claim = by_id[row.claim]
        for factor in factors:
            moved = verdict(row.value_low, row.value_high, factor * claim.threshold, claim.direction)
            rows.append({"claim": row.claim, "model": row.model, "factor": factor, "verdict": str(moved)})
    return pd.DataFrame(rows, columns=["claim", "model", "factor", "verdict"])


def paper_numbers(claims: Sequence[Claim]) -> pd.DataFrame:
    """Take every claim's statistic of the paper's own numbers, which have no interval: a row per claim and model."""
    published = load_published()
    rows = []
    for claim in claims:
        for name, value in own_numbers(claim, published).items():
            found = claim.verdict(Estimate.exact(value))
            rows.append({"claim": claim.id, "model": name, "value": value, "verdict": str(found)})
    return pd.DataFrame(rows, columns=["claim", "model", "value", "verdict"])


def summarise(claims: Sequence[Claim], verdicts: pd.DataFrame, thresholds: pd.DataFrame) -> pd.DataFrame:
    """Return what was asked and the verdict over all models, a row per claim; `steady` if no threshold moves it."""
    decided = verdicts[verdicts["verdict"].isin(DECIDED)]
    of_claims = {claim: map(Verdict, found) for claim, found in decided.groupby("claim")["verdict"]}
    different = thresholds.groupby(["claim", "model"])["verdict"].nunique().groupby("claim").max()
    asked = ["id", "section", "kind", "notebook", "unit", "threshold", "direction"]
    table = pd.DataFrame([asdict(claim) for claim in claims])[asked].rename(columns={"id": "claim"})
    table["verdict"] = [str(claim.together(of_claims.get(claim.id, []))) for claim in claims]
    table["steady"] = [different[claim.id] == 1 if claim.id in different else None for claim in claims]
    return table


# Showing


def show(verdicts: pd.DataFrame, claims: Sequence[Claim]) -> pd.DataFrame:
    """Format verdicts of a run or of the paper, a row per claim and model, with numbers in the claim's unit.

    `margin` and its ends say how far a number lies beyond the threshold towards the side where the claim holds.
    """
    by_id = {claim.id: claim for claim in claims}
    rows = []
    for row in verdicts.to_dict("records"):
        claim = by_id[row["claim"]]
        row |= {"section": claim.section, "asked": claim.asked, "mark": Verdict(row["verdict"]).symbol}
        row |= {"number": "", "interval": ""} | dict.fromkeys(with_ends("margin"))
        value = row.get("value")
        if pd.notna(value):
            low, high = row.get("value_low", value), row.get("value_high", value)
            row["number"] = claim.show_number(value)
            row["interval"] = claim.show(Estimate(value, low, high))
            row["margin"], _ = margin(value, value, claim.threshold, claim.direction)
            row["margin_low"], row["margin_high"] = margin(low, high, claim.threshold, claim.direction)
        rows.append(row)
    added = ["section", "asked", "mark", "number", "interval", *with_ends("margin")]
    shown = pd.DataFrame(rows, columns=[*verdicts.columns, *added])
    judged = shown.reindex(columns=VERDICTS)  # the paper's own numbers have no inner or ordinary verdicts
    return shown.assign(
        hangs_on_ends=shown.index.isin(depends_on_ends(judged).index),
        hangs_on_massive_rows=shown.index.isin(depends_on_massive_rows(judged).index),
    )


def board(verdicts: pd.DataFrame, paper: pd.DataFrame, claims: Sequence[Claim]) -> pd.DataFrame:
    """Make the ledger one table: a row per claim; what is asked, the paper's own numbers, and a column per model."""
    ours = show(verdicts, claims)
    ours["cell"] = (ours["mark"] + " " + ours["interval"]).str.strip()
    models = ours.pivot_table(index="claim", columns="model", values="cell", aggfunc="first")
    models = models[ours["model"].unique()].fillna("")  # in the order in which they come

    theirs = show(paper, claims)
    theirs["cell"] = theirs["mark"] + " " + theirs["number"]
    own = theirs.groupby("claim")["cell"].agg("; ".join)

    table = pd.DataFrame({"asked": [claim.question for claim in claims]}, index=[claim.id for claim in claims])
    table["the paper"] = own.reindex(table.index).fillna("")
    return table.join(models).rename_axis("claim")


def settings_of_ledger(factors: Sequence[float]) -> dict[str, Any]:
    """Return the settings of notebook 13's results: which claims judged, and how verdicts and units are shown."""
    units = {name: asdict(unit) for name, unit in UNITS.items()}
    marks = {str(verdict): verdict.symbol for verdict in Verdict}
    return {"judged_by": fingerprint(), "factors": list(factors), "units": units, "marks": marks}
