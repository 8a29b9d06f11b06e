"""Nothing runs that a user did not ask to run, and nothing is written where it does not belong."""

import ast
import io
import json
import pickle
import re
from pathlib import Path

import pytest
import torch

import howlinear as hl
from conftest import tiny
from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.notebook import execute, settings
from howlinear.notebook import run as notebooks
from howlinear.training.loop import Recipe, train

SOURCES = [path for top in ("lib/howlinear", "tools") for path in (paths.ROOT / top).rglob("*.py")]
OUTSIDE = ["../x", "..", ".", "", "a/../..", "a/../../../x", "/etc/x", "x/../../y"]


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


# --- pickle and code


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickled_weights_are_never_opened(tmp_path, name):
    tiny("mini-gpt2").save_pretrained(tmp_path / "m")
    (tmp_path / "m" / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    hl.load_model(tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    with pytest.raises(SourceError, match=f"holds only {name}, which can run code when opened"):
        hl.load_model(tmp_path / "m")
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_runs_code_is_refused(tmp_path, rows):
    stored = io.BytesIO()
    torch.save({"recipe": Bomb(tmp_path / "ran")}, stored)
    (tmp_path / "c.pt").write_bytes(stored.getvalue())
    stream = {"docs": torch.arange(80).repeat(4)}
    with pytest.raises(SourceError, match="it is damaged"):
        train(tiny("mini-gpt2"), stream, rows, Recipe(steps=1), tmp_path / "c.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("entry", ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"])
def test_remote_code_in_a_folder_is_not_run(tmp_path, tokenizer, entry):
    folder = tmp_path / "m"
    tiny("mini-gpt2").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "tokenizer_config.json"):
        said = json.loads((folder / name).read_text()) | {"auto_map": {entry: ["own.Own", "own.Own"]}}
        (folder / name).write_text(json.dumps(said | ({"model_type": "own"} if entry != "AutoTokenizer" else {})))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    try:
        hl.load_corpus("docs", hl.load_model(folder))
    except SourceError as error:
        assert str(folder) in str(error)  # noqa: PT017
    assert not (tmp_path / "ran").exists()


