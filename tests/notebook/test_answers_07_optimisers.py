"""What notebook 07 says of its tables, and where results that turn round turn it round."""

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.notebook.prose import describe

WAYS = ("GD", "momentum", "Adam")


def made_up(one=(0.1, 0.0), other=(0.0, 0.2)):
    """Two models of two blocks, 3 and 7, whose exact R² is 0.5 and whose shortfalls are these, by every way."""
    blocks = [("a", 3, 9.0), ("a", 7, 2.0), ("b", 3, 8.0), ("b", 7, 3.0)]
    blocks = pd.DataFrame(blocks, columns=["model", "block", "condition"])
    blocks = blocks.assign(r2=0.5, asleep=[4, 0, 0, 0], asleep_share=0.3, raced=[True, False, False, False])
    ways = pd.concat([blocks[["model", "block"]].assign(way=way) for way in WAYS], ignore_index=True)
    ways["reached"] = [0.5 - gap for gap in (*one, *other)] * 3
    scores = {"raw": (0.4, 0.3), "standardised": (0.45, 0.4), "whitened": (0.5, 0.49)}
    race = [(scaling, *pair) for scaling, both in scores.items() for pair in zip(("X", "SGD"), both, strict=True)]
    counted = [(model, way, 1, 0) for model in "ab" for way in WAYS]
    return {
        "blocks": blocks,
        "ways": ways,
        "race": pd.DataFrame(race, columns=["scaling", "optimiser", "reached"]),
        "verdicts": pd.DataFrame(counted, columns=["model", "way", "outside", "flipped"]),
        "by_way": pd.DataFrame({"way": WAYS, "rho_condition": -0.5}),
        "planted": pd.DataFrame({"way": ["SGD", "AdamW"], "exact": 0.95, "reached": [0.0, 0.2]}),
    }


def said(found):
    settings = {"models": ["a", "b"], "corpora": ["docs"], "steps": 10}
    return describe(tables.Results("07_optimisers", found, {"settings": settings}))


def test_the_largest_shortfall_is_over_all_models():
    prose = said(made_up())
    assert "0.200 by plain gradient descent at the rate 1/λ₁" in prose.answer[0]
    assert "as its formula foretells (block 7 of b)" in prose.answer[0]
    assert "0.200 by Adam at a tuned rate (block 7 of b)" in prose.answer[0]
    assert prose.answer[1].startswith("Of 4 blocks,")
    assert "2 by plain gradient descent" in prose.answer[1]
    assert "ρ = −0.50 for plain gradient descent" in prose.answer[2]
    assert "In block 3 of a, whose exact R²_lin is 0.500, X comes first with 0.400" in prose.replies[0]
    assert "and SGD last with 0.300" in prose.replies[0]
    assert "0.400 on standardised inputs and 0.490 on whitened inputs" in prose.replies[1]
    assert prose.replies[2].endswith("in 1 of 2 models.")
    assert "along 4 directions after 10 steps" in prose.questions[0][1]
    assert "explains 30 % of" in prose.questions[0][1]


def test_single_blocks_have_no_rank_correlation_to_tell_of():
    found = made_up()
    found["by_way"]["rho_condition"] = float("nan")
    assert len(said(found).answer) == 2


@pytest.mark.parametrize(("whitened", "words"), [(0.49, "R² rises from 0.300 to 0.490"), (0.1, "not help: R² goes")])
def test_whitening_may_or_may_not_help(whitened, words):
    found = made_up()
    found["race"].loc[5, "reached"] = whitened
    assert words in said(found).questions[1][1]


@pytest.mark.parametrize(("flipped", "answer"), [(0, "No: of 2 steps"), (1, "Yes: of 2 steps")])
def test_neighbouring_blocks_may_be_turned_round(flipped, answer):
    found = made_up()
    found["verdicts"].loc[0, "flipped"] = flipped
    assert said(found).questions[2][1].startswith(answer)


@pytest.mark.parametrize(
    ("shortfalls", "answer"),
    [
        (((0.3, 0.0), (0.0, 0.2)), "Here it is: block 3 of a has a condition number of 9.00 and a shortfall of 0.300."),
        (((0.1, 0.0), (0.0, 0.2)), "No: at the largest condition number, 9.00 in block 3 of a, it is 0.100;"),
    ],
)
def test_the_most_uneven_inputs_may_or_may_not_have_the_largest_shortfall(shortfalls, answer):
    assert said(made_up(*shortfalls)).questions[3][1].startswith(answer)


@pytest.mark.parametrize(("reached", "answer"), [(0.2, "That does not follow"), (0.94, "It may well be")])
def test_untuned_layers_may_or_may_not_mislead(reached, answer):
    found = made_up()
    found["planted"]["reached"] = reached
    assert said(found).questions[4][1].startswith(answer)


@pytest.mark.parametrize("profile", ["minis", "public"])
def test_answers_on_record_are_whole_sentences_with_numbers(profile):
    for question, answer in describe(tables.results(profile, "07_optimisers")).questions:
        assert question.endswith("?")
        assert answer.endswith(".")
        assert any(letter.isdigit() for letter in answer)
        assert not any(slip in f" {answer} " for slip in (" nan", " None", " ,", " .", "()", "[]"))
