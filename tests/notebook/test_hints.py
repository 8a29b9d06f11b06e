"""Every exercise has a hint, folded and in steps; no code tells it before it is asked for."""

import re

import pytest

from howlinear.notebook import execute
from tools.book import solutions

FOLD = re.compile(r"^<details><summary>Hint</summary>\n\n(.+?)\n\n</details>$", re.DOTALL | re.MULTILINE)
STEP = re.compile(r"^Step (\d): ", re.MULTILINE)


def hints(source):
    """The numbers of the steps of each hint in a text."""
    return [[int(step) for step in STEP.findall(hint)] for hint in FOLD.findall(source)]


@pytest.mark.parametrize("stem", execute.stems())
def test_every_exercise_has_one_folded_hint_of_two_or_three_steps(stem):
    _, asked = solutions.exercises(solutions.notebook(stem).cells)
    found = {number: hints(cells[0].source) for number, cells in asked.items()}
    assert {number: steps for number, steps in found.items() if steps not in ([[1, 2]], [[1, 2, 3]])} == {}
