"""What profiles say under each protocol: statements by hand, and planted universes of which one choice flips."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from howlinear.core.intervals import Estimate
from howlinear.ideas.protocol import statements
from howlinear.ideas.protocol.choices import PROTOCOLS
from howlinear.ideas.protocol.multiverse import Scores
from howlinear.ideas.protocol.survey import agreement

OURS = PROTOCOLS["ours"]
STEEP = [0.9, 0.5, 0.6, 0.7]


@pytest.mark.parametrize(
    ("low", "high", "above", "below"), [(0.3, 0.4, "✓", "✗"), (0.1, 0.2, "✗", "✓"), (0.2, 0.3, "~", "~")]
)
def test_verdicts_need_the_whole_interval(low, high, above, below):
    estimate = Estimate((low + high) / 2, low, high)
    assert statements.Statement("", 0.25).verdict(estimate) == above
    assert statements.Statement("", 0.25, above=False).verdict(estimate) == below


def universes(profile_of):
    """Two models in eight universes: two denominators, two splits, two numbers of rows."""
    rows = []
    for model, denominator, split, count in product("ab", ("scalar", "feature"), ("tail", "documents"), ("16", "most")):
        protocol = replace(OURS, denominator=denominator, split=split, rows=count)
        for block, r2 in enumerate(profile_of(model, protocol)):
            rows.append({"model": model, **asdict(protocol), "block": block, "r2": r2})
    return pd.DataFrame(rows)


def planted(model, protocol):
    """Model `a` is steep, unless its denominator is the scalar; model `b` is always flat, and lower."""
    if model == "b":
        return [0.3, 0.31, 0.3, 0.3]
    return [0.9, 0.8, 0.85, 0.9] if protocol.denominator == "scalar" else STEEP


def test_the_choice_that_flips_a_verdict_is_found_and_no_other():
    table = statements.statement_table(universes(planted))
    assert len(table) == 2 * 8
    flips = statements.flip_table(table, OURS).set_index(["model", "statement"])
    spread = flips.loc[("a", "spread")]
    assert (spread.flips, spread.alone, spread.share) == (True, "denominator", 0.5)
    assert (spread.low, spread.high) == pytest.approx((0.1, 0.4))
    steady = flips.loc[("b", "spread")]
    assert (steady.flips, steady.alone, steady.share) == (False, "", 0)
    assert flips.loc[("b", "lowest")].share == 1


def test_effects_are_of_one_choice_with_all_others_equal():
    def shifted(model, protocol):
        return np.array(STEEP) + 0.1 * (protocol.split == "tail") - 0.02 * (protocol.rows == "16")

    effects = statements.effect_table(universes(shifted), OURS).set_index(["choice", "level"])
    assert effects.loc[("split", "tail")].tolist() == pytest.approx([0.1, 0.1])
    assert effects.loc[("rows", "16")].tolist() == pytest.approx([-0.02, -0.02])
    assert effects.loc[("denominator", "scalar")].tolist() == pytest.approx([0, 0])


def test_orders_and_lowest_blocks_are_counted_over_universes():
    table = statements.statement_table(universes(planted))
    assert statements.orders(table).to_dict() == {"a > b": 1.0}
    lowest = statements.lowest_blocks(table).set_index(["model", "block"]).share
    assert lowest[("a", 1)] == 1
    assert lowest[("b", 0)] == 1


def noisy(profile, spread=0.01):
    """A profile whose blocks all move together when a fold is left out."""
    folds = np.linspace(-spread, spread, 8)[:, None]
    profile = np.array(profile)
    return Scores(profile, profile + folds, profile + 0 * folds)


def test_side_by_side_gives_each_protocol_its_verdict():
    named = {"a": {"paper": noisy([0.9, 0.8, 0.85]), "ours": noisy(STEEP)}}
    table = statements.side_by_side(named)
    verdicts = table.set_index(["statement", "protocol"]).verdict
    assert (verdicts["spread", "paper"], verdicts["spread", "ours"]) == ("✗", "✓")
    assert verdicts["lowest", "ours"] == "✓"
    wide = statements.verdicts_wide(table)
    assert list(wide.columns) == ["paper", "ours"]
    # blocks that move together leave their differences alone, and so the interval of a spread has no length
    assert wide.loc[("a", "spread"), "ours"] == "✓ 0.40 [0.40, 0.40]"


def test_profiles_are_tables_with_intervals():
    table = statements.profile_table({"a": {"ours": noisy(STEEP)}})
    assert table.r2.tolist() == STEEP
    assert (table.low < table.r2).all()
    assert (table.r2 < table.high).all()


def curve(split, block, few, many):
    """Two rows of a curve: (in sample, held out, limit, half-width) at 16 and at 100 rows an input."""
    rows = []
    for factor, (in_sample, held_out, limit, half) in ((16, few), (100, many)):
        about = {"model": "a", "split": split, "block": block, "factor": factor, "rows": 128 * factor}
        found = {"in_sample": in_sample, "held_out": held_out, "limit": limit}
        rows.append({**about, **found, "low": limit - half, "high": limit + half})
    return rows


def test_agreement_counts_what_came_true():
    # u = 0.5 and v / n = 0.2 at 16 d, so 0.032 at 100 d: held out 1 − 0.5 / 0.968 there
    kept = ((0.6, 0.375, 0.5, 0.02), (0.516, 1 - 0.5 / 0.968, 0.5, 0.01))
    missed = ((0.6, 0.375, 0.5, 0.02), (0.7, 0.68, 0.69, 0.01))
    found = agreement(pd.DataFrame(curve("tail", 0, *kept) + curve("tail", 1, *missed)), 16, 100)
    row = found.iloc[0]
    assert row.blocks == 2
    assert row.limit_agrees == 1
    assert row.value_agrees == 1
    assert row.raw_error == pytest.approx(np.mean([0.375 - 0.5, 0.375 - 0.69]))
    assert row.limit_error == pytest.approx(np.mean([0, 0.5 - 0.69]))
