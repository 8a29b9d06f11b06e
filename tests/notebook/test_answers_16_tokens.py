"""What notebook 16 says of its tables: of one text, of what cannot be told, and where the results turn round."""

import math

import pytest

from howlinear.files import tables
from howlinear.notebook.prose import describe


@pytest.fixture
def recorded():
    return tables.results("minis", "16_tokens")


def described(found, recorded, **settings):
    return describe(tables.Results("16_tokens", found, {"settings": {**recorded.settings, **settings}}))


def test_one_text_has_nothing_to_transfer_to(recorded):
    main = recorded.settings["corpora"][0]
    one = {**recorded, "transfer": recorded["transfer"].iloc[:0]}
    one["blocks"] = recorded["blocks"].query("corpus == @main")
    prose = described(one, recorded, corpora=[main])
    assert "one text" in prose.questions[3][1]
    assert prose.answer == described(dict(recorded), recorded).answer


def test_rows_that_a_line_does_not_follow_are_worth_no_number(recorded):
    prose = described({**recorded, "blocks": recorded["blocks"].assign(effective_rows=math.nan)}, recorded)
    assert "no telling how many" in prose.questions[2][1]


def test_answers_turn_with_the_numbers(recorded):
    blocks, kinds, lines = (recorded[name].copy() for name in ("blocks", "kinds", "vocabulary"))
    blocks["token_share"] = blocks["weights"].map({"trained": 0.9, "fresh": 0.5})
    blocks["r2_between"], blocks["r2_within"] = 0.1, 0.2
    blocks["r2_table"] = -1.0
    kinds["r2"] = kinds["kind"].map({"rare": 0.9, "frequent": 0.5})
    lines["r2_vocabulary"] = 2.0
    prose = described({**recorded, "blocks": blocks, "kinds": kinds, "vocabulary": lines}, recorded)
    count = len(
        blocks.query("weights == 'trained'").groupby("model").get_group(blocks["model"].iloc[0])["block"].unique()
    )
    assert f"0 of {count} blocks" in prose.answer[1]
    assert prose.replies[2].startswith("In no block")
    openings = [answer for _, answer in prose.questions]
    assert openings[1].startswith("Less of it than after")
    assert openings[4].startswith("It does not")
    assert openings[5].startswith("On rare ones")
