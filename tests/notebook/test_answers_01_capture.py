"""What notebook 01 says of results that the recorded ones are not like: every branch of its template."""

import pandas as pd

from howlinear.files.tables import Results
from howlinear.notebook.prose import describe


def row(model, block, first_out=1.0, **columns):
    numbers = {"condition": 2.0 + block, "effective_rank": 4.0, "rank": 8, "width": 8, "null": 0.5, "second": 0.25}
    numbers |= {"dynamic_range": 1.5, "first_position_in": 1.0, "first_position_out": first_out}
    return {"model": model, "block": block} | numbers | columns


def say(*rows):
    return describe(Results("01_capture", {"inputs": pd.DataFrame(rows)}))


def test_position_0_is_like_the_others_everywhere_nowhere_or_here_and_there():
    alike = [row("a", 0, 1.1), row("b", 0, 0.9)]
    assert say(*alike).replies[1].startswith("Yes, nearly.")
    reply = say(row("a", 0, 1.1), row("a", 1, 0.1), row("b", 0, 3.0)).replies[1]
    assert reply.startswith("No.")
    assert "0.10 times as long in block 1 of a and 3.0 times as long in block 0 of b" in reply
    assert say(*alike, row("c", 0, 9.0)).replies[1].startswith("Not in all models.")


def test_directions_that_cannot_vary_are_counted_by_block():
    found = say(row("a", 0, rank=7, null=0.0), row("a", 1), row("b", 0, null=0.125))
    assert found.replies[2] == "7 to 8 of 8 directions in a and all 8 directions in b."
    assert "at least 0.2 in a and 0.1 in b; that of the direction missing in a" in found.questions[3][1]
    assert say(row("a", 0)).questions[3][1].endswith("0.5 in a, and no direction is missing in this run.")


def test_of_inputs_of_one_effective_rank_those_with_condition_numbers_furthest_apart_are_named():
    found = say(row("a", 0), row("a", 1), row("a", 2, effective_rank=4.1), row("a", 3, effective_rank=8.0))
    assert "they are 4.00 and 4 of 8 in block 2 of a, and 2.00 and 4 of 8 in block 0 of a." in found.questions[0][1]
    assert say(row("a", 0), row("a", 1, effective_rank=5.0)).questions[0][1].startswith("Not by necessity.")


def test_a_long_row_counts_for_its_square():
    assert "up to 10 times as long" in say(row("a", 0, 10.0)).questions[4][1]
    assert say(row("a", 0, 10.0)).questions[4][1].endswith("about 100 others.")
    assert "at most 1.10 times as long" in say(row("a", 0, 1.1)).questions[4][1]
