"""Signals and what they should predict: measured costs, and how well the one ranks the other."""

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from conftest import BLOCKS, WIDTH
from howlinear.core.ceilings import AffineMap, ceiling, fit, r2
from howlinear.errors import InputError
from howlinear.ideas.compression.costs import cost, swap_cost
from howlinear.ideas.compression.price import price
from howlinear.ideas.compression.reduced_rank import recovered
from howlinear.ideas.compression.rivals import Rivals
from howlinear.ideas.compression.signals import (
    IN_NATS,
    REPLACE_ONE,
    agreement,
    block_costs,
    compare,
    folded,
    massive_sentence,
    massive_table,
    ranking,
    set_costs,
    signals,
)
from howlinear.ideas.sinks.planted import sunk
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses, perplexity
from howlinear.models.swap import swap


@pytest.fixture
def blocks(gpt2, rows):
    return capture(gpt2, rows)


@pytest.fixture
def maps(blocks):
    return {block: fit(sum(kept.train))[0] for block, kept in blocks.items()}


@pytest.fixture
def held_out(rows):
    return rows.ids[rows.test]


@pytest.fixture
def costs(gpt2, blocks, maps, held_out):
    return block_costs(gpt2, blocks, maps, held_out)


# --- what a swap costs


def test_a_cost_by_hand():
    base = torch.tensor([1.0, 3.0]).double()
    found = cost(base, base + 0.5)
    assert found["nats"] == pytest.approx(0.5)
    assert found["delta"] == pytest.approx(np.exp(2.5) - np.exp(2))
    assert found["low"] < found["delta"] < found["high"]
    assert list(found) == ["nats", "delta", "low", "high"]


def test_a_swaps_cost_is_the_difference_of_two_perplexities(gpt2, maps, held_out):
    found = swap_cost(gpt2, {0: maps[0], 2: maps[2]}, held_out, losses(gpt2, held_out))
    before = perplexity(gpt2, held_out)
    with swap(gpt2, {0: maps[0], 2: maps[2]}):
        after = perplexity(gpt2, held_out)
    assert found["delta"] == pytest.approx(after - before, rel=1e-9)
    assert found["nats"] == pytest.approx(np.log(after / before), rel=1e-9)
    assert perplexity(gpt2, held_out) == before


def test_each_blocks_costs_are_those_of_swapping_it_alone(gpt2, blocks, maps, held_out, costs):
    base = losses(gpt2, held_out)
    assert costs.index.tolist() == list(range(BLOCKS))
    for block, kept in blocks.items():
        row = costs.loc[block]
        assert row.r2 == pytest.approx(ceiling(kept.train, kept.test).r2, abs=1e-12)
        for key, value in swap_cost(gpt2, {block: maps[block]}, held_out, base).items():
            assert row[key] == pytest.approx(value, rel=1e-9), key
        mean = AffineMap.constant(sum(kept.train))
        assert row.ablation == pytest.approx(swap_cost(gpt2, {block: mean}, held_out, base)["nats"], rel=1e-9)
        with swap(gpt2, {block: maps[block]}):
            swapped = losses(gpt2, held_out)
        with swap(gpt2, {block: mean}):
            share = recovered(base, swapped, losses(gpt2, held_out))
        if share is None:
            assert np.isnan([row.recovered, row.width]).all()
        else:
            assert (row.recovered, row.width) == pytest.approx((share.value, share.high - share.low))


def test_signals_by_hand(gpt2, maps, rows, costs):
    prices = price(gpt2, maps, rows.ids[~rows.test])
    rivals = {block: Rivals(block + 0.1, block + 0.2, block + 0.3) for block in (2, 0, 1)}
    replaced = {block: block + 0.4 for block in (1, 2, 0)}
    said = signals(costs, dict(reversed(prices.items())), rivals, replaced)
    assert set(IN_NATS) <= set(said)
    assert said["block influence"].tolist() == [0.1, 1.1, 2.1]
    assert said["sub-layer cosine"].tolist() == [0.2, 1.2, 2.2]
    assert said["CCA bound"].tolist() == [0.3, 1.3, 2.3]
    assert said[REPLACE_ONE].tolist() == [0.4, 1.4, 2.4]
    alone = signals(costs, prices)
    pd.testing.assert_frame_equal(alone, said[list(alone)])
    assert list(said)[len(alone.columns) :] == ["block influence", "sub-layer cosine", "CCA bound", REPLACE_ONE]
    for block in maps:
        row, found = said.loc[block], prices[block]
        assert row["1 − R²"] == pytest.approx(1 - costs.r2[block])
        assert row["residual"] == pytest.approx(float(found.error.trace()))
        assert row["residual / stream"] == pytest.approx(float(found.error.trace()) / found.stream)
        assert row["ablation × (1 − R²)"] == pytest.approx(costs.ablation[block] * (1 - costs.r2[block]))
        assert (row["ablation"], row["price"], row["price, paired"]) == (
            costs.ablation[block],
            found.cost,
            found.paired,
        )


