"""The pipeline knows every module that a notebook stands on."""

import ast
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from helpers.forked import exit_codes, start
from howlinear.files import paths
from tools.reach import reached

pytestmark = pytest.mark.long

NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("[0-9]*.py"))


@pytest.fixture
def library(tmp_path):
    """Two packages: `top` imports `low`, `low.deep` imports `other`, and nobody imports `alone`."""
    files = {
        "top.py": "from pack import low\n",
        "pack/__init__.py": "",
        "pack/low.py": "def f():\n    import pack.deep\n",
        "pack/deep.py": "from other import value\nimport numpy\n",
        "pack/alone.py": "",
        "other.py": "import top\nvalue = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_imports_are_followed_through_packages_functions_and_circles_and_nothing_else_is(library):
    names = [path.relative_to(library).as_posix() for path in reached(library / "top.py", library)]
    assert names == ["other.py", "pack/__init__.py", "pack/deep.py", "pack/low.py"]


def say_what_is_loaded(statements):
    """Import anew all that is the package's, and print where it lies."""
    for name in ours():
        del sys.modules[name]
    exec(statements, {})
    for name in ours():
        print(sys.modules[name].__file__)


def ours():
    return [name for name in sys.modules if name.split(".")[0] == "howlinear"]


def test_names_of_a_lazy_package_are_followed_to_where_its_stub_has_them(tmp_path):
    (tmp_path / "lazy").mkdir()
    for name in ("__init__.py", "near.py", "far.py"):
        (tmp_path / "lazy" / name).write_text("")
    (tmp_path / "lazy" / "__init__.pyi").write_text("from . import far\nfrom .near import f, g\n")

    def stems(name, used):
        source = tmp_path / name
        source.write_text(f"import lazy as z\n{used}\n")
        return [path.stem for path in reached(source, tmp_path)]

    assert stems("none.py", "") == ["__init__"]
    assert stems("function.py", "z.g(1)") == ["__init__", "near"]
    assert stems("module.py", "z.far.h") == ["__init__", "far"]


def test_nothing_that_notebooks_import_is_missed(tmp_path):
    """Run the imports of every notebook, and ask for the public names that it uses: all that is then loaded is reached.

    In a process of its own: a class that is imported twice in one is two classes to whoever checks types.
    """
    lines = ["import howlinear as hl"]
    for notebook in NOTEBOOKS:
        tree = ast.parse(notebook.read_text())
        lines += [ast.unparse(one) for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
        lines += [
            f"hl.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hl"
        ]
    said = tmp_path / "said"
    assert exit_codes([start(said, say_what_is_loaded, "\n".join(lines))]) == [0], said.read_text()
    loaded = set(said.read_text().splitlines())
    assert loaded
    assert loaded <= {str(path) for notebook in NOTEBOOKS for path in reached(notebook)}


@pytest.fixture
def finished(tmp_path):
    """The project, as far as the pipeline reads it, with every output of the smoke profile there and newer than it."""
    for name in ("lib", "notebooks", "profiles", "tools"):
        shutil.copytree(paths.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "paper").mkdir()
    for name in ("claims.toml", "claims_ours.toml", "published.csv", "quoted.csv"):
        shutil.copy(paths.ROOT / "paper" / name, tmp_path / "paper")
    shutil.copytree(paths.MODELS, tmp_path / "models", copy_function=os.link)
    outputs = [tmp_path / "build/smoke/captures/mini-gpt2/docs.safetensors"]
    outputs += [tmp_path / "build/smoke/notebooks" / f"{notebook.stem}.ipynb" for notebook in NOTEBOOKS]
    for kind in ("results", "figures"):
        made = paths.ROOT / kind / "minis"
        outputs += [tmp_path / kind / "smoke" / path.relative_to(made) for path in made.rglob("*.*") if path.is_file()]
    now = time.time()
    for path in outputs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}" if path.suffix == ".json" else "")
        os.utime(path, (now, now))  # all at once: some notebooks read others' results
    return tmp_path


def planned(project, environment=None, ways=("--dry-run",)):
    """What Snakemake says that it would do in a project."""
    options = [*ways, "--cores", "1", "--nolock", "--config", "profile=smoke"]
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(project / "tools" / "Snakefile"), *options]
    run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def again(project, environment=None):
    """The notebooks that Snakemake would run in a project, and the corpora that it would capture."""
    plan = planned(project, environment)
    return set(re.findall(r": notebook (\w+)", plan)), set(re.findall(r": captures on (\w+)", plan))


