"""The course's notebooks: solutions in the instructor's copy alone, and checks that fail without an answer."""

import ast
import json
import re
import symtable

import jsonschema
import jupytext
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from howlinear.errors import InputError
from howlinear.files import paths
from howlinear.notebook import execute
from tools import course, report
from tools.book import build

ANY, TEXT, NUMBER = {"type": "boolean"}, {"type": "string"}, {"type": "number", "minimum": 0}
NBGRADER = {  # a cell's metadata as version 3 of nbgrader's format has it
    "type": "object",
    "properties": {
        "schema_version": {"const": 3},
        "grade": ANY,
        "solution": ANY,
        "locked": ANY,
        "task": ANY,
        "grade_id": {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$"},
        "points": NUMBER,
        "checksum": TEXT,
        "cell_type": TEXT,
    },
    "required": ["schema_version", "grade", "solution", "locked", "grade_id"],
    "additionalProperties": False,
}

ELSEWHERE = "Solutions are in `solutions/02_small.py`; try first."

PLAIN = """\
shift = 1  # set-up
one = None  # a number

if one is not None:
    # why
    assert one == two - shift, "count again"
    print("right:", one)"""

PAIR = """\
first, second = None, None

limit = 5
if first is not None:
    assert first < second < limit, "in order\""""

FORMULA = """\
def square(x):
    return None  # a formula


if (answer := square(3)) is not None:
    assert answer == 9, "x times x"
print("done")"""


def notebook():
    return new_notebook(
        cells=[
            new_markdown_cell("# 02 · How small?\n\nA [block](../book/reading.md#block)."),
            new_code_cell('profile = "minis"  # which models', metadata={"tags": ["parameters"]}),
            new_code_cell(
                "two = 2\nif two is not None:\n    nothing = None", metadata={"tags": ["nbval-check-output"]}
            ),
            new_markdown_cell(f"## Exercises\n\n{ELSEWHERE}\n\n**1 (warm-up).** One?"),
            new_code_cell(PLAIN),
            new_markdown_cell("**2 (harder).** Two numbers in order."),
            new_code_cell(PAIR),
            new_markdown_cell("**3 (find the bug).** Squares."),
            new_code_cell(FORMULA),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "jupytext": {}},
    )


def answers():
    return new_notebook(
        cells=[
            new_markdown_cell("# 02 · Solutions"),
            new_code_cell('profile = "of the solutions"', metadata={"tags": ["parameters"]}),
            new_code_cell("import math"),
            new_markdown_cell("**1.** It is the secret one.\n\nBelieve it."),
            new_code_cell("one = math.gcd(3, 4)"),
            new_markdown_cell("**2.** The secret pair."),
            new_code_cell("first, second = 3, 4"),
            new_markdown_cell("**3.** The secret square."),
            new_code_cell("def square(x):\n    return x * x"),
        ]
    )


@pytest.fixture(scope="module")
def copies():
    """Both copies of the small notebook."""
    solved = course.instructors("02_small", notebook(), answers())
    return solved, course.students(solved)


def graded(copy):
    """Cells with a name in the grade book, by that name."""
    return {cell.metadata.nbgrader.grade_id: cell for cell in copy.cells if "nbgrader" in cell.metadata}


def run(copy):
    """Run a copy as nbgrader does, past errors; what each check failed with, or None, and the names that are left."""
    names, outcomes = {}, {}
    for cell in copy.cells:
        if cell.cell_type == "code":
            outcome = None
            try:
                exec(cell.source, names)
            except AssertionError as error:
                outcome = str(error)
            if "nbgrader" in cell.metadata and cell.metadata.nbgrader.grade:
                outcomes[cell.metadata.nbgrader.grade_id] = outcome
    return outcomes, names


CHECKS = [f"02_small-{number}-check" for number in (1, 2, 3)]


def test_without_an_answer_every_check_fails(copies, capsys):
    assert run(copies[1])[0] == dict.fromkeys(CHECKS, "there is no answer yet")
    assert "right" not in capsys.readouterr().out


def test_with_the_solutions_every_check_passes(copies, capsys):
    outcomes, names = run(copies[0])
    assert outcomes == dict.fromkeys(CHECKS)
    assert "answer" not in names  # a check leaves no name behind that an answer uses
    assert capsys.readouterr().out == "right: 1\ndone\n"


def test_a_wrong_answer_fails_with_the_checks_own_hint(copies):
    wrong = nbformat.from_dict(copies[1])
    graded(wrong)["02_small-1-answer"].source += "\none = 7"
    assert run(wrong)[0]["02_small-1-check"] == "count again"


def test_no_solution_is_in_the_students_copy(copies):
    solved, empty = (json.dumps(copy) for copy in copies)
    secrets = ("secret", "Believe", "gcd", "import math", "3, 4", "x * x", "SOLUTION", "Solutions", "solutions/")
    assert [secret for secret in secrets if secret in empty] == []
    assert [secret for secret in secrets if secret not in solved] == ["Solutions", "solutions/"]


def holds_the_format(copy):
    nbformat.validate(copy)
    names = [cell.metadata.nbgrader.grade_id for cell in copy.cells if "nbgrader" in cell.metadata]
    assert len(set(names)) == len(names) > 0
    ids = [cell.id for cell in copy.cells]
    assert len(set(ids)) == len(ids)
    for cell in graded(copy).values():
        kept = cell.metadata.nbgrader
        jsonschema.validate(kept, NBGRADER)
        assert cell.cell_type == "code"
        assert kept.grade == kept.locked == ("points" in kept) == (not kept.solution)


def test_both_copies_hold_nbgraders_format(copies):
    for copy in copies:
        holds_the_format(copy)
        assert copy.metadata == {"kernelspec": notebook().metadata.kernelspec}  # Jupytext would write a text beside it


def test_a_copy_runs_in_a_minute_and_its_links_lead_out_of_the_folder(copies):
    source = "\n".join(cell.source for cell in copies[1].cells)
    assert 'profile = "lesson"  # which models' in source
    assert "(../../../book/reading.md#block)" in source
    assert f"Write each answer where it says `{course.STUB}`" in source
    tags = [cell.metadata.tags for cell in copies[0].cells if "tags" in cell.metadata]
    assert tags == [["parameters"]]  # no cell's output is compared: there is none
    on_record = course.instructors("13_claims", notebook(), answers())
    assert any('profile = "minis"' in cell.source for cell in on_record.cells)


@pytest.mark.parametrize("source", ["one = None", "if one is not None:\n    pass", "pass"])
def test_an_exercise_without_an_open_answer_or_a_check_is_refused(source):
    broken = notebook()
    broken.cells[4].source = source
    with pytest.raises(InputError, match=r"exercises \[1\] have no cell that leaves an answer open"):
        course.instructors("02_small", broken, answers())


def test_points_are_by_how_hard_an_exercise_is_and_shared_by_the_checks_of_its_answers():
    double = notebook()
    double.cells.insert(7, new_code_cell("second = None\n\nif second is not None:\n    assert second == 4"))
    solved = course.instructors("02_small", double, answers())
    holds_the_format(solved)
    found = {name: cell.metadata.nbgrader.points for name, cell in graded(solved).items() if name.endswith("check")}
    assert found == {CHECKS[0]: 1, CHECKS[1]: 1.5, "02_small-2b-check": 1.5, CHECKS[2]: 2}
    assert set(run(solved)[0].values()) == {None}
    assert set(run(course.students(solved))[0].values()) == {"there is no answer yet"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The project's own course, without its slides."""
    patch = pytest.MonkeyPatch()
    patch.setattr(paths, "BUILD", tmp_path_factory.mktemp("course"))
    patch.setattr(report, "write_slides", lambda folder: None)
    course.write(execute.stems())
    yield paths.BUILD / "course"
    patch.undo()


def words_of(text):
    return {line.strip() for line in text.splitlines() if len(line.strip()) > 20}


def read_too_early(source):
    """Names that a check gives a value and reads before, in the order of the text."""
    found = []
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef) and function.name == "check_answer":
            own = symtable.symtable(source, "check", "exec").lookup("check_answer").get_namespace()
            names = sorted(
                (node for node in ast.walk(function) if isinstance(node, ast.Name)),
                key=lambda node: (node.lineno, node.col_offset),
            )
            for name in own.get_locals():
                uses = [node for node in names if node.id == name]
                stored = min((node.lineno for node in uses if isinstance(node.ctx, ast.Store)), default=0)
                found += [name for node in uses if isinstance(node.ctx, ast.Load) and node.lineno < stored]
    return found


def test_a_name_that_is_read_too_early_is_seen():
    assert read_too_early("def check_answer():\n    a = b\n    b = a\n    print(a, c)\n") == ["b"]


@pytest.mark.parametrize("stem", execute.stems())
def test_the_projects_notebooks_become_a_course_with_lesson_plans(stem, written):
    solved, empty = (nbformat.read(written / folder / f"{stem}.ipynb", 4) for folder in ("instructor", "student"))
    original = jupytext.read(paths.NOTEBOOKS / f"{stem}.py")
    asked = [number for cell in original.cells for number, _ in course.solutions.EXERCISE.findall(cell.source)]
    for copy in (solved, empty):
        holds_the_format(copy)
        assert list(dict.fromkeys(re.findall(r"-(\d)[b-f]?-check", " ".join(graded(copy))))) == asked
    text = "\n".join(cell.source for cell in empty.cells)
    shown = words_of("\n".join(cell.source for cell in original.cells))
    hidden = words_of("\n".join(region for cell in solved.cells for region in course.REGION.findall(cell.source)))
    assert len(hidden) > 5
    assert (hidden & words_of(text)) - shown == set()
    assert "SOLUTION" not in text
    for cell in graded(solved).values():
        compile(cell.source, cell.id, "exec")
        assert read_too_early(cell.source) == [], "within a function such a name has no value yet"
    (shown,) = re.findall(r"\]\((.+\.png)\)", (written / "plans" / f"{stem}.md").read_text(encoding="utf-8"))
    assert (written / "plans" / shown).is_file()


def test_a_fault_is_told_with_the_notebook_it_is_in(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    monkeypatch.setattr(execute, "stems", lambda: ["02_ceilings"])
    monkeypatch.setattr(build, "solutions", lambda stem: new_notebook())
    with pytest.raises(SystemExit, match="2"):
        course.main()
    told = capsys.readouterr().err
    assert told.startswith("howlinear: notebook 02_ceilings: exercises [1, 2, 3, 4] but solutions []")
