"""What notebook 13 found: which of the paper's claims hold on the models of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from howlinear.answers import words

VERDICTS = {
    "holds here": "hold here",
    "does not hold here": "do not hold here",
    "mixed": "are mixed",
    "not testable here": "cannot be tested here",
}
"""Verdicts as the results call them → of several claims."""

TOGETHER = "together"
"""The column of claims that are about all models of a run at once."""

UNTESTABLE = "not testable here"
"""The verdict without a number, which no count of the board's cells has."""

FALSIFIER = "falsifier"
"""What the names of those claims begin with that are not the paper's, and would falsify its main one."""

NO_RELATION = "gain-not-residual"
"""The claim that one thing does not follow another, which an interval must fit into a band to show."""

SINGULAR = {"hold": "holds", "do": "does", "are": "is"}


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    claims = results["claims"]
    by_verdict = {
        verdict: [name for name, claim in claims.items() if claim["verdict"] == verdict] for verdict in VERDICTS
    }
    counts = [_count(verdict, len(names)) for verdict, names in by_verdict.items() if names]
    kinds = results.get("kinds", [])
    which = f" ({words.joined(kinds)})" if kinds else ""
    answer = [f"Of {len(claims)} claims{which} {words.joined(counts)}."]
    failed = by_verdict["does not hold here"]
    if failed:
        verb = "does not hold here" if len(failed) == 1 else "do not hold here"
        told = f"{', '.join(f'*{name}*' for name in failed)} {verb}; LEDGER.md says what each of these claims is."
        falsifies = any(name.startswith(FALSIFIER) for name in failed)
        answer.append(f"{told} A falsifier that does not hold speaks for the paper." if falsifies else told)
    answer.append(_moved(results["thresholds_moved"]))
    return [*answer, *results.get("remarks", [])]


def replies(results: Mapping[str, Any]) -> list[str]:
    """The guesses of "Predict first" are counted by the notebook itself; per model, what there was to guess."""
    counts: dict[str, Counter[str]] = {}
    for claim in results["claims"].values():
        for model, cell in claim["cells"].items():
            counts.setdefault(model, Counter())[results["marks"][cell["verdict"]]] += 1
    board = f"The board has {words.per_model(_clauses(counts), 'for')}."
    findings = {}
    for model, by_verdict in results.get("findings", {}).items():
        found = {verdict: count for verdict, count in by_verdict.items() if count and verdict != UNTESTABLE}
        if found:
            findings[model] = {results["marks"][verdict]: count for verdict, count in found.items()}
    if not findings:
        return [board]
    of_findings = words.per_model(_clauses(findings), "for")
    return [f"{board} The paper's findings alone, which LEDGER.md counts, have {of_findings}."]