def test_a_set_is_said_to_cost_the_sum_and_measured_together(gpt2, maps, held_out):
    """Each block is said to cost a power of two, so that a set's sum tells which blocks are in it."""
    said = pd.DataFrame({"power": [1.0, 2, 4]}, index=range(3))
    base = losses(gpt2, held_out)

    def drawn(seed):
        return set_costs(gpt2, maps, said, held_out, 4, np.random.default_rng(seed))

    found = drawn(0)
    assert len(found) == 4
    for row in found.itertuples():
        blocks = [block for block in range(3) if int(row.power) >> block & 1]
        assert len(blocks) in (2, 3)
        together = {block: maps[block] for block in blocks}
        assert row.cost == pytest.approx(swap_cost(gpt2, together, held_out, base)["nats"], rel=1e-9)
    assert found.equals(drawn(0))


# --- maps that rest on massive rows


def test_a_block_whose_map_serves_a_sink_is_found_and_named(gpt2, rows):
    """Planted: block 1 writes a large constant at position 0, where block 0 leaves a mark; nothing else is changed."""
    mark, vector = torch.zeros(WIDTH), torch.zeros(WIDTH)
    clean = capture(gpt2, rows)
    mark[[2, 7]] = 50 * clean[0].heavy_rows().median
    vector[[1, 6]] = 300 * clean[1].heavy_rows().median
    with sunk(gpt2, 1, mark, vector):
        blocks = {1: capture(gpt2, rows)[1]}
    maps = {1: fit(sum(blocks[1].train))[0]}
    table = massive_table(blocks, maps)
    assert table.block.tolist() == [1]
    assert table.massive_rows.tolist() == [len(rows.ids)]
    assert table.rests.tolist() == [True]
    assert table.r2[0] == pytest.approx(r2(maps[1], sum(blocks[1].test)))
    assert table.r2_ordinary[0] == pytest.approx(r2(maps[1], sum(blocks[1].ordinary().test)))
    ordinary = blocks[1].ordinary()
    assert table.own[0] == pytest.approx(ceiling(ordinary.train, ordinary.test).r2)
    sentence = massive_sentence({"gpt2": table})
    assert "In gpt2 a few massive rows decide" in sentence
    assert f"block 1, R² {table.r2[0]:.2f} on all rows" in sentence


def test_blocks_without_massive_rows_are_not_named(blocks, maps):
    table = massive_table(blocks, maps)
    assert table.empty
    assert massive_sentence({"gpt2": table}).startswith("No map of these models rests on massive rows")


def test_a_block_whose_massive_rows_decide_nothing_is_not_named():
    table = pd.DataFrame([{"block": 3, "massive_rows": 2, "r2": 0.6, "r2_ordinary": 0.35, "own": 0.4, "rests": False}])
    assert massive_sentence({"a": table}).startswith("No map")


# --- a deep table


def test_a_deep_table_is_laid_out_side_by_side_and_a_short_one_is_left_alone():
    deep = pd.DataFrame({"a": [float(block) for block in range(7)]}, pd.RangeIndex(7, name="block"))
    assert folded(deep, 7) is deep
    found = folded(deep, 3)
    assert list(found.columns) == ["block", "a"] * 3
    assert found.to_numpy().tolist() == [[0, 0.0, 3, 3.0, 6, 6.0], [1, 1.0, 4, 4.0, "", ""], [2, 2.0, 5, 5.0, "", ""]]
    of_one = pd.concat({"kind": deep, "size": deep}, axis=1)
    assert list(folded(of_one, 6).columns) == ["block", "kind", "size"] * 2
    of_two = pd.concat({"kind": deep.assign(b=1.0)}, axis=1)
    assert list(folded(of_two, 6).columns) == ["block", "kind a", "kind b"] * 2


# --- agreement


