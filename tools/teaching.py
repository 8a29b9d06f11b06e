"""What the course's pages say of the notebooks: how long they take, what is handed in, and the numbers to expect.

`tools.pages` writes it into `book/course`. Minutes and exercises are read from the notebooks, numbers from the recorded
results, in the very sentences in which a notebook gives its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from howlinear.errors import InputError
from howlinear.files import paths
from howlinear.notebook.prose import Prose
from tools import course, reading_time
from tools.book.solutions import EXERCISE
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
        difficulties = exercises(stem)
        rows.append(
            {
                "notebook": _link(stem),
                "question": question(stem),
                "minutes to read": str(minutes([stem])),
                "exercises": ", ".join(difficulties),
                "points": str(sum(map(course.points, difficulties))),
            }
        )
    return markdown(rows)


def weeks_table() -> str:
    """The weeks of a course, with what is read and what can be earned in each."""
    rows = []
    for number, (theme, stems) in enumerate(WEEKS.items(), 1):
        difficulties = [difficulty for stem in stems for difficulty in exercises(stem)]
        rows.append(
            {
                "week": str(number),
                "theme": theme,
                "notebooks": ", ".join(_link(stem) for stem in stems),
                "minutes to read": str(minutes(stems)),
                "exercises": str(len(difficulties)),
                "points": str(sum(map(course.points, difficulties))),
            }
        )
    return markdown(rows)


def expected(of_models: Mapping[str, Prose]) -> str:
    """The numbers to expect of a notebook: its answer for every kind of models, and the replies to its predictions.

    Args:
        of_models: what kind of models, as "the embedded models" → what the notebook found of them; the first are those
            that the class runs, and the replies are of these.
    """
    first = next(iter(of_models.values()))
    numbered = "\n".join(f"{number}. {reply}" for number, reply in enumerate(first.replies, 1))
    return "\n\n".join([answered(of_models), "The predictions:", numbered])


def answered(of_models: Mapping[str, Prose]) -> str:
    """The answer of a notebook, for every kind of models."""
    parts = []
    for models, found in of_models.items():
        parts += [f"Of {models}:", _listed(found.answer)]
    return "\n\n".join(parts)


def minutes(stems: Iterable[str]) -> int:
    """Minutes to read some notebooks, without their exercises."""
    return sum(map(_minutes, map(_path, stems)))


@cache
def _minutes(notebook: Path) -> int:
    return reading_time.minutes(notebook)


def exercises(stem: str) -> list[str]:
    """How hard each exercise of a notebook says it is."""
    return [difficulty for _, difficulty in EXERCISE.findall("\n".join(_lines(stem)))]


def question(stem: str) -> str:
    """The title of a notebook, which is a question.

    Raises:
        InputError: it has no title of the form `# 02 · How …?`.
    """
    mark = f"# {stem[:2]} · "
    title = next((line.removeprefix(mark) for line in _lines(stem) if line.startswith(mark)), None)
    if title is None:
        raise InputError(f"notebook {stem} has no title {mark.strip()!r} and a question")
    return title


def _lines(stem: str) -> list[str]:
    """The lines of a notebook's text, of words without the mark of a comment."""
    return [line.removeprefix("# ") for line in _path(stem).read_text(encoding="utf-8").splitlines()]


def _path(stem: str) -> Path:
    return paths.NOTEBOOKS / f"{stem}.py"


def _link(stem: str) -> str:
    """A link from a page of the course, which lies two folders down."""
    return f"[{stem}](../../notebooks/{stem}.py)"


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
