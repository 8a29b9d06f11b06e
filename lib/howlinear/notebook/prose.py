"""The findings of a notebook in sentences: a prose template for each notebook, filled from its tables.

`notebooks/answers/<stem>.md` is a Jinja template with three headings: `# Answer`, a list of sentences; `# Replies`, a
numbered list, one reply to each question of "Predict first"; `# Questions`, where each `## Question?` is followed by
its answer. Available are the tables by name, `settings`, `models`, `corpora`, and the filters below, which format
numbers, intervals and lists. Templates only state what tables hold; anything computed is a column of a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from howlinear.errors import SourceError
from howlinear.files import paths
from howlinear.files.tables import Results

TEMPLATES = paths.NOTEBOOKS / "answers"
PARTS = ("Answer", "Replies", "Questions")
SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class Prose:
    """Findings of a notebook in Markdown: its answer, replies to "Predict first", and questions with their answers."""

    answer: list[str]
    replies: list[str]
    questions: list[tuple[str, str]]


def describe(found: Results) -> Prose:
    """Fill a notebook's prose template from its results; a missing template or missing results raise `SourceError`."""
    said = _parse(render(TEMPLATES / f"{found.stem}.md", found), found.stem)
    return replace(said, answer=[*said.answer, *_constant(found.settings.get("constant", {}))])


@cache
def captions() -> dict[str, str]:
    """Figure, as in `02_ceilings_profile` → what it shows, in one line."""
    return yaml.safe_load((paths.NOTEBOOKS / "captions.yaml").read_text(encoding="utf-8"))