def renew(file):
    """Let a file be newer than all that was made."""
    later = time.time() + 60
    os.utime(file, (later, later))


def test_a_changed_module_makes_every_notebook_that_reaches_it_run_again(finished):
    """Asked of Snakemake itself, of a module that few notebooks import, and some only through another."""
    module = finished / "lib/howlinear/ideas/degrees/nested.py"
    notebooks = sorted((finished / "notebooks").glob("[0-9]*.py"))
    reaching = {notebook.stem for notebook in notebooks if module in reached(notebook, finished / "lib")}
    renew(module)
    notebooks, _ = again(finished)
    assert reaching
    assert reaching <= notebooks
    assert notebooks <= reaching | {"13_claims"}  # which reads results that are then made anew


def test_new_weights_make_a_notebook_that_takes_no_capture_run_again(finished):
    weights = finished / "models/mini-gpt2/model.safetensors"
    weights.unlink()  # a link to the project's own
    weights.write_bytes(b"new")
    renew(weights)
    assert "11_protocol" in again(finished)[0]


def test_another_parameter_in_the_run_profile_makes_its_notebook_run_again(finished):
    planned(finished, ways=("--touch", "--forceall"))  # Snakemake notes what all was made with
    assert again(finished) == (set(), set())
    profile = finished / "profiles/smoke.yaml"
    profile.write_text(profile.read_text() + "parameters:\n  09_dynamics:\n    patience: 3\n")
    assert again(finished) == ({"09_dynamics"}, set())


@pytest.fixture
def reading(finished):
    """The finished project, whose run profile reads two of the paper's texts from a folder, older than all outputs."""
    profile = finished / "profiles/smoke.yaml"
    profile.write_text(profile.read_text().replace("corpora: [docs]", "corpora: [wikitext, moby_dick]\ntexts: texts"))
    captures = finished / "build/smoke/captures/mini-gpt2"
    made = (captures / "docs.safetensors").stat().st_mtime
    for corpus in ("wikitext", "moby_dick"):
        (captures / f"{corpus}.safetensors").touch()
        os.utime(captures / f"{corpus}.safetensors", (made, made))
        text = finished / "texts" / f"{corpus}.txt"
        text.parent.mkdir(exist_ok=True)
        text.write_text("A text.")
        os.utime(text, (made - 60, made - 60))
    return finished


@pytest.mark.parametrize(("text", "is_main"), [("wikitext", True), ("moby_dick", False)])
def test_a_changed_text_makes_its_captures_run_again_and_no_others(reading, text, is_main):
    assert again(reading) == (set(), set())
    renew(reading / f"texts/{text}.txt")
    notebooks, corpora = again(reading)
    assert corpora == {text}
    assert "05_corpora" in notebooks
    assert ("11_protocol" in notebooks) == is_main  # which takes no capture and reads the main text


def test_the_folder_of_texts_may_be_named_in_the_environment(reading):
    profile = reading / "profiles/smoke.yaml"
    profile.write_text(profile.read_text().replace("texts: texts\n", ""))
    renew(reading / "texts/wikitext.txt")
    environment = {name: value for name, value in os.environ.items() if name != "HOWLINEAR_TEXTS"}
    assert again(reading, environment)[1] == set()
    assert again(reading, environment | {"HOWLINEAR_TEXTS": "texts"})[1] == {"wikitext"}
