"""What notebook 14 says of its tables, where they say something else than the record does."""

import pandas as pd
import pytest

from howlinear.files import paths, tables
from howlinear.files.tables import Results
from howlinear.notebook import prose

STEM = "14_compress"


@pytest.fixture
def found():
    return tables.read(paths.results("minis") / STEM)


def changed(found, table, rows, **values):
    """The same results, some rows of one table changed."""
    copy = found[table].copy()
    for name, value in values.items():
        copy.loc[rows(copy), name] = value
    return with_tables(found, **{table: copy})


def with_tables(found, **new):
    return Results(STEM, {**found.tables, **new}, found.run)


def answers(found):
    described = prose.describe(found)
    return [*described.answer, *described.replies, *(answer for _, answer in described.questions)]


def moved(found, other):
    """Which answers are no longer what they were."""
    return [place for place, pair in enumerate(zip(answers(found), answers(other), strict=True)) if pair[0] != pair[1]]


def of(method, share=0.8):
    return lambda table: (table["method"] == method) & (table["share"] == share)


@pytest.mark.parametrize(
    ("table", "rows", "values", "expected"),
    [
        ("race", of("own units"), {"ratio_low": 0.5}, [0, 8]),
        ("race", of("GRAIL on Wanda"), {"over_first": 7.0}, [1]),
        ("race", of("ShortGPT", 0.9), {"ratio": 7.0}, [4, 9]),
        ("race", of("lines by price"), {"ratio": 0.9}, [1, 9, 10]),
        ("limit", lambda table: table["what"] == "held out", {"ratio": 7.0}, [2]),
        ("healing", of("own units"), {"behind": 7.0}, [3]),
        ("exchanges", of("without a ridge"), {"over_first": 9.0, "over_first_low": 8.0}, [7]),
        ("exchanges", of("by scores of single units"), {"over_first": 9.0}, [6, 7]),
    ],
)
def test_an_answer_changes_with_the_number_that_it_is_of(found, table, rows, values, expected):
    assert moved(found, changed(found, table, rows, **values)) == expected


@pytest.mark.parametrize("gone", ["limit", "healing", "exchanges"])
def test_what_was_not_measured_is_not_said(found, gone):
    left = {name: table for name, table in found.tables.items() if name != gone}
    assert answers(Results(STEM, left, found.run))


def test_models_of_other_sizes_stand_with_their_own(found):
    """One model that cannot keep 80 %: its numbers are of 90 %, the others' are as they were."""
    left = {
        name: table[(table["model"] != "mini-gpt2") | (table["share"] != 0.8)] if "share" in table else table
        for name, table in found.tables.items()
    }
    answer = prose.describe(Results(STEM, left, found.run)).answer[0]
    assert answer.count("with 90 %") == 3
    assert answer.count("with 80 %") == 2


def test_encoders_alone_have_been_raced_by_nobody():
    run = {"settings": {"models": ["a"], "corpora": ["docs"], "without": {"a": "it predicts no next token"}}}
    described = prose.describe(Results(STEM, {}, run))
    assert len(described.answer) == 1
    assert len(described.replies) == 3
    assert len(described.questions) == 5


def test_one_method_and_one_size_alone(found):
    race = found["race"]
    alone = race[(race["method"] == "own units") & (race["share"] == 0.8)]
    assert answers(with_tables(found, race=alone))


def test_a_method_that_made_no_model_is_left_out(found):
    race = found["race"].astype({"why": object})
    race.loc[race["method"] == "ShortGPT", ["ratio", "kept", "over_first"]] = None
    race.loc[race["method"] == "ShortGPT", "why"] = "too small"
    assert "has not raced ShortGPT" in prose.describe(with_tables(found, race=pd.DataFrame(race))).replies[0]
