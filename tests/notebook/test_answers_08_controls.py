"""What notebook 08 says of its tables, with transplants and twins and without."""

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.notebook.prose import describe


def made_up(permuted=0.9, redrawn=0.8, text_low=1.2):
    r2 = {"own": 0.5, "normal": 0.4, "permuted": permuted, "redrawn": redrawn}
    controls = [(model, 0, control, value) for model in "ab" for control, value in r2.items()]
    shuffled = {"rows": [8, 64], "shuffled_in_sample": [0.5, 0.1], "shuffled_held_out": [-1.0, -0.1]}
    return {
        "controls": pd.DataFrame(controls, columns=["model", "block", "control", "r2"]),
        "by_model": pd.DataFrame({"model": ["a", "b"], "outside": [1, 0]}),
        "random": pd.DataFrame({"model": ["a", "a", "b", "b"], "seed": [0, 1, 0, 1], "r2": [0.1, 0.2, 0.3, 0.3]}),
        "closed_form": pd.DataFrame({"gap": [0.02], "priced_gap": [0.01]}),
        "floors": pd.DataFrame(shuffled),
        "effects": pd.DataFrame(
            {"design": "two-way", "effect": ["inputs", "weights"], "share": [0.3, 0.7]}
            | {"share_low": [0.2, 0.6], "share_high": [0.4, 0.8]}
        ),
        "beside_seeds": pd.DataFrame(
            {"measured_on": "all", "effect": ["family", "text"], "ratio": [1.5, 2.5]}
            | {"ratio_low": [1.1, text_low], "ratio_high": [1.9, 3.0]}
        ),
    }


def said(found):
    return describe(tables.Results("08_controls", found, {"settings": {"models": ["a", "b"], "corpora": ["docs"]}}))


def test_who_makes_a_profile_is_said():
    prose = said(made_up())
    assert "1 of 1 blocks of a and 0 of 1 blocks of b" in prose.answer[0]
    assert "70 [60, 80] % to weights and 30 [20, 40] % to the rows" in prose.answer[1]
    assert "two architectures 1.5 [1.1, 1.9] times and" in prose.answer[2]
    assert "which may be the seed alone" not in prose.answer[2]
    assert "which may be the seed alone" in said(made_up(text_low=1.0)).answer[2]
    assert "0.50 to 0.90 in a and b" in prose.replies[0]
    assert "another text (2.5), another architecture (1.5), another seed (1.0). The intervals" in prose.replies[2]
    assert "1 of 1 blocks of each of a and b" in prose.questions[1][1]
    assert "0.100 to 0.200 in a and 0.300 in b" in prose.questions[4][1]


@pytest.mark.parametrize(("redrawn", "answer"), [(0.8, "Hardly"), (0.6, "It does")])
def test_whether_the_kind_of_disorder_matters(redrawn, answer):
    assert said(made_up(redrawn=redrawn)).questions[3][1].startswith(answer)


def test_a_run_without_transplants_and_twins_says_less():
    found = made_up()
    del found["beside_seeds"]
    found["effects"] = found["effects"].iloc[:0]
    prose = said(found)
    assert len(prose.answer) == 1
    assert "twins" in prose.replies[2]
