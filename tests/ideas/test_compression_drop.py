"""Layers and sub-layers that turn the stream least are dropped: planted ones first, and nothing but these."""

import pytest
import torch

from conftest import BLOCKS
from helpers.unit_rows import hush, share_without
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors import drop
from howlinear.ideas.compression.compressors.drop import Stream
from howlinear.instrument.perplexity import losses
from howlinear.models.layers import ZeroOutput, layers_of, parameters, parts_of, sub_layer_size

BOTH = ["ffn", "attention"]


def part(model, number, kind):
    name, _ = parts_of(model)[kind]
    return getattr(layers_of(model)[number], name)


def same_losses(smaller, model, ids):
    torch.testing.assert_close(losses(smaller, ids), losses(model, ids), atol=1e-5, rtol=0)


def test_a_silent_layer_goes_and_costs_nothing(model, rows):
    for kind in ("attention", "ffn"):
        hush(part(model, 1, kind))
    calibration = Calibration(model, rows)
    share = share_without(model, parameters(layers_of(model)[1]))
    smaller = drop.layers(calibration, share)
    assert parameters(smaller) == calibration.allowed(share)
    same_losses(smaller, model, rows.ids)
    with pytest.raises(InputError, match="leave at least one"):
        drop.layers(calibration, share_without(model, *[parameters(layer) for layer in layers_of(model)]))
    assert len(layers_of(model)) == BLOCKS


@pytest.mark.parametrize(("kind", "kinds"), [("ffn", ["ffn"]), ("attention", BOTH)])
def test_a_silent_sub_layer_goes_and_costs_nothing(model, rows, kind, kinds):
    """Block influence sees whole layers only, and the other sub-layer of the same layer is not silent."""
    hush(part(model, 1, kind))
    calibration = Calibration(model, rows)
    share = share_without(model, sub_layer_size(model, 1, kind))
    smaller = drop.sub_layers(calibration, share, kinds)
    assert parameters(smaller) == calibration.allowed(share)
    assert isinstance(part(smaller, 1, kind), ZeroOutput)
    assert smaller.config.use_cache == (kind == "ffn")
    assert not isinstance(part(model, 1, kind), ZeroOutput)
    same_losses(smaller, model, rows.ids)
    assert not torch.allclose(losses(drop.layers(calibration, share), rows.ids), losses(model, rows.ids), atol=1e-3)


def test_layers_and_sub_layers_by_hand(model, rows):
    """Three layers turn the stream by 0.5, 0.1, 0.3: of two the second and third go, whatever it turns over both.

    Of sub-layers, attention of the first (0.01) goes, then the second FFN (0.05), then attention of the third (0.08).
    """
    calibration = Calibration(model, rows)
    states = torch.eye(BLOCKS + 1, dtype=torch.float64)
    for number, cosine in enumerate((0.5, 0.9, 0.7)):
        states[number, number + 1] = cosine
    attention, ffn = torch.tensor([0.01, 0.3, 0.08]).double(), torch.tensor([0.2, 0.05, 0.1]).double()
    calibration.memory["stream_of_layers",] = Stream(states, attention, ffn)

    sizes = [parameters(layer) for layer in layers_of(model)]
    smaller = drop.layers(calibration, share_without(model, sizes[1], sizes[2]))
    (left,) = layers_of(smaller)
    assert torch.equal(next(left.parameters()), next(layers_of(model)[0].parameters()))

    sizes = {kind: [sub_layer_size(model, n, kind) for n in range(BLOCKS)] for kind in ("attention", "ffn")}
    third = sizes["attention"][2]
    smaller = drop.sub_layers(calibration, share_without(model, sizes["attention"][0], sizes["ffn"][1], third), BOTH)
    gone = [
        (kind, n)
        for n in range(BLOCKS)
        for kind in ("attention", "ffn")
        if isinstance(part(smaller, n, kind), ZeroOutput)
    ]
    assert gone == [("attention", 0), ("ffn", 1), ("attention", 2)]
    smaller = drop.sub_layers(calibration, share_without(model, *sizes["ffn"][1:]), ["ffn"])
    assert [isinstance(part(smaller, n, "ffn"), ZeroOutput) for n in range(BLOCKS)] == [False, True, True]
