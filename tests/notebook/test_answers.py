"""A template of prose: its parts, its filters, and what it says where results lack something."""

import re

import pandas as pd
import pytest

from howlinear.errors import SourceError
from howlinear.files.tables import Results
from howlinear.notebook import prose

TEMPLATE = """
{% set worst = blocks | bottom("r2") %}
# Answer
- The lowest block is {{ worst.block }} of {{ worst.model }},
  at {{ worst | interval("r2") }}.
- {% call(m) per_model(models) %}{{ (blocks | of(model=m)).r2 | span }}{% endcall %}.
# Replies
1. {{ all_some_none([true, false], "all", "some", "none") }}
2. Two.
# Questions
## Why?
Because of {{ "b" if len(corpora) < 2 else "c" }}.
"""


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "TEMPLATES", tmp_path)
    (tmp_path / "02_ceilings.md").write_text(TEMPLATE, encoding="utf-8")
    rows = [("x", 0, 0.5, 0.4, 0.6), ("x", 1, -0.25, -0.3, -0.2), ("y", 0, 0.5, 0.4, 0.6), ("y", 1, 0.7, 0.6, 0.8)]
    blocks = pd.DataFrame(rows, columns=["model", "block", "r2", "r2_low", "r2_high"])
    return Results("02_ceilings", {"blocks": blocks}, {"settings": {"models": ["x", "y"], "corpora": ["docs"]}})


def test_a_template_says_what_the_tables_hold(results):
    found = prose.describe(results)
    assert found.answer == [
        "The lowest block is 1 of x, at −0.25 [−0.30, −0.20].",
        "−0.25 to 0.50 in x and 0.50 to 0.70 in y.",
    ]
    assert found.replies == ["some", "Two."]
    assert found.questions == [("Why?", "Because of b.")]


def test_blocks_that_are_left_out_are_named_behind_the_answer(results):
    whole = prose.describe(results)
    constant = {"x": {"docs": [2, 13]}, "y": {"docs": [4], "code": [5]}}
    settings = results.run["settings"] | {"constant": constant}
    found = prose.describe(Results(results.stem, results, {"settings": settings}))
    assert found.answer[: len(whole.answer)] == whole.answer
    named = [{part for part in re.findall(r"\w+", sentence)} for sentence in found.answer[len(whole.answer) :]]
    for words, expected in zip(named, ({"2", "13", "x", "docs"}, {"4", "y", "docs"}, {"5", "y", "code"}), strict=True):
        assert expected <= words
    assert (found.replies, found.questions) == (whole.replies, whole.questions)


def test_results_that_lack_what_is_said_are_an_error_that_says_what_to_do(results):
    with pytest.raises(SourceError, match="run the notebook again"):
        prose.describe(Results("02_ceilings", {}, results.run))
    with pytest.raises(SourceError, match=r"no template 13_claims\.md"):
        prose.describe(Results("13_claims", {}, results.run))


def test_a_template_without_a_part_is_an_error(results, tmp_path):
    (tmp_path / "02_ceilings.md").write_text("# Answer\n- one\n", encoding="utf-8")
    with pytest.raises(SourceError, match="give Answer, Replies, Questions"):
        prose.describe(results)


def test_models_that_share_a_clause_stand_together_and_an_empty_clause_is_left_out():
    clauses = {"a": "one", "b": "two", "c": "one", "d": " "}
    assert prose.per_model(clauses, "of", caller=lambda model: clauses[model]) == "one of each of a and c; and two of b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (prose.number(-0.001), "0.00"),
        (prose.number(1234.5, 1, signed=True), "+1,234.5"),
        (prose.significant(0.01234), "0.012"),
        (prose.percent(0.004), "less than 1 %"),
        (prose.percent(0.996), "more than 99 %"),
        (prose.percents([0.2, 0.204]), "20 %"),
        (prose.joined(["a", "b", "c"]), "a, b and c"),
        (prose.joined(["a and b", "c", "d"]), "a and b; c; and d"),
        (prose.counted(1, "block"), "one block"),
        (prose.counted(16, "block"), "16 blocks"),
        (prose.blocks([3]), "block 3"),
        (prose.blocks([0, 3]), "blocks 0 and 3"),
        (prose.cost({"d": 1.234, "d_low": -0.1, "d_high": 12.34}, "d"), "+1.2 [−0.1, 12.3]"),
    ],
)
def test_numbers_and_lists_in_words(text, expected):
    assert text == expected
