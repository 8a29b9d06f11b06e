import pandas as pd
import pytest

from howlinear.files.published import load_published
from howlinear.ideas.sinks.predictions import compared, prediction_table, predictions, sentence


@pytest.fixture
def published(monkeypatch):
    """Say what the paper publishes."""

    def publish(*rows):
        table = pd.DataFrame(rows, columns=["model", "block", "r2_lin", "r2_perfeature_median", "rrr_rank90"])
        monkeypatch.setattr("howlinear.ideas.sinks.predictions.load_published", lambda: table)

    return publish


@pytest.mark.parametrize(
    ("r2", "median", "rank", "falls"),
    [
        (0.99, 0.20, 1, True),
        (0.59, 0.10, 1, False),  # not high
        (0.99, 0.85, 1, False),  # the median is not far lower
        (0.99, 0.20, 11, False),  # not few directions
        (0.60, 0.44, 10, True),
    ],
)
def test_all_three_signs_are_needed(published, r2, median, rank, falls):
    published(("gpt2", 0, r2, median, rank))
    (found,) = predictions().to_dict("records")
    assert found["falls"] == falls
    assert found["prediction"] == ("lower by more than 0.1" if falls else "within 0.1")
    assert found["threshold"] == 0.1
    assert found["gap"] == pytest.approx(r2 - median)


def test_the_papers_blocks_are_predicted_one_by_one():
    table = predictions()
    assert len(table) == len(load_published()) == 36
    falls = table[table["falls"]]
    assert falls.groupby("model")["block"].agg(list).to_dict() == {
        "gpt2": [1, 2, 3, 10, 11],
        "pythia-160m": [3, 10],
        "llama-160m": [3, 11],
    }


def blocks(model, *falls):
    table = pd.DataFrame({"model": model, "block": range(len(falls)), "fall": falls, "r2": 0.9, "massive_rows": 3})
    return table.assign(r2_ordinary=table["r2"] - table["fall"])


def test_predictions_are_held_against_what_was_measured(published):
    published(*[("gpt2", n, 0.9, 0.2, 1 if n < 2 else 90) for n in range(4)])
    predicted = predictions()
    found = compared(predicted, blocks("gpt2", 0.4, 0.05, 0.0, -0.3))
    assert found["fell"].tolist() == [True, False, False, False]  # a rise is no fall
    assert found["right"].tolist() == [True, False, True, True]
    table = prediction_table(predicted, found[1:])
    assert table["falls"].tolist() == [True, True, False, False]
    assert table["fell"].tolist() == [pd.NA, False, False, False]
    assert sentence(found) == "Of 2 blocks that were to fall, 1 fell; of 2 that were to stay, 2 stayed."


def test_other_models_say_nothing_of_the_papers():
    found = compared(predictions(), blocks("mini-gpt2", 0.4))
    assert found.empty
    assert {"model", "block", "right"} <= set(found.columns)
    assert sentence(found) == "No model of this run is the paper's, so no prediction can be checked."
