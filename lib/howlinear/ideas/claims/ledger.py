"""The ledger: every claim beside what the recorded results say of it, and nothing typed by hand.

`claim` holds the claims and the rule for a verdict, `numbers` the statistics, `published` the paper's own values of
them. Only `results/` is read, no model and no text. Verdicts stand model by model. A claim is *not testable here* where
a result file is absent, or a measure or a kind of block that it is about; a file that lacks what every run has is an
error, for a ledger that drops rows in silence would be worse than none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from howlinear.core.intervals import Estimate
from howlinear.errors import SourceError
from howlinear.files import results as record
from howlinear.files import tables
from howlinear.ideas.claims.claim import MARKS, SOURCE, UNITS, Claim, Verdict, fingerprint, load_claims
from howlinear.ideas.claims.contrasts import INNER, TOGETHER, Reading, Silent, UntestableError
from howlinear.ideas.claims.numbers import STATISTICS
from howlinear.ideas.claims.published import own_numbers
from howlinear.text.documents import OFFLINE
from howlinear.text.library import PAPERS

OTHER_TEXTS = {"minis": "prose"}
"""Run profile → another in which the same models read other texts: a claim about texts is judged on each by itself."""

KINDS = {
    "finding": ("finding of the paper", "findings of the paper"),
    "falsifier": ("falsifier", "falsifiers"),
    "press": ("claim of the press", "claims of the press"),
    "ours": ("of our own", "of our own"),
}
"""Kind of a claim → what one such claim is, and what several are."""

JUDGED_BY = "judged_by"
"""The key of a ledger's results under which the fingerprint of its claims stands."""

TOLERANCE = {
    "gain-not-residual": 0.05,
    "gain-not-residual-recipe": 0.1,
    "products-small": 0.02,
    "products-small-recipe": 0.02,
    "products-largest": 0.03,
    "depth-not-products": 0.02,
    "products-critical": 0.1,
    "products-only-there": 0.1,
    "dissociation": 0.1,
    "linear-and-dear": 0.05,
    "compression": 0.02,
    "healing-confound": 0.1,
    "ill-conditioned": 0.02,
    "critical-differ": 0.5,
}
"""Claim → how far its numbers may differ between processors, where `results.TOLERANCE` is too tight."""

DIGITS = {"gain-not-residual": 2, "gain-not-residual-recipe": 2, "dissociation": 2, "compression": 3, "paper": 3}
"""Claim → significant digits of its numbers, where that tolerance would leave fewer than the ledger shows; and those of
the paper's own numbers, which no processor moves."""


@dataclass(frozen=True)
class Row:
    """A claim beside what the results say. Its verdicts are computed; there is no way to set one.

    Attributes:
        claim: the claim.
        readings: model → its number; `contrasts.TOGETHER` for what belongs to a pair of models or to all twins.
        silent: model that cannot speak to the claim → why.
        reason: why no model can, else empty.
        texts: which the number compares, the main one first; empty of a number of one text.
        elsewhere: another run profile of the same models → the same claim on its texts.
    """

    claim: Claim
    readings: Mapping[str, Reading] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    texts: Sequence[str] = ()
    elsewhere: Mapping[str, Row] = field(default_factory=dict)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict of each reading, and of each model that is silent."""
        verdicts = {name: self.claim.verdict(reading.estimate) for name, reading in self.readings.items()}
        return verdicts | dict.fromkeys(self.silent, Verdict.UNTESTABLE)

    @property
    def verdict(self) -> Verdict:
        """Over the models that can speak, by the claim's scope: no number is pooled for it."""
        return self.claim.together(self.claim.verdict(reading.estimate) for reading in self.readings.values())

    @property
    def hanging(self) -> dict[str, Verdict]:
        """Of the models in which it holds only with the first and the last block: the verdict without these two."""
        without = {}
        for name, reading in self.readings.items():
            if reading.inner is not None and self.verdicts[name] is Verdict.HOLDS:
                without[name] = self.claim.verdict(reading.inner)
        return {name: verdict for name, verdict in without.items() if verdict is not Verdict.HOLDS}

    def at(self, factor: float) -> Row:
        """The same readings against `factor` times the threshold."""
        return replace(self, claim=replace(self.claim, threshold=factor * self.claim.threshold))


# Judging


def evaluate(results: Path, claims: Sequence[Claim] | None = None) -> list[Row]:
    """Judge claims on a folder of results, as `paths.results("minis")`.

    Raises:
        SourceError: a result that lacks what a claim reads, or holds it in another form.
    """
    if claims is None:
        claims = load_claims()
    ledger = [judge(claim, results) for claim in claims]
    other = OTHER_TEXTS.get(results.name)
    if other is None:
        return ledger
    folder = results.parent / other
    return [replace(row, elsewhere={other: judge(row.claim, folder)}) if row.texts else row for row in ledger]


