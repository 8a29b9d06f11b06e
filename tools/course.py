"""A course's notebooks in nbgrader's format, for students and, with solutions, for the instructor; plans and slides.

`make course`, or `python -m tools.course`, writes `build/course`. An exercise of a notebook is one cell: `name = None`,
then `if name is not None:` with code that checks the answer. Here it becomes two cells, as nbgrader requires: an answer
cell, which in the instructor's copy holds the solution between two marks, and a locked check, which first asserts that
there is an answer. The students' copy is the instructor's without everything between the marks, which is also how
`nbgrader generate_assignment` makes a student's version.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Sequence

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from howlinear.errors import InputError, ending_in_one_line
from howlinear.files import atomic, paths
from howlinear.notebook import execute
from tools import lessons, report
from tools.book import build, solutions

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
STUB = "# YOUR CODE HERE"
REGION = re.compile(rf"^{BEGIN}$.*?^{END}$", re.MULTILINE | re.DOTALL)

POINTS = {"warm-up": 1, "easy": 1, "medium": 2, "harder": 3, "find the bug": 2}
"""Points of an exercise by its stated difficulty; two points for any other difficulty."""

LESSON = re.compile(r'^profile = "minis"', re.MULTILINE)
ON_RECORD = ("13_claims",)
"""Notebooks that judge recorded results. The others run on profile `lesson`, which has no recorded results."""

WHERE_SOLUTIONS_ARE = re.compile(
    r"Solutions are in `[^`]+`; try first\.(?: Each cell checks your answer when you fill it in\.)?"
    r"| \(solutions: `[^`]+`\)"
)
NOW_TWO_CELLS = f"Write each answer where it says `{STUB}`; the cell below checks it."


def instructors(stem: str, notebook: NotebookNode, answers: NotebookNode) -> NotebookNode:
    """The notebook with its solutions filled in, every exercise an answer cell and a graded check.

    Their names in the grade book begin with the notebook's stem. If an exercise has several cells, each holds the whole
    solution.
    """
    start, parts = solutions.paired(notebook, answers)
    lead = [cell for cell in start if "parameters" not in cell.metadata.get("tags", [])]  # the notebook has its own
    _, exercises = solutions.exercises(notebook.cells)
    left_open = {number: [cell.id for cell in cells if _is_open(cell)] for number, cells in exercises.items()}
    lacking = [number for number, cells in left_open.items() if not cells]
    if lacking:
        raise InputError(f"exercises {lacking} have no cell that leaves an answer open and then checks it")

    cells = []
    for number, cell in solutions.numbered(notebook.cells):
        if not number or not _is_open(cell):
            cells.append(_for_class(stem, cell))
            continue
        asked = left_open[number]
        name = f"{stem}-{number}{' bcdef'[asked.index(cell.id)].strip()}"  # 1, or 1 and 1b for two cells
        difficulty = solutions.EXERCISE.search(exercises[number][0].source).group(2)
        answer, check = split(cell.source)
        region = f"{answer}\n\n{BEGIN}\n{_as_code([*lead, *parts[number]])}\n{END}"
        cells.append(new_code_cell(region, metadata=_graded(f"{name}-answer", solution=True)))
        cells.append(new_code_cell(check, metadata=_graded(f"{name}-check", worth=points(difficulty) / len(asked))))
        lead = []  # the start of the solutions goes into the first one only
    return _whole(stem, cells, notebook.metadata.get("kernelspec"))


def students(notebook: NotebookNode) -> NotebookNode:
    """The instructor's copy without the text between the marks."""
    cells = [NotebookNode(cell | {"source": REGION.sub(STUB, cell.source)}) for cell in notebook.cells]
    return NotebookNode(notebook | {"cells": cells})


def split(source: str) -> tuple[str, str] | None:
    """An exercise's cell as an answer left open and a check that fails without an answer; None for any other cell.

    The first part is everything up to and including the open answer. The second is the rest, with a function in the
    place of the `if`, so that a check leaves no name behind that an answer could use.
    """
    statements = ast.parse(source).body
    left_open = next((node for node in statements if _leaves_open(node)), None)
    check = next((node for node in statements if _asks_for_an_answer(node)), None)
    if left_open is None or check is None:
        return None
    lines = source.splitlines()
    judged = [
        "def check_answer():",
        f'    assert {ast.get_source_segment(source, check.test)}, "there is no answer yet"',
        *lines[check.test.end_lineno : check.end_lineno],
    ]
    pieces = [lines[left_open.end_lineno : check.lineno - 1], judged, ["check_answer()"], lines[check.end_lineno :]]
    texts = ["\n".join(piece).strip() for piece in pieces]
    return "\n".join(lines[: left_open.end_lineno]).strip(), "\n\n\n".join(text for text in texts if text)


