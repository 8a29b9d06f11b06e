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
from helpers.reference import normal
from howlinear.core.ceilings import AffineMap, ceiling, fit, r2
from howlinear.ideas.compression.costs import cost, swap_cost
from howlinear.ideas.compression.ranking import (
    agreement,
    block_costs,
    compare,
    deciding,
    massive_table,
    ranking,
    recovered,
    set_costs,
)
from howlinear.ideas.compression.signals import REPLACE_ONE
from howlinear.ideas.sinks.planted import sunk
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
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
    assert found["delta_low"] < found["delta"] < found["delta_high"]
    assert list(found) == ["nats", "delta", "delta_low", "delta_high"]


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
        ends = (row.recovered, row.recovered_low, row.recovered_high)
        assert ends == pytest.approx((np.nan,) * 3 if share is None else astuple(share), nan_ok=True)


def test_a_sets_signal_is_the_sum_and_its_cost_is_measured_together(gpt2, maps, held_out):
    """Each block has a power of two for a signal, so that a set's sum shows which blocks are in it."""
    powers = pd.DataFrame({"power": [1.0, 2, 4]}, index=range(3))
    base = losses(gpt2, held_out)

    def drawn(seed):
        return set_costs(gpt2, maps, powers, held_out, 4, np.random.default_rng(seed))

    found = drawn(0)
    assert len(found) == 4
    for row in found.itertuples():
        blocks = [block for block in range(3) if int(row.power) >> block & 1]
        assert len(blocks) in (2, 3)
        together = {block: maps[block] for block in blocks}
        assert row.cost == pytest.approx(swap_cost(gpt2, together, held_out, base)["nats"], rel=1e-9)
    assert found.equals(drawn(0))


# --- loss recovered


@pytest.mark.parametrize(("cost", "share"), [(0.0, 1), (0.5, 0.75), (2.0, 0)])
def test_loss_recovered_by_hand(cost, share):
    base = torch.tensor([1.0, 2.0, 3.0]).double()
    assert astuple(recovered(base, base + cost, base + 2)) == pytest.approx((share, share, share))


def test_loss_recovered_has_a_paired_interval():
    base, cost, worth = normal(30).abs(), 0.1 + 0.02 * normal(30, seed=1), 1 + 0.1 * normal(30, seed=2)
    found = recovered(base, base + cost, base + worth)
    share = [1 - float(cost[torch.arange(30) != i].mean() / worth[torch.arange(30) != i].mean()) for i in range(30)]
    half = 2.045229642 * np.sqrt(29 * np.var(share))  # Student's t, 29 degrees of freedom
    assert found.value == pytest.approx(1 - float(cost.mean() / worth.mean()))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


def test_of_a_block_that_does_nothing_there_is_no_share_to_recover():
    base, noise = normal(30).abs(), 0.1 * normal(30, seed=1)
    assert recovered(base, base + 0.01, base + noise - noise.mean() + 0.001) is None
    assert recovered(base, base + 0.01, base) is None
    assert recovered(base, base + 0.01, base - 1) is None


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
    assert table.r2_ordinary[0] == pytest.approx(r2(maps[1], sum(blocks[1].ordinary().test)))
    ordinary = blocks[1].ordinary()
    assert table.r2_own[0] == pytest.approx(ceiling(ordinary.train, ordinary.test).r2)


def test_blocks_without_massive_rows_are_not_named(blocks, maps):
    table = massive_table(blocks, maps)
    assert table.empty


# --- agreement


def test_a_signal_that_ranks_perfectly_differs_from_noise():
    truth = [np.exp(np.random.default_rng(seed).normal(size=12)) for seed in range(3)]
    perfect = agreement([3 * t**2 for t in truth], truth)
    assert astuple(perfect) == pytest.approx((1, 1, 1), abs=1e-12)
    noise = agreement([np.random.default_rng(9 + seed).normal(size=12) for seed in range(3)], truth)
    assert not noise.excludes(0.0)
    assert noise.half_width > 0.15


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_agreement_depends_on_ranks_only_and_its_interval_on_the_seed(seed):
    generator = np.random.default_rng(seed)
    signal, truth = generator.normal(size=(2, 9))
    found = agreement([signal], [truth], draws=50, seed=seed)
    assert found.value == pytest.approx(spearmanr(signal, truth).statistic)
    assert found.low <= found.high
    same = agreement([np.exp(signal)], [truth**3], draws=50, seed=seed)
    assert astuple(same) == pytest.approx(astuple(found))


def planted():
    """Two models of six blocks whose costs one signal ranks rightly, and the other in one of them alone."""
    index = pd.MultiIndex.from_product([["a", "b"], range(6)], names=["model", "block"])
    truth = pd.Series([1.0, 2, 3, 4, 5, 6, 60, 50, 40, 30, 20, 10], index, name="nats")
    return pd.DataFrame({"twice": 2 * truth, "order": [1.0, 2, 3, 4, 5, 6] * 2}, index), truth


def test_signals_are_compared_in_a_table_model_by_model():
    table, truth = planted()
    found = compare(table, truth).set_index("signal")
    assert list(found.columns) == ["rho", "rho_low", "rho_high"]
    assert found.rho.to_dict() == pytest.approx({"twice": 1, "order": 0})
    expected = agreement([table["order"]["a"], table["order"]["b"]], [truth["a"], truth["b"]])
    assert tuple(found.loc["order"]) == pytest.approx(astuple(expected))


def test_what_has_no_ranks_is_left_out():
    """A model of five blocks, and a signal that is the same for all blocks of the other."""
    table, truth = planted()
    fewer = table.assign(constant=1.0).drop([("b", 0)])
    found = compare(fewer, truth[fewer.index]).set_index("signal")
    assert found.rho.to_dict() == pytest.approx({"twice": 1, "order": 1})
    assert compare(table[:5], truth[:5]).empty


def of_each(table):
    """Model → its rows."""
    return {model: table.xs(model) for model in ("a", "b")}


def test_blocks_and_sets_are_ranked_and_once_more_without_some_blocks():
    table, truth = planted()
    sets = of_each(table.assign(cost=-truth))
    found = ranking(of_each(table), of_each(truth.to_frame()), sets).set_index(["costs", "signal"])
    assert found.rho.to_dict() == pytest.approx(
        {("one block", "twice"): 1, ("one block", "order"): 0, ("several", "twice"): -1, ("several", "order"): 0}
    )
    table.loc[("a", 0), "twice"] = 99.0  # one block spoils the order
    found = ranking(of_each(table), of_each(truth.to_frame()), sets, [("a", 0)]).set_index(["costs", "signal"])
    assert found.rho["one block", "twice"] < 1
    assert found.rho["one block, without massive rows", "twice"] == pytest.approx(1)
    assert ranking({}, {}, {}).empty


def test_the_papers_signal_the_price_and_the_best_others_decide():
    rho = {"1 − R²": -0.5, "ablation": 0.8, "residual": 0.9, "price": 0.7, "CCA bound": 0.1, REPLACE_ONE: 1.0}
    table = pd.DataFrame({"costs": "one block", "signal": rho.keys(), "rho": rho.values()})
    assert deciding(table) == ["1 − R²", "price", "residual", "ablation"]
    assert deciding(table[table["signal"] != "price"]) == ["1 − R²", "residual", "ablation", "CCA bound"]
    assert deciding(table[:0]) == []
