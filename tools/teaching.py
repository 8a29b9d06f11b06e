"""Tables for the course's pages: how long each notebook takes, its exercises and points, and the numbers to expect.

`tools.pages` writes them into `book/course`. Minutes and exercises are read from the notebooks, numbers from the
recorded results, in the very sentences of a notebook's answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from howlinear.notebook import execute
from howlinear.notebook.prose import Prose
from tools import course, reading_time
from tools.book.solutions import difficulties, notebook
from tools.book.tables import markdown

WEEKS = {
    "The line, and what it costs": ("00_by_hand", "01_capture", "02_ceilings"),
    "What carries a high R²": ("04_rank", "12_sinks", "05_corpora", "16_tokens", "11_protocol"),
    "What the line leaves, and what that is worth": (
        *("03_bilinear", "10_degrees", "06_compression", "14_compress", "15_gate"),
    ),
    "Where the profile comes from": ("08_controls", "09_dynamics", "07_optimisers", "13_claims"),
}
"""Theme of a week → its notebooks, in the order in which they are read."""


def notebooks_table(stems: Sequence[str]) -> str:
    """Every notebook with its question, the minutes that it takes to read, and its exercises."""
    rows = []
    for stem in stems:
        rows.append(
            {
                "notebook": _link(stem),
                "question": question(stem),
                "minutes to read": str(minutes(stem)),
                "exercises": ", ".join(difficulties(stem).values()),
                "points": str(points(stem)),
            }
        )
    return markdown(rows)


def weeks_table() -> str:
    """The weeks of a course, with the reading and the points of each."""
    rows = []
    for number, (theme, stems) in enumerate(WEEKS.items(), 1):
        rows.append(
            {
                "week": str(number),
                "theme": theme,
                "notebooks": ", ".join(_link(stem) for stem in stems),
                "minutes to read": str(sum(map(minutes, stems))),
                "exercises": str(sum(len(difficulties(stem)) for stem in stems)),
                "points": str(sum(map(points, stems))),
            }
        )
    return markdown(rows)


def expected(of_models: Mapping[str, Prose]) -> str:
    """The numbers to expect of a notebook: its answer for every kind of models, and the replies to its predictions.

    The replies are those for the first kind, the models that the class runs.
    """
    first = next(iter(of_models.values()))
    numbered = "\n".join(f"{number}. {reply}" for number, reply in enumerate(first.replies, 1))
    return "\n\n".join([answered(of_models), "The predictions:", numbered])


def answered(of_models: Mapping[str, Prose]) -> str:
    """The answer of a notebook, for every kind of models."""
    parts = []
    for models, found in of_models.items():
        parts += [f"Of {models}:", "\n".join(f"- {sentence}" for sentence in found.answer)]
    return "\n\n".join(parts)


def minutes(stem: str) -> int:
    """Minutes to read a notebook, without its exercises."""
    return reading_time.minutes(notebook(stem))


def points(stem: str) -> int:
    """Points of all exercises of a notebook."""
    return sum(map(course.points, difficulties(stem).values()))


@cache
def question(stem: str) -> str:
    """The title of a notebook, which is a question."""
    return execute.listed(stem).title.partition(" · ")[2]


def _link(stem: str) -> str:
    """A link from a page of the course, which lies two folders down."""
    return f"[{stem}](../../notebooks/{stem}.py)"