def _clauses(counts: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Model, or all of them together → how often each mark fell."""
    clauses = {}
    for model, of_marks in counts.items():
        said = ", ".join(f"{count} `{mark}`" for mark, count in sorted(of_marks.items()))
        clauses["all models together" if model == TOGETHER else model] = said
    return clauses


def questions(results: Mapping[str, Any]) -> list[words.Question]:
    """Five questions to test oneself with, each with its answer."""
    claims = results["claims"]
    return [
        ("What is the difference between mixed and does not hold here?", _open_cells(claims)),
        ("Why is a claim that cannot be tested here not counted as failed?", _untestable(claims)),
        ("A claim does not hold here. Is the paper refuted?", _elsewhere(claims)),
        ("How can one see that a verdict does not hang on where the threshold stands?", _steady(results)),
        (
            "The interval of a correlation contains 0. Is it shown that there is no relation?",
            _no_relation(claims),
        ),
    ]


def _count(verdict: str, count: int) -> str:
    said = VERDICTS[verdict]
    if count == 1:
        first, _, rest = said.partition(" ")
        said = f"{SINGULAR.get(first, first)} {rest}"
    return f"{count} {said}"


def _moved(moved: Mapping[str, Any], factors: tuple[str, str] = ("0.75", "1.5")) -> str:
    """How many verdicts change when every threshold is moved."""
    clauses = []
    for factor in factors:
        cells, changed = 0, 0
        for by_factor in moved.values():
            if factor not in by_factor or "1.0" not in by_factor:
                continue
            for model, verdict in by_factor["1.0"].items():
                if verdict != UNTESTABLE:
                    cells += 1
                    changed += by_factor[factor][model] != verdict
        clauses.append(f"at {factor} times the threshold {changed} of {cells} verdicts change")
    return f"{words.opened(words.joined(clauses))}."


def _open_cells(claims: Mapping[str, Any]) -> str:
    """How many verdicts, claim by claim and model by model, are open, and how many are negative."""
    cells = [cell["verdict"] for claim in claims.values() for cell in claim["cells"].values()]
    return (
        "Where it is mixed the interval straddles the threshold, and the data cannot tell; where it does not hold, the "
        f"whole interval lies on the other side. Claim by claim and model by model, {cells.count('mixed')} of "
        f"{len(cells)} verdicts are mixed and {cells.count('does not hold here')} are that it does not hold here."
    )


def _untestable(claims: Mapping[str, Any]) -> str:
    """How many claims no model here can speak to, and why one of them."""
    silent = {name: claim.get("reason") for name, claim in claims.items() if claim["verdict"] == "not testable here"}
    reason = "Because these models, or what was measured of them, do not speak to it"
    if not silent:
        return f"{reason}; here all {len(claims)} claims could be tested."
    name = next(iter(silent))
    example = f", such as *{name}*: {silent[name].rstrip('.')}" if silent[name] else ""
    return (
        f"{reason}. Of this kind {'is' if len(silent) == 1 else 'are'} {len(silent)} of {len(claims)} claims{example}."
    )


def _elsewhere(claims: Mapping[str, Any]) -> str:
    """A claim that fails here, with what the paper's own numbers say of it."""
    failed = []
    for name, claim in claims.items():
        of_the_paper = not name.startswith(FALSIFIER)
        if of_the_paper and claim["verdict"] == "does not hold here" and claim["paper"]:
            failed.append(name)
    others = "it was said of other models, which the same rules judge once they are run"
    if not failed:
        return f"No: {others}. None of the {len(claims)} claims fails here that the paper gives numbers for."
    # best told by a claim whose numbers here and in the paper lie apart
    name = next((name for name in failed if _apart(claims[name])), failed[0])
    claim = claims[name]
    its_own = words.joined(name for name in claim["cells"] if name in claim["paper"] and name != TOGETHER)
    reason = f"Not by one protocol alone, though {its_own} is its own" if its_own else f"No: {others}"
    here = _range(cell["value"] for cell in claim["cells"].values())
    theirs = _range(claim["paper"].values())
    return (
        f"{reason}. The statistic of *{name}*, for example, is {here} here and {theirs} in the paper's own "
        f"numbers; the threshold is {words.significant(claim['threshold'])}."
    )


def _apart(claim: Mapping[str, Any]) -> bool:
    """Whether all numbers here lie on one side of all of the paper's."""
    here = [cell["value"] for cell in claim["cells"].values()]
    theirs = claim["paper"].values()
    return min(here) > max(theirs) or max(here) < min(theirs)


def _range(values: Iterable[words.Number]) -> str:
    """Lowest to highest to two significant digits; one number where these read the same."""
    values = list(values)
    low, high = words.significant(min(values)), words.significant(max(values))
    return low if low == high else f"{low} to {high}"


def _steady(results: Mapping[str, Any]) -> str:
    """How many claims keep all their verdicts under every multiple of the threshold."""
    moved = results["thresholds_moved"]
    if not moved:
        return (
            f"One moves the threshold; here none of {len(results['claims'])} claims has a number that could be judged."
        )
    steady = sum(all(verdicts == by_factor["1.0"] for verdicts in by_factor.values()) for by_factor in moved.values())
    factors = sorted({float(factor) for by_factor in moved.values() for factor in by_factor})
    return (
        f"One moves the threshold: from {words.number(factors[0], 1)} to {words.number(factors[-1], 1)} times where it "
        f"stands, {steady} of {len(moved)} claims that have a number keep all their verdicts."
    )


def _no_relation(claims: Mapping[str, Any]) -> str:
    """The claim of no relation, with the widest of its intervals, one that contains 0 if there is any."""
    claim = claims[NO_RELATION]
    if not claim["cells"]:
        return (
            f"No, a wide interval contains 0 and shows nothing; none of {len(claims)} claims asks it of these models."
        )
    name, cell = max(claim["cells"].items(), key=lambda item: _breadth(item[1]))
    band = words.number(claim["threshold"], 1)
    r = words.estimate(cell["value"], cell["low"], cell["high"], signed=True)
    fits = "fits" if -claim["threshold"] < cell["low"] and cell["high"] < claim["threshold"] else "does not fit"
    return (
        "No: a wide interval contains 0 and shows nothing, so the whole of it must fit into a band around 0. For "
        f"*{NO_RELATION}* that band is ± {band}, and r = {r} of {name} {fits} into it."
    )


def _breadth(cell: Mapping[str, Any]) -> tuple[bool, words.Number]:
    """Whether an interval contains 0, and how wide it is."""
    return cell["low"] < 0 < cell["high"], cell["high"] - cell["low"]
