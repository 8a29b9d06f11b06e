from dataclasses import astuple

import numpy as np
import pytest
import torch

from helpers.reference import normal
from howlinear.core.ceilings import AffineMap
from howlinear.core.reduced_rank import Reduced, reduced_rank
from howlinear.errors import InputError
from howlinear.ideas.compression.reduced_rank import (
    ffn_parameters,
    first_middle_last,
    rank_costs,
    rank_curves,
    recovered,
    share_of_block,
)
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites
from howlinear.models.swap import swap


def test_parameters_are_counted_in_the_place_of_the_blocks(gpt2):
    whole = sum(p.numel() for site in sites(gpt2) for p in site.output.parameters())
    assert ffn_parameters(gpt2) == whole == 3 * (8 * 32**2 + 5 * 32)
    line = AffineMap(torch.zeros(32, 32).double(), torch.zeros(32).double())
    thin = Reduced(torch.zeros(32, 4).double(), torch.zeros(4, 32).double(), torch.zeros(32).double())
    assert ffn_parameters(gpt2, {0: line, 2: thin}) == whole // 3 + 32 * 33 + 4 * 64 + 32


def test_loss_recovered_by_hand():
    base = torch.tensor([1.0, 2.0, 3.0]).double()
    found = recovered(base, base + 0.5, base + 2)
    assert astuple(found) == pytest.approx((0.75, 0.75, 0.75))


def test_loss_recovered_has_a_paired_interval():
    base, cost, worth = normal(30).abs(), 0.1 + 0.02 * normal(30, seed=1), 1 + 0.1 * normal(30, seed=2)
    found = recovered(base, base + cost, base + worth)
    share = [1 - float(cost[torch.arange(30) != i].mean() / worth[torch.arange(30) != i].mean()) for i in range(30)]
    half = 2.045229642 * np.sqrt(29 * np.var(share))  # Student's t, 29 degrees of freedom
    assert found.value == pytest.approx(1 - float(cost.mean() / worth.mean()))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


def test_the_block_itself_recovers_all_and_its_mean_nothing():
    base, worth = normal(9).abs(), 1 + normal(9, seed=2).abs()
    assert recovered(base, base, base + worth).value == 1
    assert recovered(base, base + worth, base + worth).value == pytest.approx(0)


def test_of_a_block_that_does_nothing_there_is_no_share_to_recover():
    base, noise = normal(30).abs(), 0.1 * normal(30, seed=1)
    assert recovered(base, base + 0.01, base + noise - noise.mean() + 0.001) is None
    assert recovered(base, base + 0.01, base) is None
    assert recovered(base, base + 0.01, base - 1) is None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 3), (3, 3, 2)])
def test_losses_of_other_sequences_are_refused(sizes):
    with pytest.raises(InputError, match="the same sequences three times"):
        recovered(*(torch.ones(size).double() for size in sizes))


# --- tables


@pytest.fixture
def curves(gpt2, rows):
    return {block: reduced_rank(kept.train, kept.test) for block, kept in capture(gpt2, rows, [0, 2]).items()}


def test_a_share_counts_what_a_map_holds(curves):
    curve = curves[0]
    for rank in (1, 7, 31):
        assert share_of_block(curve, rank, 1.0) == curve.at(rank).parameters
    assert share_of_block(curve, 32, 2.0) == (32 * 32 + 32) / 2  # the full map is one matrix


def test_the_places_looked_at():
    assert first_middle_last(12) == {0: "first block", 6: "middle block", 11: "last block"}
    assert first_middle_last(2) == {0: "first block", 1: "last block"}
    assert first_middle_last(1) == {0: "last block"}


def test_the_table_of_curves_ends_at_half_the_width(gpt2, curves):
    table = rank_curves(gpt2, curves)
    own = ffn_parameters(gpt2) / 3
    assert table.place.unique().tolist() == ["first block", "last block"]
    assert table.groupby("block").size().to_dict() == {0: 16, 2: 16}
    for row in table.itertuples():
        curve = curves[row.block]
        assert row.share == pytest.approx((64 * row.rank + 32) / own)
        assert (row.r2, row.low, row.high) == (curve.r2[row.rank], curve.r2_low[row.rank], curve.r2_high[row.rank])


def test_what_thin_maps_cost_is_measured(gpt2, rows, curves):
    ids = rows.ids[rows.test]
    table = rank_costs(gpt2, curves, ids, parts=(64, 4, 1))
    assert table.place.tolist() == ["first block"] * 3 + ["last block"] * 3
    assert table[["block", "rank"]].to_numpy().tolist() == [[0, 1], [0, 8], [0, 32], [2, 1], [2, 8], [2, 32]]
    base = losses(gpt2, ids)
    own = ffn_parameters(gpt2) / 3
    for row in table.itertuples():
        curve = curves[row.block]
        replacement = curve.map if row.rank == 32 else curve.at(row.rank)
        with swap(gpt2, {row.block: replacement}):
            after = losses(gpt2, ids)
        assert row.nats == pytest.approx(float((after - base).mean()), rel=1e-9)
        assert row.delta == pytest.approx(float(after.mean().exp() - base.mean().exp()), rel=1e-9)
        assert row.low <= row.delta <= row.high
        assert row.r2 == float(curve.r2[row.rank])
        assert row.share == pytest.approx(share_of_block(curve, row.rank, own))
