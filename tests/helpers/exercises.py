"""Tests of a notebook's exercises: the right answer is accepted, and plausible wrong ones are rejected with a hint.

An exercise is a cell of the notebook with one line `name = None  # what is asked for`. The solution of the same stem,
run on profile smoke, leaves the right answer under that name, and everything else that the cell reads under the
notebook's own names. So the notebook's own cell judges every answer, without running the notebook.

A test module is named after the notebook, imports `TestExercises`, and has several functions for each exercise that
make wrong answers from the names that the solution left:

    WRONG = {"in_sample": {"a constant": lambda names: 0.5, …}, …}
"""

import re
from functools import cache
from typing import Any

import jupytext
import pytest

from howlinear.files import paths

Names = dict[str, Any]  # a solution's names and their values
ASKED = re.compile(r"^(\w+) = None  # .*$", re.MULTILINE)
LEAST = 4  # wrong answers for each exercise


@cache
def cells(stem: str) -> dict[str, str]:
    """Exercise → the notebook's cell that waits for its answer."""
    sources = [cell.source for cell in jupytext.read(paths.NOTEBOOKS / f"{stem}.py").cells if cell.cell_type == "code"]
    return {name: source for source in sources for name in ASKED.findall(source)}


def solved(stem: str) -> Names:
    """A solution's names after it has run on profile smoke, where its own assertions hold."""
    source = (paths.NOTEBOOKS / "solutions" / f"{stem}.py").read_text(encoding="utf-8")
    assert source.count("assert ") >= 2
    names: Names = {}
    exec(compile(source.replace('profile = "minis"', 'profile = "smoke"'), stem, "exec"), names)
    return names


def answered(stem: str, names: Names, name: str, given: Any) -> None:
    """Run the cell of an exercise with an answer in place of None."""
    source = ASKED.sub(f"{name} = given", cells(stem)[name])
    exec(compile(source, f"{stem}, {name}", "exec"), {**names, "given": given})


class TestExercises:
    """Tests of the exercises of the notebook that a test module is named after."""

    pytestmark = pytest.mark.long

    def pytest_generate_tests(self, metafunc):
        wrong = metafunc.module.WRONG
        if "slip" in metafunc.fixturenames:
            metafunc.parametrize(("name", "slip"), [(name, slip) for name, slips in wrong.items() for slip in slips])
        elif "name" in metafunc.fixturenames:
            metafunc.parametrize("name", wrong)

    @pytest.fixture(scope="class")
    @classmethod
    def stem(cls, request):
        return request.module.__name__.rpartition("test_exercises_")[2]

    @pytest.fixture(scope="class")
    @classmethod
    def names(cls, stem, shared_folder):
        """The solution's names. It runs once, and the solutions of all notebooks share its captures."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "BUILD", shared_folder / "solutions")
            yield solved(stem)

    def test_every_exercise_is_tried_with_several_slips(self, stem, request):
        wrong = request.module.WRONG
        assert wrong.keys() == cells(stem).keys()
        assert {name: len(slips) for name, slips in wrong.items() if len(slips) < LEAST} == {}

    def test_an_exercise_without_an_answer_judges_nothing(self, stem, names, name, capsys):
        answered(stem, names, name, None)
        assert "right" not in capsys.readouterr().out

    def test_the_right_answer_is_told_so(self, stem, names, name, capsys):
        answered(stem, names, name, names[name])
        assert capsys.readouterr().out.count("right: ") == 1

    def test_a_wrong_answer_is_rejected_with_a_hint(self, stem, names, name, slip, capsys, request):
        with pytest.raises(AssertionError, match=r"\w+ \w+"):
            answered(stem, names, name, request.module.WRONG[name][slip](names))
        assert "right" not in capsys.readouterr().out
