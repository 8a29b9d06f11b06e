"""The house holds: one idea, one stem, five places; pins agree; the README is true."""

import re
import tomllib
from pathlib import Path

import jupytext
import pytest
import yaml

from howlinear import paths, record

ROOT = paths.ROOT
STEMS = sorted(path.stem for path in paths.NOTEBOOKS.glob("[0-9][0-9]_*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def named(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", requirement.split("==")[0]).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    assert all("==" in line for line in lines), "every constraint is an exact pin"
    return {named(line): line.split("==")[1] for line in lines}


def direct() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {named(item) for item in project["dependencies"] + project["optional-dependencies"]["dev"]}


def test_there_are_notebooks():
    assert STEMS[:2] == ["01_capture", "02_ceilings"]


@pytest.mark.parametrize("stem", STEMS)
def test_one_idea_has_five_places(stem):
    topic = stem[3:]
    assert (ROOT / "lib/howlinear" / f"{topic}.py").is_file()
    assert (ROOT / "tests" / f"test_{topic}.py").is_file()
    assert (ROOT / "results/minis" / f"{stem}.json").is_file()
    figures = [path.stem for path in (ROOT / "figures/minis").glob(f"{stem}_*.svg")]
    assert figures
    assert all((ROOT / "figures/minis" / f"{name}.png").is_file() for name in figures)
    assert (paths.NOTEBOOKS / "solutions" / f"{stem}.py").is_file()


@pytest.mark.parametrize("stem", STEMS)
def test_the_pipeline_knows_every_notebook_and_its_figures(stem):
    line = re.search(rf'"{stem}": \(.*, \[(.*?)\]\)', (ROOT / "Snakefile").read_text())
    listed = {f"{stem}_{name}" for name in re.findall(r'"(\w+)"', line.group(1))}
    assert listed == {path.stem for path in (ROOT / "figures/minis").glob(f"{stem}_*.svg")}


@pytest.mark.parametrize("stem", STEMS)
def test_a_notebook_reads_as_the_house_template(stem):
    notebook = jupytext.read(paths.NOTEBOOKS / f"{stem}.py")
    again = jupytext.reads(jupytext.writes(notebook, "py:percent"), "py:percent")
    assert [(c.cell_type, c.source) for c in again.cells] == [(c.cell_type, c.source) for c in notebook.cells]
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    opening = ("**Question.**", "**Answer in one line.**", "**You need**", "**Time**")
    headings = ("## Predict first", "## Idea", "## Method", "## Run", "## What we learned", "## Exercises")
    places = [text.index(heading) for heading in opening + headings]
    assert places == sorted(places)
    assert "## Figure" in text
    assert "simply" not in text.lower()
    tags = [tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])]
    assert tags.count("parameters") == 1
    assert "nbval-check-output" in tags  # the cells whose numbers `make test-all` compares
    assert 150 <= len((paths.NOTEBOOKS / f"{stem}.py").read_text().splitlines()) <= 350


@pytest.mark.parametrize("stem", STEMS)
def test_the_functions_in_a_notebook_are_short(stem):
    source = (paths.NOTEBOOKS / f"{stem}.py").read_text()
    for body in re.findall(r"^def .*?(?=^\S)", source, re.MULTILINE | re.DOTALL):
        assert len(body.strip().splitlines()) <= 8, body


def test_modules_are_thin_and_assert_nothing():
    for path in (ROOT / "lib/howlinear").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 250, path.name
        assert not re.search(r"^\s*assert\b", source, re.MULTILINE), path.name


def test_every_direct_dependency_is_pinned():
    assert direct() <= pins().keys()
    assert pins()["torch"] == "2.13.0"


def test_the_conda_environment_says_the_same():
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(item["pip"] for item in listed if isinstance(item, dict))
    assert "--constraint constraints.txt" in pip
    assert "--editable ." in pip
    said = {named(line): line.split("==")[1] for line in pip if "==" in line}
    assert said == {name: pins()[name] for name in direct()}


def test_no_file_carries_a_machines_own_path():
    files = [ROOT / name for name in ("README.md", "Makefile", "Snakefile", "CHANGELOG.md")]
    files += [path for folder in ("notebooks", "lib", "profiles", "results") for path in (ROOT / folder).rglob("*.*")]
    for path in files:
        if path.suffix in {".md", ".py", ".yaml", ".json", ""} and path.is_file():
            assert not re.search(r"/(work|root|tmp|home)/", path.read_text(encoding="utf-8")), path


def test_the_embedded_models_are_small_safe_and_carry_their_card():
    folders = sorted(path.parent for path in paths.MODELS.glob("*/config.json"))
    assert [folder.name for folder in folders] == ["mini-gpt2", "mini-llama", "mini-pythia"]
    for folder in folders:
        assert (folder / "model.safetensors").stat().st_size <= 8_000_000
        assert {"README.md", "tokenizer.json", "trajectory.json"} <= {path.name for path in folder.iterdir()}
        assert not [path for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth"}]


def numbers() -> str:
    """README's table, as the results imply it."""
    results = record.load(paths.results("minis") / "02_ceilings.json")
    lines = ["| model | perplexity | R²_lin, lowest – highest block | before training | dearest swap, ΔPPL | ρ |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, found in results["models"].items():
        r2, fresh = [block["r2"] for block in found["blocks"]], found["untrained"]
        dearest = max(found["swap"], key=lambda cost: cost["delta"])
        lines.append(
            f"| {name} | {found['perplexity']:.1f} | {min(r2):.2f} – {max(r2):.2f} "
            f"| {min(fresh):.2f} – {max(fresh):.2f} | {dearest['delta']:+.2f}, block {dearest['block']} "
            f"| {found['spearman_r2_delta']:+.2f} |"
        )
    alike = (f"{two}: r = {like['pearson']:.2f}" for two, like in results["likeness"].items())
    return "\n".join(
        [
            *lines,
            "",
            "ρ: Spearman correlation of R²_lin with the swap's cost. Correlation of profiles: "
            + ", ".join(alike)
            + ".",
        ]
    )


def test_the_readmes_numbers_are_the_runs():
    """If this fails, a run has moved: paste `numbers()` between the two marks in README.md and read the text again."""
    shown = re.search(r"<!-- numbers: results/minis/02_ceilings.json -->\n(.*?)\n<!-- end -->", README, re.DOTALL)
    assert shown.group(1) == numbers()


def test_the_readme_example_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    assert len(names["profile"]) == 12


def test_the_readmes_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README) + re.findall(r'src="([^"]+)"', README):
        assert (ROOT / Path(target)).exists(), target


@pytest.mark.parametrize("stem", STEMS)
def test_the_solutions_hold(stem, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path_factory.getbasetemp() / "solutions")  # one capture serves all
    source = (paths.NOTEBOOKS / "solutions" / f"{stem}.py").read_text(encoding="utf-8")
    assert source.count("assert ") >= 2
    exec(compile(source.replace('profile = "minis"', 'profile = "smoke"'), stem, "exec"), {})