def judge(claim: Claim, results: Path) -> Row:
    """One claim on a folder of results; not testable only where a file is absent or `numbers` has a rule for it.

    Raises:
        SourceError: as `evaluate`.
    """
    has_tables = (results / claim.notebook).is_dir()
    path = results / (claim.notebook if has_tables else f"{claim.notebook}.json")
    if not path.exists():
        return Row(claim, reason=f"no {path.name} in this profile's results")
    numbers = tables.read(path) if has_tables else record.load(path)
    try:
        found = STATISTICS[claim.statistic](numbers)
        readings = {name: each for name, each in found.items() if isinstance(each, Reading)}
        silent = {name: each.reason for name, each in found.items() if isinstance(each, Silent)}
        unsound = [name for name, reading in readings.items() if not _is_interval(reading.estimate)]
    except UntestableError as error:
        return Row(claim, reason=str(error))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SourceError(
            f"{path} does not hold what claim {claim.id!r} reads ({claim.statistic}: {problem}): "
            f"run notebook {claim.notebook} again, or mend numbers.{claim.statistic}"
        ) from error
    if unsound or not found:
        whose = ", ".join(unsound) or "any model"
        raise SourceError(f"{path}: {claim.statistic} gives no finite interval for {whose}")
    # what is compared over texts is notebook 05's alone
    corpora = numbers.settings["corpora"] if has_tables else numbers.get("corpora", ())
    texts = tuple(corpora) if claim.notebook.endswith("corpora") else ()
    if not readings:
        return Row(claim, silent=silent, reason=_common(silent), texts=texts)
    return Row(claim, readings, silent, texts=texts)


def _is_interval(estimate: Estimate) -> bool:
    """Whether all three numbers are finite and the ends in order."""
    finite = all(math.isfinite(number) for number in (estimate.value, estimate.low, estimate.high))
    return finite and bool(estimate.low <= estimate.high)


def _common(silent: Mapping[str, str]) -> str:
    """Why no model can speak: once if it is the same for all, else model by model."""
    reasons = set(silent.values())
    if len(reasons) == 1:
        return reasons.pop()
    return "; ".join(f"{name}: {reason}" for name, reason in silent.items())


def another_ledger(path: Path, source: Path = SOURCE) -> str | None:
    """What to say where results were judged by other claims than those in the file; None if by these.

    Args:
        path: results of notebook 13.
        source: the file of claims.
    """
    by, now = record.load(path).get(JUDGED_BY), fingerprint(source)
    if by == now:
        return None
    whose = f"SHA-256 {by[:12]}…" if by else "which, they do not say"
    return (
        f"{path.parent.name}/{path.name} was judged by another ledger ({whose}) than {source.name} ({now[:12]}…): "
        "take back what was changed in the claims, or run notebook 13 again and say why they changed"
    )


# Moving the thresholds

Moves = Mapping[float, Mapping[str, Verdict]]
"""Multiple of the threshold → model → verdict."""


def changes(row: Row, factors: Sequence[float]) -> dict[float, dict[str, Verdict]]:
    """The verdicts under each of several multiples of the threshold."""
    return {factor: row.at(factor).verdicts for factor in factors}


def steady(moves: Mapping[str, Moves]) -> list[str]:
    """Of what `changes` says of several claims: those whose verdicts no multiple changes, if there are any."""
    same = []
    for name, by_factor in moves.items():
        verdicts = list(by_factor.values())
        testable = set(verdicts[0].values()) - {Verdict.UNTESTABLE}
        if testable and all(each == verdicts[0] for each in verdicts):
            same.append(name)
    return same


# Recording


def contents(ledger: Sequence[Row], moves: Mapping[str, Moves]) -> dict[str, Any]:
    """What the results of notebook 13 hold.

    Args:
        ledger: all rows.
        moves: claim → what `changes` says of it.

    Returns:
        `claims`: `numbers` of every row; `kinds` and `remarks`: as these functions have them; `findings`: model →
        verdict → of how many of the paper's findings; `elsewhere`: run profile with other texts → claim → model →
        verdict; `thresholds_moved`: claim → multiple → model → verdict; `judged_by`: the fingerprint of the claims;
        `units` and `marks`: how numbers and verdicts are shown, for whoever shows them.
    """
    return {
        "claims": {row.claim.id: numbers(row) for row in ledger},
        "kinds": kinds(ledger),
        "findings": {
            name: {verdict.value: count for verdict, count in counts.items()} for name, counts in tally(ledger).items()
        },
        "remarks": remarks(ledger),
        "elsewhere": _elsewhere(ledger),
        "thresholds_moved": {
            claim: {
                str(factor): {name: verdict.value for name, verdict in verdicts.items()}
                for factor, verdicts in by_factor.items()
            }
            for claim, by_factor in moves.items()
        },
        JUDGED_BY: fingerprint(),
        "units": {name: asdict(unit) for name, unit in UNITS.items()},
        "marks": {verdict.value: symbol for verdict, symbol in MARKS.items()},
    }


