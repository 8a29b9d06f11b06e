"""What profiles say under each protocol: statements by hand, and planted universes of which one choice flips."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from howlinear.core.intervals import Estimate
from howlinear.ideas.claims.claim import load_claims
from howlinear.ideas.protocol import statements
from howlinear.ideas.protocol.choices import named_protocol
from howlinear.ideas.protocol.measure import profile_table
from howlinear.text.rows import FOLDS

OURS = named_protocol("ours")
SPREAD = statements.STATEMENTS["spread"]
LOWEST = statements.STATEMENTS["lowest"]
STEEP = [0.9, 0.5, 0.6, 0.7]


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [(0.92, 0.95, "holds", "fails"), (0.1, 0.2, "fails", "holds"), (0.2, 0.92, "open", "open")],
)
def test_verdicts_need_the_whole_interval(low, high, above, below):
    estimate = Estimate((low + high) / 2, low, high)
    assert SPREAD.verdict(estimate) == above
    assert LOWEST.verdict(estimate) == below


@pytest.mark.parametrize(
    ("name", "claim"), [("spread", "heterogeneous"), ("both ways", "non-monotone"), ("neighbours", "adjacent")]
)
def test_what_the_ledger_asks_too_has_its_threshold(name, claim):
    threshold = next(each.threshold for each in load_claims() if each.id == claim)
    assert statements.STATEMENTS[name].threshold == threshold


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
    table = statements.number_table(universes(planted))
    assert len(table) == 2 * 8
    flips = statements.flip_table(table, OURS).set_index(["model", "statement"])
    spread = flips.loc[("a", "spread")]
    assert (spread.flips, spread.alone, spread.share) == (True, "denominator", 0.5)
    assert (spread.smallest, spread.largest) == pytest.approx((0.1, 0.4))
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
    table = statements.number_table(universes(planted))
    assert statements.order_table(table).to_numpy().tolist() == [["a > b", 1.0]]
    lowest = statements.lowest_table(table).set_index(["model", "block"]).share
    assert lowest[("a", 1)] == 1
    assert lowest[("b", 0)] == 1


def test_a_universe_of_which_a_block_has_no_limit_is_left_out():
    def untold(model, protocol):
        return [0.9, float("nan")] if protocol.rows == "16" else [0.9, 0.5]

    table = statements.number_table(universes(untold))
    assert set(table.rows) == {"most"}
    assert len(table) == 2 * 4


def test_of_a_single_block_no_statement_is_made_that_takes_two():
    table = statements.number_table(universes(lambda model, _: [0.5] if model == "a" else STEEP))
    flips = statements.flip_table(table, OURS)
    assert flips.groupby("model")["statement"].agg(list).to_dict() == {"a": ["lowest"], "b": [*statements.STATEMENTS]}
    assert statements.verdict_table(pd.DataFrame(folds_of("ours", [0.5])))["statement"].tolist() == ["lowest"]


def folds_of(protocol, profile, spread=0.01):
    """Folds of a profile whose blocks all move together when one is left out of the fit."""
    moves = [("none", 0, 0.0)]
    moves += [("fit", fold, move) for fold, move in enumerate(np.linspace(-spread, spread, FOLDS))]
    moves += [("score", fold, 0.0) for fold in range(FOLDS)]
    about = {"model": "a", "protocol": protocol}
    return [
        about | {"side": side, "fold": fold, "block": block, "r2": r2 + move}
        for block, r2 in enumerate(profile)
        for side, fold, move in moves
    ]


def test_each_protocol_has_its_verdict():
    table = statements.verdict_table(pd.DataFrame(folds_of("paper", [0.9, 0.8, 0.85]) + folds_of("ours", STEEP)))
    verdicts = table.set_index(["statement", "protocol"]).verdict
    assert (verdicts["spread", "paper"], verdicts["spread", "ours"]) == ("fails", "holds")
    assert verdicts["lowest", "ours"] == "holds"
    wide = statements.verdicts_side_by_side(table)
    assert list(wide.columns) == ["paper", "ours"]
    # blocks that move together leave their differences alone, and so the interval of a spread has no length
    assert wide.loc[("a", "spread"), "ours"] == "holds 0.40 [0.40, 0.40]"


def test_profiles_are_tables_with_intervals():
    table = profile_table(pd.DataFrame(folds_of("ours", STEEP)))
    assert table.r2.tolist() == STEEP
    # 7/8 Σ (move − mean)² of evenly spaced moves, times Student's t of 7 degrees of freedom
    half = 2.3646 * (7 * np.var(np.linspace(-0.01, 0.01, FOLDS))) ** 0.5
    assert (table.r2 - table.r2_low).tolist() == pytest.approx([half] * 4, abs=1e-5)
    assert (table.r2_high - table.r2).tolist() == pytest.approx([half] * 4, abs=1e-5)
