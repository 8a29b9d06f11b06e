"""`import howlinear` is light, and brings every public name when it is asked for."""

import json
import subprocess
import sys

import pytest

import howlinear as hl

pytestmark = pytest.mark.long

ASK_FOR_ALL = """
import sys, howlinear as hl, howlinear.errors, howlinear.files.atomic

print("torch" in sys.modules)
import howlinear.notebook.execute

print("torch" in sys.modules)
hl.plots.profile
print("torch" in sys.modules, "plots" in dir(hl))
"""


def test_the_import_its_errors_the_start_of_a_notebook_and_plots_do_not_wait_for_torch():
    done = subprocess.run([sys.executable, "-c", ASK_FOR_ALL], capture_output=True, text=True)
    assert done.stdout == "False\nFalse\nFalse True\n"


CALLS = {
    "--help": 0,
    "--version": 0,
    "measure --help": 0,
    "measure nosuch": 2,
    "measure no/such/model": 2,
    "measure mini-gpt2 --corpus nosuch": 2,
    "measure mini-gpt2 --corpus nosuch.txt": 2,
    "measure mini-gpt2 --json no/such/folder.json": 2,
    "compress nosuch --max-dppl 1 --out small": 2,
    "compress mini-gpt2 --max-dppl 1 --out small --corpus nosuch": 2,
    "compress mini-gpt2 --max-parameters 1.5 --out new": 2,
    "compress mini-gpt2 --max-dppl inf --out new": 2,
    "compress mini-gpt2 --max-parameters 0.9 --out .": 2,
    "compress mini-gpt2 --max-parameters 0.9 --out /proc/new/folder": 2,
    "notebook --list": 0,
}
CALL_ALL = """
import contextlib, io, json, sys
from howlinear.app.cli import main

for words in json.loads(sys.stdin.read()):
    sys.argv = ["howlinear", *words.split()]
    code, said = 0, io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    heavy = {"torch", "transformers", "pandas"} & set(sys.modules)
    print(json.dumps([words, code, len(said.getvalue().splitlines()), sorted(heavy)]))
"""


def test_help_and_names_of_nothing_wait_for_nothing_heavy():
    """All in one process: whoever imports something heavy is the first for which it is there."""
    done = subprocess.run([sys.executable, "-c", CALL_ALL], input=json.dumps([*CALLS]), capture_output=True, text=True)
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert {words: code for words, code, *_ in replies} == CALLS
    assert {lines for _, code, lines, _ in replies if code} == {1}
    *others, listing = (heavy for *_, heavy in replies)
    assert not any(others)
    assert listing == ["pandas"]


def test_every_public_name_is_there_in_each_way_of_asking():
    assert {"measure", "ceiling", "results", "plots"} <= set(hl.__all__) <= set(dir(hl))
    namespace = {}
    exec("from howlinear import *", namespace)
    for name in hl.__all__:
        assert namespace[name] is getattr(hl, name)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="mesure"):
        _ = hl.mesure
    assert not hasattr(hl, "__wrapped__")


def test_the_folders_are_there_too():
    assert hl.Moments is hl.core.moments.Moments


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.txt").write_text("\n\n".join(f"Line {number} of a text, no two alike." for number in range(900)))
    model = hl.load_model("mini-gpt2")
    hl.save(model, "~/model")
    profile = hl.measure("~/model", "~/my.txt", rows=4_096)
    profile.save("~/p.json")
    assert hl.load_profile("~/p.json").to_dict() == profile.to_dict()
    assert {"model", "p.json"} <= {path.name for path in tmp_path.iterdir()}
