"""The house holds: one idea, one stem, five places; pins agree; the README is true."""

import re
import tomllib

import jaxtyping
import jupytext
import papermill
import pytest
import torch
import yaml

from howlinear.files import paths
from howlinear.instrument.perplexity import mean_losses
from howlinear.notebook import execute
from tools.book import solutions

ROOT = paths.ROOT
STEMS = execute.stems()
README = (ROOT / "README.md").read_text(encoding="utf-8")


def named(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split("[=><]=", requirement)[0]).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "tools" / "constraints.txt").read_text().split()
    assert all("==" in line for line in lines), "every constraint is an exact pin"
    return {named(line): line.split("==")[1] for line in lines}


def direct() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {named(item) for item in project["dependencies"] + project["optional-dependencies"]["dev"]}


def test_the_citation_says_what_the_package_says():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["title"] == project["name"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert citation["abstract"] == project["description"]


@pytest.mark.parametrize("stem", STEMS)
def test_one_idea_has_five_places(stem):
    topic = stem[3:]
    assert list((ROOT / "lib/howlinear").glob(f"*/{topic}.py")) + list((ROOT / "lib/howlinear").glob(f"*/{topic}"))
    assert list((ROOT / "tests").glob(f"*/test_{topic}.py"))
    assert list((ROOT / "results/minis" / stem).glob("*.csv"))
    figures = {kind: {path.stem for path in paths.figures("minis").glob(f"{stem}_*.{kind}")} for kind in ("svg", "png")}
    assert figures["svg"] == figures["png"] != set()
    assert (paths.NOTEBOOKS / "solutions" / f"{stem}.py").is_file()
    assert (ROOT / f"tests/notebook/test_exercises_{stem}.py").is_file()


@pytest.mark.parametrize("stem", STEMS)
def test_the_pipeline_knows_every_notebook_and_its_figures(stem):
    line = re.search(rf'"{stem}": \(.*, \[(.*?)\]\)', (ROOT / "tools" / "Snakefile").read_text())
    listed = {f"{stem}_{name}" for name in re.findall(r'"(\w+)"', line.group(1))}
    assert listed == {path.stem for path in (ROOT / "figures/minis").glob(f"{stem}_*.svg")}


@pytest.mark.parametrize("stem", STEMS)
def test_a_notebook_has_parameters_checked_numbers_and_exercises(stem):
    notebook = solutions.notebook(stem)
    known = execute.declared(notebook)
    assert (known["profile"].default, known["profile"].types) == ("minis", (str,))
    assert known.keys() >= {*execute.OWN}
    assert all(parameter.comment for parameter in known.values())
    defaults = {name: parameter.default for name, parameter in known.items()}
    assert execute.checked(stem, defaults, notebook) == defaults
    tags = [tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])]
    assert tags.count("parameters") == 1
    assert "nbval-check-output" in tags  # the cells whose numbers `make test-all` compares
    assert any("## Exercises" in cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("stem", STEMS)
def test_papermill_itself_reads_every_parameter(stem, tmp_path):
    notebook = solutions.notebook(stem)
    path = tmp_path / "notebook.ipynb"
    jupytext.write(notebook, path)
    assert papermill.inspect_notebook(path).keys() == execute.declared(notebook).keys()


def test_every_direct_dependency_is_pinned():
    assert direct() <= pins().keys()
    assert pins()["torch"] == "2.13.0"


def test_the_conda_environment_installs_what_is_pinned():
    listed = yaml.safe_load((ROOT / ".binder" / "environment.yml").read_text())["dependencies"]
    pip = next(item["pip"] for item in listed if isinstance(item, dict))
    assert pip == ["--constraint ../tools/constraints.txt", "--editable ..[dev]"]


def test_no_file_carries_a_machines_own_path():
    files = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "tools" / "Snakefile"]
    files += [path for folder in ("notebooks", "lib", "profiles", "results") for path in (ROOT / folder).rglob("*.*")]
    for path in files:
        if path.suffix in {".md", ".py", ".yaml", ".json", ""} and path.is_file():
            assert not re.search(r"/(work|root|tmp|home)/", path.read_text(encoding="utf-8")), path


def test_the_embedded_models_are_small_safe_and_carry_their_card():
    folders = sorted(path.parent for path in paths.MODELS.glob("*/config.json"))
    assert [folder.name for folder in folders] == ["mini-gpt2", "mini-llama", "mini-pythia", "mini-sink"]
    for folder in folders:
        assert (folder / "model.safetensors").stat().st_size <= 8_000_000
        names = {path.name for path in folder.iterdir()}
        assert {"README.md", "SHA256SUMS", "tokenizer.json", "trajectory.json"} <= names
        assert not [name for name in names if name.endswith((".bin", ".pt", ".pth"))]


def test_the_readme_example_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "rows=20_000" in example
    example = example.replace("rows=20_000", "rows=4_096")  # for time
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    assert len(names["profile"]) == 12


def test_the_afternoon_is_as_long_as_it_says():
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("**In an afternoon**"))
    read = [(ROOT / ".github" / path).read_text(encoding="utf-8") for path in re.findall(r"\]\((.*?)\)", line)]
    said = int(re.search(r"([\d,]+) lines", line).group(1).replace(",", ""))
    assert said == round(sum(len(source.splitlines()) for source in read), -2)


PAGES = ["README.md", "results/README.md", "results/ledger.md", "results/answers.md", ".github/CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://)([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert targets
    for target in targets:
        assert ((ROOT / page).parent / target).exists(), target


def test_shapes_are_checked_while_tests_run():
    with pytest.raises(jaxtyping.TypeCheckError):
        mean_losses(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.long))