def numbers(row: Row) -> dict[str, Any]:
    """A row as `results.save` takes it."""
    cells = {}
    for name, reading in row.readings.items():
        cell = {**asdict(reading.estimate), "note": reading.note, "verdict": row.verdicts[name].value}
        if reading.beside:
            cell["beside"] = dict(reading.beside)
        cells[name] = cell
    judged = {
        "verdict": row.verdict.value,
        "threshold": row.claim.threshold,
        "cells": cells,
        "paper": own_numbers(row.claim),
    }
    if row.silent:
        judged["silent"] = dict(row.silent)
    if row.reason:
        judged["reason"] = row.reason
    return judged


def _elsewhere(ledger: Sequence[Row]) -> dict[str, dict[str, dict[str, str]]]:
    """Run profile with other texts → claim → model → verdict."""
    verdicts: dict[str, dict[str, dict[str, str]]] = {}
    for row in ledger:
        for profile, other in row.elsewhere.items():
            of_claim = {name: verdict.value for name, verdict in other.verdicts.items()}
            verdicts.setdefault(profile, {})[row.claim.id] = of_claim
    return verdicts


# What a tick does not say


def remarks(ledger: Sequence[Row]) -> list[str]:
    """Sentences on what a tick of these models does not say; none of those that there is no cause for."""
    return [said for said in (by_the_ends(ledger), of_texts(ledger)) if said]


def by_the_ends(ledger: Sequence[Row]) -> str:
    """Which claims do not hold without the first and the last block, by the same rule; empty if all do."""
    hanging = {row.claim.id: _marked(row.hanging) for row in ledger if row.hanging}
    if not hanging:
        return ""
    without = "; ".join(f"*{claim}* {marks}" for claim, marks in hanging.items())
    if len(hanging) == 1:
        return f"One tick is not kept without the first and the last block: {without}."
    return (
        f"{len(hanging)} claims do not keep their ticks without the first and the last block, so these ticks are not "
        f"independent of one another: {without}."
    )


def of_texts(ledger: Sequence[Row]) -> str:
    """On which texts the claims about texts were tried, and what becomes of them on others; empty if there are none."""
    rows = [row for row in ledger if row.texts]
    if not rows:
        return ""
    claims = _listed([f"*{row.claim.id}*" for row in rows])
    said = [f"{claims} {'was' if len(rows) == 1 else 'were'} tried on {_named(rows[0].texts)}."]
    for profile in rows[0].elsewhere:
        others = [row.elsewhere[profile] for row in rows]
        unknown = {row.reason for row in others if row.reason}
        if unknown:
            said.append(f"Of run profile `{profile}` nothing can be said: {'; '.join(sorted(unknown))}.")
            continue
        verdicts = "; ".join(f"*{row.claim.id}* {_marked(row.verdicts)}" for row in others)
        said.append(f"On {_named(others[0].texts[1:])} the same rules give: {verdicts} (run profile `{profile}`).")
    return " ".join(said)


def _named(texts: Sequence[str]) -> str:
    """Texts, and of what kind they are if they are of one."""
    listed = _listed(texts)
    if all(text in OFFLINE for text in texts):
        return f"programmers' text ({listed})"
    if all(text in PAPERS for text in texts):
        return f"prose ({listed})"
    return listed


def _marked(verdicts: Mapping[str, Verdict]) -> str:
    """The marks of several verdicts, each with its model; those of one mark stand together."""
    models: dict[Verdict, list[str]] = {}
    for name, verdict in verdicts.items():
        models.setdefault(verdict, []).append("all models together" if name == TOGETHER else name)
    return ", ".join(f"{verdict.symbol} {_listed(of)}" for verdict, of in models.items())


def _listed(parts: Sequence[str]) -> str:
    """A list in words, as in "a, b and c"."""
    *before, last = parts
    return f"{', '.join(before)} and {last}" if before else last


