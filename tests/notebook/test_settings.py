"""Run profiles that lie anywhere, extend one another, and name models and texts of the user's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.models.load import load_model
from howlinear.notebook import settings
from howlinear.notebook.run import start
from tools import on_record

TEXT = "\n\n".join(f"document {i} " + "says a few words of its own " * 3 for i in range(40))


def write(path, **content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))  # JSON is YAML
    return str(path)


@pytest.fixture
def texts(tmp_path):
    """Two texts of one name, and one that is called as a built-in corpus."""
    for name in ("a/my notes.txt", "b/my notes.txt", "docs.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    return tmp_path


def test_a_profile_anywhere_extends_by_name_and_by_path_and_changes_what_it_names(tmp_path):
    write(tmp_path / "base" / "few.yaml", extends="lesson", rows=4096, parameters={"15_gate": {"limit": 0.5}})
    path = write(tmp_path / "mine" / "fewer.yaml", extends="../base/few.yaml", seed=7)
    profile, lesson = settings.read(path), settings.read("lesson")
    assert (profile.name, profile.own, profile.rows, profile.seed) == ("fewer", True, 4096, 7)
    assert profile.models_by_name == lesson.models_by_name
    assert profile.parameters == lesson.parameters | {"15_gate": lesson.parameters["15_gate"] | {"limit": 0.5}}


def test_a_path_may_be_relative_or_begin_at_home_and_that_of_a_project_profile_is_the_projects(tmp_path, monkeypatch):
    path = write(tmp_path / "mine.yaml", extends="smoke")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.read("mine.yaml") == settings.read("./mine.yaml") == settings.read("~/mine.yaml")
    assert settings.read(path).path == tmp_path / "mine.yaml"
    project = settings.read(paths.PROFILES / "smoke.yaml")
    assert (project.name, project.own) == ("smoke", False)


def test_profiles_that_extend_each_other_are_refused_in_one_line(tmp_path):
    path = write(tmp_path / "a.yaml", extends="./b.yaml")
    write(tmp_path / "b.yaml", extends="./a.yaml")
    with pytest.raises(InputError, match="profile a extends itself: a → b → a"):
        settings.read(path)


def test_ones_own_profile_may_not_be_called_as_the_projects(tmp_path):
    with pytest.raises(InputError, match=r"called as profiles/minis\.yaml is: rename it"):
        settings.read(write(tmp_path / "minis.yaml", extends="smoke"))


def test_texts_are_found_beside_the_profile_that_names_them_and_get_safe_names(texts, tmp_path):
    write(tmp_path / "base.yaml", extends="smoke", corpora=["docs", "docs.txt", "a/my notes.txt"])
    (texts / "further").mkdir()
    corpora = settings.read(write(tmp_path / "further" / "mine.yaml", extends="../base.yaml")).corpora_by_name
    built_in, called_alike, notes = corpora
    assert (built_in, notes) == ("docs", "my-notes")
    assert called_alike.startswith("docs-")
    assert list(corpora.values()) == ["docs", str(texts / "docs.txt"), str(texts / "a" / "my notes.txt")]


def test_texts_and_models_of_one_name_are_told_apart(texts, tmp_path):
    for folder in ("a/net", "b/net"):
        (tmp_path / folder).mkdir()
    content = {"corpora": ["a/my notes.txt", "b/my notes.txt"], "models": ["a/net", "b/net", "some/gpt2@abc"]}
    profile = settings.read(write(tmp_path / "mine.yaml", extends="smoke", **content))
    assert list(profile.corpora_by_name.values()) == [str(texts / name) for name in content["corpora"]]
    assert list(profile.models_by_name.values()) == [str(tmp_path / "a/net"), str(tmp_path / "b/net"), "some/gpt2@abc"]
    assert len({*profile.corpora_by_name, *profile.models_by_name}) == 5
    assert list(profile.models_by_name)[2] == "gpt2"


def test_a_text_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(SourceError, match=r"profile mine: no text .*/nope\.txt; give a path, or one of docs"):
        settings.read(write(tmp_path / "mine.yaml", extends="smoke", corpora=["nope.txt"]))


def test_a_capture_of_ones_own_text_lies_below_build(texts, tmp_path):
    path = write(tmp_path / "mine.yaml", extends="smoke", corpora=["a/my notes.txt"])
    run = start("01_capture", path)
    assert run.capture_path("mini-gpt2", "my-notes") == paths.build("mine") / "captures/mini-gpt2/my-notes.safetensors"
    corpus = run.corpus("my-notes", load_model("mini-gpt2"))
    assert (corpus.name, len(corpus.documents)) == ("my-notes", 40)


def test_nothing_of_ones_own_profile_is_on_record(tmp_path, capsys):
    on_record.main(write(tmp_path / "mine.yaml", extends="smoke"))
    assert capsys.readouterr().out == ""


@pytest.mark.long
@pytest.mark.parametrize("options", [["--config", "profile={}"], ["--configfile", "{}"]])
def test_the_pipeline_takes_a_profile_by_its_path_and_makes_nothing_that_is_committed(texts, tmp_path, options):
    content = {"corpora": ["a/my notes.txt"], "notebooks": ["02_ceilings"]}
    path = write(tmp_path / "mine.yaml", extends="smoke", **content)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.SNAKEFILE)]
    command += ["--dry-run", "--cores", "1", "--nolock", *(option.format(path) for option in options)]
    done = subprocess.run(command, cwd=paths.ROOT, env=dict(os.environ), capture_output=True, text=True)
    said = done.stdout + done.stderr
    if options[0] == "--configfile":
        assert done.returncode == 1
        assert "--config profile=NAME" in said
    else:
        assert done.returncode == 0, said
        assert {"capture", "02_ceilings"} <= set(said.split())
        assert not (Path(paths.ROOT) / "results" / "mine").exists()


@pytest.fixture
def own_profiles(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OWN_PROFILES", tmp_path / "own profiles")
    return tmp_path / "own profiles"


def test_a_model_and_a_text_take_the_place_of_those_of_a_run_profile(texts, own_profiles, monkeypatch):
    """Relative paths hold from the folder that they were given in; all else stays as the run profile says."""
    monkeypatch.chdir(texts)
    profile = settings.with_own("lesson", corpus="a/my notes.txt")
    lesson = settings.read("lesson")
    assert profile.own
    assert profile.models == lesson.models
    assert profile.corpora == [str(texts / "a" / "my notes.txt")]
    assert (profile.rows, profile.parameters) == (lesson.rows, lesson.parameters)
    assert settings.with_own("lesson", "models/mini-llama").models_by_name.keys() == {"mini-llama"}
    assert settings.with_own("lesson").path == lesson.path
    assert settings.read(profile.path).corpora == profile.corpora


def test_texts_of_one_name_have_run_profiles_of_their_own_and_a_built_in_name_is_no_folder_here(
    texts, own_profiles, monkeypatch
):
    monkeypatch.chdir(texts)
    (texts / "docs").mkdir()
    named = {settings.with_own("lesson", corpus=f"{folder}/my notes.txt").name for folder in "ab"}
    assert len(named) == 2
    assert settings.with_own("lesson", corpus="docs").corpora == ["docs"]


def test_a_notebook_starts_on_a_text_of_ones_own(texts, own_profiles):
    run = start("02_ceilings", "lesson", corpus=str(texts / "a" / "my notes.txt"))
    assert run.corpora == ["my-notes"]
    assert not run.recorded


def test_a_model_beside_the_others_is_for_the_notebooks_that_name_it(tmp_path, own_profiles):
    (tmp_path / "sunk").mkdir()
    path = write(tmp_path / "beside.yaml", extends="lesson", beside={"sunk": ["12_sinks"]})
    profile = settings.read(path)
    usual = {"mini-gpt2"}
    assert profile.models_by_name.keys() == profile.models_of("02_ceilings").keys() == usual
    assert profile.models_of("12_sinks") == profile.models_of(settings.CAPTURE)
    assert profile.models_of("12_sinks")["sunk"] == str(tmp_path / "sunk")
    # whoever brings a model of their own sees it alone, in every notebook
    assert settings.with_own(str(path), "models/mini-llama").models_of("12_sinks").keys() == {"mini-llama"}
    assert settings.with_own(str(path), corpus="code").models_of("12_sinks").keys() == usual | {"sunk"}
