"""What notebook 12 says of tables made up for a case each."""

import dataclasses

import pandas as pd
import pytest

from howlinear.files import tables
from howlinear.notebook import prose

SETTINGS = {"models": ["a", "b"], "counts": [0, 8, 64], "multiple": 10.0, "deciding_fall": 0.1}


def swapped(kind, nats, block=2, massive=5, model="a"):
    row = {"model": model, "block": block, "kind": kind, "massive_rows": massive, "nats": nats}
    return row | {"nats_low": nats - 0.1, "nats_high": nats + 0.1}


def block(model, number, massive, r2=0.9, ordinary=0.85):
    row = {"model": model, "block": number, "rows": 2_000, "massive_rows": massive, "heaviest": 5.0 + number}
    carried_by = "tokens" if abs(r2 - ordinary) >= 0.1 else "neither"
    return row | {"r2": r2, "r2_ordinary": ordinary, "fall": r2 - ordinary, "carried_by": carried_by}


PLAIN = [block("a", 0, 0), block("b", 1, 0)]
PLANTED_COSTS = [swapped("a", 2.0), swapped("b", 0.05), swapped("d", 0.01), swapped("e", 0.02)]


def made_up(blocks=PLAIN, costs=(), planted_costs=PLANTED_COSTS, fell=(None, None), at_first=(), ordinary_rank=30.0):
    planted = {"block": 5, "massive_rows": [0, 9], "rows": 100, "r2": [0.6, 0.9], "of_all": [0.6, -3.0]}
    planted |= {"heaviest": [4.0, 300.0], "effective_rank": [30.0, 1.0], "effective_rank_ordinary": ordinary_rank}
    return tables.Results(
        "12_sinks",
        {
            "blocks": pd.DataFrame(blocks),
            "costs": pd.DataFrame(list(costs), columns=list(swapped("a", 1.0))),
            "massive": pd.DataFrame(list(at_first), columns=["model", "block", "at_first"]),
            "planted": pd.DataFrame(planted | {"case": ["clean", "sunk"]}),
            "planted_costs": pd.DataFrame(list(planted_costs), columns=list(swapped("a", 1.0))).drop(columns="model"),
            "predictions": pd.DataFrame({"falls": [True, False], "fell": pd.array(fell, dtype="boolean")}),
        },
        {"settings": SETTINGS},
    )


def answer(**found):
    return prose.describe(made_up(**found)).answer


def test_each_model_has_its_sentence():
    said = answer(blocks=[block("a", 0, 0), block("a", 1, 8, 0.97, 0.6), block("a", 2, 9), *PLAIN[1:]])
    assert said[:2] == [
        "2 of 3 blocks of a have massive rows, at most 9 of 2,000; R²_lin rests on them in 1: block 1 0.97 → 0.60.",
        "No block of b has a massive row: the heaviest of 2,000 has 6.0 times the median norm, in block 1.",
    ]
    harmless = answer(blocks=[block("a", 2, 9, 0.30, 0.35), *PLAIN[1:]])
    assert harmless[0].endswith("; without them R²_lin changes by +0.05 at most, in block 2.")


def test_the_dearest_mended_block_is_named_where_there_is_one():
    costs = [swapped("a", 1.0), swapped("e", 0.2), swapped("a", 3.0, block=4), swapped("e", 0.3, block=4)]
    assert answer(costs=costs)[2].endswith("first position 0.30 [0.20, 0.40] (block 4) in a.")
    assert len(answer()) == 3
    assert len(answer(costs=[swapped("a", 1.0, massive=0), swapped("e", 0.2, massive=0)])) == 3


def test_blocks_with_more_massive_rows_than_the_figure_leaves_out_are_named():
    blocks = [block("a", 0, 64), block("a", 1, 65), block("a", 2, 1_234, ordinary=0.3), block("b", 3, 200)]
    found = made_up(blocks=blocks)
    assert prose.describe(found).answer[2] == (
        "The figure in which heaviest rows are left out ends at 64 rows, before all massive rows are gone, in blocks "
        "1 and 2 (65 to 1,234 massive rows) of a; and block 3 (200 massive rows) of b. The block with the most, block "
        "2 of a, has an R²_lin of 0.90, and of 0.30 once all are gone."
    )
    farther = dataclasses.replace(found, run={"settings": SETTINGS | {"counts": [0, 2_000]}})
    assert not any("figure" in sentence for sentence in prose.describe(farther).answer)


def test_predictions_that_were_run_are_counted():
    assert answer()[-1].endswith("in 1; none of them has been run yet.")
    assert answer(fell=(True, True))[-1].endswith("in 1; 2 of them have been run.")


@pytest.mark.parametrize(
    ("costs", "beginning"),
    [
        (PLANTED_COSTS, "As far as this text can tell, yes: "),
        ([swapped("a", 2.0), swapped("b", 2.0), swapped("d", 0.01), swapped("e", 0.02)], "No: "),
        ((), "a and b predict no next token"),
    ],
)
def test_whether_leaving_the_rows_to_the_block_mends_the_model(costs, beginning):
    assert prose.describe(made_up(planted_costs=costs)).replies[2].startswith(beginning)


@pytest.mark.parametrize(
    ("number", "found", "text"),
    [
        (0, {}, "has 300 times the median norm and counts as about 90,000 rows"),
        (1, {}, "Not on most rows"),
        (1, {"ordinary_rank": 1.1}, "It seems so here"),
        (2, {}, "the heaviest row, in block 1 of b, has 6.0 times the median norm, and it takes 10."),
        (2, {"at_first": [("a", 0, 1.0)]}, "They are in this run: from block to block, 100 % in a of them stand"),
        (2, {"at_first": [("a", 0, 0.5)]}, "No: from block to block, 50 %"),
        (3, {}, "Yes, where they are nearly one and the same vector"),
        (3, {"planted_costs": [*PLANTED_COSTS[:3], swapped("e", 0.4)]}, "Not in the planted block"),
        (3, {"planted_costs": ()}, "This run cannot tell. a and b predict no next token"),
        (4, {}, "none of them has been run yet."),
        (4, {"fell": (True, True)}, "of 2 that have been run 1 came out right."),
    ],
)
def test_results_that_turn_round_turn_the_answer_round(number, found, text):
    assert text in prose.describe(made_up(**found)).questions[number][1]