def only_there(ledger: Sequence[Row], others: Sequence[Row]) -> list[str]:
    """Claims that hold in a model of one ledger and in none of the other, which has a model to ask.

    Args:
        ledger: the claims on some models.
        others: the same claims on other models.
    """
    of_others = {row.claim.id: row for row in others}
    found = []
    for row in ledger:
        elsewhere = of_others[row.claim.id].verdicts.values()
        asked = any(verdict is not Verdict.UNTESTABLE for verdict in elsewhere)
        if asked and Verdict.HOLDS in row.verdicts.values() and Verdict.HOLDS not in elsewhere:
            found.append(row.claim.id)
    return found


def apart(public: Sequence[Row], embedded: Sequence[Row]) -> str:
    """Which claims hold in public models alone, and which in embedded ones alone; empty if there is no such claim."""
    said = []
    for here, there, one, other in (
        (public, embedded, "a public model", "embedded"),
        (embedded, public, "an embedded model", "public"),
    ):
        claims = only_there(here, there)
        if claims:
            said.append(f"In {one}, and in no {other} one, holds {_listed([f'*{claim}*' for claim in claims])}.")
    return " ".join(said)


# Tables


def names(ledger: Sequence[Row]) -> list[str]:
    """The models that any row speaks of, in the order in which they come, and last `TOGETHER`."""
    every = {name: None for row in ledger for name in row.verdicts}
    models = [name for name in every if name != TOGETHER]
    return [*models, TOGETHER] if TOGETHER in every else models


def cells(ledger: Sequence[Row]) -> pd.DataFrame:
    """The board: a row a model of a claim; of a claim that no model can speak to, one under the name `TOGETHER`.

    Returns:
        Columns `claim` (its id), `section`, `asked`, `column` (a model or `TOGETHER`), `verdict`, `symbol`, and
        `number`, the value in the claim's unit, empty where there is none.
    """
    rows = []
    for row in ledger:
        verdicts = row.verdicts or {TOGETHER: Verdict.UNTESTABLE}
        for name, verdict in verdicts.items():
            number = row.claim.show_value(row.readings[name].estimate) if name in row.readings else ""
            rows.append(
                {
                    "claim": row.claim.id,
                    "section": row.claim.section,
                    "asked": row.claim.asked,
                    "column": name,
                    "verdict": verdict.value,
                    "symbol": verdict.symbol,
                    "number": number,
                }
            )
    return pd.DataFrame(rows)


def answers(ledger: Sequence[Row], models: Sequence[str]) -> pd.DataFrame:
    """What was asked, and the answers with their intervals: a row a claim, a column a model and one for `TOGETHER`."""
    columns = [*models, TOGETHER]
    rows = {}
    for row in ledger:
        shown = {name: row.claim.show(reading.estimate) for name, reading in row.readings.items()}
        rows[row.claim.id] = {"asked": row.claim.question} | {name: shown.get(name, "") for name in columns}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["asked", *columns])


