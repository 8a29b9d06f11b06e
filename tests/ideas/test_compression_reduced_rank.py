import pytest
import torch

from howlinear.core.ceilings import AffineMap
from howlinear.core.reduced_rank import reduced_rank
from howlinear.ideas.compression.costs import swap_cost
from howlinear.ideas.compression.reduced_rank import ffn_parameters, rank_costs, rank_curves, share_of_block
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites


def test_parameters_are_counted_in_the_place_of_the_blocks(gpt2):
    whole = sum(p.numel() for site in sites(gpt2) for p in site.output.parameters())
    assert ffn_parameters(gpt2) == whole == 3 * (8 * 32**2 + 5 * 32)
    line = AffineMap(torch.zeros(32, 32).double(), torch.zeros(32).double())
    assert ffn_parameters(gpt2, {0: line, 2: line}) == whole // 3 + 2 * 32 * 33


# --- tables


@pytest.fixture
def curves(gpt2, rows):
    return {block: reduced_rank(kept.train, kept.test) for block, kept in capture(gpt2, rows, [0, 2]).items()}


def test_a_share_counts_what_a_map_holds(curves):
    curve = curves[0]
    for rank in (1, 7, 31):
        assert share_of_block(curve, rank, 1.0) == curve.at(rank).parameters
    assert share_of_block(curve, 32, 2.0) == (32 * 32 + 32) / 2  # the full map is one matrix


def test_the_table_of_curves_ends_at_half_the_width(gpt2, curves):
    table = rank_curves(gpt2, curves)
    own = ffn_parameters(gpt2) / 3
    assert table.groupby("block").size().to_dict() == {0: 16, 2: 16}
    for row in table.itertuples():
        curve = curves[row.block]
        assert row.share == pytest.approx((64 * row.rank + 32) / own)
        assert (row.r2, row.r2_low, row.r2_high) == (
            curve.r2[row.rank],
            curve.r2_low[row.rank],
            curve.r2_high[row.rank],
        )


def test_what_thin_maps_cost_is_measured(gpt2, rows, curves):
    ids = rows.ids[rows.test]
    table = rank_costs(gpt2, curves, ids)
    assert table["block"].tolist() == [0] * 5 + [2] * 5
    assert table["rank"].tolist() == [2, 4, 8, 16, 32] * 2
    base = losses(gpt2, ids)
    own = ffn_parameters(gpt2) / 3
    for row in table.itertuples():
        curve = curves[row.block]
        replacement = curve.map if row.rank == 32 else curve.at(row.rank)
        for name, number in swap_cost(gpt2, {row.block: replacement}, ids, base).items():
            assert getattr(row, name) == pytest.approx(number, rel=1e-9), name
        assert row.r2 == float(curve.r2[row.rank])
        assert row.share == pytest.approx(share_of_block(curve, row.rank, own))
