"""What compressors ask of a model: by hand, by a slow reference, and on blocks whose answer is known."""

import gc
import weakref

import pytest
import torch

from conftest import WIDTH
from helpers.unit_rows import seen
from howlinear.core.ceilings import AffineMap, r2
from howlinear.core.moments import Moments
from howlinear.ideas.compression.allocate import eliminations_of
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors.drop import stream_of_layers
from howlinear.ideas.compression.compressors.lines import ConstantFirst, line_prices, lines_of
from howlinear.ideas.compression.compressors.width import moments_of
from howlinear.ideas.compression.greedy import fit_maps
from howlinear.ideas.compression.signals import cca_bounds
from howlinear.instrument.perplexity import losses
from howlinear.models.layers import parameters


def test_only_the_rows_to_fit_on_are_seen(gpt2, rows):
    calibration = Calibration(gpt2, rows)
    assert torch.equal(calibration.ids, rows.ids[~rows.test])
    assert moments_of(calibration)[0].n == calibration.ids.numel()


def test_what_is_forgotten_is_no_longer_held_and_comes_again(gpt2, rows):
    calibration = Calibration(gpt2, rows, priced=4)
    _, moments = eliminations_of(calibration)
    price = line_prices(calibration, False)
    held = weakref.ref(moments[0])
    calibration.forget()
    del moments
    gc.collect()
    assert held() is None
    assert line_prices(calibration, False) == pytest.approx(price)


def test_a_share_is_of_all_parameters(gpt2, rows):
    calibration = Calibration(gpt2, rows)
    assert calibration.allowed(1.0) == parameters(gpt2)
    assert calibration.allowed(0.5) == parameters(gpt2) // 2


def test_lines_are_those_of_least_squares(model, rows):
    calibration = Calibration(model, rows)
    ids, found = calibration.ids, lines_of(calibration)
    for block, reference in fit_maps(model, ids, list(found)).items():
        torch.testing.assert_close(found[block].all_rows.weight, reference.weight, rtol=1e-5, atol=1e-7)
        x, y = map(seen(model, ids)[block].get, "xy")
        assert found[block].r2 == pytest.approx(r2(reference, Moments(WIDTH, WIDTH).update(x, y)), abs=1e-6)
        assert found[block].massive_rows == 0
        assert found[block].ordinary is found[block].all_rows


def test_an_anchored_map_by_hand():
    anchored = ConstantFirst(
        AffineMap(2 * torch.eye(2).double(), torch.ones(2).double()), torch.tensor([7.0, 8.0]).double()
    )
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]).double()
    assert anchored(x).tolist() == [[[7, 8], [7, 9], [11, 13]]]
    assert parameters(anchored) == 4 + 2 + 2


def test_nothing_is_left_behind(model, rows):
    before = losses(model, rows.ids)
    calibration = Calibration(model, rows, priced=4)
    for found in (lines_of, stream_of_layers, moments_of):
        assert found(calibration) is found(calibration)
    cca_bounds(model, rows.ids)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(losses(model, rows.ids), before)