def beside_paper(ledger: Sequence[Row]) -> pd.DataFrame:
    """Every claim's statistic on the paper's own numbers, beside this run's verdicts: a row a claim."""
    rows = {
        row.claim.id: {
            "section": row.claim.section,
            "the paper's own": _of_the_paper(row.claim, "; "),
            "asked": row.claim.asked,
            "this run": "; ".join(f"{name} {verdict.symbol}" for name, verdict in row.verdicts.items()) or row.reason,
            "why this threshold": row.claim.why,
        }
        for row in ledger
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("claim")


def tally(ledger: Sequence[Row], kind: str = "finding") -> dict[str, dict[Verdict, int]]:
    """Model → verdict → of how many claims of a kind; one that no model can speak to counts for every model."""
    rows = [row for row in ledger if row.claim.kind == kind]
    counts = {name: dict.fromkeys(Verdict, 0) for name in names(rows)}
    for row in rows:
        verdicts = row.verdicts
        if not verdicts:
            verdicts = {name: Verdict.UNTESTABLE for name in counts if name != TOGETHER}
        for name, verdict in verdicts.items():
            counts[name][verdict] += 1
    return counts


def kinds(ledger: Sequence[Row]) -> list[str]:
    """How many claims there are of each kind, as in `2 falsifiers`."""
    counts = Counter(row.claim.kind for row in ledger)
    return [
        f"{counts[kind]} {several if counts[kind] > 1 else one}"
        for kind, (one, several) in KINDS.items()
        if counts[kind]
    ]


def counted(ledger: Sequence[Row]) -> str:
    """Of what kinds the claims are, and which of them are counted where; empty if all are findings of the paper."""
    if all(row.claim.kind == "finding" for row in ledger):
        return ""
    return (
        f"These are {len(ledger)} claims: {_listed(kinds(ledger))}. Here the paper's findings alone are counted, model "
        f"by model. The answer of notebook 13 counts all {len(ledger)}, each once, by its verdict over a run's models."
    )


def to_markdown(ledger: Sequence[Row], public: Sequence[Row] | None = None) -> str:
    """The ledger for a text that lies at the project's root.

    What a tick does not say comes first, then a table a section, and last how often each verdict fell.

    Args:
        ledger: the claims on the embedded models' results.
        public: the same claims on those of public models, which get a column of their own; no verdict is about both.
    """
    public_rows = {row.claim.id: row for row in public or ()}
    if public is None:
        parts = remarks(ledger)
    else:
        of_models = {"Public models": remarks(public), "Embedded models": remarks(ledger)}
        parts = [f"**{models}.** {' '.join(said)}" for models, said in of_models.items() if said]
        parts += [f"**Apart.** {apart(public, ledger)}"] if apart(public, ledger) else []
    for section, rows in groupby(ledger, key=lambda row: row.claim.section):
        lines = []
        for row in rows:
            line = {
                f"claim ({section})": f"**{row.claim.id}**: {row.claim.sentence}",
                "asked": row.claim.question,
                "the paper's own numbers": _of_the_paper(row.claim, "<br>"),
            }
            if public_rows:
                line["public models"] = _here(public_rows[row.claim.id])
                line["embedded models"] = _here(row)
            else:
                line["here, with 95 % intervals"] = _here(row)
            line["shown by"] = _notebook(row)
            lines.append(line)
        # stralign=None: the cells are long, and are not padded to the longest of their column
        table = pd.DataFrame(lines)
        parts.append(table.to_markdown(index=False, tablefmt="github", stralign=None, disable_numparse=True))
    if counted(ledger):
        parts.append(counted(ledger))
    if public_rows:
        parts.append(f"Public models: {in_one_line(list(public_rows.values()))}")
        parts.append(f"Embedded models: {in_one_line(ledger)}")
    else:
        parts.append(in_one_line(ledger))
    return "\n\n".join(parts)


def in_one_line(ledger: Sequence[Row]) -> str:
    """The tally of the paper's findings: how many, and how often each verdict fell, model by model."""
    counted = []
    for name, counts in tally(ledger).items():
        what = "pairs of models and twins" if name == TOGETHER else name
        counted.append(f"{what}: " + ", ".join(f"{verdict.symbol} {count}" for verdict, count in counts.items()))
    findings = sum(row.claim.kind == "finding" for row in ledger)
    return f"{findings} findings. {'; '.join(counted)}."


def _of_the_paper(claim: Claim, between: str) -> str:
    """The paper's own values of a claim's statistic with their verdicts, or why there is none."""
    if claim.unpublished:
        return f"none: {claim.unpublished}"
    lines = []
    for name, value in own_numbers(claim).items():
        exact = Estimate(value, value, value)
        whose = "" if name == TOGETHER else f"{name} "
        lines.append(f"{claim.verdict(exact).symbol} {whose}{claim.show(exact)}")
    return between.join(lines)


def _here(row: Row) -> str:
    """Each model's answer, a line each; what cannot be asked of it says why."""
    if row.reason:
        return f"{Verdict.UNTESTABLE.symbol} {row.reason}"
    lines = []
    for name, reading in row.readings.items():
        whose = "" if name == TOGETHER else f"{name} "
        beside = [f"{key} {row.claim.show_number(value)}" for key, value in reading.beside.items()]
        if reading.inner is not None and INNER not in reading.beside:
            beside.append(f"{INNER} {row.claim.show_number(reading.inner.value)}")
        notes = "; ".join(filter(None, [reading.note, *beside]))
        note = f" ({notes})" if notes else ""
        lines.append(f"{row.verdicts[name].symbol} {whose}{row.claim.show(reading.estimate)}{note}")
    lines += [f"{Verdict.UNTESTABLE.symbol} {name}: {reason}" for name, reason in row.silent.items()]
    if row.texts:
        lines.append(f"all on {_named(row.texts)}")
    for profile, other in row.elsewhere.items():
        lines.append(f"on other texts (run profile `{profile}`):<br>{_here(other)}")
    return "<br>".join(lines)


def _notebook(row: Row) -> str:
    """The notebook that shows a claim, with a link where it has results."""
    stem = row.claim.notebook
    return f"[{stem}](notebooks/{stem}.py)" if row.readings else stem