def render(template: Path, found: Results, **more: Any) -> str:
    """Fill a template from a notebook's results and further variables; errors are those of `describe`."""
    about = {name: list(found.settings.get(name, ())) for name in ("models", "corpora")}
    about |= {"settings": found.settings, "results": found}
    try:
        return _environment(template.parent).get_template(template.name).render({**GLOBALS, **found, **about, **more})
    except jinja2.TemplateNotFound as error:
        raise SourceError(f"no template {error.name} in {template.parent}: what results say is said there") from error
    except (jinja2.TemplateError, LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SourceError(
            f"results of {found.stem} do not hold what {template.name} says ({problem}): run the notebook again"
        ) from error


@cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(  # noqa: S701 (what is rendered is Markdown)
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= FILTERS
    return environment


def _constant(left_out: Mapping[str, Mapping[str, Sequence[int]]]) -> Iterator[str]:
    """Yield one sentence per text on which blocks are left out and why; `left_out` maps model → corpus → blocks."""
    for model, by_corpus in left_out.items():
        for corpus, numbers in by_corpus.items():
            named = f"{opened(blocks(numbers))} of {model}"
            same = f"the same output on every row of {corpus}, or on those of all document folds but one"
            if len(numbers) == 1:
                yield f"{named} writes {same}: it has no R²_lin and is left out."
            else:
                yield f"{named} write {same}: they have no R²_lin and are left out."


def _parse(text: str, stem: str) -> Prose:
    """Read the sentences of a rendered template; lines of a paragraph are joined."""
    pieces = re.split(r"^# (.+)$", text, flags=re.MULTILINE)
    parts = dict(zip((name.strip() for name in pieces[1::2]), pieces[2::2], strict=True))
    if tuple(parts) != PARTS:
        raise SourceError(f"the template of {stem} has the headings {', '.join(parts)}: give {', '.join(PARTS)}")
    questions = re.split(r"^## (.+)$", parts["Questions"], flags=re.MULTILINE)
    return Prose(
        answer=_items(r"^- ", parts["Answer"]),
        replies=_items(r"^\d+\. ", parts["Replies"]),
        questions=[(_line(asked), _line(said)) for asked, said in zip(questions[1::2], questions[2::2], strict=True)],
    )


def _items(mark: str, text: str) -> list[str]:
    return [_line(item) for item in re.split(mark, text, flags=re.MULTILINE)[1:]]


def _line(text: str) -> str:
    return re.sub(r"[ \t\n]+", " ", text).strip()  # no-break spaces stay


# --- numbers


def number(value: Any, digits: int = 2, signed: bool = False) -> str:
    """Format a number with `digits` decimal places and a typographic minus sign, without minus zero."""
    text = f"{round(float(value), digits) + 0.0:{'+' if signed else ''},.{digits}f}"
    return text.replace("-", "−")


def significant(value: Any, digits: int = 2, signed: bool = False) -> str:
    """Format a number to `digits` significant digits, for quantities that may be large or small."""
    places = _places(digits, value)
    return number(round(float(value), places), max(0, places), signed)


def _places(digits: int, *values: float) -> int:
    """Return the decimal places that show the largest of some numbers to `digits` significant digits."""
    largest = max(abs(value) for value in values)
    return digits if largest == 0 else digits - 1 - math.floor(math.log10(largest))


def percent(share: Any) -> str:
    """Format a share in whole per cent, so that only 0 reads as 0 % and only 1 as 100 %."""
    if 0 < share < 0.005:
        return "less than 1 %"
    if 0.995 <= share < 1:
        return "more than 99 %"
    return f"{number(100 * share, 0)} %"


def span(values: Iterable[Any], digits: int = 2, signed: bool = False) -> str:
    """Format the range from lowest to highest; one number if both read the same."""
    values = list(values)
    low, high = number(min(values), digits, signed), number(max(values), digits, signed)
    return low if low == high else f"{low} to {high}"


def percents(shares: Iterable[Any]) -> str:
    """Format the range from lowest to highest share in per cent."""
    shares = list(shares)
    low, high = percent(min(shares)), percent(max(shares))
    if low == high:
        return low
    return f"at least {low}" if high.startswith("more than") else f"{low} to {high}"


def interval(row: Mapping[str, Any] | pd.Series, name: str, digits: int = 2, signed: bool = False) -> str:
    """Format a number of a row with its interval in square brackets."""
    ends = number(row[f"{name}_low"], digits), number(row[f"{name}_high"], digits)
    return f"{number(row[name], digits, signed)} [{', '.join(ends)}]"


def cost(row: Mapping[str, Any] | pd.Series, name: str) -> str:
    """Format a signed change with its interval, to three significant digits of the largest of the three numbers."""
    return interval(row, name, max(0, _places(3, row[name], row[f"{name}_low"], row[f"{name}_high"])), signed=True)


# --- lists


def joined(parts: Iterable[Any]) -> str:
    """Join a list in words: "a, b and c", or "a; b; and c" if a part has a comma or an "and" itself."""
    parts = [str(part) for part in parts]
    if len(parts) < 2:
        return "".join(parts)
    unbracketed = [re.sub(r"\(.*?\)|\[.*?\]", "", part) for part in parts]
    if any("," in part or " and " in part for part in unbracketed):
        return f"{'; '.join(parts[:-1])}; and {parts[-1]}"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(count: Any, noun: str) -> str:
    """Count a noun in words: "no block", "one block", "three blocks", "16 blocks"."""
    word = SMALL[int(count)] if count < len(SMALL) else f"{int(count):,}"
    return f"{word} {noun if count <= 1 else noun + 's'}"


def blocks(numbers: Iterable[Any]) -> str:
    """Name blocks by number: "block 3", "blocks 0, 3 and 11"."""
    named = [str(number) for number in numbers]
    return f"block{'s' if len(named) > 1 else ''} {joined(named)}"


def opened(text: str) -> str:
    """Capitalise the first letter."""
    return text[0].upper() + text[1:]


# --- tables


def of(table: pd.DataFrame, **keys: Any) -> pd.DataFrame:
    """Select the rows of a table that have these values in these columns."""
    for name, value in keys.items():
        table = table[table[name] == value]
    return table


def top(table: pd.DataFrame, column: str) -> pd.Series:
    """Return the row that is highest in a column."""
    return table.loc[table[column].idxmax()]


def bottom(table: pd.DataFrame, column: str) -> pd.Series:
    """Return the row that is lowest in a column."""
    return table.loc[table[column].idxmin()]


# --- several models


def per_model(models: Iterable[str], preposition: str = "in", *, caller: Callable) -> str:
    """Join one clause per model, as in "0.6 to 0.9 in a and 0.3 to 0.7 in b"; models with the same clause share it.

    In a template: `{% call(m) per_model(models) %}{{ blocks | of(model=m) | … }}{% endcall %}`. A model whose clause is
    empty is left out.
    """
    clauses: dict[str, list[str]] = {}
    for model in models:
        clause = _line(caller(model))
        if clause:
            clauses.setdefault(clause, []).append(model)
    parts = []
    for clause, names in clauses.items():
        each = "each of " if preposition == "of" and len(names) > 1 else ""  # counts are of one model, not of all
        parts.append(f"{clause} {preposition} {each}{joined(names)}")
    return joined(parts)


def all_some_none(flags: Iterable[Any], in_all: str, in_some: str, in_none: str) -> str:
    """Choose one of three wordings: the flags are true for all models, for some, or for none."""
    flags = [bool(flag) for flag in flags]
    return in_all if all(flags) else in_some if any(flags) else in_none


def chance(count: Any) -> float:
    """Return what a rank correlation of `count` pairs reaches by chance in 1 of 20 cases, about 1.96 / √(n − 1)."""
    return 1.96 / math.sqrt(max(1, count - 1))


def no_loss(models: Iterable[str]) -> str:
    """State that these models predict no next token."""
    models = list(models)
    verb = "predict" if len(models) > 1 else "predicts"
    return f"{joined(models)} {verb} no next token, so no swap of a block has a cost in perplexity."


TIE = 0.02
"""A ratio of perplexities nearer to 1 than this counts as a tie, whatever its interval."""


def is_tie(row: Mapping[str, float], name: str) -> bool:
    """Return whether the interval of a ratio contains 1, or the ratio is less than `TIE` from 1."""
    return row[f"{name}_low"] <= 1 <= row[f"{name}_high"] or abs(row[name] - 1) < TIE


NUMBERS = (number, significant, percent, span, percents, interval, cost)
LISTS = (joined, counted, blocks, opened)
TABLES = (of, top, bottom)
FILTERS = {function.__name__: function for function in NUMBERS + LISTS + TABLES}
GLOBALS: dict[str, Any] = {
    **{function.__name__: function for function in (per_model, all_some_none, chance, no_loss, is_tie)},
    **{function.__name__: function for function in (abs, len, min, max)},
    "TIE": TIE,
}
