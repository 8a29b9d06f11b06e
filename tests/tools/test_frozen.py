"""The claims are older than the results of a new run profile, and none was judged by others."""

import pytest

from helpers.repository import commit, git
from howlinear.files import paths, tables
from howlinear.ideas.claims.claim import fingerprint
from howlinear.ideas.claims.ledger import JUDGED_BY
from tools import frozen


def claims(root, text):
    (root / "paper").mkdir(exist_ok=True)
    (root / frozen.CLAIMS).write_text(text, encoding="utf-8")


def judged(root, profile):
    by = fingerprint(root / frozen.CLAIMS)
    tables.write(root / "results" / profile / "13_claims", {}, {JUDGED_BY: by})


@pytest.fixture
def project(tmp_path):
    """Claims, and the embedded models' results judged by them."""
    git(tmp_path, "init", "-q")
    claims(tmp_path, "one")
    judged(tmp_path, "minis")
    commit(tmp_path)
    return tmp_path


def test_claims_that_came_first_are_sound(project, capsys):
    judged(project, "wide")
    commit(project)
    assert frozen.faults(project) == []
    assert frozen.main(project) == 0
    assert capsys.readouterr().out == "every verdict was given by the claims as they are\n"


def test_claims_changed_after_a_new_model_was_run_are_seen_even_if_it_is_judged_anew(project, capsys):
    tables.write(project / "results" / "wide" / "02_ceilings", {}, {})
    commit(project)
    claims(project, "two")
    judged(project, "minis")
    judged(project, "wide")
    commit(project)
    (line,) = frozen.faults(project)
    assert "the first results of wide" in line
    assert frozen.main(project) == 1
    assert "settled before a new model" in capsys.readouterr().out


def test_the_embedded_models_may_be_judged_anew(project):
    claims(project, "two")
    judged(project, "minis")
    commit(project)
    assert frozen.faults(project) == []


def test_verdicts_of_other_claims_are_seen_without_any_history(project):
    claims(project, "two")
    (line,) = frozen.faults(project)
    assert "minis/13_claims was judged by another ledger" in line


def test_results_not_yet_committed_are_not_asked_for_their_age(project):
    judged(project, "wide")
    assert frozen.faults(project) == []


def test_a_shallow_clone_says_what_it_cannot_know(project, tmp_path_factory, capsys):
    tables.write(project / "results" / "wide" / "02_ceilings", {}, {})
    commit(project)
    claims(project, "two")
    judged(project, "minis")
    commit(project)
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", "--depth", "1", project.as_uri(), str(clone))
    assert not frozen.has_history(clone)
    assert frozen.faults(clone) == []
    assert frozen.main(clone) == 0
    assert "this clone's history cannot say" in capsys.readouterr().out


def test_without_git_the_hashes_are_still_held(tmp_path):
    claims(tmp_path, "one")
    judged(tmp_path, "minis")
    assert frozen.faults(tmp_path) == []
    claims(tmp_path, "two")
    assert len(frozen.faults(tmp_path)) == 1


def test_this_repository_is_sound():
    assert frozen.faults(paths.ROOT) == []