def _is_open(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and split(cell.source) is not None


def points(difficulty: str) -> int:
    """Points of an exercise by its stated difficulty: `warm-up`, `medium`, `harder`, `find the bug`."""
    return POINTS.get(difficulty, 2)


def _leaves_open(node: ast.stmt) -> bool:
    """`name = None`, `one, other = None, None`, or a function that returns None."""
    if isinstance(node, ast.FunctionDef):
        node = node.body[-1]
    if not isinstance(node, ast.Assign | ast.Return) or node.value is None:
        return False
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    return all(isinstance(value, ast.Constant) and value.value is None for value in values)


def _asks_for_an_answer(node: ast.stmt) -> bool:
    """`if … is not None:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.IsNot)


def _as_code(cells: Sequence[NotebookNode]) -> str:
    """Cells as one listing, Markdown cells as comments."""
    texts = []
    for cell in cells:
        if cell.cell_type == "code":
            texts.append(cell.source)
        else:
            words = re.sub(r"^\*\*\d\.\*\* ", "", cell.source)
            texts.append("\n".join(f"# {line}".rstrip() for line in words.splitlines()))
    return "\n\n".join(texts)


def _graded(name: str, solution: bool = False, worth: float | None = None) -> dict[str, dict]:
    """The metadata that nbgrader keeps of a cell, in version 3 of its schema."""
    grade = worth is not None
    kept = {"schema_version": 3, "grade_id": name, "grade": grade, "solution": solution, "locked": grade, "task": False}
    return {"nbgrader": kept | ({"points": worth} if grade else {})}


def _for_class(stem: str, cell: NotebookNode) -> NotebookNode:
    """A cell outside the exercises: links lead out of `build/course`, it runs in a minute, no output is compared."""
    source, tags = cell.source, cell.metadata.get("tags", [])
    if cell.cell_type == "markdown":
        source = source.replace("](../book/", "](../../../book/")
        source = WHERE_SOLUTIONS_ARE.sub(lambda found: "" if found.group().startswith(" ") else NOW_TWO_CELLS, source)
    elif "parameters" in tags and stem not in ON_RECORD:
        source = LESSON.sub('profile = "lesson"', source)
    metadata = {"tags": ["parameters"]} if "parameters" in tags else {}
    return NotebookNode(cell | {"source": source, "metadata": NotebookNode(metadata)})


def _whole(stem: str, cells: Sequence[NotebookNode], kernel: NotebookNode | None) -> NotebookNode:
    """A notebook of these cells, with ids made from their positions, so that every run writes the same file."""
    for place, cell in enumerate(cells):
        cell["id"] = f"{stem}-{place}"
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel} if kernel else {})
    nbformat.validate(notebook)
    return notebook


def write(stems: Sequence[str]) -> None:
    """Write both copies of these notebooks, their lesson plans and the slides, replacing all of `build/course`."""
    course = paths.BUILD / "course"
    shutil.rmtree(course, ignore_errors=True)
    for stem in stems:
        try:
            solved = instructors(stem, solutions.notebook(stem), build.solutions(stem))
        except InputError as error:
            raise InputError(f"notebook {stem}: {error}") from error
        for folder, copy in (("instructor", solved), ("student", students(solved))):
            with atomic.written_aside(course / folder / f"{stem}.ipynb") as aside:
                nbformat.write(copy, aside)
    plans = course / "plans"
    for stem, plan in lessons.plans().items():
        if stem in stems:
            text = lessons.page(stem, plan, lessons.recorded(paths.results("minis"), stem))
            atomic.write_text(plans / f"{stem}.md", f"# {stem}\n\n{lessons.with_figures(text, plans)}\n")
    report.write_slides(course)


@ending_in_one_line()
def main() -> None:
    """Write the course."""
    write(execute.stems())
    print("build/course: notebooks in student and instructor, lesson plans in plans, slides.pdf, notes.pdf")


if __name__ == "__main__":
    main()
