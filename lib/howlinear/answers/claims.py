"""What notebook 13 found: which of the paper's claims hold on the models of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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

SINGULAR = {"hold": "holds", "do": "does", "are": "is"}


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The answer to the notebook's question."""
    claims = results["claims"]
    by_verdict = {
        verdict: [name for name, claim in claims.items() if claim["verdict"] == verdict] for verdict in VERDICTS
    }
    counts = [_count(verdict, len(names)) for verdict, names in by_verdict.items() if names]
    answer = [f"Of {len(claims)} claims {words.joined(counts)}."]
    failed = by_verdict["does not hold here"]
    if failed:
        verb = "does not hold here" if len(failed) == 1 else "do not hold here"
        answer.append(f"{', '.join(f'*{name}*' for name in failed)} {verb}.")
    answer.append(_moved(results["thresholds_moved"]))
    return answer


def replies(results: Mapping[str, Any]) -> list[str]:
    """The guesses of "Predict first" are counted by the notebook itself; per model, what there was to guess."""
    counts: dict[str, Counter[str]] = {}
    for claim in results["claims"].values():
        for model, cell in claim["cells"].items():
            counts.setdefault(model, Counter())[results["marks"][cell["verdict"]]] += 1
    clauses = {
        model: ", ".join(f"{count} `{mark}`" for mark, count in sorted(of.items())) for model, of in counts.items()
    }
    clauses = {"all models together" if model == TOGETHER else model: said for model, said in clauses.items()}
    return [f"The board has {words.per_model(clauses, 'for')}."]


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
                cells += 1
                changed += by_factor[factor][model] != verdict
        clauses.append(f"at {factor} times the threshold {changed} of {cells} verdicts change")
    return f"{words.opened(words.joined(clauses))}."
