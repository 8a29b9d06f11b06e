"""What notebook 15 says of its tables: of encoders, of blocks that may go whole, and where the results turn round."""

import pytest

from howlinear.files import tables
from howlinear.notebook.prose import describe


@pytest.fixture
def recorded():
    return tables.results("minis", "15_gate")


def described(found, recorded, **settings):
    return describe(tables.Results("15_gate", found, {"settings": {**recorded.settings, **settings}}))


def test_encoders_alone_have_no_loss(recorded):
    empty = {name: table.iloc[:0] for name, table in recorded.items() if name != "planted"}
    prose = described(empty, recorded, models=["bert"])
    (said,) = prose.answer
    assert said.startswith("bert predicts no next token")
    assert prose.replies == [said] * 3
    assert [answer for _, answer in prose.questions] == [said] * 5


def test_an_encoder_beside_other_models_is_named_once(recorded):
    prose = described(dict(recorded), recorded, models=[*recorded.settings["models"], "bert"])
    assert [("bert" in sentence) for sentence in prose.answer] == [False, False, False, True]
    assert not any("bert" in reply for reply in prose.replies)


def test_where_all_tokens_may_take_the_line_nothing_is_left_to_a_gate(recorded):
    means = recorded["means"].query("blocks == 'all'")
    prose = described({**recorded, "means": means}, recorded)
    assert prose.answer[1].endswith("nothing is left to a gate.")
    share = 100 * means.set_index(["model", "kind"]).share["mini-gpt2", "gate"]
    assert f"{share:.1f} [" in prose.questions[3][1]


def test_answers_turn_with_the_numbers(recorded):
    costs, curves, together = (recorded[name].copy() for name in ("costs", "curves", "together"))
    costs.loc[costs["kind"] == "gate", "rise_low"] = 0.5
    curves.loc[curves["kind"] == "gate", "rise"] = 9.0
    together["rise_low"] = 0.0
    prose = described({**recorded, "costs": costs, "curves": curves, "together": together}, recorded)
    openings = [answer for _, answer in prose.questions[:3]]
    assert openings[0].startswith("Not surely: ")
    assert openings[1].startswith("It is here: ")
    assert openings[2].startswith("Not surely more than their sum: ")
