"""What notebook 05 says of its tables: of one text, of short models, and where the results turn round."""

from itertools import product

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.notebook.prose import describe


@pytest.fixture
def found():
    recorded = tables.results("minis", "05_corpora")
    return {name: table.copy() for name, table in recorded.items()}


def said(found, **settings):
    known = dict(tables.results("minis", "05_corpora").settings)
    return describe(tables.Results("05_corpora", found, {"settings": known | settings}))


def drops(*levels):
    """Mean drops of two models: seen → seen of 0.2, and seen → unseen of these."""
    rows = [("mini-gpt2", "seen", "seen", 0.2), ("mini-llama", "seen", "seen", 0.2)]
    rows += [(model, "seen", "unseen", level) for model, level in zip(("mini-gpt2", "mini-llama"), levels, strict=True)]
    return pd.DataFrame(rows, columns=["model", "fitted", "scored", "drop"])


def test_one_text_has_nothing_to_compare(found):
    empty = {name: table.iloc[:0] for name, table in found.items()} | {"profiles": found["profiles"]}
    prose = said(empty, corpora=["docs"])
    assert prose.answer == ["This run profile has a single text, so there is nothing to compare."]
    assert prose.replies == ["This run profile has a single text, so it cannot tell."] * 3
    assert [answer for _, answer in prose.questions] == prose.replies[:1] * 5


def test_models_of_two_blocks_have_losses_and_no_correlations(found):
    found = {name: table[table.block < 2] if "block" in table else table for name, table in found.items()}
    found |= {"agreement": found["agreement"].iloc[:0], "by_model": found["by_model"].assign(bend=float("nan"))}
    prose = said(found)
    assert prose.answer[0] == "No model has the three blocks that a correlation of two profiles takes."
    assert "of 12 cases" in prose.answer[1]
    assert all("three blocks" in prose.questions[place][1] for place in (1, 2, 4))


def test_a_short_model_beside_deep_ones_is_left_out_of_what_takes_three_blocks(found):
    found["agreement"] = found["agreement"].query("model != 'mini-gpt2'")
    prose = said(found)
    assert not any("mini-gpt2" in line for line in (*prose.answer[:2], prose.replies[0], prose.questions[4][1]))
    assert "mini-gpt2" in prose.answer[2]


@pytest.mark.parametrize(
    ("further", "answer"),
    [
        (drops(0.3, 0.3), "Yes."),
        (drops(0.3, 0.2), "Not in all models."),
        (drops(0.2, 0.2), "Hardly."),
        (drops(0.3, 0.3).query("scored == 'seen'"), "Which texts these models saw in training is not known"),
    ],
)
def test_an_unseen_text_is_the_odd_one_out_where_lines_lose_more_on_it(found, further, answer):
    found["drops_by_training"] = further
    assert said(found).replies[2].startswith(answer)


@pytest.mark.parametrize(
    ("alike", "starts"), [((0, 0, 0), "No:"), ((1, 0, 0), "Not everywhere:"), ((1, 1, 1), "It may")]
)
def test_lines_are_alike_where_noise_alone_would_leave_no_more(found, alike, starts):
    high = [model for model, is_high in zip(found["by_model"].model, alike, strict=True) if is_high]
    found["likeness"].loc[found["likeness"].model.isin(high), "likeness"] = 0.999
    assert said(found).questions[0][1].startswith(starts)


@pytest.mark.parametrize(
    ("bends", "words"),
    [((0.9, 0.9, 0.9), "So they do"), ((0.9, 0.1, 0.9), "Not all models"), ((-1, 0, 0.1), "No model")],
)
def test_bent_blocks_lose_more_where_the_correlation_exceeds_chance(found, bends, words):
    found["by_model"]["bend"] = bends
    assert words in said(found).questions[2][1]


def test_profiles_that_do_not_fall_without_their_ends_are_said_to(found):
    found["agreement"]["inner"] = found["agreement"].r + 0.01
    assert "Without them it falls nowhere, and rises least for" in said(found).questions[1][1]


def test_the_line_of_another_text_falls_behind_by_the_mean_drop(found):
    """Planted: maps of cpp lose 0.5 of an R² of 0.9 on docs, all others 0.1."""
    profiles, transfer = found["profiles"], found["transfer"]
    profiles["r2"] = 0.9
    transfer["drop"] = 0.1
    here = (transfer.model == "mini-llama") & (transfer.fitted == "cpp") & (transfer.scored == "docs")
    transfer.loc[here, "drop"] = 0.5
    answer = said(found).questions[3][1]
    assert "In mini-llama the lines of cpp have a mean R² of 0.40 on docs, and the lines of docs one of 0.90." in answer


def test_extremes_and_counts_are_those_of_the_tables(found):
    agreement, transfer = found["agreement"], found["transfer"]
    agreement["differ"] = range(len(agreement))
    agreement.loc[agreement.index[-1], ["gap", "gap_low", "gap_high", "gap_block"]] = [-0.7, -0.8, -0.6, 3]
    transfer["drop_low"] = -0.1
    transfer.loc[5, ["drop", "drop_low", "drop_high"]] = [0.8, 0.7, 0.9]
    prose = said(found)
    last, lost = agreement.iloc[-1], transfer.loc[5]
    gap = f"−0.70 [−0.80, −0.60] in block 3 of {last.model} ({last.corpus} and {last.other})"
    assert gap in prose.answer[1]
    assert f"0.80 at most (surely above 0 in 1 of 72 cases) in {lost.model}" in prose.answer[2]
    assert f"0 to 2 of 12 blocks of {agreement.model[0]}" in prose.replies[0]
    assert f"from {lost.fitted} to {lost.scored} in block {lost.block} (0.80 [0.70, 0.90])" in prose.replies[1]
    assert f"3 of 36 in {agreement.model[0]}" in prose.questions[4][1]


@pytest.mark.parametrize(("profile", "place"), list(product(["minis", "public", "prose"], range(5))))
def test_answers_on_record_are_whole_sentences_with_numbers(profile, place):
    question, answer = describe(tables.results(profile, "05_corpora")).questions[place]
    assert question.endswith("?")
    assert answer.endswith(".")
    assert any(letter.isdigit() for letter in answer)
    assert not any(slip in f" {answer} " for slip in (" nan", " None", " ,", " .", "()", "[]"))