def test_agreement_by_hand():
    found = agreement([[1.0, 2, 3, 4], [4.0, 3, 2, 1]], [[2.0, 4, 6, 8], [2.0, 4, 6, 8]])
    assert found.rho.value == 0  # +1 in one group, −1 in the other
    assert agreement([[1.0, 2, 3, 4]], [[2.0, 8, 4, 6]]).rho.low < 0.4  # ρ = 0.4 from four pairs
    factors = sorted([2, 2, 2, 2, 2, 4 / 3, 3, 8])  # of the two groups' pairs, how far apart
    assert found.factor == pytest.approx(np.exp(np.median(np.log(factors))))


def test_a_signal_that_ranks_perfectly_is_told_from_noise():
    truth = [np.exp(np.random.default_rng(seed).normal(size=12)) for seed in range(3)]
    perfect = agreement([3 * t**2 for t in truth], truth)
    assert astuple(perfect.rho) == pytest.approx((1, 1, 1), abs=1e-12)
    assert agreement([2 * t for t in truth], truth).factor == pytest.approx(2)
    noise = agreement([np.random.default_rng(9 + seed).normal(size=12) for seed in range(3)], truth)
    assert not noise.rho.excludes(0.0)
    assert noise.rho.half_width > 0.15


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_agreement_depends_on_ranks_only_and_its_interval_on_the_seed(seed):
    generator = np.random.default_rng(seed)
    signal, truth = generator.normal(size=(2, 9))
    found = agreement([signal], [truth], draws=50, seed=seed)
    assert found.rho.value == pytest.approx(spearmanr(signal, truth).statistic)
    assert found.rho.low <= found.rho.high
    same = agreement([np.exp(signal)], [truth**3], draws=50, seed=seed)
    assert astuple(same.rho) == pytest.approx(astuple(found.rho))


@pytest.mark.parametrize(
    ("signal", "truth", "message"),
    [
        ([], [], "0 groups"),
        ([[1, 2, 3, 4]], [], "1 groups of predictions for 0"),
        ([[1, 2, 3]], [[1, 2, 3]], "group 0: 3 predictions for 3 costs; ranks need at least four"),
        ([[1, 2, 3, 4, 5]], [[1, 2, 3, 4]], "group 0: 5 predictions for 4"),
        ([[1, 2, 3, 4]], [[2, 2, 2, 2]], "group 0: all values are the same"),
    ],
)
def test_groups_without_ranks_are_refused(signal, truth, message):
    with pytest.raises(InputError, match=message):
        agreement(signal, truth)


def test_signals_are_compared_in_a_table_group_by_group():
    index = pd.MultiIndex.from_product([["a", "b"], range(5)], names=["model", "block"])
    truth = pd.Series([1.0, 2, 3, 4, 5, 50, 40, 30, 20, 10], index)
    signals = pd.DataFrame({"twice": 2 * truth, "order": [1.0, 2, 3, 4, 5] * 2}, index)
    found = compare(signals, truth)
    assert list(found.columns) == ["rho", "low", "high", "factor"]
    assert found.rho.to_dict() == pytest.approx({"twice": 1, "order": 0})
    assert found.factor["twice"] == pytest.approx(2)
    expected = agreement([signals["order"]["a"], signals["order"]["b"]], [truth["a"], truth["b"]])
    assert tuple(found.loc["order"]) == pytest.approx((*astuple(expected.rho), expected.factor))


def test_the_ranking_says_by_what_factor_only_where_units_agree():
    single = pd.MultiIndex.from_product([["a", "b"], range(5)], names=["model", "block"])
    costs = pd.DataFrame({"nats": [1.0, 2, 3, 4, 5, 50, 40, 30, 20, 10]}, single)
    said = pd.DataFrame({"1 − R²": -costs["nats"], "price": 2 * costs["nats"]}, single)
    several = pd.MultiIndex.from_product([["a", "b"], range(4)], names=["model", "set"])
    joint = pd.DataFrame(
        {"cost": [1.0, 2, 3, 4] * 2, "1 − R²": [1.0, 2, 3, 4] * 2, "price": [3.0, 6, 9, 12] * 2}, several
    )
    found = ranking(said, costs, joint)
    assert found.index.tolist() == ["1 − R²", "price"]
    assert found["one block", "rho"].tolist() == pytest.approx([-1, 1])
    assert found["several", "rho"].tolist() == pytest.approx([1, 1])
    assert np.isnan(found["one block", "factor"]["1 − R²"])
    assert found["one block", "factor"]["price"] == pytest.approx(2)
    assert found["several", "factor"]["price"] == pytest.approx(3)
