import importlib.util
import subprocess
import sys

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from howlinear.errors import InputError
from howlinear.files import paths
from tools.book import build, solutions

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQAY3Y2wAAAAAElFTkSuQmCC"


def small(**metadata):
    """An executed notebook of two exercises, with the odd cell that papermill puts in."""
    drawn = new_output("display_data", {"image/png": PIXEL, "text/plain": "<Figure>"})
    return new_notebook(
        cells=[
            new_markdown_cell("# 02 · How small?\n\nIs $x$ small?\n\n$$ x^2 = \\lVert x \\rVert^2 $$"),
            new_code_cell('profile = "minis"', metadata={"tags": ["parameters"]}),
            new_code_cell('profile = "other"', metadata={"tags": ["injected-parameters"]}),
            new_markdown_cell("## Figure: a dot\n\nOf a [block](../book/reading.md#block)."),
            new_code_cell("plt.plot()", outputs=[drawn]),
            new_markdown_cell("## Exercises\n\nTry first.\n\n**1 (warm-up).** What is one?"),
            new_code_cell("one = None"),
            new_code_cell("one"),
            new_markdown_cell("**2 (harder).** What is $x$?"),
            new_code_cell("two = None"),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )


def answers(*numbers):
    cells = [new_markdown_cell("# 02 · Solutions"), new_code_cell("import numpy")]
    for number in numbers:
        cells += [new_markdown_cell(f"**{number}.** It is $x_{number}$."), new_code_cell(f"answer = {number}")]
    return new_notebook(cells=cells)


def test_every_solution_is_folded_below_its_exercise():
    cells = [cell.source for cell in solutions.folded(small(), answers(1, 2), "https://example.org/it").cells]
    first, second = (next(i for i, text in enumerate(cells) if f"dropdown}} Solution {n}" in text) for n in (1, 2))
    assert cells[first - 1] == "one"  # the last cell of the exercise
    assert cells[second - 1] == "two = None"
    assert second == len(cells) - 1
    assert "import numpy" in cells[first]  # what the solutions start from comes with the first
    assert "import numpy" not in cells[second]
    assert "**1.** It is $x_1$.\n\n```python\nanswer = 1\n```" in cells[first]
    assert "# 02 · Solutions" not in "\n".join(cells)


def test_figures_have_a_text():
    cells = solutions.folded(small(), answers(1, 2), "https://example.org/it").cells
    assert [cell.metadata["mystnb"] for cell in cells if "plot" in cell.source] == [{"image": {"alt": "Figure: a dot"}}]


@pytest.mark.parametrize("numbers", [(1,), (1, 2, 3), ()])
def test_exercises_without_solutions_and_solutions_without_exercises_are_refused(numbers):
    with pytest.raises(InputError, match="each needs the other"):
        solutions.folded(small(), answers(*numbers), "")


@pytest.mark.parametrize("shown", ["run.figure(figure)", "_ = run.figure(figure)"])
def test_what_draws_and_what_files_is_out_of_the_way_and_nothing_else(shown):
    notebook = small()
    notebook.cells[4].source = f"figure = 1\n{shown}"
    notebook.cells[7].source = "run.save({})"
    cells = solutions.folded(notebook, answers(1, 2), "").cells
    hidden = [cell.source for cell in cells if "hide-input" in cell.metadata.get("tags", [])]
    assert hidden == [f"figure = 1\n{shown}", "run.save({})"]


def test_outputs_and_order_are_kept_and_what_papermill_put_in_is_left_out():
    executed, cells = small().cells, solutions.folded(small(), answers(1, 2), "").cells
    kept = [cell for cell in cells if "dropdown" not in cell.source and "git" not in cell.source]
    assert [cell.source for cell in kept] == [cell.source for cell in executed if "other" not in cell.source]
    assert [cell.get("outputs") for cell in kept if cell.get("outputs")] == [executed[4].outputs]


@pytest.mark.parametrize("here", [True, False])
def test_the_first_cell_fetches_the_project_only_where_it_is_not(here, monkeypatch):
    first = solutions.folded(small(), answers(1, 2), "https://example.org/it").cells[0]
    assert first.metadata["tags"] == ["remove-cell"]
    ran = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if here else None)
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command) if check else None)
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    exec(first.source, {})
    assert [command[-1] for command in ran] == ([] if here else ["howlinear", "howlinear/tools/constraints.txt"])
    assert not ran or "https://example.org/it" in ran[0]
    assert sys.path == (["elsewhere"] if here else ["howlinear/lib", "elsewhere"])


def test_without_an_address_nothing_speaks_of_fetching_the_project(monkeypatch):
    monkeypatch.delenv("REPOSITORY", raising=False)
    cells = solutions.folded(small(), answers(1, 2), build.address()).cells
    assert cells[0].source.startswith("# 02")
    assert not [cell for cell in cells if "clone" in cell.source]
    text = (paths.ROOT / "book" / "reading.md").read_text(encoding="utf-8")
    assert "git clone" not in build.with_address(text, build.address())
    monkeypatch.setenv("REPOSITORY", "https://example.org/it")
    filled = build.with_address(text, build.address())
    assert "!git clone https://example.org/it howlinear" in filled
    assert "ADDRESS" not in filled
