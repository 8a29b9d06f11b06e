"""What notebook 02 says of results that the recorded ones are not like: every branch of its template."""

import numpy as np
import pandas as pd
import pytest

from howlinear.files.tables import Results
from howlinear.notebook.prose import describe

STEM = "02_ceilings"


def model(r2, *, costs=None, rho=np.nan, turns=False, **columns):
    """Blocks of these R², half an interval of 0.01, and swaps that cost so much, give or take half an interval."""
    dppl, half = np.transpose(costs) if costs else (np.nan, np.nan)
    r2 = np.array(r2)
    blocks = {"block": np.arange(len(r2)), "r2": r2, "r2_low": r2 - 0.01, "r2_high": r2 + 0.01, "r2_train": r2 + 0.02}
    blocks |= {"massive_rows": 10, "r2_ordinary": r2, "r2_untrained": 0.5, "r2_untrained_in_sample": 0.5}
    blocks |= {"dppl": dppl, "dppl_low": dppl - half, "dppl_high": dppl + half}
    whole = {"perplexity": 40.0 if costs else np.nan, "rows": 1000, "rises_and_falls": turns, "spearman": rho}
    return pd.DataFrame(blocks | columns), whole


def say(agrees=True, **models):
    tables = {
        "blocks": pd.concat([blocks.assign(model=name) for name, (blocks, _) in models.items()], ignore_index=True),
        "models": pd.DataFrame([{"model": name, **whole} for name, (_, whole) in models.items()]),
        "solver": pd.DataFrame({"r2_by_svd": [0.99], "within": 1e-9, "agrees": agrees}),
    }
    return describe(Results(STEM, tables, {"settings": {"models": list(models), "corpora": ["docs"]}}))


def test_the_dearest_block_is_sure_only_where_no_other_interval_reaches_it():
    sure = model([0.9, 0.8], costs=[(3.0, 0.5), (1.0, 0.5)], rho=1.0)
    unsure = model([0.9, 0.8], costs=[(3.0, 0.5), (1.0, 2.0)], rho=1.0)
    many = model([0.9] * 5, costs=[(3.0, 2.0)] + [(2.0, 2.0)] * 4, rho=1.0)
    assert "; no other block" in say(a=sure).answer[1]
    assert say(a=sure, b=unsure).answer[1].endswith("overlaps with that of block 1 in b.")
    assert say(a=many).answer[1].endswith("overlaps with that of 4 other blocks in a.")


def test_the_order_may_be_either_way_or_chance():
    costs = [(float(block), 0.1) for block in range(12)]
    found = say(
        **{name: model([0.5] * 12, costs=costs, rho=rho) for name, rho in (("a", 0.9), ("b", -0.9), ("c", 0.2))}
    )
    assert "ρ = +0.90 in a, ρ = −0.90 in b and ρ = +0.20 in c" in found.answer[2]
    assert found.answer[2].endswith(
        "are the dearer ones in a, the more linear blocks are the cheaper ones in b and this may be chance in c."
    )


def test_an_encoder_has_no_costs():
    found = say(a=model([0.9, 0.8]))
    nothing = "a predicts no next token, so no swap of a block has a cost in perplexity."
    assert found.answer[1:] == [nothing]
    assert found.replies[2] == nothing
    assert "block 1 (without a cost: an encoder) in a." in found.questions[2][1]


def test_swaps_of_the_straightest_and_of_the_least_linear_block():
    found = say(a=model([0.9, 0.8, 0.7], costs=[(2.0, 0.1), (5.0, 0.1), (1.0, 0.1)], rho=0.5), b=model([0.9, 0.8]))
    assert found.replies[2].startswith("Perplexity rises by 2.00 from 40.0 (block 0; one block of 3 would cost more)")
    assert found.replies[2].endswith("b predicts no next token, so no swap of a block has a cost in perplexity.")
    assert "block 2 (the dearest is block 1) in a" in found.questions[2][1]
    dearest = say(a=model([0.9, 0.7], costs=[(2.0, 0.1), (5.0, 0.1)], rho=-1.0))
    assert "block 1 (which is the dearest) in a" in dearest.questions[2][1]


def test_a_block_that_rests_on_massive_rows_is_named():
    (_, one) = say(a=model([0.9, 0.8], r2_ordinary=[0.3, 0.8])).answer[:2]
    assert one.startswith("In block 0 of a ")
    assert one.endswith("without 1.0 % of the rows that is 0.30, not 0.90.")
    (_, two) = say(a=model([0.9, 0.8], r2_ordinary=[0.3, 0.1])).answer[:2]
    assert two.startswith("In blocks 0 and 1 of a ")
    assert two.endswith("without 1.0 % of the rows that of block 1 is 0.10, not 0.80.")


def test_profiles_that_turn_and_those_that_need_not():
    (_, reply, _) = say(a=model([0.9, 0.8]), b=model([0.9, 0.8], turns=True)).replies
    assert reply.endswith("intervals, in b. The intervals do not show that it both falls and rises in a.")


def test_blocks_are_more_or_less_linear_before_training_beyond_their_interval():
    more, less, either = model([0.4, 0.48, 0.505]), model([0.6] * 3), model([0.4, 0.4, 0.505, 0.6])
    (reply, _, _) = say(a=more, b=less, c=more, d=either).replies
    assert reply.startswith(
        "Before training blocks are more linear in a (R²_lin 0.50; surely in 2 of 3 blocks) and c (R²_lin 0.50; "
        "surely in 2 of 3 blocks); less linear in b (R²_lin 0.50; surely in 3 of 3 blocks); and not surely more or "
        "less linear in d (R²_lin 0.50; more in 2 and less in 1 of 4 blocks)."
    )


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (model([0.6, 0.6]), "It did not here: the mean R²_lin over blocks goes from 0.50 to 0.60 in a."),
        (model([0.4, 0.4]), "It did in every model of this run: the mean R²_lin over blocks goes from 0.50 to 0.40"),
    ],
)
def test_training_bends_or_does_not(found, answer):
    assert say(a=found).questions[3][1].startswith(answer)


def test_the_other_questions():
    found = say(agrees=False, a=model([0.6, 0.605, 0.7], r2_train=[0.55, 0.6, 0.69]))
    (_, why), (_, sure), *_, (_, exact) = found.questions
    assert why.startswith("Because a line might look better on its own rows: ")
    assert "−0.005 (block 1) in a" in why
    assert sure.endswith("they do not touch at 1 of 2 steps in a.")
    assert exact.startswith("It was here: ")
    assert exact.endswith("more than a billionth.")
