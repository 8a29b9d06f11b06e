"""What notebook 00 says of results that the recorded one is not like: every branch of its template."""

import pytest

from howlinear.files import tables
from howlinear.files.tables import Results
from howlinear.notebook.prose import describe

STEM = "00_by_hand"


@pytest.mark.parametrize(
    ("table", "column", "value", "question", "answer"),
    [
        ("hasty", "r2", 0.95, 0, "Because it might learn some"),
        ("checks", "nonsense", 0.4, 1, "It has 0.40, so something is wrong"),
        ("parabola", "r2", -3.0, 2, "an R² of −3.00 on their own flank and of −3.0 on the other one"),
        ("neurons", "r2", [0.7, 0.9, 0.9, 0.5], 3, "It goes from 0.700 to 0.500"),
        ("drawn", "r2", 0.25, 4, "explains 0.25; the line measured"),
    ],
)
def test_answers_move_with_the_tables(table, column, value, question, answer):
    found = tables.results("minis", STEM)
    changed = {**found, table: found[table].assign(**{column: value})}
    assert answer in describe(Results(STEM, changed, found.run)).questions[question][1]
