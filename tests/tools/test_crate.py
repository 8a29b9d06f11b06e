"""A run as an RO-Crate: what the reference library reads back is what was recorded."""

import json
from datetime import UTC, datetime

import pytest
from rocrate.rocrate import ROCrate

from helpers.repository import write_project
from howlinear.errors import SourceError
from howlinear.files import numbers
from howlinear.notebook import provenance
from tools import crate

STEM = "02_ceilings"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose one notebook has run."""
    files = {
        "CITATION.cff": "title: t\nabstract: what it is\nlicense: MIT\nauthors: [{name: someone}]\n",
        "tools/Snakefile": "rule all:\n",
        f"notebooks/{STEM}.py": "1 + 1\n",
        "profiles/p.yaml": "models: [some/model]\ncorpora: [docs]\nrows: 4\nseq_len: 2\nseed: 0\nsample: 1\n",
        f"results/p/{STEM}/blocks.csv": "model,block,r2\nm,0,0.9\n",
        f"figures/p/{STEM}_profile.svg": "<svg/>",
    }
    write_project(tmp_path, monkeypatch, files)
    began, ended = (datetime(2026, 1, 2, 3, minute, tzinfo=UTC) for minute in (4, 6))
    provenance.record(STEM, "p", began, ended)
    return tmp_path


def test_the_crate_holds_the_run_and_its_files(project):
    folder = crate.write("p")
    read = ROCrate(folder)
    (action,) = read.root_dataset["mentions"]
    assert action["startTime"] == "2026-01-02T03:04:00+00:00"
    assert action["endTime"] == "2026-01-02T03:06:00+00:00"
    assert action["instrument"].id == read.mainEntity.id == "tools/Snakefile"
    run = numbers.load(provenance.path_of(STEM, "p"))
    assert {entity.id: entity["sha256"] for entity in action["result"]} == run["outputs"]
    inputs = {entity.id: entity.get("sha256") or entity["value"] for entity in action["object"]}
    assert inputs == {name if "/p" in name or "note" in name else f"#{name}": it for name, it in run["inputs"].items()}
    for name in run["outputs"]:
        assert (folder / name).read_bytes() == (project / name).read_bytes()
    stated = {profile.id for profile in read.root_dataset["conformsTo"]}
    assert set(crate.PROFILES) <= stated
    assert str(project) not in json.dumps(json.loads((folder / "ro-crate-metadata.json").read_text()))


def test_a_profile_that_has_not_run_is_refused(project):
    with pytest.raises(SourceError, match="no runs of profile q are recorded: run make figures PROFILE=q"):
        crate.write("q")
    assert not (project / "build/q").exists()


def test_a_result_that_is_gone_is_named(project):
    (project / f"results/p/{STEM}/blocks.csv").unlink()
    with pytest.raises(SourceError, match=r"results/p/02_ceilings/blocks.csv is recorded and not there"):
        crate.write("p")
    assert not (project / "build/p/crate").exists()
