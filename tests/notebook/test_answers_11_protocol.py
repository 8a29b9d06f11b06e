"""What notebook 11 says of its tables: of one model, of what never flips, and of rows too few to tell a limit."""

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.notebook.prose import describe


@pytest.fixture
def recorded():
    return tables.results("minis", "11_protocol")


def described(recorded, **changed):
    return describe(tables.Results("11_protocol", {**recorded, **changed}, recorded.run))


def test_one_model_has_no_order(recorded):
    alone = pd.DataFrame({"order": ["mini-gpt2"], "share": [1.0]})
    assert described(recorded, orders=alone).answer[1] == "With one model there is no order of models."


def test_statements_are_said_to_hold_or_to_flip(recorded):
    flips = recorded["flips"].query("statement == 'lowest' and model != 'mini-pythia'")
    flips = flips.assign(flips=[True, False], share=[0.4, 0.0], alone=["rows, null", None])
    prose = described(recorded, flips=flips)
    assert "not below 0.90 (in mini-llama)" in prose.answer[0]
    turned = (
        "mini-gpt2 (least linear block below 0.90 under 40 % of them; the number of rows or the threshold for null "
        "directions is enough to turn it)"
    )
    assert turned in prose.answer[0]
    assert turned in prose.replies[2]
    steady = described(recorded, flips=flips.query("not flips"))
    assert "decides" not in steady.answer[0]
    assert steady.replies[2] == "None of them, in any model of this run."


def test_rows_too_few_to_tell_a_limit_are_said_to_be(recorded):
    curves = recorded["curves"].assign(r2_limit=float("nan"))
    prose = described(recorded, curves=curves, agreement=recorded["agreement"].iloc[:0])
    answers = dict(prose.questions)
    assert any("too few to tell the limit" in answer for answer in answers.values())
    assert any("too few to tell it of any block" in answer for answer in answers.values())


def test_choices_that_a_run_has_not_compared_are_said_to_be_missing(recorded):
    prose = described(recorded, effects=recorded["effects"].query("choice == 'split'"))
    assert all("has not compared" in reply for reply in prose.replies[:2])
