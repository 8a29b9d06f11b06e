"""Multiple-choice questions from tables with a question, its choices and the right answer in each row."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from howlinear.errors import InputError
from howlinear.text import plain
from howlinear.text.plain import as_list, check_strings

COLUMNS = {"question": ("question", "context", "query"), "choices": ("choices",), "answer": ("answer", "answerKey")}
"""Part of a row → names of the columns that may hold it."""


@dataclass(frozen=True)
class Question:
    """A question with its choices.

    Attributes:
        text: what a model reads before a choice.
        choices: two or more.
        answer: index of the right choice.
    """

    text: str
    choices: list[str]
    answer: int


def read_questions(questions: Any) -> list[Question]:
    """Read the questions of a table, one per row; errors count rows from 0.

    A table is a path (`plain.TABLES`), a `datasets.Dataset`, a table of pandas, polars or pyarrow, or a list of dicts.
    `question` (or `context` or `query`) is a text. `choices` is a list of strings, in a CSV as JSON; or, as in ARC,
    `{"text": […], "label": […]}`. `answer` (or `answerKey`) is one of the labels; without labels, it is the index from
    0 or the letter from A, unless a string that is another choice itself.
    """
    plain.check_not_splits(questions)
    table = questions
    if isinstance(questions, str | Path):
        path = Path(os.path.expanduser(questions))
        if not plain.is_table(path):
            raise InputError(f"{path} is no table of questions: give a file that ends in {', '.join(plain.TABLES)}")
        table = plain.read_table(path)
    elif isinstance(questions, list | tuple) and all(isinstance(row, Mapping) for row in questions):
        table = pd.DataFrame(list(questions), dtype=object)
    names = plain.names_of(table)
    if not names:
        raise InputError(f"a {type(questions).__name__} is no table of questions: give a path, a data set or dicts")
    cells = []
    for part, usual in COLUMNS.items():
        name = next((name for name in usual if name in names), None)
        if name is None:
            there = ", ".join(map(str, names))
            raise InputError(f"the columns are {there}, and none holds the {part}: call it {' or '.join(usual)}")
        if names.count(name) > 1:
            raise InputError(f"the columns are {', '.join(map(str, names))}: give a table with one {name!r}")
        cells.append(plain.cells_of(table, name))
    if not cells[0]:
        raise InputError("a table of 0 questions: give one or more")
    for row, answer in enumerate(cells[-1]):  # checked first: next to a gap, pandas makes integers floats
        if answer is None or (isinstance(answer, float) and isnan(answer)):
            raise InputError(f"row {row}: there is no answer: give the index from 0, the letter from A, or a label")
    return [_question(row, *of_row) for row, of_row in enumerate(zip(*cells, strict=True))]


def _question(row: int, text: Any, choices: Any, answer: Any) -> Question:
    """Build the question of a row."""
    check_strings([text], "the column of questions", row)
    choices, labels = _choices(row, choices)
    if not all(part.strip() for part in (text, *choices)):
        raise InputError(f"row {row}: the question or a choice is blank, and a model reads both: give text")
    names = labels or list(ascii_uppercase[: len(choices)])
    if str(answer) in names:
        index = names.index(str(answer))
    elif labels is None and str(answer).isdecimal() and int(answer) < len(choices):
        index = int(answer)
    else:
        taken = f"one of the labels {', '.join(labels)}" if labels else "the index from 0 or the letter from A"
        raise InputError(f"row {row}: the answer to {len(choices)} choices is {answer!r:.40}: give {taken}")
    others = [choice.strip() for place, choice in enumerate(choices) if place != index]
    if labels is None and isinstance(answer, str) and answer in others:
        raise InputError(
            f"row {row}: the answer {answer!r} would stand for {choices[index]!r:.40}, and is another choice itself: "
            'give the index as a number, or labels, choices={"text": […], "label": […]}'
        )
    return Question(text, choices, index)


def _choices(row: int, cell: Any) -> tuple[list[str], list[str] | None]:
    """Read the choices in a cell, and their labels if they have any."""
    given = cell
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError:
            cell = None
    labels = None
    if isinstance(cell, Mapping):
        labels, cell = cell.get("label"), cell.get("text")
        labels = [str(label) for label in as_list(labels)] if isinstance(labels, list | tuple | np.ndarray) else []
    if not isinstance(cell, list | tuple | np.ndarray) or len(cell) < 2:
        raise InputError(f"row {row}: choices are {given!r:.60}: give a list of two or more, in a CSV as JSON")
    if labels is not None and not len(labels) == len(set(labels)) == len(cell):
        raise InputError(f"row {row}: {len(cell)} choices with the labels {labels}: give each a label of its own")
    choices = as_list(cell)
    check_strings(choices, f"choices of row {row}")
    return choices, labels