def called(tree):
    """Every call in a module: its dotted name and its keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


def test_the_package_loads_weights_alone_and_no_remote_code():
    """What else can run code, pickles, shells and `eval`, ruff refuses (S)."""
    for path in SOURCES:
        for name, keywords in called(ast.parse(path.read_text(encoding="utf-8"))):
            assert name != "torch.load" or keywords.get("weights_only") == "True", path
            own = name.split(".")[-1] != "from_pretrained" or "TokenizerFast" in name
            assert own or keywords.get("trust_remote_code") == "False", f"{path}: {name}"


# --- the shell and the pipeline


def test_the_pipeline_quotes_whatever_reaches_a_shell():
    text = (paths.ROOT / "tools" / "Snakefile").read_text()
    commands = re.findall(r"^ +shell:.*\n((?: +\".*\"\n)+)", text, re.MULTILINE)
    assert len(commands) == len(re.findall(r"^ +shell:", text, re.MULTILINE)) >= 5
    for command in commands:
        fields = re.findall(r"\{([^{}]+)\}", command.replace("{{", "").replace("}}", ""))
        assert fields, command
        for field in fields:
            assert field.endswith(":q") or field == "threads", command


@pytest.mark.parametrize(
    "name", ["x; touch ran", "$(touch ran)", "`touch ran`", "a b", "'", "{BUILD}", ".hidden", "-n"]
)
def test_a_run_profile_and_a_text_of_odd_names_go_by_safe_ones(tmp_path, name):
    (tmp_path / f"{name}.txt").write_text("text")
    (tmp_path / f"{name}.yaml").write_text(json.dumps({"extends": "smoke", "corpora": [f"./{name}.txt"]}))
    profile = settings.read(f"{tmp_path}/{name}.yaml")
    (corpus,) = profile.corpora_by_name
    for safe in (profile.name, corpus):
        assert re.fullmatch(r"\w[\w.+-]*", safe)
    assert profile.corpora_by_name == {corpus: str(tmp_path / f"{name}.txt")}


# --- paths


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("folder", [paths.results, paths.figures, paths.build])
def test_a_profiles_folders_lie_in_the_project(folder, name):
    with pytest.raises(InputError, match="leads out of"):
        folder(name)


def test_folders_below_are_fine():
    assert paths.inside(Path("/a/b"), "c/d") == Path("/a/b/c/d")
    assert paths.inside(Path("/a/b"), "c/../d") == Path("/a/b/d")


@pytest.mark.parametrize("name", ["../x", "../../etc/x", "/etc/x", "a/../../x"])
def test_names_do_not_lead_out_of_the_project(name, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    run = notebooks.start("02_ceilings", "smoke")
    with pytest.raises(SourceError, match="no run profile"):
        execute.execute("02_ceilings", {"profile": name})
    for attempt in (
        lambda: execute.execute(name),
        lambda: run.capture_path(name, "docs"),
        lambda: run.capture_path("mini-gpt2", name),
        lambda: notebooks.Run(name, "smoke", {}, [], 1, 1, 1, 1).save({}),
        lambda: notebooks.Run("x", name, {}, [], 1, 1, 1, 1).save({}),
    ):
        with pytest.raises(InputError, match="leads out of"):
            attempt()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds no keys"),
        ("name: [", "cannot read profile"),
        ("\0", "cannot read profile"),
        ("!!python/object/apply:os.system ['touch ran']", "cannot read profile"),
        ("extends: ../x", "no run profile"),
        ("extends: nope", "no profile 'nope' .*: odd, whole; or"),
        ("models: gpt2", "models is 'gpt2'; give a list"),
        ("models: []", r"models is \[\]; give names"),
        ("models: [..]", r"models is \['..'\]; give names"),
        ("rows: '4096'", "rows is '4096'; give a whole number"),
        ("seed: true", "seed is True; give a whole number"),
        ("corpora: [3]", r"corpora is \[3\]; give names"),
        ("texts: [a, b]", r"texts is \['a', 'b'\]; give names"),
        ("paramters: {}", "paramters is {}; give no such key"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(paths, "PROFILES", tmp_path)
    monkeypatch.chdir(tmp_path)
    whole = "models: [models/mini-gpt2]\ncorpora: [docs]\nrows: 4096\nseq_len: 128\nseed: 0\nsample: 64\n"
    (tmp_path / "whole.yaml").write_text(whole)
    alone = content[0] in "[!\0" or "extends" in content
    (tmp_path / "odd.yaml").write_text(content if alone else f"extends: whole\n{content}\n")
    with pytest.raises((InputError, SourceError), match=message):
        settings.read("odd")
    assert not (tmp_path / "ran").exists()


# --- parameters have types

CELL = """# %% tags=["parameters"]
profile = "smoke"
count = 3
share = 0.5
many = [1, 2]
rates = [1e-3]
few = 2
high = 0.9
steps: int or None = None
some: list or None = None
"""


@pytest.fixture
def tiny_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    paths.NOTEBOOKS.mkdir()
    shown = "print(repr((count, share, many, rates, few, high, steps, some)))"
    (paths.NOTEBOOKS / "00_tiny.py").write_text(f"{CELL}\n# %%\n{shown}\n")


@pytest.mark.usefixtures("tiny_notebook")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "4"}, "notebook 00_tiny: count is '4', a str: give int, as its default 3 is"),
        ({"count": "__import__('os').system('ls')"}, "a str: give int"),
        ({"count": 1.5}, "a float: give int"),
        ({"count": True}, "a bool: give int"),
        ({"count": None}, "give int"),
        ({"share": "x"}, "give float"),
        ({"many": 3}, "an? int: give list"),
        ({"many": [1, "2"]}, r"many\[1\] is '2', a str: give int"),
        ({"rates": ["x"]}, r"rates\[0\] is 'x'"),
        ({"few": "x"}, "give int, as its default 2 is"),
        ({"steps": "x"}, "a str: give int or None"),
        ({"some": [1.5]}, r"some\[0\] is 1.5, a float"),
        ({"profile": 3}, "an? int: give str"),
        ({"nope": 3}, "no parameter nope; it has profile, count"),
    ],
)
def test_a_parameter_of_another_type_is_refused_before_anything_runs(given, message):
    with pytest.raises(InputError, match=message):
        execute.execute("00_tiny", given)
    assert not paths.BUILD.exists()


@pytest.mark.usefixtures("tiny_notebook")
def test_parameters_of_their_types_arrive():
    given = {"count": 4, "share": 1, "many": (3, 4), "rates": [1], "few": 5, "high": 1, "steps": 7, "some": [8, "a"]}
    path = execute.execute("00_tiny", given)
    assert path == paths.scratch("minis") / "notebooks" / "00_tiny.ipynb"
    outputs = [output["text"] for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", [])]
    assert outputs == [["(4, 1.0, [3, 4], [1.0], 5, 1.0, 7, [8, 'a'])\n"]]
