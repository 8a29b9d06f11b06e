"""Affine maps in the place of blocks: which go, and what they cost."""

from functools import partial

import pytest
import torch

from conftest import BLOCKS, WIDTH, tiny
from helpers.unit_rows import seen
from howlinear.core.ceilings import AffineMap
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors.lines import ConstantFirst, by_price, by_r2, lines_of
from howlinear.ideas.sinks.planted import sunk
from howlinear.instrument.perplexity import losses
from howlinear.models.ffn_sites import sites
from howlinear.models.layers import parameters

COMPRESSORS = [by_r2, by_price, partial(by_price, ordinary=True)]


def replaced(model):
    """The blocks that are maps."""
    return [site.block for site in sites(model) if site.linear or isinstance(site.ffn, ConstantFirst)]


def share_without(model, count, numbers=WIDTH * WIDTH + WIDTH):
    """The share that is left with maps of so many numbers in the place of so many blocks."""
    saved = sum(parameter.numel() for parameter in sites(model)[0].parameters()) - numbers
    return (parameters(model) - count * saved) / parameters(model)


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_as_few_blocks_go_as_are_enough(model, rows, compress):
    calibration = Calibration(model, rows, priced=4)
    size = parameters(model)
    for count in range(BLOCKS + 1):
        smaller = compress(calibration, share_without(model, count))
        assert len(replaced(smaller)) == count
        assert parameters(smaller) == pytest.approx(size * share_without(model, count))
    assert len(replaced(compress(calibration, share_without(model, 1) - 0.01))) == 2
    assert parameters(model) == size
    with pytest.raises(InputError, match="in the place of all blocks"):
        compress(calibration, share_without(model, BLOCKS) - 0.01)


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_straight_block_goes_first_and_costs_nothing(rows, compress):
    """Planted: with its activation gone the last block is a line."""
    model = tiny("mini-gpt2")
    model.transformer.h[2].mlp.act = torch.nn.Identity()
    calibration = Calibration(model, rows, priced=4)
    smaller = compress(calibration, share_without(model, 1))
    assert replaced(smaller) == [2]
    held_out = rows.ids[rows.test]
    torch.testing.assert_close(losses(smaller, held_out), losses(model, held_out), atol=1e-4, rtol=0)


def test_a_constant_at_position_0_needs_to_know_the_positions(unchecked):
    """OPT's blocks read the rows of all sequences as one."""
    line = AffineMap(torch.eye(WIDTH), torch.zeros(WIDTH))
    anchored = ConstantFirst(line, torch.ones(WIDTH))
    rows = torch.randn(2, 3, WIDTH)
    y = anchored(rows)
    assert torch.equal(y[:, 0], torch.ones(2, WIDTH))
    torch.testing.assert_close(y[:, 1:], rows[:, 1:])
    with pytest.raises(InputError, match="without their positions"):
        anchored(rows.flatten(0, 1))


def test_a_copy_in_half_precision_keeps_the_frequencies_of_rope_in_float32(rows):
    """Rounded, they would turn late positions by another angle."""
    model = tiny("mini-llama")
    for part in (model.lm_head, *model.model.layers, model.model.embed_tokens, model.model.norm):
        part.to(torch.bfloat16)
    smaller = by_r2(Calibration(model, rows), share_without(model, 1))
    assert sum(site.linear for site in sites(smaller)) == 1
    assert {parameter.dtype for parameter in smaller.parameters()} == {torch.bfloat16}
    assert torch.equal(smaller.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


def test_a_sink_fools_the_order_of_r2_and_mending_mends_it(gpt2, rows):
    """Planted: one block is far more linear than all others for its sink alone, so the order of R² takes it."""
    sizes = [of_block["y"].norm(dim=1).median() for of_block in seen(gpt2, rows.ids).values()]
    mark, vector = torch.zeros(WIDTH), torch.zeros(WIDTH)
    mark[3] = 30 * sizes[0]
    vector[5] = 300 * sizes[1]
    with sunk(gpt2, 1, mark, vector):
        calibration = Calibration(gpt2, rows, priced=4)
        assert max(lines_of(calibration), key=lambda block: lines_of(calibration)[block].r2) == 1
        held_out = rows.ids[rows.test]
        share = share_without(gpt2, 1)
        base = losses(gpt2, held_out).mean()
        assert replaced(by_r2(calibration, share)) == [1]
        line, anchored = lines_of(calibration)[1].all_rows, lines_of(calibration)[1].ordinary
        assert lines_of(calibration)[1].massive_rows == len(calibration.ids)
        assert float(anchored.first[5]) > 0.9 * vector[5]
        x, y = (seen(gpt2, held_out)[1][name].view(len(held_out), -1, WIDTH) for name in "xy")
        missed = [((found(x) - y)[:, 1:]).square().sum() for found in (line, anchored)]
        assert missed[1] < missed[0] / 2
        smaller = by_price(calibration, share_without(gpt2, BLOCKS, WIDTH * WIDTH + 2 * WIDTH), ordinary=True)
        assert losses(smaller, held_out).mean() - base < 3
        assert not smaller.config.use_cache
