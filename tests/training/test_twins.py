import json

import pytest

from howlinear.errors import SourceError
from howlinear.files import numbers, paths
from howlinear.training import twins
from howlinear.training.loop import Recipe
from howlinear.training.twins import TWINS, Twin, load_twins, main, train_twin

pytestmark = pytest.mark.long

RECIPE = Recipe(steps=2, batch=4, micro_batch=4, seq_len=16, warm_up=2)


def made(twin, recipe=RECIPE):
    return json.loads(train_twin(twin, recipe, compiled=False).read_text())


def results_of(families):
    """A file for every twin of some families."""
    for twin in TWINS:
        if twin.family in families:
            numbers.save(paths.MODELS / "twins" / f"{twin.name}.json", {"family": twin.family})


def test_every_pair_that_differs_in_one_thing_is_there():
    assert len(set(TWINS)) == 12
    for factor, levels in {"family": 3, "text": 2, "seed": 2}.items():
        rest = [tuple(value for key, value in vars(twin).items() if key != factor) for twin in TWINS]
        assert {rest.count(other) for other in set(rest)} == {levels}
    assert TWINS[0].name == "gpt2-docs-0"


def test_a_twin_is_measured_on_both_texts_and_on_the_way(workshop):
    found = made(Twin("pythia", "code", 1))
    assert [step["step"] for step in found["steps"]] == [0, 1, 2]
    assert {text: len(profile["r2"]) for text, profile in found["profiles"].items()} == {"docs": 2, "code": 2}
    assert found["steps"][-1]["r2"] == found["profiles"]["docs"]["r2"]  # the trajectory reads docs
    assert found["profiles"]["docs"]["sha256"] != found["profiles"]["code"]["sha256"]
    assert (found["family"], found["text"], found["seed"], found["recipe"]["seed"]) == ("pythia", "code", 1, 1)


def test_the_first_of_each_family_records_its_degrees_on_the_way(workshop):
    found = made(Twin("pythia", "docs", 0))["steps"]
    assert [list(step["degrees"]) for step in found] == [["0", "1"]] * 3
    for step in found:
        for block, seen in step["degrees"].items():
            assert seen["r2"][0] == pytest.approx(step["r2"][int(block)], abs=1e-6)  # degree 1 is the line
            assert seen["spread"] > 0
    assert "degrees" not in made(Twin("pythia", "docs", 1))["steps"][0]


def test_each_factor_changes_the_model_and_nothing_else_does(workshop):
    base, again = made(Twin("gpt2", "docs", 0)), made(Twin("gpt2", "docs", 0))
    assert base["steps"] == again["steps"]
    for other in (Twin("pythia", "docs", 0), Twin("gpt2", "code", 0), Twin("gpt2", "docs", 1)):
        assert made(other)["steps"][-1]["r2"] != base["steps"][-1]["r2"]
    text = made(Twin("gpt2", "code", 0))
    assert text["steps"][0]["r2"] == base["steps"][0]["r2"]  # the text does not touch the weights a twin starts with


def test_only_what_is_missing_is_trained(workshop, monkeypatch):
    monkeypatch.setattr(twins, "TWINS", TWINS[:2])
    trained = []

    def train(twin):
        trained.append(twin)
        return train_twin(twin, RECIPE, compiled=False)

    monkeypatch.setattr(twins, "train_twin", train)
    with pytest.raises(SourceError, match=r"gpt2-docs-0, gpt2-docs-1 .*run make twins"):
        load_twins()
    train(TWINS[0])
    main()
    assert trained == TWINS[:2]


@pytest.mark.parametrize("there", [("gpt2", "pythia"), ("gpt2", "llama"), ("gpt2", "pythia", "llama")])
def test_the_families_that_were_trained_are_loaded(tmp_path, monkeypatch, there):
    monkeypatch.setattr(paths, "MODELS", tmp_path)
    results_of(there)
    assert list(load_twins()) == [twin for twin in TWINS if twin.family in there]


def test_a_family_that_is_there_in_part_is_refused_and_so_is_one_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MODELS", tmp_path)
    results_of(("gpt2",))
    with pytest.raises(SourceError, match=r"pythia-docs-0, .*llama-code-1 .*run make twins"):
        load_twins()
    results_of(("pythia", "llama"))
    (tmp_path / "twins" / "llama-code-1.json").unlink()
    with pytest.raises(SourceError, match=r"no measurements of llama-code-1 under .*run make twins"):
        load_twins()
