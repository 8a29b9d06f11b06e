import jupytext
import pytest

from howlinear.files import paths
from howlinear.notebook import execute
from tools import reading_time
from tools.book import solutions


@pytest.mark.parametrize("stem", execute.stems())
def test_a_header_says_how_long_its_notebook_takes(stem):
    """If this fails, a notebook has grown or shrunk: run `make readme`."""
    text = (paths.NOTEBOOKS / f"{stem}.py").read_text(encoding="utf-8")
    ((read, _),) = reading_time.STATED.findall(text)  # to run: as it was on some machine
    assert int(read) == reading_time.minutes(solutions.notebook(stem))


def minutes(*cells):
    return reading_time.minutes(jupytext.reads("\n\n".join(cells), "py:percent"))


def test_minutes_are_of_words_lines_and_figures_before_the_exercises():
    words = "# %% [markdown]\n# " + "word " * 1300  # 10 minutes
    code = "# %%\n" + "x = 1\n" * 140  # 10 minutes
    figures = "# %%\nrun.figure(x)\n" * 2
    exercises = "# %% [markdown]\n# ## Exercises\n# " + "word " * 1300
    assert minutes(words) == 10
    assert minutes(words, code) == 20
    assert minutes(words, code, figures) == 25  # and two lines: 23.1
    assert minutes(words, code, exercises, code) == 20


def test_lines_of_code_are_those_that_are_read():
    assert reading_time.code_lines("import a\n\nfrom b import (\n    c,\n)\nx = 1\n\n# why\ny = 2\n") == 3


def test_the_minutes_are_written_into_the_header_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    (tmp_path / "01_tiny").mkdir()
    (tmp_path / "01_tiny/run.json").write_text('{"seconds": 60.1}')
    monkeypatch.setattr(paths, "results", lambda profile: tmp_path)
    header = "# %% [markdown]\n# **Time** 10 minutes to read, 1 to run.\n"
    path = tmp_path / "01_tiny.py"
    path.write_text(f"{header}\n# %% [markdown]\n# {'word ' * 2600}", encoding="utf-8")
    reading_time.main()
    assert capsys.readouterr().out.startswith("01_tiny.py: ")
    assert path.read_text(encoding="utf-8").startswith(header.replace("10", "20").replace("1 to", "2 to"))
    reading_time.main()
    assert capsys.readouterr().out == ""
