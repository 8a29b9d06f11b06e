"""The page of the ledger: a line for each claim, in four groups, with the paper's numbers and those of every model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from howlinear.files import paths, tables
from howlinear.files.tables import Results
from howlinear.ideas.claims import ledger
from howlinear.ideas.claims.claim import DECIDED, Claim, Verdict, load_claims
from howlinear.ideas.claims.contrasts import TOGETHER
from howlinear.notebook import prose

STEM = "13_claims"
TEMPLATE = paths.ROOT / "tools" / "templates" / "ledger.md"
PROFILES = {"public": "public", "minis": "embedded"}
"""Run profiles on the page, the most important first → what its models are called."""

NEAR = (0.75, 1.5)
"""Multiples of a threshold between which a tick must stay a tick, or it is said to depend on the threshold."""

PAIR = "a pair, or twins"
"""The column of verdicts that belong to no single model."""

BOUNDED = ("r", "R²", "share")
"""Units whose numbers are at most 1."""

HOLDS = "Holds in a {kind} model"
FAILS = "Does not hold in any model that was asked"
OPEN = "Open"
UNTESTABLE = "Not testable on these models"
GROUPS = {
    HOLDS: "In at least one {kind} model: also without the two end blocks, without massive rows, and with thresholds "
    "{near[0]} to {near[1]} times as high, unless that is beyond 1, where no number can be.",
    FAILS: "Where a claim is what would falsify the paper, this speaks for the paper.",
    OPEN: "Mixed; ticks that hang on end blocks (ᵉ), massive rows (ᵐ) or thresholds; or in {other} models alone.",
    UNTESTABLE: "Models without the kind of block asked about, what was not measured, or a search without power.",
}


def page(results: Path, profiles: Sequence[str] = tuple(PROFILES)) -> str:
    """The claims on the models of all profiles with results of notebook 13, in groups by the first profile."""
    there = [name for name in profiles if (results / name / STEM).is_dir()] or profiles[:1]
    found = {name: tables.results(results / name, STEM) for name in there}
    first = found[there[0]]
    claims = load_claims()
    verdicts = pd.concat([ledger.show(each["verdicts"], claims) for each in found.values()], ignore_index=True)
    names = {
        "near": NEAR,
        "kind": PROFILES.get(there[0], there[0]),
        "other": " and ".join(PROFILES.get(each, each) for each in there[1:]),
    }
    lines: dict[str, list[Claim]] = {heading: [] for heading in GROUPS}
    firm = firm_ticks(first)
    for claim in claims:
        lines[group(verdicts.loc[verdicts["claim"] == claim.id, "verdict"], claim.id in firm)].append(claim)
    groups = [(heading.format(**names), GROUPS[heading].format(**names), of_it) for heading, of_it in lines.items()]
    paper = ledger.show(first["paper"], claims)
    return prose.render(TEMPLATE, first, groups=groups, board=cells(verdicts), own=ranges(paper), rows=verdicts).strip()


def group(verdicts: pd.Series, firm: bool) -> str:
    """Heading of a claim's group, from the verdicts of all models and whether it holds firmly (see `firm_ticks`)."""
    asked = verdicts[verdicts.isin(DECIDED)]
    if asked.empty:
        return UNTESTABLE
    if (asked == Verdict.NOT).all():
        return FAILS
    return HOLDS if firm else OPEN


def firm_ticks(found: Results) -> set[str]:
    """The claims that hold in some model, also without end blocks or massive rows and at every nearby threshold."""
    verdicts = found["verdicts"]
    moved = found["thresholds"].merge(found["claims"][["claim", "unit", "threshold"]], on="claim")
    # a threshold that no number of this unit can clear tells nothing about the choice of threshold
    beyond = moved["unit"].isin(BOUNDED) & ((moved["factor"] * moved["threshold"]).abs() >= 1)
    near = moved[moved["factor"].between(*NEAR) & ~beyond]
    steady = (near["verdict"] == Verdict.HOLDS).groupby([near["claim"], near["model"]]).all()
    hanging = ledger.depends_on_ends(verdicts).index.union(ledger.depends_on_massive_rows(verdicts).index)
    ticks = verdicts.drop(hanging)
    return {row.claim for row in ticks.itertuples() if steady.get((row.claim, row.model), False)}


def cells(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Mark and number, ᵉ if it depends on the end blocks, ᵐ if on massive rows: a row per claim, a column per model."""
    hanging = verdicts["hangs_on_ends"].map({True: "ᵉ", False: ""})
    hanging += verdicts["hangs_on_massive_rows"].map({True: "ᵐ", False: ""})
    cell = verdicts["mark"] + hanging + " " + verdicts["number"]
    shown = verdicts.assign(cell=cell.str.strip(), model=verdicts["model"].replace(TOGETHER, PAIR))
    shown = shown[(shown["model"] != PAIR) | (shown["verdict"] != Verdict.UNTESTABLE)]
    models = sorted(shown["model"].unique(), key=lambda name: name == PAIR)  # the last one
    by_model = shown.pivot_table(index="claim", columns="model", values="cell", aggfunc="first", sort=False)
    return by_model[models].fillna("")


def ranges(paper: pd.DataFrame) -> dict[str, str]:
    """Claim → the paper's own numbers, lowest to highest, with the marks that occur among them."""
    shown = {}
    for claim, rows in paper.sort_values("value").groupby("claim"):
        ends = dict.fromkeys([rows["number"].iloc[0], rows["number"].iloc[-1]])
        marks = "".join(mark for mark in "✓✗" if mark in set(rows["mark"]))  # without intervals no verdict is mixed
        shown[claim] = f"{marks} {' to '.join(ends)}"
    return shown
